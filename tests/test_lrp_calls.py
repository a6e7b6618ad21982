"""LRP's rules for a torch call however it is written (keywords, in place, on views), and
numbers that lose their gradient: right by a second derivation, or refused by name.

The second derivations need no rule: autograd with `detach` where a rule holds something
constant, and directional differences in float64.
"""

import copy
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.activations import NewGELUActivation

from lrp_loo import attn_lrp, cp_lrp, lrp_rules
from lrp_loo.lrp.composite import gradient
from lrp_loo.lrp.table import RULES
from lrp_loo.paper.conservation import AddedConstants

X = torch.randn(4, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    "f of two linear functions of the input, and a linear layer."

    def __init__(self, f):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.out = (nn.Linear(6, 6).double() for _ in range(3))
        self.f = f
        self.requires_grad_(False)

    def forward(self, x):
        return self.out(self.f(self.a(x), self.b(x)))


def gradient_at(f, composite=None):
    "Return the gradient of the sum of squares under a rule set; None: no rules."
    model, x = Two(f), X.clone().requires_grad_()
    if composite is None:
        y = model(x)
    else:
        with lrp_rules(model, composite, strict=True):
            y = model(x)
    return torch.autograd.grad(y.square().sum(), x)[0]


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


# ---- products


def halves(product):
    "Return the product whose plain gradient is half to each factor."

    def f(a, b):
        return (product(a, b.detach()) + product(a.detach(), b)) / 2

    return f


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.double)


def in_place_by_parts(a, b):
    "Multiply halves of one tensor in place, through views."
    c = a.clone()
    c[:2].mul_(b[:2])
    c.view(-1)[12:].mul_(b.reshape(-1)[12:])
    return c


def written_by_parts(a, b):
    "Write products into a table that is made first."
    table = torch.empty_like(a)
    table[:2] = a[:2] * b[:2]
    table[2:].copy_(torch.mul(a[2:], other=b[2:]))
    return table


PRODUCTS = {
    'matrix': (
        lambda a, b: a.mT @ b,
        [
            lambda a, b: torch.matmul(input=a.mT, other=b),
            lambda a, b: a.mT.matmul(other=b),
            lambda a, b: torch.mm(a.mT, mat2=b),
            lambda a, b: torch.bmm(input=a.mT[None], mat2=b[None])[0],
            lambda a, b: torch.linalg.matmul(a.mT, b),
            lambda a, b: torch.tensordot(a.mT, b, 1),
            lambda a, b: torch.einsum('ij,jk->ik', [a.mT, b]),
            lambda a, b: torch.addmm(zeros(6, 6), mat1=a.mT, mat2=b),
            lambda a, b: zeros(6, 6).addmm(a.mT, mat2=b),
            lambda a, b: zeros(6, 6).addmm_(mat1=a.mT, mat2=b),
            lambda a, b: torch.baddbmm(
                zeros(1, 6, 6), batch1=a.mT[None], batch2=b[None]
            )[0],
            lambda a, b: zeros(1, 6, 6).baddbmm_(a.mT[None], batch2=b[None])[0],
            lambda a, b: torch.addbmm(zeros(6, 6), batch1=a.mT[None], batch2=b[None]),
            lambda a, b: zeros(6, 6).addbmm_(a.mT[None], b[None]),
            # a layer whose weight is made of the input
            lambda a, b: F.linear(a.mT, b.mT),
            lambda a, b: F.linear(input=a.mT, weight=b.mT),
            lambda a, b: F.conv1d(a[None], weight=b.mT[:, :, None])[0].mT,
        ],
    ),
    'entries': (
        lambda a, b: a * b,
        [
            lambda a, b: torch.mul(input=a, other=b),
            lambda a, b: torch.multiply(a, other=b),
            lambda a, b: a.clone().mul_(other=b),
            lambda a, b: a.clone().multiply_(b),
            lambda a, b: torch.addcmul(zeros(4, 6), tensor1=a, tensor2=b),
            lambda a, b: zeros(4, 6).addcmul_(a, tensor2=b),
            in_place_by_parts,
            written_by_parts,
        ],
    ),
    'matrix and vector': (
        lambda a, b: (b @ a[0])[:, None].expand(4, 6),
        [
            lambda a, b: torch.mv(b, vec=a[0])[:, None].expand(4, 6),
            lambda a, b: torch.addmv(zeros(4), mat=b, vec=a[0])[:, None].expand(4, 6),
            lambda a, b: zeros(4).addmv_(b, vec=a[0])[:, None].expand(4, 6),
        ],
    ),
    'outer': (
        lambda a, b: a[0][:, None] * b[0],
        [
            lambda a, b: torch.outer(a[0], vec2=b[0]),
            lambda a, b: torch.ger(a[0], vec2=b[0]),
            lambda a, b: torch.addr(zeros(6, 6), vec1=a[0], vec2=b[0]),
            lambda a, b: zeros(6, 6).addr_(a[0], vec2=b[0]),
        ],
    ),
    'inner': (
        lambda a, b: (a[0] * b[0]).sum().expand(6),
        [
            lambda a, b: torch.dot(a[0], tensor=b[0]).expand(6),
            lambda a, b: torch.vdot(a[0], other=b[0]).expand(6),
            lambda a, b: torch.inner(a[0], other=b[0]).expand(6),
            lambda a, b: torch.linalg.vecdot(a[0], y=b[0]).expand(6),
        ],
    ),
}
WRITTEN = [
    (kind, i) for kind, (_, calls) in PRODUCTS.items() for i in range(len(calls))
]


