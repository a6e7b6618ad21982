"""Every figure of the paper's rows as its reader sees it: at the width
of a page, in grey, one look for each method.
"""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import ROOT, needs_git
from tracked import tracked
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text

import lrp_loo.paper.reproduce as reproduce
from lrp_loo.core.stats import per_text
from lrp_loo.methods.table import METHODS
from lrp_loo.paper.figures import SWEEP_STYLE, plot_layerwise, sweep_gains
from lrp_loo.paper.tables import layer_table
from lrp_loo.paper.style import PAGE, full_name, method_look
from lrp_loo.records.results import read_results

RESULTS = ROOT / 'results'
SHOWN_AT = 900 / 96  # inches: the width of a page, 900 pixels of a screen
SMALLEST = 8  # points, as they are read
# chapter 1 draws with sizes of its own
APART = ('figure1',)
# darkness (0 to 1) by which two lines are told apart without a marker
APART_IN_GREY = 0.15


def figures_of(studies, *folders):
    """Folder and name → the figure, each file of rows from the first that has
    it.
    """
    found = {}
    quiet = {'figure.max_open_warning': 0}
    with pytest.MonkeyPatch.context() as patch, plt.rc_context(quiet):

        def keep(figure, path):
            if figure is not None:
                found[path.parent.name, path.stem] = figure

        patch.setattr(reproduce, 'save_figure', keep)
        reproduce.draw_figures(studies, folders[0], *folders)
    plt.close('all')
    return found


@pytest.fixture(scope='module')
def drawn(kept_results):
    "Of every folder of rows that are kept, but for those that stand apart."
    found = {}
    for folder in sorted(kept_results.glob('*/')):
        found |= figures_of(reproduce.studies_of(), folder)
    return {k: f for k, f in found.items() if k[1] not in APART}


def texts_of(figure):
    "What is written on it."
    found = (text for text in figure.findobj(Text) if text.get_visible())
    return [text for text in found if text.get_text().strip()]


def darkness(colour):
    "What a printer without colours makes of it."
    return 1 - np.dot(to_rgb(colour), (0.299, 0.587, 0.114))


def lines_by_label(ax):
    "Of one label the first line; what errorbars consist of is taken once."
    found = {}
    for handle, label in zip(*ax.get_legend_handles_labels()):
        line = handle.lines[0] if hasattr(handle, 'lines') else handle
        if hasattr(line, 'get_marker'):
            found[label] = line
    return found


def looks_alike(one, other):
    "Whether two lines are the same but for a colour that is as dark."
    if one.get_marker() != other.get_marker():
        return False
    if one.get_linestyle() != other.get_linestyle():
        return False
    colours = [(x.get_color(), x.get_markerfacecolor()) for x in (one, other)]
    steps = [abs(darkness(a) - darkness(b)) for a, b in zip(*colours, strict=True)]
    return max(steps) < APART_IN_GREY


# at the width of a page


def test_every_figure_is_as_wide_as_the_page_or_less(drawn):
    assert len(drawn) > 15
    wide = {k: f.get_figwidth() for k, f in drawn.items()}
    assert {k: w for k, w in wide.items() if w > PAGE + 1e-9} == {}


def too_small(figure):
    "What is written in type that a page shows in less than 8 points."
    scale = SHOWN_AT / figure.get_figwidth()
    return {
        text.get_text()
        for text in texts_of(figure)
        if text.get_fontsize() * scale < SMALLEST
    }


def test_type_is_large_enough_on_a_page(drawn):
    small = {key: too_small(figure) for key, figure in drawn.items()}
    assert {key: texts for key, texts in small.items() if texts} == {}


def test_no_folder_is_shown_where_a_model_is_meant(drawn):
    folders = ('minilm-', 'mpnet-', 'llama-', 'smollm2', 'vit-', '_')
    cryptic = {
        (*key, text.get_text())
        for key, figure in drawn.items()
        for text in texts_of(figure)
        if any(word in text.get_text() for word in folders)
        and not text.get_text().startswith('$')
    }
    assert cryptic == set()


@needs_git
def test_every_figure_of_the_folder_is_drawn_anew(drawn):
    kept = {(path.parent.name, path.stem) for path in tracked('figures/*/*.png')}
    assert {key for key in kept if key[1] not in APART} == set(drawn)


def test_a_method_has_one_colour_and_one_marker_in_every_figure(drawn):
    looks = {full_name(m): method_look(m) for m in METHODS}
    seen = set()
    for key, figure in drawn.items():
        for ax in figure.axes:
            for label, line in lines_by_label(ax).items():
                if label in looks:
                    seen.add(label)
                    look = looks[label]
                    assert to_rgba(line.get_color()) == to_rgba(look['color']), key
                    # a reference line across a panel has no marker
                    assert line.get_marker() in (look['marker'], 'None'), key
    assert {'AttnLRP', 'Leave-One-Out'} <= seen


# in grey


def test_lines_of_a_panel_are_told_apart_in_grey(drawn):
    alike = [
        (*key, *pair)
        for key, figure in drawn.items()
        for ax in figure.axes
        for pair in combinations(lines_by_label(ax), 2)
        if looks_alike(*(lines_by_label(ax)[label] for label in pair))
    ]
    assert alike == []


# no name hides another


def test_a_legend_hides_nothing_that_is_written(drawn):
    for key, figure in drawn.items():
        figure.draw_without_rendering()
        written = [
            text.get_window_extent()
            for ax in figure.axes
            for text in (ax.xaxis.label, ax.yaxis.label, ax.title)
            if text.get_text()
        ]
        for legend in figure.legends:
            box = legend.get_window_extent().padded(-2)
            hidden = [other for other in written if box.overlaps(other)]
            assert hidden == [], key


# Figure 2: pairs, not means


def test_figure_2_shows_paired_gains_with_paired_intervals():
    results = read_results(RESULTS / 'minilm' / 'sst2.json')
    above, below = plot_layerwise(dict(sst2=results)).axes
    table = layer_table(results)
    for ax, column in ((above, 'loo_r'), (below, 'delta')):
        gains = sweep_gains(results, column)
        # Δ, in logits, as a share of AttnLRP's
        of_attn_lrp = per_text(results['rows'], 'attn_lrp', column).mean()
        gains[['mean', 'low', 'high']] /= of_attn_lrp if column == 'delta' else 1
        for sweep, line, bars in zip(SWEEP_STYLE, ax.lines, ax.collections):
            own = gains[gains.sweep == sweep]
            assert np.allclose(line.get_ydata(), own['mean'])
            ends = [segment[:, 1] for segment in bars.get_segments()]
            assert np.allclose(ends, own[['low', 'high']])
    gains = sweep_gains(results, 'loo_r').merge(table, on=['sweep', 'k'])
    assert np.allclose(gains['mean'], gains.gain)
    assert np.allclose(gains.low, gains.gain_low)
    plt.close('all')
