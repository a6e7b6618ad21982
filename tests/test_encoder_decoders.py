"""Encoder-decoders: each number against the model's own call, written out by hand."""

import copy

import pytest
from close import assert_close
import torch
from encoder_decoders import encoder_decoder
from every_family import Wide

from lrp_loo import explain, explain_generation
from lrp_loo.inputs.targets import Readout, Target
from lrp_loo.loo import leave_one_out
from lrp_loo.lrp import lrp_rules
from lrp_loo.paper.conservation import conservation
from lrp_loo.lrp.composite import attn_lrp, cp_lrp
from lrp_loo.models.call import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import n_layers
from lrp_loo.models.multipart import EncoderDecoder, ReadTwice
from lrp_loo.models.objects import as_multi_part
from lrp_loo.tasks.generation import audit_generation

SOURCE = 'a slow start , but the last act is a triumph'
SAID = 'it is'
GENERATE = (
    'T5ForConditionalGeneration',
    'MT5ForConditionalGeneration',
    'BartForConditionalGeneration',
    'PegasusForConditionalGeneration',
    'MBartForConditionalGeneration',
    'MarianMTModel',
    'M2M100ForConditionalGeneration',
)
FAMILIES = (*GENERATE, 'BartForSequenceClassification', 'T5ForSequenceClassification')


def called(model, enc, keep):
    "The row that is read, from the model's own call with its two masks."
    ids, mask = enc['input_ids'].expand(len(keep), -1), keep.long()
    if 'tower_ids' not in enc:
        later = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)
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
    towers = as_multi_part(model)
    text = SOURCE if isinstance(towers, ReadTwice) else (SOURCE, SAID)
    return towers, encode(towers, tokenizer, text)


@pytest.mark.parametrize('name', FAMILIES)
@torch.no_grad()
def test_exact_loo_is_that_of_single_calls(name, tokenizer):
    model = encoder_decoder(name)
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
    model = encoder_decoder(name)
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
    model = encoder_decoder(name)
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
        row = called(model, enc, torch.ones_like(enc['input_ids']))[0]
        grads = torch.autograd.grad(row[readout.chosen(0)], leaves)
    for hook in hooks:
        hook.remove()
    if 'tower_ids' in enc:
        expected = torch.cat(grads, 1)
    else:  # the decoder's token stands one place later
        expected = grads[0].clone()
        expected[:, :-1] += grads[1][:, 1:]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)


NAMES = ['T5ForConditionalGeneration', 'BartForSequenceClassification']


@pytest.mark.parametrize('name', NAMES)
def test_texts_together_are_texts_alone(name, tokenizer):
    model = encoder_decoder(name)
    texts = [SOURCE, 'a dull film', 'not one laugh in it']
    for method in ('auto', 'attn_lrp'):
        how = dict(method=method, target=7 if name in GENERATE else 1)
        together = explain(model, tokenizer, texts, **how)
        for a, text in zip(together, texts):
            (alone,) = explain(model, tokenizer, text, **how)
            largest = float(alone.scores.abs().max())
            assert a.tokens == alone.tokens
            assert float((a.scores - alone.scores).abs().max()) < 1e-4 * largest


def test_a_source_alone_is_asked_for_the_first_generated_token(tokenizer):
    model = encoder_decoder('BartForConditionalGeneration')
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


def test_what_the_decoder_reads_is_a_text(tokenizer):
    model = encoder_decoder('BartForConditionalGeneration')
    enc = dict(tokenizer(SOURCE, return_tensors='pt'))
    (a,) = explain(model, tokenizer, enc, 'attn_lrp')
    (b,) = explain(model, tokenizer, SOURCE, 'attn_lrp')
    assert a.tokens == b.tokens and a.scores.equal(b.scores)
    for name in ('decoder_input_ids', 'labels'):  # the decoder reads labels, too
        more = {name: torch.tensor([[102, 2009, 2003]])}
        with pytest.raises(ValueError, match=f'holds {name}'):
            explain(model, tokenizer, enc | more, 'attn_lrp')


