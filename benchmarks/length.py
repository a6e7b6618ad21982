"""Seconds and peak memory of each method against the length of the text (a text of our own, one at a time), and seconds an example against their number (`explain` over our sentences). Rows go to results/cost-length.json; a finished row is kept.
python benchmarks/length.py [--rounds 5]"""

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
from lrp_loo.methods import explain_batch
from lrp_loo.results import Results
from lrp_loo.models import encode

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
    'removal, 4 passes': ('removal', dict(n_groups=3)),
    'removal, 9 passes': ('removal', dict(n_groups=8)),
    'removal+loo': ('removal+loo', {}),
    'contexts, 4 passes': ('removal', dict(weight=[1.0, 0.1], n_contexts=1)),
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
    return (
        int(
            next(
                l
                for l in Path('/proc/self/status').read_text().splitlines()
                if l.startswith('VmHWM')
            ).split()[1]
        )
        / 1024
    )


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


if __name__ == '__main__':
    args = arguments(__doc__, one='')
    if args.one:
        print(
            one(*args.one.rsplit(':', 1)[:1], int(args.one.rsplit(':', 1)[1]))
        )
        raise SystemExit
    model, tokenizer = load_demo('sst2')
    model.requires_grad_(False)
    r = Results(
        Path(__file__).parent.parent / 'results' / 'cost-length.json',
        dict(
            experiment='cost-length',
            model=dict(name='minilm-sst2'),
            data=dict(name='sst2', source='embedded'),
            rounds=args.rounds,
            threads=torch.get_num_threads(),
            cpus=os.cpu_count(),
            dtype='float32',
            methods={k: list(v) for k, v in METHODS.items()},
        ),
    )
    i = -1
    for n in LENGTHS:
        enc = text(model, tokenizer, n)
        for name, (m, kw) in METHODS.items():
            i += 1
            if i in r.done:
                continue
            mib = float(
                subprocess.run(
                    [sys.executable, __file__, '--one', f'{name}:{n}'],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.split()[-1]
            )
            row = seconds(
                lambda: explain_batch(model, tokenizer, [enc], m, **kw),
                args.rounds,
            ) | dict(mib=mib)
            r.add(dict(i=i, method=name, tokens=n, texts=1) | row)
            print(
                f"{name:20s} {n:4d} tokens {row['seconds']:8.3f} s"
                f" {mib:8.0f} MiB",
                flush=True,
            )
    own = load_texts('sst2', 'embedded').texts
    for n in NUMBERS:
        some = (own * (n // len(own) + 1))[:n]
        tokens = sum(len(tokenizer(t)['input_ids']) for t in some) / n
        for name in OF_MANY:
            i += 1
            m, kw = METHODS[name]
            if i in r.done:
                continue
            row = seconds(
                lambda: explain(
                    model, tokenizer, some, method=m, batch_size=32, **kw
                ),
                args.rounds,
            )
            row['seconds'] /= n
            r.add(dict(i=i, method=name, tokens=tokens, texts=n) | row)
            print(
                f"{name:20s} {n:4d} texts  {row['seconds']:8.4f} s each",
                flush=True,
            )
