"""Thirty measured numbers of the book and of everything in numbers, drawn by lot, recomputed
from results/.

All numbers with a decimal point or a per cent sign in the text of nbs/*.ipynb were
shuffled by `random.Random(38)`; what the front page said then stands in the lab's
82_in_numbers. These are the first thirty of them that we measured: no section, level,
version or threshold, and none of the paper's own numbers.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pages import printed, sources

from lrp_loo.stats import paired_difference

ROOT = Path(__file__).resolve().parents[1]
LAB = 'research/results/studies'


@cache
def rows(path):
    return json.loads((ROOT / f'{path}.json').read_text(encoding='utf-8'))['rows']


def r(row, method, over=None):
    "Pearson's r with LOO of the kept maps, over tokens of some letters."
    kept = [over is None or letter in over for letter in row['classes']]
    maps = [np.array(row['maps'][m], dtype=float)[kept] for m in (method, 'loo')]
    return np.corrcoef(*maps)[0, 1] if all(np.ptp(m) for m in maps) else np.nan


TEXT = 'cp'  # content and the punctuation that ends it


def difference(path, more, less, template=None, over=TEXT):
    "Of each text: the mean difference in r over its templates."
    found = {}
    for row in rows(path):
        if template in (None, row['template']):
            d = r(row, more, over) - r(row, less, over)
            found.setdefault(row['text'], []).append(d)
    return np.array([np.nanmean(d) for d in found.values() if not np.isnan(d).all()])


def gap(template, over=TEXT, path='results/smollm2/sst2'):
    return difference(path, 'cp_lrp', 'attn_lrp', template, over).mean()


def over_the_better(path, template=None):
    """Of each text `removal` minus the better of AttnLRP and CP-LRP, which is seen on
    the other half of the texts, template by template; then the mean over templates.
    """
    names = dict.fromkeys(row['template'] for row in rows(path))
    found = []
    for t in names if template is None else [template]:
        some = [row['methods'] for row in rows(path) if row['template'] == t]
        lrp = np.array([[x[m]['r'] for x in some] for m in ('attn_lrp', 'cp_lrp')])
        better = np.empty(len(some))
        for half in (0, 1):
            seen, tried = slice(half, None, 2), slice(1 - half, None, 2)
            better[tried] = lrp[lrp[:, seen].mean(1).argmax(), tried]
        found.append(np.array([x['removal']['r'] for x in some]) - better)
    return np.mean(found, 0)


def recorded(path, method, key='r'):
    found = [row['methods'][method].get(key) for row in rows(path)]
    return np.array([np.nan if x is None else x for x in found], dtype=float)


def mean_of(path, more, less, key='r'):
    return np.nanmean(recorded(path, more, key) - recorded(path, less, key))


def share(method, letters, path='results/smollm2/sst2'):
    "Of a map's variance in some tokens, averaged over a text's templates."
    found = {}
    for row in rows(path):
        x = np.array(row['maps'][method], dtype=float)
        x = (x - x.mean()) ** 2
        own = np.array([letter in letters for letter in row['classes']])
        found.setdefault(row['text'], []).append(x[own].sum() / x.sum())
    return np.mean([np.mean(s) for s in found.values()])


def runs_nothing(template):
    "Mean r of other texts' mean LOO in each slot, over all tokens."
    some = [x for x in rows('results/smollm2/sst2') if x['template'] == template]
    text = [i for i, letter in enumerate(some[0]['classes']) if letter in TEXT]
    first, behind = text[0], len(some[0]['classes']) - 1 - text[-1]
    loos = [np.array(row['maps']['loo'], dtype=float) for row in some]
    found = []
    for k, row in enumerate(some):
        others = loos[:k] + loos[k + 1 :]
        between = np.concatenate([x[first : len(x) - behind] for x in others])
        middle = np.full(len(loos[k]) - first - behind, between.mean())
        front = np.mean([x[:first] for x in others], 0)
        back = np.mean([x[len(x) - behind :] for x in others], 0)
        made = np.concatenate([front, middle, back])
        found.append(r(row | dict(maps=row['maps'] | dict(made=made)), 'made'))
    return np.mean(found)


def networks(setting=None, seed=None):
    "Rows of Table 1's networks; the default setting where none is named."
    setting = setting or 'unit · bare · no positions · flatten · none'
    return [
        row
        for row in rows('results/minilm/mnist')
        if row['name'] == setting and seed in (None, row['seed'])
    ]


def bracket_gap():
    "Of each default network how much wider `q_kv`'s Δ is."
    wider = [
        row['curves']['attn_lrp, q_kv']['delta']['mean']
        - row['curves']['attn_lrp, qk_v']['delta']['mean']
        for row in networks()
    ]
    return paired_difference(np.array(wider), np.zeros(len(wider)))


def right_above_left():
    "Of each default network how much nearer to LOO `q_kv` is, maps as they are."
    d = [
        row['tables']['as_is']['attn_lrp']['R_vs_LOO']['mean']
        - row['tables']['as_is']['attn_lrp']['L_vs_LOO']['mean']
        for row in networks()
    ]
    return paired_difference(np.array(d), np.zeros(len(d)))


def share_of_loo(bracket):
    "Of LOO's Δ, the median over all networks, in per cent."
    of_each = [
        row['curves'][f'attn_lrp, {bracket}']['delta']['mean']
        / row['curves']['loo']['delta']['mean']
        for row in rows('results/minilm/mnist')
    ]
    return 100 * np.median(of_each)


def nearest_fifth():
    """r(AttnLRP, LOO) scaled to sum to one, of the one network of the setting nearest
    to the paper's whose LOO maps keep their sign.
    """
    nearest = networks('unit · affine · positions · mean · none')
    (kept,) = (row for row in nearest if row['negative']['loo']['qk_v'] < 0.1)
    return kept['tables']['sum_to_one']['attn_lrp']['L_vs_LOO']['mean']


def transferred(template):
    "Slopes fitted over content, tried on the template of the fit: mean over draws."
    draws = {}
    for row in rows(f'{LAB}/transfer-smollm2'):
        if (row['carrier'], row['over']) == ('slopes', 'content'):
            own = np.mean(row['r'][row['fitted_on']])
            draws.setdefault(row['draw'], []).append(own)
    return np.mean([np.mean(x) for x in draws.values()])


def half(which):
    first, last = (1, 15) if which == 'lower' else (16, 30)
    return 'bypass ' + ','.join(map(str, range(first, last + 1)))


OWN = 'results/smollm2-own-answer/sst2'
SST2 = 'results/minilm/sst2'
LED = '0.16, 0.12, 0.27 and 0.16: 0.18 [0.13, 0.22] over sentences'
GAPS = '+0.16, +0.10, −0.04 and +0.03 in the four templates'
TOKENS = '|CP-LRP − AttnLRP, over all tokens|+0.16|+0.10|−0.04|+0.03|'
NOTHING = '|a map that runs nothing, r over all tokens|0.56|0.40|0.86|0.05|'
BY_TEXT = "Over the sentence's own tokens it is −0.01, −0.01, −0.02 and +0.04"
NUMBERS = '82_in_numbers'
LOT = [  # page, words around it, as it is printed, how it comes about
    ('08_table2', 'goes from −0.08 to', '−0.08', lambda: gap('marked', path=OWN)),
    (
        '11_protocol',
        'CP-LRP is ahead by 0.09 over all tokens',
        '0.09',
        lambda: difference(
            f'{LAB}/tokens-decoder', 'cp_lrp', 'attn_lrp', '0', None
        ).mean(),
    ),
    (
        NUMBERS,
        '32 sentences 0.06, AttnLRP',
        '0.06',
        lambda: np.nanmean(recorded(f'{LAB}/ig-smollm2', 'ig')),
    ),
    (
        '04_linear_attention',
        'as in the paper, r = −0.31',
        '−0.31',
        lambda: min(
            row['tables']['as_is']['ig']['L_vs_LOO']['mean']
            for row in rows('results/minilm/mnist')
            if row['seed'] == 2
        ),
    ),
    (
        '08_table2',
        'On MPNet it leads by 0.12',
        '0.12',
        lambda: mean_of('results/mpnet/sst2', 'removal', 'attn_lrp'),
    ),
    (
        '11_protocol',
        '+0.01 over all tokens',
        '+0.01',
        lambda: mean_of('results/mpnet/sst2', 'cp_lrp', 'attn_lrp', 'r_all'),
    ),
    (
        '08_table2',
        LED,
        '0.22',
        lambda: paired_difference(
            x := over_the_better('results/smollm2/sst2'), np.zeros(len(x))
        )['high'],
    ),
    ('11_protocol', TOKENS, '+0.10', lambda: gap('plain', None)),
    (
        '07_curves',
        '2.91, −0.73, 3.64',
        '3.64',
        lambda: (recorded(SST2, 'loo', 'lerf') - recorded(SST2, 'loo', 'morf')).mean(),
    ),
    (
        '11_protocol',
        "LOO's variance and 0.61 of",
        '0.61',
        lambda: share('cp_lrp', 'sba'),
    ),
    (
        '04_linear_attention',
        'its Δ is wider by 0.72',
        '0.72',
        lambda: bracket_gap()['mean'],
    ),
    (NUMBERS, 'over the text 0.00', '0.00', lambda: gap(None)),
    (
        '11_protocol',
        'share falls from 0.63 to 0.54',
        '0.54',
        lambda: share(half('lower'), 'ba'),
    ),
    ('11_protocol', 'but 0.74 of AttnLRP', '0.74', lambda: share('attn_lrp', 'sba')),
    (
        '07_curves',
        '2.91, −0.73, 3.64',
        '−0.73',
        lambda: recorded(SST2, 'loo', 'morf').mean(),
    ),
    ('08_table2', BY_TEXT, '+0.04', lambda: gap('last')),
    (
        NUMBERS,
        'CP-LRP is ahead by 0.14',
        '0.14',
        lambda: mean_of(f'{LAB}/inference-minilm', 'cp_lrp', 'attn_lrp'),
    ),
    ('04_linear_attention', 'at 94 % and 99 %', '94', lambda: share_of_loo('qk_v')),
    ('11_protocol', NOTHING, '0.40', lambda: runs_nothing('plain')),
    ('04_linear_attention', 'and r is 0.76 and 0.81', '0.76', nearest_fifth),
    ('08_table2', GAPS, '+0.16', lambda: gap('marked', None)),
    (NUMBERS, 'from 0.62 to 0.65 on SmolLM2', '0.65', lambda: transferred('same')),
    (
        NUMBERS,
        'at 0.90 where AttnLRP',
        '0.90',
        lambda: recorded(f'{LAB}/generations-smollm2', 'removal+rows, 2').mean(),
    ),
    ('08_table2', GAPS, '+0.03', lambda: gap('last', None)),
    (
        '08_table2',
        LED,
        '0.12',
        lambda: over_the_better('results/smollm2/sst2', 'plain').mean(),
    ),
    ('04_linear_attention', '0.72 [0.66, 0.85]', '0.85', lambda: bracket_gap()['high']),
    (
        '04_linear_attention',
        'by 0.046 [0.045, 0.049]',
        '0.045',
        lambda: right_above_left()['low'],
    ),
    ('08_table2', GAPS, '+0.10', lambda: gap('plain', None)),
    ('08_table2', LED, '0.18', lambda: over_the_better('results/smollm2/sst2').mean()),
    (
        NUMBERS,
        '−0.008 on MiniLM',
        '−0.008',
        lambda: mean_of('results/minilm/imdb', 'cp_lrp', 'attn_lrp'),
    ),
]


def words_of(page):
    "What a page says, and the tables that its cells write."
    home = 'research/nbs' if page == NUMBERS else 'nbs'
    path = ROOT / f'{home}/{page}.ipynb'
    return '\n'.join(sources(path, 'markdown') + printed(path, 'text/markdown'))


def test_there_are_thirty():
    assert len(LOT) == 30


@pytest.mark.parametrize('k', range(len(LOT)))
def test_a_number_of_the_book_comes_from_results(k):
    page, around, printed, number = LOT[k]
    assert around in words_of(page) and printed in around
    digits = len(printed.partition('.')[2])
    found = round(float(number()), digits) + 0.0
    assert found == float(printed.replace('−', '-'))
