"""This package, asked as `peer_protocol` says: in a process of its own, with
the same clock and the same count of memory as the peers.
"""

from functools import partial

from peer_protocol import Uncounted, main

from lrp_loo import attribute_context, explain_generation


def context(model, tokenizer, item, method, **options):
    "A score per sentence."
    model.requires_grad_(False)
    a = attribute_context(
        model,
        tokenizer,
        item['context'],
        item['answer'],
        method=method,
        units=[tuple(span) for span in item['sentences']],
        template=item['before'] + '{context}' + item['after'],
        **options,
    )
    ids = item['prompt_ids'] + item['continuation_ids']
    return a.scores, a.input_ids.tolist() == ids


def generation(model, tokenizer, item, method, **options):
    "A row per generated token."
    model.requires_grad_(False)
    said = item['prompt'], item['continuation']
    steps = explain_generation(model, tokenizer, *said, method, **options)
    last = steps[-1]
    ids = item['prompt_ids'] + item['continuation_ids']
    same = [*last.input_ids.tolist(), last.target] == ids
    return [a.scores for a in steps], same


NAMES = ('loo', 'removal', 'removal+rows', 'attn_lrp', 'cp_lrp', 'grad_x_input')
METHODS = {
    (task, name): (partial(explain, method=name), 'log-prob')
    for name in NAMES
    for task, explain in (('generation', generation), ('context', context))
}

if __name__ == '__main__':
    main(['lrp_loo'], METHODS, counting=Uncounted)
