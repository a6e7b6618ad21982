"""Captum's attribution of language models, asked as `peer_protocol` says.

(pip install torch==2.13.0 captum==0.9.0 transformers==5.23.0)

Captum scores the prompt's tokens for every generated one; the generated tokens
before it get none, so their places are null.
"""

import torch
from captum.attr import (
    FeatureAblation,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    LLMAttribution,
    LLMGradientAttribution,
    ShapleyValueSampling,
    TextTemplateInput,
    TextTokenInput,
)
from peer_protocol import main, prompt_of


def _tokens(tokenizer, item):
    "Captum's input, and whether its ids are the prompt's."
    given = TextTokenInput(prompt_of(item), tokenizer, baselines=tokenizer.pad_token_id)
    ids = given.to_model_input()[0].tolist()
    return given, ids == item['prompt_ids']


def _rows(found, item):
    "Scores of the prompt, then nothing."
    return [row + [None] * i for i, row in enumerate(found.token_attr.tolist())]


def _answer_ids(item):
    return torch.tensor(item['continuation_ids'])


def ablation(model, tokenizer, item, **how):
    """A token at a time becomes the padding token; as Captum does by default,
    a pass for each generated token, with a cache of what was read.
    """
    given, same = _tokens(tokenizer, item)
    llm = LLMAttribution(FeatureAblation(model), tokenizer)
    found = llm.attribute(given, target=_answer_ids(item), **how)
    return _rows(found, item), same


def ablation_no_cache(model, tokenizer, item):
    "The same without the cache."
    return ablation(model, tokenizer, item, use_cached_outputs=False)


def ablation_at_once(model, tokenizer, item):
    "The same, all generated tokens read in one pass."
    return ablation(model, tokenizer, item, forward_in_tokens=False)


def gradient(model, tokenizer, item, kind=LayerGradientXActivation, **options):
    given, same = _tokens(tokenizer, item)
    layer = model.get_input_embeddings()
    llm = LLMGradientAttribution(kind(model, layer), tokenizer)
    found = llm.attribute(given, target=_answer_ids(item), **options)
    return _rows(found, item), same


def integrated_gradients(model, tokenizer, item, n_steps=20):
    "From the padding token's embedding."
    baseline = torch.full((1, len(item['prompt_ids'])), tokenizer.pad_token_id)
    return gradient(
        model,
        tokenizer,
        item,
        LayerIntegratedGradients,
        n_steps=n_steps,
        internal_batch_size=8,
        baselines=baseline,
    )


def _sentences(item):
    "The context's sentences, and the text that they stand in."
    spans = item['sentences']
    text = item['context']
    ends = [0, *(end for _, end in spans)]
    gaps = [text[a:b] for a, (b, _) in zip(ends, spans)]
    parts = [text[start:end] for start, end in spans]

    def put_together(*shown):
        body = ''.join(gap + part for gap, part in zip(gaps, shown) if part)
        return item['before'] + body + text[ends[-1] :] + item['after']

    return parts, put_together


def sentences(model, tokenizer, item, kind=FeatureAblation, **options):
    "A sentence is there, or its text is deleted."
    parts, put_together = _sentences(item)
    given = TextTemplateInput(put_together, parts)
    same = tokenizer.encode(given.to_model_input()) == item['prompt_ids']
    llm = LLMAttribution(kind(model), tokenizer)
    found = llm.attribute(
        given, target=_answer_ids(item), forward_in_tokens=False, **options
    )
    return found.seq_attr, same


def shapley(model, tokenizer, item, n_samples=3):
    torch.manual_seed(0)
    return sentences(model, tokenizer, item, ShapleyValueSampling, n_samples=n_samples)


METHODS = {
    ('generation', 'ablation'): (ablation, 'log-prob'),
    ('generation', 'ablation_no_cache'): (ablation_no_cache, 'log-prob'),
    ('generation', 'ablation_at_once'): (ablation_at_once, 'log-prob'),
    ('generation', 'grad_x_input'): (gradient, 'log-prob'),
    ('generation', 'integrated_gradients'): (integrated_gradients, 'log-prob'),
    ('context', 'ablation'): (sentences, 'log-prob'),
    ('context', 'shapley'): (shapley, 'log-prob'),
}

if __name__ == '__main__':
    main(['captum'], METHODS)
