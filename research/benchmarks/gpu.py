"""AttnLRP, `removal` and exact Leave-One-Out on a GPU at three precisions,
against a plain gradient, Captum and (LRP_LOO_LXT_PYTHON, see lrp.py) lxt, and
one actor of Ray over a data set. Seconds are absolute: they are of one device.

python research/benchmarks/gpu.py [--data FOLDER] [--sentences 192] [--device cuda]

Without a GPU `--device cpu` runs the same at float32, to see that it runs;
name another file with --out then.
"""

import os
import sys
import tempfile
from pathlib import Path

LAB = Path(__file__).resolve().parents[1]
sys.path.append(str(LAB.parent / 'benchmarks'))

import torch
from common import OUT, arguments, pairs, record, texts
from loo import best_setting, captum
from lrp import BATCH, against_lxt, plain

from lrp_loo import explain
from lrp_loo.loo import many_loo
from lrp_loo.models import DTYPES, at_precision, has_tf32
from lrp_loo.models.encoding import encode
from lrp_loo.paper.common import PROMPTS
from lrp_loo.trust.sweep import sweep

MODELS = {
    'MiniLM': ('sst2', None),
    'MPNet': ('mpnet-sst2', None),
    'SmolLM2': ('smollm2', PROMPTS['marked'].template),
}
LXT = 'LRP_LOO_LXT_PYTHON'
AT_ONCE = (64, 256, 1024)  # variants of Captum's, of which the fastest is taken


def device_named(name):
    "An error where there is none."
    if name.startswith('cuda') and not torch.cuda.is_available():
        sys.exit(
            f'--device {name} needs an NVIDIA GPU, and torch finds none here;'
            ' --device cpu runs the same without one'
        )
    return torch.device(name)


def said_of(device):
    "The device in words, for the record."
    on_gpu = device.type == 'cuda'
    return torch.cuda.get_device_name(device) if on_gpu else device.type


def precisions(device):
    "Those that the device has."
    if device.type != 'cuda':
        return ('float32',)
    return [d for d in DTYPES if d != 'tf32' or has_tf32(device)]


def waited(f, device):
    "The same, done when it returns."

    def run():
        f()
        if device.type == 'cuda':
            torch.cuda.synchronize(device)

    return run


def peak_mib(f, device):
    "Of a call, above what the device held before; None without a GPU."
    if device.type != 'cuda':
        f()
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    f()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


class Bench:
    "Rows of one device, model and precision."

    def __init__(self, args, device, setting):
        self.args = args
        self.device = device
        self.setting = setting | dict(device=said_of(device))

    def row(self, job, against, ours, other):
        "Seconds of both, and the memory of ours."
        ours = waited(ours, self.device)
        setting = self.setting | dict(peak_mib=peak_mib(ours, self.device))
        timed = pairs(ours, waited(other, self.device), self.args.rounds)
        record(self.args, job, against, None, setting, ('captum',), **timed)

    def exact_loo(self, job, model, encs):
        best = best_setting(model, encs[:8], AT_ONCE)
        self.row(
            f'exact LOO, {job}',
            'Captum FeatureAblation at its best setting',
            ours=lambda: many_loo(model, encs),
            other=lambda: captum(model, encs, best),
        )

    def method(self, job, method, asked, model, encs):
        self.row(
            f'{method} over a data set, {job}',
            'plain gradient × input over the same batches',
            ours=lambda: explained(asked, method),
            other=lambda: plain(model, encs),
        )

    def lxt(self, job, asked, model, encs):
        ours = waited(lambda: explained(asked, 'attn_lrp'), self.device)
        named = f'attn_lrp over a data set, {job}'
        against_lxt(self.args, model, encs, self.setting, ours, named)


def explained(asked, method):
    "asked: a model, its tokenizer, texts."
    return explain(*asked, method=method, batch_size=BATCH)


def on_texts(args, device, name, dtype):
    "One model at one precision."
    demo, prompt = MODELS[name]
    n = args.sentences
    model, tokenizer, shown, _, setting = texts(
        'sst2', args, n, demo=demo, prompt=prompt
    )
    asked = shown if prompt is None else [prompt.replace('{text}', t) for t in shown]
    bench = Bench(args, device, setting | dict(dtype=dtype))
    job = f'{name}, {dtype}'
    with at_precision(model.to(device), dtype) as model:
        encs = [encode(model, tokenizer, t) for t in asked]
        bench.exact_loo(job, model, encs)
        if prompt is not None:
            return
        given = (model, tokenizer, asked)
        for method in ('attn_lrp', 'removal'):
            bench.method(job, method, given, model, encs)
        # lxt takes BERT as it is stored
        if (name, dtype) == ('MiniLM', 'float32') and LXT in os.environ:
            bench.lxt(job, given, model, encs)


def by_ray(args, device):
    "A data set in this process, and by one actor that holds the GPU."
    _, _, shown, _, setting = texts('sst2', args, args.sentences)

    def run(**engine):
        with tempfile.TemporaryDirectory() as out:
            options = dict(device=args.device, progress=False)
            sweep('demo', None, shown, Path(out), **options, **engine)

    Bench(args, device, setting).row(
        'a data set, MiniLM, float32',
        'one actor of Ray',
        ours=lambda: run(engine='plain'),
        other=lambda: run(engine='ray', workers=1),
    )


if __name__ == '__main__':
    given = arguments(__doc__, sentences=192, device='cuda', models=','.join(MODELS))
    if given.out == str(OUT):
        given.out = str(LAB / 'results' / 'benchmarks-gpu.json')
    where = device_named(given.device)
    for model_name in given.models.split(','):
        for precision in precisions(where):
            on_texts(given, where, model_name, precision)
    by_ray(given, where)
