"""Seconds and memory on a GPU: exact LOO in float32 and bfloat16, budgets, AttnLRP.

    python research/benchmarks/gpu.py [--models sst2,reviews-sst2] [--write]
    python research/benchmarks/gpu.py --device cpu --rounds 1   # tries the script

A row per model, length and job: the least seconds of some rounds, in which all jobs run
in turn, as a ratio to a forward and backward pass of the texts; the most memory beyond
the model's; r with exact LOO in float32, and the worst error as a share of the largest
score. Without a GPU it says so and ends. `--write` replaces rows of gpu.json.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch
from common import processor
from ratios import LENGTHS, gradient_times_input, texts_of_length

from lrp_loo import explain, load_demo
from lrp_loo.core.files import kernels, versions, write_text_atomic
from lrp_loo.core.stats import agreement

OUT = Path(__file__).parents[1] / 'results' / 'gpu.json'
JOBS = {
    'exact LOO': dict(method='loo'),
    'exact LOO, bfloat16': dict(method='loo', precision='bfloat16'),
    '5 passes': dict(passes=5),
    '11 passes': dict(passes=11),
    'AttnLRP': dict(method='attn_lrp'),
}


def measured(run, device):
    "Return what a job returns, its seconds, and its bytes beyond those held before."
    is_gpu = device == 'cuda'
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    start = time.perf_counter()
    result = run()
    if is_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return result, seconds, torch.cuda.max_memory_allocated() - held if is_gpu else None


def rows_of(model, tokenizer, texts, device, rounds):
    "Return a row per job: its time as a ratio to the gradient's, memory, r, error."
    jobs = {'gradient': partial(gradient_times_input, model, tokenizer, texts)}
    for name, options in JOBS.items():
        jobs[name] = partial(explain, model, tokenizer, texts, **options)
    seconds, memory, maps = {name: [] for name in jobs}, {}, {}
    for _ in range(rounds + 1):  # the first is not counted
        for name, run in jobs.items():
            maps[name], took, memory[name] = measured(run, device)
            seconds[name].append(took)
    least = {name: min(each[1:]) for name, each in seconds.items()}
    rows = []
    for name in JOBS:
        row = dict(job=name, seconds=round(least[name], 4), bytes=memory[name])
        row['to_gradient'] = round(least[name] / least['gradient'], 2)
        pairs = list(zip(maps['exact LOO'], maps[name]))
        r = [agreement(a.scores, b.scores, ~a.is_content) for a, b in pairs]
        row['r'] = round(sum(r) / len(r), 5)
        if JOBS[name].get('method') != 'attn_lrp':
            errors = [
                (a.scores - b.scores).abs().max() / a.scores.abs().max()
                for a, b in pairs
            ]
            row['error'] = round(float(max(errors)), 5)
        rows.append(row)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--models', default='sst2,reviews-sst2')
    p.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    args = p.parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise SystemExit('no GPU: torch.cuda.is_available() is False')
    about = dict(processor=processor(), versions=versions())
    about['kernels'] = kernels(args.device)
    for name in args.models.split(','):
        model, tokenizer = load_demo(name, device=args.device)
        model.requires_grad_(False)
        for (low, high), n in LENGTHS.items():
            texts = texts_of_length(tokenizer, low, high, n)
            for row in rows_of(model, tokenizer, texts, args.device, args.rounds):
                key = dict(model=name, tokens=[low, high], device=args.device)
                row = key | dict(n=len(texts)) | row
                print(row, flush=True)
                if not args.write:
                    continue
                rows = json.loads(OUT.read_text())['rows'] if OUT.exists() else []
                key['job'] = row['job']
                rows = [r for r in rows if any(r[k] != v for k, v in key.items())]
                content = about | dict(rows=[*rows, row])
                write_text_atomic(OUT, json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
    main()
