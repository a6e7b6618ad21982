"""Every rule twice: the fast gradient form against the naive explicit one, on
random shapes, in float64, as ε → 0 and at a visible ε. What follows from the rules
is asserted in the chapters 02 and 03.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lrp_loo.core.tensors import stabilize
from lrp_loo.lrp.rules import epsilon_rule, identity_rule, layer_norm_rule
from lrp_loo.paper.rules import epsilon_naive, product_naive, product_rule
from lrp_loo.paper.rules import relevance, softmax_naive

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
@given(st.integers(1, 3), sizes, sizes, sizes, seeds, epss, st.booleans())
def test_a_product_is_equation_3_and_scaled_equation_4(
    batch, j, i, p, seed, eps, scaled
):
    "Equation 4's Z = QKᵀ/√d has V = Kᵀ."
    A = rand(seed, batch, j, i).requires_grad_()
    V = rand(seed + 1, batch, i, p).requires_grad_()
    R = rand(seed + 2, batch, j, p)
    scale = i**-0.5 if scaled else 1.0
    y = product_rule(lambda a, b: a @ b * scale, A, V, eps)
    both = relevance(y, [A, V], R, eps=NO_EPS)
    naives = product_naive(A.detach(), V.detach(), R, scale=scale, eps=eps)
    for fast, naive in zip(both, naives, strict=True):
        equal(fast, naive, y.detach(), R)


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


@check
@given(st.integers(2, 9), seeds)
def test_layer_norm_is_linear_at_a_constant_deviation(n, seed):
    x = rand(seed, n).requires_grad_()
    R, w, b = (rand(seed + k, n) for k in (1, 2, 3))
    y = layer_norm_rule(x, (n,), w, b, 1e-9)
    assert torch.equal(y, F.layer_norm(x, (n,), w, b, 1e-9))
    (fast,) = relevance(y, x, R, eps=NO_EPS)
    std = (x.detach().var(unbiased=False) + 1e-9).sqrt()
    M = (torch.eye(n, dtype=x.dtype) - 1 / n) * (w / std)
    naive = epsilon_naive(x.detach(), M, R, b, NO_EPS)
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
