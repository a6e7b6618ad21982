"""Exact Leave-One-Out of MPNet and of SmolLM2 against Captum's
FeatureAblation at its best batch size: sentences, and a prompt around each
for the language model.

python benchmarks/loo_models.py [--data FOLDER] [--sentences 16] [--only MPNet]
"""

import torch
from captum.attr import FeatureAblation
from common import arguments, pairs, record

from lrp_loo import load_demo, load_texts
from lrp_loo.loo import many_loo
from lrp_loo.models import encode
from lrp_loo.studies.common import REVIEW

MODELS = {
    'MPNet': ('mpnet-sst2', None),
    'SmolLM2': ('smollm2', REVIEW),
}
AT_ONCE = (16, 64)  # variants, of which the faster is taken


def captum(model, encs, per_eval):
    "A token's key is masked where Captum has set its id to −1."
    asked = {}
    if model.config.model_type == 'llama':
        asked = dict(logits_to_keep=1)

    def f(ids, own):
        gone = ids < 0
        logits = model(
            input_ids=torch.where(gone, own, ids),
            attention_mask=(~gone).long(),
            **asked,
        ).logits
        return logits.flatten(1).amax(1)

    with torch.no_grad():
        for enc in encs:
            ids = enc['input_ids']
            FeatureAblation(f).attribute(
                ids,
                baselines=-1,
                additional_forward_args=(ids,),
                perturbations_per_eval=per_eval,
            )


def encoded(args, model, tokenizer, prompt):
    "Sentences, and what a row says of them."
    found = load_texts('sst2', args.data or 'embedded')
    some = found.texts[: args.sentences]
    if prompt is not None:
        some = [f'{prompt.before}{text}{prompt.after}' for text in some]
    encs = [encode(model, tokenizer, text) for text in some]
    lengths = [enc['input_ids'].shape[1] for enc in encs]
    return encs, dict(
        data='sst2',
        source=found.info['source'],
        split=found.info['split'],
        texts=len(some),
        mean_tokens=sum(lengths) / len(lengths),
    )


def best_setting(model, encs):
    "Captum's faster number of variants, on a few texts."

    def seconds(n):
        few = encs[:4]
        return pairs(lambda: captum(model, few, n), lambda: None, 1)['ours']

    return min(AT_ONCE, key=seconds)


def compare(args, name):
    "One model."
    demo, prompt = MODELS[name]
    model, tokenizer = load_demo(demo)
    encs, setting = encoded(args, model, tokenizer, prompt)
    best = best_setting(model, encs)
    record(
        args,
        f'exact LOO, SST-2, {name}',
        'Captum FeatureAblation at its best setting',
        2.0,
        setting | dict(model=demo, perturbations_per_eval=best),
        ('captum',),
        **pairs(
            lambda: many_loo(model, encs),
            lambda: captum(model, encs, best),
            args.rounds,
        ),
    )


if __name__ == '__main__':
    given = arguments(__doc__, sentences=16, only='')
    for model_name in [given.only] if given.only else MODELS:
        compare(given, model_name)
