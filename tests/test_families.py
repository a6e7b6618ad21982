"Every family: coverage, conservation, eager = sdpa, independent re-derivations of Llama and ViT, and every method through the public calls."

import copy
import threading
from dataclasses import replace

import naive_llama
import naive_vit
import pytest
import torch
import transformers
from conftest import TEXTS
from test_lrp import close
from torch import nn
from torch.nn import functional as F

from lrp_loo import (
    attn_lrp,
    attribute_context,
    cp_lrp,
    explain,
    load_demo,
    lrp_rules,
)
from lrp_loo.methods import METHODS, explain_batch, lrp_scores
from lrp_loo.conservation import conservation, conservation_by_layer
from lrp_loo.faithfulness import audit
from lrp_loo.studies.families import (
    FAMILIES,
    family_row,
    family_tasks,
    random_inputs,
    random_model,
    relevance_of,
)
from lrp_loo.models import encode, forward, watch_embeddings
from lrp_loo.loo import leave_one_out
from lrp_loo.variants import subset_logits
from lrp_loo.rules import gamma_rule, identity_rule
from lrp_loo.targets import Target

VISION = ('ViT', 'DeiT', 'CLIP vision')


@pytest.mark.parametrize('family,task', family_tasks())
def test_a_family_is_covered_conserved_and_the_same_under_both_attentions(
    family, task
):
    r = family_row(family, task)
    assert r['uncovered'] == 0 and r['logits'] < 1e-9 and r['operations'] > 8
    for c in ('attn', 'cp'):
        assert r[f'{c} conserved to'] < 1e-5
        assert (
            family in ('DeBERTa-v2', 'Gemma 2')
            and r[f'{c} eager = sdpa to'] != r[f'{c} eager = sdpa to']
            or r[f'{c} eager = sdpa to'] < 1e-5
        )


@pytest.mark.parametrize(
    'family,task',
    [(f, t) for f, t in family_tasks() if f not in ('DeBERTa-v2', 'Gemma 2')],
)
def test_eager_is_sdpa_in_single_precision(family, task):
    eager, fused = (
        random_model(family, task, a, dtype=torch.float32)
        for a in ('eager', 'sdpa')
    )
    inputs = random_inputs(eager)
    for c in (attn_lrp(), cp_lrp()):
        close(
            relevance_of(fused, inputs, c)[0],
            relevance_of(eager, inputs, c)[0],
            1e-5,
        )


