"""Which softmax is attention, which layer it belongs to, and gradients that
never arrive: right, or refused by name.
"""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from families import DECODER, SIZES, random_inputs, random_model, relevance_of
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lrp_loo import attn_lrp, cp_lrp, lrp_rules
from lrp_loo.lrp import watch_gradient
from lrp_loo.lrp.composite import Composite, gradient
from lrp_loo.lrp.conservation import conservation
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.methods.baselines import attention_maps
from lrp_loo.models.call import check_model, watch_embeddings
from lrp_loo.models.structure import n_layers, transformer_layers
from lrp_loo.estimate import removal_scores

PLAIN = Composite(
    'values', 'all', product='gradient', layer_norm='gradient', activation='gradient'
)
ONE_BYPASSED = Composite(
    'one', (1,), product='gradient', layer_norm='gradient', activation='gradient'
)
# float64: 1e-16 per operation, some thousand operations, and room for
# cancellation
CLOSE = 1e-9


class ConstantWeights(TorchFunctionMode):
    """A second derivation: attention weights are cut from the graph at the
    softmax itself, in the calls that `cut` names.
    """

    def __init__(self, cut=lambda call: True):
        super().__init__()
        self.cut, self.calls = cut, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name not in ('softmax', 'scaled_dot_product_attention'):
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

    def weights(self, x):
        return (self.q(x) @ self.k(x).transpose(-2, -1) * x.shape[-1] ** -0.5).softmax(
            -1
        )

    def forward(self, x):
        return F.dropout(self.weights(x), 0.1, self.training) @ self.v(x)


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
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

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
        if how == 'attributes':
            self.layer0, self.layer1 = blocks
        elif how == 'sequential':
            self.layers = nn.Sequential(*blocks)
        else:
            twice = how == 'one layer twice'
            self.layers = nn.ModuleList(blocks[:1] * 2 if twice else blocks)
        if how == 'heads beside':
            wide = [(nn.Linear(d, 50 * d), nn.ReLU(), nn.Linear(50 * d, d))] * 3
            self.heads = nn.ModuleList(nn.Sequential(*copy.deepcopy(w)) for w in wide)
        if how == 'a part beside':
            self.last = Block(d)

    def blocks(self):
        if self.how == 'attributes':
            return [self.layer0, self.layer1]
        return [*self.layers] + ([self.last] if self.how == 'a part beside' else [])

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks():
            x = block(x)
        if self.how == 'heads beside':
            x = sum(head(x) for head in self.heads)
        return self.out(x.mean(1))


IDS = {'input_ids': torch.tensor([[3, 7, 11, 2, 5]])}


def own(how, attention=Attention):
    torch.manual_seed(0)
    return Own(how, attention).eval().double()


def made(name, std=None, how=(), **config):
    "A small model of transformers' class, in double precision."
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls._from_config(cls.config_class(**config), **dict(how)).eval().double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1 and std:
                p.normal_(0, std)
    return model


def language_model(name):
    "XLM and FlauBERT keep attentions, feed-forwards and norms in parallel lists."
    sizes = dict(emb_dim=32, n_layers=3, n_heads=4, max_position_embeddings=64)
    sizes |= dict(vocab_size=200, pad_index=0, pad_token_id=0)
    how = dict(attn_implementation='eager')
    return made(f'{name}ForSequenceClassification', 0.3, how, **sizes)


def experts(name='Mixtral', **config):
    sizes = DECODER | dict(num_hidden_layers=2, num_local_experts=4, num_experts=4)
    sizes |= dict(num_experts_per_tok=2, moe_intermediate_size=16)
    how = dict(attn_implementation='sdpa', experts_implementation='eager')
    return made(f'{name}ForCausalLM', 0.2, how, **sizes | config)


def embedding_of(model):
    "Of transformers', or of one's own."
    return getattr(model, 'embed', None) or model.get_input_embeddings()


def gradient_of(model, inputs, context):
    "The gradient of one output at the embeddings."
    embed = embedding_of(model)
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


