"Linear attention against AttnLRP derived again: explicit contributions, no gradients, float64."

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
    PAIRS,
    PIXELS,
    POOLINGS,
    PROTOCOLS,
    SCALES,
    LinearAttention,
    accuracy,
    normalise_images,
    path_maps,
    pixel_ig,
    pixel_loo,
    pixel_lrp,
    pixel_maps,
    table1,
    table1_rows,
    train_linear_attention,
)
from lrp_loo.studies.mnist import (
    GRID,
    PAPER,
    compare_table1,
    distance,
    grid_table,
    linear_attention_experiment,
    nearest,
    plot_table1,
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
    for p, pos, pool, s in itertools.product(PIXELS, (False, True), POOLINGS, SCALES)
    if not (p == 'direct' and pos)
]
options = st.sampled_from(OPTIONS)


def make(seed, n, d, n_classes=3, batch=2, **kw):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        m = LinearAttention(width=d, n_classes=n_classes, n_pixels=n, **kw).double()
        return m, torch.randn(batch, n, dtype=torch.double)


def share(c, denominator, R, eps):
    "Contributions over the stabilized denominator, times relevance."
    return c / (denominator + eps * torch.where(denominator < 0, -1.0, 1.0)) * R


E = torch.einsum


def bias_of(layer):
    return 0.0 if layer.bias is None else layer.bias


def tokens_of(m, x):
    if m.embed is None:
        return x[:, None]
    h = E('n,d->nd', x, m.embed.weight[:, 0]) + bias_of(m.embed)
    return h if m.positions is None else h + m.positions


def projected(W, h):
    return E('ne,de->nd', h, W.weight) + bias_of(W)


def readout_of(m, target, n):
    "What the target's logit reads of each entry of O."
    W = m.out.weight[target]
    if m.pooling == 'flatten':
        return W.view(n, -1)
    return W.expand(n, -1) / n


def through_qk_v(q, k, v, c, RO, eps):
    "Relevance of q, k, v, where O = (c q kᵀ) v."
    Z = c * E('jr,ir->ji', q, k)
    O = E('ji,ip->jp', Z, v)
    s = share(E('ji,ip->jip', Z, v), 2 * O[:, None], RO[:, None], eps)
    RZ, Rv = s.sum(2), s.sum(0)
    parts = c * E('jr,ir->jir', q, k)
    s = share(parts, 2 * Z[..., None], RZ[..., None], eps)
    return s.sum(1), s.sum(0), Rv


def through_q_kv(q, k, v, c, RO, eps):
    "Relevance of q, k, v, where O = c q (kᵀ v)."
    S = E('ir,ip->rp', k, v)
    O = c * E('jr,rp->jp', q, S)
    s = share(c * E('jr,rp->jrp', q, S), 2 * O[:, None], RO[:, None], eps)
    Rq, RS = s.sum(2), s.sum(0)
    s = share(E('ir,ip->irp', k, v), 2 * S, RS, eps)
    return Rq, s.sum(2), s.sum(1)


THROUGH = {'qk_v': through_qk_v, 'q_kv': through_q_kv}


@torch.no_grad()
def oracle(m, x, target, form, eps):
    "Equations 1, 3 and 4 for one image, every index written out."
    weights = (m.W_Q, m.W_K, m.W_V)
    h = tokens_of(m, x)
    q, k, v = (projected(W, h) for W in weights)
    O = m.c * E('jr,ir,ip->jp', q, k, v)
    parts = O * readout_of(m, target, len(x))
    logit = parts.sum() + m.out.bias[target]
    RO = share(parts, logit, logit, eps)
    Rh = 0.0
    relevances = THROUGH[form](q, k, v, m.c, RO, eps)
    for W, y, R in zip(weights, (q, k, v), relevances):
        contributions = E('ne,de->ned', h, W.weight)
        Rh = Rh + share(contributions, y[:, None], R[:, None], eps).sum(2)
    if m.embed is None:
        return Rh[:, 0]
    contributions = x[:, None] * m.embed.weight[:, 0]
    return share(contributions, h, Rh, eps).sum(1)


