"Perturbation curves, one pixel and one sum at a time; seeds; ledger entries."

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from close import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from test_linear_attention import OPTIONS, blobs, make, projected, readout_of, tokens_of

from lrp_loo.paper import mnist, mnist_tables
from lrp_loo.paper.linear_attention import linear_logits, logits_by_sums
from lrp_loo.paper.linear_attention import normalise_images
from lrp_loo.paper.mnist import GRID, linear_attention_experiment, means_by_seed
from lrp_loo.paper.mnist import means_over_seeds, run_setting
from lrp_loo.paper.pixel_maps import ORDERS, PAIRS, PROTOCOLS, PixelCurves
from lrp_loo.paper.pixel_maps import pixel_curves, pixel_maps, removal_orders
from lrp_loo.records.results import read_results

FILED = Path(__file__).parent.parent / 'results/minilm/mnist.json'


pytestmark = pytest.mark.usefixtures('one_thread')


def network(seed, n, kind, width=3):
    "A random one, in double precision, and images for it."
    return make(seed, n, width, n_classes=4, batch=3, **kind)


def naive_logit(m, x, t):
    "Section 4.3 as a double sum over pixels n and j."
    x = torch.as_tensor(x)
    with torch.no_grad():
        h = tokens_of(m, x)
        Q, K, V = (projected(W, h).numpy() for W in (m.W_Q, m.W_K, m.W_V))
        u = readout_of(m, t, len(x)).numpy()
        logit = float(m.out.bias[t])
    for i, j in itertools.product(range(len(x)), repeat=2):
        logit += m.c * (Q[i] @ K[j]) * (V[j] @ u[i])
    return logit


def naive_curve(m, x, t, scores, most_first):
    "Remove what scores highest (lowest), the first of equals first."
    x, left = x.copy(), list(range(len(x)))
    curve = [naive_logit(m, x, t)]
    while left:
        best = max if most_first else min
        pixel = best(left, key=lambda i: scores[i])
        left.remove(pixel)
        x[pixel] = 0.0
        curve.append(naive_logit(m, x, t))
    return np.array(curve)


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(OPTIONS))
@settings(max_examples=25, deadline=None)
def test_curves_equal_the_naive_loop(seed, n, kind):
    m, x = network(seed, n, kind)
    x[:, ::3] = 0.0  # what is zero already: scores of zero, and ties
    scores = removal_orders(pixel_maps(m, x), seed)
    assert tuple(scores) == ORDERS
    t = m(x).argmax(-1)
    for name, curves in pixel_curves(m, x, scores).items():
        for b, curve in itertools.product(range(3), PixelCurves._fields):
            naive = naive_curve(m, x[b].numpy(), t[b], scores[name][b], curve == 'morf')
            fast = getattr(curves, curve)[b]
            assert_close(fast, naive, scale=1 + abs(naive).max())


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(OPTIONS))
@settings(max_examples=40, deadline=None)
def test_sums_first_are_the_same_function(seed, n, kind):
    "Logits and, for training, gradients by every weight."
    m, x = network(seed, n, kind)
    both = []
    for logits in (linear_logits, logits_by_sums):
        m.zero_grad()
        out = logits(m, x)
        out.logsumexp(-1).sum().backward()
        both.append([out, *(p.grad for p in m.parameters())])
    for plain, summed in zip(*both):
        torch.testing.assert_close(plain, summed, rtol=1e-9, atol=1e-9)


TRAIN, TEST = blobs(60, seed=0), blobs(12, seed=1)


def experiment(path, **changes):
    options = dict(epochs=1, limit=5, progress=False, data_info='bright rows')
    options |= dict(grid=[GRID[0], GRID[8]], seeds=(3, 5))
    return linear_attention_experiment(TRAIN, TEST, path=path, **(options | changes))


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A file that one run wrote."
    path = tmp_path_factory.mktemp('seeds') / 'whole.json'
    experiment(path)
    return path


def test_a_row_is_one_network_from_its_seed(whole):
    d = read_results(whole)
    assert d['config']['seeds'] == [3, 5]
    assert [(r['i'], r['seed']) for r in d['rows']] == [(0, 3), (1, 3), (2, 5), (3, 5)]
    alone = run_setting(GRID[8], TRAIN, TEST, 5, epochs=1, seed=5, progress=False)
    last = d['rows'][3]
    assert last['name'] == alone['name']
    for key in ('tables', 'curves', 'gaps', 'negative'):
        near = pytest.approx(flat(alone[key]), rel=1e-5, abs=1e-6, nan_ok=True)
        assert flat(json.loads(json.dumps(last[key]))) == near
    assert d['rows'][1]['tables'] != last['tables']


def flat(nested):
    "Every number in it, in order; None is NaN."
    if isinstance(nested, dict):
        return [n for v in nested.values() for n in flat(v)]
    return [float('nan') if nested is None else float(nested)]


