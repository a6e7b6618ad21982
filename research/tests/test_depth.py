"LOO followed through depth: what is compared, what it costs, what is drawn."

import pytest
from conftest import shallow_demo

from lrp_lab import parts
from lrp_lab.depth import (
    BY_SPREAD,
    FOLLOWED,
    NEAREST,
    PARTS,
    POINTS,
    ROWS,
    ROWS_ALONE,
    depth_experiment,
    depth_table,
    depth_tables,
    forward_equivalents,
    loo_equivalents,
    plot_depth,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.paper.style import method_label
from lrp_loo.trust.results import read_results


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Three sentences on the encoder, two layers deep."
    path = tmp_path_factory.mktemp('depth') / 'depth-minilm.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        depth_experiment(path, 'depth-minilm', 'embedded', limit=3)
    return read_results(path)


def test_every_method_has_a_number(measured):
    table = depth_table(measured)
    assert list(table.index) == list(FOLLOWED)
    assert table.r.between(-1, 1).all()


def test_rows_follow_loo_on_two_layers(measured):
    r = depth_table(measured).r
    assert r['removal+rows, 8'] > 0.95
    assert r['removal+rows, 8'] > r['cp_lrp']


def test_a_backward_pass_counts_as_two():
    assert forward_equivalents('attn_lrp') == 3
    assert forward_equivalents('removal, carried by rules') == 3
    assert forward_equivalents('removal, 5 passes') == 15
    for n in ROWS:
        assert forward_equivalents(f'removal+rows, {n}') == 3 + n
        assert forward_equivalents(f'removal+rows, {n}, no rest') == 1 + n


def test_secants_take_both_ends_of_each_group():
    plain = forward_equivalents('removal, 5 passes')
    assert forward_equivalents('removal, 5 passes, secants') == 2 * plain - 3


def test_every_method_is_drawn_once(measured):
    drawn = [*POINTS, *NEAREST, *BY_SPREAD, *ROWS_ALONE]
    assert sorted(drawn) == sorted(FOLLOWED)
    fig = plot_depth({'depth-minilm': measured})
    labels = {text.get_text() for text in fig.legends[0].texts}
    assert set(map(method_label, POINTS)) <= labels


def test_exact_loo_costs_half_where_a_prefix_is_kept():
    assert loo_equivalents(20, causal=False) == 20
    assert loo_equivalents(20, causal=True) == 10


def test_the_figure_has_a_panel_a_model(measured):
    fig = plot_depth({'depth-minilm': measured, 'again': measured})
    assert len(fig.axes) == 2
    ax = fig.axes[0]
    assert 'n = 3' in ax.get_title()
    labels = [text.get_text() for text in fig.legends[0].texts]
    rows = {'removal + nearest rows', 'nearest rows alone'}
    assert rows | {'exact LOO'} <= set(labels)


def test_it_is_printed_with_the_cost_of_loo(measured):
    ((heading, text),) = depth_tables('depth-minilm', measured)
    assert '3 rows' in heading
    assert 'exact LOO costs' in text


def test_large_models_are_asked_for_by_a_word_of_their_own():
    assert 'depth' in groups_of(studies())['all']
    assert 'depth-large' in groups_of(studies())['scale']
    files = [f for s in studies() if 'depth' in s.name for f in s.files]
    assert sorted(files) == sorted(PARTS)


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match='depth-minilm'):
        depth_experiment(tmp_path / 'x.json', 'depth-bert', 'embedded')
