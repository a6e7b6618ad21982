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
SPECIAL = ['[CLS]', '[SEP]', '[PAD]', '[MASK]', '[UNK]', '##s', '[', '<s>']


def _joined(rng, parts, n):
    "n parts, with any space behind each."
    return ''.join(f'{rng.choice(parts)}{rng.choice(SPACES)}' for _ in range(n))


def _points(rng, low, high, n):
    "n code points."
    return ''.join(chr(int(c)) for c in rng.integers(low, high, n))


def _repeated(rng, n):
    part = str(rng.choice(WORDS + EMOJI + list('a!.,\u0301')))
    return part * (n * int(rng.integers(1, 9)))


def _combining(rng, n):
    "Vowels with up to three marks."
    parts = []
    for _ in range(n):
        letter = str(rng.choice(list('aeiou ')))
        marks = int(rng.integers(0, 4))
        parts.append(letter + _points(rng, 0x300, 0x370, marks))
    return ''.join(parts)


def _nothing(rng, n):
    blank = SPACES + ['\x00', '\u200d', '\ufffd']
    return ''.join(rng.choice(blank, min(n, 9)))


def _special(rng, n):
    return _joined(rng, SPECIAL + WORDS[:4] if n % 2 else SPECIAL, n)


KINDS = {  # kind → how often, (rng, size) → text
    'words': (0.2, lambda rng, n: ' '.join(rng.choice(WORDS, n))),
    'spaced': (0.1, lambda rng, n: _joined(rng, WORDS, n)),
    'emoji': (0.1, lambda rng, n: _joined(rng, EMOJI + WORDS[:6], n)),
    'right to left': (0.1, lambda rng, n: _joined(rng, RTL + WORDS[:3], n)),
    'special': (0.1, _special),
    'repeated': (0.08, _repeated),
    'ASCII': (0.08, lambda rng, n: _points(rng, 0, 128, n)),
    # with surrogates
    'plane 0': (0.08, lambda rng, n: _points(rng, 0, 0x10000, n)),
    'any': (0.06, lambda rng, n: _points(rng, 0x10000, 0x110000, n)),
    'combining': (0.05, _combining),
    'nothing': (0.03, _nothing),
    'long': (0.02, lambda rng, n: ' '.join(rng.choice(WORDS, 20 * n))),
}


def random_texts(n, seed):
    "Return n (kind, text), one in ten a copy of an earlier one."
    rng = np.random.default_rng(seed)
    often = [p for p, _ in KINDS.values()]
    out = []
    for i in range(n):
        if i and rng.random() < 0.1:
            out.append(out[rng.integers(len(out))])
            continue
        kind = list(KINDS)[rng.choice(len(KINDS), p=often)]
        text_of = KINDS[kind][1]
        out.append((kind, text_of(rng, int(rng.integers(1, 25)))))
    return out


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
    texts = [text for _, text in random_texts(N, seed=0)]
    return [(text, refusal(tokenizer, text)) for text in texts]


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
