"""Measured numbers of the book's text, recomputed from results/.

The numbers with a decimal point or a per cent sign were shuffled once; these are the
first that we measured and whose rows are in results/.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pages import printed, sources

from lrp_loo.records.results import read_json
from lrp_loo.core.stats import paired_difference

ROOT = Path(__file__).resolve().parents[1]
CP_AND_ATTN = ('cp_lrp', 'attn_lrp')


@cache
def rows(path):
    return read_json(ROOT / f'{path}.json')['rows']


def r(row, method, letters):
    "Pearson's r with LOO of the stored maps, over tokens of some letters; None: all."
    kept = [letters is None or letter in letters for letter in row['classes']]
    maps = [np.array(row['maps'][m], dtype=float)[kept] for m in (method, 'loo')]
    return np.corrcoef(*maps)[0, 1] if all(np.ptp(m) for m in maps) else np.nan


def mean_by_text(path, template, number):
    "Average a number of rows over the templates of a text, then over texts."
    found = {}
    for row in rows(path):
        if template in (None, row['template']):
            found.setdefault(row['text'], []).append(number(row))
    means = [np.nanmean(x) for x in found.values() if not np.isnan(x).all()]
    return np.mean(means)


def gap(template, letters='cp'):
    "CP-LRP − AttnLRP; by default over content and the punctuation that ends it."
    return mean_by_text(
        'results/smollm2/sst2',
        template,
        lambda row: np.subtract(*(r(row, m, letters) for m in CP_AND_ATTN)),
    )


def share(method, letters='sba', path='results/smollm2/sst2'):
    "Of a map's variance in some tokens, averaged over a text's templates."

    def number(row):
        x = np.array(row['maps'][method], dtype=float)
        x = (x - x.mean()) ** 2
        return x[[letter in letters for letter in row['classes']]].sum() / x.sum()

    return mean_by_text(path, None, number)


def recorded(path, method, key='r'):
    found = [row['methods'][method].get(key) for row in rows(path)]
    return np.array([np.nan if x is None else x for x in found], dtype=float)


def mean_of(path, more, less, key='r'):
    return np.nanmean(recorded(path, more, key) - recorded(path, less, key))


def width(row, method):
    return row['curves'][method]['delta']['mean']


def bracket_gap():
    "Of each default network how much wider `q_kv`'s Δ is."
    default = 'unit · bare · no positions · flatten · none'
    wider = [
        width(row, 'attn_lrp, q_kv') - width(row, 'attn_lrp, qk_v')
        for row in rows('results/minilm/mnist')
        if row['name'] == default
    ]
    return paired_difference(np.array(wider), np.zeros(len(wider)))


def share_of_loo(bracket):
    "Of LOO's Δ, the median over all networks, in per cent."
    of_each = [
        width(row, f'attn_lrp, {bracket}') / width(row, 'loo')
        for row in rows('results/minilm/mnist')
    ]
    return 100 * np.median(of_each)


SST2, MPNET = 'results/minilm/sst2', 'results/mpnet/sst2'
CURVES, BRACKETS = '2.91, −0.73, 3.64', 'Δ is wider by 0.72'


def mean_of_curves(key):
    return recorded(SST2, 'loo', key).mean()


LOT = [  # chapter, words around it, as it is printed, how it comes about
    ('08', 'it leads by 0.12', '0.12', lambda: mean_of(MPNET, 'removal', 'attn_lrp')),
    ('08', '0.04 [0.00, 0.07]', '0.04', lambda: gap('last')),
    ('08', '0.16 [0.12, 0.20]', '0.16', lambda: gap('marked', None)),
    ('11', "LOO's variance and 0.61 of", '0.61', lambda: share('cp_lrp')),
    ('11', 'but 0.74 of AttnLRP', '0.74', lambda: share('attn_lrp')),
    ('07', CURVES, '3.64', lambda: mean_of_curves('lerf') - mean_of_curves('morf')),
    ('07', CURVES, '−0.73', lambda: mean_of_curves('morf')),
    ('04', BRACKETS, '0.72', lambda: bracket_gap()['mean']),
    ('04', 'at 94 % and 99 %', '94', lambda: share_of_loo('qk_v')),
]


@pytest.mark.parametrize('chapter, around, shown, number', LOT)
def test_a_number_of_the_book_comes_from_results(chapter, around, shown, number):
    (path,) = ROOT.glob(f'nbs/{chapter}_*.ipynb')
    outputs = printed(path, 'text/markdown', 'text/plain')
    text = '\n'.join(sources(path, 'markdown') + outputs)
    assert around in text and shown in around
    digits = len(shown.partition('.')[2])
    found = round(float(number()), digits) + 0.0
    assert found == float(shown.replace('−', '-'))
