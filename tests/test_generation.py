"Every generated token: equal to the loop over removed ones, and to one by one."

from dataclasses import replace

import numpy as np
import pytest
import torch
from close import masked_one_at_a_time
from conftest import demo_or_skip
from families import FAMILIES, random_inputs, random_model
from transformers import pipeline

from lrp_loo import audit_generation, explain, explain_generation, load_demo
from lrp_loo.core.stats import pearson
from lrp_loo.inputs.scores import GeneratedReadout, NextTokens
from lrp_loo.inputs.targets import Target
from lrp_loo.inputs.units import Units
from lrp_loo.loo.engines import read_subsets
from lrp_loo.methods import explain_batch, explain_each
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import forward
from lrp_loo.tasks.generation import generation_agreement
from lrp_loo.records.display import headline

LLAMA = 'Llama', FAMILIES['Llama'].tasks[0]
DECODERS = [name for name, family in FAMILIES.items() if 'next token' in family.tasks]
PAIR = ('cp_lrp', 'loo')
PROMPT = 'I went in expecting very little , and the film was'


def close(a, b, tol=1e-9):
    "float64, up to a part of the largest."
    return float((a - b).abs().max()) <= tol * float(b.abs().max()) + 1e-12


def naive_loo(model, enc, n_prompt, log_prob):
    "(generated, T): one masked pass for each removed token, all rows."
    ids = enc['input_ids']

    def numbers(inputs):
        out = forward(model, inputs).logits[0]
        out = out.log_softmax(-1) if log_prob else out
        return out[torch.arange(n_prompt - 1, len(out) - 1), ids[0, n_prompt:]]

    return masked_one_at_a_time(enc, numbers)[1].T


@pytest.mark.parametrize('log_prob', [False, True])
@pytest.mark.parametrize('family', DECODERS)
def test_exact_loo_of_every_token_is_the_loop_over_removed_ones(family, log_prob):
    model = random_model(family, FAMILIES[family].tasks[0])
    enc = random_inputs(model, n=11)
    readout = GeneratedReadout(enc['input_ids'][0], 6, log_prob)
    scores = METHODS['loo'](model, None, [enc], readout).scores
    naive = naive_loo(model, enc, 6, log_prob)
    for i in range(5):
        own, other = scores[i, : 6 + i], naive[i, : 6 + i]
        assert close(own, other, 1e-6), (family, i)


@pytest.mark.parametrize('attention', ['eager', 'sdpa'])
@pytest.mark.parametrize('family', ['Llama', 'GPT-2'])
@torch.no_grad()
def test_without_its_prompt_a_row_reads_no_later_token(family, attention):
    model = random_model(family, FAMILIES[family].tasks[0], attention)
    enc = random_inputs(model, n=6)
    ids, keep = enc['input_ids'], torch.arange(6)[None] >= 3
    by_hand = []
    for n in (3, 4, 5):  # each token of the answer from the text before it alone
        row = dict(input_ids=ids[:, :n], attention_mask=keep[:, :n].long())
        out = forward(model, row)
        by_hand.append(out.logits[0, -1].log_softmax(-1)[ids[0, n]])
    each = GeneratedReadout(ids[0], 3, log_prob=True)
    total = NextTokens(ids[0, 3:], log_prob=True, total=True)
    (a,), (b,) = (read_subsets(model, [enc], [keep], [t]) for t in (each, total))
    assert close(a.values[0], torch.stack(by_hand), 1e-5)
    assert close(b.values[0], sum(by_hand), 1e-5)


@pytest.mark.parametrize(
    'method', [n for n, m in METHODS.items() if m.per_generated_token]
)
def test_at_once_is_as_one_by_one(method, family='Llama'):
    model = random_model(family, FAMILIES[family].tasks[0], 'sdpa')
    enc = random_inputs(model, n=10)
    readout = GeneratedReadout(enc['input_ids'][0], 6)
    # all rows are computed, so that both are exact
    options = dict(passes=None) if method == 'auto' else {}
    tokenizer = load_demo('reviews')[1]
    both = [
        explain_each(model, tokenizer, enc, how, readout, **options)
        for how in (method, replace(METHODS[method], per_generated_token=False))
    ]
    for at_once, alone in zip(*both):
        assert at_once.tokens == alone.tokens
        assert at_once.explained == alone.explained
        assert close(at_once.scores, alone.scores, 1e-5)
        assert abs(at_once.logit - alone.logit) < 1e-6


def test_another_removal():
    removal = 'mean_embedding'
    demo = load_demo('reviews')
    found = explain_generation(*demo, PROMPT, max_new_tokens=3, removal=removal)
    ids = all_ids(found)
    enc = {'input_ids': ids[None], 'attention_mask': torch.ones_like(ids[None])}
    readout = GeneratedReadout(ids, found.n_prompt, True)
    one_by_one = replace(METHODS['loo'], per_generated_token=False)
    alone = explain_each(*demo, enc, one_by_one, readout, removal=removal)
    for a, b in zip(found, alone):
        assert close(a.scores, b.scores, 1e-3)


