"""Encoder-decoders: each number against the model's own call, written out by hand."""

import copy
import math

import pytest
import torch
import transformers
from every_family import Wide

from lrp_loo import audit, explain, explain_generation
from lrp_loo.asked.targets import Readout, Target
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.removals import key_weights
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import attn_lrp, cp_lrp, gradient
from lrp_loo.lrp.conservation import conservation
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.models.layers import n_layers
from lrp_loo.models.towers import EncoderDecoder, ReadTwice, as_towers
from lrp_loo.removal.one_pass import removal_pass
from lrp_loo.tasks.generation import audit_generation

SOURCE = 'a slow start , but the last act is a triumph'
SAID = 'it is'
LAYERS = dict(encoder_layers=2, decoder_layers=1)
BART = dict(
    vocab_size=30522,
    d_model=32,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=64,
    decoder_start_token_id=102,
    eos_token_id=102,
    pad_token_id=0,
    bos_token_id=101,
    **LAYERS,
)
T5 = dict(
    vocab_size=30522,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_decoder_layers=1,
    num_heads=4,
    decoder_start_token_id=0,
    eos_token_id=102,
    pad_token_id=0,
)
GENERATE = {
    'T5ForConditionalGeneration': T5,
    'MT5ForConditionalGeneration': T5,
    'BartForConditionalGeneration': BART,
    'PegasusForConditionalGeneration': BART,
    'MBartForConditionalGeneration': BART,
    'MarianMTModel': BART | dict(share_encoder_decoder_embeddings=False),
    'M2M100ForConditionalGeneration': BART,
}
CLASSIFY = {'BartForSequenceClassification': BART, 'T5ForSequenceClassification': T5}
FAMILIES = GENERATE | CLASSIFY


def drawn(name, attention='sdpa'):
    "A small model with weights large enough that every token matters."
    kind = getattr(transformers, name)
    if not kind._supports_sdpa:  # T5 of transformers 5.9
        attention = 'eager'
    config = kind.config_class(**FAMILIES[name], attn_implementation=attention)
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.1)
    return model.eval()


@pytest.fixture
def wide():
    "T5 of transformers 5.9 computes its softmax in float32."
    with Wide():
        yield


def called(model, enc, keep):
    "The row that is read, from the model's own call with its two masks."
    ids, mask = enc['input_ids'].expand(len(keep), -1), keep.long()
    with torch.no_grad():
        if 'tower_ids' not in enc:
            first = torch.ones_like(mask[:, :1])
            later = torch.cat([first, mask[:, :-1]], 1)
            how = dict(attention_mask=mask, decoder_attention_mask=later)
            return model(input_ids=ids, **how).logits
        n = int((enc['tower_ids'] == 0).sum())
        return model(
            input_ids=ids[:, :n],
            attention_mask=mask[:, :n],
            decoder_input_ids=ids[:, n:],
            decoder_attention_mask=mask[:, n:],
            use_cache=False,
        ).logits[:, -1]


@pytest.fixture(scope='module')
def tokenizer(demo):
    return demo[1]


def given(model, tokenizer):
    "What stands in the model's place, and a text as it is read."
    towers = as_towers(model)
    text = SOURCE if isinstance(towers, ReadTwice) else (SOURCE, SAID)
    return towers, encode(towers, tokenizer, text)


@pytest.mark.parametrize('name', FAMILIES)
def test_exact_loo_is_that_of_single_calls(name, tokenizer):
    model = drawn(name)
    towers, enc = given(model, tokenizer)
    scores, row, target = leave_one_out(model, enc)
    T = enc['input_ids'].shape[1]
    whole = called(model, enc, torch.ones(1, T))[0]
    each = torch.cat([called(model, enc, k[None]) for k in ~torch.eye(T).bool()])
    by_hand = whole[target] - each[:, target]
    torch.testing.assert_close(scores, by_hand, rtol=1e-4, atol=1e-6)
    assert by_hand.abs().min() > 0 and target == int(whole.argmax())


@pytest.mark.parametrize('name', FAMILIES)
@pytest.mark.parametrize('rules', [attn_lrp, cp_lrp])
def test_rules_leave_the_logits_and_lose_nothing(name, rules, tokenizer):
    model = drawn(name)
    towers, enc = given(model, tokenizer)
    with lrp_rules(towers, rules()) as ruled:
        out = forward(towers, enc).logits
    whole = called(model, enc, torch.ones_like(enc['input_ids']))
    torch.testing.assert_close(out[:, -1] if out.ndim == 3 else out, whole)
    assert ruled.without_rule() == [] and ruled.n_layers == n_layers(towers) == 3
    with Wide():
        parts = conservation(towers.double(), enc, rules())
    # the token by which a classifier's decoder begins is none of the text's: a constant
    assert abs(parts['remainder']) < 1e-9 * max(map(abs, parts.values()))


