"""Every rule twice: the fast gradient form against the naive explicit one, on
random shapes, in float64, as ε → 0 and at a visible ε.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lrp_loo.core.tensors import stabilize
from lrp_loo.lrp.table import identity_rule, layer_norm_naive, layer_norm_rule
from lrp_loo.lrp.rules import (
    constant,
    epsilon_naive,
    epsilon_rule,
    product_naive,
    product_rule,
    relevance,
    scale_gradient,
    softmax_naive,
)

sizes = st.integers(1, 7)
seeds = st.integers(0, 10**6)
epss = st.sampled_from([0.0, 1e-12, 1e-3, 0.3])
functions = st.sampled_from([F.gelu, torch.tanh, F.relu, F.silu, F.elu])
check = settings(max_examples=40, deadline=None)
NO_EPS = 1e-300  # what divides zero by zero where nothing else does


def rand(seed, *shape):
    """Numbers whose sums stay away from zero on purpose nowhere: a relevance
    divides by them, so compare what is well conditioned.
    """
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=g)


def equal(a, b, y, R):
    "Relative to the largest contribution the denominators allow."
    largest = (R.abs() / stabilize(y, 1e-15).abs()).max()
    atol = 1e-6 * float(largest.clamp(min=1))
    assert torch.allclose(a, b, rtol=1e-6, atol=atol), (a - b).abs().max()


# each rule is its equation


@check
@given(sizes, sizes, seeds, epss, st.booleans())
def test_a_linear_layer_is_equation_1(n_in, n_out, seed, eps, bias):
    x = rand(seed, n_in).requires_grad_()
    W = rand(seed + 1, n_in, n_out)
    R = rand(seed + 2, n_out)
    b = rand(seed + 3, n_out) * bias
    y = epsilon_rule(x @ W + b, eps)
    (fast,) = relevance(y, x, R, eps=NO_EPS)
    naive = epsilon_naive(x.detach(), W, R, b, eps=max(eps, NO_EPS))
    equal(fast, naive, y.detach(), R)


@check
@given(st.integers(1, 3), sizes, sizes, sizes, seeds, epss)
def test_a_product_is_equation_3(batch, j, i, p, seed, eps):
    A = rand(seed, batch, j, i).requires_grad_()
    V = rand(seed + 1, batch, i, p).requires_grad_()
    R = rand(seed + 2, batch, j, p)
    y = product_rule(torch.matmul, A, V, eps)
    both = relevance(y, [A, V], R, eps=NO_EPS)
    naives = product_naive(A.detach(), V.detach(), R, eps=eps)
    for fast, naive in zip(both, naives, strict=True):
        equal(fast, naive, y.detach(), R)


@check
@given(sizes, sizes, st.integers(1, 8), seeds, epss)
def test_attention_logits_are_equation_4(n, m, d, seed, eps):
    "Z = QKᵀ/√d, for queries and for keys."
    Q = rand(seed, n, d).requires_grad_()
    K = rand(seed + 1, m, d).requires_grad_()
    R = rand(seed + 2, n, m)
    scale = d**-0.5
    y = product_rule(lambda a, b: a @ b.T * scale, Q, K, eps)
    of_q, of_k = relevance(y, [Q, K], R, eps=NO_EPS)
    naive_q, naive_k = product_naive(Q.detach(), K.detach().T, R, scale=scale, eps=eps)
    equal(of_q, naive_q, y.detach(), R)
    equal(of_k, naive_k.T, y.detach(), R)


@check
@given(sizes, st.integers(1, 9), seeds, st.floats(-30, 30))
def test_a_softmax_is_equation_5(j, i, seed, shift):
    Z = (rand(seed, j, i) + shift).requires_grad_()
    R = rand(seed + 1, j, i)
    (fast,) = relevance(Z.softmax(-1), Z, R, eps=NO_EPS)
    naive = softmax_naive(Z.detach(), R)
    assert torch.allclose(fast, naive, rtol=1e-6, atol=1e-9)


# a function of one input


@check
@given(sizes, seeds, functions, st.booleans())
def test_the_one_input_of_a_function_gets_all(n, seed, f, at_zero):
    x = rand(seed, n)
    if at_zero:
        x[0] = 0.0
    x.requires_grad_()
    R = rand(seed + 1, n)
    y = identity_rule(f, x)
    assert torch.equal(y, f(x))
    (got,) = relevance(y, x, R, eps=1e-15)
    expected = torch.where(y == 0, 0.0, R).detach()
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-9)
    assert not at_zero or y[0] == got[0] == 0


# LayerNorm


def norm_parameters(n, seed, affine):
    "Weight and bias as LayerNorm takes them, and as numbers."
    if affine:
        weight, bias = rand(seed, n), rand(seed + 1, n)
        return (weight, bias), (weight, bias)
    ones = torch.ones(n, dtype=torch.double)
    return (None, None), (ones, 0 * ones)


@check
@given(st.integers(2, 9), seeds, st.booleans())
def test_layer_norm_is_linear_at_a_constant_deviation(n, seed, affine):
    x = rand(seed, n).requires_grad_()
    R = rand(seed + 1, n)
    given_, numbers = norm_parameters(n, seed + 2, affine)
    y = layer_norm_rule(x, (n,), *given_, 1e-9)
    assert torch.equal(y, F.layer_norm(x, (n,), *given_, 1e-9))
    (fast,) = relevance(y, x, R, eps=NO_EPS)
    naive = layer_norm_naive(x.detach(), *numbers, R, ln_eps=1e-9, eps=NO_EPS)
    equal(fast, naive, y.detach(), R)


def test_layer_norm_hands_parameters_their_plain_gradient():
    x = rand(0, 4, 5, 6)
    parameters = [rand(seed, 6).requires_grad_() for seed in (1, 2)]
    g = rand(9, 4, 5, 6)
    ours, plain = (
        torch.autograd.grad(f(x, (6,), *parameters, 1e-5), parameters, g)
        for f in (layer_norm_rule, F.layer_norm)
    )
    for a, b in zip(ours, plain, strict=True):
        assert torch.allclose(a, b)


# what follows from the rules


def linear_network(widths, seed):
    "A function of (x, what is done to each layer's output)."
    pairs = zip(widths, [*widths[1:], 1], strict=True)
    Ws = [rand(seed + k, a, b) for k, (a, b) in enumerate(pairs)]

    def f(x, rule=lambda y: y):
        for W in Ws:
            x = rule(x @ W)
        return x[..., 0]

    return f


@check
@given(st.lists(sizes, min_size=2, max_size=5), seeds)
def test_purely_linear_networks_relevance_is_loo(widths, seed):
    x = rand(seed, widths[0]).requires_grad_()
    f = linear_network(widths, seed + 1)
    (R,) = relevance(f(x, lambda y: epsilon_rule(y, 0.0)), x)
    with torch.no_grad():
        loo = f(x) - f(x * (1 - torch.eye(len(x))))
    assert torch.allclose(R, loo, rtol=1e-9, atol=1e-9)


def attention_row(z, v):
    "LOO, and the relevance that reaches each key's logit and value under both rules."
    z, v = (t.clone().requires_grad_() for t in (z, v))
    A = z.softmax(-1)
    R_z, R_v = relevance(product_rule(torch.matmul, A, v), [z, v])
    (cp,) = relevance(torch.matmul(constant(A), v), v)
    A, o = A.detach(), (A @ v).detach()
    return dict(A=A, o=o, loo=A * (v.detach() - o) / (1 - A), z=R_z, v=R_v, cp=cp)


@check
@given(st.integers(2, 8), st.floats(-3, 3))
def test_equal_values_have_no_loo_and_equal_shares_of_relevance(n, value):
    "The structural bias: relevance where LOO has none."
    values = torch.full((n,), value, dtype=torch.double)
    row = attention_row(torch.zeros(n, dtype=torch.double), values)
    assert row['loo'].abs().max() < 1e-9
    assert torch.allclose(row['cp'], values / n)
    assert torch.allclose(row['z'] + row['v'], values / n / 2)


@check
@given(st.integers(2, 6), seeds, st.floats(5, 50))
def test_shifted_logits_move_equation_5_by_the_shift_and_nothing_else(n, seed, shift):
    "softmax(z) = softmax(z + c): the error of linearizing a softmax."
    z, v = rand(seed, n), rand(seed + 1, n)
    a, b = attention_row(z, v), attention_row(z + shift, v)
    assert torch.allclose(a['loo'], b['loo'], atol=1e-8)
    assert torch.allclose(a['cp'], b['cp'], atol=1e-8)
    expected = a['z'] + shift * a['A'] * (v - a['o']) / 2
    assert torch.allclose(b['z'], expected, atol=1e-7)


# small parts


def test_what_changes_a_gradient_leaves_the_value():
    x = rand(0, 5).requires_grad_()
    scaled = scale_gradient(x, 0.3)
    assert torch.equal(scaled, x) and torch.equal(constant(x), x)
    (g,) = torch.autograd.grad(scaled.sum(), x)
    assert torch.allclose(g, torch.full_like(g, 0.3))
    assert not constant(x).requires_grad
