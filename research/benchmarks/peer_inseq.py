"""Inseq's attribution of language models, asked as `peer_protocol` says.

(pip install torch==2.13.0 inseq==0.7.1 transformers==5.23.0)

Scores are summed over the embedding, with their sign; Inseq's own summary is
the norm, which has none. Its occlusion gives absolute values.
"""

import inseq
from peer_protocol import (
    before_each,
    continuation_of,
    main,
    prompt_of,
    sums_over_sentences,
)

OPTIONS = {
    'integrated_gradients': dict(n_steps=20, internal_batch_size=8),
    'lime': dict(n_samples=50),
}


def attributed(model, tokenizer, item, name, explains, **options):
    "(generated, tokens) scores, and whether the ids are the item's."
    wrapped = inseq.load_model(model, name, tokenizer=tokenizer)
    prompt = prompt_of(item)
    out = wrapped.attribute(
        prompt,
        prompt + continuation_of(item),
        attributed_fn=explains,
        show_progress=False,
        **OPTIONS.get(name, {}) | options,
    )
    found = out.sequence_attributions[0]
    ids = [token.id for token in found.target]
    scores = found.target_attributions
    if scores.ndim > 2:  # over the embedding; over layers and heads
        scores = scores.flatten(2).sum(-1)
    same = ids == item['prompt_ids'] + item['continuation_ids']
    return scores.T, same


def generation(name, explains):
    def run(model, tokenizer, item, **options):
        scores, same = attributed(model, tokenizer, item, name, explains, **options)
        return before_each(scores.tolist(), item), same

    return run


def context(name, explains):
    def run(model, tokenizer, item, **options):
        scores, same = attributed(model, tokenizer, item, name, explains, **options)
        return sums_over_sentences(tokenizer, item, scores), same

    return run


NAMES = (
    'input_x_gradient',
    'integrated_gradients',
    'occlusion',
    'lime',
    'value_zeroing',
    'attention',
    'reagent',
)
METHODS = {
    (task, name): (make(name, 'logit'), 'logit')
    for name in NAMES
    for task, make in (('generation', generation), ('context', context))
}

if __name__ == '__main__':
    main(['inseq', 'captum'], METHODS, attn_implementation='eager')
