"What the chapters say of the networks on MNIST, held to the file of rows."

import json

import pytest
from conftest import ROOT
from scipy import stats as scipy_stats

from lrp_loo.paper.mnist_tables import share_table, table1_entries
from lrp_loo.records.results import read_results

FILED = ROOT / 'results/minilm/mnist.json'
CHAPTERS = ('04_linear_attention',)


@pytest.fixture(scope='module')
def filed():
    return read_results(FILED)


def test_the_filed_run_has_every_network(filed):
    c = filed['config']
    assert (c['n_train'], c['n_test'], c['limit']) == (60000, 10000, 200)
    assert c['seeds'] == [0, 1, 2, 3, 4]
    names = [r['name'] for r in filed['rows']]
    assert names == c['grid'] * 5
    assert max(r['ig_error'] for r in filed['rows']) < 1e-2
    assert max(r['loo_error'] for r in filed['rows']) < 1e-3
    for row in filed['rows']:
        ig = row['tables']['as_is']['ig']['L_vs_R']
        assert (ig['mean'], ig['n']) == (pytest.approx(1), 200)


@pytest.fixture(scope='module')
def prose():
    "The text of these chapters."
    texts = []
    for name in CHAPTERS:
        path = ROOT / f'nbs/{name}.ipynb'
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        texts += [c['source'] for c in cells if c['cell_type'] == 'markdown']
    return '\n'.join(map(''.join, texts))


def gaps_of(filed, a, b):
    return [row['gaps'][a][b] for row in filed['rows']]


def test_the_chapters_counts_are_the_files(filed, prose):
    left_right = gaps_of(filed, 'attn_lrp, qk_v', 'attn_lrp, q_kv')
    assert sum(g['high'] < 0 for g in left_right) == 69
    assert 'wider in 69 of 80 networks' in prose
    wider = [
        row['setting']['pixel']
        for row, g in zip(filed['rows'], left_right)
        if g['low'] > 0
    ]
    assert wider == ['direct'] * 8
    assert 'narrower in 8' in prose
    for bracket in ('attn_lrp, qk_v', 'attn_lrp, q_kv'):
        assert all(g['low'] > 0 for g in gaps_of(filed, bracket, 'random'))
    over_left = gaps_of(filed, 'ig', 'attn_lrp, qk_v')
    over_right = gaps_of(filed, 'ig', 'attn_lrp, q_kv')
    assert all(g['low'] > 0 for g in over_left)
    assert sum(g['low'] > 0 for g in over_right) == 65
    assert sum(g['high'] < 0 for g in gaps_of(filed, 'loo', 'ig')) == 65
    assert 'in all 80 networks, and than `q_kv` and LOO in 65' in prose


def test_the_chapters_shares_are_the_files(filed, prose):
    shares = share_table(filed)
    medians = shares[['attn_lrp, qk_v', 'attn_lrp, q_kv']].median()
    assert [f'{m:.0%}' for m in medians] == ['94%', '99%']
    assert 'at 94 % and 99 % of LOO' in prose
    r = [row['tables']['as_is']['ig']['L_vs_LOO']['mean'] for row in filed['rows']]
    rho = scipy_stats.spearmanr(r, shares.ig).statistic
    assert f'{rho:.2f}' == '-0.59'
    assert 'rank correlation −0.59' in prose
    assert sum(v < 0 for v in r) == 1
    assert f'{min(r):.2f}' == '-0.31'


def test_the_chapters_entries_are_the_files(filed, prose):
    found = {(e['claim'], e['model']): e for e in table1_entries(filed)}
    wide = found['left-wider-gap', 'linear attention, 16 settings']
    ends = [f'{100 * wide[k]:+.0f}' for k in ('mean', 'settings_low', 'settings_high')]
    assert ends == ['-5', '-10', '+2']
    assert '−5 % [−10, +2]' in prose
