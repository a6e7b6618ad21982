"""Seconds, memory and file size against the number of texts, and against their length.

python research/benchmarks/size.py [--numbers 1000,10000,100000] [--lengths 512,…] [--write]

numbers: short texts from a generator through `explain(…, stream=True)` with CP-LRP, and
through `summarize_texts` with its rows in a file, and the same call again, which finds
them all. A BERT of two layers with random weights takes so little time that the cost of
everything else shows. lengths: `passes=4` of one text of so many tokens beside a forward
and backward pass, by the small decoder with positions for them. Each number is measured
in a process of its own, with one thread; memory is the peak beyond the loaded model's.
Rows go to research/results/size.json; exponents are slopes of log cost on log size.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path

import torch
from common import processor
from length import forget_peak, peak
from ratios import gradient_times_input

from lrp_loo import explain, load_demo, load_texts, summarize_texts
from lrp_loo.core.files import versions, write_text_atomic

sys.path.append(str(Path(__file__).parents[2] / 'tests'))
from conftest import random_bert  # noqa: E402

OUT = Path(__file__).parents[1] / 'results' / 'size.json'


def short_texts(n):
    "Yield n different texts of about ten tokens."
    sentences = load_texts('sst2', 'embedded').texts
    words = [' '.join(text.split()[:6]) for text in sentences]
    for i in range(n):
        yield f'{words[i % len(words)]} {i}'


def measured(run):
    "Return seconds and MiB of a call, beyond what was held before."
    forget_peak()
    before, start = peak(), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return dict(seconds=round(seconds, 3), mib=round(peak() - before, 1))


def of_number(n):
    "Return the row of n short texts."
    model, (_, tokenizer) = random_bert(layers=2), load_demo('sst2')
    explain(model, tokenizer, 'a first call', 'cp_lrp')
    start = time.perf_counter()
    options = dict(method='cp_lrp', stream=True, progress=False)
    records = explain(model, tokenizer, short_texts(n), **options)
    next(iter(records))
    first = time.perf_counter() - start
    row = dict(texts=n, first=round(first, 3))
    row['stream'] = measured(partial(deque, records, maxlen=0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'rows.json'
        options = dict(method='cp_lrp', results=path, progress=False)
        arguments = (model, tokenizer, list(short_texts(n)))
        row['summary'] = measured(partial(summarize_texts, *arguments, **options))
        row['file_mb'] = round(path.stat().st_size / 1e6, 2)
        row['again'] = measured(partial(summarize_texts, *arguments, **options))
    return row


def of_length(n):
    "Return the row of one text of n tokens."
    model, tokenizer = load_demo('reviews')
    model.config.max_position_embeddings = tokenizer.model_max_length = 8192
    model.requires_grad_(False)
    words = ' '.join(load_texts('imdb', 'embedded').texts) * 20
    ids = tokenizer(words)['input_ids'][:n]
    text = tokenizer.decode(ids[1:] if ids[0] == tokenizer.bos_token_id else ids)
    explain(model, tokenizer, 'a first call', passes=4)
    row = dict(tokens=len(tokenizer(text)['input_ids']))
    row['gradient'] = measured(partial(gradient_times_input, model, tokenizer, [text]))
    row['four_passes'] = measured(partial(explain, model, tokenizer, text, passes=4))
    return row


def in_process(kind, n):
    "Return the row that a process of its own measures."
    command = [sys.executable, __file__, '--one', f'{kind}:{n}']
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def exponent(rows, size, cost):
    "Return the slope of log cost on log size, from the first row to the last."
    first, last = rows[0], rows[-1]
    return round(
        math.log(cost(last) / cost(first)) / math.log(size(last) / size(first)), 2
    )


def main():
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--numbers', default='1000,10000,100000')
    p.add_argument('--lengths', default='512,1024,2000,4000')
    p.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    p.add_argument('--one', help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(1)
    if args.one:
        kind, n = args.one.split(':')
        return print(json.dumps((of_number if kind == 'number' else of_length)(int(n))))
    rows = dict(numbers=[], lengths=[])
    for kind, sizes in dict(number=args.numbers, length=args.lengths).items():
        for n in filter(None, sizes.split(',')):
            rows[f'{kind}s'].append(in_process(kind, n))
            print(rows[f'{kind}s'][-1], flush=True)
    exponents = {}
    for job in ('stream', 'summary', 'again'):
        if len(rows['numbers']) > 1:
            exponents[job] = exponent(
                rows['numbers'],
                lambda r: r['texts'],
                lambda r, job=job: r[job]['seconds'],
            )
    for job in ('gradient', 'four_passes'):
        if len(rows['lengths']) > 1:
            exponents[job] = exponent(
                rows['lengths'],
                lambda r: r['tokens'],
                lambda r, job=job: r[job]['seconds'],
            )
    print(exponents)
    if args.write:
        about = dict(processor=processor(), versions=versions(), threads=1)
        content = about | rows | dict(exponents=exponents)
        write_text_atomic(OUT, json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
    main()