def assert_layer_1_is_held(model, inputs):
    one = gradient_of(model, inputs, lrp_rules(model, ONE_BYPASSED, strict=True))
    only_1 = ConstantWeights(lambda call: call == 1)
    assert same(one, gradient_of(model, inputs, only_1))


@pytest.mark.parametrize('name', ['XLM', 'Flaubert'])
def test_parallel_lists_are_held_and_numbered_and_conserve(name):
    model = language_model(name)
    inputs = random_inputs(model)
    assert_all_are_held(model, inputs)
    assert n_layers(model) == 3
    assert transformer_layers(model) == []
    assert_layer_1_is_held(model, inputs)
    s = conservation(model, inputs, cp_lrp())
    assert s['softmax'] == 0
    assert abs(s['remainder']) < 1e-5 * max(map(abs, s.values()))
    with pytest.raises(NotImplementedError, match='none that can be found'):
        lrp_scores(model, None, [inputs], checkpoint=True)


@pytest.mark.parametrize('attention', [Attention, FourDimensions, Fused])
@pytest.mark.parametrize(
    'how', ['attributes', 'sequential', 'list', 'one layer twice', 'heads beside']
)
def test_layers_of_a_model_of_ones_own(how, attention):
    "All are held; one by its number, or refused where it cannot be told apart."
    model = own(how, attention)
    assert_all_are_held(model, IDS)
    if how == 'one layer twice':
        model.config = transformers.PretrainedConfig(num_hidden_layers=2)
    if how == 'attributes':
        with pytest.raises(ValueError, match='shows no list of transformer layers'):
            lrp_rules(model, ONE_BYPASSED)
    elif how == 'heads beside' and attention is not Attention:
        said = 'layers.0.mix, layers.1.mix belongs to none of the 3 layers'
        with pytest.raises(ValueError, match=said):
            gradient_of(model, IDS, lrp_rules(model, ONE_BYPASSED))
    else:
        assert_layer_1_is_held(model, IDS)
    if how == 'heads beside' and attention is Attention:
        assert transformer_layers(model) == list(model.layers)


def test_attention_beside_the_layers_is_held_with_all_and_refused_by_number():
    model = own('a part beside')
    assert_all_are_held(model, IDS)
    outside = 'last.mix belongs to none of the 2 layers'
    with pytest.raises(ValueError, match=outside):
        gradient_of(model, IDS, lrp_rules(model, ONE_BYPASSED))


def test_stages_of_layers_are_all_held_and_not_numbered():
    "A stage with two layers is no transformer layer."
    sizes = dict(depths=[1, 2], num_heads=[2, 2], patch_size=4, window_size=4)
    name = 'SwinForImageClassification'
    model = made(name, image_size=32, embed_dim=16, **sizes)
    inputs = {'pixel_values': torch.rand(1, 3, 32, 32).double()}
    with pytest.raises(ValueError, match='holds a list of layers'):
        relevance_of(model, inputs, attn_lrp([0]))
    rules = relevance_of(model, inputs, cp_lrp())[2]
    attention = rules.report().query(
        "operation in ('softmax', 'scaled_dot_product_attention')"
    )
    assert set(attention.rule) == {'constant weights'}


class Probabilities(nn.Module):
    "A model that ends in a softmax."

    def __init__(self, inner):
        super().__init__()
        self.inner, self.embed = inner, inner.embed

    def forward(self, input_ids):
        return self.inner(input_ids).softmax(-1)


class Pool(Probabilities):
    """Tokens pooled by softmax weights: as a matrix product it is attention
    with one query, element by element it is a gate.
    """

    def __init__(self, inner, product):
        super().__init__(inner)
        self.product, self.score = product, nn.Linear(8, 1).double()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.inner.blocks():
            x = block(x)
        weights = self.score(x).softmax(1)
        pooled = weights.mT @ x if self.product else (weights * x).sum(1, keepdim=True)
        return self.inner.out(pooled[:, 0])