def test_a_run_that_died_goes_on_with_the_next_network(whole, tmp_path, monkeypatch):
    run, calls = mnist.run_setting, []

    def dies_at_the_fourth(setting, *args, **options):
        calls.append((setting, options['seed']))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(setting, *args, **options)

    path = tmp_path / 'cut.json'
    monkeypatch.setattr(mnist, 'run_setting', dies_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        experiment(path)
    assert len(read_results(path)['rows']) == 3
    experiment(path)
    assert calls[3:] == [(GRID[8], 5)] * 2
    assert path.read_text() == whole.read_text()


def test_every_table_reads_an_unfinished_file(whole):
    d, made = read_results(whole), mnist_tables
    tables = (made.compare_table1, made.curve_table, made.delta_table)
    tables += (made.table1_against_paper, made.table1_entries)
    sizes = [15, 10, 10, 38, 2 * len(made.NETWORK_CLAIMS)]
    for n in (1, 2, 3, 4):
        part = d | dict(rows=d['rows'][:n])
        assert [len(table(part)) for table in tables] == sizes
        assert made.share_table(part).loo.tolist() == [1.0] * n
        assert len(made.plot_mnist_curves(part).axes) == 3


def made_up(i, seed, name, *, ig=1.0, between=0.5, left=0.1, right=0.3, wide=3):
    "A network's row with these numbers."

    def cells(*means):
        made = [dict(mean=m, se=0.1, n=9, undefined=0) for m in means]
        return dict(zip(PAIRS, made))

    table = dict(ig=cells(ig, 0.9, 0.9), attn_lrp=cells(between, left, right))
    deltas = {'attn_lrp, qk_v': wide, 'attn_lrp, q_kv': 5}
    curves = {o: dict(delta=dict(mean=d, n=9)) for o, d in deltas.items()}
    row = dict(i=i, name=name, seed=seed, setting={}, accuracy=0.9, curves=curves)
    return row | dict(tables=dict.fromkeys(PROTOCOLS, table))


def entries_of(rows):
    data = dict(test=dict(name='mnist', source='folder', split='test'))
    config = dict(data=data, side=14)
    found = mnist_tables.table1_entries(dict(config=config, rows=rows))
    return {(e['claim'], e['model']): e for e in found}


DEFAULT = 'linear attention, default'
EVERY = 'linear attention, 2 settings'


@pytest.fixture(scope='module')
def entries():
    "Two settings, three seeds: the brackets differ by 0.3, 0.2, 0.1 and by 0.7."
    rows = []
    for seed, between in enumerate((0.7, 0.8, 0.9)):
        rows.append(made_up(2 * seed, seed, 'one', between=between))
        rows.append(made_up(2 * seed + 1, seed, 'two', between=0.3, wide=15))
    return entries_of(rows)


def test_an_entry_is_a_mean_over_networks(entries):
    filed = json.loads((FILED.parents[1] / 'claims.json').read_text())[0]
    of_all = {'file', 'p_corrected', 'p_equal_corrected', 'verdict', 'reason'}
    keys = set(filed) - of_all
    assert all(keys <= set(e) for e in entries.values())
    assert len(entries) == 2 * len(mnist_tables.NETWORK_CLAIMS)
    e = entries['brackets-differ', DEFAULT]
    places = [e[k] for k in ('data', 'source', 'tokens', 'removal')]
    assert places == ['mnist test', 'folder', '196 pixels', 'zero_pixel']
    d = np.array([0.3, 0.2, 0.1]) - 0.01
    t = scipy_stats.t.ppf(0.975, 2) * d.std(ddof=1) / 3**0.5
    assert e['n'] == 3
    assert_close(e['mean'], d.mean())
    # the wider of two intervals; without skewness Student's
    assert_close([e['low'], e['high']], [0.19 - t, 0.19 + t])
    assert e['p'] == 2 / 2**3  # of three signs two ways to be as far
    e = entries['brackets-differ', EVERY]
    assert (e['n'], e['unit']) == (6, 'networks')
    assert_close(e['mean'], (0.19 + 0.69) / 2)
    assert_close([e['settings'][name] for name in ('one', 'two')], [0.19, 0.69])


def test_a_seed_that_lacks_a_setting_waits():
    rows = [made_up(0, 0, 'one'), made_up(1, 0, 'two'), made_up(2, 1, 'one')]
    assert means_by_seed(rows, lambda row: row['i']).tolist() == [0.5]
    assert [r['seeds'] for r in means_over_seeds(rows)] == [[0, 1], [0]]


def test_images_are_normalised_before_a_pixel_goes():
    "A removed pixel is zero after scaling: the mean grey in 'standard'."
    m, _ = network(0, 16, OPTIONS[0])
    x = normalise_images(TEST[0][:1], 'standard').double()
    scores = dict(up=torch.arange(16.0)[None])
    curve = pixel_curves(m, x, scores)['up'].morf[0]
    t = int(m(x).argmax())
    empty = naive_logit(m, np.zeros(16), t)
    assert_close(curve[-1], empty)
