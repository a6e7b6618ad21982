"""Peers on the contexts of the study, as they were asked there.

Chapter 65 draws these contexts from seeds; here they are made again, answered
again, and put to packages of others, each in an environment of its own
(README.md). Kept are scores of the sentences, the cost in forward passes over
the text (tokens that went through the model, a backward pass counting as two)
and seconds; a context that is there is not asked again.

python research/benchmarks/contexts_study.py [--part contexts-imdb] [--data FOLDER]
    [--study FILE] [--only PEER] [--out FILE]
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from peer_protocol import log_probs
from peers import FURTHEST, HERE, PEERS, Peer, other_model, python_of, save
from tqdm.auto import tqdm

from lrp_lab.contexts import (
    KINDS_OF_CONTEXTS,
    Limits,
    contexts_within,
    greedy_answer,
    template_of,
)
from lrp_loo import load_demo
from lrp_loo.asked.units import text_spans
from lrp_loo.tasks.context import continuation_ids, prompt_ids
from lrp_loo.trust.results import Results, read_results

FOLDER = HERE.parent / 'results' / 'studies'
ASKED = (  # name in the study, peer, its method, options
    ('FlashTrace', 'FlashTrace', 'flashtrace', {}),
    ('FlashTrace, routes', 'FlashTrace', 'ifr', {}),
    ('FlashTrace, AttnLRP', 'FlashTrace', 'attn_lrp_span', {}),
    *(
        (f'ContextCite, {n}', 'ContextCite', 'context_cite', dict(num_ablations=n))
        for n in (8, 16)
    ),
    # its gradient × input is ours (chapter 85)
    ('Inseq, attention', 'Inseq', 'attention', {}),
)


def limits_of(
    study,  # as it was read
):
    "Its `Limits`; a tuple, which JSON keeps as a list."
    given = study['config']['limits'].values()
    return Limits(*(tuple(x) if isinstance(x, list) else x for x in given))


def contexts_of(study, part, data, tokenizer):
    "The contexts of its rows, by their numbers, made again."
    seed = study['config']['seed']
    limits = limits_of(study)
    made, _ = KINDS_OF_CONTEXTS[part](data, seed, limits)
    found, _ = contexts_within(tokenizer, made, limits, len(study['rows']))
    return dict(found)


def asked_again(model, tokenizer, context, row):
    "What the peers are asked; refused where it is not what the study asked."
    item = item_of(model, tokenizer, context, greedy_answer(model, tokenizer, context))
    n_tokens = len(item['prompt_ids'] + item['continuation_ids'])
    apart = abs(sum(item['log_probs']) - row['log_prob'])
    if n_tokens != row['n_tokens'] or apart > FURTHEST:
        raise ValueError(
            f"context {row['i']} comes out as another one than the study's:"
            f" {n_tokens} tokens for {row['n_tokens']}, and {apart:.3g} nats"
            " apart"
        )
    return item


def item_of(model, tokenizer, context, answer):
    "As the runners take it."
    before, after = template_of(context).split('{context}')
    after = after.format(question=context.question).rstrip(' ')
    prompt = before + context.text + after
    said = f' {answer}'
    item = dict(
        before=before,
        context=context.text,
        after=after,
        question=context.question,
        sentences=[list(s) for s in text_spans(context.text, 'sentence')],
        answer=said,
        prompt_ids=prompt_ids(tokenizer, prompt),
        continuation_ids=continuation_ids(tokenizer, prompt, said),
    )
    return item | dict(log_probs=log_probs(model, item))


def row_of(process, question, item):
    "What a peer says of one context, or why it says nothing."
    answer = process.ask(question | dict(items=[item]))
    if 'error' in answer:
        return dict(error=answer['error'].splitlines()[0])
    (found,) = answer['items']
    wrong = other_model(found, item)
    if wrong or not found['same_tokens']:
        return wrong or dict(error='other tokens were read')
    n_tokens = len(item['prompt_ids'] + item['continuation_ids'])
    return dict(
        explains=answer['explains'],
        scores=[float(f'{x:.5g}') for x in found['scores']],
        cost=found['tokens'] / n_tokens + 2 * found['backward'],
        seconds=found['seconds'],
        peak_mib=answer['peak_mib'],
        peer_versions=answer['versions'],
    )


def asked_rows(study):
    "Those whose answer stands on the context."
    return [row for row in study['rows'] if row['methods']]


def ask_all(results, study, items, folder, only):
    "Peer by peer, context by context."
    for name, peer, method, options in ASKED:
        python = only in (None, peer) and python_of(peer)
        if not python:
            continue
        question = dict(model=folder, task='context', method=method, options=options)
        with Peer(python, PEERS[peer][1]) as process:
            for row in tqdm(asked_rows(study), desc=name):
                key = f"{row['i']}, {name}"
                if key in results.done:
                    continue
                found = row_of(process, question, items[row['i']])
                about = dict(i=key, context=row['i'], name=name)
                results.add(about | found)
                if 'error' in found:
                    print(f"{name}, {row['i']}: {found['error']}", file=sys.stderr)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--part', choices=KINDS_OF_CONTEXTS, default='contexts-planted')
    parser.add_argument('--data', help='the folder of data, for reviews')
    parser.add_argument('--study', help='its results; default: those kept here')
    parser.add_argument('--only', choices=PEERS)
    parser.add_argument('--out', help='default: beside those of the study')
    args = parser.parse_args()
    args.study = args.study or str(FOLDER / f'{args.part}.json')
    args.out = args.out or str(FOLDER / f'{args.part}-peers.json')
    return args


def main():
    args = arguments()
    torch.set_num_threads(1)
    model, tokenizer = load_demo('smollm2')
    model.requires_grad_(False)
    study = read_results(args.study)
    config = dict(
        experiment='peers on contexts',
        study=Path(args.study).name,
        model=study['config']['model'],
        data=study['config']['data'],
        limits=study['config']['limits'],
        seed=study['config']['seed'],
        asked=[list(one) for one in ASKED],
        threads=1,
    )
    results = Results(args.out, config)
    contexts = contexts_of(study, args.part, args.data, tokenizer)
    items = {
        row['i']: asked_again(model, tokenizer, contexts[row['i']], row)
        for row in tqdm(asked_rows(study), desc='answers')
    }
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        ask_all(results, study, items, folder, args.only)


if __name__ == '__main__':
    main()