@pytest.mark.parametrize('kind, i', WRITTEN)
def test_a_product_gives_half_to_each_factor_however_it_is_written(kind, i):
    product, calls = PRODUCTS[kind]
    assert_same(gradient_at(calls[i], attn_lrp()), gradient_at(halves(product)))
    assert_same(gradient_at(calls[i], gradient()), gradient_at(product))


def test_a_bias_of_a_product_is_recorded_when_it_is_given_by_name():
    "Conservation reads it; the product is of the input and a weight."
    weight, bias = torch.ones(6, 6, dtype=torch.double), torch.ones(6).double()
    for f in (
        lambda x: F.linear(x, weight=weight, bias=bias),
        lambda x: F.linear(input=x, weight=weight, bias=bias),
        lambda x: torch.addmm(input=bias, mat1=x, mat2=weight),
        lambda x: F.layer_norm(x, (6,), bias=bias),
        lambda x: F.layer_norm(input=x, normalized_shape=(6,), bias=bias),
    ):
        x = X.clone().requires_grad_()
        added = AddedConstants()
        composite = replace(attn_lrp(), rules=added.rules(RULES))
        with lrp_rules(nn.Identity(), composite):
            f(x)
        ((kind, copied),) = added
        assert kind == 'biases'
        assert torch.equal(copied, bias)


# ---- other functions


def ratio(f):
    "Return f with f(x)/x as its gradient."
    return lambda a, b: a * (f(a) / a).detach()


