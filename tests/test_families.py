"Every family: coverage, conservation, eager = sdpa, Llama and ViT derived again, every method."

import copy
import math
import threading
from dataclasses import replace
from functools import cache

import naive_llama
import naive_vit
import pytest
import torch
import transformers
from conftest import TEXTS
from families import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    VISION,
    family_row,
    family_tasks,
    random_inputs,
    random_model,
    relevance_of,
)
from test_lrp import close
from torch import nn
from torch.nn import functional as F

from lrp_loo import attn_lrp, attribute_context, cp_lrp, explain, load_demo, lrp_rules
from lrp_loo.asked.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.engines import subset_logits
from lrp_loo.lrp.conservation import conservation, conservation_by_layer
from lrp_loo.lrp.more_rules import gamma_rule, identity_rule
from lrp_loo.methods import METHODS, explain_batch
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.trust.audit import audit

# built once; a test that changes a model builds its own
shared_model = cache(random_model)
FUSED = [(f, task) for f, task in family_tasks() if FAMILIES[f].fused]
FOUR = [
    ('BERT', 'class'),
    ('Llama', 'next token'),
    ('ViT', 'image'),
    ('ALBERT', 'class'),
]
BOTH_RULE_SETS = [attn_lrp(), cp_lrp()]


def by_name(value):
    return getattr(value, 'name', None)


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


@pytest.mark.parametrize('family', ['DeBERTa-v2', 'Gemma 2'])
def test_families_without_fused_attention_say_so(family):
    assert not FAMILIES[family].fused
    # some versions of transformers run Gemma 2 in it, without its soft caps
    if getattr(FAMILIES[family].model_class('class'), '_supports_sdpa', False):
        pytest.skip('this version of transformers takes fused attention here')
    with pytest.raises(ValueError, match='scaled_dot_product_attention'):
        random_model(family, attention='sdpa')


@pytest.mark.parametrize('composite', BOTH_RULE_SETS, ids=by_name)
@pytest.mark.parametrize('family,task', FUSED)
def test_eager_is_sdpa_in_single_precision(family, task, composite):
    eager, fused = (
        shared_model(family, task, attention, dtype=torch.float32)
        for attention in ('eager', 'sdpa')
    )
    inputs = random_inputs(eager)
    close(
        relevance_of(fused, inputs, composite).R,
        relevance_of(eager, inputs, composite).R,
        1e-5,
    )


def naive_llama_of(model, inputs, **options):
    "Logits and relevance, derived again in float64."
    weights = {k: v.double() for k, v in model.state_dict().items()}
    return naive_llama.explain(
        weights,
        inputs['input_ids'][0],
        layers=3,
        heads=4,
        kv_heads=2,
        rms_eps=model.config.rms_norm_eps,
        **options,
    )


