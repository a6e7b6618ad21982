"Random texts through `explain`: only documented errors, finite scores, the text's tokens."

import os

import numpy as np
import pytest
import torch
from conftest import random_bert

from lrp_loo import explain

N = int(os.environ.get('LRP_LOO_FUZZ', 100))
METHODS = ('attn_lrp', 'cp_lrp', 'removal')
LONGEST = 512  # tokens that the model takes
BATCH = 50
# of one text's scores in different batches: single precision, scores up to 10
TOLERANCE = 1e-4
REFUSED = {  # the documented errors
    'empty': 'the text is empty',
    'surrogate': 'lone surrogate',
    'no token': 'no token besides the special ones',
}


WORDS = (
    "a the film plot actor ending dull bright never always laughed cried slow"
    " quick music camera not very almost story scene hero nobody why café naïve"
    " x² 3.14 $5 don't co-star".split()
)
SPACES = [' ', '  ', '\t', '\n', '\r\n', *'\u00a0\u2003\u200b\u3000\ufeff']
EMOJI = ['😀', '🎬', '👩‍👩‍👧‍👦', '🏳️‍🌈', '👍🏽', '❤️', '🇯🇵', '7️⃣']
RTL = ['סרט', 'נהדר', 'فيلم', 'رائع', '\u202e', '\u200f', 'أبدا']
SPECIAL = ['[CLS]', '[SEP]', '[PAD]', '[MASK]']
MARKS = range(0x300, 0x370)
# kind → how often, what its texts are made of: strings, with any space behind each;
# or code points
KINDS = {
    'words': (0.3, WORDS),
    'emoji': (0.1, EMOJI + WORDS[:6]),
    'right to left': (0.1, RTL + WORDS[:3]),
    'special': (0.05, SPECIAL),
    # the first is no special token, which would not be added a second time
    'words and special': (0.05, [*SPECIAL, '[UNK]', '##s', '[', '<s>', *WORDS[:4]]),
    'repeated': (0.08, WORDS + EMOJI + list('a!.,\u0301')),
    'ASCII': (0.08, range(128)),
    'plane 0': (0.08, range(0x10000)),  # with surrogates
    'any': (0.06, range(0x10000, 0x110000)),
    'combining': (0.05, [*map(ord, 'aeiou ' * 20), *MARKS]),
    'nothing': (0.03, SPACES + ['\x00', '\u200d', '\ufffd']),
    'long': (0.02, WORDS),
}


def random_texts(n, seed):
    "Return n texts, one in ten a copy of an earlier one."
    rng = np.random.default_rng(seed)
    texts = []
    for i in range(n):
        if i and rng.random() < 0.1:
            texts.append(texts[rng.integers(len(texts))])
            continue
        kind = rng.choice(list(KINDS), p=[often for often, _ in KINDS.values()])
        parts, size = KINDS[kind][1], int(rng.integers(1, 25))
        if kind == 'repeated':
            texts.append(str(rng.choice(parts)) * size * 5)
            continue
        drawn = rng.choice(parts, size * 20 if kind == 'long' else size)
        if isinstance(parts[0], int):
            texts.append(''.join(map(chr, map(int, drawn))))
        else:
            first = 'the ' if kind == 'words and special' else ''
            texts.append(first + ''.join(f'{x}{rng.choice(SPACES)}' for x in drawn))
    return texts


def refusal(tokenizer, text):
    "Return the key of REFUSED that the text must get, or None."
    if not text.strip():
        return 'empty'
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        return 'surrogate'
    special = set(tokenizer.all_special_tokens) - {'[UNK]'}
    content = set(tokenizer.tokenize(text)) - special
    return None if content else 'no token'


@pytest.fixture(scope='module')
def model():
    return random_bert(layers=2, max_position_embeddings=LONGEST)


@pytest.fixture(scope='module')
def texts(tokenizer):
    "Random texts, and the refusal that each must get."
    return [(text, refusal(tokenizer, text)) for text in random_texts(N, seed=0)]


def test_a_text_that_cannot_be_explained_is_refused(model, tokenizer, texts):
    refused = [(text, kind) for text, kind in texts if kind]
    assert refused
    for text, kind in refused:
        with pytest.raises(ValueError, match=REFUSED[kind]):
            explain(model, tokenizer, text)


def check(tokenizer, text, a):
    ids = tokenizer(text, truncation=True, max_length=LONGEST)['input_ids']
    assert a.input_ids.tolist() == ids
    assert a.tokens == tokenizer.convert_ids_to_tokens(ids)
    assert a.scores.shape == (len(ids),) and torch.isfinite(a.scores).all()
    assert np.isfinite(a.logit) and a.target in (0, 1)


def test_the_others_have_the_same_scores_in_any_batch(model, tokenizer, texts):
    good = [text for text, kind in texts if kind is None]
    assert len(set(good)) < len(good)  # some occur twice
    logits, n_repeated = {}, 0
    for method in METHODS:
        first = {}
        maps = []
        for start in range(0, len(good), BATCH):
            batch = good[start : start + BATCH]
            maps += explain(model, tokenizer, batch, method, truncation=True)
        for text in good[::8]:
            maps += explain(model, tokenizer, text, method, truncation=True)
        for text, a in zip(good + good[::8], maps, strict=True):
            check(tokenizer, text, a)
            assert abs(logits.setdefault(text, a.logit) - a.logit) < TOLERANCE
            before = first.setdefault(text, a)
            n_repeated += before is not a
            assert a.target == before.target
            assert float((a.scores - before.scores).abs().max()) <= TOLERANCE
    assert n_repeated >= len(METHODS) * len(good[::8])


def test_exact_loo_of_some(model, tokenizer, texts):
    short = [text for text, kind in texts if kind is None and len(text) < 200][::8]
    assert len(short) >= 5
    for text, a in zip(short, explain(model, tokenizer, short, 'loo'), strict=True):
        check(tokenizer, text, a)
