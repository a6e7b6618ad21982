"Heads, feed-forward blocks and layers left out, against weights set to zero."

import copy

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import MPNetConfig, MPNetForSequenceClassification, T5Config
from transformers import T5ForConditionalGeneration, ViTConfig
from transformers import ViTForImageClassification

from lrp_loo import explain
from lrp_loo.models.loading import demo_base
from lrp_loo.models.parts import Parts, locate_parts

TOKENIZER = AutoTokenizer.from_pretrained(demo_base())
SIZES = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=4)
WIDE = dict(intermediate_size=24, hidden_act='gelu') | SIZES
LABELS = dict(num_labels=3)


def bert():
    model = BertForSequenceClassification(BertConfig(vocab_size=30, **WIDE, **LABELS))
    layers = model.bert.encoder.layer
    return model, [(x.attention.output.dense, x.output.dense) for x in layers]


def mpnet():
    config = MPNetConfig(vocab_size=30, **WIDE, **LABELS)
    model = MPNetForSequenceClassification(config)
    layers = model.mpnet.encoder.layer
    return model, [(x.attention.attn.o, x.output.dense) for x in layers]


def llama():
    config = LlamaConfig(
        vocab_size=30, intermediate_size=24, num_key_value_heads=2, **SIZES
    )
    model = LlamaForCausalLM(config)
    return model, [(x.self_attn.o_proj, x.mlp.down_proj) for x in model.model.layers]


def gpt2():
    config = GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=4)
    model = GPT2LMHeadModel(config)
    return model, [(x.attn.c_proj, x.mlp.c_proj) for x in model.transformer.h]


def vit():
    config = ViTConfig(image_size=8, patch_size=4, **WIDE, **LABELS)
    return ViTForImageClassification(config), None


FAMILIES = dict(bert=bert, mpnet=mpnet, llama=llama, gpt2=gpt2, vit=vit)


def made(family):
    torch.manual_seed(0)
    model, places = FAMILIES[family]()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    enc = dict(input_ids=torch.tensor([[3, 4, 5, 6, 7, 8, 9]]))
    if family == 'vit':
        enc = dict(pixel_values=torch.randn(1, 3, 8, 8))
        named = dict(model.named_modules())

        def linears(i):
            "The layer's linear maps back to its width, attention's first."
            own = {
                k: m
                for k, m in named.items()
                if f'layer.{i}.' in k or f'layers.{i}.' in k
            }
            own = {k: m for k, m in own.items() if isinstance(m, torch.nn.Linear)}
            (f,) = [m for m in own.values() if m.in_features == 24]
            (o,) = [
                m
                for k, m in own.items()
                if m.out_features == 16
                and m is not f
                and not any(
                    w in k for w in ('query', 'key', 'value', '.q_', '.k_', '.v_')
                )
            ]
            return o, f

        places = [linears(i) for i in range(3)]
    return model.eval(), places, enc


def zeroed(family, part):
    "The model with a part's weights set to zero."
    model, places, enc = made(family)
    layer, *which = part.split('.')
    o, f = places[int(layer)]
    with torch.no_grad():
        if which and which != ['ff']:
            columns = slice(4 * int(which[0]), 4 * int(which[0]) + 4)
            weight = o.weight if type(o).__name__ == 'Conv1D' else o.weight.T
            weight[columns] = 0
        for m in [f] * (which == ['ff']) + [o, f] * (not which):
            m.weight.zero_()
            if m.bias is not None:
                m.bias.zero_()
    return model, enc


def read(model, enc):
    with torch.no_grad():
        logits = model(**enc).logits
    return logits[0, -1, 2] if logits.ndim == 3 else logits[0, 2]


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('kind', ['head', 'feed_forward', 'layer'])
def test_exact_loo_of_parts_is_that_of_weights_set_to_zero(family, kind):
    model, _, enc = made(family)
    value = read(model, enc)
    text = enc['pixel_values'] if family == 'vit' else enc
    tokenizer = None if family == 'vit' else TOKENIZER
    (a,) = explain(model, tokenizer, text, 'loo', target=2, units=kind)
    assert len(a) == (12 if kind == 'head' else 3)
    assert a.exact and not a.is_special.any()
    assert a.logit == pytest.approx(float(value), rel=1e-5)
    for name, score in zip(a.tokens, a.scores.tolist()):
        assert score == pytest.approx(
            float(value - read(*zeroed(family, name))), abs=1e-5
        )


def test_a_group_is_left_out_at_once_and_rows_do_not_mix():
    model, _, enc = made('bert')
    groups = Parts([['0.1', '2.ff'], ['1']])
    (a,) = explain(model, TOKENIZER, enc, 'loo', target=2, units=groups)
    assert a.tokens == ['0.1+2.ff', '1']
    cut, _ = zeroed('bert', '2.ff')
    with torch.no_grad():
        o = cut.bert.encoder.layer[0].attention.output.dense
        o.weight[:, 4:8] = 0
    want = read(model, enc) - read(cut, enc)
    assert float(a.scores[0]) == pytest.approx(float(want), abs=1e-5)


