"""Seconds and peak memory of each method against the length of the text (a
text of our own, one at a time), and seconds an example against their number
(`explain` over our sentences).

Rows go to results/cost-length.json; a finished row is kept.

python research/benchmarks/length.py [--rounds 5]
"""

import ctypes
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


import torch
from common import arguments

from lrp_loo import explain, load_demo, load_texts
from lrp_loo.core.files import recorded_methods
from lrp_loo.methods import explain_batch
from lrp_loo.models.encoding import encode
from lrp_loo.records.results import Results

LENGTHS = (16, 32, 64, 128, 256, 512)
NUMBERS = (1, 4, 16, 64)
OF_MANY = (
    'grad_x_input',
    'attn_lrp',
    'cp_lrp',
    'removal',
    'ig',
    'loo',
)  # against the number of examples
METHODS = {
    'grad_x_input': ('grad_x_input', {}),
    'attn_lrp': ('attn_lrp', {}),
    'cp_lrp': ('cp_lrp', {}),
    'rollout': ('rollout', {}),
    'ig': ('ig', {}),
    'removal': ('removal', {}),
    'loo': ('loo', {}),
}


def text(model, tokenizer, n):
    "Our sentences, one after another, cut at n tokens."
    return encode(
        model,
        tokenizer,
        ' '.join(load_texts('sst2', 'embedded').texts * 20),
        truncation=True,
        max_length=n,
    )


def seconds(run, rounds):
    "The median; one round is enough of what takes long."
    run()
    times = []
    while len(times) < (1 if times and times[0] > 8 else rounds):
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    return dict(seconds=statistics.median(times), rounds=len(times))


def peak():
    "MiB, since the last `forget_peak`."
    lines = Path('/proc/self/status').read_text().splitlines()
    high_water = next(l for l in lines if l.startswith('VmHWM'))
    return int(high_water.split()[1]) / 1024


def forget_peak():
    """Linux: free memory goes back to the system and the high-water mark falls
    to what is in use; what loading the model took would hide a short text.
    """
    ctypes.CDLL('libc.so.6').malloc_trim(0)
    Path('/proc/self/clear_refs').write_text('5')


def one(name, n):
    "MiB above what the loaded model takes."
    model, tokenizer = load_demo('sst2')
    model.requires_grad_(False)
    m, kw = METHODS[name]
    enc = text(model, tokenizer, n)
    explain_batch(model, tokenizer, [text(model, tokenizer, 8)], m, **kw)
    forget_peak()
    before = peak()
    explain_batch(model, tokenizer, [enc], m, **kw)
    return peak() - before


def in_process(name, n):
    "The same, of a process of its own."
    done = subprocess.run(
        [sys.executable, __file__, '--one', f'{name}:{n}'],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


def row_alone(model, tokenizer, rounds, name, n):
    "A text of n tokens, explained alone."
    enc = text(model, tokenizer, n)
    m, kw = METHODS[name]
    mib = in_process(name, n)
    row = seconds(lambda: explain_batch(model, tokenizer, [enc], m, **kw), rounds)
    print(
        f"{name:20s} {n:4d} tokens {row['seconds']:8.3f} s {mib:8.0f} MiB", flush=True
    )
    return dict(method=name, tokens=n, texts=1) | row | dict(mib=mib)


def row_together(model, tokenizer, rounds, name, n):
    "So many of our sentences in one call."
    own = load_texts('sst2', 'embedded').texts
    some = (own * (n // len(own) + 1))[:n]
    tokens = sum(len(tokenizer(t)['input_ids']) for t in some) / n
    m, kw = METHODS[name]
    row = seconds(
        lambda: explain(model, tokenizer, some, method=m, batch_size=32, **kw), rounds
    )
    row['seconds'] /= n
    print(f"{name:20s} {n:4d} texts  {row['seconds']:8.4f} s each", flush=True)
    return dict(method=name, tokens=tokens, texts=n) | row


def main(args):
    model, tokenizer = load_demo('sst2')
    model.requires_grad_(False)
    config = dict(
        experiment='cost-length',
        model=dict(name='minilm-sst2'),
        data=dict(name='sst2', source='embedded'),
        rounds=args.rounds,
        threads=torch.get_num_threads(),
        cpus=os.cpu_count(),
        dtype='float32',
        methods=recorded_methods(METHODS),
    )
    r = Results(Path(__file__).parent.parent / 'results' / 'cost-length.json', config)
    jobs = [(row_alone, name, n) for n in LENGTHS for name in METHODS]
    jobs += [(row_together, name, n) for n in NUMBERS for name in OF_MANY]
    for i, (row, name, n) in enumerate(jobs):
        if i not in r.done:
            r.add(dict(i=i) | row(model, tokenizer, args.rounds, name, n))


if __name__ == '__main__':
    args = arguments(__doc__, one='')
    if args.one:
        name, n = args.one.rsplit(':', 1)
        print(one(name, int(n)))
    else:
        main(args)
