"""The lab's figures as their reader sees them: what holds of the paper's holds of
them, and the names of the trade-off stand apart.
"""

from itertools import combinations

import matplotlib.pyplot as plt
import pytest
from conftest import LAB, needs_git, tracked
from test_figures import (  # noqa: F401
    figures_of,
    test_a_legend_hides_nothing_that_is_written,
    test_a_method_has_one_colour_in_every_figure,
    test_a_method_has_one_marker_in_every_figure,
    test_lines_of_a_panel_are_told_apart_in_grey,
    test_no_folder_is_shown_where_a_model_is_meant,
    test_type_is_large_enough_on_a_page,
)

from lrp_lab import run
from lrp_lab.cost import FAILS, plot_tradeoff
from lrp_loo.paper.style import PAGE, full_name
from lrp_loo.trust.results import read_results

RESULTS = LAB / 'results'


@pytest.fixture(scope='module')
def drawn(kept_results):
    "Folder and name → the figure, from the rows that are kept."
    folders = (kept_results / name for name in ('studies', 'minilm'))
    return figures_of(run.studies(), *folders)


def test_every_figure_is_as_wide_as_the_page_or_less(drawn):
    assert len(drawn) > 20
    wide = {k: f.get_figwidth() for k, f in drawn.items()}
    assert {k: w for k, w in wide.items() if w > PAGE + 1e-9} == {}


@needs_git
def test_every_figure_of_the_lab_is_drawn_anew(drawn):
    kept = tracked('research/figures/*/*.png')
    assert {(path.parent.name, path.stem) for path in kept} == set(drawn)


def boxes(texts, figure):
    "What they cover, in pixels."
    figure.draw_without_rendering()
    return {text.get_text(): text.get_window_extent() for text in texts}


def overlapping(found):
    "Pairs of boxes that share more than an edge."
    return [
        pair
        for pair in combinations(found, 2)
        if found[pair[0]].padded(-0.5).overlaps(found[pair[1]].padded(-0.5))
    ]


def test_the_names_of_the_trade_off_do_not_overlap(drawn):
    figure = drawn['studies', 'tradeoff']
    for ax in figure.axes:
        found = boxes(ax.texts, figure)
        assert overlapping(found) == []
        room = ax.get_window_extent().padded(1)
        for name, box in found.items():
            assert room.contains(box.x0, box.y0), name
            assert room.contains(box.x1, box.y1), name


def test_the_trade_off_has_every_method_whose_seconds_were_measured(drawn):
    measured = read_results(RESULTS / 'cost-length.json')['rows']
    names = {full_name(row['method']) for row in measured}
    axes = drawn['studies', 'tradeoff'].axes
    for column in (axes[::2], axes[1::2]):
        assert {t.get_text() for ax in column for t in ax.texts} == names


def test_failures_take_a_fifth_of_the_trade_off_at_most(drawn):
    above, _, below, _ = drawn['studies', 'tradeoff'].axes
    heights = [ax.get_position().height for ax in (above, below)]
    assert heights[1] < 0.25 * heights[0]
    assert all(text.xy[1] >= FAILS for text in above.texts)
    assert all(text.xy[1] < FAILS for text in below.texts)


def tried(**r):
    "Two texts on which methods reach these r."
    methods = {m: dict(r=x) for m, x in r.items()}
    return dict(rows=[dict(n_tokens=16, methods=methods)] * 2)


def seconds(**of):
    "What `benchmarks/length.py` writes, of so many seconds."
    rows = [
        dict(method=m, tokens=n, seconds=s * n, mib=1)
        for m, s in of.items()
        for n in (8, 32)
    ]
    return dict(rows=rows)


def test_names_of_dots_on_one_spot_stand_apart():
    near = dict(attn_lrp=0.9, cp_lrp=0.9, removal=0.901, loo=0.902)
    cost = seconds(attn_lrp=0.1, cp_lrp=0.1, removal=0.1, loo=0.1)
    figure = plot_tradeoff(cost, dict(sst2=tried(**near)))
    (ax,) = figure.axes
    assert overlapping(boxes(ax.texts, figure)) == []
    plt.close(figure)


def test_what_agrees_alone_needs_no_second_panel():
    cost = seconds(removal=0.1, rollout=0.1)
    (ax,) = plot_tradeoff(cost, dict(sst2=tried(removal=0.9))).axes
    both = dict(sst2=tried(removal=0.9, rollout=0.0))
    above, below = plot_tradeoff(cost, both).axes
    assert [t.get_text() for t in below.texts] == ['attention rollout']
    assert [t.get_text() for t in above.texts] == ['removal']
    plt.close('all')


def test_the_front_page_s_figure_names_its_model(drawn):
    titles = [ax.get_title() for ax in drawn['studies', 'tradeoff'].axes]
    named = [title for title in titles if title]
    assert len(named) == 2
    assert all(title.startswith('MiniLM on ') for title in named)