def rules_outside(model, composite):
    "Of the softmax in no part of the model."
    with lrp_rules(model, composite) as rules:
        model(**IDS)
    found = rules.report().query("operation == 'softmax' and module == ''")
    return found.rule.tolist()


@pytest.mark.parametrize('how', ['attributes', 'list'])
def test_a_softmax_on_the_output_is_no_attention_and_keeps_its_gradient(how):
    model = Probabilities(own(how))
    assert_all_are_held(model, IDS, lambda call: call < 2)
    assert rules_outside(model, cp_lrp()) == ['no attention, own gradient']


POOLED = [
    (True, attn_lrp(), 'own gradient'),
    (True, cp_lrp(), 'constant weights'),
    (False, attn_lrp(), 'gate, own gradient'),
    (False, cp_lrp(), 'constant gate'),
]


@pytest.mark.parametrize('product, composite, rule', POOLED)
def test_pooling_is_attention_where_it_multiplies_matrices_else_a_gate(
    product, composite, rule
):
    torch.manual_seed(0)
    model = Pool(own('list'), product).eval()
    assert rules_outside(model, composite) == [rule]


ROUTED = ['Mixtral', 'Qwen2Moe', 'Olmoe', 'GraniteMoe']
ROUTERS_RULES = [
    (attn_lrp(), 'gate, own gradient'),
    (attn_lrp([0, 1]), 'gate, own gradient'),
    (cp_lrp(), 'constant gate'),
]


@pytest.mark.parametrize('composite, rule', ROUTERS_RULES)
@pytest.mark.parametrize('name', ROUTED)
@pytest.mark.filterwarnings('ignore:no rule')
def test_a_router_is_a_gate_and_not_recorded_as_attention(name, composite, rule):
    """Its own gradient under AttnLRP, whatever layers are bypassed; constant
    under CP-LRP as every gate.
    """
    model = experts(name)
    rules = relevance_of(model, random_inputs(model), composite, record='attention')[2]
    router = rules.report().query("operation == 'softmax'")
    assert router.rule.tolist() == [rule, rule]
    assert [w.layer for w in rules.attention] == [0, 1]
    assert all(w.A.ndim == 4 for w in rules.attention)


class ConstantFusedWeights(ConstantWeights):
    "A softmax that is written out, a router's, keeps its gradient."

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, '__name__', '') == 'softmax':
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.filterwarnings('ignore:no rule')
def test_routers_are_left_alone_and_conserve():
    model = experts('Qwen2Moe', norm_topk_prob=False)
    inputs = random_inputs(model)
    both = replace(PLAIN, name='both', bypass_softmax=(0, 1))
    found = gradient_of(model, inputs, lrp_rules(model, both))
    assert same(found, gradient_of(model, inputs, ConstantFusedWeights()))
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
    of = 'in bert.encoder.layer.0.*DynamicQuantizedLinear'
    said = f'no gradient comes through linear_dynamic {of}'
    for composite in (attn_lrp(), cp_lrp(), gradient()):
        with pytest.raises(ValueError, match=said):
            relevance_of(quantized, random_inputs(model), composite)


class NoGrad(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, x):
        return self.inner(x)


class Detached(NoGrad):
    def forward(self, x):
        return self.inner(x.detach())


class Whole(NoGrad):
    "Products of whole numbers, as an 8-bit layer makes them."

    def forward(self, x):
        return self.inner((x * 100).to(torch.int32).to(x.dtype) * 0.01)


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return None


class Custom(NoGrad):
    def forward(self, x):
        return Nothing.apply(self.inner(x))


def with_a_part(part):
    "A BERT whose second layer has `part` around its last product."
    model = random_model('BERT')
    output = model.bert.encoder.layer[1].output
    output.dense = part(output.dense)
    return model


