"""Every rule twice: the fast gradient form against the naive explicit one, on
random shapes, in float64, as ε → 0 and at a visible ε.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lrp_loo.core import stabilize
from lrp_loo.rules import (
    attention_row,
    constant,
    epsilon_naive,
    epsilon_rule,
    identity_rule,
    layer_norm_naive,
    layer_norm_rule,
    product_naive,
    product_rule,
    relevance,
    scale_gradient,
    softmax_naive,
)

sizes = st.integers(1, 7)
seeds = st.integers(0, 10**6)
epss = st.sampled_from([0.0, 1e-12, 1e-3, 0.3])
check = settings(max_examples=40, deadline=None)


def rand(seed, *shape):
    """Numbers whose sums stay away from zero on purpose nowhere: a relevance
    divides by them, so compare what is well conditioned.
    """
    return torch.randn(
        *shape,
        dtype=torch.double,
        generator=torch.Generator().manual_seed(seed),
    )


def equal(a, b, y, R):
    "Relative to the largest contribution the denominators allow."
    scale = (R.abs() / stabilize(y, 1e-15).abs()).max().clamp(min=1)
    assert torch.allclose(a, b, rtol=1e-6, atol=1e-6 * float(scale)), (
        (a - b).abs().max()
    )


@check
@given(sizes, sizes, seeds, epss, st.booleans())
def test_linear(n_in, n_out, seed, eps, bias):
    x = rand(seed, n_in).requires_grad_()
    W = rand(seed + 1, n_in, n_out)
    R = rand(seed + 2, n_out)
    b = (
        rand(seed + 3, n_out)
        if bias
        else torch.zeros(n_out, dtype=torch.double)
    )
    y = epsilon_rule(x @ W + b, eps)
    equal(
        relevance(y, x, R, eps=1e-300)[0],
        epsilon_naive(x.detach(), W, R, b, eps=max(eps, 1e-300)),
        y.detach(),
        R,
    )


@check
@given(st.integers(1, 3), sizes, sizes, sizes, seeds, epss)
def test_product(batch, j, i, p, seed, eps):
    A = rand(seed, batch, j, i).requires_grad_()
    V = rand(seed + 1, batch, i, p).requires_grad_()
    R = rand(seed + 2, batch, j, p)
    y = product_rule(torch.matmul, A, V, eps)
    for fast, naive in zip(
        relevance(y, [A, V], R, eps=1e-300),
        product_naive(A.detach(), V.detach(), R, eps=eps),
    ):
        equal(fast, naive, y.detach(), R)


@check
@given(sizes, sizes, st.integers(1, 8), seeds, epss)
def test_attention_logits(n, m, d, seed, eps):
    "Equations 4a, 4b: Z = QKᵀ/√d."
    Q = rand(seed, n, d).requires_grad_()
    K = rand(seed + 1, m, d).requires_grad_()
    R = rand(seed + 2, n, m)
    y = product_rule(lambda a, b: a @ b.T * d**-0.5, Q, K, eps)
    fast = relevance(y, [Q, K], R, eps=1e-300)
    naive = product_naive(Q.detach(), K.detach().T, R, scale=d**-0.5, eps=eps)
    equal(fast[0], naive[0], y.detach(), R)
    equal(fast[1], naive[1].T, y.detach(), R)


@check
@given(sizes, st.integers(1, 9), seeds, st.floats(-30, 30))
def test_softmax(j, i, seed, shift):
    Z = (rand(seed, j, i) + shift).requires_grad_()
    R = rand(seed + 1, j, i)
    A = Z.softmax(-1)
    assert torch.allclose(
        relevance(A, Z, R, eps=1e-300)[0],
        softmax_naive(Z.detach(), R),
        rtol=1e-6,
        atol=1e-9,
    )


@check
@given(
    sizes, seeds, st.sampled_from([F.gelu, torch.tanh, F.relu, F.silu, F.elu])
)
def test_element_wise(n, seed, f):
    "One input: all of it; and at x = 0 nothing blows up."
    x = rand(seed, n)
    R = rand(seed + 1, n)
    x[0] = 0.0
    x.requires_grad_()
    y = identity_rule(f, x)
    (got,) = relevance(y, x, R, eps=1e-15)
    assert torch.equal(y, f(x)) and torch.isfinite(got).all()
    assert torch.allclose(
        got, torch.where(y == 0, 0.0, R).detach(), rtol=1e-6, atol=1e-9
    )


@check
@given(st.integers(2, 9), seeds, st.booleans())
def test_layer_norm(n, seed, affine):
    x = rand(seed, n).requires_grad_()
    R = rand(seed + 1, n)
    w, b = (
        (rand(seed + 2, n), rand(seed + 3, n))
        if affine
        else (torch.ones(n).double(), torch.zeros(n).double())
    )
    y = layer_norm_rule(
        x, (n,), w if affine else None, b if affine else None, 1e-9
    )
    assert torch.equal(
        y,
        F.layer_norm(
            x, (n,), w if affine else None, b if affine else None, 1e-9
        ),
    )
    equal(
        relevance(y, x, R, eps=1e-300)[0],
        layer_norm_naive(x.detach(), w, b, R, ln_eps=1e-9, eps=1e-300),
        y.detach(),
        R,
    )


def test_layer_norm_hands_parameters_their_plain_gradient():
    x, w, b = (rand(s, 4, 5, 6) if s == 0 else rand(s, 6) for s in range(3))
    w.requires_grad_()
    b.requires_grad_()
    g = rand(9, 4, 5, 6)
    ours = torch.autograd.grad(layer_norm_rule(x, (6,), w, b, 1e-5), [w, b], g)
    for a, t in zip(
        ours, torch.autograd.grad(F.layer_norm(x, (6,), w, b, 1e-5), [w, b], g)
    ):
        assert torch.allclose(a, t)


@check
@given(st.lists(sizes, min_size=2, max_size=5), seeds)
def test_purely_linear_networks_relevance_is_loo(widths, seed):
    x = rand(seed, widths[0]).requires_grad_()
    Ws = [
        rand(seed + k, a, b)
        for k, (a, b) in enumerate(zip(widths, widths[1:] + [1]), 1)
    ]

    def f(v, rule):
        for W in Ws:
            v = rule(v @ W)
        return v[..., 0]

    (R,) = relevance(f(x, lambda y: epsilon_rule(y, 0.0)), x)
    with torch.no_grad():
        loo = f(x, lambda y: y) - f(x * (1 - torch.eye(len(x))), lambda y: y)
    assert torch.allclose(R, loo, rtol=1e-9, atol=1e-9)


@check
@given(st.integers(2, 6), seeds)
def test_product_conserves_and_halves(n, seed):
    A = rand(seed, n, n).requires_grad_()
    V = rand(seed + 1, n, n).requires_grad_()
    R = rand(seed + 2, n, n)
    y = product_rule(torch.matmul, A, V)
    RA, RV = relevance(y, [A, V], R, eps=1e-300)
    scale = float((R.abs() / y.detach().abs()).max())
    assert torch.allclose(
        RA.sum(), R.sum() / 2, atol=1e-9 * scale
    ) and torch.allclose(RV.sum(), R.sum() / 2, atol=1e-9 * scale)


def test_stabilize_at_zero():
    assert (
        stabilize(torch.tensor(0.0), 1e-3) == 1e-3
        and stabilize(torch.tensor(-0.0), 1e-3) == 1e-3
        and stabilize(torch.tensor(-1.0), 0.5) == -1.5
    )


@check
@given(st.integers(2, 8), st.floats(-3, 3))
def test_structural_bias(n, value):
    "Uniform logits, equal values: LOO is zero, relevance is not."
    row = attention_row(
        torch.zeros(n).double(), torch.full((n,), value).double()
    )
    assert row['loo'].abs().max() < 1e-9
    assert torch.allclose(
        row['cp_lrp'], torch.full((n,), value / n).double()
    ) and torch.allclose(row['attn_lrp'], row['cp_lrp'] / 2)


@check
@given(st.integers(2, 6), seeds, st.floats(5, 50))
def test_linearization_error(n, seed, shift):
    "softmax(z) = softmax(z + c): LOO and CP-LRP stay, equation 5 moves with c."
    z = rand(seed, n)
    v = rand(seed + 1, n)
    a = attention_row(z, v)
    b = attention_row(z + shift, v)
    assert torch.allclose(a['loo'], b['loo'], atol=1e-8) and torch.allclose(
        a['cp_lrp'], b['cp_lrp'], atol=1e-8
    )
    expected = a['attn_lrp_z'] + shift * a['A'] * (v - a['o']) / 2
    assert torch.allclose(b['attn_lrp_z'], expected, atol=1e-7)


def test_scale_gradient_and_constant_are_identities_forwards():
    x = rand(0, 5).requires_grad_()
    assert (
        torch.equal(scale_gradient(x, 0.3), x)
        and torch.equal(constant(x), x)
        and not constant(x).requires_grad
    )