@pytest.mark.parametrize('name', FAMILIES)
def test_gradients_are_those_of_the_embeddings_that_each_part_looks_up(name, tokenizer):
    model = drawn(name)
    towers, enc = given(model, tokenizer)
    with torch.enable_grad(), watch_embeddings(towers) as seen:
        readout = Readout(None, out := forward(towers, enc), enc)
        value = readout(out)
    (ours,) = torch.autograd.grad(value.sum(), seen[0])
    # by hand: the tables' outputs, as leaves
    leaves = []

    def leaf(module, args, out):
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    stacks = (model.get_encoder(), model.get_decoder())
    tables = dict.fromkeys(s.get_input_embeddings() for s in stacks)
    hooks = [table.register_forward_hook(leaf) for table in tables]
    with torch.enable_grad():
        row = _row(model, enc)
        grads = torch.autograd.grad(row[readout.chosen(0)], leaves)
    for hook in hooks:
        hook.remove()
    if 'tower_ids' in enc:
        expected = torch.cat(grads, 1)
    else:  # the decoder's token stands one place later
        expected = grads[0].clone()
        expected[:, :-1] += grads[1][:, 1:]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)


def _row(model, enc):
    "The row that is read, with its graph."
    ids = enc['input_ids']
    if 'tower_ids' not in enc:
        return model(input_ids=ids).logits[0]
    n = int((enc['tower_ids'] == 0).sum())
    own = dict(input_ids=ids[:, :n], decoder_input_ids=ids[:, n:])
    return model(**own, use_cache=False).logits[0, -1]


def call_places(model, enc):
    "Which places the keys of each attention stand for, as transformers orders them."
    T = enc['input_ids'].shape[1]
    place = torch.arange(T)
    if 'tower_ids' in enc:
        n = int((enc['tower_ids'] == 0).sum())
        source, decoded = place[:n], place[n:]
    else:
        source, decoded = place, place - 1
    config = model.config
    n_encoder, n_decoder = (
        getattr(config, a, None) or getattr(config, b)
        for a, b in (
            ('encoder_layers', 'num_layers'),
            ('decoder_layers', 'num_decoder_layers'),
        )
    )
    of_decoder = [(decoded, decoded), (decoded, source)]
    return [(source, source)] * n_encoder + of_decoder * n_decoder


