"""AttnLRP over a data set against plain gradient × input over the same
batches, and against lxt 2.1 one text at a time.

lxt needs an older transformers: name the python of an environment that has it
(pip install torch==2.13.0 transformers==4.52.4 lxt==2.1) in LRP_LOO_LXT_PYTHON;
the two processes are then timed in turn.

python benchmarks/lrp.py [--data FOLDER] [--sentences 192]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import arguments, pairs, record, texts

from lrp_loo import explain
from lrp_loo.core import pad_batch

BATCH = 32
PEER = """
import json, sys, time
import torch
from lxt.efficient import monkey_patch
from transformers.models.bert import modeling_bert

monkey_patch(modeling_bert)
model = modeling_bert.BertForSequenceClassification.from_pretrained(
    sys.argv[1], attn_implementation='eager'
).eval().to(sys.argv[3])
model.requires_grad_(False)
ids = json.load(open(sys.argv[2]))


def run():
    for i in ids:
        x = model.get_input_embeddings()(torch.tensor([i], device=sys.argv[3])).detach()
        x.requires_grad_()
        model(inputs_embeds=x).logits.max().backward()
        (x * x.grad).sum(-1)
    x.grad.sum().item()  # on a GPU: until it is done


run()
for line in sys.stdin:
    t = time.perf_counter()
    run()
    print(time.perf_counter() - t, flush=True)
"""


def plain(model, encs):
    """Gradient × input as one would write it: batches of like length, padded;
    the embeddings as a leaf.
    """
    order = sorted(
        range(len(encs)), key=lambda i: encs[i]['input_ids'].shape[1]
    )
    for s in range(0, len(order), BATCH):
        b = pad_batch(None, [encs[i] for i in order[s : s + BATCH]])
        x = (
            model.get_input_embeddings()(b['input_ids'])
            .detach()
            .requires_grad_()
        )
        logits = model(
            inputs_embeds=x,
            attention_mask=b['attention_mask'],
            token_type_ids=b.get('token_type_ids'),
        ).logits
        (g,) = torch.autograd.grad(logits.max(1).values.sum(), x)
        (x * g).sum(-1)


def against_lxt(
    args, model, encs, setting, ours, job='AttnLRP over a data set'
):
    "In an environment of its own, one text at a time, on the model's device."
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(f'{d}/model')
        Path(d, 'ids.json').write_text(
            json.dumps([e['input_ids'][0].tolist() for e in encs])
        )
        Path(d, 'peer.py').write_text(PEER)
        with subprocess.Popen(
            [
                os.environ['LRP_LOO_LXT_PYTHON'],
                f'{d}/peer.py',
                f'{d}/model',
                f'{d}/ids.json',
                str(model.device),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as peer:
            ours()
            times = []
            for _ in range(args.rounds):
                t = time.perf_counter()
                ours()
                a = time.perf_counter() - t
                peer.stdin.write('go\n')
                peer.stdin.flush()
                times.append((a, float(peer.stdout.readline())))
            peer.stdin.close()
    ratios = sorted(b / a for a, b in times)
    record(
        args,
        job,
        'lxt 2.1, one text at a time',
        3.0,
        setting | dict(batch=BATCH),
        ours=statistics.median(a for a, _ in times),
        other=statistics.median(b for _, b in times),
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        rounds=args.rounds,
    )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=192)
    model, tokenizer, shown, encs, setting = texts('sst2', args, args.sentences)

    def ours(method='attn_lrp'):
        return explain(model, tokenizer, shown, method=method, batch_size=BATCH)

    record(
        args,
        'AttnLRP over a data set',
        'plain gradient × input over the same batches',
        1.5,
        setting | dict(batch=BATCH),
        **pairs(ours, lambda: plain(model, encs), args.rounds),
    )
    record(
        args,
        'CP-LRP over a data set',
        'plain gradient × input over the same batches',
        None,
        setting | dict(batch=BATCH),
        **pairs(
            lambda: ours('cp_lrp'), lambda: plain(model, encs), args.rounds
        ),
    )
    record(
        args,
        'removal over a data set',
        'AttnLRP over the same batches',
        1 / 1.3,
        setting | dict(batch=BATCH),
        **pairs(lambda: ours('removal'), ours, args.rounds),
    )
    record(
        args,
        'removal over a data set',
        'plain gradient × input over the same batches',
        1.5,
        setting | dict(batch=BATCH),
        **pairs(
            lambda: ours('removal'), lambda: plain(model, encs), args.rounds
        ),
    )
    if os.environ.get('LRP_LOO_LXT_PYTHON'):
        against_lxt(args, model, encs, setting, ours)
    else:
        print(
            'lxt was not measured: LRP_LOO_LXT_PYTHON names no environment',
            file=sys.stderr,
        )
