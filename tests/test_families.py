"Every family: coverage, conservation, eager = sdpa, Llama and ViT derived again, every method."

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

from conftest import TEXTS
from families import DECODERS, ENCODERS, FAMILIES, HEADED, SIZES, VISION, drawn
from families import family_row, family_tasks, random_inputs, random_model, relevance_of
import naive_llama
import naive_vit
import pytest
from test_lrp import close
import torch
from torch import nn
from torch.nn import functional as F
import transformers

from lrp_loo import attn_lrp, attribute_context, cp_lrp, explain, load_demo
from lrp_loo.asked.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.lrp.conservation import conservation, conservation_by_layer
from lrp_loo.lrp.more_rules import gamma_rule, identity_rule
from lrp_loo.methods import METHODS
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.trust.audit import audit

shared_model = cache(random_model)
FOUR = [*dict(BERT='class', Llama='next token', ViT='image', ALBERT='class').items()]
BOTH_RULE_SETS = [attn_lrp(), cp_lrp()]


@pytest.mark.parametrize('family, task', family_tasks())
def test_a_family_is_covered_conserved_and_the_same_under_both_attentions(family, task):
    row = family_row(family, task)
    assert row['uncovered'] == 0
    assert row['operations'] > 8
    assert row['logits'] < 1e-9
    assert max(row['attn conserved to'], row['cp conserved to']) < 1e-5
    differences = [row['attn eager = sdpa to'], row['cp eager = sdpa to']]
    if FAMILIES[family].fused:
        assert max(differences) < 1e-5
    else:
        assert all(map(math.isnan, differences))


