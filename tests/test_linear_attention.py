"Linear attention against AttnLRP derived again: explicit contributions, no gradients, float64."

import itertools

import pytest
import torch
from close import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from lrp_loo.paper.linear_attention import FORMS, PIXELS, POOLINGS, SCALES
from lrp_loo.paper.linear_attention import LinearAttention, accuracy, normalise_images
from lrp_loo.paper.linear_attention import train_linear_attention
from lrp_loo.paper.pixel_maps import pixel_ig, pixel_loo, pixel_lrp, table1, table1_rows

pytestmark = pytest.mark.usefixtures('one_thread')


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


ANY_IMAGE = (options, st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(FORMS))


@settings(max_examples=30, deadline=None)
@given(*ANY_IMAGE)
def test_ig_is_complete_at_two_points_and_loo_is_the_loop(kw, seed, n, form):
    m, x = make(seed, n, 3, **kw)
    x[0, 0] = 0.0  # a black pixel
    two, error = pixel_ig(m, x, form=form)
    assert error.max() < 1e-9
    nine, _ = pixel_ig(m, x, form=form, n_steps=9)
    torch.testing.assert_close(two, nine, rtol=1e-7, atol=1e-10)
    t = m(x).argmax(-1)[:, None]

    def logits(x):
        return m(x).gather(1, t)[:, 0].detach()

    lost = [logits(x) - logits(x * (torch.arange(n) != i)) for i in range(n)]
    loo = pixel_loo(m, x, form=form, internal_batch_size=2)
    torch.testing.assert_close(loo, torch.stack(lost, 1), rtol=1e-7, atol=1e-10)


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


def test_what_is_undefined_is_counted():
    "Table 1 of maps of which some are constant or NaN."
    x = torch.arange(24.0).view(3, 8)
    one_constant = torch.cat([torch.ones(1, 8), x[1:]])
    maps = {
        'loo': dict.fromkeys(FORMS, x),
        'ig': dict.fromkeys(FORMS, x * float('nan')),
        'attn_lrp': dict.fromkeys(FORMS, one_constant),
    }
    table = table1(table1_rows(maps)).loc['as_is']
    for e, undefined, n in (('attn_lrp', 1, 2), ('ig', 3, 0)):
        assert table.loc[e].undefined.tolist() == [undefined] * 3
        assert table.loc[e].n.tolist() == [n] * 3
    assert table.loc['ig']['mean'].isna().all()
    assert_close(table.loc[('loo', 'L_vs_LOO'), 'mean'], 1.0)


def blobs(n, side=4, seed=0):
    "Images whose class is the bright row."
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(side, (n,), generator=g)
    x = 0.3 * torch.rand(n, side, side, generator=g)
    x[torch.arange(n), y] += 0.6
    return x, y


def trained(seed=0):
    x, y = blobs(400)
    how = dict(epochs=10, lr=1e-2, batch_size=32, progress=False, width=8)
    return train_linear_attention(normalise_images(x), y, seed=seed, **how)


def test_training_learns_and_is_repeatable_by_its_own_seed():
    state = torch.get_rng_state()
    model = trained(0)
    assert torch.equal(state, torch.get_rng_state())
    x, y = blobs(400)
    assert accuracy(model, normalise_images(x), y, batch_size=7) > 0.9
    assert torch.equal(trained(0).out.weight, model.out.weight)
    assert not torch.equal(trained(1).out.weight, model.out.weight)
