"Perturbation curves, one pixel and one sum at a time; seeds; ledger entries."

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from test_linear_attention import OPTIONS, blobs, make, projected, readout_of, tokens_of

from lrp_loo.paper import mnist, mnist_tables
from lrp_loo.paper.ledger import verdict_of
from lrp_loo.paper.linear_attention import (
    linear_logits,
    normalise_images,
    summed_logits,
)
from lrp_loo.paper.mnist import (
    GRID,
    PAPER,
    by_seed,
    curve_row,
    linear_attention_experiment,
    over_seeds,
    run_setting,
)
from lrp_loo.paper.pixel_maps import (
    ORDERS,
    PAIRS,
    PROTOCOLS,
    PixelCurves,
    orders,
    pixel_curves,
    pixel_maps,
)
from lrp_loo.trust.results import read_results

FILED = Path(__file__).parent.parent / 'results/minilm/mnist.json'


pytestmark = pytest.mark.usefixtures('one_thread')


def network(seed, n, kind, width=3):
    "A random one, in double precision, and images for it."
    return make(seed, n, width, n_classes=4, batch=3, **kind)


# the curves, from weights as arrays


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
    scores = orders(pixel_maps(m, x), seed)
    assert tuple(scores) == ORDERS
    t = m(x).argmax(-1)
    for name, curves in pixel_curves(m, x, scores).items():
        for b, curve in itertools.product(range(3), PixelCurves._fields):
            naive = naive_curve(m, x[b].numpy(), t[b], scores[name][b], curve == 'morf')
            fast = getattr(curves, curve)[b]
            np.testing.assert_allclose(fast, naive, rtol=1e-9, atol=1e-9)


def test_curves_are_of_the_class_that_is_asked_for():
    m, x = network(0, 5, OPTIONS[0])
    scores = dict(up=torch.arange(5.0).expand(3, 5))
    target = torch.tensor([3, 0, 1])
    curves = pixel_curves(m, x, scores, target)['up']
    naive = naive_curve(m, x[1].numpy(), 0, np.arange(5), True)
    np.testing.assert_allclose(curves.morf[1], naive)
    np.testing.assert_allclose(curves.morf[:, 0], curves.lerf[:, 0])
    np.testing.assert_allclose(curves.morf[:, -1], curves.lerf[:, -1])


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(OPTIONS))
@settings(max_examples=40, deadline=None)
def test_sums_first_are_the_same_function(seed, n, kind):
    "Logits and, for training, gradients by every weight."
    m, x = network(seed, n, kind)
    both = []
    for logits in (linear_logits, summed_logits):
        m.zero_grad()
        out = logits(m, x)
        out.logsumexp(-1).sum().backward()
        both.append([out, *(p.grad for p in m.parameters())])
    for plain, summed in zip(*both):
        torch.testing.assert_close(plain, summed, rtol=1e-9, atol=1e-9)


