"Canonized products on other programs than the notebook's, a norm's own gradient, plain options."

from functools import cache

import pytest
import torch
from families import FAMILIES, family_tasks, random_inputs, random_model, relevance_of
from test_lrp import close
from torch import nn
from torch.nn import functional as F

from lrp_lab.beyond import swap_modules
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import Composite, attn_lrp, canonized_lrp, gradient
from lrp_loo.lrp.conservation import conservation
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.call import watch_embeddings

# built once; a test that changes a model builds its own
shared_model = cache(random_model)


def task_of(family):
    return FAMILIES[family].tasks[-1] if family == 'ViT' else 'class'


@cache
def canonized_by_call(family, task):
    "Relevance under eager attention, call by call; the rules."
    model = shared_model(family, task)
    return relevance_of(model, random_inputs(model), canonized_lrp(), strict=True)


every_family = pytest.mark.parametrize('family,task', family_tasks())


@every_family
def test_a_familys_logit_is_taken_up(family, task):
    "By words, biases, constants and softmax."
    m = shared_model(family, task)
    total = conservation(m, random_inputs(m), canonized_lrp())
    assert abs(total['remainder']) < 1e-5 * max(map(abs, total.values()))


@pytest.mark.parametrize(
    'family,task', [(f, t) for f, t in family_tasks() if FAMILIES[f].fused]
)
def test_fused_attention_is_eager_attention_call_by_call(family, task):
    fused = shared_model(family, task, 'sdpa')
    inputs = random_inputs(fused)
    in_one = relevance_of(fused, inputs, canonized_lrp(), strict=True)
    close(in_one.R, canonized_by_call(family, task).R, 1e-5)


@every_family
def test_products_are_counted_in_every_family(family, task):
    """Gemma 2 puts a tanh, an activation, between QKᵀ and the softmax, so that
    AV is shared by halves, as in AttnLRP.
    """
    rules = canonized_by_call(family, task).rules
    used = set(rules.report().rule)
    if FAMILIES[family].fused:
        assert {'1/2, 1/2', '2/3, 1/3'} <= used
    if family == 'Gemma 2':
        assert '2/3, 1/3' not in used


FOUR = pytest.mark.parametrize('family', ['BERT', 'GPT-2', 'Llama', 'ViT'])
WITH_EPSILON = canonized_lrp(eps=1e-2)


@FOUR
def test_epsilon_meets_no_product(family):
    "With an explicit ε eager is fused, too: it meets linear layers only."
    m, fused = (
        shared_model(family, task_of(family), attention)
        for attention in ('eager', 'sdpa')
    )
    inputs = random_inputs(m)
    R = relevance_of(m, inputs, WITH_EPSILON).R
    close(relevance_of(fused, inputs, WITH_EPSILON).R, R, 1e-5)


@FOUR
def test_checkpoints_keep_canonized_relevance(family):
    m = shared_model(family, task_of(family))
    inputs = random_inputs(m)
    kept = lrp_scores(m, None, [inputs], composite=WITH_EPSILON, checkpoint=True)
    close(kept.scores[0], relevance_of(m, inputs, WITH_EPSILON).R, 1e-5)


def test_a_third_each_in_one_attention_call():
    "Against autograd: a third of the true gradient at Q, at K and at V."

    class Attention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(*x.unbind(0))

    x = torch.randn(3, 1, 2, 5, 4, dtype=torch.double, requires_grad=True)
    (true,) = torch.autograd.grad(Attention()(x).square().sum(), x)
    with lrp_rules(m := Attention(), canonized_lrp()):
        y = m(x)
    (mine,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.allclose(mine, true / 3)


@pytest.mark.parametrize('composite', [canonized_lrp(), attn_lrp()])
def test_constant_queries_take_no_share(composite):
    """A learned query carries no relevance: K and V share, in one call and in
    steps.
    """

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.randn(1, 1, 2, 4, dtype=torch.double))
            self.fused = True

        def forward(self, x):
            if self.fused:
                return F.scaled_dot_product_attention(self.q, x * 1.0, x * 2.0)
            return torch.matmul(
                torch.matmul(self.q, (x * 1.0).transpose(-2, -1)).div(2.0).softmax(-1),
                x * 2.0,
            )

    model = Pool()
    x = torch.randn(1, 1, 5, 4, dtype=torch.double, requires_grad=True)
    out = []
    for model.fused in (True, False):
        with lrp_rules(model, composite):
            y = model(x).sum()
        out.append(torch.autograd.grad(y, x)[0])
    assert torch.allclose(*out)