@pytest.mark.parametrize(
    'dtype,rel', [(torch.float64, 1e-4), (torch.float32, 5e-3)]
)
@pytest.mark.parametrize('bypass', [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize(
    'task,head', [('next token', 'lm'), ('class', 'score')]
)
def test_llama_is_the_naive_one(task, head, bypass, dtype, rel):
    model = random_model(
        'Llama',
        task,
        'sdpa',
        bias=True,
        dtype=dtype,
        attention_bias=True,
        mlp_bias=True,
    )
    inputs = random_inputs(model)
    c = model.config
    for gates in ('half', 'constant'):
        R, out, _ = relevance_of(
            model, inputs, replace(attn_lrp(bypass), gate=gates), strict=True
        )
        logits, naive = naive_llama.explain(
            {k: v.double() for k, v in model.state_dict().items()},
            inputs['input_ids'][0],
            layers=3,
            heads=4,
            kv_heads=2,
            rms_eps=c.rms_norm_eps,
            bypass=bypass,
            gates=gates,
            head=head,
        )
        got = out.logits[0, -1] if head == 'lm' else out.logits[0]
        assert (got - logits).abs().max() < 1e-4 * logits.abs().max()
        close(
            R.double(),
            naive,
            rel,
            # transformers computes RMSNorm in float32 whatever the model's
            # precision
        )


def test_llama_at_another_position_and_target():
    model = random_model('Llama', 'next token', 'sdpa')
    inputs = random_inputs(model)
    R = relevance_of(model, inputs, attn_lrp(), Target(7, position=5))[0]
    _, naive = naive_llama.explain(
        model.state_dict(),
        inputs['input_ids'][0],
        layers=3,
        heads=4,
        kv_heads=2,
        rms_eps=model.config.rms_norm_eps,
        target=7,
        position=5,
    )
    close(R, naive, 1e-4)
    assert R[6:].abs().max() == 0


@pytest.mark.parametrize(
    'dtype,rel', [(torch.float64, 1e-6), (torch.float32, 2e-3)]
)
@pytest.mark.parametrize('bypass', [(), (0, 2), (0, 1, 2)])
def test_vit_is_the_naive_one(bypass, dtype, rel):
    model = random_model('ViT', 'image', 'sdpa', dtype=dtype)
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


@pytest.mark.parametrize('family', [f for f in FAMILIES if f not in VISION])
def test_every_method_on_every_text_family(tokenizer, family):
    """Batched with padding = one at a time; LOO = one masked pass at a time,
    whole words too; a contrast is a difference.
    """
    task = (
        'next token'
        if ('Llama' in family or 'GPT' in family or 'Gemma' in family)
        else 'class'
    )
    model = random_model(
        family,
        task,
        'eager',
        dtype=torch.float32,
        vocab_size=30522,
        pad_token_id=0,
    )
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.ndim > 1:
                p.mul_(
                    1.0 if family == 'DeBERTa-v2' else 0.3
                )  # float32: keep rounding small
    texts = TEXTS[:2]
    for m in METHODS:
        both = explain(model, tokenizer, texts, method=m)
        for t, a in zip(texts, both):
            alone = explain(model, tokenizer, t, method=m)[0]
            assert torch.isfinite(a.scores).all() and alone.target == a.target
            assert (
                (a.scores - alone.scores).abs().max()
                <= 2e-2 * max(alone.scores.abs().max(), 1e-3)
                # gradient × input is 0 where LayerNorm follows the embeddings
                # at once
            )
    (a,) = explain(model, tokenizer, texts[0], method='loo')
    enc = encode(model, tokenizer, texts[0])

    def read(out):
        return (out.logits[0, -1] if task == 'next token' else out.logits[0])[
            a.target
        ]

    with torch.no_grad():
        for i in range(len(a)):
            mask = enc['attention_mask'].clone()
            mask[0, i] = 0
            assert abs(
                a.scores[i]
                - (
                    a.logit
                    - read(forward(model, enc | {'attention_mask': mask}))
                )
            ) < 1e-3 * max(1, abs(a.logit)), i
    words = explain(model, tokenizer, texts[0], method='loo', units='word')[0]
    assert 'jokes' in words.tokens and len(words) < len(a) + 1
    contrast = explain(
        model, tokenizer, texts[0], method='attn_lrp', target=(1, 0)
    )[0].scores
    one, zero = (
        explain(model, tokenizer, texts[0], method='attn_lrp', target=t)[
            0
        ].scores
        for t in (1, 0)
    )
    close(contrast, one - zero, 1e-2)


@pytest.mark.parametrize('family', VISION)
def test_every_method_on_every_vision_family(family):
    model = random_model(family, 'image', 'sdpa', dtype=torch.float32)
    g = torch.Generator().manual_seed(3)
    channels = getattr(model.config, 'vision_config', model.config).num_channels
    images = [torch.rand(channels, 28, 28, generator=g) for _ in range(2)]
    for m in METHODS:
        both = explain(model, None, images, method=m)
        assert [len(a) for a in both] == [16, 16] and both[0].info['grid'] == (
            4,
            4,
        )
        close(
            both[1].scores,
            explain(model, None, images[1], method=m)[0].scores,
            1e-2,
        )
    loo = explain(model, None, images[0], method='loo')[0]
    with torch.no_grad(), watch_embeddings(model) as seen:
        whole = forward(model, {'pixel_values': images[0][None]}).logits[0]
    x = seen[0].detach()
    for i in (0, 7):
        gone = x.clone()
        if x.ndim == 3:
            gone[0, i] = 0
        else:
            gone[0, :, i // 4, i % 4] = 0
        with torch.no_grad(), watch_embeddings(model, gone):
            less = forward(model, {'pixel_values': images[0][None]}).logits[0]
        assert abs(loo.scores[i] - (whole - less)[loo.target]) < 1e-4
    t = audit(
        model,
        None,
        images,
        ['loo', 'attn_lrp', 'cp_lrp', 'rollout'],
        progress=False,
    )
    assert t.loc['loo', 'loo_r'] > 0.999 and t.loo_r.abs().max() <= 1
    with pytest.raises(ValueError, match='zero_embedding'):
        explain(model, None, images, method='loo', removal='delete')
    for x in (
        ['text'],
        ['https://example.org/cat.png'],
        [('a', 'b')],
    ):  # a processor would fetch an address
        with pytest.raises(TypeError, match='nothing is fetched'):
            explain(model, None, x)
    with pytest.raises(TypeError, match='float tensor'):
        explain(model, None, [7])
    with pytest.raises(ValueError, match='NaN'):
        explain(model, None, [torch.full((channels, 28, 28), float('nan'))])


def test_question_answering_and_pairs(tokenizer):
    model = random_model(
        'BERT', 'answer', vocab_size=30522, dtype=torch.float32
    )
    pair = ('Who sang?', 'The lead sang every song.')
    (start,) = explain(
        model, tokenizer, [pair], target=Target(output='start_logits')
    )
    (end,) = explain(
        model, tokenizer, [pair], target=Target(output='end_logits')
    )
    assert (
        0 <= start.target < len(start)
        and start.scores.shape == end.scores.shape
        and not torch.allclose(start.scores, end.scores)
    )
    (both,) = explain(
        model,
        tokenizer,
        [pair],
        target=lambda o: (
            o.start_logits[:, start.target] + o.end_logits[:, end.target]
        ),
    )
    close(both.scores, start.scores + end.scores, 1e-3)
    (loo,) = explain(
        model,
        tokenizer,
        [pair],
        method='loo',
        target=Target(output='end_logits'),
        units='word',
    )
    assert 'song' in loo.tokens and loo.target == end.target
    nli = random_model(
        'BERT', 'class', vocab_size=30522, dtype=torch.float32, num_labels=3
    )
    (a,) = explain(
        nli,
        tokenizer,
        [('It rains.', 'It is wet.')],
        method='loo',
        target=(2, 0),
    )
    assert a.target == (2, 0) and a.tokens.count('[SEP]') == 2


def test_decoder_targets(tokenizer):
    model = random_model(
        'Llama', 'next token', 'sdpa', vocab_size=30522, dtype=torch.float32
    )
    text = TEXTS[0]
    (film,) = explain(model, tokenizer, text, target='film')
    assert (
        film.label == 'film'
        and film.target == tokenizer.convert_tokens_to_ids('film')
    )
    (early,) = explain(
        model,
        tokenizer,
        text,
        target=Target(film.target, position=3),
        method='loo',
    )
    assert (
        early.scores[4:].abs().max() < 1e-5
        and early.scores[:4].abs().max() > 1e-3
    )
    with pytest.raises(ValueError, match='is not in the text'):
        explain(model, tokenizer, text, target=Target(0, position=99))
    with pytest.raises(ValueError, match='tokens for this tokenizer'):
        explain(model, tokenizer, text, target='unforgettably')
    with pytest.raises(ValueError, match='take 0 to 30521'):
        explain(model, tokenizer, text, target=30522)
    no_pad = random_model(
        'Llama',
        'class',
        'sdpa',
        vocab_size=30522,
        dtype=torch.float32,
        pad_token_id=None,
    )
    with pytest.raises(ValueError, match='pad_token_id'):
        explain(no_pad, tokenizer, text, method='loo')
    assert len(explain(no_pad, tokenizer, text)[0]) == film.scores.shape[0]


def test_dropping_is_masking_on_a_decoder():
    model = random_model('Llama', 'next token', 'sdpa')
    inputs = random_inputs(model)
    a, b = (leave_one_out(model, inputs, drop=d)[0] for d in (None, False))
    close(a, b, 1e-4)
    window = random_model('Mistral', 'next token', 'sdpa')
    a, b = (
        leave_one_out(window, random_inputs(window), drop=d)[0]
        for d in (None, False)
    )
    close(
        a,
        b,
        1e-4,
        # a sliding window sees further when tokens are dropped: it is masked
        # instead
    )


_SMALL = dict(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)
_PATCHES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=28,
    patch_size=7,
)
# families that the package does not name → configuration, what has no rule
OTHERS = {
    'OPTForCausalLM': (
        dict(_SMALL, ffn_dim=64, word_embed_proj_dim=32, pad_token_id=0),
        '',
    ),
    'GPTNeoXForCausalLM': (_SMALL, ''),
    'FalconForCausalLM': (_SMALL, ''),
    'Olmo2ForCausalLM': (dict(_SMALL, pad_token_id=0), ''),
    'CohereForCausalLM': (dict(_SMALL, pad_token_id=0), ''),
    'GPTJForCausalLM': (
        dict(
            vocab_size=200,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            rotary_dim=4,
        ),
        '',
    ),
    'MPNetForSequenceClassification': (_SMALL, ''),
    'RoFormerForSequenceClassification': (_SMALL, ''),
    'SqueezeBertForSequenceClassification': (
        dict(_SMALL, embedding_size=32),
        '',
    ),
    'ConvBertForSequenceClassification': (dict(_SMALL, embedding_size=32), ''),
    'BeitForImageClassification': (_PATCHES, ''),
    'Dinov2ForImageClassification': (_PATCHES, ''),
    'SiglipForImageClassification': (
        dict(
            vision_config=_PATCHES,
            text_config=dict(
                hidden_size=32,
                num_hidden_layers=1,
                num_attention_heads=4,
                intermediate_size=64,
            ),
        ),
        '',
    ),
    'SwinForImageClassification': (
        dict(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 2],
            window_size=4,
        ),
        '',
    ),
    'BloomForCausalLM': (
        dict(vocab_size=200, hidden_size=32, n_layer=2, n_head=4),
        'GeLUFunctionBackward',
    ),
    'MambaForCausalLM': (
        dict(vocab_size=200, hidden_size=32, num_hidden_layers=2, state_size=4),
        'exp',
    ),
}


def test_experts():
    """A mixture of experts: covered and conserved under CP-LRP; AttnLRP has no
    rule for a division by an activation, and says so.
    """
    torch.manual_seed(0)
    cls = transformers.MixtralForCausalLM
    model = cls._from_config(
        cls.config_class(
            **_SMALL, num_key_value_heads=2, pad_token_id=0, num_local_experts=4
        ),
        attn_implementation='sdpa',
    ).eval()
    inputs = random_inputs(model)
    relevance_of(model, inputs, cp_lrp(), strict=True)
    s = conservation(model, inputs, cp_lrp())
    assert abs(s['remainder']) < 1e-5 * abs(s['logit'])
    with pytest.raises(NotImplementedError, match='div_'):
        relevance_of(model, inputs, attn_lrp(), strict=True)


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('name', OTHERS)
def test_families_that_the_package_does_not_name(name):
    """Made of known operations: covered and conserved with no code for them.
    Where an operation is not known it is named, and relevance is lost only
    then.
    """
    config, missing = OTHERS[name]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = (
        cls._from_config(
            cls.config_class(**config), attn_implementation='eager'
        )
        .eval()
        .double()
    )
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.2)
    inputs = (
        {'pixel_values': torch.rand(1, 3, 32, 32, dtype=torch.double)}
        if name.startswith('Swin')
        else random_inputs(model)
    )
    for c in (attn_lrp(), cp_lrp()):
        rules = relevance_of(model, inputs, c)[2]
        assert rules.without_rule() == ([missing] if missing else [])
        s = conservation(model, inputs, c)
        lost = abs(s['remainder']) / max(map(abs, s.values()))
        assert lost > 1e-3 if missing else lost < 1e-5, (c.name, lost)
        weights = rules.report().query(
            "operation in ('softmax', 'scaled_dot_product_attention',"
            " 'multi_head_attention_forward')"
        )
        assert missing == 'exp' or (
            weights.rule == 'constant weights'
        ).any() == (c.name == 'cp_lrp'), (
            c.name
        )  # CP-LRP reaches the attention of every model


