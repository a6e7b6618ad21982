"A continuation is read as the tokenizer reads it after the prompt, or refused."

import pytest
import torch
from small_tokenizers import decoder_for, of_sentencepiece

from lrp_loo import attribute_context, explain_generation, load_demo

WORDS = ['▁The', '▁quick', '▁brown', '▁fox', '▁a', '▁good', '▁bad', 'fox', 'row']
PAIRS = {
    'space in the prompt': ('The quick brown ', 'fox'),
    'space in the continuation': ('The quick brown', ' fox'),
    'a space in each': ('The quick brown ', ' fox'),
    'three spaces': ('The quick brown   ', 'fox'),
    'newline': ('The quick brown', '\nfox'),
    'newline in the prompt': ('The quick brown\n', 'fox'),
    'comma': ('The quick brown', ', a fox'),
    'several words': ('The ', 'quick brown fox'),
}


def of_bytes():
    return load_demo('reviews')


def of_pieces(**options):
    tokenizer = of_sentencepiece(WORDS, begins=True, **options)
    return decoder_for(tokenizer), tokenizer


DECODERS = {
    'byte-level BPE': of_bytes,
    'SentencePiece': of_pieces,
    'SentencePiece, legacy': lambda: of_pieces(legacy=True),
}


@pytest.fixture(scope='module', params=DECODERS)
def decoder(request):
    return DECODERS[request.param]()


@pytest.mark.parametrize('pair', PAIRS)
def test_a_continuation_has_the_tokens_of_the_joined_text(decoder, pair):
    model, tokenizer = decoder
    prompt, continuation = PAIRS[pair]
    steps = explain_generation(model, tokenizer, prompt, continuation, 'loo')
    ids = tokenizer(prompt + continuation)['input_ids']
    assert steps.tokens == tokenizer.convert_ids_to_tokens(ids)
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for n, a in enumerate(steps, steps.n_prompt):
        assert a.logit == pytest.approx(float(log_probs[n - 1, ids[n]]), abs=1e-4)


MERGED = [('The quick brow', 'n fox'), ('The quick b', 'rown'), ('The qu', 'ick')]


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize('prompt, continuation', MERGED)
def test_a_token_of_both_texts_is_refused(prompt, continuation, legacy):
    with pytest.raises(ValueError, match='makes one token .* of the prompt') as e:
        explain_generation(*of_pieces(legacy=legacy), prompt, continuation)
    assert repr(continuation) in str(e.value)


def test_a_token_of_both_texts_is_refused_of_byte_level_tokens():
    model, tokenizer = of_bytes()
    with pytest.raises(ValueError, match='one token'):
        explain_generation(model, tokenizer, 'The fil', 'm is slow')


@pytest.mark.parametrize('answer', ['good', ' good'])
def test_one_space_stands_before_an_answer(decoder, answer):
    model, tokenizer = decoder
    a = attribute_context(model, tokenizer, 'The quick fox', answer, method='loo')
    ids = tokenizer('The quick fox good')['input_ids']
    n = len(tokenizer('The quick fox')['input_ids'])
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    total = sum(float(log_probs[i - 1, ids[i]]) for i in range(n, len(ids)))
    assert a.logit == pytest.approx(total, abs=1e-4)


def test_words_of_an_answer_begin_where_the_joined_text_has_them(decoder):
    model, tokenizer = decoder
    answer = 'good, a fox'
    maps = attribute_context(
        model, tokenizer, 'The quick fox', answer, method='loo', answer_units='word'
    )
    assert ''.join(a.label for a in maps) == answer.replace(' ', '')
    whole = attribute_context(model, tokenizer, 'The quick fox', answer, method='loo')
    assert sum(a.logit for a in maps) == pytest.approx(whole.logit, abs=1e-4)


TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def test_an_answer_that_a_chat_has_begun_is_read_in_the_joined_text(decoder):
    model, tokenizer = decoder
    tokenizer.chat_template = TURNS
    begun = [dict(role='user', content='a fox'), dict(role='assistant', content='The')]
    steps = explain_generation(model, tokenizer, begun, ' good fox', 'loo')
    text = 'user: a foxassistant: The good fox'
    ids = tokenizer(text, add_special_tokens=False)['input_ids']
    assert steps.tokens == tokenizer.convert_ids_to_tokens(ids)
    begun[-1]['content'] = 'The quick brow'
    with pytest.raises(ValueError, match='one token'):
        explain_generation(model, tokenizer, begun, 'n fox')