@pytest.mark.parametrize('gates', ['half', 'constant'])
@pytest.mark.parametrize('bypass', [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize('task,head', [('next token', 'lm'), ('class', 'score')])
def test_llama_is_the_naive_one(task, head, bypass, gates):
    composite = replace(attn_lrp(bypass), gate=gates)
    at = dict(target=7, position=5) if head == 'lm' and bypass == (1,) else {}
    # transformers computes RMSNorm in float32 whatever the model's precision
    for dtype, rel in ((torch.float64, 1e-4), (torch.float32, 5e-3)):
        biased = dict(attention_bias=True, mlp_bias=True)
        model = shared_model('Llama', task, 'sdpa', dtype=dtype, **biased)
        inputs = random_inputs(model)
        target = Target(7, position=5) if at else None
        R, out, _ = relevance_of(model, inputs, composite, target, strict=True)
        logits, naive = naive_llama.explain(
            {k: v.double() for k, v in model.state_dict().items()},
            inputs['input_ids'][0],
            layers=3,
            heads=4,
            kv_heads=2,
            rms_eps=model.config.rms_norm_eps,
            **dict(bypass=bypass, gates=gates, head=head) | at,
        )
        got = out.logits[0, at.get('position', -1)] if head == 'lm' else out.logits[0]
        assert (got - logits).abs().max() < 1e-4 * logits.abs().max()
        close(R.double(), naive, rel)
        assert not at or R[6:].abs().max() == 0


@pytest.mark.parametrize('bypass', [(), (0, 2), (0, 1, 2)])
def test_vit_is_the_naive_one(bypass):
    for dtype, rel in ((torch.float64, 1e-6), (torch.float32, 2e-3)):
        model = shared_model('ViT', 'image', 'sdpa', dtype=dtype)
        inputs = random_inputs(model)
        R, out, _ = relevance_of(model, inputs, attn_lrp(bypass), strict=True)
        logits, naive = naive_vit.explain(
            {k: v.double() for k, v in model.state_dict().items()},
            inputs['pixel_values'][0].double(),
            layers=3,
            heads=4,
            ln_eps=model.config.layer_norm_eps,
            patch=7,
            bypass=bypass,
        )
        assert (out.logits[0] - logits).abs().max() < 1e-4 * logits.abs().max()
        close(R.double(), naive, rel)


def text_task(family):
    "Some decoders predict, the rest classify."
    predicts = any(name in family for name in ('Llama', 'GPT', 'Gemma'))
    return 'next token' if predicts else 'class'


@cache
def text_model(family):
    "With the demo's words; weights so small that float32 rounds little."
    changes = dict(vocab_size=30522, pad_token_id=0)
    if 'num_hidden_layers' in FAMILIES[family].config:
        changes['num_hidden_layers'] = 2
    model = random_model(family, text_task(family), dtype=torch.float32, **changes)
    if family == 'DeBERTa-v2':
        return model
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(0.3)
    return model


OF_ANY_MODEL = [m for m, method in METHODS.items() if method.any_model]
text_families = pytest.mark.parametrize('family', [*ENCODERS, *DECODERS])


@text_families
def test_every_method_pads_a_text_family_as_if_alone(tokenizer, family):
    model = text_model(family)
    for m in OF_ANY_MODEL:
        both = explain(model, tokenizer, TEXTS[:2], method=m)
        for text, a in zip(TEXTS, both):
            (alone,) = explain(model, tokenizer, text, method=m)
            assert torch.isfinite(a.scores).all(), m
            assert alone.target == a.target, m
            # gradient × input is 0 where LayerNorm follows the embeddings
            largest = max(alone.scores.abs().max(), 1e-3)
            assert (a.scores - alone.scores).abs().max() <= 2e-2 * largest, m


@text_families
def test_loo_words_and_a_contrast_of_a_text_family(tokenizer, family):
    "LOO by a masked pass for each token."
    model = text_model(family)
    (a,) = explain(model, tokenizer, TEXTS[0], method='loo')
    enc = encode(model, tokenizer, TEXTS[0])
    for i in range(len(a)):
        mask = enc['attention_mask'].clone()
        mask[0, i] = 0
        with torch.no_grad():
            logits = forward(model, enc | {'attention_mask': mask}).logits[0]
        less = logits[-1] if text_task(family) == 'next token' else logits
        lost = a.logit - less[a.target]
        assert abs(a.scores[i] - lost) < 1e-3 * max(1, abs(a.logit)), i
    (words,) = explain(model, tokenizer, TEXTS[0], method='loo', units='word')
    assert 'jokes' in words.tokens
    contrast, one, zero = (
        explain(model, tokenizer, TEXTS[0], target=target)[0].scores
        for target in ((1, 0), 1, 0)
    )
    assert len(words) <= len(contrast)
    close(contrast, one - zero, 1e-2)


def vision_model(family):
    "And two images."
    model = shared_model(family, 'image', 'sdpa', dtype=torch.float32)
    g = torch.Generator().manual_seed(3)
    config = getattr(model.config, 'vision_config', model.config)
    images = [torch.rand(config.num_channels, 28, 28, generator=g) for _ in range(2)]
    return model, images


@pytest.mark.parametrize('family', VISION)
def test_images_are_explained_in_batches_as_if_alone_and_audited(family):
    model, images = vision_model(family)
    for m in OF_ANY_MODEL:
        both = explain(model, None, images, method=m)
        assert [len(a.scores) for a in both] == [16, 16], m
        assert both[0].info['grid'] == (4, 4), m
        (alone,) = explain(model, None, images[1], method=m)
        close(both[1].scores, alone.scores, 1e-2)
    methods = ['loo', 'attn_lrp', 'cp_lrp', 'rollout']
    t = audit(model, None, images, methods, progress=False)
    assert t.loc['loo', 'loo_r'] > 0.999
    assert t.loo_r.abs().max() <= 1


@pytest.mark.parametrize('family', VISION)
def test_loo_of_an_image_zeroes_a_patchs_embedding(family):
    model, (image, _) = vision_model(family)
    (loo,) = explain(model, None, image, method='loo')
    pixels = {'pixel_values': image[None]}
    with torch.no_grad(), watch_embeddings(model) as seen:
        whole = forward(model, pixels).logits[0]
    for patch in (0, 7):
        gone = seen[0].detach().clone()
        if gone.ndim == 3:
            gone[0, patch] = 0
        else:
            gone[0, :, patch // 4, patch % 4] = 0
        with torch.no_grad(), watch_embeddings(model, gone):
            less = forward(model, pixels).logits[0]
        assert abs(loo.scores[patch] - (whole - less)[loo.target]) < 1e-4


# a sliding window sees further when tokens are dropped: it is masked instead
@pytest.mark.parametrize('family', ['Llama', 'Mistral'])
def test_dropping_is_masking_on_a_decoder(family):
    model = shared_model(family, 'next token', 'sdpa')
    dropped, masked = (
        leave_one_out(model, random_inputs(model), drop=drop)[0]
        for drop in (None, False)
    )
    close(dropped, masked, 1e-4)


HEADED = dict(HEADED, num_hidden_layers=2)
SMALL = dict(SIZES, num_hidden_layers=2)
PATCHED = dict(HEADED, image_size=28, patch_size=7)
PADDED = dict(SMALL, pad_token_id=0)
# families that the package does not name
LAYERED = dict(n_layer=2, n_head=4)
SWIN = dict(image_size=32, patch_size=4, embed_dim=16, window_size=4)
OTHERS = {
    'OPTForCausalLM': dict(PADDED, ffn_dim=64, word_embed_proj_dim=32),
    'GPTNeoXForCausalLM': SMALL,
    'FalconForCausalLM': SMALL,
    'Olmo2ForCausalLM': PADDED,
    'CohereForCausalLM': PADDED,
    'GPTJForCausalLM': dict(LAYERED, n_embd=32, n_positions=64, rotary_dim=4),
    'MPNetForSequenceClassification': SMALL,
    'RoFormerForSequenceClassification': SMALL,
    'SqueezeBertForSequenceClassification': dict(SMALL, embedding_size=32),
    'ConvBertForSequenceClassification': dict(SMALL, embedding_size=32),
    'BeitForImageClassification': PATCHED,
    'Dinov2ForImageClassification': PATCHED,
    'SiglipForImageClassification': dict(
        vision_config=PATCHED, text_config=dict(HEADED, num_hidden_layers=1)
    ),
    'SwinForImageClassification': dict(SWIN, depths=[1, 1], num_heads=[2, 2]),
    'BloomForCausalLM': dict(LAYERED, hidden_size=32),
    'MambaForCausalLM': dict(hidden_size=32, num_hidden_layers=2, state_size=4),
}
WITHOUT_RULE = dict(BloomForCausalLM=['GeLUFunctionBackward'])
WITHOUT_RULE |= dict(MambaForCausalLM=['exp'])


@cache
def other_model(name):
    sized = {} if 'Image' in name else dict(vocab_size=200)
    return drawn(name, sized | OTHERS[name], 0.2, torch.double, 'eager')


def other_inputs(name):
    if not name.startswith('Swin'):
        return random_inputs(other_model(name))
    g = torch.Generator().manual_seed(0)
    pixels = torch.rand(1, 3, 32, 32, generator=g, dtype=torch.double)
    return {'pixel_values': pixels}


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('c', BOTH_RULE_SETS, ids=lambda c: c.name)
@pytest.mark.parametrize('name', OTHERS)
def test_another_family_is_made_of_known_operations_or_what_is_not_is_named(name, c):
    model, inputs = other_model(name), other_inputs(name)
    rules = relevance_of(model, inputs, c).rules
    assert rules.without_rule() == WITHOUT_RULE.get(name, [])
    # cp_lrp alone holds attention constant
    report = rules.report()
    attention = 'softmax scaled_dot_product_attention multi_head_attention_forward'
    used = set(report[report.operation.isin(attention.split())].rule)
    constant = c.name == 'cp_lrp' and not name.startswith('Mamba')
    assert ('constant weights' in used) == constant
    # relevance is lost only where there is no rule
    s = conservation(model, inputs, c)
    lost = abs(s['remainder']) / max(map(abs, s.values()))
    assert lost > 1e-4 if name in WITHOUT_RULE else lost < 1e-5


def test_experts_are_covered_by_cp_lrp_and_refused_by_attn_lrp():
    "AttnLRP has no rule for a division by an activation."
    torch.manual_seed(0)
    cls = transformers.MixtralForCausalLM
    config = cls.config_class(**PADDED, num_key_value_heads=2, num_local_experts=4)
    experts = cls._from_config(config, attn_implementation='sdpa').eval()
    inputs = random_inputs(experts)
    relevance_of(experts, inputs, cp_lrp(), strict=True)
    s = conservation(experts, inputs, cp_lrp())
    assert abs(s['remainder']) < 1e-5 * abs(s['logit'])
    with pytest.raises(NotImplementedError, match='div_'):
        relevance_of(experts, inputs, attn_lrp(), strict=True)


class Fault(nn.Module):
    "Something around a module."

    def __init__(self, inner):
        super().__init__()
        self.inner = inner


class Twist(Fault):
    "An unlisted nonlinearity."

    def forward(self, *args, **kw):
        return torch.sin(self.inner(*args, **kw))


class Hidden(torch.autograd.Function):
    "Two activations multiplied out of torch's sight."

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Secret(Fault):
    def forward(self, x):
        y = self.inner(x)
        return Hidden.apply(y, y)


@torch.jit.script
def scripted(a, b):
    return a * b


class Scripted(Fault):
    def forward(self, x):
        y = self.inner(x)
        return scripted(y, y)


def plant(model, fault, place):
    "Put a fault around a module; → the path of what holds it."
    parent, child = place.rsplit('.', 1)
    faulty = fault(model.get_submodule(place))
    setattr(model.get_submodule(parent), child, faulty)
    return parent


FAULTS = {Twist: 'sin', Secret: 'HiddenBackward', Scripted: 'Backward'}
PLACES = {
    'BERT': 'bert.encoder.layer.1.intermediate.dense',
    'Llama': 'model.layers.1.mlp.up_proj',
    'ViT': None,
}


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.parametrize('family', PLACES)
def test_planted_faults_are_found(family, fault):
    task = 'image' if family == 'ViT' else 'class'
    model = random_model(family, task, dtype=torch.float32)
    place = PLACES[family] or next(
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and 'layer' in path and '.1.' in path
    )
    parent = plant(model, fault, place)
    inputs = random_inputs(model)
    said = FAULTS[fault]
    with pytest.raises(NotImplementedError, match=said):
        relevance_of(model, inputs, attn_lrp(), strict=True)
    with pytest.warns(UserWarning, match=said):
        rules = relevance_of(model, inputs, attn_lrp()).rules
    found = rules.report().query("rule == 'none'")
    assert set(found.layer) == {1}
    assert found.module.str.startswith(parent).all()
    if (family, fault) == ('BERT', Twist):  # what it loses shows up in its layer
        with pytest.warns(UserWarning, match='sin'):
            t = conservation_by_layer(model, inputs, attn_lrp())
        assert t.set_index('layer').remainder.abs().idxmax() == 1


@pytest.mark.parametrize('fault', [Secret, Scripted])
@pytest.mark.parametrize('family,task', FOUR[:3])
def test_a_hidden_operation_at_the_very_end_is_found(family, task, fault):
    model = random_model(family, task)
    head = 'lm_head' if family == 'Llama' else 'classifier'
    setattr(model, head, fault(getattr(model, head)))
    inputs = random_inputs(model)
    with pytest.raises(NotImplementedError, match='Backward'):
        relevance_of(model, inputs, attn_lrp(), strict=True)


@pytest.mark.parametrize('family,task', FOUR)
def test_conservation_by_layer_is_a_chain_and_biases_keep_some(family, task):
    m = shared_model(family, task)
    t = conservation_by_layer(m, random_inputs(m), attn_lrp())
    assert t.layer.tolist() == ['head', 2, 1, 0, 'embeddings']
    entering, leaving = torch.tensor(t[['entering', 'leaving']].values.T)
    close(entering[1:], leaving[:-1], 1e-6)
    assert (t.remainder.abs() < 1e-5 * t.entering.abs().max()).all()
    kept = t.biases[1:-1].abs() > 0
    assert kept.all() == (family != 'Llama')


def test_two_threads_with_two_rule_sets_give_the_serial_maps_100_times():
    sizes = dict(dtype=torch.float32, num_hidden_layers=2)
    model = random_model('Llama', 'class', 'sdpa', **sizes)
    inputs = random_inputs(model)
    serial = {c: relevance_of(model, inputs, c).R for c in (attn_lrp([1]), cp_lrp())}
    barrier = threading.Barrier(2)

    def work(c):
        same = []
        for _ in range(100):
            barrier.wait()
            same.append(torch.equal(relevance_of(model, inputs, c).R, serial[c]))
        return same

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, serial)) == [[True] * 100] * 2
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    assert not any(map(any, hooks))


CHECKPOINTED = [*FOUR[:3], ('GPT-2', 'class'), ('Gemma 3', 'next token')]


@pytest.mark.parametrize('family,task', CHECKPOINTED)
def test_checkpointing_changes_nothing(family, task):
    layers = 'n_layer' if family == 'GPT-2' else 'num_hidden_layers'
    model = random_model(family, task, **{layers: 5})
    inputs = [random_inputs(model)]
    for composite in (attn_lrp(), cp_lrp(), attn_lrp([2])):
        plain, saving = (
            lrp_scores(model, None, inputs, composite=composite, checkpoint=on)
            for on in (False, True)
        )
        close(plain.scores, saving.scores, 1e-5)


def test_checkpointing_mends_rows_that_see_nothing():
    "Padding on the left in double precision, where −∞ would make NaN."
    with pytest.raises(NotImplementedError, match='share weights'):
        shared = shared_model('ALBERT')
        lrp_scores(shared, None, [random_inputs(shared)], checkpoint=True)
    model = shared_model('Llama', 'next token', dtype=torch.float64)
    model.set_attn_implementation('eager')
    (long,), (short,) = (random_inputs(model)['input_ids'] for _ in range(2))
    ids = torch.stack([long, short.roll(3)])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    batch = dict(input_ids=ids, attention_mask=mask)
    target = Target(5)
    plain, saving = (
        lrp_scores(model, None, [batch], target, checkpoint=on) for on in (False, True)
    )
    assert bool(plain.scores.isfinite().all())
    close(plain.scores, saving.scores, 1e-9)


CONTEXT = 'The songs are sweet. The plot is bad. Nobody laughed!'
ANSWER = 'very bad'


@pytest.fixture(scope='module')
def reviews():
    return load_demo('reviews')


@pytest.mark.parametrize('method', METHODS)
def test_a_context_has_a_score_per_sentence(reviews, method):
    a = attribute_context(*reviews, CONTEXT, ANSWER, 'Is it good?', method=method)
    assert a.tokens == ['The songs are sweet.', 'The plot is bad.', 'Nobody laughed!']
    assert torch.isfinite(a.scores).all()
    assert a.logit < 0 and a.label == ANSWER


def test_hiding_a_sentence_by_hand_gives_its_loo(reviews):
    model, tok = reviews
    loo = attribute_context(model, tok, CONTEXT, ANSWER, 'Is it good?')
    sentence = torch.tensor(loo.info['unit_of_token'])
    answer = tok(ANSWER, add_special_tokens=False)['input_ids']
    ids, n = loo.input_ids, len(loo.input_ids)
    places = range(n - len(answer), n)
    assert ids[-len(answer) :].tolist() == answer

    @torch.no_grad()
    def log_likelihood(mask):
        "Of the last tokens, each from those before it."
        given = dict(input_ids=ids[None], attention_mask=mask.long()[None])
        lp = model(**given, use_cache=False).logits[0].log_softmax(-1)
        return sum(lp[place - 1, ids[place]] for place in places)

    whole = log_likelihood(torch.ones_like(ids))
    assert abs(whole - loo.logit) < 1e-4
    for k in range(3):
        less = log_likelihood(sentence != k)
        assert abs((whole - less) - loo.scores[k]) < 1e-4


def test_a_rule_of_ones_own_for_a_layer_or_where_a_predicate_holds():
    def places(model, composite, rule):
        "The report's lines that a rule has handled, strictly."
        found = relevance_of(model, random_inputs(model), composite, strict=True)
        report = found.rules.report()
        return report[report.rule == rule]

    def unchanged(f, *args, **kw):
        return f(*args, **kw)

    bert = shared_model('BERT')
    mine = attn_lrp().with_rule(F.layer_norm, unchanged, layers=[2])
    assert set(places(bert, mine, 'unchanged').layer) == {2}
    whole = attn_lrp().with_rule(nn.LayerNorm, identity_rule, modules='*.1.output.*')
    assert places(bert, whole, 'identity_rule').operation.tolist() == ['LayerNorm']
    queries = dict(where=lambda op: op.module.endswith('query'))
    mine = attn_lrp().with_rule('linear', gamma_rule(1.0), **queries)
    found = places(bert, mine, 'gamma_linear')
    assert found.module.str.endswith('query').all() and len(found) == 3
    wrong = attn_lrp().with_rule('linear', lambda f, *args: 2 * f(*args))
    with pytest.raises(ValueError, match="changes the operation's numbers"):
        relevance_of(bert, random_inputs(bert), wrong, strict=True)


class TorchEncoder(nn.Module):
    "torch's own parts; read at the first token."

    def __init__(self, **how):
        super().__init__()
        self.words = nn.Embedding(30522, 16)
        how = dict(batch_first=True, dropout=0.0) | how
        layer = nn.TransformerEncoderLayer(16, 4, 32, **how)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)
        self.first = how['batch_first']

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        x = x if self.first else x.transpose(0, 1)
        x = self.body(x, src_key_padding_mask=attention_mask == 0)
        return self.head(x[:, 0] if self.first else x[0])


