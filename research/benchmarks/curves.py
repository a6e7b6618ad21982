"""MoRF and LeRF of five methods against one masked batch per example and
method (all steps of both curves in it).

python research/benchmarks/curves.py [--data FOLDER] [--sentences 24] [--reviews 4]
"""

import torch
from common import arguments, pairs, record, texts

from lrp_loo.methods import explain_batch
from lrp_loo.models.encoding import special_mask
from lrp_loo.evaluate.faithfulness import (
    perturbation_curves,
    removal_path,
    removal_units,
)

METHODS = ('loo', 'ig', 'rollout', 'attn_lrp', 'cp_lrp')


def plain(model, jobs):
    with torch.no_grad():
        for enc, scores, units, target in jobs:
            for s in scores.values():
                keep = torch.cat(
                    [removal_path(s, units, most) for most in (True, False)]
                )
                model(
                    **{k: v.expand(len(keep), -1) for k, v in enc.items()}
                    | dict(attention_mask=keep.long())
                )


def job(model, tokenizer, enc, chunk):
    "What both are given of a text: itself, maps, units, target."
    maps = {m: explain_batch(model, tokenizer, [enc], m)[0] for m in METHODS}
    special = special_mask(tokenizer, enc['input_ids'][0])
    scores = {m: a.scores for m, a in maps.items()}
    return enc, scores, removal_units(special, chunk), maps['loo'].target


def measure(args, name, n, longest, chunk):
    "One data set."
    model, tokenizer, _, encs, setting = texts(name, args, n, longest)
    jobs = [job(model, tokenizer, e, chunk) for e in encs]
    columns = [list(column) for column in zip(*jobs)]
    record(
        args,
        f'MoRF and LeRF of five methods, {name}',
        'a masked batch per example and method',
        3.0,
        setting | dict(chunk=chunk),
        **pairs(
            lambda: perturbation_curves(model, *columns),
            lambda: plain(model, jobs),
            args.rounds,
        ),
    )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=24, reviews=4)
    measure(args, 'sst2', args.sentences, 128, chunk=1)
    measure(args, 'imdb', args.reviews, 256, chunk=16)