class Twist(nn.Module):  # an unlisted nonlinearity
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kw):
        return torch.sin(self.inner(*args, **kw))


class Hidden(
    torch.autograd.Function
):  # two activations multiplied out of torch's sight
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Secret(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(x)
        return Hidden.apply(y, y)


@torch.jit.script
def scripted(a, b):
    return a * b


class Scripted(Secret):
    def forward(self, x):
        y = self.inner(x)
        return scripted(y, y)


@pytest.mark.parametrize(
    'fault,said',
    [(Twist, 'sin'), (Secret, 'HiddenBackward'), (Scripted, 'Backward')],
)
@pytest.mark.parametrize(
    'family,place',
    [
        ('BERT', 'bert.encoder.layer.1.intermediate.dense'),
        ('Llama', 'model.layers.1.mlp.up_proj'),
        ('ViT', None),
    ],
)
def test_planted_faults_are_found(family, place, fault, said):
    model = random_model(
        family, 'image' if family == 'ViT' else 'class', dtype=torch.float32
    )
    place = place or next(
        n
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and 'layer' in n and '.1.' in n
    )
    parent, child = place.rsplit('.', 1)
    setattr(
        model.get_submodule(parent), child, fault(model.get_submodule(place))
    )
    inputs = random_inputs(model)
    with pytest.raises(NotImplementedError, match=said):
        relevance_of(model, inputs, attn_lrp(), strict=True)
    with pytest.warns(UserWarning, match=said):
        rules = relevance_of(model, inputs, attn_lrp())[2]
    found = rules.report().query("rule == 'none'")
    assert (
        len(found)
        and set(found.layer) == {1}
        and found.module.str.startswith(place.rsplit('.', 1)[0]).all()
    )


@pytest.mark.parametrize('fault', [Secret, Scripted])
def test_a_hidden_operation_at_the_very_end_is_found(fault):
    for family, task, head in (
        ('BERT', 'class', 'classifier'),
        ('Llama', 'next token', 'lm_head'),
        ('ViT', 'image', 'classifier'),
    ):
        model = random_model(family, task)
        setattr(model, head, fault(getattr(model, head)))
        inputs = random_inputs(model)
        with pytest.raises(NotImplementedError, match='Backward'):
            relevance_of(model, inputs, attn_lrp(), strict=True)


def test_conservation_by_layer_is_a_chain():
    for family, task in (
        ('BERT', 'class'),
        ('Llama', 'next token'),
        ('ViT', 'image'),
        ('ALBERT', 'class'),
    ):
        m = random_model(family, task)
        t = conservation_by_layer(m, random_inputs(m), attn_lrp())
        assert t.layer.tolist() == ['head', 2, 1, 0, 'embeddings']
        close(
            torch.tensor(t.entering[1:].tolist()),
            torch.tensor(t.leaving[:-1].tolist()),
            1e-6,
        )
        assert (t.remainder.abs() < 1e-5 * t.entering.abs().max()).all() and (
            t.biases[1:-1].abs() > 0
        ).all() == (family != 'Llama')
    faulty = random_model('BERT')
    faulty.bert.encoder.layer[1].intermediate.dense = Twist(
        faulty.bert.encoder.layer[1].intermediate.dense
    )
    with pytest.warns(UserWarning, match='sin'):
        t = conservation_by_layer(faulty, random_inputs(faulty), attn_lrp())
    assert (
        t.set_index('layer').remainder.abs().idxmax() == 1
    )  # what a forgotten rule loses shows up in its layer


def test_two_threads_two_rule_sets_100_rounds():
    """Two threads explain one model under two rule sets, 100 rounds: bit-equal
    to the serial results.
    """
    model = random_model('Llama', 'class', 'sdpa', dtype=torch.float32)
    inputs = random_inputs(model)
    serial = {
        c: relevance_of(model, inputs, c)[0] for c in (attn_lrp([1]), cp_lrp())
    }
    wrong = []
    rounds = []
    barrier = threading.Barrier(2)

    def work(c):
        for _ in range(100):
            barrier.wait()
            rounds.append(c)
            if not torch.equal(relevance_of(model, inputs, c)[0], serial[c]):
                wrong.append(c.name)

    threads = [threading.Thread(target=work, args=(c,)) for c in serial]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == [] and len(rounds) == 200
    assert not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )


