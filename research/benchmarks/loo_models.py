"""Exact Leave-One-Out of MPNet and of SmolLM2 against Captum's
FeatureAblation at its best batch size: sentences, and a prompt around each
for the language model.

python research/benchmarks/loo_models.py [--data FOLDER] [--sentences 16] [--only MPNet]
"""

from common import arguments, pairs, record, texts
from loo import best_setting, captum

from lrp_loo.loo import many_loo
from lrp_loo.paper.common import PROMPTS

MODELS = {
    'MPNet': ('mpnet-sst2', None),
    'SmolLM2': ('smollm2', PROMPTS['marked'].template),
}
AT_ONCE = (16, 64)  # variants, of which the faster is taken


def compare(args, name):
    "One model."
    demo, prompt = MODELS[name]
    n = args.sentences
    model, _, _, encs, setting = texts('sst2', args, n, demo=demo, prompt=prompt)
    best = best_setting(model, encs[:4], AT_ONCE)
    record(
        args,
        f'exact LOO, SST-2, {name}',
        'Captum FeatureAblation at its best setting',
        2.0,
        setting | dict(perturbations_per_eval=best),
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