def normed(a, b):
    "Return LayerNorm with a constant standard deviation."
    std = (a.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt().detach()
    return (a - a.mean(-1, keepdim=True)) / std


FUNCTIONS = {
    'gelu': (ratio(F.gelu), [lambda a, b: F.gelu(input=a)]),
    'silu': (
        ratio(F.silu),
        [
            lambda a, b: F.silu(input=a),
            lambda a, b: F.silu(input=a.clone(), inplace=True),
            lambda a, b: F.silu(a[:], True),
        ],
    ),
    'square': (
        ratio(torch.square),
        [
            lambda a, b: torch.pow(input=a, exponent=2),
            lambda a, b: torch.square(input=a),
            lambda a, b: a.clone().pow_(2),
            lambda a, b: a.clone().pow_(exponent=2),
            lambda a, b: a.clone().square_(),
            lambda a, b: torch.Tensor.__ipow__(a.clone(), 2),
        ],
    ),
    'root': (
        lambda a, b: b * (a**2 + 1).rsqrt().detach(),
        [
            lambda a, b: b * torch.rsqrt(input=a**2 + 1),
            lambda a, b: b * (a**2 + 1).rsqrt_(),
            lambda a, b: b * (a**2 + 1).pow_(-0.5),
            lambda a, b: b * torch.pow(input=a**2 + 1, exponent=-0.5),
        ],
    ),
    'softmax': (
        lambda a, b: (a.softmax(-1).detach() * b + a.softmax(-1) * b.detach()) / 2,
        [
            lambda a, b: torch.softmax(input=a[None, None], dim=-1)[0, 0] * b,
            lambda a, b: F.softmax(input=a[None, None], dim=-1)[0, 0] * b,
        ],
    ),
    'norm': (
        normed,
        [
            lambda a, b: F.layer_norm(input=a, normalized_shape=(6,)),
            lambda a, b: torch.layer_norm(a, normalized_shape=(6,)),
        ],
    ),
    'linear': (
        lambda a, b: a / 2 - b,
        [
            lambda a, b: torch.div(input=a, other=2) - b,
            lambda a, b: torch.sub(input=torch.true_divide(a, other=2), other=b),
        ],
    ),
}
WRITTEN = [
    (kind, i) for kind, (_, calls) in FUNCTIONS.items() for i in range(len(calls))
]


@pytest.mark.parametrize('kind, i', WRITTEN)
def test_a_function_has_its_rule_however_it_is_written(kind, i):
    by_hand, calls = FUNCTIONS[kind]
    assert_same(gradient_at(calls[i], attn_lrp()), gradient_at(by_hand))


@pytest.mark.parametrize(
    'name, f',
    [
        ('layer_norm', lambda a, b: F.layer_norm(a, (6,), weight=b[0])),
        ('rms_norm', lambda a, b: F.rms_norm(a, (6,), b[0])),
        ('clamp', lambda a, b: torch.clamp(a, min=b)),
        ('prelu', lambda a, b: F.prelu(a, b[0])),
    ],
)
def test_a_weight_or_bound_made_of_the_input_has_no_rule(name, f):
    with pytest.raises(NotImplementedError, match=f'no rule for {name} '):
        gradient_at(f, attn_lrp())


# ---- numbers that lose their gradient


def after(change):
    "Return a·b after a change of a under no_grad."

    def f(a, b):
        with torch.no_grad():
            change(a, b)
        return a * b

    return f


def after_all(change):
    "Return a·b after a change of a with gradients on."

    def f(a, b):
        change(a, b)
        return a * b

    return f


def set_data(a, b):
    a.data = a.data * 3


def read_by_another_view(a, b):
    view = a[:]
    after(lambda a, b: a.mul_(2))(a, b)
    return view * b


def partly_lost(a, b):
    table = a.detach().clone()
    table[0] = b[0]
    return table * b


def to_buffer(a, b):
    buffer = zeros(4, 6)
    after(lambda a, b: buffer.copy_(a))(a, b)
    return buffer * b


LOST = {
    'detach': [
        lambda a, b: a.detach() * b,
        lambda a, b: a.detach().requires_grad_() * b,
        lambda a, b: a.detach().view(torch.int64).clone().view(torch.double) * b,
        lambda a, b: copy.deepcopy(a.detach()) * b,
        lambda a, b: (a + (a.round() - a).detach()) * b,
        partly_lost,
    ],
    'data': [lambda a, b: a.data * b, lambda a, b: a.cpu().data.clone() * b],
    'set_data|data': [after_all(set_data)],
    'tensor': [lambda a, b: torch.tensor(a) * b],
    'new_tensor': [lambda a, b: a.new_tensor(a) * b],
    'full_like|item': [lambda a, b: torch.full_like(b, a.sum().item()) * b],
    'item': [lambda a, b: a.sum().item() * b, lambda a, b: b * (1 / a.sum().item())],
    '__float__': [
        lambda a, b: float(a.sum()) * b,
        lambda a, b: torch.tensor([float(x) for x in a[0]]).double() * b,
        lambda a, b: torch.linspace(0, float(a.sum()), 6).double() * b,
    ],
    '__int__': [lambda a, b: int(a.sum() * 100) / 100 * b],
    '__complex__': [lambda a, b: complex(a.sum()).real * b],
    'tolist': [
        lambda a, b: torch.tensor(a.tolist()).double() * b,
        lambda a, b: a.tolist()[0][0] * b,
        lambda a, b: torch.tensor(np.array(a.tolist())) * b,
    ],
    'detach|numpy': [
        lambda a, b: torch.from_numpy(a.detach().numpy()) * b,
        lambda a, b: torch.as_tensor(np.tanh(a.detach().numpy())) * b,
        after_all(lambda a, b: a.detach().numpy().__imul__(2)),
        lambda a, b: torch.from_numpy(np.asarray(a.detach())) * b,
        lambda a, b: torch.from_dlpack(a.detach()) * b,
        lambda a, b: pickle.loads(pickle.dumps(a.detach())) * b,
    ],
    'no_grad|overwrites activations': [
        after(lambda a, b: a.mul_(2)),
        after(lambda a, b: a.__setitem__(0, 0)),
        after(lambda a, b: a.__setitem__(0, b[0])),
        after(lambda a, b: a.copy_(b)),
        after(lambda a, b: torch.mul(a, 2, out=a)),
        read_by_another_view,
        to_buffer,
        lambda a, b: torch.no_grad()(torch.neg)(a) * b,
        lambda a, b: torch.inference_mode()(torch.neg)(a).clone() * b,
    ],
    'mul_|__setitem__': [
        after_all(lambda a, b: a.data.mul_(2)),
        after_all(lambda a, b: a.data.__setitem__(0, 1.0)),
    ],
    'zero_|mul_': [
        after_all(lambda a, b: a.detach().mul_(2)),
        after_all(lambda a, b: a.detach()[:2].zero_()),
        after_all(lambda a, b: a[1:].detach().mul_(2)),
    ],
}
LOST = [(names, f) for names, fs in LOST.items() for f in fs]


@pytest.mark.filterwarnings('ignore:.*__array__|Converting|.*copy construct')
@pytest.mark.parametrize('composite', [attn_lrp(), gradient()])
@pytest.mark.parametrize('names, f', LOST)
def test_a_number_that_loses_its_gradient_is_refused_by_name(names, f, composite):
    "Autograd sees another derivative than a difference does."
    with pytest.raises(ValueError, match=f'no gradient comes through .*({names})'):
        gradient_at(f, composite)
    if names != '__int__':  # whose derivative is 0
        assert not is_right(gradient_at(f), f)


def is_right(g, f):
    "Compare a gradient with a difference in a random direction."
    v = torch.randn(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        plus, minus = (Two(f)(X + s * v).square().sum() for s in (1e-5, -1e-5))
    slope = (plus - minus) / 2e-5
    return bool(((g * v).sum() - slope).abs() < 1e-5 * slope.abs())


NOT_LOST = [
    lambda a, b: torch.as_tensor(a) * b,
    lambda a, b: b * (a > 0),
    lambda a, b: torch.where(a.detach() > 0, b, 0.0),
    lambda a, b: b * a.argmax(-1, keepdim=True),
    lambda a, b: b[a[:, 0].argsort().tolist()],
    lambda a, b: b if (a > 100).any().item() else -b,
    lambda a, b: b * int(a.shape[0]) + torch.tensor(a.shape[1]),
    lambda a, b: a.detach().resize_(4, 6).shape[0] * b,
    lambda a, b: b + torch.full_like(a, 2.0) + a.new_ones(6),
]


@pytest.mark.parametrize('f', NOT_LOST)
def test_what_only_selects_is_no_loss(f):
    assert is_right(gradient_at(f, gradient()), f)


@pytest.mark.filterwarnings('ignore:Converting')  # torch warns once
def test_numbers_may_leave_after_the_model_has_returned():
    x = X.clone().requires_grad_()
    model = Two(torch.mul)
    with lrp_rules(model, attn_lrp(), strict=True):
        y = model(x)
        assert y.sum().item() == float(y.sum())
        assert y.detach().numpy().shape == (4, 6)
    # without a gradient nothing can be lost
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # no operation carries a gradient
        with lrp_rules(Two(lambda a, b: a.sum().item() * b), attn_lrp()) as rules:
            rules.model(X)


# ---- checkpoints, several passes, shared tensors


def checkpointed(use_reentrant):
    def f(a, b):
        options = dict(use_reentrant=use_reentrant)
        return checkpoint(lambda a, b: F.gelu(a) * b, a, b, **options)

    return f


@pytest.mark.parametrize('use_reentrant', [False, True])
@pytest.mark.parametrize('composite', [attn_lrp(), cp_lrp(), gradient()])
def test_a_checkpoint_is_refused_by_name(composite, use_reentrant):
    "Its second forward would run without the rules; without rules it is right."
    f = checkpointed(use_reentrant)
    if composite == gradient() and not use_reentrant:
        assert_same(gradient_at(f, composite), gradient_at(f))
        return
    with pytest.raises(ValueError, match=r'torch\.utils\.checkpoint.*switch it off'):
        gradient_at(f, composite)


def test_saved_tensors_may_be_moved():
    "Hooks on saved tensors that compute nothing again change nothing."

    def moved(a, b):
        with torch.autograd.graph.save_on_cpu():
            return F.gelu(a) * b

    def plain(a, b):
        return F.gelu(a) * b

    assert_same(gradient_at(moved, attn_lrp()), gradient_at(plain, attn_lrp()))


def test_a_hook_is_no_checkpoint_by_the_name_of_its_module():
    def unchanged(x):
        return x

    unchanged.__module__ = 'somebodys.checkpoint_files'

    def hooked(a, b):
        with torch.autograd.graph.saved_tensors_hooks(unchanged, unchanged):
            return F.gelu(a) * b

    def plain(a, b):
        return F.gelu(a) * b

    assert_same(gradient_at(hooked, attn_lrp()), gradient_at(plain, attn_lrp()))


def test_two_backward_passes_give_the_same():
    x = X.clone().requires_grad_()
    model = Two(lambda a, b: F.layer_norm(F.gelu(a) * b, (6,)).softmax(-1) @ b.mT @ a)
    with lrp_rules(model, attn_lrp(), strict=True):
        y = model(x).square().sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    y.backward()
    assert torch.equal(x.grad, first)


def test_a_tensor_that_two_modules_read_keeps_both_shares():
    "x·x by two modules gives half twice, as does the square of one."
    shared = Two(lambda a, b: nn.Identity()(a) * nn.Dropout(0.0)(a) + b)
    x = X.clone().requires_grad_()
    with lrp_rules(shared, attn_lrp(), strict=True):
        y = shared(x)
    (g,) = torch.autograd.grad(y.square().sum(), x)
    assert_same(g, gradient_at(lambda a, b: a * a.detach() + b))


def test_an_error_in_the_middle_leaves_no_mark_behind():
    "The same tensors are read by another model afterwards, without rules and with."
    kept = []

    def fails(a, b):
        kept.extend((F.gelu(a), b))
        raise ZeroDivisionError

    x = X.clone().requires_grad_()
    with pytest.raises(ZeroDivisionError), lrp_rules(Two(fails), attn_lrp()):
        Two(fails)(x)
    a, b = kept
    gelu_and_product = a * b  # outside of the rules: torch's own product
    g, expected = (
        torch.autograd.grad(y.sum(), (a, b), retain_graph=True)
        for y in (gelu_and_product, a.detach() * b + a * b.detach())
    )
    for got, by_hand in zip(g, expected, strict=True):
        assert_same(got, by_hand)
    with lrp_rules(nn.Identity(), cp_lrp(), strict=True) as rules:
        held = a * b  # still a gate
    assert rules.report().rule.tolist() == ['constant gate']
    assert torch.autograd.grad(held.sum(), a, allow_unused=True) == (None,)


def test_a_part_of_a_gate_is_read_and_the_gate_stays_one():
    "CP-LRP holds silu(a) constant, also after a view of it was taken."

    def f(a, b):
        gate = F.silu(a)
        gate[:2], gate.view(-1), list(gate)
        return gate * b

    g = gradient_at(f, cp_lrp())
    assert_same(g, gradient_at(lambda a, b: F.silu(a).detach() * b))


def test_a_formula_of_several_calls_is_a_gate():
    "CP-LRP holds the output of GPT-2's GELU constant, as T5's feed-forward multiplies it."
    model, x = Two(None), X.clone().requires_grad_()
    model.act = NewGELUActivation()
    model.f = lambda a, b: model.act(a) * b
    with lrp_rules(model, cp_lrp(), strict=True):
        y = model(x)
    (g,) = torch.autograd.grad(y.square().sum(), x)
    assert_same(g, gradient_at(lambda a, b: model.act(a).detach() * b))


@pytest.mark.parametrize('rules', [attn_lrp(), cp_lrp()])
def test_weights_that_are_trained_are_no_factors(rules):
    "A fused attention of torch divides one parameter into three weights."
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(6, 2, batch_first=True).double()

    def relevance(is_trained):
        x = X.clone().requires_grad_()
        attention.requires_grad_(is_trained)
        with lrp_rules(attention, rules, strict=True):
            y = attention(x[None], x[None], x[None])[0]
        return torch.autograd.grad(y.square().sum(), x)[0]

    assert_same(relevance(True), relevance(False))
