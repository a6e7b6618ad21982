"""Interpreto's attribution of language models, asked as `peer_protocol` says.

(pip install torch==2.13.0 interpreto==0.5.2 transformers==5.23.0)

Its occlusion puts a new token in, which it adds to the model's vocabulary. It
sets a space in front of every continuation, so one that has none is read
otherwise.
"""

from interpreto import Granularity, IntegratedGradients, Occlusion
from interpreto.attributions import InferenceModes
from peer_protocol import (
    before_each,
    continuation_of,
    main,
    prompt_of,
    sums_over_sentences,
)

PLACES = dict(granularity=Granularity.ALL_TOKENS)
OCCLUSION = dict(inference_mode=InferenceModes.LOG_SOFTMAX, batch_size=8)
GRADIENTS = dict(inference_mode=InferenceModes.LOGITS, n_perturbations=20, batch_size=8)


def attributed(model, tokenizer, item, kind, options):
    "(generated, tokens) scores, and whether the tokens are the item's."
    explainer = kind(model, tokenizer, **PLACES, **options)
    (out,) = explainer(prompt_of(item), continuation_of(item))
    ids = item['prompt_ids'] + item['continuation_ids']
    read = out.model_inputs_to_explain['input_ids'][0].tolist()
    return out.attributions, read == ids


def generation(kind, defaults):
    def run(model, tokenizer, item, **options):
        scores, same = attributed(model, tokenizer, item, kind, defaults | options)
        return before_each(scores.tolist(), item), same

    return run


def context(kind, defaults):
    def run(model, tokenizer, item, **options):
        scores, same = attributed(model, tokenizer, item, kind, defaults | options)
        return sums_over_sentences(tokenizer, item, scores), same

    return run


KINDS = {
    'occlusion': (Occlusion, OCCLUSION, 'log-prob'),
    'integrated_gradients': (IntegratedGradients, GRADIENTS, 'logit'),
}
METHODS = {
    (task, name): (make(kind, options), explains)
    for name, (kind, options, explains) in KINDS.items()
    for task, make in (('generation', generation), ('context', context))
}

if __name__ == '__main__':
    main(['interpreto'], METHODS)
