"""Pairs of tokens of reviews of 240 to 256 tokens: seconds with a pass for each
of √T tokens and for each token, the largest pairs exact; and of how many pairs
of a review all T²/2 would take.

python benchmarks/pairs_seconds.py [--data FOLDER] [--reviews 3] [--out FILE]
"""

import os
import time
from pathlib import Path

import torch
from common import arguments, texts

from lrp_loo.core import processor
from lrp_loo.pairs import explain_pairs, forward_cost
from lrp_loo.results import Results

OUT = Path(__file__).parent.parent / 'results' / 'pairs-seconds.json'
ASKED = {'removal, √T': dict(n_tokens='sqrt'), 'removal, T': {}}


def seconds(model, tokenizer, text):
    "Name → seconds and cost in forward passes."
    found = {}
    for name, options in ASKED.items():
        start = time.perf_counter()
        (p,) = explain_pairs(model, tokenizer, text, **options)
        spent = time.perf_counter() - start
        found[name] = dict(seconds=spent, cost=forward_cost(p.info))
    n = len(p)
    return dict(n_tokens=n, exact_cost=1 + n + n * (n - 1) // 2, methods=found)


def main():
    args = arguments(__doc__, reviews=3)
    if args.out.endswith('benchmarks.json'):
        args.out = str(OUT)
    model, tokenizer, found, _, setting = texts(
        'imdb', args, args.reviews, 256, 240
    )
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
        row = dict(i=i) | seconds(model, tokenizer, text)
        results.add(row)
        print({k: round(v['seconds'], 1) for k, v in row['methods'].items()})


if __name__ == '__main__':
    main()
