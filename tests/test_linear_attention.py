"Linear attention against a second derivation of AttnLRP: explicit contributions (einsum), no gradients, float64."

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrp_loo.stats import normalize, pearson
from lrp_loo.results import read_results
from lrp_loo.studies.linear_attention import (
    FORMS,
    GRID,
    PAIRS,
    PIXELS,
    POOLINGS,
    SCALES,
    LinearAttention,
    accuracy,
    compare_table1,
    distance,
    grid_table,
    linear_attention_experiment,
    nearest,
    normalise_images,
    path_maps,
    pixel_ig,
    pixel_loo,
    pixel_lrp,
    pixel_maps,
    plot_table1,
    table1,
    table1_rows,
    train_linear_attention,
)


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """The tensors are small: more threads only wait for each other, badly so
    on a busy machine.
    """
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


OPTIONS = [
    dict(pixel=p, positions=pos, pooling=pool, scale=s)
    for p, pos, pool, s in itertools.product(
        PIXELS, (False, True), POOLINGS, SCALES
    )
    if not (p == 'direct' and pos)
]
options = st.sampled_from(OPTIONS)


def make(seed, n, d, n_classes=3, batch=2, **kw):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        m = LinearAttention(
            width=d, n_classes=n_classes, n_pixels=n, **kw
        ).double()
        return m, torch.randn(batch, n, dtype=torch.double)


def share(c, denominator, R, eps):
    "Contributions over the stabilized denominator, times relevance."
    return c / (denominator + eps * torch.where(denominator < 0, -1.0, 1.0)) * R


@torch.no_grad()
def oracle(m, x, target, form, eps):
    "Equations 1, 3 and 4 for one image, every index written out."
    n = len(x)
    E = torch.einsum

    def b(W):
        return 0.0 if W.bias is None else W.bias

    p = torch.zeros(n, 1, dtype=x.dtype) if m.positions is None else m.positions
    h = (
        x[:, None]
        if m.embed is None
        else E('n,d->nd', x, m.embed.weight[:, 0]) + b(m.embed) + p
    )
    q, k, v = (
        E('ne,de->nd', h, W.weight) + b(W) for W in (m.W_Q, m.W_K, m.W_V)
    )
    Z = m.c * E('jr,ir->ji', q, k)
    S = E('ir,ip->rp', k, v)
    O = E('ji,ip->jp', Z, v)
    Wo = (
        m.out.weight[target].view(n, -1)
        if m.pooling == 'flatten'
        else m.out.weight[target].expand(n, -1) / n
    )
    logit = (O * Wo).sum() + m.out.bias[target]
    RO = share(O * Wo, logit, logit, eps)
    if form == 'qk_v':
        c = E('ji,ip->jip', Z, v)
        s = share(c, 2 * O[:, None], RO[:, None], eps)
        RZ = s.sum(2)
        Rv = s.sum(0)
        c = m.c * E('jr,ir->jir', q, k)
        s = share(c, 2 * Z[..., None], RZ[..., None], eps)
        Rq = s.sum(1)
        Rk = s.sum(0)
    else:
        c = m.c * E('jr,rp->jrp', q, S)
        s = share(c, 2 * O[:, None], RO[:, None], eps)
        Rq = s.sum(2)
        RS = s.sum(0)
        c = E('ir,ip->irp', k, v)
        s = share(c, 2 * S, RS, eps)
        Rk = s.sum(2)
        Rv = s.sum(1)
    Rh = 0.0
    for W, y, R in ((m.W_Q, q, Rq), (m.W_K, k, Rk), (m.W_V, v, Rv)):
        Rh = Rh + share(
            E('ne,de->ned', h, W.weight), y[:, None], R[:, None], eps
        ).sum(2)
    return (
        Rh[:, 0]
        if m.embed is None
        else share(x[:, None] * m.embed.weight[:, 0], h, Rh, eps).sum(1)
    )


@settings(max_examples=40, deadline=None)
@given(options, st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5))
def test_forms_and_rules_give_equal_logits(kw, seed, n, d):
    m, x = make(seed, n, d, **kw)
    for form, eps in itertools.product(FORMS, (None, 0.0, 1e-6)):
        torch.testing.assert_close(
            m(x, form, eps=eps), m(x), rtol=1e-9, atol=1e-10
        )


@settings(max_examples=60, deadline=None)
@given(
    options,
    st.integers(0, 10**6),
    st.integers(2, 6),
    st.integers(2, 4),
    st.sampled_from(FORMS),
    st.sampled_from((1e-6, 1e-2)),
)
def test_lrp_is_the_oracle(kw, seed, n, d, form, eps):
    m, x = make(seed, n, d, **kw)
    target = torch.tensor([0, 2])
    got = pixel_lrp(m, x, target, form, eps)
    want = torch.stack(
        [oracle(m, row, t, form, eps) for row, t in zip(x, target.tolist())]
    )
    assert (got - want).abs().max() <= 1e-6 * max(1.0, want.abs().max())


