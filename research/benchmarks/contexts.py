"""The sentences of a context: peers beside exact LOO of the same sentences.

A JSON file gives the contexts: a list of {"context", "question", "answer"}, an
answer that begins with a space. What is explained is the answer's
log-probability. The reference is exact Leave-One-Out, by attention mask and by
deleting the sentence's text. r is Pearson's over the sentences, averaged over
contexts; `first` counts the contexts whose highest sentence is that of LOO.

python research/benchmarks/contexts.py [--contexts FILE] [--only PEER] [--out FILE]
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from peer_protocol import log_probs
from peers import (
    HERE,
    PEERS,
    correlation,
    cost,
    keep,
    mean,
    measure,
    our_answer,
    python_of,
    save,
    wanted,
)

from lrp_loo import load_demo
from lrp_loo.asked.units import text_spans
from lrp_loo.tasks.context import attribute_context
from lrp_loo.trust.results import Results

OUT = HERE.parent / 'results' / 'benchmarks-contexts.json'
TEMPLATE = '{context}\n\n{question}\nAnswer:'
REMOVALS = ('attention_mask', 'delete')
OURS = ('loo', 'removal', 'attn_lrp', 'cp_lrp', 'grad_x_input')
ASKED = (  # peer, its method, options
    ('Captum', 'ablation', {}),
    *(('ContextCite', 'context_cite', dict(num_ablations=n)) for n in (8, 16, 32, 64)),
    ('FlashTrace', 'flashtrace', {}),
    ('FlashTrace', 'ifr', {}),
    ('FlashTrace', 'attn_lrp_span', {}),
    ('Inseq', 'attention', {}),
    ('Inseq', 'input_x_gradient', {}),
    ('Captum', 'shapley', dict(n_samples=3)),
)


def item_of(model, tokenizer, given):
    "A context as the runners take it."
    before, after = TEMPLATE.split('{context}')
    after = after.format(question=given['question'])
    context = given['context']
    prompt = before + context + after
    item = dict(
        before=before,
        context=context,
        after=after,
        question=given['question'],
        sentences=[list(s) for s in text_spans(context, 'sentence')],
        answer=given['answer'],
        prompt_ids=tokenizer(prompt)['input_ids'],
        continuation_ids=tokenizer(given['answer'])['input_ids'],
    )
    return item | dict(log_probs=log_probs(model, item))


def ours(model, tokenizer, item, method, **options):
    "A number per sentence."
    a = attribute_context(
        model,
        tokenizer,
        item['context'],
        item['answer'],
        item['question'],
        method,
        units=[tuple(span) for span in item['sentences']],
        template=TEMPLATE,
        **options,
    )
    ids = item['prompt_ids'] + item['continuation_ids']
    assert a.input_ids is None or a.input_ids.tolist() == ids
    return a.scores.tolist()


def is_first(scores, reference):
    "Is the same sentence the highest?"
    return float(
        max(range(len(scores)), key=scores.__getitem__)
        == max(range(len(reference)), key=reference.__getitem__)
    )


def row_of(by, method, options, answer, references):
    row = dict(by=by, method=method, options=options)
    if 'error' in answer:
        return row | dict(error=answer['error'])
    row['explains'] = answer['explains']
    pairs = [
        (item, reference)
        for item, reference in zip(answer['items'], references)
        if item['same_tokens']
    ]
    for removal in REMOVALS:
        row[f'r_{removal}'] = mean(
            correlation(item['scores'], reference[removal]) for item, reference in pairs
        )
        row[f'first_{removal}'] = mean(
            is_first(item['scores'], reference[removal]) for item, reference in pairs
        )
    return row | cost(answer)


def answers(args, model, tokenizer, items):
    "(whose, method, options, answer), as they are found."
    for method in OURS:
        if wanted(args, 'ours', method):
            run = partial(ours, model, tokenizer, method=method)
            yield 'ours', method, {}, our_answer(model, items, run)
    short = dict(context='It rains. The sun shines.', question='Why?', answer=' So.')
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        for peer, method, options in ASKED:
            python = wanted(args, peer, method) and python_of(peer)
            if not python:
                continue
            question = dict(
                model=folder, task='context', method=method, options=options
            )
            asked = question, items, item_of(model, tokenizer, short), model
            answer = measure(python, PEERS[peer][1], *asked)
            yield peer, method, options, answer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', choices=(*PEERS, 'ours'))
    parser.add_argument('--methods', nargs='+', help='all, unless named')
    parser.add_argument('--contexts', default=str(HERE / 'contexts.json'))
    parser.add_argument('--limit', type=int, help='so many contexts')
    parser.add_argument('--out', default=str(OUT))
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    model, tokenizer = load_demo('smollm2')
    model.requires_grad_(False)
    given = json.loads(Path(args.contexts).read_text())[: args.limit]
    items = [item_of(model, tokenizer, one) for one in given]
    references = [
        {r: ours(model, tokenizer, i, 'loo', removal=r) for r in REMOVALS}
        for i in items
    ]
    config = dict(
        experiment='peers on the sentences of a context',
        model='smollm2-135m-instruct',
        contexts=Path(args.contexts).name,
        n_contexts=len(items),
        tokens=[len(i['prompt_ids'] + i['continuation_ids']) for i in items],
        sentences=[len(i['sentences']) for i in items],
        template=TEMPLATE,
        in_passes="seconds over those of one forward pass, in turn",
        threads=1,
    )
    # a part of the methods is measured into the file of all
    part = args.only or args.methods
    results = Results(args.out, config, fresh=not part)
    order = [('ours', method, {}) for method in OURS] + list(ASKED)
    found = answers(args, model, tokenizer, items)
    for by, method, options, answer in found:
        keep(results, row_of(by, method, options, answer, references), order)


if __name__ == '__main__':
    main()