def all_ids(found):
    last = found[-1]
    return torch.cat([last.input_ids, torch.tensor([last.target])])


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'removal'])
def test_units_of_every_token_at_once_are_as_one_by_one(method):
    model = random_model(*LLAMA)
    enc = random_inputs(model, n=9)
    # the last token of the prompt is in no unit
    number = torch.tensor([0, 0, 1, 1, 1, -1, 2, 3, 4])
    units = Units(number, list('abcde'), torch.zeros(5, dtype=torch.bool))
    readout = GeneratedReadout(enc['input_ids'][0], 6)
    asked = (model, load_demo('reviews')[1])
    found = explain_each(*asked, enc, method, readout, units)
    for i, a in enumerate(found):
        part = {key: x[:, : 6 + i] for key, x in enc.items()}
        own = Units(number[: 6 + i], a.tokens, a.is_special)
        target = Target(int(enc['input_ids'][0, 6 + i]), position=-1)
        (alone,) = explain_batch(*asked, [part], method, target, [own])
        assert len(a.scores) == 2 + i
        assert torch.allclose(a.scores, alone.scores, atol=1e-5)


def test_a_given_continuation_and_its_log_probability():
    model, tokenizer = load_demo('reviews')
    said = 'dull and far too long'
    found = explain_generation(model, tokenizer, PROMPT, said)
    ids = all_ids(found)
    with torch.no_grad():
        logp = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    rows = torch.arange(found.n_prompt - 1, len(ids) - 1)
    own = logp[rows, ids[found.n_prompt :]]
    assert torch.allclose(torch.tensor([a.logit for a in found]), own, atol=1e-4)
    assert 'log-probability' in headline(found[0])
    assert tokenizer.decode(ids[found.n_prompt :]).strip() == said


@pytest.mark.parametrize(
    'settings',
    [{}, dict(num_beams=3), dict(repetition_penalty=1.8), dict(suppress_tokens=[1099])]
    + [dict(no_repeat_ngram_size=1, min_new_tokens=9), dict(forced_eos_token_id=9)],
)
def test_the_models_own_continuation_is_that_of_its_settings(settings):
    model, tokenizer = load_demo('reviews')
    ids = tokenizer(PROMPT, return_tensors='pt')['input_ids']
    vars(model.generation_config).update(settings, do_sample=True, top_k=3)
    whole = model.generate(ids, do_sample=False, max_new_tokens=9)[0].tolist()
    how = dict(method='attn_lrp', max_new_tokens=9)
    found = explain_generation(model, tokenizer, PROMPT, **how)
    assert all_ids(found).tolist() == whole
    with torch.no_grad():
        logp = model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
    rows = torch.arange(found.n_prompt - 1, len(whole) - 1)
    own = logp[rows, whole[found.n_prompt :]]
    assert torch.allclose(torch.tensor([a.logit for a in found]), own, atol=1e-4)
    config = found[0].info['generation_config']
    assert config.items() >= (settings | dict(do_sample=False)).items()


# transformers 5.9 warns of what its own pipeline does with these settings
@pytest.mark.filterwarnings('ignore:Passing `generation_config`:FutureWarning')
@pytest.mark.parametrize('settings', [dict(max_new_tokens=3), dict(max_length=14)])
def test_a_pipelines_own_length_is_taken(settings):
    model, tokenizer = load_demo('reviews')
    made = pipeline('text-generation', model, tokenizer=tokenizer, **settings)
    whole = made(PROMPT, do_sample=False, return_tensors=True)
    found = explain_generation(made, None, PROMPT, method='attn_lrp')
    assert all_ids(found).tolist() == whole[0]['generated_token_ids']


@pytest.mark.parametrize('units', ['token', 'sentence'])
def test_the_only_unit_of_a_text_is_not_removed(units):
    model, tokenizer = load_demo('reviews')
    tokenizer.backend_tokenizer.post_processor = None  # no special token in front
    text = 'film' if units == 'token' else 'A slow film.'
    for call in (explain, explain_generation):
        with pytest.raises(ValueError, match='nothing is left'):
            call(model, tokenizer, text, method='loo', units=units)
        begun = call(model, tokenizer, tokenizer.bos_token + text, units=units)
        assert begun[0].tokens[0] == tokenizer.bos_token
    assert explain_generation(model, tokenizer, 'film', method='attn_lrp').n_prompt == 1


def test_the_audit_is_what_its_parts_say():
    "r of each generated token over the tokens before it, without the first."
    demo, prompts, how = load_demo('reviews'), [PROMPT, 'A'], dict(max_new_tokens=3)
    table = audit_generation(*demo, prompts, ['cp_lrp'], progress=False, **how)
    means = []
    for prompt in prompts:
        both = [explain_generation(*demo, prompt, method=m, **how) for m in PAIR]
        r = [pearson(a.scores[1:], b.scores[1:]) for a, b in zip(*both) if len(a) > 3]
        means.append(float(np.mean(r)))
        assert generation_agreement(*both) == pytest.approx(means[-1], abs=1e-4)
    assert abs(table.loc['cp_lrp', 'r'] - sum(means) / 2) < 1e-4
    assert table.loc['loo', 'r'] == pytest.approx(1)


@pytest.mark.large
def test_smollm2_answers_a_question():
    model, tokenizer = demo_or_skip('smollm2')
    chat = [dict(role='user', content='Name the capital of France.')]
    found = explain_generation(model, tokenizer, chat, max_new_tokens=6)
    step = found.generated.index('ĠFrance')
    strongest = int(found[step].scores.argmax())
    assert found[step].tokens[strongest] == 'ĠFrance'
