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

from lrp_loo.paper.ledger import verdict_of
from lrp_loo.paper.linear_attention import (
    PIXELS,
    POOLINGS,
    SCALES,
    LinearAttention,
    linear_logits,
    normalise_images,
    summed_logits,
)
from lrp_loo.paper.mnist import (
    GRID,
    PAPER,
    by_seed,
    curve_row,
    distance,
    linear_attention_experiment,
    nearest,
    over_seeds,
    run_setting,
)
from lrp_loo.paper.mnist_tables import (
    NETWORK_CLAIMS,
    compare_table1,
    curve_table,
    delta_table,
    grid_table,
    plot_mnist_curves,
    plot_table1,
    share_table,
    table1_against_paper,
    table1_entries,
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
from lrp_loo.paper import mnist
from lrp_loo.trust.results import read_results

FILED = Path(__file__).parent.parent / 'results/minilm/mnist.json'
OPTIONS = [
    dict(pixel=p, positions=pos, pooling=pool, scale=s)
    for p, pos, pool, s in itertools.product(PIXELS, (False, True), POOLINGS, SCALES)
    if not (p == 'direct' and pos)
]


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    "The tensors are small: more threads only wait for each other."
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def network(seed, n, kind, width=3):
    "A random one, in double precision, and images for it."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        m = LinearAttention(width, 4, n, **kind).double()
        return m, torch.randn(3, n, dtype=torch.double)


# the curves, from weights as arrays


def numbers(tensor):
    return tensor.detach().numpy()


def tokens(m, x):
    "What the projections read, (n, inputs)."
    if m.embed is None:
        return x[:, None]
    h = x[:, None] * numbers(m.embed.weight)[:, 0]
    if m.embed.bias is not None:
        h = h + numbers(m.embed.bias)
    return h if m.positions is None else h + numbers(m.positions)


def projected(W, h):
    out = h @ numbers(W.weight).T
    return out if W.bias is None else out + numbers(W.bias)


def naive_logit(m, x, t):
    "Section 4.3 as a double sum over pixels n and j."
    h = tokens(m, x)
    Q, K, V = (projected(W, h) for W in (m.W_Q, m.W_K, m.W_V))
    n, d = Q.shape
    u = numbers(m.out.weight)[t]
    u = u.reshape(n, d) if m.pooling == 'flatten' else np.tile(u / n, (n, 1))
    logit = numbers(m.out.bias)[t]
    for i in range(n):
        for j in range(n):
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
        {
            name: PixelCurves(*(torch.tensor(c[some]) for c in both))
            for name, both in logits.items()
        }
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
        assert path[0] == pytest.approx(lerf[:, 0].mean(), abs=1e-4)
        assert path[-1] == pytest.approx(lerf[:, -1].mean(), abs=1e-4)
    gap = row['gaps']['a']['b']
    assert gap['mean'] == pytest.approx((delta['a'] - delta['b']).mean())
    assert gap['low'] < gap['mean'] < gap['high']


# seeds


def bright_rows(n, seed):
    "Images whose class is the bright row."
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    x = 0.3 * torch.rand(n, 4, 4, generator=g)
    x[torch.arange(n), y] += 0.6
    return x, y


TRAIN, TEST = bright_rows(60, 0), bright_rows(12, 1)


def experiment(path, **changes):
    options = dict(
        epochs=1,
        limit=5,
        progress=False,
        data_info='bright rows',
        grid=[GRID[0], GRID[8]],
        seeds=(3, 5),
    )
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
    assert [r['seed'] for r in d['rows']] == [3, 3, 5, 5]
    assert [r['i'] for r in d['rows']] == [0, 1, 2, 3]
    alone = run_setting(GRID[8], TRAIN, TEST, 5, epochs=1, seed=5, progress=False)
    last = d['rows'][3]
    assert last['name'] == alone['name']
    for key in ('tables', 'curves', 'gaps', 'negative'):
        as_filed = json.loads(json.dumps(last[key]))
        assert flat(as_filed) == pytest.approx(
            flat(alone[key]), rel=1e-5, abs=1e-6, nan_ok=True
        )
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
    for n in (1, 2, 3, 4):
        part = d | dict(rows=d['rows'][:n])
        settings_there = min(n, 2)
        assert len(compare_table1(part)) == 15
        assert len(grid_table(part)) == 1 + settings_there
        assert len(curve_table(part)) == 10
        assert len(delta_table(part)) == 10
        assert share_table(part).loo.tolist() == [1.0] * n
        assert len(table1_against_paper(part)) == 38
        assert len(table1_entries(part)) == 2 * len(NETWORK_CLAIMS)
        assert len(plot_mnist_curves(part).axes) == 3


def test_the_summary_and_figure_of_a_finished_file(whole):
    d = read_results(whole)
    names = [row['name'] for row in d['rows']]
    assert d['summary']['default'] == names[0]
    assert d['summary']['nearest'] in names
    assert grid_table(d).index[0] == 'paper'
    above, below = plot_table1(d).axes
    assert above.get_title() == 'maps scaled to sum to one'
    assert below.get_title() == 'maps as they are'
    heights = [bar.get_height() for bar in above.patches[:6]]
    assert heights == [*PAPER['ig'].values(), *PAPER['attn_lrp'].values()]
    with pytest.raises(ValueError, match='epochs'):
        experiment(whole, epochs=2)


def test_one_image_has_no_interval_and_no_limit_is_every_image(tmp_path):
    path = tmp_path / 'one.json'
    experiment(path, limit=1, grid=GRID[:1], seeds=(0,))
    d = read_results(path)
    assert set(delta_table(d).networks) == {'0 wider, 0 narrower of 1'}
    assert len(curve_table(d)) == 10
    r = experiment(tmp_path / 'all.json', limit=None, grid=GRID[:1])
    assert r.rows[0]['tables']['as_is']['loo']['L_vs_LOO']['n'] == 12


def test_an_undefined_number_is_infinitely_far():
    far, undefined = (made_up(0, 0, 'a', between=r, left=r) for r in (-1.0, None))
    assert distance(undefined) == float('inf')
    assert nearest([undefined, far]) is far


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
        return {
            pair: dict(mean=m, se=0.1, n=9, undefined=0)
            for pair, m in zip(PAIRS, means)
        }

    table = dict(ig=cells(ig, 0.9, 0.9), attn_lrp=cells(between, left, right))
    deltas = {'attn_lrp, qk_v': wide, 'attn_lrp, q_kv': 5}
    curves = {o: dict(delta=dict(mean=d, n=9)) for o, d in deltas.items()}
    return dict(
        i=i,
        name=name,
        seed=seed,
        setting={},
        accuracy=0.9,
        tables=dict.fromkeys(PROTOCOLS, table),
        curves=curves,
    )


def entries_of(rows):
    data = dict(test=dict(name='mnist', source='folder', split='test'))
    config = dict(data=data, side=14)
    found = table1_entries(dict(config=config, rows=rows))
    return {(e['claim'], e['model']): e for e in found}


DEFAULT = 'linear attention, default'
EVERY = 'linear attention, mean of 2 settings'


@pytest.fixture(scope='module')
def entries():
    "Two settings, three seeds: the brackets differ by 0.3, 0.2, 0.1 and by 0.7."
    rows = []
    for seed, between in enumerate((0.7, 0.8, 0.9)):
        rows.append(made_up(2 * seed, seed, 'one', between=between))
        rows.append(made_up(2 * seed + 1, seed, 'two', between=0.3, wide=15))
    return entries_of(rows)


def test_an_entry_is_a_mean_over_seeds(entries):
    filed = json.loads((FILED.parents[1] / 'claims.json').read_text())[0]
    keys = set(filed) - {'file', 'p_holm', 'verdict'}
    assert all(keys <= set(e) for e in entries.values())
    assert len(entries) == 2 * len(NETWORK_CLAIMS)
    e = entries['brackets-differ', DEFAULT]
    places = [e[k] for k in ('data', 'source', 'tokens', 'removal')]
    assert places == ['mnist test', 'folder', '196 pixels', 'zero_pixel']
    d = np.array([0.3, 0.2, 0.1]) - 0.01
    t = scipy_stats.t.ppf(0.975, 2) * d.std(ddof=1) / 3**0.5
    assert e['n'] == 3
    assert e['mean'] == pytest.approx(d.mean())
    # the wider of two intervals; without skewness Student's
    assert (e['low'], e['high']) == pytest.approx((0.19 - t, 0.19 + t), 1e-3)
    assert e['p'] == pytest.approx(scipy_stats.ttest_1samp(d, 0).pvalue, 1e-3)
    # of all settings: they are averaged first
    e = entries['brackets-differ', EVERY]
    d = (np.array([0.3, 0.2, 0.1]) + 0.7) / 2 - 0.01
    assert (e['n'], e['mean']) == (3, pytest.approx(d.mean()))


@pytest.mark.parametrize(
    'claim, default, every',
    [
        ('left-above-right', -0.2, -0.2),
        ('left-above-right-summed', -0.2, -0.2),
        ('brackets-uncorrelated', -0.1, -0.1),
        ('brackets-uncorrelated-summed', -0.1, -0.1),
        ('ig-against-loo-summed', -0.9, -0.9),
        ('left-wider-gap', -0.5, 0.25),
    ],
)
def test_what_each_claim_counts(entries, claim, default, every):
    assert entries[claim, DEFAULT]['mean'] == pytest.approx(default)
    assert entries[claim, EVERY]['mean'] == pytest.approx(every)


def test_brackets_that_do_not_differ_fail():
    same = [made_up(s, s, 'one', between=0.999) for s in range(3)]
    both = [made_up(s, s, 'one', between=0.9, ig=0.9) for s in range(3)]
    for rows in (same, both):
        e = entries_of(rows)['brackets-differ', DEFAULT]
        assert e['mean'] < 0
        assert verdict_of(e['mean'], e['p']) != 'holds'


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