def test_a_random_order_is_its_seeds_own():
    maps = pixel_maps(*network(0, 6, OPTIONS[0]))
    once, again, other = (orders(maps, s)['random'] for s in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


# what a row keeps of them


def test_areas_of_a_row_by_hand():
    g = np.random.default_rng(0)
    logits = {o: [g.normal(size=(7, 9)) for _ in range(2)] for o in 'ab'}
    parts = [
        {o: PixelCurves(*(torch.tensor(c[some]) for c in logits[o])) for o in logits}
        for some in (slice(0, 4), slice(4, 7))
    ]
    row = curve_row(parts)
    delta = {}
    for name, (morf, lerf) in logits.items():
        delta[name] = lerf.mean(1) - morf.mean(1)
        aopc = (lerf[:, :1] - lerf).mean(1)
        said = row['curves'][name]
        assert said['delta']['mean'] == pytest.approx(delta[name].mean())
        assert said['lerf_aopc']['mean'] == pytest.approx(aopc.mean())
        assert said['morf']['se'] == pytest.approx(scipy_stats.sem(morf.mean(1)))
        assert said['morf']['n'] == 7
        path = row['paths'][name]['lerf']
        ends = lerf.mean(0)[[0, -1]]
        assert [path[0], path[-1]] == pytest.approx(ends, abs=1e-4)
    gap = row['gaps']['a']['b']
    assert gap['mean'] == pytest.approx((delta['a'] - delta['b']).mean())
    assert gap['low'] < gap['mean'] < gap['high']


# seeds


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
    d = read_results(whole)
    tables = (
        mnist_tables.compare_table1,
        mnist_tables.grid_table,
        mnist_tables.curve_table,
        mnist_tables.delta_table,
    )
    tables += (mnist_tables.table1_against_paper, mnist_tables.table1_entries)
    for n in (1, 2, 3, 4):
        part = d | dict(rows=d['rows'][:n])
        sizes = [15, 1 + min(n, 2), 10, 10, 38, 2 * len(mnist_tables.NETWORK_CLAIMS)]
        assert [len(table(part)) for table in tables] == sizes
        assert mnist_tables.share_table(part).loo.tolist() == [1.0] * n
        assert len(mnist_tables.plot_mnist_curves(part).axes) == 3


def test_the_summary_and_figure_of_a_finished_file(whole):
    d = read_results(whole)
    names = [row['name'] for row in d['rows']]
    assert d['summary']['default'] == names[0]
    assert d['summary']['nearest'] in names
    assert mnist_tables.grid_table(d).index[0] == 'paper'
    above, _ = mnist_tables.plot_table1(d).axes
    heights = [bar.get_height() for bar in above.patches[:6]]
    assert heights == [*PAPER['ig'].values(), *PAPER['attn_lrp'].values()]


def test_one_image_has_no_interval_and_no_limit_is_every_image(tmp_path):
    path = tmp_path / 'one.json'
    experiment(path, limit=1, grid=GRID[:1], seeds=(0,))
    d = read_results(path)
    assert set(mnist_tables.delta_table(d).networks) == {'0 wider, 0 narrower of 1'}
    assert len(mnist_tables.curve_table(d)) == 10
    r = experiment(tmp_path / 'all.json', limit=None, grid=GRID[:1])
    assert r.rows[0]['tables']['as_is']['loo']['L_vs_LOO']['n'] == 12


@pytest.mark.parametrize('seeds', [(), (1, 1)])
def test_seeds_must_be_different(seeds, tmp_path):
    with pytest.raises(ValueError, match='different numbers'):
        experiment(tmp_path / 'x.json', seeds=seeds)


def test_it_says_beforehand_what_it_will_do(tmp_path, capsys):
    experiment(tmp_path / 'x.json', progress=True)
    said = capsys.readouterr().out
    assert '4 networks, 2 of each setting: 1 steps of training' in said


# entries for the ledger


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
    assert e['mean'] == pytest.approx(d.mean())
    # the wider of two intervals; without skewness Student's
    assert (e['low'], e['high']) == pytest.approx((0.19 - t, 0.19 + t), 1e-3)
    assert e['p'] == 2 / 2**3  # of three signs two ways to be as far
    e = entries['brackets-differ', EVERY]
    assert (e['n'], e['unit']) == (6, 'networks')
    assert e['mean'] == pytest.approx((0.19 + 0.69) / 2)
    assert e['settings'] == pytest.approx(dict(one=0.19, two=0.69))


COUNTED = {
    'left-above-right': (-0.2, -0.2),
    'left-above-right-summed': (-0.2, -0.2),
    'brackets-uncorrelated': (-0.1, -0.1),
    'brackets-uncorrelated-summed': (-0.1, -0.1),
    'ig-against-loo-summed': (-0.9, -0.9),
    'left-wider-gap': (-0.5, 0.25),
}


@pytest.mark.parametrize('claim', COUNTED)
def test_what_each_claim_counts(entries, claim):
    found = [entries[claim, model]['mean'] for model in (DEFAULT, EVERY)]
    assert found == pytest.approx(COUNTED[claim])


def test_brackets_that_do_not_differ_fail():
    same = [made_up(s, s, 'one', between=0.999) for s in range(3)]
    both = [made_up(s, s, 'one', between=0.9, ig=0.9) for s in range(3)]
    for rows in (same, both):
        e = entries_of(rows)['brackets-differ', DEFAULT]
        assert e['mean'] < 0
        assert verdict_of(e | dict(n=9), e['p']) != 'holds'


def test_an_undefined_number_leaves_the_seed_out():
    rows = [made_up(s, s, 'one', left=None if s else 0.1) for s in range(3)]
    e = entries_of(rows)['left-above-right', DEFAULT]
    assert (e['n'], e['mean']) == (1, pytest.approx(-0.2))
    assert np.isnan(e['low']) and np.isnan(e['p'])


def test_a_seed_that_lacks_a_setting_waits():
    rows = [made_up(0, 0, 'one'), made_up(1, 0, 'two'), made_up(2, 1, 'one')]
    assert by_seed(rows, lambda row: row['i']).tolist() == [0.5]
    assert [r['seeds'] for r in over_seeds(rows)] == [[0, 1], [0]]


def test_images_are_normalised_before_a_pixel_goes():
    "A removed pixel is zero after scaling: the mean grey in 'standard'."
    m, _ = network(0, 16, OPTIONS[0])
    x = normalise_images(TEST[0][:1], 'standard').double()
    scores = dict(up=torch.arange(16.0)[None])
    curve = pixel_curves(m, x, scores)['up'].morf[0]
    t = int(m(x).argmax())
    empty = naive_logit(m, np.zeros(16), t)
    assert float(curve[-1]) == pytest.approx(empty)
