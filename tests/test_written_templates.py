"A template wrote the token that the tokenizer puts in front: it stands there once."

import copy
from functools import partial

import pytest
from tokenizers.processors import TemplateProcessing
import torch
from transformers import T5Config, T5ForConditionalGeneration

from lrp_loo import attribute_context, explain_generation, load_demo
from lrp_loo.inputs.templates import as_prompt
from lrp_loo.models.encoding import encode
from lrp_loo.tasks.generation import encode_prompt

CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "\n{% endfor %}It was"
)
SAID = [dict(role='user', content='A slow film. The cast is fine.')]
ANSWER = ' good'
CONTEXT = 'A slow film. The cast is fine. Nobody laughed.'
torch.manual_seed(0)
T5 = T5ForConditionalGeneration(
    T5Config(vocab_size=30522, d_model=64, num_layers=2, decoder_start_token_id=0)
).eval()


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
    (ids,), (other_ids,) = (
        encode_prompt(model, tokenizer, as_prompt(text, tokenizer, model))['input_ids']
        for text in (prompt, 'fine.')
    )
    assert ids.tolist() == tokenizer(prompt, add_special_tokens=False)['input_ids']
    assert ids[-1] == end != other_ids[-1]


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


@pytest.mark.parametrize('of', ['plain', 'chat', 'ending', 'T5'])
def test_attribute_context(request, of):
    "Hidden by hand: each sentence of what the model reads; as spans of a message, too."
    model, tokenizer = request.getfixturevalue(of if of == 'ending' else 'reviews')
    question, own = 'How was the film?', ANSWER.strip()
    text, how = f'{CONTEXT}\n\n{question}', {}
    if of == 'T5':
        model, tokenizer = T5, load_demo('sst2')[1]
        text += '\n'
    elif of == 'chat':
        turns = [dict(role='user', content=text)]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    else:
        text = tokenizer.bos_token + f'user: {text}\nIt was'
        how = dict(template=text.replace(CONTEXT, '{context}'))
        how['template'] = how['template'].replace(question, '{question}')
    a = attribute_context(model, tokenizer, CONTEXT, own, question, 'loo', **how)
    sentences = ['A slow film.', 'The cast is fine.', 'Nobody laughed.']
    assert a.tokens == sentences and a.info['chat'] == (of == 'chat')
    enc = tokenizer(text, add_special_tokens=of == 'T5', return_offsets_mapping=True)
    answer = tokenizer(own, add_special_tokens=False)['input_ids']
    ids = enc['input_ids'] + (answer if of != 'T5' else [])
    inputs = dict(input_ids=torch.tensor([ids]))
    if of == 'T5':
        inputs |= dict(decoder_input_ids=torch.tensor([[0, *answer]]))
    start = text.index(CONTEXT)

    def log_p(sentence=None):
        mask = torch.ones_like(inputs['input_ids'])
        if sentence is not None:
            first = start + CONTEXT.index(sentence)
            for i, (_, b) in enumerate(enc['offset_mapping']):
                mask[0, i] = not first < b <= first + len(sentence)
        with torch.no_grad():
            rows = model(**inputs, attention_mask=mask).logits[0].log_softmax(-1)
        return rows[-len(answer) - 1 : -1].gather(1, torch.tensor([answer]).T).sum()

    expected = torch.stack([log_p() - log_p(sentence) for sentence in sentences])
    torch.testing.assert_close(a.scores, expected, rtol=1e-3, atol=1e-4)
    if of == 'chat':
        spans = [(0, 12), (13, 30), (31, 46)]
        g = explain_generation(model, tokenizer, turns, own, 'loo', units=spans)
        torch.testing.assert_close(
            sum(a.scores[:3] for a in g), expected, rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize('of', ['plain', 'chat', 'T5'])
def test_passages(reviews, of):
    "Hidden by hand: each passage, for an answer's sentences and against another one."
    model, tokenizer = (T5, load_demo('sst2')[1]) if of == 'T5' else reviews
    passages = [f' Film {i} is slow. It is long.' for i in range(18)]
    question, answer, other = 'Which film is long?', 'Film 3 is. It is slow.', 'None.'
    text, how = '\n\n'.join([*passages, question]), {}
    if of == 'chat':  # all stands in one's own words
        how = dict(messages=[dict(role='user', content=text)])
        text = tokenizer.apply_chat_template(how['messages'], tokenize=False)
    elif of == 'plain':
        text, how = text + ' It: ', dict(template='{context}\n\n{question} It: ')
    text += '\n' * (of == 'T5')
    options = dict(add_special_tokens=of != 'chat', return_offsets_mapping=True)
    enc = tokenizer(text.rstrip(' '), **options)

    def log_p(answer, passage=''):
        answer = ' ' * (of == 'plain') + answer
        new = tokenizer(answer, add_special_tokens=False)['input_ids']
        ids = enc['input_ids'] + new * (of != 'T5')
        mask = torch.ones(1, len(ids), dtype=torch.long)
        first = text.index(passage.strip())
        for i, (_, end) in enumerate(enc['offset_mapping']):
            mask[0, i] = not first < end <= first + len(passage.strip())
        inputs = dict(input_ids=torch.tensor([ids]), attention_mask=mask)
        if of == 'T5':
            inputs['decoder_input_ids'] = torch.tensor([[0, *new]])
        rows = model(**inputs).logits[0, -len(new) - 1 : -1].log_softmax(-1)
        return rows.gather(1, torch.tensor([new]).T)[:, 0]

    changes = torch.stack([log_p(answer) - log_p(answer, p) for p in passages], 1)
    against = torch.stack([(log_p(other) - log_p(other, p)).sum() for p in passages])
    n = len(log_p(answer.split('.')[0] + '.'))  # tokens of the first sentence
    ask = partial(attribute_context, model, tokenizer, passages, question=question)
    a, rows = ask(answer, **how), ask(answer, answer_units='sentence', **how)
    near = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    near(a.scores, changes.sum(0))
    sums = changes[:n].sum(0), changes[n:].sum(0)
    near(torch.tensor(rows.matrix.to_numpy()).float(), torch.stack(sums))
    near(ask(target=(answer, other), **how).scores, changes.sum(0) - against)
    assert a.exact and a.tokens[1] == '[2] Film 1 is slow. It is long.'
    assert rows.matrix.index.tolist() == ['Film 3 is.', 'It is slow.']