class Program(nn.Module):
    "A function of three operands, as a module that the rules can see."

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(*x.unbind(0))


def expect(f, want, composite=canonized_lrp()):
    "What share of the output each operand gets."
    x = (torch.rand(3, 4, dtype=torch.double) + 0.5).requires_grad_()
    with lrp_rules(m := Program(f), composite, strict=True):
        y = m(x).sum()
    shares = (x * torch.autograd.grad(y, x)[0]).sum(1) / y
    want = torch.tensor(want, dtype=torch.double)
    assert torch.allclose(shares, want)


THIRDS = [1 / 3] * 3


def in_place(a, b, c):
    t = a * 1.0
    t *= b
    t.mul_(c)
    return t


def through_a_buffer(a, b, c):
    t = torch.zeros_like(a)
    t[:] = a * b
    return t * c


def concatenated(a, b, c):
    return torch.cat([a * b, b * a]) * torch.cat([c, c])


def sum_of_like_terms(a, b, c):
    eye = torch.eye(4, dtype=torch.double)
    return torch.addmm((a * b)[None], a[None] * b[None], eye) * c


@pytest.mark.parametrize(
    'f', [in_place, through_a_buffer, concatenated, sum_of_like_terms]
)
def test_factors_are_counted_through_reused_tensors(f):
    expect(f, THIRDS)


def test_a_sum_of_unlike_terms_begins_again():
    "a once plus ab: c gets half, and the rest is a's and b's."
    eye = torch.eye(4, dtype=torch.double)

    def f(a, b, c):
        return torch.addmm(a[None], a[None] * b[None], eye) * c

    x = (torch.rand(3, 4, dtype=torch.double) + 0.5).requires_grad_()
    with lrp_rules(m := Program(f), canonized_lrp(), strict=True):
        y = m(x).sum()
    share = (x * torch.autograd.grad(y, x)[0])[2].sum() / y
    assert torch.allclose(share, torch.tensor(0.5, dtype=torch.double))


def gated(a, b, c):
    return (F.silu(a) * b) * c


@pytest.mark.parametrize('gate,want', [('half', THIRDS), ('constant', [0, 0.5, 0.5])])
def test_constant_gates_leave_the_count(gate, want):
    expect(gated, want, Composite('x', product='canonized', gate=gate))


class Fused(nn.Module):
    "The same norm in one call, under a name that says nothing."

    def __init__(self, norm):
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.variance_epsilon

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps)


@pytest.mark.parametrize('product', ['half', 'canonized', 'gradient'])
@pytest.mark.parametrize('activation', ['identity', 'gradient'])
def test_a_norm_has_its_own_gradient(product, activation):
    """layer_norm='gradient' means the norm's gradient, also where the norm is
    written out as x·rsqrt(mean x²), which is no product of two activations
    then.
    """
    c = Composite('x', product=product, activation=activation, layer_norm='gradient')
    model = random_model('Llama', dtype=torch.float32)
    inputs = random_inputs(model)
    written = relevance_of(model, inputs, c).R
    swap_modules(model, 'LlamaRMSNorm', Fused)
    close(relevance_of(model, inputs, c).R, written, 1e-3)


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'ViT'])
def test_no_rule_is_autograd(family):
    m = shared_model(family, task_of(family))
    inputs = random_inputs(m)
    with watch_embeddings(m) as seen:
        y = m(**inputs).logits[0]
    x = seen[0]
    by_hand = x * torch.autograd.grad(y.max(), x)[0]
    if x.ndim == 3:
        by_hand = by_hand.sum(-1)[0]
    else:
        by_hand = by_hand.sum(1).flatten()
    close(relevance_of(m, inputs, gradient()).R, by_hand, 1e-9)
