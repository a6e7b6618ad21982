"Products by another kernel: the same numbers and gradients, and who sees which calls."

import copy

import pytest
import torch
from conftest import shallow_demo
from families import random_inputs, random_model
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lrp_loo import explain, load_demo
from lrp_loo.loo.droppable import on_every_core
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.lrp.layerwise import graph_bytes
from lrp_loo.methods import METHODS
from lrp_loo.models import forward, products
from lrp_loo.models.encoding import encode
from lrp_loo.models.products import (
    FASTER,
    ProductRates,
    fast_products,
    product_kernel,
    product_of,
    product_rates,
)
from lrp_loo.stats import pearson

TEXT = (
    'nothing here is bad , and hardly anything is dull : a quiet film that'
    ' knows its people , keeps its distance and ends where it has to end ;'
    ' the rest of the evening may well belong to somebody else , and does'
)


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    "The kernel in question, also where it is not the faster one."
    if not product_rates().onednn:
        pytest.skip('this torch has no such product')
    monkeypatch.setenv('LRP_LOO_PRODUCTS', 'onednn')


@pytest.fixture
def taken(monkeypatch):
    "Shapes of what went to oneDNN."
    shapes = []
    kernel = products._onednn

    def counted(x, weight, bias=None):
        shapes.append(tuple(x.shape))
        return kernel(x, weight, bias)

    monkeypatch.setattr(products, '_onednn', counted)
    return shapes


def by_blas(monkeypatch, f):
    with monkeypatch.context() as patch:
        patch.setenv('LRP_LOO_PRODUCTS', 'blas')
        return f()


X = torch.randn(4, 20, 128, generator=torch.Generator().manual_seed(1))


LAID_OUT = {
    '3d': X,
    'strided': X[:, ::2],
    'turned': X.transpose(0, 1),
    'expanded': X[:, :1].expand(-1, 20, -1),
    '2d': X[0].repeat(2, 1),
    '4d': X.view(2, 2, 20, 128),
    'every second': torch.randn(50, 256)[:, ::2],
}


@pytest.mark.parametrize('lies', LAID_OUT)
@pytest.mark.parametrize('bias', [True, False])
def test_however_it_lies_in_memory(lies, bias, taken):
    x = LAID_OUT[lies]
    torch.manual_seed(0)
    layer = nn.Linear(128, 96, bias)
    with torch.no_grad(), fast_products():
        y = layer(x)
    assert taken == [tuple(x.shape)]
    exact = layer.double()(x.double())
    # roundings of 6e-8 in sums of 128 numbers
    assert y.shape == exact.shape
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)


def slope(layer, x):
    return torch.autograd.grad(layer(x).tanh().sum(), [x, *layer.parameters()])


