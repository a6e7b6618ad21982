"Products canonized on other programs than the notebook's, a norm's own gradient, and the rules as plain options."

import json

import pytest
import torch
from conftest import TEXTS
from test_lrp import close
from torch import nn
from torch.nn import functional as F

from lrp_loo.methods import explain, lrp_scores
from lrp_loo.studies.beyond import _swap
from lrp_loo.lrp import (
    Composite,
    attn_lrp,
    canonized_lrp,
    cp_lrp,
    gradient,
    lrp_rules,
)
from lrp_loo.conservation import conservation
from lrp_loo.studies.families import (
    family_tasks,
    random_inputs,
    random_model,
    relevance_of,
)
from lrp_loo.models import watch_embeddings


def llama(**kw):
    return random_model('Llama', **kw)


@pytest.mark.parametrize('family,task', family_tasks())
def test_every_family(family, task):
    """Eager attention, call by call, is fused attention; nothing without a
    rule; the logit is taken up by words, biases, constants and softmax.
    """
    m = random_model(family, task)
    inputs = random_inputs(m)
    R, _, rules = relevance_of(m, inputs, canonized_lrp(), strict=True)
    total = conservation(m, inputs, canonized_lrp())
    assert abs(total['remainder']) < 1e-5 * max(map(abs, total.values()))
    if family in ('DeBERTa-v2', 'Gemma 2'):
        return  # eager attention alone
    close(
        relevance_of(
            random_model(family, task, 'sdpa'),
            inputs,
            canonized_lrp(),
            strict=True,
        )[0],
        R,
        1e-5,
    )
    assert {'1/2, 1/2', '2/3, 1/3'} <= set(rules.report().rule)


def test_soft_capped_logits_begin_again():
    """Gemma 2 puts a tanh between QKᵀ and the softmax: an activation, so AV is
    shared by halves, as in AttnLRP.
    """
    m = random_model('Gemma 2')
    rules = relevance_of(m, random_inputs(m), canonized_lrp())[2]
    assert '2/3, 1/3' not in set(rules.report().rule)


@pytest.mark.parametrize('family', ['BERT', 'GPT-2', 'Llama', 'ViT'])
def test_epsilon_meets_no_product(family):
    "With an explicit ε eager is fused, too: it meets linear layers only."
    task = 'image' if family == 'ViT' else 'class'
    m = random_model(family, task)
    inputs = random_inputs(m)
    c = canonized_lrp(eps=1e-2)
    R = relevance_of(m, inputs, c)[0]
    close(
        relevance_of(random_model(family, task, 'sdpa'), inputs, c)[0], R, 1e-5
    )
    assert (
        R - relevance_of(m, inputs, canonized_lrp())[0]
    ).abs().max() > 1e-4 * R.abs().max()
    kept = lrp_scores(m, None, [inputs], composite=c, checkpoint=True)
    close(kept.scores[0], R, 1e-5)


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
                torch.matmul(self.q, (x * 1.0).transpose(-2, -1))
                .div(2.0)
                .softmax(-1),
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


def test_in_place_products_and_reused_tensors():
    class Chain(nn.Module):
        def __init__(self, f):
            super().__init__()
            self.f = f

        def forward(self, x):
            return self.f(*x.unbind(0))

    def shares(f):
        x = (torch.rand(3, 4, dtype=torch.double) + 0.5).requires_grad_()
        with lrp_rules(m := Chain(f), canonized_lrp(), strict=True):
            y = m(x).sum()
        return ((x * torch.autograd.grad(y, x)[0]).sum(1) / y).detach()

    def in_place(a, b, c):
        t = a * 1.0
        t *= b
        t.mul_(c)
        return t

    def buffer(a, b, c):
        t = torch.zeros_like(a)
        t[:] = a * b
        return t * c

    for f in (
        in_place,
        buffer,
        lambda a, b, c: torch.cat([a * b, b * a]) * torch.cat([c, c]),
    ):
        assert torch.allclose(
            shares(f), torch.full((3,), 1 / 3, dtype=torch.double)
        )
    assert torch.allclose(
        shares(
            lambda a, b, c: (
                torch.addmm(
                    (a * b)[None],
                    a[None] * b[None],
                    torch.eye(4, dtype=torch.double),
                )
                * c
            )
        ),
        torch.full((3,), 1 / 3, dtype=torch.double),
    )  # like terms
    assert torch.allclose(
        shares(
            lambda a, b, c: (
                torch.addmm(
                    a[None], a[None] * b[None], torch.eye(4, dtype=torch.double)
                )
                * c
            )
        )[2],
        torch.tensor(0.5, dtype=torch.double),
    )  # unlike ones


