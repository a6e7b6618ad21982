"""How far `removal` in single precision is from double precision, and how
far a text's scores move with its batch.

The whole run is repeated on fewer texts under plainer kernels and other numbers
of threads.

python research/benchmarks/precision_removal.py [--data FOLDER] [--limit 200]
"""

import argparse
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from lrp_loo import load_demo, load_texts
from lrp_loo.models.demos import DEMOS
from lrp_loo.models.encoding import encode
from lrp_loo.models.layers import describe_model
from lrp_loo.removal import removal_scores
from lrp_loo.trust.results import Results

OUT = Path(__file__).parent.parent / 'results' / 'removal-precision.json'
BOUND = 1e-5  # of a text's largest score
# name → torch's kernels ('' leaves them as the machine has them), threads
SETTINGS = {
    'one thread': ('', 1),  # all texts; the others fewer
    'two threads': ('', 2),
    'avx2': ('avx2', 1),
    'plainest': ('default', 1),
}


def one_text(model, double, tokenizer, encs, i):
    """A row without its number: both errors, in units of the text's largest
    score.
    """
    enc = encs[i]
    n = enc['input_ids'].shape[1]

    def scores(m, some):
        return removal_scores(m, tokenizer, some).scores[0, :n].double()

    alone = scores(model, [enc])
    exact = scores(double, [enc])
    beside = scores(model, [enc, encs[i - 1], encs[(i + 1) % len(encs)]])
    largest = float(exact.abs().max())

    def of(other):
        return float((alone - other).abs().max()) / largest

    return dict(n_tokens=n, double=of(exact), batch=of(beside))


def rows(data, limit, threads, start):
    "One JSON line per text from a number on, for the parent process."
    torch.set_num_threads(threads)
    model, tokenizer = load_demo('sst2')
    double = copy.deepcopy(model).double()
    encs = [
        encode(model, tokenizer, t) for t in load_texts('sst2', data, limit=limit).texts
    ]
    for i in range(start, len(encs)):
        print(json.dumps(one_text(model, double, tokenizer, encs, i)), flush=True)


def in_process(data, limit, setting, start):
    """The rows of a setting as they come from a process of its own: torch
    chooses its kernels once.
    """
    kernels, threads = SETTINGS[setting]
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    if kernels:
        env['ATEN_CPU_CAPABILITY'] = kernels
    command = [
        sys.executable,
        __file__,
        '--worker',
        str(threads),
        '--limit',
        str(limit),
        '--start',
        str(start),
    ]
    if data:
        command += ['--data', data]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True
    ) as worker:
        for line in worker.stdout:
            if line.startswith('{'):
                yield json.loads(line)
    if worker.returncode:
        raise RuntimeError(
            f"the worker for {setting!r} failed with {worker.returncode}"
        )


def main(args):
    limits = {
        s: args.limit if s == 'one thread' else min(args.few, args.limit)
        for s in SETTINGS
    }
    model, _ = load_demo('sst2')
    texts = load_texts('sst2', args.data, limit=args.limit)
    config = dict(
        experiment='precision of removal',
        data=texts.info,
        seed=0,
        bound=BOUND,
        model=describe_model(model, DEMOS['sst2'][0]),
        settings={s: [k or 'native', n, limits[s]] for s, (k, n) in SETTINGS.items()},
        errors=(
            'largest difference of a score over the largest score of the text: '
            'float32 against float64, and alone against beside two other texts'
        ),
    )
    results = Results(args.out, config, fresh=args.fresh)
    for k, setting in enumerate(SETTINGS):
        first = k * args.limit
        start = sum(first <= i < first + limits[setting] for i in results.done)
        if start == limits[setting]:
            continue
        for i, row in enumerate(
            in_process(args.data, limits[setting], setting, start), start
        ):
            results.add(dict(i=first + i, setting=setting, **row))

    def of(s, e):
        return [r[e] for r in results.rows if r['setting'] == s]

    results.summary = {
        s: dict(
            n=len(of(s, 'double')),
            double=max(of(s, 'double')),
            batch=max(of(s, 'batch')),
        )
        for s in SETTINGS
    }
    results.save()
    for s, found in results.summary.items():
        print(
            f"{s}: {found['n']} texts, float64 {found['double']:.1e}, batch"
            f" {found['batch']:.1e}"
        )


if __name__ == '__main__':
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        '--data', help="a folder laid out as the hub's data sets, or 'embedded'"
    )
    p.add_argument('--limit', type=int, default=200, help='texts')
    p.add_argument('--few', type=int, default=24, help='texts under each other setting')
    p.add_argument('--out', default=str(OUT))
    p.add_argument('--fresh', action='store_true', help='start over')
    p.add_argument(
        '--start',
        type=int,
        default=0,
        help='first text of a worker; for this command itself',
    )
    p.add_argument(
        '--worker', type=int, help='threads of a worker; for this command itself'
    )
    args = p.parse_args()
    if args.worker:
        rows(args.data, args.limit, args.worker, args.start)
    else:
        main(args)