@settings(max_examples=30, deadline=None)
@given(options, st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 4))
def test_difference_of_forms_is_a_quarter_of_value_minus_query(kw, seed, n, d):
    m, x = make(seed, n, d, **kw)
    GQ, GK, GV = path_maps(m, x)
    left, right = (pixel_lrp(m, x, form=f, eps=0.0) for f in FORMS)
    torch.testing.assert_close(
        left - right, (GV - GQ) / 4, rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        left, GQ / 4 + GK / 4 + GV / 2, rtol=1e-6, atol=1e-9
    )


@settings(max_examples=30, deadline=None)
@given(
    options, st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(FORMS)
)
def test_ig_is_complete_and_loo_is_the_loop(kw, seed, n, form):
    m, x = make(seed, n, 3, **kw)
    x[0, 0] = 0.0
    t = m(x).argmax(-1)
    ig, error = pixel_ig(m, x, form=form)
    many, _ = pixel_ig(m, x, form=form, n_steps=9)
    assert error.max() < 1e-9
    torch.testing.assert_close(ig, many, rtol=1e-7, atol=1e-10)
    loop = torch.stack(
        [
            m(x).gather(1, t[:, None])[:, 0]
            - m(x * (torch.arange(n) != i)).gather(1, t[:, None])[:, 0]
            for i in range(n)
        ],
        1,
    )
    torch.testing.assert_close(
        pixel_loo(m, x, form=form, internal_batch_size=2),
        loop.detach(),
        rtol=1e-7,
        atol=1e-10,
    )


@pytest.mark.parametrize('pooling', POOLINGS)
@pytest.mark.parametrize('form', FORMS)
def test_conservation_without_biases(form, pooling):
    m, x = make(1, 5, 4, pooling=pooling, pixel='bare')
    t = m(x).argmax(-1)
    torch.testing.assert_close(
        pixel_lrp(m, x, form=form, eps=0.0).sum(-1),
        (m(x).amax(-1) - m.out.bias[t]).detach(),
        rtol=1e-8,
        atol=1e-10,
    )


def test_bare_pixel_closed_form():
    m, x = make(2, 7, 4, pixel='bare')
    t = torch.tensor([1, 0])
    with torch.no_grad():
        q, k, v = (
            W.weight @ m.embed.weight[:, 0] for W in (m.W_Q, m.W_K, m.W_V)
        )
        w = (q @ k) * m.out.weight.view(3, 7, 4)[t] @ v
    S = (x**2).sum(-1, keepdim=True)
    L = (w * x).sum(-1, keepdim=True)
    for got, want in (
        (pixel_loo(m, x, t), S * w * x + L * x**2 - w * x**3),
        (pixel_lrp(m, x, t, 'q_kv', 0.0), (S * w * x + L * x**2) / 2),
        (pixel_lrp(m, x, t, 'qk_v', 0.0), (S * w * x + 3 * L * x**2) / 4),
        (pixel_ig(m, x, t)[0], (S * w * x + 2 * L * x**2) / 3),
    ):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_pearson_is_numpys_and_sum_to_one_only_flips(seed, n):
    g = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randn(4, n, generator=g, dtype=torch.double) for _ in range(2)
    )
    np.testing.assert_allclose(
        pearson(a, b),
        [np.corrcoef(p, q)[0, 1] for p, q in zip(a, b)],
        atol=1e-9,
    )
    np.testing.assert_allclose(
        pearson(normalize(a, 'sum'), normalize(b, 'sum')),
        pearson(a, b) * a.sum(-1).sign() * b.sum(-1).sign(),
        atol=1e-6,
    )


def test_undefined_is_counted():
    ones = torch.ones(3, 8)
    x = torch.arange(24.0).view(3, 8)
    maps = {
        'loo': dict.fromkeys(FORMS, x),
        'ig': dict.fromkeys(FORMS, x * float('nan')),
        'attn_lrp': dict.fromkeys(FORMS, torch.cat([ones[:1], x[1:]])),
    }
    t = table1(table1_rows(maps))
    assert (t.loc['as_is'].loc['attn_lrp', 'undefined'] == 1).all() and (
        t.loc['as_is'].loc['attn_lrp', 'n'] == 2
    ).all()
    assert (t.loc['as_is'].loc['ig', 'undefined'] == 3).all() and t.loc[
        ('as_is', 'ig', 'L_vs_R'), 'mean'
    ] != t.loc[('as_is', 'ig', 'L_vs_R'), 'mean']
    assert t.loc[('as_is', 'loo', 'L_vs_LOO'), 'mean'] == pytest.approx(1.0)


def test_mean_and_standard_error():
    rows = table1_rows(pixel_maps(*make(3, 6, 3, batch=9)))
    t = table1(rows)
    r = np.array([row['as_is', 'attn_lrp', 'L_vs_R'] for row in rows])
    assert t.loc[('as_is', 'attn_lrp', 'L_vs_R'), 'mean'] == pytest.approx(
        r.mean()
    )
    assert t.loc[('as_is', 'attn_lrp', 'L_vs_R'), 'se'] == pytest.approx(
        r.std(ddof=1) / 3
    )


