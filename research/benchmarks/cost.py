"""What the methods cost, as ratios measured in turn (A B A B …).

All in one process, medians over rounds. AttnLRP and CP-LRP against the plain
gradient × input; removal against AttnLRP; exact LOO (`leave_one_out`) against
one masked forward pass at a time. With --long: one text of 512 tokens, removal
against AttnLRP, and exact LOO (once: it takes minutes) against removal.
Embedded texts, the demo model, CPU.

python research/benchmarks/cost.py [--rounds 5] [--texts 24] [--long] [--out FILE]
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch

from lrp_lab.passes import removal_passes_scores
from lrp_loo import explain, load_demo, load_texts
from lrp_loo.loo import leave_one_out
from lrp_loo.methods import explain_batch
from lrp_loo.models.encoding import encode
from lrp_loo.trust.results import Results

HERE = Path(__file__).parent.parent


def one_by_one(model, encs):
    with torch.no_grad():
        for e in encs:
            n = e['input_ids'].shape[1]
            model(**e)
            for i in range(n):
                mask = torch.ones(1, n, dtype=torch.long)
                mask[0, i] = 0
                model(input_ids=e['input_ids'], attention_mask=mask)


def ratio(a, b, rounds):
    """Seconds of a and b, alternating; the median of the ratios a/b pair by
    pair.
    """
    times = []
    for r in range(
        rounds + (rounds > 1)
    ):  # the first is a warm-up, where there are several
        pair = []
        for f in (a, b):
            t = time.perf_counter()
            f()
            pair.append(time.perf_counter() - t)
        if r or rounds == 1:
            times.append(pair)
    rs = sorted(x / y for x, y in times)
    return dict(
        ours=statistics.median(x for x, _ in times),
        other=statistics.median(y for _, y in times),
        ratio=statistics.median(rs),
        low=rs[0],
        high=rs[-1],
        rounds=rounds,
    )


def short(texts, rounds):
    "Name → (a, b, rounds)."
    model, tokenizer = load_demo('sst2')
    texts = load_texts('sst2', 'embedded', limit=texts).texts
    encs = [encode(model, tokenizer, t) for t in texts]

    def run(method):
        return lambda: explain(model, tokenizer, texts, method=method)

    return encs, {
        'removal / attn_lrp': (run('removal'), run('attn_lrp'), rounds),
        'attn_lrp / grad_x_input': (run('attn_lrp'), run('grad_x_input'), rounds),
        'cp_lrp / grad_x_input': (run('cp_lrp'), run('grad_x_input'), rounds),
        'exact LOO / one masked pass at a time': (
            run('loo'),
            lambda: one_by_one(model, encs),
            rounds,
        ),
    }


def long(rounds):
    model, tokenizer = load_demo('sst2')
    enc = encode(
        model,
        tokenizer,
        ' '.join(load_texts('sst2', 'embedded').texts * 20),
        truncation=True,
        max_length=512,
    )

    def one(method, **kw):
        return lambda: explain_batch(model, tokenizer, [enc], method, **kw)

    return [enc], {
        'removal / attn_lrp': (one('removal'), one('attn_lrp'), rounds),
        'removal, 9 passes / attn_lrp': (
            one(removal_passes_scores, n_groups=8),
            one('attn_lrp'),
            rounds,
        ),
        'exact LOO / removal': (lambda: leave_one_out(model, enc), one('removal'), 1),
    }


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--texts', type=int, default=24)
    p.add_argument('--long', action='store_true')
    p.add_argument('--out')
    args = p.parse_args()
    encs, pairs = long(args.rounds) if args.long else short(args.texts, args.rounds)
    tokens = [e['input_ids'].shape[1] for e in encs]
    r = Results(
        args.out or HERE / 'results' / ('cost-long.json' if args.long else 'cost.json'),
        dict(
            experiment='cost',
            model=dict(name='minilm-sst2'),
            data=dict(name='sst2', source='embedded'),
            texts=len(encs),
            mean_tokens=sum(tokens) / len(tokens),
            threads=torch.get_num_threads(),
            cpus=os.cpu_count(),
            dtype='float32',
        ),
        fresh=True,
    )
    for i, (name, (a, b, rounds)) in enumerate(pairs.items()):
        m = ratio(a, b, rounds)
        r.add(dict(i=i, pair=name, **m))
        print(
            f"{name:40s} ratio {m['ratio']:.2f} (from {m['low']:.2f} to"
            f" {m['high']:.2f}; {m['ours']:.2f} s against {m['other']:.2f} s)",
            flush=True,
        )