def maps_of_layers(model, ids):
    "Each layer's attention, heads averaged, by its own weights."
    x = model.words(ids)
    for layer in model.body.layers:
        asked = layer.norm1(x) if layer.norm_first else x
        w, b = layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
        q, k, _ = (F.linear(asked, w, b)).chunk(3, -1)
        q, k = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in (q, k))
        yield (q @ k.transpose(2, 3) / 2).softmax(-1).mean(1)[0]
        x = layer(x)


@pytest.mark.parametrize('norm_first', [False, True])
@torch.no_grad()
def test_rollout_of_torchs_own_encoder(norm_first, tokenizer):
    torch.manual_seed(0)
    model = TorchEncoder(norm_first=norm_first).eval()
    for a in explain(model, tokenizer, TEXTS[:2], 'rollout'):
        first, second = maps_of_layers(model, a.input_ids[None])
        close(a.scores, (second @ first)[0], 1e-5)


@pytest.mark.parametrize('how', [{}, dict(batch_first=False)], ids=str)
@pytest.mark.parametrize('method', sorted(METHODS))
def test_every_method_takes_torchs_own_encoder(method, how, tokenizer):
    torch.manual_seed(0)
    model = TorchEncoder(**how).eval()
    if not METHODS[method].any_model:
        with pytest.raises(ValueError, match='TorchEncoder'):
            explain(model, tokenizer, TEXTS[:1], method)
        return
    both = explain(model, tokenizer, TEXTS[:2], method)
    (alone,) = explain(model, tokenizer, TEXTS[:1], method)
    close(both[0].scores, alone.scores, 1e-3)
