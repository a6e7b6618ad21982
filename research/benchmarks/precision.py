"""Exact LOO in bfloat16 against float32: CPU time of one thread, r and the worst error
over the text's own tokens, beside what the record expects of them.

python research/benchmarks/precision.py [--models sst2,reviews-sst2,mpnet-sst2,smollm2] [--write]

Texts of four lengths and one review; a continuation and a context for the language
models. Minima of some rounds, in which both precisions run in turn. `--write` replaces
a model's rows of research/results/precision.json when they are measured.
"""

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from common import processor
from ratios import LENGTHS, texts_of_length

from lrp_loo import (
    attribute_context,
    explain,
    explain_generation,
    load_demo,
    load_texts,
)
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.core.stats import agreement
from lrp_loo.loo import multiplies_bfloat16

OUT = Path(__file__).parents[1] / 'results' / 'precision.json'
PROMPT = 'The film starts slowly, but the last act is a quiet triumph. I would say that'
CONTEXT = (
    'The film starts slowly. Its hero sells umbrellas in a town where it never rains.'
    ' Nobody buys one. In the last act a storm comes, and he gives them all away.'
)
PRECISIONS = ('float32', 'bfloat16')


def language_model_jobs(model, tokenizer):
    "Yield the jobs of a language model, see `jobs`."
    options = dict(method='loo', max_new_tokens=4)
    yield 'generation', partial(explain_generation, model, tokenizer, PROMPT, **options)
    arguments = (model, tokenizer, CONTEXT, 'He gives them away.')
    options = dict(question='What does he do?', method='loo', units='word')

    def context(precision):
        return [attribute_context(*arguments, precision=precision, **options)]

    yield 'context', context


def jobs(model, tokenizer, n_texts):
    "Yield the name of a job, and a function of the precision that returns its maps."
    if 'ForCausalLM' not in type(model).__name__:
        review = max(load_texts('imdb', 'embedded', seed=1).texts[:8], key=len)
        cut = dict(truncation=True, max_length=150)
        yield 'a review', partial(explain, model, tokenizer, review, 'loo', **cut)
    else:
        yield from language_model_jobs(model, tokenizer)
    for (low, high), n in LENGTHS.items():
        texts = texts_of_length(tokenizer, low, high, min(n, n_texts))
        run = partial(explain, model, tokenizer, texts, 'loo')
        yield f'{low}-{high} tokens', run
        if low == 20:
            run = partial(explain, model, tokenizer, texts[:1], 'loo')
            yield 'one text of 20-26 tokens', run


def compared(a, b):
    "Return r, the worst error, and what `b` expects of them, over content tokens."
    content = a.is_content
    error = (a.scores - b.scores)[content].abs().max() / a.scores[content].abs().max()
    expected = (b.expected_r, b.expected_error)
    return agreement(a.scores, b.scores, ~content), float(error), *expected


def measure(run, rounds):
    "Return the seconds of both precisions, and how far they are apart."
    seconds, maps = {p: [] for p in PRECISIONS}, {}
    for _ in range(rounds):
        for precision in PRECISIONS:
            start = time.process_time()
            maps[precision] = list(run(precision=precision))
            seconds[precision].append(time.process_time() - start)
    r, error, expected_r, expected_error = zip(
        *(compared(a, b) for a, b in zip(*maps.values()))
    )
    known = [x for x in r if x == x]
    before, after = map(min, seconds.values())
    return dict(
        n=len(r),
        tokens=statistics.mean(len(a) for a in maps['float32']),
        float32=round(before, 3),
        bfloat16=round(after, 3),
        ratio=round(after / before, 2),
        r=round(statistics.median(known), 5),
        least_r=round(min(known), 5),
        expected_r=round(statistics.median(expected_r), 5),
        error=round(statistics.median(error), 4),
        most_error=round(max(error), 4),
        expected_error=round(statistics.median(expected_error), 4),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--models', default='sst2,reviews-sst2,mpnet-sst2,smollm2')
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--texts', type=int, default=8, help='of each length, at most')
    parser.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = dict(processor=processor(), versions=versions())
    about['multiplies_bfloat16'] = multiplies_bfloat16(torch.device('cpu'))
    for name in args.models.split(','):
        model, tokenizer = load_demo(name)
        for job, run in jobs(model, tokenizer, args.texts):
            row = dict(model=name, job=job) | measure(run, args.rounds)
            print(row, flush=True)
            if args.write:
                rows = json.loads(OUT.read_text())['rows'] if OUT.exists() else []
                rows = [r for r in rows if (r['model'], r['job']) != (name, job)]
                lines = ',\n'.join(json.dumps(r) for r in [*rows, row])
                head = json.dumps(about)[1:-1]
                write_text_atomic(OUT, f'{{{head}, "rows": [\n{lines}\n]}}\n')


if __name__ == '__main__':
    main()
