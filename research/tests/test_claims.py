"""What the front page and the lab's pages say of our results, put to the rows.

A number that is written into prose stands here too, so that it does not stay behind
when the rows change."""

import itertools
import json
import re
from functools import cache

import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import LAB, ROOT
from tracked import tracked

from lrp_lab.agreement import remedy_table
from lrp_lab.beyond import claim2_table, read_beyond
from lrp_lab.frontier import cost_table, shared_rows
from lrp_lab.protocol import DEFAULT, PROTOCOL, protocol_values, removal_agreement
from lrp_loo.paper.tables import MARGIN, best_single_layer, is_above_zero
from lrp_loo.core.stats import mean_se, paired_difference, per_text
from lrp_loo.records.results import read_results

PAPER = ROOT / 'results' / 'minilm'
FOLDER = LAB / 'results' / 'studies'


@cache
def rows_of(name):
    "Rows of the paper's experiment on MiniLM, or of a study."
    folder = PAPER if name in ('sst2', 'imdb') else FOLDER
    return read_results(folder / f'{name}.json')


def prose(chapter):
    "The markdown of a chapter."
    (path,) = tracked(f'nbs/**/{chapter}.ipynb', f'research/nbs/{chapter}.ipynb')
    cells = nbformat.read(path, 4).cells
    return '\n'.join(c.source for c in cells if c.cell_type == 'markdown')


def gain(rows, method, over='attn_lrp', column='loo_r'):
    "The paired difference of two methods."
    return paired_difference(
        per_text(rows, method, column), per_text(rows, over, column)
    )


def test_shared_rows_are_those_of_both_and_refuse_another_target():
    def row(i, target, **methods):
        return dict(i=i, target=target, n_tokens=5, methods=methods)

    joined = shared_rows(
        [row(0, 1, a=1), row(1, 0, a=2)], [row(1, 0, a=3, b=4), row(2, 1, b=5)]
    )
    assert [(r['i'], r['methods']) for r in joined] == [(1, dict(a=2, b=4))]
    with pytest.raises(ValueError, match='target'):
        shared_rows([row(0, 1)], [row(0, 0)])


def test_removal_takes_little_more_than_attn_lrp():
    cost = read_results(LAB / 'results' / 'cost-length.json')
    seconds, mib = cost_table(cost), cost_table(cost, 'mib')
    assert (seconds.loc['removal'] / seconds.loc['attn_lrp']).max() < 1.25
    assert (mib.loc['removal'] / mib.loc['attn_lrp']).max() < 1.35
    assert [round(mib.loc[m, 512]) for m in ('removal', 'attn_lrp')] == [124, 100]
    assert '124 MiB against 100' in prose('77_frontier')
    assert 'at 512 tokens 124 MiB of memory, AttnLRP 100' in prose('82_in_numbers')


def test_the_front_page_takes_its_methods_from_the_frontier():
    kept = json.loads((ROOT / 'results' / 'frontier.json').read_text('utf-8'))
    rows = {
        (row['model'], row['method']): row
        for row in kept['rows']
        if row['template'] == 'all' and row['data'] == 'SST-2 validation'
    }
    columns = ('removal', 'auto, 7', 'auto, 16', 'attn_lrp', 'cp_lrp')
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    shown = re.findall(
        r'^\| ([^|:]+): [^|]+ \| ([^|]+) \| (\d+) \| (0\..*) \|$', readme, re.M
    )
    assert len(shown) == 4
    for model, method, n, cells in shown:
        numbers = [rows[model, m] for m in columns]
        assert int(n) == numbers[0]['n']
        expected = ['{r:.2f} [{low:.2f}, {high:.2f}]'.format(**x) for x in numbers]
        assert cells.split(' | ') == expected
        # one pass is named if it has r 0.85, else the default of 16 passes
        assert ('removal' in method) == (numbers[0]['r'] > 0.85)
        assert numbers[2]['r'] > 0.95


def test_the_softmax_rule_on_the_vision_transformer_turns_round_with_the_removal():
    beyond = read_beyond(FOLDER)
    zero, mask = (beyond[k]['rows'] for k in ('vit', 'vit, attention mask'))
    assert is_above_zero(gain(zero, 'cp_lrp'))
    assert is_above_zero(gain(mask, 'cp_lrp')) is False
    masked = {r['i'] for r in mask}
    same_images = [r for r in zero if r['i'] in masked]
    assert is_above_zero(gain(same_images, 'cp_lrp'))
    not_measured = claim2_table(beyond).loc['vit, attention mask']
    assert not_measured[['ig', 'upper half − none', 'best single layer']].isna().all()


