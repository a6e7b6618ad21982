"""Peers that stand in environments of their own, asked as `peer_protocol` says.

An environment variable names each one's python (README.md: how it is made); a
peer without one is left out, and the benchmark says so.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from lrp_loo.stats import pearson

IN_PAIRS = 2  # items on which ours is timed too
HERE = Path(__file__).parent
PEERS = {  # name → the variable that names its python, its runner
    'Inseq': ('LRP_LOO_INSEQ_PYTHON', 'peer_inseq.py'),
    'Captum': ('LRP_LOO_CAPTUM_PYTHON', 'peer_captum.py'),
    'ContextCite': ('LRP_LOO_CONTEXT_CITE_PYTHON', 'peer_context_cite.py'),
    'FlashTrace': ('LRP_LOO_FLASHTRACE_PYTHON', 'peer_flashtrace.py'),
    'Interpreto': ('LRP_LOO_INTERPRETO_PYTHON', 'peer_interpreto.py'),
}


def python_of(
    peer,  # one of PEERS
):
    "The python of its environment, or None."
    variable = PEERS[peer][0]
    named = os.environ.get(variable)
    if not named:
        print(
            f'{peer} was not measured: {variable} names no environment',
            file=sys.stderr,
        )
    return named


class Peer:
    "A runner's process; a context manager."

    def __init__(self, python, runner):
        self.words = [python, str(HERE / runner)]

    def __enter__(self):
        hidden = ('PYTHONPATH', 'VIRTUAL_ENV')
        env = {k: v for k, v in os.environ.items() if k not in hidden}
        env |= {'HF_HUB_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false'}
        self.process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, question):
        "The answer, or {'error': why}."
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return dict(error='the runner did not start')
        line = self.process.stdout.readline()
        return json.loads(line) if line else dict(error='the runner ended')


def timed(function, *args):
    "What it gives, and its seconds."
    start = time.perf_counter()
    found = function(*args)
    return found, time.perf_counter() - start


def measure(
    peer,  # one of PEERS
    python,  # of its environment
    question,  # without items
    items,
    warm_up,  # a small item, asked first
    ours,  # item → scores, timed in turn with the peer on a few items
):
    "One answer with all items; `ratios` are the peer's seconds over ours."
    with Peer(python, PEERS[peer][1]) as process:
        first = process.ask(question | dict(items=[warm_up]))
        if 'error' in first:
            return first
        ours(warm_up)
        found, ratios = [], []
        for i, item in enumerate(items):
            _, seconds = timed(ours, item) if i < IN_PAIRS else (None, None)
            answer = process.ask(question | dict(items=[item]))
            if 'error' in answer:
                return answer
            found += answer['items']
            if seconds:
                ratios.append(answer['items'][0]['seconds'] / seconds)
    return answer | dict(items=found, ratios=ratios)


def correlation(
    scores,  # numbers, None where there is none
    reference,  # as many
):
    "Pearson's r over the places that have a score; None without a spread."
    pairs = [(s, r) for s, r in zip(scores, reference) if s is not None]
    if len(pairs) < 2:
        return None
    a, b = torch.tensor(pairs, dtype=torch.float64).T
    r = float(pearson(a, b))
    return None if math.isnan(r) else r


def mean(numbers):
    "Of those that there are."
    there = [x for x in numbers if x is not None]
    return statistics.mean(there) if there else None


def cost(answer):
    "Of an answer's items: medians, and means of what is counted."
    items = answer['items']
    row = dict(
        n_items=len(items),
        same_tokens=all(item['same_tokens'] for item in items),
        seconds=statistics.median(item['seconds'] for item in items),
    )
    for name in ('forward', 'backward', 'tokens'):
        row[name] = statistics.mean(item[name] for item in items)
    if 'ratios' in answer:
        row['ratio'] = statistics.median(answer['ratios'])
        row['peak_mib'] = answer['peak_mib']
        row['peer_versions'] = answer['versions']
    return row


def in_a_line(row):
    "What is printed of a row."
    name = f"{row['by']} {row['method']}"
    if 'error' in row:
        return f"{name}: {row['error'].splitlines()[0][:200]}"
    rs = [
        f"{key.removeprefix('r_')} {row[key]:.3f}"
        for key in row
        if key.startswith('r_') and row[key] is not None
    ]
    line = (
        f"{name} ({row['explains']}): r {', '.join(rs)};"
        f" {row['seconds']:.2f} s, {row['forward']:.0f} forward,"
        f" {row['backward']:.0f} backward, {row['tokens']:.0f} tokens"
    )
    if 'ratio' in row:
        line += f", {row['ratio']:.1f} times ours"
    return line if row['same_tokens'] else f'{line} (OTHER TOKENS)'
