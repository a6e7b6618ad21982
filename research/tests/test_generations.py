"Generated tokens against exact LOO: what is compared, what it costs, what is drawn."

import pytest
from conftest import TEXTS, shallow_demo

from lrp_lab import generations, parts
from lrp_lab.depth import TOKENS_DRAWN
from lrp_lab.generations import (
    EXPLAINED,
    GENERATED,
    OF_LONG_PROMPTS,
    generation_cost,
    generation_entries,
    generation_row,
    generations_experiment,
    generations_table,
    generations_tables,
    plot_generations,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.models.encoding import encode
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
    parts = ('decoder', 'smollm2', 'long')
    assert set(GENERATED) == {f'generations-{part}' for part in parts}


def test_rows_pay_where_the_prompt_is_long():
    short, long = 46, GENERATED['generations-long'].shortest
    for n_tokens, cheaper in ((short - 6, False), (short + 6, True)):
        rows = generation_cost('removal+rows, 2', n_tokens, 20)
        assert (rows < generation_cost('loo', n_tokens, 20)) == cheaper
    assert generation_cost('loo', long, 20) > 3 * rows


@pytest.fixture(scope='module')
def asked():
    model, tokenizer = shallow_demo('reviews')
    return model, tokenizer, encode(model, tokenizer, ' '.join(TEXTS))


def test_of_all_tokens_drawn_the_first_alone_is_more(asked):
    "It counts where tokens are drawn: a text's own first token is special."
    every = generation_row(*asked, n_new=4)
    drawn = generation_row(*asked, n_new=4, n_drawn=9999)
    for name in EXPLAINED:
        r = [row['methods'][name]['r'] for row in (every, drawn)]
        assert r[0] == pytest.approx(r[1], abs=1e-4), name


def test_some_tokens_of_a_long_text(asked):
    row = generation_row(*asked, 4, OF_LONG_PROMPTS, n_drawn=12)
    again = generation_row(*asked, 4, OF_LONG_PROMPTS, n_drawn=12)
    assert list(row['methods']) == ['loo', *OF_LONG_PROMPTS]
    assert 'grad_x_input' in EXPLAINED
    assert 'grad_x_input' not in row['methods']
    assert row['methods']['removal+rows, 8']['r'] > 0.9
    for name, found in row['methods'].items():
        assert found['r'] == again['methods'][name]['r']


def test_a_table_says_how_many_tokens_were_drawn(measured):
    drawn = measured | dict(config=measured['config'] | dict(n_drawn=7))
    ((_, text),) = generations_tables('generations-long', drawn)
    assert '7 tokens of each text' in text
    (entry, *_) = generation_entries(drawn)
    assert '7 tokens of each' in entry['data']


def test_long_prompts_are_measured_in_part(monkeypatch, tmp_path):
    seen = {}

    def row(model, tokenizer, enc, **asked):
        seen.update(asked)
        return dict(methods={})

    monkeypatch.setattr(parts, 'load_demo', shallow_demo)
    monkeypatch.setattr(generations, 'generation_row', row)
    monkeypatch.setitem(GENERATED, 'generations-long', GENERATED['generations-decoder'])
    path = tmp_path / 'long.json'
    found = generations_experiment(path, 'generations-long', 'embedded', 1)
    assert seen['n_drawn'] == found.config['n_drawn'] == TOKENS_DRAWN
    assert found.config['methods'] == list(OF_LONG_PROMPTS)


def test_long_prompts_are_the_same_question():
    long, short = (GENERATED[f'generations-{part}'] for part in ('long', 'smollm2'))
    assert (long.demo, long.prompts) == (short.demo, short.prompts)
    assert 150 <= long.shortest < long.longest <= 300
