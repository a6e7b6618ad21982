"""Time and memory of ours and of peers on the same contexts, side by side.

Chapter 65 ranks methods by forward passes: tokens that went through the model,
a backward pass counting as two. What is done between the passes is not in that
number; here it is. Each method is asked in a process of its own, on one thread,
and its seconds are divided by those of plain forward passes timed before and
after. Kept are medians over the contexts, the shortest of the study.

python research/benchmarks/contexts_seconds.py [--contexts N] [--out FILE]
"""

import argparse
import statistics
import tempfile

import torch
from contexts_study import ASKED, FOLDER, asked_again, asked_rows, contexts_of
from peers import OURS, Peer, in_passes, python_of, runner_of, save
from tqdm.auto import tqdm

from lrp_lab.contexts import FOLLOWED_CONTEXTS
from lrp_loo import load_demo
from lrp_loo.trust.results import Results, read_results

PART = 'contexts-planted'
ASKED_OF_OURS = (
    'attn_lrp',
    'removal',
    'removal+rows, answer, 1',
    'removal+rows, both, 32',
    'removal+rows, both, 4 passes',
)


def questions(folder):
    "Name, peer, python, question of each method that can be asked here."
    asked = [(name, OURS, *FOLLOWED_CONTEXTS[name]) for name in ASKED_OF_OURS]
    for name, peer, method, options in [*asked, *ASKED]:
        python = python_of(peer)
        question = dict(model=folder, task='context', method=method, options=options)
        if python:
            yield name, peer, python, question


def measured(model, items, python, runner, question):
    "Of one method over the contexts, or why there is nothing."

    def ask(item):
        answer = process.ask(question | dict(items=[item]))
        if 'error' in answer:
            return answer
        peak.append(answer['peak_mib'])
        return answer['items'][0]

    peak = []
    with Peer(python, runner) as process:
        process.ask(question | dict(items=[]))  # loads the model
        each = [in_passes(model, item, ask, rounds=1) for item in items]
    errors = [found['error'] for found, _ in each if 'error' in found]
    if errors:
        return dict(error=errors[0].splitlines()[0])
    return dict(
        seconds=statistics.median(found['seconds'] for found, _ in each),
        in_passes=statistics.median(passes for _, passes in each),
        peak_mib=peak[-1],
    )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--contexts', type=int, default=1)
    parser.add_argument('--out', default=str(FOLDER / 'contexts-seconds.json'))
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    model, tokenizer = load_demo('smollm2')
    model.requires_grad_(False)
    study = read_results(FOLDER / f'{PART}.json')
    contexts = contexts_of(study, PART, None, tokenizer)
    shortest = sorted(asked_rows(study), key=lambda row: row['n_tokens'])
    rows = shortest[: args.contexts]
    items = [asked_again(model, tokenizer, contexts[row['i']], row) for row in rows]
    config = dict(
        experiment='seconds on planted contexts',
        model=study['config']['model'],
        contexts=[row['i'] for row in rows],
        tokens=[row['n_tokens'] for row in rows],
        seed=study['config']['seed'],
        data=study['config']['data'],
        threads=1,
    )
    results = Results(args.out, config)
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        for name, peer, python, question in tqdm([*questions(folder)]):
            # by its name: which are asked depends on the environments
            if name not in results.done:
                runner = runner_of(peer)
                found = measured(model, items, python, runner, question)
                results.add(dict(i=name, name=name, by=peer) | found)


if __name__ == '__main__':
    main()