def curvature(layer, x):
    (of_x,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
    return torch.autograd.grad(of_x.pow(2).sum(), [x, layer.weight])


def several_at_once(layer, x):
    y = layer(x).tanh()
    g = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad(y, x, g, is_grads_batched=True)


@pytest.mark.parametrize('gradient', [slope, curvature, several_at_once])
def test_gradients_are_torchs(taken, gradient):
    torch.manual_seed(0)
    layer = nn.Linear(128, 96)
    x = X.clone().requires_grad_()
    with fast_products():
        found = gradient(layer, x)
    assert taken
    for ours, theirs in zip(found, gradient(layer, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_no_gradient_of_weights_where_nobody_asks(monkeypatch):
    def must_not_run(ctx, g):
        raise AssertionError('the weights had their gradient computed')

    monkeypatch.setattr(products._OfWeights, 'backward', staticmethod(must_not_run))
    layer = nn.Linear(128, 96)
    x = X.clone().requires_grad_()
    with fast_products():
        y = layer(x)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    with pytest.raises(AssertionError, match='weights'):
        torch.autograd.grad(y.sum(), layer.weight)


NOT_FOR = {
    'few rows': (X[0, :1], nn.Linear(128, 96)),
    'two classes': (X, nn.Linear(128, 2)),
    'double': (X.double(), nn.Linear(128, 96).double()),
}


def test_what_it_is_not_for_goes_to_torch(taken):
    for kind, (x, layer) in NOT_FOR.items():
        with torch.no_grad(), fast_products():
            y = layer(x)
        assert not taken, kind
        assert torch.equal(y, layer(x))
    # a matrix that is added is no bias
    a, b, c = torch.randn(80, 96), torch.randn(80, 128), torch.randn(128, 96)
    with torch.no_grad(), fast_products():
        y = torch.addmm(a, b, c)
        scaled = torch.addmm(a[0], b, c, beta=2.0)
    assert not taken
    assert torch.equal(y, torch.addmm(a, b, c))
    assert torch.equal(scaled, torch.addmm(a[0], b, c, beta=2.0))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('has', [True, False])
def test_half_precision_is_rounded_once(dtype, has, taken, monkeypatch):
    "On a processor without instructions; with them it is torch's."
    without = set() if has else {torch.bfloat16, torch.float16}
    monkeypatch.setattr(products, '_without_instructions', lambda: without)
    monkeypatch.setattr(products, 'WIDENED', 1000)  # weights in several slices
    torch.manual_seed(0)
    layer = nn.Linear(128, 96).to(dtype).requires_grad_(False)
    x = X.to(dtype).requires_grad_()
    with fast_products():
        y = layer(x)
    assert bool(taken) != has
    (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert (y.dtype, g.dtype) == (dtype, dtype)
    if has:
        return
    wide = X.to(dtype).double().requires_grad_()
    exact = F.linear(wide, layer.weight.double(), layer.bias.double())
    wanted = torch.autograd.grad(exact, wide, torch.ones_like(exact))[0]
    for found, true in ((y, exact), (g, wanted)):
        # half a unit in the last place, and what single precision adds
        allowed = 0.51 * torch.finfo(dtype).eps * true.abs() + 1e-5
        assert ((found.double() - true).abs() <= allowed).all()
    many = torch.randn(3, *y.shape).to(dtype)
    (at_once,) = torch.autograd.grad(layer_of(layer, x), x, many, is_grads_batched=True)
    (one,) = torch.autograd.grad(layer_of(layer, x), x, many[1])
    assert torch.equal(at_once[1], one)


def layer_of(layer, x):
    with fast_products():
        return layer(x)


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'cp_lrp', 'removal'])
def test_half_precision_keeps_the_map(method):
    "LOO up to what rounding makes of two logits."
    model, tokenizer = load_demo('sst2')
    half = copy.deepcopy(model).bfloat16()
    (a,) = explain(model, tokenizer, TEXT, method, target=0)
    (b,) = explain(half, tokenizer, TEXT, method, target=0)
    content = a.is_content
    assert pearson(a.scores[content], b.scores[content].float()) > 0.99
    if method == 'loo':
        off = (a.scores - b.scores.float()).abs().max()
        assert 0 < off < 0.1 * a.scores.abs().max()


class Calls(TorchFunctionMode):
    "A mode of somebody else's."

    linear = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.linear += func is F.linear
        return func(*args, **(kwargs or {}))


def test_a_users_mode_sees_every_call(taken):
    model, _, enc = demo_example()
    with torch.no_grad(), Calls() as around:
        whole = forward(model, enc).logits
    assert around.linear and not taken
    with torch.no_grad():
        ours = forward(model, enc).logits
    assert taken
    torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-5)


def test_under_autocast_torch_computes(taken):
    layer = nn.Linear(128, 96)
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        y = product_of(F.linear, (X, layer.weight, layer.bias), {})
    assert y.dtype == torch.bfloat16
    assert not taken


def demo_example(name='sst2'):
    "A trained model and a text."
    model, tokenizer = shallow_demo(name)
    return model, tokenizer, encode(model, tokenizer, TEXT)


def gpt2_example():
    "Products by addmm, random weights."
    sizes = dict(n_embd=128, n_head=4, n_inner=256)
    model = random_model('GPT-2', dtype=torch.float32, **sizes)
    return model, None, random_inputs(model, n=40)


EXAMPLES = {
    'encoder': demo_example,
    'decoder': lambda: demo_example('reviews-sst2'),
    'addmm': gpt2_example,
}


@pytest.mark.parametrize('example', EXAMPLES)
@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'cp_lrp', 'removal'])
def test_a_models_maps_are_the_same(example, method, taken, monkeypatch):
    model, tokenizer, enc = EXAMPLES[example]()

    def scores():
        return METHODS[method](model, tokenizer, [enc]).scores[0]

    ours = scores()
    assert taken
    plain = by_blas(monkeypatch, scores)
    # roundings of two layers, at the scale of the largest score
    assert (ours - plain).abs().max() <= 1e-4 * plain.abs().max()


def test_a_report_names_the_same_calls_and_a_graph_keeps_no_more(monkeypatch):
    model, _, enc = demo_example()

    def report():
        with lrp_rules(model, attn_lrp()) as rules:
            kept = graph_bytes(lambda: forward(model, enc))
        return rules.report(), kept

    ours, kept = report()
    plain, own = by_blas(monkeypatch, report)
    assert ours.equals(plain)
    assert kept <= 1.02 * own


def test_other_threads_take_it_too(taken):
    model, _, enc = demo_example()

    def logits(_):
        with torch.no_grad():
            return forward(model, enc).logits

    alone = logits(0)
    before = len(taken)
    both = on_every_core(logits, [(0,), (1,)], 2)
    assert len(taken) == 3 * before
    for one in both:
        torch.testing.assert_close(one, alone, rtol=1e-5, atol=1e-6)


def test_torchs_own_switch_and_the_users_are_heeded(monkeypatch):
    with torch.backends.mkldnn.flags(enabled=False):
        assert product_kernel() == 'blas'
    assert product_kernel() == 'onednn'
    monkeypatch.setenv('LRP_LOO_PRODUCTS', 'blas')
    assert product_kernel() == 'blas'


@pytest.mark.parametrize('rates', [(1.0, 0.99 * FASTER), (1.0, 0.0)])
def test_a_kernel_that_is_level_is_left(rates, monkeypatch):
    monkeypatch.setenv('LRP_LOO_PRODUCTS', 'auto')
    monkeypatch.setattr(products, 'product_rates', lambda: ProductRates(*rates))
    assert product_kernel() == 'blas'


def test_a_torch_without_it_is_no_error_and_other_numbers_are_not_taken(monkeypatch):
    kernel = products._onednn
    monkeypatch.setattr(products, '_onednn', lambda *a: kernel(*a) * 1.001)
    assert product_rates.__wrapped__().onednn == 0

    def missing(x, weight, bias=None):
        raise AttributeError('no such operation')

    monkeypatch.setattr(products, '_onednn', missing)
    rates = product_rates.__wrapped__()
    assert rates.onednn == 0
    monkeypatch.setattr(products, 'product_rates', lambda: rates)
    with pytest.raises(ValueError, match='no such product'):
        product_kernel()
    monkeypatch.setenv('LRP_LOO_PRODUCTS', 'auto')
    assert product_kernel() == 'blas'