def test_constant_gates_leave_the_count():
    class Gated(nn.Module):
        def forward(self, x):
            a, b, c = x.unbind(0)
            return (F.silu(a) * b) * c

    for gate, want in (('half', [1 / 3] * 3), ('constant', [0, 0.5, 0.5])):
        x = (torch.rand(3, 4, dtype=torch.double) + 0.5).requires_grad_()
        with lrp_rules(
            m := Gated(), Composite('x', product='canonized', gate=gate)
        ):
            y = m(x).sum()
        assert torch.allclose(
            (x * torch.autograd.grad(y, x)[0]).sum(1) / y,
            torch.tensor(want, dtype=torch.double),
        )


@pytest.mark.parametrize('product', ['half', 'canonized', 'gradient'])
@pytest.mark.parametrize('activation', ['identity', 'gradient'])
def test_a_norm_has_its_own_gradient(product, activation):
    """layer_norm='gradient' means the norm's gradient, also where the norm is
    written out as x·rsqrt(mean x²), which is no product of two activations
    then.
    """

    class Fused(
        nn.Module
    ):  # the same numbers in one call, under a name that says nothing
        def __init__(self, norm):
            super().__init__()
            self.weight = norm.weight
            self.eps = norm.variance_epsilon

        def forward(self, x):
            return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps)

    c = Composite(
        'x', product=product, activation=activation, layer_norm='gradient'
    )
    model = llama(dtype=torch.float32)
    inputs = random_inputs(model)
    written = relevance_of(model, inputs, c)[0]
    _swap(model, 'LlamaRMSNorm', Fused)
    close(relevance_of(model, inputs, c)[0], written, 1e-3)


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'ViT'])
def test_no_rule_is_autograd(family):
    m = random_model(family, 'image' if family == 'ViT' else 'class')
    inputs = random_inputs(m)
    with watch_embeddings(m) as seen:
        y = m(**inputs).logits[0]
    (g,) = torch.autograd.grad(y.max(), seen[0])
    close(
        relevance_of(m, inputs, gradient())[0],
        (
            (seen[0] * g).sum(-1)[0]
            if g.ndim == 3
            else (seen[0] * g).sum(1).flatten()
        ),
        1e-9,
    )


def test_rules_as_plain_options(demo):
    "method='lrp' takes a Composite or its fields; JSON carries the fields."
    model, tokenizer = demo

    def s(m, **kw):
        return explain(model, tokenizer, TEXTS[0], method=m, **kw)[0].scores

    options = json.loads(
        json.dumps(
            dict(
                product='gradient', layer_norm='gradient', activation='gradient'
            )
        )
    )
    assert (
        torch.equal(s('lrp', **options), s('grad_x_input'))
        and torch.equal(s('lrp'), s('attn_lrp'))
        and torch.equal(s('lrp', composite=cp_lrp()), s('cp_lrp'))
    )
    assert torch.equal(
        s('lrp', bypass_softmax='all', gate='constant'), s('cp_lrp')
    ) and torch.equal(
        s('lrp', bypass_softmax=[0, 5]), s('attn_lrp', bypass_softmax=[0, 5])
    )
    assert torch.equal(
        s('lrp', product='canonized'), s('canonized')
    ) and not torch.allclose(s('canonized'), s('attn_lrp'), rtol=1e-2)
    with pytest.raises(ValueError, match="composite='cp_lrp' and product"):
        s('lrp', composite=cp_lrp(), product='half')
    with pytest.raises(ValueError, match="product='third'"):
        s('lrp', product='third')
    with pytest.raises(TypeError, match='does not take'):
        s('lrp', produkt='half')