CUT_OFF = {
    NoGrad: 'linear under no_grad',
    Detached: 'detach',
    Whole: 'to in',
    Custom: 'NothingBackward',
}


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('part', CUT_OFF)
def test_a_part_that_hands_no_gradient_on_is_refused_by_name(part):
    "Residual connections bring part of the gradient: scores would look right."
    model = with_a_part(part)
    named = f'no gradient comes through {CUT_OFF[part]}.*bert.encoder.layer.1.output'
    for composite in (attn_lrp(), gradient()):
        with pytest.raises(ValueError, match=named):
            relevance_of(model, random_inputs(model), composite)
    x = torch.randn(1, 4, 32, dtype=torch.double, requires_grad=True)
    with pytest.raises(ValueError, match='no gradient comes through'):
        with watch_gradient(model):
            out = model(inputs_embeds=x).logits
        torch.autograd.grad(out.sum(), x)  # where backward alone can tell


class Choice(NoGrad):
    "Masks and choices made of activations without a gradient."

    def forward(self, x):
        with torch.no_grad():
            top = x.abs().topk(3, -1).indices
        kept = x * (x.detach() > -100)
        return self.inner(kept) + 0 * x.gather(-1, top).sum()


def test_what_is_cut_off_and_not_used_is_no_error():
    model = random_model('BERT')
    inputs = random_inputs(model)
    plain = relevance_of(model, inputs, attn_lrp())[0]
    found = relevance_of(with_a_part(Choice), inputs, attn_lrp())[0]
    assert same(found, plain)


@pytest.mark.parametrize('how', ['wrapped', 'in place', 'forward'])
def test_a_compiled_part_is_refused_by_name(how):
    model = random_model('BERT', dtype=torch.float32)
    layers = model.bert.encoder.layer
    if how == 'wrapped':
        layers[1] = torch.compile(layers[1])
    if how == 'in place':
        layers[1].compile()
    if how == 'forward':
        layers[1].forward = torch.compile(layers[1].forward)
    said = 'bert.encoder.layer.1 of the model is compiled'
    with pytest.raises(TypeError, match=said):
        lrp_rules(model, attn_lrp())
    with pytest.raises(TypeError, match=said):
        attention_maps(model, **random_inputs(model))


class HiddenDropout(nn.Linear):
    "Drops some of its inputs; its forward has no parameter that says so."

    def forward(self, *args):
        return super().forward(F.dropout(*args, 0.1, self.training))


@pytest.mark.parametrize('part', [nn.Dropout(0.1), HiddenDropout(32, 2)])
def test_a_part_that_training_changes_is_refused(part):
    model = random_model('BERT')
    model.classifier = part.train()
    with pytest.raises(ValueError, match='classifier.* is in training mode'):
        check_model(model)
    model.classifier = nn.Sequential(nn.Linear(32, 2), nn.Dropout(0.0)).train()
    check_model(model)


def test_longformers_global_attention_is_held_constant():
    "Its softmax has three dimensions, and its weights change their type before use."
    sizes = SIZES | dict(num_hidden_layers=2, attention_window=4, pad_token_id=1)
    model = made('LongformerForSequenceClassification', **sizes)
    rules = relevance_of(model, random_inputs(model), cp_lrp())[2]
    softmax = rules.report().query("operation == 'softmax'")
    assert set(softmax.rule) == {'constant weights'}
    assert softmax.calls.sum() == 4


class BiasUnderNoGrad(nn.Module):
    "Adds a bias that is looked up under no_grad, as LayoutLMv3's relative positions."

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.bias = nn.Linear(6, 4, bias=False)

    def forward(self, input_ids, attention_mask=None):
        with torch.no_grad():
            bias = self.bias.weight.t()[torch.arange(input_ids.shape[1])]
        return (self.words(input_ids) + bias).sum((1, 2))


def test_a_parameter_s_view_under_no_grad_loses_no_gradient():
    model = BiasUnderNoGrad().eval()
    with watch_embeddings(model) as seen, lrp_rules(model, attn_lrp()):
        out = model(torch.tensor([[3, 4, 5]]))
    (g,) = torch.autograd.grad(out.sum(), seen[0])
    assert torch.equal(g, torch.ones_like(g))