@settings(max_examples=40, deadline=None)
@given(options, st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5))
def test_forms_and_rules_give_equal_logits(kw, seed, n, d):
    m, x = make(seed, n, d, **kw)
    for form, eps in itertools.product(FORMS, (None, 0.0, 1e-6)):
        torch.testing.assert_close(m(x, form, eps=eps), m(x), rtol=1e-9, atol=1e-10)


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
    torch.testing.assert_close(left - right, (GV - GQ) / 4, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(left, GQ / 4 + GK / 4 + GV / 2, rtol=1e-6, atol=1e-9)


ANY_IMAGE = (options, st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(FORMS))


def with_a_black_pixel(seed, n, **kw):
    m, x = make(seed, n, 3, **kw)
    x[0, 0] = 0.0
    return m, x


@settings(max_examples=30, deadline=None)
@given(*ANY_IMAGE)
def test_ig_is_complete(kw, seed, n, form):
    m, x = with_a_black_pixel(seed, n, **kw)
    assert pixel_ig(m, x, form=form)[1].max() < 1e-9


@settings(max_examples=30, deadline=None)
@given(*ANY_IMAGE)
def test_two_points_are_enough_for_ig(kw, seed, n, form):
    m, x = with_a_black_pixel(seed, n, **kw)
    two, _ = pixel_ig(m, x, form=form)
    nine, _ = pixel_ig(m, x, form=form, n_steps=9)
    torch.testing.assert_close(two, nine, rtol=1e-7, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(*ANY_IMAGE)
def test_loo_is_the_loop(kw, seed, n, form):
    m, x = with_a_black_pixel(seed, n, **kw)
    t = m(x).argmax(-1)[:, None]

    def logits(x):
        return m(x).gather(1, t)[:, 0].detach()

    lost = [logits(x) - logits(x * (torch.arange(n) != i)) for i in range(n)]
    torch.testing.assert_close(
        pixel_loo(m, x, form=form, internal_batch_size=2),
        torch.stack(lost, 1),
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
        q, k, v = (W.weight @ m.embed.weight[:, 0] for W in (m.W_Q, m.W_K, m.W_V))
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


def two_sets_of_maps(seed, n):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(4, n, generator=g, dtype=torch.double) for _ in range(2)]


ANY_MAPS = (st.integers(0, 10**6), st.integers(2, 30))


@settings(max_examples=40, deadline=None)
@given(*ANY_MAPS)
def test_pearson_is_numpys(seed, n):
    a, b = two_sets_of_maps(seed, n)
    numpys = [np.corrcoef(p, q)[0, 1] for p, q in zip(a, b)]
    np.testing.assert_allclose(pearson(a, b), numpys, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(*ANY_MAPS)
def test_scaling_to_sum_one_only_turns_maps_over(seed, n):
    a, b = two_sets_of_maps(seed, n)
    scaled = pearson(normalize(a, 'sum'), normalize(b, 'sum'))
    signs = a.sum(-1).sign() * b.sum(-1).sign()
    np.testing.assert_allclose(scaled, pearson(a, b) * signs, atol=1e-6)


@pytest.fixture(scope='module')
def partly_undefined():
    "Table 1 of maps of which some are constant or NaN."
    x = torch.arange(24.0).view(3, 8)
    one_constant = torch.cat([torch.ones(1, 8), x[1:]])
    maps = {
        'loo': dict.fromkeys(FORMS, x),
        'ig': dict.fromkeys(FORMS, x * float('nan')),
        'attn_lrp': dict.fromkeys(FORMS, one_constant),
    }
    return table1(table1_rows(maps)).loc['as_is']


def test_a_constant_map_is_counted_as_undefined(partly_undefined):
    t = partly_undefined.loc['attn_lrp']
    assert t.undefined.tolist() == [1, 1, 1]
    assert t.n.tolist() == [2, 2, 2]


def test_a_mean_of_nothing_is_nan(partly_undefined):
    t = partly_undefined.loc['ig']
    assert t.undefined.tolist() == [3, 3, 3]
    assert t['mean'].isna().all()


def test_what_is_defined_has_its_mean(partly_undefined):
    assert partly_undefined.loc[('loo', 'L_vs_LOO'), 'mean'] == pytest.approx(1)


def test_mean_and_standard_error():
    rows = table1_rows(pixel_maps(*make(3, 6, 3, batch=9)))
    column = ('as_is', 'attn_lrp', 'L_vs_R')
    r = np.array([row[column] for row in rows])
    line = table1(rows).loc[column]
    assert line['mean'] == pytest.approx(r.mean())
    assert line['se'] == pytest.approx(r.std(ddof=1) / 3)


def blobs(n, side=4, seed=0):
    "Images whose class is the bright row."
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(side, (n,), generator=g)
    x = 0.3 * torch.rand(n, side, side, generator=g)
    x[torch.arange(n), y] += 0.6
    return x, y


def trained(seed=0):
    x, y = blobs(400)
    return train_linear_attention(
        normalise_images(x),
        y,
        seed=seed,
        epochs=10,
        lr=1e-2,
        batch_size=32,
        progress=False,
        width=8,
    )


@pytest.fixture(scope='module')
def seed_zero():
    return trained(0)


def test_training_learns(seed_zero):
    x, y = blobs(400)
    assert accuracy(seed_zero, normalise_images(x), y, batch_size=7) > 0.9


def test_training_is_repeatable_by_its_seed(seed_zero):
    assert torch.equal(trained(0).out.weight, seed_zero.out.weight)
    assert not torch.equal(trained(1).out.weight, seed_zero.out.weight)


def test_training_leaves_the_global_seed():
    state = torch.get_rng_state()
    trained()
    assert torch.equal(state, torch.get_rng_state())


EXPERIMENT = dict(
    epochs=1,
    limit=5,
    progress=False,
    data_info='blobs',
    grid=[GRID[0], GRID[8], GRID[12]],
)


def experiment(path, **changes):
    return linear_attention_experiment(
        blobs(60), blobs(12, seed=1), path=path, **(EXPERIMENT | changes)
    )


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A file that one run wrote."
    path = tmp_path_factory.mktemp('mnist') / 'whole.json'
    experiment(path)
    return path


def test_the_summary_names_default_and_nearest(whole):
    d = read_results(whole)
    names = [row['name'] for row in d['rows']]
    assert d['summary']['default'] == names[0]
    assert d['summary']['nearest'] in names


def test_tables_and_figure_of_a_finished_file(whole):
    d = read_results(whole)
    assert len(compare_table1(d)) == 15
    assert grid_table(d).index[0] == 'paper'
    above, below = plot_table1(d).axes
    assert above.get_title() == 'maps scaled to sum to one'
    assert below.get_title() == 'maps as they are'
    heights = [bar.get_height() for bar in above.patches[:6]]
    assert heights == [*PAPER['ig'].values(), *PAPER['attn_lrp'].values()]


def test_rows_of_another_configuration_are_not_mixed(whole):
    with pytest.raises(ValueError, match='epochs'):
        experiment(whole, epochs=2)


def test_no_limit_explains_every_test_image(tmp_path):
    r = experiment(tmp_path / 'all.json', limit=None, grid=GRID[:1])
    assert r.rows[0]['tables']['as_is']['loo']['L_vs_LOO']['n'] == 12


def row_of(name, accuracy, ig, lrp):
    def cells(v):
        return {p: dict(mean=v, se=0.0, n=1, undefined=0) for p in PAIRS}

    tables = dict.fromkeys(PROTOCOLS, dict(ig=cells(ig), attn_lrp=cells(lrp)))
    return dict(name=name, accuracy=accuracy, tables=tables)


def test_an_undefined_number_is_infinitely_far():
    far = row_of('far', 0.0, 1.0, -1.0)
    undefined = row_of('undefined', 0.85, -0.37, None)
    assert distance(undefined) == float('inf')
    assert nearest([undefined, far])['name'] == 'far'


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: LinearAttention(pixel='rgb'), "'bare', 'affine', 'direct'; got 'rgb'"),
        (lambda: LinearAttention(scale=2), "'none', 'sqrt_d', 'n'; got 2"),
        (lambda: LinearAttention(form='left'), "'qk_v', 'q_kv'; got 'left'"),
        (
            lambda: LinearAttention(n_pixels=4)(torch.zeros(1, 5)),
            r"\(batch, 4\), got \(1, 5\)",
        ),
        (lambda: normalise_images(torch.zeros(4, 4)), r"got \(4, 4\)"),
        (lambda: normalise_images(torch.full((1, 2, 2), 255.0)), "got 255 to 255"),
        (
            lambda: pixel_lrp(LinearAttention(n_pixels=4), torch.ones(1, 4), eps=-1.0),
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
