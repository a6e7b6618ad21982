"""Integrated Gradients against Captum's LayerIntegratedGradients with as
many steps.

python research/benchmarks/ig.py [--data FOLDER] [--sentences 24]
"""

import torch
from captum.attr import LayerIntegratedGradients
from common import arguments, pairs, record, texts

from lrp_loo import explain
from lrp_loo.methods.baselines import N_STEPS


def captum(model, tokenizer, encs):
    def f(ids, mask):
        return model(input_ids=ids, attention_mask=mask).logits

    lig = LayerIntegratedGradients(f, model.get_input_embeddings())
    for e in encs:
        ids = e['input_ids']
        base = torch.where(
            torch.isin(ids, torch.tensor(tokenizer.all_special_ids)),
            ids,
            tokenizer.pad_token_id,
        )
        with torch.no_grad():
            target = int(f(ids, e['attention_mask']).argmax())
        lig.attribute(
            ids,
            base,
            target=target,
            additional_forward_args=(e['attention_mask'],),
            n_steps=N_STEPS,
        ).sum(-1)


if __name__ == '__main__':
    args = arguments(__doc__, sentences=24)
    model, tokenizer, shown, encs, setting = texts('sst2', args, args.sentences)
    record(
        args,
        'Integrated Gradients',
        'Captum LayerIntegratedGradients, same steps',
        1.2,
        setting | dict(n_steps=N_STEPS),
        ('captum',),
        **pairs(
            lambda: explain(model, tokenizer, shown, method='ig', n_steps=N_STEPS),
            lambda: captum(model, tokenizer, encs),
            args.rounds,
        ),
    )
