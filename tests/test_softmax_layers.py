"""Which softmax is attention, which layer it belongs to, and gradients that
never arrive: right, or refused by name.
"""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from families import DECODER, SIZES, drawn, random_inputs, random_model, relevance_of
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lrp_loo import attn_lrp, cp_lrp, lrp_rules
from lrp_loo.lrp.composite import gradient
from lrp_loo.paper.conservation import conservation
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import check_model
from lrp_loo.estimate import removal_scores

PLAIN = replace(gradient(), name='values', bypass_softmax='all')
ONE_BYPASSED = replace(gradient(), name='one', bypass_softmax=(1,))
# float64: 1e-16 per operation, some thousand operations, and room for
# cancellation
CLOSE = 1e-9


FUSED = ('scaled_dot_product_attention',)


class ConstantWeights(TorchFunctionMode):
    """A second derivation: attention weights are cut from the graph at the
    softmax itself, in the calls that `cut` names.
    """

    def __init__(self, cut=lambda call: True, names=('softmax', *FUSED)):
        super().__init__()
        self.cut, self.names, self.calls = cut, names, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name not in self.names:
            return func(*args, **kwargs)
        self.calls += 1
        if not self.cut(self.calls - 1):
            return func(*args, **kwargs)
        if name == 'softmax':
            return func(*args, **kwargs).detach()
        return func(args[0].detach(), args[1].detach(), *args[2:], **kwargs)


class Attention(nn.Module):
    "One head, three dimensions, by hand."

    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))

    def forward(self, x):
        z = self.q(x) @ self.k(x).transpose(-2, -1) * x.shape[-1] ** -0.5
        return F.dropout(z.softmax(-1), 0.1, self.training) @ self.v(x)


class FourDimensions(Attention):
    def forward(self, x):
        return super().forward(x[:, None])[:, 0]


class Fused(Attention):
    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class Block(nn.Module):
    def __init__(self, d, attention=Attention):
        super().__init__()
        self.mix = attention(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        x = x + self.mix(x)
        return x + self.down(F.gelu(self.up(x)))


class Own(nn.Module):
    "A classifier of one's own; where its two layers are kept is what differs."

    def __init__(self, how, attention=Attention, d=8):
        super().__init__()
        self.how = how
        self.embed, self.out = nn.Embedding(20, d), nn.Linear(d, 3)
        blocks = [Block(d, attention) for _ in range(2)]
        if 'one layer twice' in how:
            blocks = blocks[:1] * 2
            self.config = transformers.PretrainedConfig(num_hidden_layers=2)
        if how == 'attributes':
            self.layer0, self.layer1 = blocks
        else:
            self.layers = nn.ModuleList(blocks)
        self.heads = []
        if how == 'heads beside':
            wide = [(nn.Linear(d, 50 * d), nn.ReLU(), nn.Linear(50 * d, d))] * 3
            self.heads = nn.ModuleList(nn.Sequential(*copy.deepcopy(w)) for w in wide)
        if how == 'a part beside':
            self.last = Block(d)
            blocks.append(self.last)
        self.blocks = tuple(blocks)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block.forward(x) if 'by forward' in self.how else block(x)
        if self.heads:
            x = sum(head(x) for head in self.heads)
        out = self.out(x.mean(1))
        return out.softmax(-1) if self.how == 'a softmax at the end' else out


IDS = {'input_ids': torch.tensor([[3, 7, 11, 2, 5]])}


def own(how, attention=Attention):
    torch.manual_seed(0)
    return Own(how, attention).eval().double()


def experts(name='Mixtral', **config):
    sizes = DECODER | dict(num_hidden_layers=2, num_local_experts=4, num_experts=4)
    sizes |= dict(num_experts_per_tok=2, moe_intermediate_size=16)
    sizes |= dict(experts_implementation='eager')
    name, sizes = f'{name}ForCausalLM', sizes | config
    return drawn(name, sizes, 0.2, torch.double, 'sdpa')


def gradient_of(model, inputs, context):
    "The gradient of one output at the embeddings."
    embed = getattr(model, 'embed', None) or model.get_input_embeddings()
    x = embed(inputs['input_ids']).detach().requires_grad_()
    handle = embed.register_forward_hook(lambda *_: x.clone())
    try:
        with context:
            out = model(**inputs)
    finally:
        handle.remove()
    logits = getattr(out, 'logits', out)
    return torch.autograd.grad(logits.flatten()[-1], x)[0]


def same(a, b):
    return (a - b).abs().max() <= CLOSE * b.abs().max()


def assert_all_are_held(model, inputs, cut=lambda call: True):
    held = gradient_of(model, inputs, lrp_rules(model, PLAIN, strict=True))
    assert same(held, gradient_of(model, inputs, ConstantWeights(cut)))
    assert not same(held, gradient_of(model, inputs, lrp_rules(model, gradient())))


@pytest.mark.parametrize('name', ['XLM', 'Flaubert'])
def test_parallel_lists_are_held_and_conserve(name):
    "They keep attentions, feed-forwards and norms in parallel lists."
    sizes = dict(emb_dim=32, n_layers=3, n_heads=4, max_position_embeddings=64)
    sizes |= dict(vocab_size=200, pad_index=0, pad_token_id=0)
    name = f'{name}ForSequenceClassification'
    model = drawn(name, sizes, dtype=torch.double, attention='eager')
    inputs = random_inputs(model)
    assert_all_are_held(model, inputs)
    with pytest.raises(ValueError, match='shows no list of transformer layers'):
        lrp_rules(model, ONE_BYPASSED)
    s = conservation(model, inputs, cp_lrp())
    assert s['softmax'] == 0
    assert abs(s['remainder']) < 1e-5 * max(map(abs, s.values()))


KINDS = [Attention, FourDimensions, Fused]
BESIDE = 'layers.0.mix, layers.1.mix belongs to none of the 3 layers'
REFUSED = {
    **{('attributes', kind): 'shows no list of transformer layers' for kind in KINDS},
    ('heads beside', FourDimensions): BESIDE,
    ('heads beside', Fused): BESIDE,
    ('a part beside', Attention): 'last.mix belongs to none of the 2 layers',
    ('one layer twice, by forward', Fused): 'layers.0.mix belongs to none of the 2',
}
NUMBERED = [(how, kind) for how in ('list', 'one layer twice') for kind in KINDS]
NUMBERED += [('heads beside', Attention), ('a softmax at the end', Attention)]
NUMBERED += [('list, by forward', kind) for kind in KINDS]


@pytest.mark.parametrize('how, kind', [*REFUSED, *NUMBERED])
def test_layers_of_a_model_of_ones_own(how, kind):
    "All are held; one by its number, or refused where it cannot be told apart."
    model = own(how, kind)
    n_attention = len(model.blocks)  # the softmax at the end is none
    assert_all_are_held(model, IDS, lambda call: call < n_attention)
    if (how, kind) in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[how, kind]):
            gradient_of(model, IDS, lrp_rules(model, ONE_BYPASSED))
        return
    one = gradient_of(model, IDS, lrp_rules(model, ONE_BYPASSED, strict=True))
    only_1 = ConstantWeights(lambda call: call == 1)
    assert same(one, gradient_of(model, IDS, only_1))


