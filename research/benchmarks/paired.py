"""Is a change slower? Two trees of this project side by side, method by method.

python research/benchmarks/paired.py BEFORE AFTER [--rounds 9] [--limit 40]

A process for each tree explains the same texts in turn, before-after,
after-before, …; each pair gives one ratio of seconds, and a row says the median
ratio of throughput (above 1: the change is faster) with its extremes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = """
import json, sys, time
import torch
from lrp_loo import explain, load_demo, load_texts

torch.set_num_threads(1)
model, tokenizer = load_demo(sys.argv[1])
texts = load_texts('sst2', 'embedded', limit=int(sys.argv[2])).texts
for line in sys.stdin:
    t = time.process_time()
    explain(model, tokenizer, texts, **json.loads(line))
    print(time.process_time() - t, flush=True)
"""
METHODS = [
    dict(method=m)
    for m in ('loo removal attn_lrp cp_lrp ig rollout grad_x_input').split()
]
METHODS += [dict(method='loo', units='word')]


class Tree:
    "A process that explains with the code of one folder."

    def __init__(self, folder, model, limit):
        home = str(Path(folder).resolve())
        env = os.environ | {'PYTHONPATH': home, 'OMP_NUM_THREADS': '1'}
        words = [sys.executable, '-c', WORKER, model, str(limit)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, env=env, cwd=home, stdin=pipe, stdout=pipe, text=True
        )

    def seconds(self, options):
        "Of the processor, for all texts."
        self.process.stdin.write(json.dumps(options) + '\n')
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('trees', nargs=2, metavar='FOLDER')
    parser.add_argument('--model', default='sst2', help='a name that load_demo takes')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--limit', type=int, default=40, help='texts')
    args = parser.parse_args()
    trees = [Tree(folder, args.model, args.limit) for folder in args.trees]
    for options in METHODS:
        for tree in trees:
            tree.seconds(options)  # warm
        ratios = []
        for i in range(args.rounds):
            order = trees if i % 2 else trees[::-1]
            took = {tree: tree.seconds(options) for tree in order}
            ratios.append(took[trees[0]] / took[trees[1]])
        said = ' '.join(map(str, options.values()))
        middle = statistics.median(ratios)
        print(
            f'{said:16} {middle:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]', flush=True
        )


if __name__ == '__main__':
    main()
