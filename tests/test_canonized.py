"Products canonized on other programs than the notebook's, a norm's own gradient, and the rules as plain options."
import json

import pytest
import torch
from conftest import TEXTS, random_bert
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForSequenceClassification

from lrp_loo.attribution import explain, explain_batch, lrp_scores
from lrp_loo.beyond import _swap
from lrp_loo.composites import Composite, attn_lrp, canonized_lrp, cp_lrp, lrp_rules
from lrp_loo.conservation import conservation

IDS = dict(input_ids=torch.tensor([[5, 3, 8, 1, 9, 2, 7]]), attention_mask=torch.ones(1, 7, dtype=torch.long))
SMALL = dict(vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=32)


def llama(**kw): # two key-value heads for four query heads
    torch.manual_seed(0); m = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0, num_labels=3, **kw)).eval().double()
    with torch.no_grad():
        for p in m.parameters(): p.normal_(0, .4) if p.ndim > 1 else p.normal_(1, .1)
    return m

def gpt2():
    torch.manual_seed(0); m = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=16, n_layer=3, n_head=4, n_positions=32)).eval().double()
    with torch.no_grad():
        for p in m.parameters(): p.normal_(0, .4) if p.ndim > 1 else p.normal_(.5, .1)
    return m

def scores(model, composite, **kw): return lrp_scores(model, None, IDS, composite=composite, strict=True, **kw)[0][0]


@pytest.mark.parametrize('make', [llama, gpt2, lambda: random_bert(dtype=torch.double)])
@pytest.mark.parametrize('eps', [0., 1e-2])
def test_eager_is_fused_and_checkpointed(make, eps):
    model, c = make(), canonized_lrp(eps=eps)
    model.set_attn_implementation('sdpa'); fused = scores(model, c)
    model.set_attn_implementation('eager'); eager = scores(model, c)
    assert torch.allclose(fused, eager, rtol=1e-4, atol=1e-5) and torch.allclose(scores(model, c, checkpoint=True), eager, rtol=1e-4, atol=1e-5) # Llama takes its softmax in float32
    assert not torch.allclose(eager, scores(model, attn_lrp(eps=eps)), rtol=1e-2)


def test_a_third_each_in_one_attention_call():
    "Against autograd: a third of the true gradient at Q, at K and at V."
    class Attention(nn.Module):
        def forward(self, x): return F.scaled_dot_product_attention(*x.unbind(0))
    x = torch.randn(3, 1, 2, 5, 4, dtype=torch.double, requires_grad=True)
    true, = torch.autograd.grad(Attention()(x).square().sum(), x)
    with lrp_rules(m := Attention(), canonized_lrp()): y = m(x)
    mine, = torch.autograd.grad(y.square().sum(), x)
    assert torch.allclose(mine, true/3)


@pytest.mark.parametrize('composite', [canonized_lrp(), attn_lrp()])
def test_constant_queries_take_no_share(composite):
    "A learned query carries no relevance: K and V share, in one call and in steps."
    class Pool(nn.Module):
        def __init__(self): super().__init__(); self.q = nn.Parameter(torch.randn(1, 1, 2, 4, dtype=torch.double)); self.fused = True
        def forward(self, x):
            if self.fused: return F.scaled_dot_product_attention(self.q, x*1., x*2.)
            return torch.matmul(torch.matmul(self.q, (x*1.).transpose(-2, -1)).div(2.).softmax(-1), x*2.)
    model, x = Pool(), torch.randn(1, 1, 5, 4, dtype=torch.double, requires_grad=True); out = []
    for model.fused in (True, False):
        with lrp_rules(model, composite): y = model(x).sum()
        out.append(torch.autograd.grad(y, x)[0])
    assert torch.allclose(*out)


@pytest.mark.parametrize('make', [llama, lambda: random_bert(dtype=torch.double)])
def test_nothing_is_lost_unseen(make):
    "Words, biases, constants and softmax take up the logit, as under the other rule sets."
    total = conservation(make(), IDS, canonized_lrp()); assert abs(total["remainder"]) < 1e-6*max(map(abs, total.values()))


