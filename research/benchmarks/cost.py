"""What many texts take, predicted from some and then measured, at three sizes.

Texts are made of the embedded sentences, one or two in a row, so that there
are enough and none is another's copy. Core-seconds of this process, so that
other work on the machine counts little. Writes results/cost-predicted.json.
"""

import argparse
import json
import random
import time
from pathlib import Path

from lrp_loo.evaluate.cost import cost_of
from lrp_loo import explain, load_demo, load_texts
from lrp_loo.core.files import processor, versions, write_text_atomic

OUT = Path(__file__).parents[2] / 'results' / 'cost-predicted.json'
METHODS = {'attn_lrp': ('attn_lrp', {}), 'removal': ('removal', {})}


def made_texts(n, seed):
    "Texts of one or two sentences, all different."
    sentences = load_texts('sst2', 'embedded').texts
    draw = random.Random(seed)
    found = {}
    while len(found) < n:
        found[' '.join(draw.sample(sentences, draw.choice((1, 2))))] = None
    return list(found)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--sizes', type=int, nargs='+', default=[50, 200, 800])
    p.add_argument('--sample', type=int, default=128)
    p.add_argument('--texts', type=int, default=10_000_000)
    p.add_argument('--price', type=float, default=0.05, help='of a core-hour')
    p.add_argument('--out', default=str(OUT))
    args = p.parse_args()
    model, tokenizer = load_demo('sst2')
    sample = made_texts(args.sample, seed=1)
    record = dict(
        config=dict(model='demo sst2', sample=args.sample, price=args.price),
        versions=versions(),
        processor=processor(),
        methods={},
    )
    for name, (method, options) in METHODS.items():
        how = dict(method=method, price=args.price, **options)
        many = cost_of(model, tokenizer, sample, args.texts, **how)
        rows = []
        for n in args.sizes:
            share = n / args.texts
            texts = made_texts(n, seed=2)
            start = time.process_time()
            explain(model, tokenizer, texts, method, **options)
            seconds = time.process_time() - start
            rows.append(
                dict(
                    texts=n,
                    predicted_s=round(many.seconds * share, 3),
                    standard_error_s=round(many.seconds_se * share, 3),
                    measured_s=round(seconds, 3),
                    ratio=round(many.seconds * share / seconds, 3),
                )
            )
        record['methods'][name] = dict(
            passes_a_text=many.passes,
            checked=rows,
            many=dict(texts=args.texts, core_hours=many.hours, money=many.money),
        )
        print(name, rows, many, flush=True)
        write_text_atomic(args.out, json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
