"""CPU time of the checks that compare a call with the model's own forward.

python research/benchmarks/guard.py [--models mpnet-sst2,smollm2] [--rounds 5] [--write]

Each job runs with the checks and without them, in turn; the ratio is that of a pair. One
text is explained after the first call on the model, as a person does in a notebook. A
list is new to the model: what was shown of texts of these lengths is forgotten before.
One thread; the median of the rounds, and the range.
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path
from unittest import mock

import torch
from common import processor

from lrp_loo import explain, load_demo, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.models.structure import proofs_of

OUT = Path(__file__).parents[1] / 'results' / 'guard.json'
N_SENTENCES = 96
METHODS = ('loo', 'auto', 'attn_lrp', 'cp_lrp', 'removal', 'ig', 'rollout')


def without_checks():
    "Return a context in which nothing is compared, and no change of the model noticed."
    stack = contextlib.ExitStack()
    for name, value in {
        'models.structure.Proofs.holds': True,
        'methods.differs_from_model': False,
        'loo.engines._are_right': True,
        'loo.engines.Variants.is_read_alone': True,
        'loo.engines.check_hidden': None,
        'estimate.check_hidden': None,
    }.items():
        patch = mock.patch(
            f'lrp_loo.{name}', lambda *args, value=value, **kwargs: value
        )
        stack.enter_context(patch)
    return stack


def ratios(model, tokenizer, texts, method, rounds):
    "Return the ratios with checks to without, of one text or of a new list."
    pairs = []
    explain(model, tokenizer, texts, method)  # the first call
    for k in range(rounds):
        times = {}
        for checked in (True, False) if k % 2 else (False, True):
            if len(texts) > 1:
                proofs_of(model).longest.clear()
            with contextlib.nullcontext() if checked else without_checks():
                start = time.process_time()
                for text in texts[:1] * 10 if len(texts) == 1 else [texts]:
                    explain(model, tokenizer, text, method)
                times[checked] = time.process_time() - start
        pairs.append(times[True] / times[False])
    return dict(median=statistics.median(pairs), low=min(pairs), high=max(pairs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--models', default='sst2,reviews-sst2')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    args = parser.parse_args()
    torch.set_num_threads(1)
    sentences = load_texts('sst2', 'embedded', limit=N_SENTENCES, seed=1).texts
    one = sorted(sentences, key=len)[len(sentences) // 2]
    rows = json.loads(OUT.read_text())['rows'] if OUT.exists() else []
    for name in args.models.split(','):
        model, tokenizer = load_demo(name)
        n = N_SENTENCES // 4 if name in ('mpnet-sst2', 'smollm2') else N_SENTENCES
        for method in METHODS:
            for kind, texts in dict(text=[one], list=sentences[:n]).items():
                ratio = ratios(model, tokenizer, texts, method, args.rounds)
                row = dict(model=name, method=method, kind=kind, n_texts=len(texts))
                row |= {k: round(v, 3) for k, v in ratio.items()}
                print(row, flush=True)
                key = name, method, kind
                rows = [r for r in rows if (r['model'], r['method'], r['kind']) != key]
                rows.append(row)
    config = dict(threads=1, rounds=args.rounds, processor=processor())
    if args.write:
        content = dict(config=config, versions=versions(), rows=rows)
        write_text_atomic(OUT, json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
    main()