@pytest.mark.parametrize('name', FAMILIES)
def test_removal_is_the_closed_form_in_every_attention(name, tokenizer, wide):
    "From ∂f/∂A of every call, its keys' places counted by hand."
    model = drawn(name, 'eager').double()
    towers, enc = given(model, tokenizer)
    terms = removal_pass(towers, enc, own_rows=True).terms[0].sum(0)
    with (
        torch.enable_grad(),
        watch_embeddings(towers),
        lrp_rules(towers, gradient(), record='attention') as rules,
    ):
        out = forward(towers, enc)
    with torch.enable_grad():
        value = Readout(None, out, enc)(out).sum()
    maps = [w.A for w in rules.attention]
    expected = torch.zeros(enc['input_ids'].shape[1], dtype=torch.double)
    places = call_places(model, enc)
    assert len(maps) == len(places)
    found = torch.autograd.grad(value, maps, allow_unused=True)
    for g, A, (_, keys) in zip(found, maps, places):
        mean = (A * g).sum(-1, keepdim=True)
        effect = A * (g - mean) / (1 - A).clamp(min=1e-300)
        effect = torch.where(A > 1 - 1e-12, 0.0, effect)  # it sees nothing else
        of_keys = effect.sum((0, 1, 2)).detach()
        for j, e in zip(keys.tolist(), of_keys):
            expected[j] += e if j >= 0 else 0
    torch.testing.assert_close(terms, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('name', FAMILIES)
def test_key_weights_weigh_a_token_wherever_it_is_a_key(name, tokenizer, wide):
    "Weight 0 is the mask; between, the derivative is that of finite differences."
    model = drawn(name).double()
    towers, enc = given(model, tokenizer)
    T = enc['input_ids'].shape[1]
    readout = Readout(None, forward(towers, enc), enc)

    def value(m):
        with torch.no_grad(), key_weights(m[None]):
            return float(readout(forward(towers, enc)))

    whole = value(torch.ones(T).double())
    scores = leave_one_out(towers, enc)[0]
    ruled = lrp_rules(towers, gradient(), record='attention')
    with torch.enable_grad(), watch_embeddings(towers), ruled as rules:
        out = forward(towers, enc)
    with torch.enable_grad():
        logits = [w.Z for w in rules.attention]
        grads = torch.autograd.grad(readout(out).sum(), logits, allow_unused=True)
    slopes = torch.zeros(T).double()
    for g, (_, keys) in zip(grads, call_places(model, enc)):
        known = keys >= 0
        slopes.index_add_(0, keys[known], g.sum((0, 1, 2))[known])
    step = 1e-2
    for j in (1, 4, T - 2):
        m = torch.ones(T).double()
        m[j] = 0
        assert whole - value(m) == pytest.approx(float(scores[j]), rel=1e-4, abs=1e-7)
        at = []
        for k in (1, 2):
            m[j] = math.exp(-k * step)
            at.append(value(m))
        slope = (3 * whole - 4 * at[0] + at[1]) / (2 * step)
        # what a difference of second order leaves at this step: 0.0011 at most
        assert slope == pytest.approx(float(slopes[j]), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize('name', ['T5ForConditionalGeneration', *CLASSIFY])
def test_texts_together_are_texts_alone(name, tokenizer):
    model = drawn(name)
    texts = [SOURCE, 'a dull film', 'not one laugh in it']
    for method in ('auto', 'attn_lrp', 'removal', 'ig'):
        how = dict(method=method, target=7 if name in GENERATE else 1)
        together = explain(model, tokenizer, texts, **how)
        for a, text in zip(together, texts):
            (alone,) = explain(model, tokenizer, text, **how)
            largest = float(alone.scores.abs().max())
            assert a.tokens == alone.tokens
            assert float((a.scores - alone.scores).abs().max()) < 1e-4 * largest


def test_a_source_alone_is_asked_for_the_first_generated_token(tokenizer):
    model = drawn('BartForConditionalGeneration')
    (a,) = explain(model, tokenizer, SOURCE)
    ids = tokenizer(SOURCE, return_tensors='pt')['input_ids']
    with torch.no_grad():
        said = model.generate(ids, max_new_tokens=2, do_sample=False)
    assert a.target == int(said[0, 1]) and a.tokens[-1] == '[SEP]'  # the start
    assert a.is_special.tolist() == [True] + [False] * 11 + [True, True]
    # a token that has to come first is no choice of the model's
    model.generation_config.forced_bos_token_id = 2023
    (forced,) = explain(model, tokenizer, SOURCE)
    assert forced.tokens[-2:] == ['[SEP]', 'this'] and forced.info['position'] == 14


def test_a_target_at_a_position_of_the_decoder(tokenizer):
    model = drawn('T5ForConditionalGeneration')
    text = (SOURCE, 'it is fine')
    (at_one,) = explain(model, tokenizer, text, 'loo', Target(7, position=1))
    (before,) = explain(model, tokenizer, (SOURCE, 'it'), 'loo', 7)
    n = len(before.tokens)
    assert at_one.info['token_at_position'] == 'it'
    torch.testing.assert_close(at_one.scores[:n], before.scores, rtol=1e-4, atol=1e-6)
    assert not at_one.scores[n:].any()  # what is said later is not seen
    with pytest.raises(ValueError, match='position=4 is not in the text'):
        explain(model, tokenizer, text, 'loo', Target(7, position=4))
    with pytest.raises(ValueError, match='position=1 is not in the text, which has 1'):
        explain(model, tokenizer, SOURCE, 'loo', Target(7, position=1))


def test_words_and_what_is_asked_about(tokenizer):
    model = drawn('T5ForConditionalGeneration')
    (a,) = explain(model, tokenizer, ('unwatchable , sadly', 'so it is'), units='word')
    assert a.tokens[1:] == [
        'unwatchable',
        ',',
        'sadly',
        '[SEP]',
        '[PAD]',
        'so',
        'it',
        'is',
    ]
    (b,) = explain(model, tokenizer, 'a dull film', template='Sum up : {text} !')
    asked = [t for t, own in zip(b.tokens, b.is_content) if own]
    assert asked == ['a', 'dull', 'film'] and b.tokens[-1] == '[PAD]'


def test_an_encoding_with_what_the_decoder_reads(tokenizer):
    model = drawn('BartForConditionalGeneration')
    enc = dict(tokenizer(SOURCE, return_tensors='pt'))
    enc['decoder_input_ids'] = torch.tensor([[102, 2009, 2003]])
    (a,) = explain(model, tokenizer, enc, 'attn_lrp')
    (b,) = explain(model, tokenizer, (SOURCE, SAID), 'attn_lrp')
    assert a.tokens == b.tokens and a.scores.equal(b.scores)
    for more, said in (
        (dict(decoder_attention_mask=torch.tensor([[1, 0, 1]])), 'hides some'),
        (dict(decoder_inputs_embeds=torch.ones(1, 3, 32)), 'decoder_inputs_embeds'),
        (dict(decoder_input_ids=torch.ones(2, 3).long()), 'shape'),
        (dict(decoder_input_ids=torch.tensor([[40000]])), 'up to 40000'),
    ):
        with pytest.raises(ValueError, match=said):
            explain(model, tokenizer, enc | more, 'attn_lrp')
    with pytest.raises(ValueError, match='tuple has 3 parts'):
        explain(model, tokenizer, ('a', 'b', 'c'))
    model.config.decoder_start_token_id = model.generation_config.bos_token_id = None
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(ValueError, match='by which token its decoder starts'):
        explain(model, tokenizer, SOURCE)


def test_tokens_may_be_deleted_or_replaced(tokenizer):
    model = drawn('BartForConditionalGeneration')
    towers, enc = given(model, tokenizer)
    n = int((enc['tower_ids'] == 0).sum())
    for removal in ('delete', 'mask_token', 'zero_embedding'):
        (a,) = explain(model, tokenizer, (SOURCE, SAID), 'loo', 7, removal=removal)
        ids = enc['input_ids']
        if removal == 'delete':
            without = [torch.cat([ids[:, :j], ids[:, j + 1 :]], 1) for j in (2, n + 1)]
            sizes = (n - 1, n)
            for j, row, s in zip((2, n + 1), without, sizes):
                own = dict(input_ids=row[:, :s], decoder_input_ids=row[:, s:])
                with torch.no_grad():
                    left = float(model(**own).logits[0, -1, 7])
                assert a.logit - left == pytest.approx(float(a.scores[j]), abs=1e-6)
        assert a.scores.abs().min() > 0 or removal == 'mask_token'


def test_generated_tokens_are_explained_by_source_and_prefix(tokenizer):
    model = drawn('BartForConditionalGeneration')
    found = explain_generation(model, tokenizer, SOURCE, SAID, 'loo')
    assert found.generated == ['it', 'is'] and found[0].exact
    assert found[1].tokens[-2:] == ['[SEP]', 'it']
    for method in ('loo', 'attn_lrp', 'cp_lrp', 'removal', 'grad_x_input'):
        steps = explain_generation(model, tokenizer, SOURCE, SAID, method)
        for step, said in zip(steps, (None, 'it')):
            text = SOURCE if said is None else (SOURCE, said)
            target = Target(step.target, log_prob=True)
            (alone,) = explain(model, tokenizer, text, method, target)
            largest = float(alone.scores.abs().max())
            assert float((step.scores - alone.scores).abs().max()) < 1e-4 * largest
    own = explain_generation(model, tokenizer, SOURCE, max_new_tokens=3)
    ids = tokenizer(SOURCE, return_tensors='pt')['input_ids']
    with torch.no_grad():
        said = model.generate(ids, max_new_tokens=3, do_sample=False, num_beams=1)
    assert [a.target for a in own] == said[0, 1:].tolist()
    table = audit_generation(
        model, tokenizer, [SOURCE], ['removal'], [SAID], progress=False
    )
    assert table.loc['loo', 'r'] > 0.999 and table.loc['removal', 'r'] > 0.5


def test_an_audit_of_an_encoder_decoder(tokenizer):
    model = drawn('T5ForConditionalGeneration')
    texts = [SOURCE, 'a dull film', 'not one laugh in it', 'she carries every scene']
    table = audit(
        model, tokenizer, texts, method='auto,removal,attn_lrp', progress=False
    )
    assert (
        set(table.index) == {'auto', 'removal', 'attn_lrp'}
        and table.loc['auto'].notna().all()
    )


def test_a_sources_pass_is_shared(tokenizer):
    "Variants of what the decoder has said do not encode the source again."
    model = drawn('T5ForConditionalGeneration')
    _, enc = given(model, tokenizer)
    rows = []
    encoder = model.get_encoder()
    hook = encoder.register_forward_hook(
        lambda m, args, kwargs, out: rows.append(len(kwargs['input_ids'])),
        with_kwargs=True,
    )
    leave_one_out(as_towers(model), enc)
    hook.remove()
    n = int((enc['tower_ids'] == 0).sum())
    # the whole; each source token's variant, and one for all of the decoder's; then
    # one variant and the whole again, by which batches and the mask are tried
    assert rows == [1, n + 1, 1, 1]


def test_nothing_stays_behind(tokenizer):
    model = drawn('BartForConditionalGeneration')
    before = copy.deepcopy(model.state_dict())
    explain(model, tokenizer, SOURCE, 'removal')
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert model.get_input_embeddings() is as_towers(model).get_input_embeddings()
    assert isinstance(as_towers(model), EncoderDecoder)
