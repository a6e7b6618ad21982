"""Exact Leave-One-Out of a data set against Captum's FeatureAblation as it
comes and at its best batch size, against every variant in a masked batch,
and against the arithmetic of all variants in full.

python research/benchmarks/loo.py [--data FOLDER] [--sentences 48]
"""

import time

import torch
from common import arguments, best_rate, captum_loo, pairs, record, texts

from lrp_loo.loo import many_loo


def best_setting(model, encs, settings):
    "Captum's fastest number of variants at a time."

    def seconds(n):
        return pairs(lambda: captum_loo(model, encs, n), lambda: None, 1)['ours']

    return min(settings, key=seconds)


def masked(model, encs):
    with torch.no_grad():
        for e in encs:
            n = e['input_ids'].shape[1]
            model(
                **{k: v.expand(n, -1) for k, v in e.items()}
                | dict(attention_mask=1 - torch.eye(n, dtype=torch.long))
            )


def arithmetic(model, encs):
    """Float operations of every variant's products in full: projections and
    feed-forward, attention.
    """
    c = model.config
    d = c.hidden_size
    L = c.num_hidden_layers
    per_token = 2 * (4 * d * d + 2 * d * c.intermediate_size)
    return sum(
        L * T * (T * per_token + 4 * T * T * d)
        for T in (e['input_ids'].shape[1] for e in encs)
    )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=48)
    model, tokenizer, _, encs, setting = texts('sst2', args, args.sentences)

    def ours():
        return many_loo(model, encs)

    best = best_setting(model, encs[:8], (64, 256))
    record(
        args,
        'exact LOO, SST-2',
        'Captum FeatureAblation as it comes',
        5.0,
        setting,
        ('captum',),
        **pairs(ours, lambda: captum_loo(model, encs, 1), args.rounds),
    )
    record(
        args,
        'exact LOO, SST-2',
        'Captum FeatureAblation at its best setting',
        2.5,
        setting | dict(perturbations_per_eval=best),
        ('captum',),
        **pairs(ours, lambda: captum_loo(model, encs, best), args.rounds),
    )
    record(
        args,
        'exact LOO, SST-2',
        'all variants of a sentence in one masked batch',
        None,
        setting,
        **pairs(ours, lambda: masked(model, encs), args.rounds),
    )
    flops = arithmetic(model, encs)
    ratios = []
    for _ in range(args.rounds):
        before = best_rate()
        t = time.perf_counter()
        ours()
        t = time.perf_counter() - t
        rate = (before + best_rate()) / 2
        ratios.append(
            (t, flops / rate)
        )  # this machine's rate drifts: measured on both sides
    times = sorted(b / a for a, b in ratios)
    record(
        args,
        'exact LOO, SST-2',
        'the arithmetic of every variant in full, at the best rate of a matrix product',
        0.8,
        setting | dict(flops=flops, rate=rate),
        ours=sorted(a for a, _ in ratios)[len(ratios) // 2],
        other=sorted(b for _, b in ratios)[len(ratios) // 2],
        ratio=times[len(times) // 2],
        low=times[0],
        high=times[-1],
        rounds=args.rounds,
    )
