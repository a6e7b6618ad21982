"""A model of a billion weights and a text of 512 tokens: peak memory and seconds of
each method in a process of its own, against a plain backward pass.

python benchmarks/size.py [--weights float32,bfloat16] [--methods 'backward;removal']
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUT = Path(__file__).parent.parent / 'results' / 'size.json'
CONFIG = dict(
    vocab_size=32000,
    hidden_size=2048,
    num_hidden_layers=16,
    intermediate_size=6144,
    num_attention_heads=16,
    num_key_value_heads=8,
    max_position_embeddings=1024,
)
TOKENS, SEED = 512, 0
WEIGHTS = ('float32', 'bfloat16', 'on disk')
METHODS = {  # name → method, options; None: the model alone
    'backward': None,
    'attn_lrp': ('attn_lrp', {}),
    'cp_lrp': ('cp_lrp', {}),
    'removal': ('removal', {}),
    'auto, passes=3': ('auto', dict(passes=3)),
    'auto, passes=8': ('auto', dict(passes=8)),
    'auto, passes=12': ('auto', dict(passes=12)),
}


def build(weights, folder):
    "A Llama of random weights, which take no gradient."
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    dtype = torch.bfloat16 if weights == 'bfloat16' else torch.float32
    torch.set_default_dtype(dtype)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    if weights == 'on disk':
        import accelerate

        accelerate.disk_offload(model, folder, execution_device='cpu')
    return model


def backward(model, enc):
    "A plain gradient of the likeliest next token's logit."
    import torch

    with torch.no_grad():
        x = model.get_input_embeddings()(enc['input_ids'])
    x.requires_grad_()
    logits = model(inputs_embeds=x, use_cache=False).logits[0, -1]
    logits.max().backward()
    return x.grad


def gib(of):
    "Of this process: 'VmRSS' now, 'VmHWM' at its peak."
    said = Path('/proc/self/status').read_text()
    return int(said.split(f'{of}:')[1].split()[0]) / 2**20


def measure(weights, method, tokens):
    "GiB before the call and at its peak, and its seconds."
    import torch

    from lrp_loo import explain, load_demo
    from lrp_loo.models.products import fast_products

    _, tokenizer = load_demo('reviews')
    tokenizer.model_max_length = CONFIG['max_position_embeddings']
    with tempfile.TemporaryDirectory() as folder:
        model = build(weights, folder)
        ids = torch.randint(3, 2000, (1, tokens))
        enc = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        Path('/proc/self/clear_refs').write_text('5')  # the peak starts anew
        before = gib('VmRSS')
        start = time.perf_counter()
        said = {}
        if METHODS[method] is None:
            with fast_products():  # as the methods have them
                backward(model, enc)
        else:
            name, options = METHODS[method]
            (a,) = explain(model, tokenizer, [enc], name, **options)
            said = dict(passes=a.passes)
        seconds = time.perf_counter() - start
    said |= dict(before_gib=round(before, 3), peak_gib=round(gib('VmHWM'), 3))
    return said | dict(seconds=round(seconds, 1))


def run(weights, method, tokens):
    command = [sys.executable, __file__, '--one', weights, method]
    command += ['--tokens', str(tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return dict(failed=done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def keep(path, tokens, row):
    "A row measured again replaces the one before."
    from common import installed
    from lrp_loo.core.files import processor, versions, write_text_atomic

    row = (
        dict(weights=row.pop('weights'), method=row.pop('method'), tokens=tokens) | row
    )
    place = (row['weights'], row['method'], tokens)
    rows = json.loads(path.read_text())['rows'] if path.exists() else []
    rows = [r for r in rows if (r['weights'], r['method'], r['tokens']) != place]
    found = dict(
        config=dict(model='LlamaForCausalLM, random', seed=SEED, **CONFIG),
        versions=versions() | installed('accelerate'),
        machine=dict(processor=processor(), cpus=os.cpu_count(), threads=1),
    )
    lines = ',\n'.join('  ' + json.dumps(r) for r in [*rows, row])
    head = json.dumps(found, indent=1)[1:-2]
    write_text_atomic(path, f'{{{head},\n "rows": [\n{lines}\n ]\n}}\n')


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument('--out', default=str(OUT))
    p.add_argument('--weights', default=','.join(WEIGHTS))
    p.add_argument('--methods', default=';'.join(METHODS))
    p.add_argument('--tokens', type=int, default=TOKENS)
    p.add_argument('--one', nargs=2)
    args = p.parse_args()
    if args.one:
        return print(json.dumps(measure(*args.one, args.tokens)))
    for weights in args.weights.split(','):
        for method in args.methods.split(';'):
            row = dict(weights=weights, method=method)
            row |= run(weights, method, args.tokens)
            print(json.dumps(row), flush=True)
            keep(Path(args.out), args.tokens, row)


if __name__ == '__main__':
    main()
