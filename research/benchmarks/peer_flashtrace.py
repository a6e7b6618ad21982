"""FlashTrace, asked as `peer_protocol` says, with the AttnLRP it brings.

(pip install torch==2.13.0 flashtrace==0.1.1 transformers==5.23.0)

FlashTrace and the flow routes that it stands on (IFR) give shares of a token's
flow, none negative; they explain no number of the output.
"""

import torch
from flashtrace.attribution import LLMIFRAttribution, LLMLRPAttribution
from flashtrace.improved import LLMIFRAttributionBoth
from peer_protocol import (
    before_each,
    continuation_of,
    main,
    prompt_of,
    sums_over_sentences,
)


def _asked(item):
    return dict(prompt=prompt_of(item), target=continuation_of(item))


def _found(engine, item, raw):
    """(generated, tokens) scores without the end-of-text token that is always
    added, and whether the ids are the item's.
    """
    n = len(item['continuation_ids'])
    same = engine.prompt_ids[0].tolist() == item['prompt_ids']
    same &= engine.generation_ids[0, :-1].tolist() == item['continuation_ids']
    return raw.attribution_matrix[:n], same


def routes(model, tokenizer, item):
    "IFR of every generated token; its row is the token's own, not the one before."
    engine = LLMIFRAttribution(model, tokenizer, show_progress=False)
    raw = engine.calculate_ifr_for_all_positions(**_asked(item))
    return _found(engine, item, raw)


def flashtrace(model, tokenizer, item, hops=1):
    "The answer as one span."
    engine = LLMIFRAttributionBoth(model, tokenizer, show_progress=False)
    last = len(item['continuation_ids']) - 1
    raw = engine.calculate_ifr_multi_hop_both(
        **_asked(item), sink_span=(0, last), n_hops=hops
    )
    observed = raw.metadata['ifr']['observation_projected']['sum']
    _, same = _found(engine, item, raw)
    return torch.as_tensor(observed)[None], same


def attn_lrp(model, tokenizer, item):
    "A backward pass for every generated token."
    engine = LLMLRPAttribution(model, tokenizer)
    raw = engine.calculate_attnlrp(**_asked(item))
    return _found(engine, item, raw)


def attn_lrp_span(model, tokenizer, item):
    "One backward pass from the sum of the answer's logits."
    engine = LLMLRPAttribution(model, tokenizer)
    raw = engine.calculate_attnlrp_batched(**_asked(item))
    scores, same = _found(engine, item, raw)
    return scores[-1:], same


def generation(attribute):
    def run(model, tokenizer, item, **options):
        scores, same = attribute(model, tokenizer, item, **options)
        return before_each(scores.tolist(), item), same

    return run


def context(attribute):
    def run(model, tokenizer, item, **options):
        scores, same = attribute(model, tokenizer, item, **options)
        return sums_over_sentences(tokenizer, item, scores), same

    return run


METHODS = {
    ('generation', 'ifr'): (generation(routes), 'flow'),
    ('generation', 'attn_lrp'): (generation(attn_lrp), 'logit'),
    ('context', 'ifr'): (context(routes), 'flow'),
    ('context', 'flashtrace'): (context(flashtrace), 'flow'),
    ('context', 'attn_lrp'): (context(attn_lrp), 'logit'),
    ('context', 'attn_lrp_span'): (context(attn_lrp_span), 'logit'),
}

if __name__ == '__main__':
    main(['flashtrace'], METHODS, attn_implementation='eager')
