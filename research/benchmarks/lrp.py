"""AttnLRP over a data set against plain gradient × input over the same
batches, and against lxt 2.1: one text at a time, as it comes, and over the
same batches.

lxt needs an older transformers: name the python of an environment that has it
(pip install torch==2.13.0 transformers==4.52.4 lxt==2.1) in LRP_LOO_LXT_PYTHON;
the two processes are then timed in turn.

python research/benchmarks/lrp.py [--data FOLDER] [--sentences 192]
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
from lrp_loo.core.tensors import pad_batch

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
batches = [
    {k: torch.tensor(v, device=sys.argv[3]) for k, v in batch.items()}
    for batch in json.load(open(sys.argv[2]))
]


def run():
    for batch in batches:
        x = model.get_input_embeddings()(batch['input_ids']).detach()
        x.requires_grad_()
        out = model(inputs_embeds=x, attention_mask=batch['attention_mask'])
        out.logits.max(1).values.sum().backward()
        (x * x.grad).sum(-1)
    x.grad.sum().item()  # on a GPU: until it is done


run()
for line in sys.stdin:
    t = time.perf_counter()
    run()
    print(time.perf_counter() - t, flush=True)
"""


def batches_of(encs, size):
    "Texts of like length together, padded."
    order = sorted(range(len(encs)), key=lambda i: encs[i]['input_ids'].shape[1])
    for s in range(0, len(order), size):
        yield pad_batch(None, [encs[i] for i in order[s : s + size]])


def plain(model, encs):
    """Gradient × input as one would write it: batches of like length, padded;
    the embeddings as a leaf.
    """
    for b in batches_of(encs, BATCH):
        x = model.get_input_embeddings()(b['input_ids']).detach().requires_grad_()
        logits = model(
            inputs_embeds=x,
            attention_mask=b['attention_mask'],
            token_type_ids=b.get('token_type_ids'),
        ).logits
        (g,) = torch.autograd.grad(logits.max(1).values.sum(), x)
        (x * g).sum(-1)


LXT_AT_ONCE = {  # texts in a batch → what is said of it, times as fast
    1: ('lxt 2.1, one text at a time', 3.0),
    BATCH: ('lxt 2.1 over the same batches', 1.3),
}


def against_lxt(
    args, model, encs, setting, ours, job='AttnLRP over a data set', at_once=1
):
    "In an environment of its own, on the model's device."
    against, at_least = LXT_AT_ONCE[at_once]
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(f'{d}/model')
        asked = ('input_ids', 'attention_mask')
        batches = [{k: b[k].tolist() for k in asked} for b in batches_of(encs, at_once)]
        Path(d, 'ids.json').write_text(json.dumps(batches))
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
        against,
        at_least,
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
        **pairs(lambda: ours('cp_lrp'), lambda: plain(model, encs), args.rounds),
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
        **pairs(lambda: ours('removal'), lambda: plain(model, encs), args.rounds),
    )
    if os.environ.get('LRP_LOO_LXT_PYTHON'):
        for at_once in LXT_AT_ONCE:
            against_lxt(args, model, encs, setting, ours, at_once=at_once)
    else:
        print(
            'lxt was not measured: LRP_LOO_LXT_PYTHON names no environment',
            file=sys.stderr,
        )