def blobs(n, side=4, seed=0):
    "Images whose class is the bright row."
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(side, (n,), generator=g)
    x = 0.3 * torch.rand(n, side, side, generator=g)
    x[torch.arange(n), y] += 0.6
    return x, y


def test_training_learns_is_repeatable_and_leaves_the_global_seed():
    x, y = blobs(400)
    state = torch.get_rng_state()
    kw = dict(epochs=10, lr=1e-2, batch_size=32, progress=False, width=8)
    a, b, c = (
        train_linear_attention(normalise_images(x), y, seed=s, **kw)
        for s in (0, 0, 1)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(a.out.weight, b.out.weight) and not torch.equal(
        a.out.weight, c.out.weight
    )
    assert accuracy(a, normalise_images(x), y, batch_size=7) > 0.9


def test_experiment_resumes_and_keeps_rows(tmp_path):
    train = blobs(60)
    test = blobs(12, seed=1)
    kw = dict(
        epochs=1,
        limit=5,
        progress=False,
        data_info='blobs',
        grid=[GRID[0], GRID[8], GRID[12]],
    )
    whole = linear_attention_experiment(
        train, test, path=tmp_path / 'whole.json', **kw
    )
    calls = []
    import lrp_loo.studies.linear_attention as la

    run = la.run_setting

    def dies(setting, *a, **k):
        calls.append(setting)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(setting, *a, **k)

    with pytest.MonkeyPatch.context() as mp:
        mp.setattr(la, 'run_setting', dies)
        with pytest.raises(KeyboardInterrupt):
            linear_attention_experiment(
                train, test, path=tmp_path / 'cut.json', **kw
            )
        assert len(read_results(tmp_path / 'cut.json')['rows']) == 1
        resumed = linear_attention_experiment(
            train, test, path=tmp_path / 'cut.json', **kw
        )
    assert len(calls) == 4 and resumed.rows == whole.rows
    assert (tmp_path / 'cut.json').read_text() == (
        tmp_path / 'whole.json'
    ).read_text()
    d = read_results(tmp_path / 'whole.json')
    assert d['summary']['default'] == whole.rows[0]['name'] and d['summary'][
        'nearest'
    ] in {r['name'] for r in whole.rows}
    assert (
        len(compare_table1(d)) == 15 and list(grid_table(d).index)[0] == 'paper'
    )
    assert plot_table1(d).axes[0].get_title() == 'maps scaled to sum to one'
    with pytest.raises(ValueError, match='epochs'):
        linear_attention_experiment(
            train, test, path=tmp_path / 'whole.json', **{**kw, 'epochs': 2}
        )
    everything = linear_attention_experiment(
        train,
        test,
        path=tmp_path / 'all.json',
        **{**kw, 'limit': None, 'grid': GRID[:1]},
    )
    assert everything.rows[0]['tables']['as_is']['loo']['L_vs_LOO']['n'] == 12


def test_nearest_treats_undefined_as_far():
    def cell(v):
        return {p: dict(mean=v, se=0.0, n=1, undefined=0) for p in PAIRS}

    far = dict(
        name='far',
        accuracy=0.0,
        tables={
            p: dict(ig=cell(1.0), attn_lrp=cell(-1.0))
            for p in ('sum_to_one', 'as_is')
        },
    )
    bad = dict(
        name='bad',
        accuracy=0.85,
        tables={
            p: dict(ig=cell(-0.37), attn_lrp=cell(None))
            for p in ('sum_to_one', 'as_is')
        },
    )
    assert (
        distance(bad) == float('inf') and nearest([bad, far])['name'] == 'far'
    )


@pytest.mark.parametrize(
    'call, words',
    [
        (
            lambda: LinearAttention(pixel='rgb'),
            "'bare', 'affine', 'direct'; got 'rgb'",
        ),
        (lambda: LinearAttention(scale=2), "'none', 'sqrt_d', 'n'; got 2"),
        (lambda: LinearAttention(form='left'), "'qk_v', 'q_kv'; got 'left'"),
        (
            lambda: LinearAttention(n_pixels=4)(torch.zeros(1, 5)),
            r"\(batch, 4\), got \(1, 5\)",
        ),
        (lambda: normalise_images(torch.zeros(4, 4)), r"got \(4, 4\)"),
        (
            lambda: normalise_images(torch.full((1, 2, 2), 255.0)),
            "got 255 to 255",
        ),
        (
            lambda: pixel_lrp(
                LinearAttention(n_pixels=4), torch.ones(1, 4), eps=-1.0
            ),
            "negative",
        ),
        (
            lambda: linear_attention_experiment(
                blobs(4), (torch.zeros(4, 2, 3), torch.zeros(4)), path='x'
            ),
            "test must be images",
        ),
    ],
)
def test_bad_input_says_what_was_given(call, words):
    with pytest.raises(ValueError, match=words):
        call()
