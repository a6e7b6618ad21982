"""Peers on the planted contexts of the study, as they were asked there.

Chapter 65 draws these contexts from seeds and keeps the model's answers; here
they are made again and put to packages of others, each in an environment of
its own (README.md). Kept are scores of the sentences, the cost in forward
passes over the text (tokens that went through the model, a backward pass
counting as two) and seconds; a context that is there is not asked again.

python benchmarks/contexts_planted.py [--study FILE] [--only PEER] [--out FILE]
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from peer_protocol import log_probs
from peers import HERE, PEERS, Peer, other_model, python_of, save
from tqdm.auto import tqdm

from lrp_loo import load_demo
from lrp_loo.context import continuation_ids, prompt_ids
from lrp_loo.results import Results, read_results
from lrp_loo.studies.contexts import (
    AskedContext,
    Limits,
    planted_context,
    template_of,
)
from lrp_loo.units import text_spans

FOLDER = HERE.parent / 'results' / 'folder'
ASKED = (  # name in the study, peer, its method, options
    ('FlashTrace', 'FlashTrace', 'flashtrace', {}),
    ('FlashTrace, routes', 'FlashTrace', 'ifr', {}),
    ('FlashTrace, AttnLRP', 'FlashTrace', 'attn_lrp_span', {}),
    *(
        (
            f'ContextCite, {n}',
            'ContextCite',
            'context_cite',
            dict(num_ablations=n),
        )
        for n in (8, 16)
    ),
)


def context_of(
    row,  # of the study
    limits,  # `Limits` of the study
    seed,  # of its first context
):
    "The context that a row is about, made again."
    made = planted_context(seed + row['i'], limits.sentences, limits.words)
    if list(made.planted) != row['planted']:
        raise ValueError(
            f"context {row['i']} comes out as another one than the study's:"
            " the generator has changed since"
        )
    return AskedContext(made.text, *made[1:])


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


def ask_all(results, study, model, tokenizer, folder, only):
    "Peer by peer, context by context."
    limits = Limits(*map(_as_given, study['config']['limits'].values()))
    rows = asked_rows(study)
    for k, (name, peer, method, options) in enumerate(ASKED):
        python = only in (None, peer) and python_of(peer)
        if not python:
            continue
        question = dict(
            model=folder, task='context', method=method, options=options
        )
        with Peer(python, PEERS[peer][1]) as process:
            for row in tqdm(rows, desc=name):
                number = row['i'] * len(ASKED) + k
                if number in results.done:
                    continue
                context = context_of(row, limits, study['config']['seed'])
                item = item_of(model, tokenizer, context, row['answer'])
                found = row_of(process, question, item)
                about = dict(i=number, context=row['i'], name=name)
                results.add(about | found)
                if 'error' in found:
                    print(
                        f"{name}, {row['i']}: {found['error']}", file=sys.stderr
                    )


def _as_given(limit):
    "A tuple, which JSON keeps as a list."
    return tuple(limit) if isinstance(limit, list) else limit


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--study', default=str(FOLDER / 'contexts-planted.json')
    )
    parser.add_argument('--only', choices=PEERS)
    parser.add_argument('--out', default=str(FOLDER / 'contexts-peers.json'))
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    model, tokenizer = load_demo('smollm2')
    model.requires_grad_(False)
    study = read_results(args.study)
    config = dict(
        experiment='peers on planted contexts',
        study=Path(args.study).name,
        model=study['config']['model'],
        data=study['config']['data'],
        limits=study['config']['limits'],
        seed=study['config']['seed'],
        asked=[list(one) for one in ASKED],
        threads=1,
    )
    results = Results(args.out, config)
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        ask_all(results, study, model, tokenizer, folder, args.only)


if __name__ == '__main__':
    main()
