"""MoRF and LeRF of five methods against one masked batch per example and method (all steps of both curves in it).
python benchmarks/curves.py [--data FOLDER] [--sentences 24] [--reviews 4]"""

import torch
from common import arguments, pairs, record, texts

from lrp_loo.methods import explain_batch
from lrp_loo.models import special_mask
from lrp_loo.curves import many_perturbation_curves, removal_path, removal_units

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


if __name__ == '__main__':
    args = arguments(__doc__, sentences=24, reviews=4)
    for name, n, chunk, longest in (
        ('sst2', args.sentences, 1, 128),
        ('imdb', args.reviews, 16, 256),
    ):
        model, tokenizer, _, encs, setting = texts(name, args, n, longest)
        jobs = []
        for e in encs:
            maps = {
                m: explain_batch(model, tokenizer, [e], m)[0] for m in METHODS
            }
            jobs.append(
                (
                    e,
                    {m: a.scores for m, a in maps.items()},
                    removal_units(
                        special_mask(tokenizer, e['input_ids'][0]), chunk
                    ),
                    maps['loo'].target,
                )
            )

        def ours():
            return many_perturbation_curves(model, *map(list, zip(*jobs)))

        record(
            args,
            f'MoRF and LeRF of five methods, {name}',
            'a masked batch per example and method',
            3.0,
            setting | dict(chunk=chunk),
            **pairs(ours, lambda: plain(model, jobs), args.rounds),
        )