def test_compiled_and_half_precision(demo):
    model, tokenizer = demo
    plain = explain(model, tokenizer, TEXTS[2])[0]
    compiled = torch.compile(model)
    assert torch.equal(
        explain(compiled, tokenizer, TEXTS[2])[0].scores, plain.scores
    )  # the model under the compiled one
    with pytest.raises(TypeError, match='compiled'):
        lrp_rules(compiled, attn_lrp())
    half = copy.deepcopy(model).bfloat16()
    for m, r in (('attn_lrp', 0.9), ('cp_lrp', 0.99), ('loo', 0.9)):
        a = explain(half, tokenizer, TEXTS[2], method=m)[0].scores
        b = explain(model, tokenizer, TEXTS[2], method=m)[0].scores
        assert (
            torch.isfinite(a).all()
            and torch.corrcoef(torch.stack([a, b]))[0, 1] > r
        ), (m, torch.corrcoef(torch.stack([a, b]))[0, 1])


def test_checkpointing_changes_nothing():
    for family, task in (
        ('BERT', 'class'),
        ('Llama', 'next token'),
        ('ViT', 'image'),
        ('GPT-2', 'class'),
        ('Gemma 3', 'next token'),
    ):
        model = (
            random_model(family, task, num_hidden_layers=5)
            if family != 'GPT-2'
            else random_model(family, task, n_layer=5)
        )
        inputs = random_inputs(model)
        plain = (
            explain_batch(model, None, [inputs], 'attn_lrp')[0]
            if family == 'ViT'
            else None
        )
        for c in (attn_lrp(), cp_lrp(), attn_lrp([2])):
            a, b = (
                lrp_scores(
                    model, None, [inputs], composite=c, checkpoint=k
                ).scores
                for k in (False, True)
            )
            close(a, b, 1e-5)
        assert plain is None or len(plain) == 16
    with pytest.raises(NotImplementedError, match='share weights'):
        lrp_scores(
            random_model('ALBERT'),
            None,
            [random_inputs(random_model('ALBERT'))],
            checkpoint=True,
        )


