"A template wrote the token that the tokenizer puts in front: it stands there once."

import copy

import pytest
from tokenizers.processors import TemplateProcessing
import torch

from lrp_loo import attribute_context, explain
from lrp_loo import explain_generation, load_demo
from lrp_loo.models.encoding import encode
from lrp_loo.tasks.context import prompt_ids

CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "\n{% endfor %}It was"
)
SAID = [dict(role='user', content='A slow film. The cast is fine.')]
ANSWER = ' good'
CONTEXT = 'A slow film. The cast is fine. Nobody laughed.'


@pytest.fixture(scope='module')
def reviews():
    model, tokenizer = load_demo('reviews')
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHAT
    return model, tokenizer


@pytest.fixture(scope='module')
def ending(reviews):
    "The same with a tokenizer that ends every text, too."
    model, tokenizer = reviews
    tokenizer = copy.deepcopy(tokenizer)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f'{tokenizer.bos_token} $A {end}',
        special_tokens=[
            (t, tokenizer.convert_tokens_to_ids(t)) for t in (tokenizer.bos_token, end)
        ],
    )
    return model, tokenizer


def written(tokenizer):
    text = tokenizer.apply_chat_template(SAID, tokenize=False)
    assert text.startswith(tokenizer.bos_token)
    return text


def once(tokenizer, text):
    "Ids as the template wrote them."
    ids = tokenizer(text, add_special_tokens=False)['input_ids']
    assert ids.count(tokenizer.bos_token_id) == 1
    return ids


@torch.no_grad()
def log_prob(model, ids, n_last):
    "Of the last tokens, by hand."
    logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    places = range(len(ids) - n_last, len(ids))
    return sum(float(logits[i - 1, ids[i]]) for i in places)


def test_encode(reviews):
    model, own = reviews
    text = written(own)
    twice = own(text)['input_ids'][:2]
    assert twice == [own.bos_token_id] * 2  # the tokenizer by itself
    enc = encode(model, own, text)
    assert enc['input_ids'][0].tolist() == once(own, text)
    assert {v.shape for v in enc.values()} == {enc['input_ids'].shape}
    plain = text.removeprefix(own.bos_token)
    assert encode(model, own, plain)['input_ids'][0].tolist() == own(plain)['input_ids']


def test_encode_with_an_end(ending):
    model, tokenizer = ending
    text, end = written(tokenizer), tokenizer.eos_token_id
    whole = [*once(tokenizer, text), end]
    for given in (text, text + tokenizer.eos_token):
        enc = encode(model, tokenizer, given)
        assert enc['input_ids'][0].tolist() == whole
    for n in (5, len(whole) - 1):
        cut = encode(model, tokenizer, text, truncation=True, max_length=n)
        assert cut['input_ids'][0].tolist() == whole[: n - 1] + [end]
    # a conversation's earlier turns end, too
    prompt = tokenizer.bos_token + 'fine.' + tokenizer.eos_token
    ids = prompt_ids(tokenizer, prompt)
    assert ids == tokenizer(prompt, add_special_tokens=False)['input_ids']
    assert ids[-1] == end != prompt_ids(tokenizer, 'fine.')[-1]


@pytest.mark.parametrize('method', ['loo', 'attn_lrp'])
def test_explain(reviews, method):
    model, tokenizer = reviews
    text = written(tokenizer)
    (a,) = explain(model, tokenizer, text, method)
    ids = once(tokenizer, text)
    assert a.input_ids.tolist() == ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    assert a.logit == pytest.approx(float(logits[a.target]), rel=1e-4)
    first = a.to_frame().iloc[0]
    assert text[first.start : first.end] == tokenizer.bos_token
    (words,) = explain(model, tokenizer, text, method, units='word')
    assert 'user' in words.tokens and 'laughed' not in words.tokens


@pytest.mark.parametrize('of', ['reviews', 'ending'])
@pytest.mark.parametrize('units', ['token', 'word'])
def test_explain_generation(request, of, units):
    model, tokenizer = request.getfixturevalue(of)
    text = written(tokenizer)
    own = tokenizer(ANSWER, add_special_tokens=False)['input_ids']
    whole = once(tokenizer, text) + own
    wanted = log_prob(model, whole, len(own))
    for prompt in (SAID, text):
        steps = explain_generation(model, tokenizer, prompt, ANSWER, 'loo', units=units)
        assert sum(a.logit for a in steps) == pytest.approx(wanted, rel=1e-4)
        if units == 'token':
            assert steps[-1].input_ids.tolist() == whole[:-1]


@pytest.mark.parametrize('of', ['reviews', 'ending'])
def test_attribute_context(request, of):
    model, tokenizer = request.getfixturevalue(of)
    template = tokenizer.bos_token + 'user: {context}\n{question}\nIt was'
    question = 'How was the film?'
    asked = (CONTEXT, ANSWER, question)
    a = attribute_context(model, tokenizer, *asked, template=template)
    text = template.format(context=CONTEXT, question=question)
    own = tokenizer(ANSWER, add_special_tokens=False)['input_ids']
    whole = once(tokenizer, text) + own
    wanted = log_prob(model, whole, len(own))
    assert a.logit == pytest.approx(wanted, rel=1e-4)
    assert a.tokens == ['A slow film.', 'The cast is fine.', 'Nobody laughed.']