def test_stages_of_layers_are_all_held_and_not_numbered():
    "A stage with two layers is no transformer layer."
    sizes = dict(depths=[1, 2], num_heads=[2, 2], patch_size=4, window_size=4)
    sizes |= dict(image_size=32, embed_dim=16)
    model = drawn('SwinForImageClassification', sizes, dtype=torch.double)
    inputs = {'pixel_values': torch.rand(1, 3, 32, 32).double()}
    with pytest.raises(ValueError, match='holds a list of layers'):
        relevance_of(model, inputs, attn_lrp([0]))
    rules = relevance_of(model, inputs, cp_lrp())[2]
    attention = rules.report().query(
        "operation in ('softmax', 'scaled_dot_product_attention')"
    )
    assert set(attention.rule) == {'constant weights'}


OWN = 'gate, own gradient'
ROUTERS_RULES = [
    (attn_lrp(), OWN),
    (attn_lrp([0, 1]), OWN),
    (cp_lrp(), 'constant gate'),
]


@pytest.mark.parametrize('composite, rule', ROUTERS_RULES)
@pytest.mark.parametrize('name', ['Mixtral', 'Qwen2Moe', 'Olmoe', 'GraniteMoe'])
@pytest.mark.filterwarnings('ignore:no rule')
def test_a_router_is_a_gate_and_not_recorded_as_attention(name, composite, rule):
    """Its own gradient under AttnLRP, whatever layers are bypassed; constant
    under CP-LRP as every gate.
    """
    model = experts(name)
    rules = relevance_of(model, random_inputs(model), composite, record=True)[2]
    router = rules.report().query("operation == 'softmax'")
    assert router.rule.tolist() == [rule, rule]
    assert [w.layer for w in rules.attention] == [0, 1]
    assert all(w.A.ndim == 4 for w in rules.attention)


@pytest.mark.filterwarnings('ignore:no rule')
def test_routers_are_left_alone_and_conserve():
    model = experts('Qwen2Moe', norm_topk_prob=False)
    inputs = random_inputs(model)
    both = replace(PLAIN, name='both', bypass_softmax=(0, 1))
    found = gradient_of(model, inputs, lrp_rules(model, both))
    assert same(found, gradient_of(model, inputs, ConstantWeights(names=FUSED)))
    for composite in (attn_lrp(), cp_lrp()):
        s = conservation(model, inputs, composite)
        assert abs(s['remainder']) < 1e-5 * max(map(abs, s.values())), s
    # removal takes no router for attention
    scores = removal_scores(model, None, [inputs]).scores
    assert scores.shape == (1, 12)
    assert torch.isfinite(scores).all()