def test_subsets_of_an_image():
    model = random_model('ViT', 'image', dtype=torch.float32)
    inputs = random_inputs(model)
    keep = torch.ones(2, 16, dtype=torch.bool)
    keep[1] = False
    logits = subset_logits(model, inputs, keep, 'zero_embedding')
    with torch.no_grad():
        close(logits[0], model(**inputs).logits[0], 1e-5)
    with torch.no_grad(), watch_embeddings(model, torch.zeros(1, 16, 32)):
        close(logits[1], forward(model, inputs).logits[0], 1e-5)
    s = conservation(model, inputs, cp_lrp())
    assert abs(s['remainder']) < 1e-2 * abs(s['logit'])


def test_context_by_every_method():
    """A score per sentence by every method; hiding one sentence at a time by
    hand gives LOO's; a bad call says so.
    """
    model, tok = load_demo('reviews')
    context = 'The songs are sweet. The plot is bad. Nobody laughed!'
    for m in METHODS:
        a = attribute_context(
            model, tok, context, 'very bad', 'Is it good?', method=m
        )
        assert (
            a.tokens
            == [
                'The songs are sweet.',
                'The plot is bad.',
                'Nobody laughed!',
            ]
            and torch.isfinite(a.scores).all()
            and a.logit < 0
            and a.label == 'very bad'
        )
    loo = attribute_context(model, tok, context, 'very bad', 'Is it good?')
    number = torch.tensor(loo.info['unit_of_token'])
    ids = loo.input_ids
    answer = tok('very bad', add_special_tokens=False)['input_ids']
    assert ids[-len(answer) :].tolist() == answer
    for u in (None, 0, 1, 2):
        with torch.no_grad():
            lp = (
                model(
                    input_ids=ids[None],
                    attention_mask=(number != (-2 if u is None else u)).long()[
                        None
                    ],
                    use_cache=False,
                )
                .logits[0]
                .log_softmax(-1)
            )
        value = sum(
            lp[len(ids) - len(answer) - 1 + k, t] for k, t in enumerate(answer)
        )
        if u is None:
            whole = value
            assert abs(whole - loo.logit) < 1e-4
        else:
            assert abs((whole - value) - loo.scores[u]) < 1e-4
    with pytest.raises(ValueError, match='context is empty'):
        attribute_context(model, tok, ' ', 'bad')
    with pytest.raises(TypeError, match='torch module'):
        attribute_context('llama', tok, context, 'bad')
    with pytest.raises(ValueError, match='overlap'):
        attribute_context(model, tok, context, 'bad', units=[(0, 5), (3, 8)])