# the best single layer


def made_rows(gains):
    "Rows of a model of as many layers, AttnLRP at 0: gains[layer][text]."
    rows = []
    for t in range(len(gains[0])):
        r = {'attn_lrp': 0.0, 'cp_lrp': 0.0}
        r |= {f'bypass {k + 1}': of_layer[t] for k, of_layer in enumerate(gains)}
        rows.append(dict(i=t, methods={m: dict(r=v) for m, v in r.items()}))
    config = dict(model=dict(layers=len(gains)), removal='attention_mask')
    return dict(rows=rows, config=config)


def test_the_best_layer_is_measured_on_texts_that_did_not_pick_it():
    # each half has a layer that is best there and worst on the other
    chance = made_rows([[1.0, -1.0] * 10, [-1.0, 1.0] * 10, [0.0] * 20])
    best = best_single_layer(chance)
    assert (best['layers'], best['mean'], best['n']) == ([0, 1], -1, 20)
    everywhere = best_single_layer(made_rows([[0.0] * 9, [0.5] * 9, [0.1] * 9]))
    assert (everywhere['layers'], everywhere['mean']) == ([1], 0.5)
    with pytest.raises(ValueError, match='one half'):
        best_single_layer(made_rows([[0.0], [1.0]]))


@pytest.mark.parametrize('part', ['sst2', 'imdb'])
def test_the_third_layer_is_best_on_held_out_texts(part):
    best = best_single_layer(rows_of(part))
    assert best['layers'] == [2]
    assert is_above_zero(best)
    assert best['mean'] < 0.1  # hundredths
    assert 'layer 3 of 6' in prose('82_in_numbers')


@pytest.mark.parametrize(
    'low, high, expected',
    [
        (0.01, 0.02, True),
        (-0.02, -0.01, False),
        (-0.01, 0.01, None),
        (MARGIN / 2, 0.02, None),
        (-0.02, -MARGIN / 2, None),
        (np.nan, np.nan, None),
    ],
)
def test_an_interval_that_just_misses_zero_decides_nothing(low, high, expected):
    assert is_above_zero(dict(low=low, high=high)) is expected


def test_delta_of_cp_lrp_is_smaller_on_sst2_and_larger_on_imdb():
    sst2, imdb = (
        gain(rows_of(part)['rows'], 'cp_lrp', column='delta')
        for part in ('sst2', 'imdb')
    )
    assert is_above_zero(sst2) is False
    assert is_above_zero(imdb) is True


def test_any_two_references_agree_better_than_attn_lrp_with_either():
    d = rows_of('protocol-sst2')
    between = removal_agreement(d)
    removals = {name: c for name, c in PROTOCOL.items() if set(c) <= {'removal'}}
    choice_of = {(DEFAULT | c)['removal']: name for name, c in removals.items()}
    attn = {
        r: mean_se(protocol_values(d, choice_of[r], 'attn_lrp'))[0] for r in between
    }
    pairs = list(itertools.combinations(between, 2))
    assert len(pairs) == 28
    assert all(between.loc[a, b] > max(attn[a], attn[b]) for a, b in pairs)
    assert 'all 28 pairs' in prose('25_protocol')


@pytest.mark.parametrize('part', ['sst2', 'imdb', 'decoder', 'lm', 'vit'])
def test_removal_is_above_the_better_lrp_on_every_model_by_attention_mask(part):
    d = rows_of(f'remedy-{part}')
    assert d['config']['removal'] == 'attention_mask'
    assert remedy_table(d).low['removal'] > 0


def test_half_of_table_a3_has_no_counterpart_and_the_page_says_so():
    numbers = json.loads((PAPER / 'against_paper.json').read_text())['numbers']
    table = pd.DataFrame(numbers)
    missing = table[table.ours.isna()]
    assert (len(missing), (table.table == 'A3').sum()) == (144, 288)
    assert set(missing.table) == {'A3'}
    assert (missing.row.astype(int) % 2 == 1).all()
    assert 'half of A3 has no counterpart' in prose('82_in_numbers')
