"""Where the time of exact LOO goes, ours and Captum's at its best setting,
one thread of torch's, by torch's profiler; and how many layer passes the
layer-wise ablation shares.

For figures that were not reached. Writes results/profile.json.

python research/benchmarks/where.py [--data FOLDER] [--sentences 12]
"""

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / 'benchmarks'))

import torch
from common import arguments, best_rate, bypass_sets, texts
from loo import arithmetic, captum
from torch.profiler import ProfilerActivity, profile

from lrp_loo.loo import many_loo
from lrp_loo.models.layers import n_layers
from lrp_loo.trust.results import Results

KINDS = {
    'matrix products': ('aten::addmm', 'aten::mm', 'aten::bmm', 'aten::baddbmm'),
    'attention': ('aten::_scaled_dot_product_flash_attention_for_cpu',),
    'activation': ('aten::gelu',),
    'copies and sums': (
        'aten::copy_',
        'aten::add',
        'aten::add_',
        'aten::index',
        'aten::cat',
        'aten::where',
    ),
    'layer norms': ('aten::native_layer_norm',),
}


def shares(f):
    "Seconds by kind of operation, and the operations of the products."
    f()
    t = time.perf_counter()
    f()
    seconds = time.perf_counter() - t
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as p:
        f()
    events = p.key_averages()
    total = sum(e.self_cpu_time_total for e in events)
    of = {
        k: sum(e.self_cpu_time_total for e in events if e.key in names) / total
        for k, names in KINDS.items()
    }
    flops = sum(e.flops for e in events if e.key in KINDS['matrix products'])
    return dict(
        seconds=seconds,
        flops=flops,
        shares=of | {'the rest': 1 - sum(of.values())},
        rate=flops / (seconds * of['matrix products']),
    )


def layer_passes(L):
    """Of 3L configurations: ways back through a layer that differ, forward
    passes of a layer, and both of separate runs.
    """
    sets = bypass_sets(L)
    return dict(
        back=sum(
            len({frozenset(x for x in s if x >= l) for s in sets}) for l in range(L)
        ),
        forward=2 * L,
        separate=2 * L * len(sets),
    )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=12)
    torch.set_num_threads(1)
    model, tokenizer, _, encs, setting = texts('sst2', args, args.sentences)
    rate = best_rate()
    r = Results(
        Path(__file__).parent.parent / 'results' / 'profile.json',
        dict(
            experiment='profile',
            model=dict(name=setting['model']),
            data=dict(name='sst2', source=setting['source'], split=setting['split']),
            texts=len(encs),
            mean_tokens=setting['mean_tokens'],
            threads=1,
            dtype='float32',
            flops_in_full=arithmetic(model, encs),
            matmul_rate=rate,
        ),
        fresh=True,
    )
    for i, (who, f) in enumerate(
        {
            'ours': lambda: many_loo(model, encs),
            'Captum, 256 at a time': lambda: captum(model, encs, 256),
        }.items()
    ):
        r.add(dict(i=i, who=who) | shares(f))
        row = r.rows[-1]
        print(
            f"{who:22s} {row['seconds']:6.2f} s, {row['flops'] / 1e9:.0f} GFLOP"
            f" in products at {row['rate'] / 1e9:.0f} GFLOP/s (square product:"
            f" {rate / 1e9:.0f}); "
            + ', '.join(f'{k} {v:.0%}' for k, v in row['shares'].items())
        )
    r.summary = dict(layer_passes=layer_passes(n_layers(model)))
    r.save()
    print(r.summary)