@pytest.mark.filterwarnings('ignore')
def test_a_quantized_linear_layer_is_refused_by_name():
    model = random_model('BERT', dtype=torch.float32)
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    said = 'no gradient comes through linear_dynamic in bert.encoder.layer.0'
    for composite in (attn_lrp(), cp_lrp(), gradient()):
        with pytest.raises(ValueError, match=said):
            relevance_of(quantized, random_inputs(model), composite)


class Around(nn.Module):
    "A part with something around it."

    def __init__(self, inner, f):
        super().__init__()
        self.inner, self.f = inner, f

    def forward(self, x):
        return self.f(self.inner, x)


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return None


def with_a_part(f):
    "A BERT whose second layer has `f` around its last product."
    model = random_model('BERT')
    output = model.bert.encoder.layer[1].output
    output.dense = Around(output.dense, f)
    return model


CUT_OFF = {
    'linear under no_grad': torch.no_grad()(lambda inner, x: inner(x)),
    'detach': lambda inner, x: inner(x.detach()),
    # products of whole numbers, as an 8-bit layer makes them
    'int in': lambda inner, x: inner((x * 100).int().to(x.dtype) * 0.01),
    'NothingBackward': lambda inner, x: Nothing.apply(inner(x)),
}


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('place', CUT_OFF)
def test_a_part_that_hands_no_gradient_on_is_refused_by_name(place):
    "Residual connections bring part of the gradient: scores would look right."
    model = with_a_part(CUT_OFF[place])
    named = f'no gradient comes through {place}.*bert.encoder.layer.1.output'
    for composite in (attn_lrp(), gradient()):
        with pytest.raises(ValueError, match=named):
            relevance_of(model, random_inputs(model), composite)
    x = torch.randn(1, 4, 32, dtype=torch.double, requires_grad=True)
    with pytest.raises(ValueError, match='no gradient comes through'):
        with lrp_rules(model, gradient()):
            out = model(inputs_embeds=x).logits
        torch.autograd.grad(out.sum(), x)  # where backward alone can tell


def choose(inner, x):
    "Masks and choices made of activations without a gradient."
    with torch.no_grad():
        top = x.abs().topk(3, -1).indices
    kept = x * (x.detach() > -100)
    return inner(kept) + 0 * x.gather(-1, top).sum()


def look_up(inner, x):
    "A parameter's view, taken under no_grad, as LayoutLMv3's relative positions."
    with torch.no_grad():
        row = inner.weight.t()[torch.tensor(0)]
    return inner(x) + row


NOT_USED = [
    (choose, lambda inner, x: inner(x)),
    (look_up, lambda inner, x: inner(x) + inner.weight.detach().clone().t()[0]),
]


@pytest.mark.parametrize('f, alike', NOT_USED)
def test_what_has_no_gradient_of_the_input_is_no_error(f, alike):
    inputs = random_inputs(random_model('BERT'))
    found, plain = (
        relevance_of(with_a_part(g), inputs, attn_lrp()) for g in (f, alike)
    )
    assert same(found.R, plain.R)


@pytest.mark.parametrize('how', ['in place', 'forward'])
def test_a_compiled_part_is_refused_by_name(how):
    model = random_model('BERT', dtype=torch.float32)
    layer = model.bert.encoder.layer[1]
    if how == 'in place':
        layer.compile()
    else:
        layer.forward = torch.compile(layer.forward)
    said = 'bert.encoder.layer.1 is compiled'
    with pytest.raises(TypeError, match=said):
        lrp_rules(model, attn_lrp())
    with pytest.raises(TypeError, match=said):
        METHODS['rollout'](model, None, [random_inputs(model)])


class HiddenDropout(nn.Linear):
    def forward(self, *args):
        return super().forward(F.dropout(*args, 0.1, self.training))


def test_a_part_that_hides_its_dropout_is_refused():
    model = random_model('BERT')
    model.classifier = HiddenDropout(32, 2).train()
    with pytest.raises(ValueError, match='classifier.* is in training mode'):
        check_model(model)


def test_longformers_global_attention_is_held_constant():
    "Its softmax has three dimensions, and its weights change their type before use."
    sizes = SIZES | dict(num_hidden_layers=2, attention_window=4, pad_token_id=1)
    model = drawn('LongformerForSequenceClassification', sizes, dtype=torch.double)
    rules = relevance_of(model, random_inputs(model), cp_lrp())[2]
    softmax = rules.report().query("operation == 'softmax'")
    assert set(softmax.rule) == {'constant weights'}
    assert softmax.calls.sum() == 4
