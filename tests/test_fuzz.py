"""Random texts through `explain`: the documented errors alone, finite scores, own tokens.

`python tests/test_fuzz.py 2000 --write` runs so many and writes results/fuzz.json.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')

import numpy as np
import pytest
import torch
from conftest import random_bert

from lrp_loo import explain, load_demo
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.models.layers import describe_model

RECORD = Path(__file__).parents[1] / 'results' / 'fuzz.json'
N = int(os.environ.get('LRP_LOO_FUZZ', 100))
N_OF_DEMO = max(20, N // 5)
METHODS = ('attn_lrp', 'cp_lrp', 'removal')
EXACT = 'loo'
LONGEST = 512  # tokens that the model takes
SHORT = 64  # tokens of a text that exact LOO is asked of
BATCH = 50
# of one text's scores in different company: single precision, scores up to 10
TOLERANCE = dict.fromkeys(METHODS, 1e-4)
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
    "n (kind, text), one in ten said before."
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
    "Which of REFUSED the text must get, found without the code under test, or None."
    if not text.strip():
        return 'empty'
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        return 'surrogate'
    special = set(tokenizer.all_special_tokens) - {'[UNK]'}
    content = set(tokenizer.tokenize(text)) - special
    return None if content else 'no token'


def n_tokens(tokenizer, text):
    "Before it is cut."
    return len(tokenizer(text, verbose=False)['input_ids'])


def asked_of_loo(tokenizer, good):
    "Every eighth of the short texts."
    different = list(dict.fromkeys(good))
    short = [t for t in different if n_tokens(tokenizer, t) <= SHORT]
    return short[::8]


def counts_due(tokenizer, said):
    "What a run must count, found without a model."
    refused = [refusal(tokenizer, text) for _, text in said]
    good = [text for (_, text), why in zip(said, refused) if why is None]
    some = asked_of_loo(tokenizer, good)
    counts = Counter(f'of kind {kind}' for kind, _ in said)
    counts.update(f'refused: {why}' for why in refused if why)
    counts.update({f'explained by {m}': len(good) for m in METHODS})
    too_long = [t for t in good if n_tokens(tokenizer, t) > LONGEST]
    counts['longer than the model, cut'] = len(too_long)
    counts['duplicates'] = len(METHODS) * (len(good) - len(set(good)))
    counts[f'explained by {EXACT}'] = len(some)
    counts['alone against in a batch'] = len(METHODS) * len(some[::4])
    return dict(texts=len(said), **counts)


class Run:
    "Counts of what came, and the largest difference of one text's scores."

    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer
        self.counts = Counter()
        self.worst = dict.fromkeys(METHODS, 0.0)
        self.first = {}  # (text, method) → its first explanation
        self.logits = {}

    def refuse(self, said):
        "The texts that are not refused; the others get their error."
        good = []
        for kind, text in said:
            self.counts[f'of kind {kind}'] += 1
            why = refusal(self.tokenizer, text)
            if why is None:
                good.append(text)
                continue
            with pytest.raises(ValueError, match=REFUSED[why]):
                explain(self.model, self.tokenizer, text)
            self.counts[f'refused: {why}'] += 1
        return good

    def explain(self, texts, method, **options):
        "Each explanation checked, and its logit the same by every method."
        found = explain(self.model, self.tokenizer, texts, method=method, **options)
        # in order: else it would have another text's tokens
        for text, a in zip(texts, found, strict=True):
            ids = self.tokenizer(text, truncation=True, max_length=LONGEST)['input_ids']
            assert a.input_ids.tolist() == ids
            assert a.tokens == self.tokenizer.convert_ids_to_tokens(ids)
            assert a.scores.shape == (len(ids),) and torch.isfinite(a.scores).all()
            assert np.isfinite(a.logit) and a.target in (0, 1)
            self.counts[f'explained by {method}'] += 1
            assert abs(self.logits.setdefault(text, a.logit) - a.logit) < 1e-4
        return found

    def compare(self, text, method, a, what):
        "With what the text got at first."
        first = self.first.setdefault((text, method), a)
        if first is a:
            return
        assert (a.tokens, a.target) == (first.tokens, first.target)
        difference = float((a.scores - first.scores).abs().max())
        self.worst[method] = max(self.worst[method], difference)
        self.counts[what] += 1

    def batch(self, texts):
        "Every method on texts in company."
        too_long = sum(n_tokens(self.tokenizer, t) > LONGEST for t in texts)
        self.counts['longer than the model, cut'] += too_long
        for method in METHODS:
            found = self.explain(texts, method, truncation=True)
            for text, a in zip(texts, found):
                self.compare(text, method, a, 'duplicates')

    def alone(self, text):
        "Every method on one text without company."
        for method in METHODS:
            (a,) = explain(self.model, self.tokenizer, text, method=method)
            self.compare(text, method, a, 'alone against in a batch')


def fuzz(model, tokenizer, n, seed):
    "Counts of what came, and the largest differences by method."
    run = Run(model, tokenizer)
    good = run.refuse(random_texts(n, seed))
    for start in range(0, len(good), BATCH):
        run.batch(good[start : start + BATCH])
    some = asked_of_loo(tokenizer, good)
    run.explain(some, EXACT)
    for text in some[::4]:
        run.alone(text)
    return dict(texts=n, **run.counts), run.worst


def test_random_texts_get_what_is_due(tokenizer):
    model = random_bert(layers=2, max_position_embeddings=LONGEST)
    counts, worst = fuzz(model, tokenizer, N, seed=0)
    assert counts == counts_due(tokenizer, random_texts(N, 0))
    # the same scores in any company
    assert all(0 < worst[method] <= TOLERANCE[method] for method in METHODS), worst
    # something of everything
    least = {'duplicates': 1, 'alone against in a batch': 1, 'refused': 1}
    for what, n in (least | {f'explained by {EXACT}': 5}).items():
        assert sum(m for name, m in counts.items() if name.startswith(what)) >= n


def test_the_demo_model_gives_random_texts_what_is_due(demo):
    "They are the record's first: what they show is within rounding there."
    record = json.loads(RECORD.read_text(encoding='utf-8'))
    counts, worst = fuzz(*demo, N_OF_DEMO, seed=0)
    assert counts == counts_due(demo[1], random_texts(N_OF_DEMO, 0))
    seed = record['config']['seed']
    texts = random_texts(2000, seed)
    assert texts[:N] == random_texts(N, 0)
    # of 2,000 texts, by the rules that the small run is held to
    assert record['counts'] == counts_due(demo[1], texts)
    for method in METHODS:
        largest = record['largest_difference_of_one_text'][method]
        assert worst[method] <= largest + 5e-5
        assert 0 < largest <= record['config']['tolerance'][method]
    now = json.loads(json.dumps(configuration(demo[0])))
    # its tolerance is its own
    assert record['config'] | dict(tolerance=None) == now | dict(tolerance=None)


def configuration(model, n=2000, seed=0):
    "What a record is of."
    return dict(
        experiment='fuzz',
        n=n,
        seed=seed,
        methods=METHODS,
        exact=EXACT,
        truncation=True,
        tolerance=TOLERANCE,
        model=describe_model(model, 'minilm-sst2'),
    )


def main(n, write):
    "Run n texts and print what came."
    start = time.time()
    model, tokenizer = load_demo('sst2')
    counts, worst = fuzz(model, tokenizer, n, seed=0)
    made = dict(config=configuration(model, n), versions=versions(), counts=counts)
    made |= dict(largest_difference_of_one_text=worst)
    text = json.dumps(made | dict(seconds=round(time.time() - start)), indent=1)
    print(text)
    if write:
        write_text_atomic(RECORD, text + '\n')


if __name__ == '__main__':
    main(int(sys.argv[1]), '--write' in sys.argv)
