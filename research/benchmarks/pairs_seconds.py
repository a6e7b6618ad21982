"""Pairs of tokens of reviews of 240 to 256 tokens: seconds with a pass for each
of √T tokens, the largest pairs exact, and of some reviews with a pass for each
token. On a machine that others use as well, a processor's seconds say more.

python research/benchmarks/pairs_seconds.py [--data FOLDER] [--reviews 3] [--whole 1]
    [--out FILE]
"""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / 'benchmarks'))

import torch
from common import arguments, texts

from lrp_loo.core.files import processor
from lrp_loo.tasks.pairs import explain_pairs, forward_cost
from lrp_loo.trust.results import Results

OUT = Path(__file__).parent.parent / 'results' / 'pairs-seconds.json'
FEW = {'removal, √T': dict(n_tokens='sqrt')}
ALL = {'removal, T': {}}


def seconds(model, tokenizer, text, asked):
    "Name → seconds, those of all cores together, cost in forward passes."
    found = {}
    for name, options in asked.items():
        start, at_start = time.perf_counter(), time.process_time()
        (p,) = explain_pairs(model, tokenizer, text, **options)
        found[name] = dict(
            seconds=time.perf_counter() - start,
            of_cores=time.process_time() - at_start,
            cost=forward_cost(p.info),
        )
    n = len(p)
    return dict(n_tokens=n, exact_cost=1 + n + n * (n - 1) // 2, methods=found)


def main():
    args = arguments(__doc__, reviews=3, whole=1)
    if args.out.endswith('benchmarks.json'):
        args.out = str(OUT)
    model, tokenizer, found, _, setting = texts('imdb', args, args.reviews, 256, 240)
    explain_pairs(model, tokenizer, 'not bad at all')  # what is loaded once
    config = dict(
        experiment='seconds of pairs',
        setting=setting,
        threads=torch.get_num_threads(),
        cpus=os.cpu_count(),
        processor=processor(),
    )
    results = Results(args.out, config, fresh=True)
    for i, text in enumerate(found):
        asked = FEW | ALL if i < args.whole else FEW
        row = dict(i=i) | seconds(model, tokenizer, text, asked)
        results.add(row)
        for name, of in row['methods'].items():
            print(name, {k: round(v, 1) for k, v in of.items()}, flush=True)


if __name__ == '__main__':
    main()
