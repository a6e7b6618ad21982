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
from peer_protocol import Passes

from lrp_loo.stats import pearson

FURTHEST = 0.01  # nats that the same token's log-probability may differ by
HERE = Path(__file__).parent
PEERS = {  # name → the variable that names its python, its runner
    'Inseq': ('LRP_LOO_INSEQ_PYTHON', 'peer_inseq.py'),
    'Captum': ('LRP_LOO_CAPTUM_PYTHON', 'peer_captum.py'),
    'ContextCite': ('LRP_LOO_CONTEXT_CITE_PYTHON', 'peer_context_cite.py'),
    'FlashTrace': ('LRP_LOO_FLASHTRACE_PYTHON', 'peer_flashtrace.py'),
    'Interpreto': ('LRP_LOO_INTERPRETO_PYTHON', 'peer_interpreto.py'),
}


OURS = 'ours'  # this package, in a process of its own and this environment


def runner_of(
    peer,  # one of PEERS, or OURS
):
    "The file that its python runs."
    return 'peer_ours.py' if peer == OURS else PEERS[peer][1]


def python_of(
    peer,  # one of PEERS, or OURS
):
    "The python of its environment, or None."
    if peer == OURS:
        return sys.executable
    variable = PEERS[peer][0]
    named = os.environ.get(variable)
    if not named:
        print(
            f'{peer} was not measured: {variable} names no environment', file=sys.stderr
        )
    return named


def wanted(args, by, method):
    "Is this one measured?"
    return args.only in (None, by) and method in (args.methods or [method])


def save(model, tokenizer, folder):
    "As transformers 4 reads it too, which names two things otherwise."
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    theta = model.config.rope_parameters['rope_theta']
    _add(Path(folder, 'config.json'), rope_theta=theta)
    fast = 'PreTrainedTokenizerFast'
    _add(Path(folder, 'tokenizer_config.json'), tokenizer_class=fast)


def _add(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


class Peer:
    "A runner's process; a context manager."

    def __init__(self, python, runner):
        self.words = [python, str(HERE / runner)]

    def __enter__(self):
        hidden = ('PYTHONPATH', 'VIRTUAL_ENV')
        if self.words[0] == sys.executable:
            hidden = ()  # an environment that is ours
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


def forward_seconds(model, item, rounds=3):
    """Of one plain forward pass of prompt and continuation, the median: the
    unit of time, since a machine that others use is slower from time to time.
    """
    ids = torch.tensor([item['prompt_ids'] + item['continuation_ids']])
    with torch.no_grad():
        each = [timed(model, ids)[1] for _ in range(rounds)]
    return statistics.median(each)


def in_passes(model, item, run, rounds=3):
    """What `run(item)` gives, with its `seconds` in forward passes, which are
    timed before it and after it, so many each.
    """
    before = forward_seconds(model, item, rounds)
    found = run(item)
    unit = (before + forward_seconds(model, item, rounds)) / 2
    return found, found.get('seconds', 0.0) / unit


def measure(
    python,  # of the peer's environment
    runner,  # its file
    question,  # without items
    items,
    warm_up,  # a small item, asked first
    model,  # ours, for the unit of time
):
    "One answer with all items, or {'error': why}."
    with Peer(python, runner) as process:

        def one(item):
            "Its part of the answer, or the error."
            nonlocal answer
            answer = process.ask(question | dict(items=[item]))
            if 'error' in answer:
                return answer
            (found,) = answer['items']
            return other_model(found, item) or found

        answer = process.ask(question | dict(items=[warm_up]))
        if 'error' in answer:
            return answer
        found = []
        for item in items:
            got, passes = in_passes(model, item, one)
            if 'error' in got:
                return got
            found.append(got | dict(in_passes=passes))
    return answer | dict(items=found)


def our_answer(model, items, run):
    "As a runner would give it; run: item → scores."

    def one(item):
        with Passes(model) as passes:
            scores, seconds = timed(run, item)
        counted = ('forward', 'backward', 'tokens')
        found = {name: getattr(passes, name) for name in counted}
        return found | dict(scores=scores, seconds=seconds, same_tokens=True)

    run(items[0])  # a warm-up
    found = []
    for item in items:
        got, passes = in_passes(model, item, one)
        found.append(got | dict(in_passes=passes))
    return dict(explains='log-prob', items=found)


def other_model(
    found,  # the answer to an item
    item,  # whose `log_probs` are our model's
):
    "An error, where the peer's model gives other numbers."
    pairs = zip(found['log_probs'], item['log_probs'])
    furthest = max(abs(a - b) for a, b in pairs)
    if furthest > FURTHEST:
        return dict(error=f'another model: {furthest:.3g} nats off')
    return None


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
        same_tokens=sum(item['same_tokens'] for item in items),
        seconds=statistics.median(item['seconds'] for item in items),
        in_passes=statistics.median(item['in_passes'] for item in items),
    )
    for name in ('forward', 'backward', 'tokens'):
        row[name] = mean(item[name] for item in items)
    if 'versions' in answer:
        row['peak_mib'] = answer['peak_mib']
        row['peer_versions'] = answer['versions']
    return row


def keep(
    results,  # `Results`
    row,  # of a method, a part of whose fields names it
    order,  # the names of all rows, as they stand in the file
):
    "Add a row; a method that is measured again replaces its own."
    name = (row['by'], row['method'], row.get('options', {}))
    i = order.index(name)
    results.rows = [old for old in results.rows if old['i'] != i]
    results.add(dict(i=i, **row))
    print(in_a_line(row), flush=True)


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
        f" {row['seconds']:.2f} s or {row['in_passes']:.0f} passes' time"
    )
    counted = [
        f"{row[name]:.0f} {name}"
        for name in ('forward', 'backward', 'tokens')
        if row[name] is not None
    ]
    line = ', '.join([line, *counted])
    others = row['n_items'] - row['same_tokens']
    return f'{line} ({others} read as OTHER TOKENS)' if others else line
