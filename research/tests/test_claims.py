"""What the front page and the chapters say of our results, put to the rows in results/.

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
from conftest import LAB, ROOT, tracked

from lrp_lab.beyond import claim2_table, read_beyond
from lrp_lab.cost import PASSES, cost_table, headline_table, shared_rows
from lrp_lab.protocol import DEFAULT, PROTOCOL, protocol_values, removal_agreement
from lrp_lab.related import related_table
from lrp_lab.remedy import remedy_table
from lrp_loo.paper.layerwise import MARGIN, best_single_layer, is_above_zero
from lrp_loo.paper.ledger import entry_name, verdicts_by_model
from lrp_loo.paper.style import NAMES
from lrp_loo.stats import mean_se, paired_difference, per_text
from lrp_loo.trust.results import read_results

PAPER = ROOT / 'results' / 'minilm'
FOLDER = LAB / 'results' / 'studies'


@cache
def rows_of(name):
    paths = (home / f'{name}.json' for home in (PAPER, FOLDER))
    return read_results(next(p for p in paths if p.exists()))


def prose(chapter):
    "The markdown of a chapter."
    paths = tracked(f'nbs/**/{chapter}.ipynb', f'research/nbs/{chapter}.ipynb')
    cells = nbformat.read(paths[0], 4).cells
    return '\n'.join(c.source for c in cells if c.cell_type == 'markdown')


@cache
def numbers():
    "What `82_in_numbers` says, and the tables that its cells write."
    path = LAB / 'nbs' / '82_in_numbers.ipynb'
    outputs = [
        o['data']['text/markdown']
        for cell in nbformat.read(path, 4).cells
        for o in cell.get('outputs', ())
        if 'text/markdown' in o.get('data', {})
    ]
    return '\n'.join([prose(path.stem), *outputs])


def everything_written():
    "README, changelog and every chapter's markdown: name → text."
    chapters = {
        p.stem: prose(p.stem) for p in tracked('nbs/**/*.ipynb', 'research/nbs/*.ipynb')
    }
    files = {
        f: (ROOT / f).read_text(encoding='utf-8') for f in ('README.md', 'CHANGELOG.md')
    }
    return chapters | files


def gain(rows, method, over='attn_lrp'):
    "The paired difference in r with LOO."
    return paired_difference(
        per_text(rows, method, 'loo_r'), per_text(rows, over, 'loo_r')
    )


def row_of(start):
    "The cells of the table row that starts so."
    line = next(l for l in numbers().splitlines() if l.startswith(f'| {start} |'))
    return [c.strip() for c in line.strip('|').split('|')]


# the main table


@pytest.mark.parametrize('method', PASSES)
def test_every_row_of_the_main_table_is_from_the_same_texts(method):
    cost = read_results(LAB / 'results' / 'cost-length.json')
    shown = row_of(NAMES.get(method, method))[2:]
    for part, (r, _, delta, time) in zip(('sst2', 'imdb'), (shown[:4], shown[4:8])):
        rows = shared_rows(rows_of(part)['rows'], rows_of(f'remedy-{part}')['rows'])
        mine = headline_table(rows, part, cost).loc[method]
        assert r == f'{mine.r:.2f} ± {mine.se:.2f}'
        assert (delta, time) == (f'{mine.delta:.2f}', f'{mine.time:.1f}')
    assert shown[8] == f"{cost_table(cost, 'mib').loc[method, 512]:.0f}"


def test_the_main_table_says_how_many_texts_it_stands_on():
    for part in ('sst2', 'imdb'):

        def texts(name):
            return {r['i'] for r in rows_of(name)['rows']}

        shared = texts(part) & texts(f'remedy-{part}')
        assert re.search(rf'{part}: [^;]* {len(shared)} texts', numbers())
        assert f'on {part} ({len(shared)} texts)' in numbers()


def test_shared_rows_are_those_of_both_and_refuse_another_target():
    def row(i, target, **methods):
        return dict(i=i, target=target, n_tokens=5, methods=methods)

    joined = shared_rows(
        [row(0, 1, a=1), row(1, 0, a=2)], [row(1, 0, a=3, b=4), row(2, 1, b=5)]
    )
    assert [(r['i'], r['methods']) for r in joined] == [(1, dict(a=2, b=4))]
    with pytest.raises(ValueError, match='target'):
        shared_rows([row(0, 1)], [row(0, 0)])


# time and memory apart


def test_removal_takes_little_more_than_attn_lrp():
    cost = read_results(LAB / 'results' / 'cost-length.json')
    seconds = cost_table(cost)
    mib = cost_table(cost, 'mib')
    assert (seconds.loc['removal'] / seconds.loc['attn_lrp']).max() < 1.25
    assert (mib.loc['removal'] / mib.loc['attn_lrp']).max() < 1.35
    assert '124 MiB against 100' in prose('57_cost')
    of_longest = [round(mib.loc[m, 512]) for m in ('removal', 'attn_lrp')]
    assert of_longest == [124, 100]
    assert 'at 512 tokens 124 MiB of memory, AttnLRP 100' in numbers()


def test_the_memory_of_removal_is_said_in_one_way():
    "No second number, and no word in its place."
    for name, text in everything_written().items():
        assert 'same memory' not in text, name
        assert 'about its memory' not in text, name
        assert "times AttnLRP's memory" not in text, name


OF_SMOLLM2 = [
    f'removal-above-better, smollm2-135m-instruct, {data}, of two answers,'
    ' attention_mask'
    for data in ('sst2 validation', 'imdb test')
]


def test_it_is_said_on_which_models_removal_is_ahead():
    kept = json.loads((ROOT / 'results' / 'claims.json').read_text('utf-8'))
    verdicts = verdicts_by_model(kept, ['removal-above-better']).iloc[0]
    words = {n: set(re.findall('[a-z]+', said)) for n, said in verdicts.items()}
    ahead = [name for name, said in words.items() if said == {'holds', 'n'}]
    assert (len(ahead), len(words)) == (5, 5)
    assert "above AttnLRP's and CP-LRP's on all five models measured" in numbers()
    sentences, reviews = verdicts['SmolLM2, 30 layers'].split(' / ')
    assert sentences.startswith('holds +0.18') and reviews.startswith('holds +0.17')
    kept = [e for e in kept if e['claim'] == 'removal-above-better']
    own = [e for e in kept if entry_name(e) in OF_SMOLLM2]
    assert [e['over'] for e in own] == ['content'] * 2
    for e in own:
        assert len(e['templates']) == 4 and min(e['templates'].values()) > 0


def test_weights_a_layer_are_said_to_be_of_one_prompt_wherever_they_are_praised():
    for name, text in everything_written().items():
        if re.search(r'SmolLM2[^.]* 0\.77|0\.77 on SmolLM2', text):
            assert '0.51' in text, name


def test_nothing_is_said_to_be_at_the_same_cost():
    for name, text in everything_written().items():
        assert 'same cost' not in text, name
        assert 'costs what LRP costs' not in text, name


# the front page


def test_the_front_page_takes_its_methods_from_the_frontier():
    kept = json.loads((ROOT / 'results' / 'frontier.json').read_text('utf-8'))
    r = {
        (row['model'], row['method']): f"{row['r']:.2f}"
        for row in kept['rows']
        if row['template'] == 'all' and row['data'] == 'SST-2 validation'
    }
    columns = ('removal', 'auto, 7', 'auto, 16', 'attn_lrp', 'cp_lrp')
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    shown = re.findall(r'^\| ([^|:]+): [^|]+ \| ([^|]+) \| (0\..*) \|$', readme, re.M)
    assert len(shown) == 4
    for model, take, cells in shown:
        assert cells.split(' | ') == [r[model, m] for m in columns]
        # one pass is named where it has r 0.85, else the default, which is at 16
        assert ('removal' in take) == (float(r[model, 'removal']) > 0.85)
        assert float(r[model, 'auto, 16']) > 0.95


# the softmax rule, by what "removed" means


def test_the_softmax_rule_on_the_vision_transformer_turns_round_with_the_removal():
    beyond = read_beyond(FOLDER)
    zero = beyond['vit']['rows']
    mask = beyond['vit, attention mask']['rows']
    assert is_above_zero(gain(zero, 'cp_lrp'))
    assert is_above_zero(gain(mask, 'cp_lrp')) is False
    masked = {r['i'] for r in mask}
    assert is_above_zero(
        gain([r for r in zero if r['i'] in masked], 'cp_lrp')
    )  # on the same images
    vit = [l for l in numbers().splitlines() if l.startswith('| mnist on mnist test |')]
    said = {l.split('|')[2].strip(): l.split('|')[7].strip() for l in vit}
    assert said['zero embedding'].startswith('+')
    assert said['attention mask'].startswith('-')


def test_what_was_not_measured_is_no_number_in_the_table():
    masked = claim2_table(read_beyond(FOLDER)).loc['vit, attention mask']
    assert masked[['ig', 'upper half − none', 'best single layer']].isna().all()


# the best single layer


def made_rows(gains):
    "Rows of a model of as many layers, AttnLRP at 0: gains[layer][text]."
    n = len(gains)
    rows = []
    for t in range(len(gains[0])):
        r = {'attn_lrp': 0.0, 'cp_lrp': 0.0} | {
            f'bypass {l + 1}': gains[l][t] for l in range(n)
        }
        rows.append(dict(i=t, methods={m: dict(r=v) for m, v in r.items()}))
    return dict(rows=rows, config=dict(model=dict(layers=n), removal='attention_mask'))


def test_the_best_layer_is_measured_on_texts_that_did_not_pick_it():
    # each half has a layer that is best there and worst on the other
    chance = made_rows([[1.0, -1.0] * 10, [-1.0, 1.0] * 10, [0.0] * 20])
    best = best_single_layer(chance)
    assert best['layers'] == [0, 1]
    assert best['mean'] == -1
    assert best['n'] == 20


def test_a_layer_that_helps_everywhere_keeps_its_gain():
    best = best_single_layer(made_rows([[0.0] * 9, [0.5] * 9, [0.1] * 9]))
    assert best['layers'] == [1]
    assert best['mean'] == 0.5


def test_one_text_cannot_both_pick_and_measure():
    with pytest.raises(ValueError, match='one half'):
        best_single_layer(made_rows([[0.0], [1.0]]))


def test_the_third_layer_is_best_on_both_data_sets_on_held_out_texts():
    for part in ('sst2', 'imdb'):
        best = best_single_layer(rows_of(part))
        assert best['layers'] == [2]
        assert is_above_zero(best)
        assert best['mean'] < 0.1  # hundredths
    assert 'layer 3 of 6' in numbers()


# not told apart


def test_an_interval_that_just_misses_zero_decides_nothing():
    assert is_above_zero(dict(low=0.01, high=0.02)) is True
    assert is_above_zero(dict(low=-0.02, high=-0.01)) is False
    assert is_above_zero(dict(low=-0.01, high=0.01)) is None
    assert is_above_zero(dict(low=MARGIN / 2, high=0.02)) is None
    assert is_above_zero(dict(low=-0.02, high=-MARGIN / 2)) is None
    assert is_above_zero(dict(low=np.nan, high=np.nan)) is None


def ledger_entry(claim, model):
    "On texts, by the attention mask."
    kept = json.loads((ROOT / 'results' / 'claims.json').read_text('utf-8'))
    (found,) = (
        e
        for e in kept
        if (e['claim'], e['model'], e['removal']) == (claim, model, 'attention_mask')
    )
    return found


def test_cp_lrp_and_attn_lrp_are_not_told_apart_on_imdb():
    said = {
        part: ledger_entry('cp-above-attn', f'minilm-{part}')
        for part in ('sst2', 'imdb')
    }
    assert said['imdb']['verdict'] == 'equal'
    assert said['sst2']['verdict'] == 'reversed'
    assert f"{said['imdb']['mean']:.3f}" == '-0.008'
    assert '(−0.008' in numbers()


def test_delta_of_cp_lrp_is_smaller_on_sst2_and_larger_on_imdb():
    def delta(part):
        cp, attn = (
            per_text(rows_of(part)['rows'], m, 'delta') for m in ('cp_lrp', 'attn_lrp')
        )
        return paired_difference(cp, attn)

    assert is_above_zero(delta('sst2')) is False
    assert is_above_zero(delta('imdb')) is True


# references to LOO


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
    text = prose('25b_measured')
    assert 'about as well as AttnLRP agrees with either' not in text
    assert 'all 28 pairs' in text


# conservation


def test_cp_lrp_conserves_up_to_biases_and_constants_which_are_large():
    rows = rows_of('conservation')['rows']

    def tables(model):
        return [r['tables']['cp_lrp'] for r in rows if r['model'] == model]

    def share_off(t):
        return abs(t['leaving'][-1] / t['entering'][0] - 1)

    off = {m: [share_off(t) for t in tables(m)] for m in ('sst2', 'reviews-sst2')}
    assert np.mean(np.array(off['sst2']) > 0.5) == pytest.approx(
        2 / 3, abs=0.05
    )  # "two thirds"
    assert (
        max(off['reviews-sst2']) < 0.01
    )  # rows are stored to 7 digits; some logits are near 0

    def kept(t):
        return sum(t['biases']) + sum(t['constants']) + sum(t['softmax'])

    for t in tables(
        'sst2'
    ):  # and nothing else is missing, in float32 and some fifty terms
        assert t['entering'][0] - t['leaving'][-1] == pytest.approx(kept(t), abs=1e-3)
    for name in ('lrp_conservation', 'paper_reproduce'):
        assert 'up to biases and added constants' in prose(name)
    assert "CP-LRP's do up to biases and constants" in numbers()


# the nearest prior


def test_the_gain_over_attribution_patching_with_the_softmax_recomputed():
    table = related_table(rows_of('related-sst2'))
    prior = table.loc['atp_qk']
    assert prior.low > 0
    assert prior.difference == pytest.approx(0.04, abs=0.005)  # "by 0.04"
    assert table.query('passes == 3').r.drop('removal').idxmax() == 'atp_qk'
    for text in (numbers(), prose('removal_one_pass'), prose('27_related')):
        assert 'Kramár' in text


def test_removal_is_above_the_better_lrp_on_every_model_by_attention_mask():
    for part in ('sst2', 'imdb', 'decoder', 'lm', 'vit'):
        d = rows_of(f'remedy-{part}')
        assert d['config']['removal'] == 'attention_mask'
        assert remedy_table(d).low['removal'] > 0


def test_no_interval_is_drawn_from_six_reviews():
    assert len(rows_of('related-imdb')['rows']) == 6
    text = prose('27d_at_cost').lower()
    assert 'six reviews' in text
    assert 'its interval contains zero' not in text


# against the paper


def test_half_of_table_a3_has_no_counterpart_and_is_said_to_have_none():
    table = pd.DataFrame(
        json.loads((PAPER / 'against_paper.json').read_text())['numbers']
    )
    missing = table[table.ours.isna()]
    assert (len(missing), (table.table == 'A3').sum(), set(missing.table)) == (
        144,
        288,
        {'A3'},
    )
    assert (missing.row.astype(int) % 2 == 1).all()
    for name, text in everything_written().items():
        assert not re.search(
            r'[Ee]very number of (the paper\'s )?Tables 1, 2 and A3', text
        ), name
    assert 'half of A3 has no counterpart' in numbers()