@pytest.mark.parametrize('gates', ['half', 'constant'])
@pytest.mark.parametrize(
    # transformers computes RMSNorm in float32 whatever the model's precision
    'dtype,rel',
    [(torch.float64, 1e-4), (torch.float32, 5e-3)],
)
@pytest.mark.parametrize('bypass', [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize('task,head', [('next token', 'lm'), ('class', 'score')])
def test_llama_is_the_naive_one(task, head, bypass, dtype, rel, gates):
    model = shared_model(
        'Llama', task, 'sdpa', dtype=dtype, attention_bias=True, mlp_bias=True
    )
    inputs = random_inputs(model)
    composite = replace(attn_lrp(bypass), gate=gates)
    R, out, _ = relevance_of(model, inputs, composite, strict=True)
    logits, naive = naive_llama_of(model, inputs, bypass=bypass, gates=gates, head=head)
    got = out.logits[0, -1] if head == 'lm' else out.logits[0]
    assert (got - logits).abs().max() < 1e-4 * logits.abs().max()
    close(R.double(), naive, rel)


def test_llama_at_another_position_and_target():
    model = shared_model('Llama', 'next token', 'sdpa')
    inputs = random_inputs(model)
    R = relevance_of(model, inputs, attn_lrp(), Target(7, position=5)).R
    _, naive = naive_llama_of(model, inputs, target=7, position=5)
    close(R, naive, 1e-4)
    assert R[6:].abs().max() == 0


@pytest.mark.parametrize('dtype,rel', [(torch.float64, 1e-6), (torch.float32, 2e-3)])
@pytest.mark.parametrize('bypass', [(), (0, 2), (0, 1, 2)])
def test_vit_is_the_naive_one(bypass, dtype, rel):
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


# a method that names the models it takes is tried where it does so
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
def test_loo_of_a_text_family_is_a_masked_pass_for_each_token(tokenizer, family):
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


@text_families
def test_words_and_a_contrast_of_a_text_family(tokenizer, family):
    model = text_model(family)
    (words,) = explain(model, tokenizer, TEXTS[0], method='loo', units='word')
    assert 'jokes' in words.tokens
    contrast, one, zero = (
        explain(model, tokenizer, TEXTS[0], target=target)[0].scores
        for target in ((1, 0), 1, 0)
    )
    assert len(words) <= len(contrast)
    close(contrast, one - zero, 1e-2)


def vision_model(family):
    return shared_model(family, 'image', 'sdpa', dtype=torch.float32)


def two_images(model):
    g = torch.Generator().manual_seed(3)
    config = getattr(model.config, 'vision_config', model.config)
    return [torch.rand(config.num_channels, 28, 28, generator=g) for _ in range(2)]


vision_families = pytest.mark.parametrize('family', VISION)


@vision_families
def test_every_method_explains_images_in_batches_as_if_alone(family):
    model = vision_model(family)
    images = two_images(model)
    for m in OF_ANY_MODEL:
        both = explain(model, None, images, method=m)
        assert [len(a.scores) for a in both] == [16, 16], m
        assert both[0].info['grid'] == (4, 4), m
        (alone,) = explain(model, None, images[1], method=m)
        close(both[1].scores, alone.scores, 1e-2)


@vision_families
@pytest.mark.parametrize('patch', [0, 7])
def test_loo_of_an_image_zeroes_a_patchs_embedding(family, patch):
    model = vision_model(family)
    image = two_images(model)[0]
    (loo,) = explain(model, None, image, method='loo')
    pixels = {'pixel_values': image[None]}
    with torch.no_grad(), watch_embeddings(model) as seen:
        whole = forward(model, pixels).logits[0]
    gone = seen[0].detach().clone()
    if gone.ndim == 3:
        gone[0, patch] = 0
    else:
        gone[0, :, patch // 4, patch % 4] = 0
    with torch.no_grad(), watch_embeddings(model, gone):
        less = forward(model, pixels).logits[0]
    assert abs(loo.scores[patch] - (whole - less)[loo.target]) < 1e-4


@vision_families
def test_an_audit_of_images(family):
    model = vision_model(family)
    methods = ['loo', 'attn_lrp', 'cp_lrp', 'rollout']
    t = audit(model, None, two_images(model), methods, progress=False)
    assert t.loc['loo', 'loo_r'] > 0.999
    assert t.loo_r.abs().max() <= 1


@vision_families
@pytest.mark.parametrize(
    'image, error, said',
    [
        # a processor would fetch an address
        ('text', TypeError, 'nothing is fetched'),
        ('https://example.org/cat.png', TypeError, 'nothing is fetched'),
        (('a', 'b'), TypeError, 'nothing is fetched'),
        (7, TypeError, 'float tensor'),
        (torch.nan, ValueError, 'NaN'),
        (None, ValueError, 'zero_embedding'),
    ],
)
def test_what_is_no_image_or_cannot_be_removed_is_refused(family, image, error, said):
    model = vision_model(family)
    own = two_images(model)[0]
    how = dict(method='loo', removal='delete') if image is None else {}
    if image is None or image is torch.nan:
        image = own if image is None else torch.full_like(own, torch.nan)
    with pytest.raises(error, match=said):
        explain(model, None, [image], **how)


def test_start_end_and_words_of_an_answer(tokenizer):
    model = shared_model('BERT', 'answer', vocab_size=30522, dtype=torch.float32)
    pair = [('Who sang?', 'The lead sang every song.')]
    start, end = (
        explain(model, tokenizer, pair, target=Target(output=field))[0]
        for field in ('start_logits', 'end_logits')
    )
    assert 0 <= start.target < len(start)
    assert start.scores.shape == end.scores.shape
    assert not torch.allclose(start.scores, end.scores)

    def both(out):
        "A function of the output is a target."
        from_start = out.start_logits[:, start.target]
        return from_start + out.end_logits[:, end.target]

    (a,) = explain(model, tokenizer, pair, target=both)
    close(a.scores, start.scores + end.scores, 1e-3)
    how = dict(target=Target(output='end_logits'), method='loo', units='word')
    (loo,) = explain(model, tokenizer, pair, **how)
    assert 'song' in loo.tokens
    assert loo.target == end.target


def test_a_pair_of_sentences_is_explained(tokenizer):
    sizes = dict(vocab_size=30522, dtype=torch.float32, num_labels=3)
    nli = random_model('BERT', 'class', **sizes)
    pair = ('It rains.', 'It is wet.')
    (a,) = explain(nli, tokenizer, [pair], method='loo', target=(2, 0))
    assert a.target == (2, 0)
    assert a.tokens.count('[SEP]') == 2


def predictor():
    sizes = dict(vocab_size=30522, dtype=torch.float32)
    return shared_model('Llama', 'next token', 'sdpa', **sizes)


def test_a_word_can_be_the_target_and_an_early_place_sees_nothing_behind_it(tokenizer):
    (film,) = explain(predictor(), tokenizer, TEXTS[0], target='film')
    token = tokenizer.convert_tokens_to_ids('film')
    assert (film.label, film.target) == ('film', token)
    how = dict(target=Target(token, position=3), method='loo')
    (early,) = explain(predictor(), tokenizer, TEXTS[0], **how)
    assert early.scores[4:].abs().max() < 1e-5
    assert early.scores[:4].abs().max() > 1e-3


@pytest.mark.parametrize(
    'target,said',
    [
        (Target(0, position=99), 'is not in the text'),
        ('unforgettably', 'tokens for this tokenizer'),
        (30522, 'take 0 to 30521'),
    ],
)
def test_a_target_that_is_none_is_refused(tokenizer, target, said):
    with pytest.raises(ValueError, match=said):
        explain(predictor(), tokenizer, TEXTS[0], target=target)


def test_a_classifier_without_padding_takes_one_text_at_a_time(tokenizer):
    sizes = dict(vocab_size=30522, dtype=torch.float32, pad_token_id=None)
    model = random_model('Llama', 'class', 'sdpa', **sizes)
    with pytest.raises(ValueError, match='pad_token_id'):
        explain(model, tokenizer, TEXTS[0], method='loo')
    (alone,) = explain(model, tokenizer, TEXTS[0])
    enc = encode(model, tokenizer, TEXTS[0])
    assert len(alone.scores) == enc['input_ids'].shape[1]


# a sliding window sees further when tokens are dropped: it is masked instead
@pytest.mark.parametrize('family', ['Llama', 'Mistral'])
def test_dropping_is_masking_on_a_decoder(family):
    model = shared_model(family, 'next token', 'sdpa')
    dropped, masked = (
        leave_one_out(model, random_inputs(model), drop=drop)[0]
        for drop in (None, False)
    )
    close(dropped, masked, 1e-4)


HEADED = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)
SMALL = dict(HEADED, vocab_size=200, max_position_embeddings=64)
PATCHED = dict(HEADED, image_size=28, patch_size=7)
PADDED = dict(SMALL, pad_token_id=0)
# families that the package does not name → configuration
OTHERS = {
    'OPTForCausalLM': dict(PADDED, ffn_dim=64, word_embed_proj_dim=32),
    'GPTNeoXForCausalLM': SMALL,
    'FalconForCausalLM': SMALL,
    'Olmo2ForCausalLM': PADDED,
    'CohereForCausalLM': PADDED,
    'GPTJForCausalLM': dict(
        vocab_size=200, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4
    ),
    'MPNetForSequenceClassification': SMALL,
    'RoFormerForSequenceClassification': SMALL,
    'SqueezeBertForSequenceClassification': dict(SMALL, embedding_size=32),
    'ConvBertForSequenceClassification': dict(SMALL, embedding_size=32),
    'BeitForImageClassification': PATCHED,
    'Dinov2ForImageClassification': PATCHED,
    'SiglipForImageClassification': dict(
        vision_config=PATCHED, text_config=dict(HEADED, num_hidden_layers=1)
    ),
    'SwinForImageClassification': dict(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
    ),
    'BloomForCausalLM': dict(vocab_size=200, hidden_size=32, n_layer=2, n_head=4),
    'MambaForCausalLM': dict(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
}
# what has no rule in them
WITHOUT_RULE = {
    'BloomForCausalLM': ['GeLUFunctionBackward'],
    'MambaForCausalLM': ['exp'],
}


@cache
def other_model(name):
    cls = getattr(transformers, name)
    config = cls.config_class(**OTHERS[name])
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation='eager')
    model = model.eval().double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.2)
    return model


def other_inputs(name):
    if not name.startswith('Swin'):
        return random_inputs(other_model(name))
    g = torch.Generator().manual_seed(0)
    pixels = torch.rand(1, 3, 32, 32, generator=g, dtype=torch.double)
    return {'pixel_values': pixels}


other_families = pytest.mark.parametrize('name', OTHERS)
both_rule_sets = pytest.mark.parametrize('c', BOTH_RULE_SETS, ids=by_name)


@pytest.mark.filterwarnings('ignore:no rule')
@both_rule_sets
@other_families
def test_another_family_is_made_of_known_operations_or_what_is_not_is_named(name, c):
    model, inputs = other_model(name), other_inputs(name)
    rules = relevance_of(model, inputs, c).rules
    assert rules.without_rule() == WITHOUT_RULE.get(name, [])
    # cp_lrp alone holds attention constant
    report = rules.report()
    attention = ('softmax', 'scaled_dot_product_attention')
    attention += ('multi_head_attention_forward',)
    used = set(report[report.operation.isin(attention)].rule)
    constant = c.name == 'cp_lrp' and not name.startswith('Mamba')
    assert ('constant weights' in used) == constant
    # relevance is lost only where there is no rule
    s = conservation(model, inputs, c)
    lost = abs(s['remainder']) / max(map(abs, s.values()))
    if name in WITHOUT_RULE:
        assert lost > 1e-4  # how much depends on the random weights
    else:
        assert lost < 1e-5


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


def place_in_layer_1(model):
    "A linear layer's path."
    return next(
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and 'layer' in path and '.1.' in path
    )


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
    place = PLACES[family] or place_in_layer_1(model)
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


@pytest.mark.parametrize('fault', [Secret, Scripted])
@pytest.mark.parametrize(
    'family,task,head',
    [
        ('BERT', 'class', 'classifier'),
        ('Llama', 'next token', 'lm_head'),
        ('ViT', 'image', 'classifier'),
    ],
)
def test_a_hidden_operation_at_the_very_end_is_found(family, task, head, fault):
    model = random_model(family, task)
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


def test_what_a_forgotten_rule_loses_shows_up_in_its_layer():
    faulty = random_model('BERT')
    plant(faulty, Twist, PLACES['BERT'])
    with pytest.warns(UserWarning, match='sin'):
        t = conservation_by_layer(faulty, random_inputs(faulty), attn_lrp())
    assert t.set_index('layer').remainder.abs().idxmax() == 1


def test_two_threads_with_two_rule_sets_give_the_serial_maps_100_times():
    model = random_model(
        'Llama', 'class', 'sdpa', dtype=torch.float32, num_hidden_layers=2
    )
    inputs = random_inputs(model)
    serial = {c: relevance_of(model, inputs, c).R for c in (attn_lrp([1]), cp_lrp())}
    wrong = []
    rounds = []
    barrier = threading.Barrier(2)

    def work(c):
        for _ in range(100):
            barrier.wait()
            rounds.append(c)
            if not torch.equal(relevance_of(model, inputs, c).R, serial[c]):
                wrong.append(c.name)

    threads = [threading.Thread(target=work, args=(c,)) for c in serial]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert len(rounds) == 200
    for m in model.modules():
        assert not m._forward_hooks
        assert not m._forward_pre_hooks


def test_a_compiled_model_is_explained_through_the_eager_one(demo):
    model, tokenizer = demo
    (plain,) = explain(model, tokenizer, TEXTS[2])
    compiled = torch.compile(model)
    (a,) = explain(compiled, tokenizer, TEXTS[2])
    assert torch.equal(a.scores, plain.scores)
    in_place = random_model('BERT', dtype=torch.float32)
    in_place.compile()
    for refused in (compiled, in_place):
        with pytest.raises(TypeError, match='compiled'):
            lrp_rules(refused, attn_lrp())


def test_most_of_a_map_survives_half_precision(demo):
    model, tokenizer = demo
    half = copy.deepcopy(model).bfloat16()
    for method, r in (('attn_lrp', 0.9), ('cp_lrp', 0.99), ('loo', 0.9)):
        a, b = (
            explain(m, tokenizer, TEXTS[2], method=method)[0].scores
            for m in (half, model)
        )
        assert torch.isfinite(a).all()
        assert torch.corrcoef(torch.stack([a, b]))[0, 1] > r, method


@cache
def five_layers(family, task):
    layers = 'n_layer' if family == 'GPT-2' else 'num_hidden_layers'
    return random_model(family, task, **{layers: 5})


@pytest.mark.parametrize(
    'composite', [attn_lrp(), cp_lrp(), attn_lrp([2])], ids=['attn', 'cp', 'one']
)
@pytest.mark.parametrize(
    'family,task',
    [
        ('BERT', 'class'),
        ('Llama', 'next token'),
        ('ViT', 'image'),
        ('GPT-2', 'class'),
        ('Gemma 3', 'next token'),
    ],
)
def test_checkpointing_changes_nothing(family, task, composite):
    model = five_layers(family, task)
    inputs = [random_inputs(model)]
    plain, saving = (
        lrp_scores(model, None, inputs, composite=composite, checkpoint=on)
        for on in (False, True)
    )
    close(plain.scores, saving.scores, 1e-5)


def test_checkpointing_mends_rows_that_see_nothing():
    "Padding on the left in double precision, where −∞ would make NaN."
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


def test_layers_that_share_weights_are_not_checkpointed():
    model = shared_model('ALBERT')
    with pytest.raises(NotImplementedError, match='share weights'):
        lrp_scores(model, None, [random_inputs(model)], checkpoint=True)


def test_an_encoded_image_and_its_subsets():
    model = shared_model('ViT', 'image', dtype=torch.float32)
    inputs = random_inputs(model)
    (a,) = explain_batch(model, None, [inputs], 'attn_lrp')
    assert a.scores.shape == (16,)
    s = conservation(model, inputs, cp_lrp())
    assert abs(s['remainder']) < 1e-2 * abs(s['logit'])
    keep = torch.ones(2, 16, dtype=torch.bool)
    keep[1] = False
    whole, none = subset_logits(model, inputs, keep, 'zero_embedding')
    with torch.no_grad():
        close(whole, model(**inputs).logits[0], 1e-5)
    with torch.no_grad(), watch_embeddings(model, torch.zeros(1, 16, 32)):
        close(none, forward(model, inputs).logits[0], 1e-5)


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
    assert a.logit < 0
    assert a.label == ANSWER


def log_likelihood(model, ids, n_answer, mask):
    "Of the last tokens, each from those before it."
    with torch.no_grad():
        out = model(
            input_ids=ids[None], attention_mask=mask.long()[None], use_cache=False
        )
    lp = out.logits[0].log_softmax(-1)
    places = range(len(ids) - n_answer, len(ids))
    return sum(lp[place - 1, ids[place]] for place in places)


def test_hiding_a_sentence_by_hand_gives_its_loo(reviews):
    model, tok = reviews
    loo = attribute_context(model, tok, CONTEXT, ANSWER, 'Is it good?')
    sentence = torch.tensor(loo.info['unit_of_token'])
    answer = tok(ANSWER, add_special_tokens=False)['input_ids']
    n = len(answer)
    assert loo.input_ids[-n:].tolist() == answer
    everything = torch.ones_like(loo.input_ids)
    whole = log_likelihood(model, loo.input_ids, n, everything)
    assert abs(whole - loo.logit) < 1e-4
    for k in range(3):
        less = log_likelihood(model, loo.input_ids, n, sentence != k)
        assert abs((whole - less) - loo.scores[k]) < 1e-4


@pytest.mark.parametrize(
    'changes, error, said',
    [
        (dict(context=' '), ValueError, 'context is empty'),
        (dict(model='llama'), TypeError, 'torch module'),
        (dict(units=[(0, 5), (3, 8)]), ValueError, 'overlap'),
    ],
)
def test_what_is_no_context_is_refused(reviews, changes, error, said):
    model, tokenizer = reviews
    asked = dict(model=model, tokenizer=tokenizer, context=CONTEXT, answer='bad')
    with pytest.raises(error, match=said):
        attribute_context(**asked | changes)


@pytest.fixture(scope='module')
def gpt2():
    return random_model('GPT-2', 'next token')


def places_of_rule(model, composite, rule):
    "The report's lines that a rule has handled, strictly."
    inputs = random_inputs(model)
    rules = relevance_of(model, inputs, composite, strict=True).rules
    report = rules.report()
    return report[report.rule == rule]


def test_a_rule_of_ones_own_for_an_operation_in_a_layer(gpt2):
    def unchanged(f, *args, **kw):
        return f(*args, **kw)

    mine = attn_lrp().with_rule(F.layer_norm, unchanged, layers=[2])
    assert set(places_of_rule(gpt2, mine, 'unchanged').layer) == {2}


def test_a_rule_of_ones_own_for_a_module_as_one_operation(gpt2):
    mine = attn_lrp().with_rule(torch.nn.LayerNorm, identity_rule, modules='*.h.1.ln_1')
    found = places_of_rule(gpt2, mine, 'identity_rule')
    assert found.operation.tolist() == ['LayerNorm']
    inputs = random_inputs(gpt2)
    plain, changed = (relevance_of(gpt2, inputs, c).R for c in (attn_lrp(), mine))
    assert not torch.allclose(changed, plain)


def test_a_rule_of_ones_own_where_a_predicate_holds():
    def reads_queries(op):
        return op.module.endswith('query')

    only = attn_lrp().with_rule('linear', gamma_rule(1.0), where=reads_queries)
    found = places_of_rule(shared_model('BERT'), only, 'gamma_linear')
    assert found.module.str.endswith('query').all()
    assert len(found) == 3


def test_a_rule_that_changes_numbers_is_caught():
    def doubled(f, *args):
        return 2 * f(*args)

    bert = shared_model('BERT')
    wrong = attn_lrp().with_rule('linear', doubled)
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
