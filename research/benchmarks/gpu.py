"""Seconds and memory on a GPU: exact LOO in float32 and bfloat16, budgets, AttnLRP.

    python research/benchmarks gpu [--models sst2,reviews-sst2] [--write]
    python research/benchmarks gpu --device cpu --rounds 1  # tries the script

A row per model, length and job: the least seconds of some rounds in which all jobs run in
turn, also as a ratio to a gradient by hand; the most bytes beyond those held before; r
with exact LOO in float32 and the worst error, over a text's own tokens. Without a GPU it
says so and ends. `--write` replaces rows of research/results/gpu.json.
"""

import argparse
import statistics
import time
from functools import partial

import torch
from common import LAB, gradient_times_input, machine, replace_row, texts_of_length
from cost import LENGTHS, apart, loaded

from lrp_loo import explain
from lrp_loo.core.files import kernels

JOBS = {
    'exact LOO': dict(method='loo'),
    'exact LOO, bfloat16': dict(method='loo', precision='bfloat16'),
    '5 passes': dict(passes=5),
    '11 passes': dict(passes=11),
    'AttnLRP': dict(method='attn_lrp'),
}


def measured(run, is_gpu):
    "Return what a job returns, its seconds, and its bytes beyond those held before."
    held = 0
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


def rows_of(model, tokenizer, texts, is_gpu, rounds):
    "Yield a row per job."
    jobs = dict(gradient=partial(gradient_times_input, model, tokenizer, texts))
    for name, options in JOBS.items():
        jobs[name] = partial(explain, model, tokenizer, texts, **options)
    maps, seconds, used = {}, {name: [] for name in jobs}, {}
    for _ in range(rounds + 1):  # the first is not counted
        for name, run in jobs.items():
            maps[name], took, used[name] = measured(run, is_gpu)
            seconds[name].append(took)
    least = {name: min(each[1:]) for name, each in seconds.items()}
    for name in JOBS:
        row = dict(job=name, seconds=round(least[name], 5), bytes=used[name])
        row['to_gradient'] = round(least[name] / least['gradient'], 2)
        r, error = zip(*map(apart, maps['exact LOO'], maps[name]))
        yield row | dict(r=round(statistics.mean(r), 5), error=round(max(error), 5))


def main(argv=None):
    "The command."
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--models', default='sst2,reviews-sst2')
    p.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument(
        '--write', action='store_true', help='write research/results/gpu.json'
    )
    args = p.parse_args(argv)
    is_gpu = args.device == 'cuda'
    if is_gpu and not torch.cuda.is_available():
        raise SystemExit('no GPU: torch.cuda.is_available() is False')
    about, keys = machine(), ('model', 'tokens', 'device', 'job')
    about['kernels'] = kernels(args.device)
    for name in args.models.split(','):
        model, tokenizer = loaded(name, args.device)
        for (low, high), n in LENGTHS.items():
            texts = texts_of_length(tokenizer, low, high, n)
            for row in rows_of(model, tokenizer, texts, is_gpu, args.rounds):
                first = dict(model=name, tokens=[low, high], device=args.device)
                row = first | dict(n=len(texts)) | row
                print(row, flush=True)
                if args.write:
                    replace_row(LAB / 'gpu.json', row, keys, about)


if __name__ == '__main__':
    main()
