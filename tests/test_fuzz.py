"""Random texts through `explain`: nothing but the documented errors, finite scores, the text's own tokens, duplicates alike, order kept.
A slice here; `python tests/test_fuzz.py 2000 --write` runs so many and writes results/fuzz.json.
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

from lrp_loo import explain, load_demo
from lrp_loo.core import versions, write_text_atomic
from lrp_loo.models import describe_model

N = int(os.environ.get('LRP_LOO_FUZZ', 100))
METHODS = ('attn_lrp', 'cp_lrp', 'removal')
EXACT = 'loo'
LONGEST = 512
TOLERANCE = dict.fromkeys(
    METHODS,
    1e-4,
    # of one text's scores in different company: single precision, scores up to
    # 10
)
WORDS = (
    "a the film plot actor ending dull bright never always laughed cried slow"
    " quick music camera not very almost story scene hero nobody why café naïve"
    " x² 3.14 $5 don't co-star".split()
)
SPACES = [
    ' ',
    '  ',
    '\t',
    '\n',
    '\r\n',
    '\u00a0',
    '\u2003',
    '\u200b',
    '\u3000',
    '\ufeff',
]
EMOJI = ['😀', '🎬', '👩‍👩‍👧‍👦', '🏳️‍🌈', '👍🏽', '❤️', '🇯🇵', '7️⃣']
RTL = ['סרט', 'נהדר', 'فيلم', 'رائع', '\u202e', '\u200f', 'أبدا']
SPECIAL = ['[CLS]', '[SEP]', '[PAD]', '[MASK]', '[UNK]', '##s', '[', '<s>']
REFUSED = {
    'empty': 'the text is empty',
    'surrogate': 'lone surrogate',
    'no token': 'no token besides the special ones',
}  # the documented errors


def _join(rng, parts, n):
    return ''.join(
        str(rng.choice(parts)) + str(rng.choice(SPACES)) for _ in range(n)
    )


def _points(rng, low, high, n):
    return ''.join(chr(int(c)) for c in rng.integers(low, high, n))


KINDS = {  # kind → (rng, size) → text
    'words': lambda r, n: ' '.join(r.choice(WORDS, n)),
    'spaced': lambda r, n: _join(r, WORDS, n),
    'emoji': lambda r, n: _join(r, EMOJI + WORDS[:6], n),
    'right to left': lambda r, n: _join(r, RTL + WORDS[:3], n),
    'special': lambda r, n: _join(r, SPECIAL + (WORDS[:4] if n % 2 else []), n),
    'repeated': lambda r, n: (
        str(r.choice(WORDS + EMOJI + list('a!.,\u0301')))
        * (n * int(r.integers(1, 9)))
    ),
    'ASCII': lambda r, n: _points(r, 0, 128, n),
    'plane 0': lambda r, n: _points(r, 0, 0x10000, n),  # with surrogates
    'any': lambda r, n: _points(r, 0x10000, 0x110000, n),
    'combining': lambda r, n: ''.join(
        str(r.choice(list('aeiou ')))
        + _points(r, 0x300, 0x370, int(r.integers(0, 4)))
        for _ in range(n)
    ),
    'nothing': lambda r, n: ''.join(
        r.choice(SPACES + ['\x00', '\u200d', '\ufffd'], min(n, 9))
    ),
    'long': lambda r, n: ' '.join(r.choice(WORDS, 20 * n)),
}


def random_texts(n, seed):
    "n (kind, text), one in ten said before."
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        if i and rng.random() < 0.1:
            out.append(out[rng.integers(len(out))])
            continue
        kind = list(KINDS)[
            rng.choice(
                len(KINDS),
                p=[
                    0.2,
                    0.1,
                    0.1,
                    0.1,
                    0.1,
                    0.08,
                    0.08,
                    0.08,
                    0.06,
                    0.05,
                    0.03,
                    0.02,
                ],
            )
        ]
        out.append((kind, KINDS[kind](rng, int(rng.integers(1, 25)))))
    return out


def refusal(tokenizer, text):
    """Which of REFUSED the text must get, found without the code under test;
    None: it has content.
    """
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        return 'surrogate' if text.strip() else 'empty'
    if not text.strip():
        return 'empty'
    special = set(tokenizer.all_special_tokens) - {'[UNK]'}
    return None if set(tokenizer.tokenize(text)) - special else 'no token'


def check(a, tokenizer, text):
    "One explanation against its text."
    ids = tokenizer(text, truncation=True, max_length=LONGEST)['input_ids']
    assert (
        a.input_ids.tolist() == ids
        and a.tokens == tokenizer.convert_ids_to_tokens(ids)
        and len(a.scores) == len(ids)
    )
    assert (
        torch.isfinite(a.scores).all()
        and np.isfinite(a.logit)
        and a.target in (0, 1)
    )


def apart(a, b):
    "How far two explanations of one text are from each other."
    assert a.tokens == b.tokens and a.target == b.target
    return float((a.scores - b.scores).abs().max())


def fuzz(model, tokenizer, n, seed, batch=50):
    "Counts of what came."
    said = random_texts(n, seed)
    good = []
    counts = Counter()
    for kind, t in said:
        counts[f'of kind {kind}'] += 1
        why = refusal(tokenizer, t)
        if why is None:
            good.append(t)
            continue
        with pytest.raises(ValueError, match=REFUSED[why]):
            explain(model, tokenizer, t)
        counts[f'refused: {why}'] += 1
    first = {}
    worst = dict.fromkeys(METHODS, 0.0)
    logits = {}
    for s in range(0, len(good), batch):
        texts = good[s : s + batch]
        counts['longer than the model, cut'] += sum(
            len(tokenizer(t, verbose=False)['input_ids']) > LONGEST
            for t in texts
        )
        for m in METHODS:
            for t, a in zip(
                texts,
                explain(model, tokenizer, texts, method=m, truncation=True),
            ):  # in order: a check would see another text's tokens
                check(a, tokenizer, t)
                counts[f'explained by {m}'] += 1
                logits.setdefault(t, a.logit)
                assert abs(logits[t] - a.logit) < 1e-4
                if (t, m) in first:
                    worst[m] = max(worst[m], apart(first[t, m], a))
                    counts['duplicates'] += 1
                else:
                    first[t, m] = a
    some = [t for t in dict.fromkeys(good) if len(first[t, METHODS[0]]) <= 64][
        ::8
    ]
    for t, a in zip(some, explain(model, tokenizer, some, method=EXACT)):
        check(a, tokenizer, t)
        counts[f'explained by {EXACT}'] += 1
        assert abs(logits[t] - a.logit) < 1e-4
    for t in some[::4]:  # alone or in company
        for m in METHODS:
            worst[m] = max(
                worst[m],
                apart(first[t, m], explain(model, tokenizer, t, method=m)[0]),
            )
            counts['alone against in a batch'] += 1
    return dict(texts=n, **counts), worst


def test_random_texts(demo):
    counts, worst = fuzz(*demo, N, seed=0)
    assert all(worst[m] <= TOLERANCE[m] for m in METHODS), worst
    assert (
        counts['duplicates']
        and counts['alone against in a batch']
        and any(k.startswith('refused') for k in counts)
        and counts['explained by loo'] >= 5
    )


def test_the_record():
    "The committed run is of this code's kinds and texts, and complete."
    d = json.loads(
        (Path(__file__).parents[1] / 'results' / 'fuzz.json').read_text(
            encoding='utf-8'
        )
    )
    c = d['counts']
    assert c['texts'] == 2000 == sum(
        v for k, v in c.items() if k.startswith('of kind')
    ) and Counter(
        f'of kind {k}' for k, _ in random_texts(2000, d['config']['seed'])
    ) == {k: v for k, v in c.items() if k.startswith('of kind')}
    assert all(
        c[f'explained by {m}']
        == 2000 - sum(v for k, v in c.items() if k.startswith('refused'))
        for m in METHODS
    ) and all(
        d['largest_difference_of_one_text'][m] <= d['config']['tolerance'][m]
        for m in METHODS
    )  # of its own run


if __name__ == '__main__':
    n = int(sys.argv[1])
    seed = 0
    start = time.time()
    model, tokenizer = load_demo('sst2')
    counts, worst = fuzz(model, tokenizer, n, seed)
    d = dict(
        config=dict(
            experiment='fuzz',
            n=n,
            seed=seed,
            methods=METHODS,
            exact=EXACT,
            truncation=True,
            tolerance=TOLERANCE,
            model=describe_model(model, 'minilm-sst2'),
        ),
        versions=versions(),
        counts=counts,
        largest_difference_of_one_text=worst,
        seconds=round(time.time() - start),
    )
    print(json.dumps(d, indent=1))
    if '--write' in sys.argv:
        write_text_atomic(
            Path(__file__).parents[1] / 'results' / 'fuzz.json',
            json.dumps(d, indent=1) + '\n',
        )