def test_in_place_products_and_reused_tensors():
    class Chain(nn.Module):
        def __init__(self, f): super().__init__(); self.f = f
        def forward(self, x): return self.f(*x.unbind(0))
    def shares(f):
        x = (torch.rand(3, 4, dtype=torch.double) + .5).requires_grad_()
        with lrp_rules(m := Chain(f), canonized_lrp(), strict=True): y = m(x).sum()
        return ((x*torch.autograd.grad(y, x)[0]).sum(1)/y).detach()
    def in_place(a, b, c): t = a*1.; t *= b; t.mul_(c); return t
    def buffer(a, b, c): t = torch.zeros_like(a); t[:] = a*b; return t*c
    for f in (in_place, buffer, lambda a, b, c: torch.cat([a*b, b*a])*torch.cat([c, c])): assert torch.allclose(shares(f), torch.full((3,), 1/3, dtype=torch.double))
    assert torch.allclose(shares(lambda a, b, c: torch.addmm((a*b)[None], a[None]*b[None], torch.eye(4, dtype=torch.double))*c), torch.full((3,), 1/3, dtype=torch.double))   # like terms
    assert torch.allclose(shares(lambda a, b, c: torch.addmm(a[None], a[None]*b[None], torch.eye(4, dtype=torch.double))*c)[2], torch.tensor(.5, dtype=torch.double))              # unlike ones


def test_constant_gates_leave_the_count():
    class Gated(nn.Module):
        def forward(self, x): a, b, c = x.unbind(0); return (F.silu(a)*b)*c
    for gate, want in (('half', [1/3]*3), ('constant', [0, .5, .5])):
        x = (torch.rand(3, 4, dtype=torch.double) + .5).requires_grad_()
        with lrp_rules(m := Gated(), Composite('x', product='canonized', gate=gate)): y = m(x).sum()
        assert torch.allclose((x*torch.autograd.grad(y, x)[0]).sum(1)/y, torch.tensor(want, dtype=torch.double))


@pytest.mark.parametrize('product', ['half', 'canonized', 'gradient'])
@pytest.mark.parametrize('activation', ['identity', 'gradient'])
def test_a_norm_has_its_own_gradient(product, activation):
    "layer_norm='gradient' means the norm's gradient, also where the norm is written out as x·rsqrt(mean x²), which is no product of two activations then."
    class Fused(nn.Module): # the same numbers in one call, under a name that says nothing
        def __init__(self, norm): super().__init__(); self.weight, self.eps = norm.weight, norm.variance_epsilon
        def forward(self, x): return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps)
    c = Composite('x', product=product, activation=activation, layer_norm='gradient'); model = llama().float()
    written = scores(model, c); _swap(model, 'LlamaRMSNorm', Fused)
    assert torch.allclose(written, scores(model, c), rtol=1e-3, atol=1e-4*float(written.abs().max()))


def test_rules_as_plain_options(demo):
    "method='lrp' takes a Composite or its fields; JSON carries the fields."
    model, tokenizer = demo; s = lambda m, **kw: explain(model, tokenizer, TEXTS[0], method=m, **kw)[0].scores
    options = json.loads(json.dumps(dict(product='gradient', layer_norm='gradient', activation='gradient')))
    assert torch.equal(s('lrp', **options), s('grad_x_input')) and torch.equal(s('lrp'), s('attn_lrp')) and torch.equal(s('lrp', composite=cp_lrp()), s('cp_lrp'))
    assert torch.equal(s('lrp', bypass_softmax='all', gate='constant'), s('cp_lrp')) and torch.equal(s('lrp', bypass_softmax=[0, 5]), s('attn_lrp', bypass_softmax=[0, 5]))
    assert torch.equal(s('lrp', product='canonized'), s('canonized')) and not torch.allclose(s('canonized'), s('attn_lrp'), rtol=1e-2)
    with pytest.raises(ValueError, match="composite='cp_lrp' and product"): s('lrp', composite=cp_lrp(), product='half')
    with pytest.raises(ValueError, match="product='third'"): s('lrp', product='third')
    with pytest.raises(TypeError, match='does not take'): s('lrp', produkt='half')
