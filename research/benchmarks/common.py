"""What all benchmarks share: texts, pairs in turn, the file of the ratios.

Each script measures ours and the other in one process, A B A B …, medians of
the ratios pair by pair; `python research/benchmarks/NAME.py --help`. Those against
Captum need it beside the package (pip install -e '.[bench]').
"""

import argparse
import json
import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.nn import functional as F

from lrp_loo import load_demo, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.models.encoding import encode

OUT = Path(__file__).parents[2] / 'results' / 'benchmarks.json'


def processor():
    "The name of the processor and, if known, its generation, on which seconds depend."
    cpuinfo = Path('/proc/cpuinfo')
    fields = {}
    if cpuinfo.exists():
        first = cpuinfo.read_text(encoding='utf-8').split('\n\n')[0]
        lines = [line.partition(':') for line in first.splitlines()]
        fields = {name.strip(): value.strip() for name, _, value in lines}
    if 'model name' not in fields:
        return platform.processor() or platform.machine()
    if not {'cpu family', 'model'} <= fields.keys():
        return fields['model name']
    # processors of several generations are sold under one name
    generation = f"family {fields['cpu family']}, model {fields['model']}"
    return f"{fields['model name']} ({generation})"


def arguments(doc, **defaults):
    p = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        '--data',
        help=(
            "a folder laid out as the hub's data sets, or 'embedded' (default:"
            " LRP_LOO_DATA, else embedded)"
        ),
    )
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--out', default=str(OUT))
    for k, v in defaults.items():
        p.add_argument(f'--{k}', type=type(v), default=v)
    return p.parse_args()


def texts(name, args, n, longest=128, shortest=0, demo=None, prompt=None):
    """Model, tokenizer, the first n texts of the draw with seed 0 that have so
    many tokens, and what they are; another model (`demo`) may be asked about
    them.
    """
    model, tokenizer = load_demo(demo or name)
    model.requires_grad_(False)
    d = load_texts(name, args.data, seed=0)
    out = []
    for t in d.texts:
        k = len(tokenizer(t, truncation=True, max_length=longest + 1)['input_ids'])
        if shortest <= k <= longest:
            out.append(t)
        if len(out) == n:
            break
    asked = out if prompt is None else [prompt.replace('{text}', t) for t in out]
    encs = [encode(model, tokenizer, t) for t in asked]
    lengths = [e['input_ids'].shape[1] for e in encs]
    return (
        model,
        tokenizer,
        out,
        encs,
        dict(
            model=demo or f'minilm-{name}',
            data=name,
            source=d.info['source'],
            split=d.info['split'],
            texts=len(out),
            mean_tokens=sum(lengths) / len(lengths),
        ),
    )


def pairs(a, b, rounds, warm_up=True):
    """Seconds of a and b in turn after one warm-up of each; the median of b/a
    pair by pair: how many times as fast a is.
    """
    times = []
    for r in range(0 if warm_up else 1, rounds + 1):
        pair = []
        for f in (a, b):
            t = time.perf_counter()
            f()
            pair.append(time.perf_counter() - t)
        if r:
            times.append(pair)
    ratios = sorted(y / x for x, y in times)
    return dict(
        ours=statistics.median(x for x, _ in times),
        other=statistics.median(y for _, y in times),
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        rounds=rounds,
    )


def best_rate(n=1024, rounds=7):
    "Return the median number of float operations a second of a square product."
    a = torch.randn(n, n)
    b = torch.randn(n, n)

    def rate():
        t = time.perf_counter()
        for _ in range(10):
            F.linear(a, b)
        return 10 * 2 * n**3 / (time.perf_counter() - t)

    with torch.no_grad():
        return statistics.median(rate() for _ in range(rounds))


def installed(*names):
    out = {}
    for n in names:
        try:
            out[n] = version(n)
        except PackageNotFoundError:
            pass
    return out


def said(job, against, at_least, measured):
    "A row in one line."
    line = f"{job} against {against}: {measured['ratio']:.2f} times as fast"
    if 'low' in measured:
        line += (
            f" (from {measured['low']:.2f} to {measured['high']:.2f};"
            f" {measured['ours']:.2f} s against {measured['other']:.2f} s)"
        )
    if at_least is None:
        return line
    reached = 'reached' if measured['ratio'] >= at_least else 'missed'
    return f'{line}, asked for {at_least}: {reached}'


def place(row):
    "Of a row in the file; early rows name no processor."
    return row['job'], row['against'], row.get('processor', '')


def is_replaced(old, new):
    "The same job on the same processor, or on one that was not named."
    unnamed = place(old)[:2] == place(new)[:2] and 'processor' not in old
    return unnamed or place(old) == place(new)


def record(args, job, against, at_least, setting, packages=(), **measured):
    """One row of results/benchmarks.json: a job measured again on a processor
    replaces its row.
    """
    path = Path(args.out)
    rows = json.loads(path.read_text())['rows'] if path.exists() else []
    row = dict(
        job=job,
        against=against,
        at_least=at_least,
        **measured,
        setting=setting,
        versions=versions() | installed(*packages),
        threads=torch.get_num_threads(),
        cpus=os.cpu_count(),
        machine=platform.machine(),
        processor=processor(),
        kernel='blas',
        dtype='float32',
    )
    rows = [r for r in rows if not is_replaced(r, row)]
    lines = ',\n'.join(json.dumps(r) for r in sorted([*rows, row], key=place))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, '{"rows": [\n' + lines + '\n]}\n')
    print(said(job, against, at_least, measured), flush=True)


def captum_loo(model, encs, per_eval):
    """Word ids ablated by Captum: the forward function masks the keys of ids
    that were set to −1.
    """
    from captum.attr import FeatureAblation

    asked = dict(logits_to_keep=1) if 'ForCausalLM' in type(model).__name__ else {}

    def f(ids, enc):
        given = {k: v.expand(len(ids), -1) for k, v in enc.items()}
        given['attention_mask'] = (ids >= 0).long()
        logits = model(**given, **asked).logits
        return logits.flatten(1).amax(1)

    with torch.no_grad():
        for e in encs:
            FeatureAblation(f).attribute(
                e['input_ids'],
                baselines=-1,
                additional_forward_args=(e,),
                perturbations_per_eval=per_eval,
            )