def test_tokens_may_be_deleted_or_replaced(tokenizer):
    model = encoder_decoder('BartForConditionalGeneration')
    towers, enc = given(model, tokenizer)
    n = int((enc['tower_ids'] == 0).sum())
    for removal in ('delete', 'mask_token', 'zero_embedding'):
        (a,) = explain(model, tokenizer, (SOURCE, SAID), 'loo', 7, removal=removal)
        ids = enc['input_ids']
        for j in (2, n + 1) if removal == 'delete' else ():
            row, s = torch.cat([ids[:, :j], ids[:, j + 1 :]], 1), n - (j < n)
            own = dict(input_ids=row[:, :s], decoder_input_ids=row[:, s:])
            with torch.no_grad():
                left = float(model(**own).logits[0, -1, 7])
            assert_close(a.logit - left, float(a.scores[j]), scale=abs(a.logit))
        assert a.scores.abs().min() > 0 or removal == 'mask_token'


def test_generated_tokens_are_explained_by_source_and_prefix(tokenizer):
    model = encoder_decoder('BartForConditionalGeneration')
    for method in ('attn_lrp', 'removal'):
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
    how = dict(max_new_tokens=3, progress=False)
    table = audit_generation(model, tokenizer, [SOURCE], ['removal'], **how)
    assert table.loc['loo', 'r'] > 0.999 and table.loc['removal', 'r'] > 0.5


# without its first token a decoder sees nothing, whatever comes later; the logits of
# ProphetNet depend on later tokens
@pytest.mark.parametrize('attention', ['eager', 'sdpa'])
@pytest.mark.parametrize('name', ['T5', 'MT5', 'Bart', 'ProphetNet'])
@torch.no_grad()
def test_a_generated_token_depends_on_no_later_one(name, attention, tokenizer):
    model = encoder_decoder(f'{name}ForConditionalGeneration', std=0.2)
    model.set_attn_implementation(attention)
    enc = encode(as_multi_part(model), tokenizer, (SOURCE, SAID))
    n = enc['input_ids'].shape[1] - 2
    steps = explain_generation(model, tokenizer, SOURCE, SAID, 'loo', log_prob=False)
    assert steps.generated == ['it', 'is'] and steps[0].exact
    for i, step in enumerate(steps):
        prefix = {k: v[:, : n + i] for k, v in enc.items()}
        keep = torch.cat([torch.ones(1, n + i), 1 - torch.eye(n + i)])
        values = torch.cat([called(model, prefix, row[None]) for row in keep])
        whole, *left = values[:, step.target]
        assert_close(step.logit, float(whole), scale=1.0)
        by_hand = whole - torch.stack(left)
        torch.testing.assert_close(step.scores, by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['T5', 'Bart'])
def test_words_and_sentences_of_both_texts(name, tokenizer):
    model = encoder_decoder(f'{name}ForConditionalGeneration')
    text = (SOURCE + '. unbelievably dull!', SAID)
    enc = encode(as_multi_part(model), tokenizer, text)
    names = {'word': text[0].replace('.', ' .').replace('!', ' !').split()}
    names['sentence'] = [SOURCE + '.', 'unbelievably dull!']
    for units, of_source in names.items():
        last = SAID.split() if units == 'word' else [SAID]
        (a,) = explain(model, tokenizer, text, 'loo', units=units)
        own = [i for i, special in enumerate(a.is_special) if not special]
        assert [a.tokens[i] for i in own] == of_source + last
        unit_of = torch.tensor(a.info['unit_of_token'])
        with torch.no_grad():
            left = [called(model, enc, (unit_of != i)[None])[0, a.target] for i in own]
        by_hand = a.logit - torch.stack(left)
        torch.testing.assert_close(a.scores[own], by_hand, rtol=1e-4, atol=1e-6)
        # a generated token is explained by the units of the source and those before it
        how = dict(units=units, log_prob=False)
        steps = explain_generation(model, tokenizer, text[0], SAID, 'loo', **how)
        assert [t for t in steps[0].tokens if t in of_source] == of_source
        target = Target(steps[0].target)
        (alone,) = explain(model, tokenizer, text[0], 'loo', target, units=units)
        assert alone.tokens == steps[0].tokens
        ours, wanted = steps[0].scores, alone.scores
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match='does not encode to these tokens'):
        how = dict(truncation=True, max_length=6, units='word')
        explain(model, tokenizer, (SOURCE, SAID), **how)


def test_nothing_stays_behind(tokenizer):
    model = encoder_decoder('BartForConditionalGeneration')
    before = copy.deepcopy(model.state_dict())
    explain(model, tokenizer, SOURCE, 'removal')
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert model.get_input_embeddings() is as_multi_part(model).get_input_embeddings()
    assert isinstance(as_multi_part(model), EncoderDecoder)
