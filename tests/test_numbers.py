"""Measured numbers of the book's text, recomputed from results/.

The numbers with a decimal point or a per cent sign were shuffled once; these are the
first that we measured and whose rows are in results/.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pages import printed, sources

from lrp_loo.evaluate.results import read_json
from lrp_loo.stats import paired_difference

ROOT = Path(__file__).resolve().parents[1]


@cache
def rows(path):
    return read_json(ROOT / f'{path}.json')['rows']


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


def share_of_loo(bracket):
    "Of LOO's Δ, the median over all networks, in per cent."
    of_each = [
        row['curves'][f'attn_lrp, {bracket}']['delta']['mean']
        / row['curves']['loo']['delta']['mean']
        for row in rows('results/minilm/mnist')
    ]
    return 100 * np.median(of_each)


OWN = 'results/smollm2-own-answer/sst2'
SST2 = 'results/minilm/sst2'
GAPS = '+0.16, +0.10, −0.04 and +0.03 in the four templates'
BY_TEXT = "Over the sentence's own tokens it is −0.01, −0.01, −0.02 and +0.04"
LOT = [  # page, words around it, as it is printed, how it comes about
    ('08_table2', 'goes from −0.08 to', '−0.08', lambda: gap('marked', path=OWN)),
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
    ('11_protocol', 'but 0.74 of AttnLRP', '0.74', lambda: share('attn_lrp', 'sba')),
    (
        '07_curves',
        '2.91, −0.73, 3.64',
        '−0.73',
        lambda: recorded(SST2, 'loo', 'morf').mean(),
    ),
    ('08_table2', BY_TEXT, '+0.04', lambda: gap('last')),
    ('04_linear_attention', 'at 94 % and 99 %', '94', lambda: share_of_loo('qk_v')),
    ('08_table2', GAPS, '+0.16', lambda: gap('marked', None)),
    ('08_table2', GAPS, '+0.03', lambda: gap('last', None)),
    ('04_linear_attention', '0.72 [0.66, 0.85]', '0.85', lambda: bracket_gap()['high']),
]


@pytest.mark.parametrize('k', range(len(LOT)))
def test_a_number_of_the_book_comes_from_results(k):
    page, around, shown, number = LOT[k]
    path = ROOT / f'nbs/{page}.ipynb'
    text = '\n'.join(sources(path, 'markdown') + printed(path, 'text/markdown'))
    assert around in text and shown in around
    digits = len(shown.partition('.')[2])
    found = round(float(number()), digits) + 0.0
    assert found == float(shown.replace('−', '-'))