SECOND = dict(
    bert='layer.1.attention.output.dense',
    llama='layers.1.self_attn.o_proj',
    gpt2='h.1.attn.c_proj',
)


@pytest.mark.parametrize('family', SECOND)
def test_attribution_patching_is_the_slope_at_the_whole_part(family):
    model, _, enc = made(family)
    (a,) = explain(model, TOKENIZER, enc, 'grad_x_input', target=2, units='head')
    h = 1e-2
    ends = []
    for scale in (1 + h, 1 - h):
        own = copy.deepcopy(model)
        (o,) = [m for n, m in own.named_modules() if n.endswith(SECOND[family])]
        weight = o.weight if type(o).__name__ == 'Conv1D' else o.weight.T
        with torch.no_grad():
            weight[8:12] *= scale
        ends.append(float(read(own, enc)))
    slope = (ends[0] - ends[1]) / (2 * h)
    assert float(a.scores[a.tokens.index('1.2')]) == pytest.approx(
        slope, rel=5e-3, abs=1e-4
    )


def test_removal_is_exact_where_the_rest_is_linear():
    "In the last layer of a model whose head is linear in what leaves it."
    model, _, enc = made('llama')
    model.model.norm = torch.nn.Identity()
    (loo,) = explain(model, TOKENIZER, enc, 'loo', target=2, units='head')
    (a,) = explain(model, TOKENIZER, enc, 'removal', target=2, units='head')
    assert torch.allclose(a.scores[8:], loo.scores[8:], atol=1e-5)
    assert not torch.allclose(a.scores[:8], loo.scores[:8], atol=1e-5)
    assert a.info['forward_equivalents'] == 3 + 12 / 3  # a layer for each head


def test_auto_spends_its_passes_on_exact_parts():
    model, _, enc = made('bert')
    (loo,) = explain(model, TOKENIZER, enc, 'loo', target=2, units='head')
    (a,) = explain(model, TOKENIZER, enc, 'auto', target=2, units='head', passes=6)
    (first,) = explain(model, TOKENIZER, enc, 'grad_x_input', target=2, units='head')
    exact = a.info['exact']
    assert 2 <= len(exact) < 12 and a.info['forward_equivalents'] <= 6
    rest = [k for k in range(12) if k not in exact]
    assert torch.allclose(a.scores[exact], loo.scores[exact], atol=1e-5)
    assert torch.equal(a.scores[rest], first.scores[rest])
    (whole,) = explain(
        model, TOKENIZER, enc, 'auto', target=2, units='head', passes=None
    )
    assert whole.exact and torch.equal(whole.scores, loo.scores)


def test_layers_before_a_part_are_not_computed_again_and_forward_is_put_back():
    model, _, enc = made('bert')
    (a,) = explain(model, TOKENIZER, enc, 'loo', target=2, units='head')
    assert a.info['forward_equivalents'] == pytest.approx(
        1 + 1 / 3 + 4 * (3 + 2 + 1) / 3, abs=0.01
    )
    assert not any('forward' in vars(m) for m in model.modules())


@pytest.mark.parametrize('part', ['0.9', '7'])
def test_a_part_that_is_not_there_is_refused(part):
    model, _, enc = made('bert')
    with pytest.raises(ValueError, match=f"no part '{part}'"):
        explain(model, TOKENIZER, enc, units=Parts([[part]]))


def test_a_model_of_two_stacks_is_refused():
    sizes = dict(vocab_size=30, d_model=16, d_ff=24, num_layers=2, num_heads=4, d_kv=4)
    t5 = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    both = dict(input_ids=torch.tensor([[3, 4, 5]]))
    both |= dict(decoder_input_ids=torch.tensor([[0]]))
    with pytest.raises(ValueError, match='does not show 2 transformer layers'):
        locate_parts(t5, both)


@pytest.mark.parametrize('family', ['bert', 'llama'])
@pytest.mark.parametrize('removal', ['mean', 'resample'])
def test_a_head_is_replaced_by_its_mean_or_by_another_position(family, removal):
    model, places = made(family)[:2]
    ids = torch.tensor([[1, 7, 3, 12, 5]])
    (a,) = explain(
        model,
        TOKENIZER,
        dict(input_ids=ids),
        'loo',
        target=1,
        units='head',
        removal=removal,
    )
    position = torch.randperm(5, generator=torch.Generator().manual_seed(0))

    def changed(module, args):
        heads = args[0].clone()
        part = heads[..., 4:8]  # the second of four heads of four numbers
        new = part.mean(1, keepdim=True) if removal == 'mean' else part[:, position]
        heads[..., 4:8] = new
        return (heads,)

    hook = places[1][0].register_forward_pre_hook(changed)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    hook.remove()
    without = logits[0, 1] if logits.ndim == 2 else logits[0, -1, 1]
    score = a.scores[a.tokens.index('1.1')]
    assert float(score) == pytest.approx(a.logit - float(without), abs=1e-5)
    assert abs(float(score)) > 1e-6
    with pytest.raises(ValueError, match="of heads; take units='head'"):
        inputs = dict(input_ids=ids)
        explain(model, TOKENIZER, inputs, 'loo', units='layer', removal=removal)