def test_a_model_compiled_in_place_is_refused():
    model = random_model('BERT', dtype=torch.float32)
    model.compile()
    with pytest.raises(TypeError, match='compiled'):
        lrp_rules(model, attn_lrp())


def test_rules_of_ones_own():
    """By operation, layer, module path, predicate, and for a module that
    counts as one operation; a rule that changes numbers is caught.
    """
    model = random_model('GPT-2', 'next token')
    inputs = random_inputs(model)
    plain = relevance_of(model, inputs, attn_lrp())[0]

    def seen(c, rule):
        r = relevance_of(model, inputs, c, strict=True)[2].report()
        return r[r.rule == rule]

    assert set(
        seen(
            attn_lrp().with_rule(
                F.layer_norm, lambda f, *a, **k: f(*a, **k), layers=[2]
            ),
            '<lambda>',
        ).layer
    ) == {2}
    whole = attn_lrp().with_rule(
        torch.nn.LayerNorm, identity_rule, modules='*.h.1.ln_1'
    )
    assert seen(whole, 'identity_rule').operation.tolist() == ['LayerNorm']
    assert not torch.allclose(relevance_of(model, inputs, whole)[0], plain)
    bert = random_model('BERT')
    only = attn_lrp().with_rule(
        'linear', gamma_rule(1.0), where=lambda op: op.module.endswith('query')
    )
    inputs = random_inputs(bert)
    r = relevance_of(bert, inputs, only, strict=True)[2].report()
    assert (
        r[r.rule == 'gamma_linear'].module.str.endswith('query').all()
        and (r.rule == 'gamma_linear').sum() == 3
    )
    with pytest.raises(ValueError, match="changes the operation's numbers"):
        relevance_of(
            bert,
            inputs,
            attn_lrp().with_rule('linear', lambda f, *a: 2 * f(*a)),
            strict=True,
        )
