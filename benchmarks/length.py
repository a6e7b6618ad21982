"""Seconds and peak memory of each method against the length of the text, each length of a text of our own, one at a time. Rows go to results/cost-length.json; a finished row is kept.
python benchmarks/length.py [--rounds 5]"""
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import arguments

from lrp_loo import load_demo, load_texts
from lrp_loo.attribution import explain_batch
from lrp_loo.core import Results
from lrp_loo.models import encode

LENGTHS = (16, 32, 64, 128, 256, 512)
METHODS = {'grad_x_input': ('grad_x_input', {}), 'attn_lrp': ('attn_lrp', {}), 'cp_lrp': ('cp_lrp', {}), 'rollout': ('rollout', {}), 'ig': ('ig', {}), 'removal': ('removal', {}), 'removal, 4 passes': ('removal', dict(n_groups=3)),
           'removal, 9 passes': ('removal', dict(n_groups=8)), 'removal+loo': ('removal+loo', {}), 'contexts, 4 passes': ('removal', dict(weight=[1., .1], n_contexts=1)), 'loo': ('loo', {})}


def text(model, tokenizer, n): # our sentences, one after another, cut at n tokens
    return encode(model, tokenizer, ' '.join(load_texts('sst2', 'embedded').texts*20), truncation=True, max_length=n)


def one(name, n): # MiB above what the loaded model takes
    import resource
    model, tokenizer = load_demo('sst2'); model.requires_grad_(False); m, kw = METHODS[name]; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024
    explain_batch(model, tokenizer, [text(model, tokenizer, 8)], m, **kw); before = peak(); explain_batch(model, tokenizer, [text(model, tokenizer, n)], m, **kw); return peak() - before


if __name__ == '__main__':
    args = arguments(__doc__, one='')
    if args.one: print(one(*args.one.rsplit(':', 1)[:1], int(args.one.rsplit(':', 1)[1]))); raise SystemExit
    model, tokenizer = load_demo('sst2'); model.requires_grad_(False)
    r = Results(Path(__file__).parent.parent/'results'/'cost-length.json', dict(experiment='cost-length', model=dict(name='minilm-sst2'), data=dict(name='sst2', source='embedded'), rounds=args.rounds, threads=torch.get_num_threads(), cpus=os.cpu_count(), dtype='float32', methods={k: list(v) for k, v in METHODS.items()})); i = -1
    for n in LENGTHS:
        enc = text(model, tokenizer, n)
        for name, (m, kw) in METHODS.items():
            i += 1
            if i in r.done: continue
            run = lambda: explain_batch(model, tokenizer, [enc], m, **kw)
            run(); times = []
            while len(times) < (1 if times and times[0] > 20 else args.rounds): t = time.perf_counter(); run(); times.append(time.perf_counter() - t)
            mib = float(subprocess.run([sys.executable, __file__, '--one', f'{name}:{n}'], check=True, capture_output=True, text=True).stdout.split()[-1])
            r.add(dict(i=i, method=name, tokens=n, seconds=statistics.median(times), rounds=len(times), mib=mib)); print(f'{name:20s} {n:4d} tokens {statistics.median(times):8.3f} s {mib:8.0f} MiB', flush=True)
