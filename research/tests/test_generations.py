"Generated tokens against exact LOO: what is compared, what it costs, what is drawn."

import pytest
from conftest import shallow_demo

from lrp_lab import parts
from lrp_lab.generations import (
    EXPLAINED,
    GENERATED,
    generation_cost,
    generation_entries,
    generations_experiment,
    generations_table,
    generations_tables,
    plot_generations,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.trust.results import read_results


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Three continuations of the decoder, two layers deep."
    path = tmp_path_factory.mktemp('said') / 'generations-decoder.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        for limit in (2, 3):  # the second goes on where the first stopped
            generations_experiment(path, 'generations-decoder', 'embedded', limit=limit)
    return read_results(path)


def test_a_run_goes_on_where_it_stopped(measured):
    assert [row['i'] for row in measured['rows']] == sorted(
        {row['i'] for row in measured['rows']}
    )
    assert len(measured['rows']) == 3


def test_every_method_has_a_number(measured):
    table = generations_table(measured)
    assert list(table.index) == ['loo', *EXPLAINED]
    assert table.r.between(-1, 1).all() and table.r['loo'] == 1
    assert table.r['removal+rows, 8'] > 0.95


def test_a_backward_pass_for_each_token():
    assert generation_cost('attn_lrp', 68, 20) == 41
    assert generation_cost('removal+rows, 8', 68, 20) == 29
    assert generation_cost('loo', 68, 20) == 34


def test_the_ledger_says_that_every_token_was_explained(measured):
    entries = generation_entries(measured)
    claims = {entry['claim'] for entry in entries}
    assert 'cp-above-attn' in claims and 'gain-falls-with-length' not in claims
    assert all('every generated token' in entry['data'] for entry in entries)


def test_it_is_printed_and_drawn(measured):
    ((heading, text),) = generations_tables('generations-decoder', measured)
    assert '3 rows' in heading and 'generated tokens' in text
    fig = plot_generations({'one': measured, 'other': measured})
    assert len(fig.axes) == 2


def test_the_study_is_found():
    assert {'generations', 'generations-large'} <= {study.name for study in studies()}
    assert 'generations-large' in groups_of(studies())['scale']
    parts = ('decoder', 'smollm2')
    assert set(GENERATED) == {f'generations-{part}' for part in parts}


def test_rows_pay_where_the_prompt_is_long():
    for n_tokens, cheaper in ((40, False), (52, True)):
        rows = generation_cost('removal+rows, 2', n_tokens, 20)
        assert (rows < generation_cost('loo', n_tokens, 20)) == cheaper
    assert generation_cost('loo', 150, 20) > 3 * rows
