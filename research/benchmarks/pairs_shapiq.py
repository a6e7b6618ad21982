"""Pairs by shapiq's own approximators, on the sentences of chapter 69.

A coalition is what is kept of a sentence's content tokens; its worth is the
explained number. shapiq averages what two tokens do over subsets of the text,
where leave-two-out leaves all others in place, so it is held to something near
what it is made for; at as many passes as `removal` takes, and at some times as
many. shapiq comes from a folder laid over this environment:

    pip install --no-deps --target FOLDER shapiq==1.4.1 sparse-transform galois \\
        colour networkx numba llvmlite
    PYTHONPATH=FOLDER python benchmarks/pairs_shapiq.py [--data FOLDER]
        [--part interactions-minilm] [--limit N] [--out FILE]
"""

import argparse
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from shapiq import SVARMIQ, KernelSHAPIQ, PermutationSamplingSII, RegressionFSII

from lrp_lab.interactions import PAIRED, PairGame, interactions_examples
from lrp_loo.paper.common import add_rows
from lrp_loo.tasks.pairs import LARGE, best_tenth, pair_agreement
from lrp_loo.trust.results import Results, read_results

FOLDER = Path(__file__).parents[1] / 'results' / 'studies'
TIMES = (1, 8)  # as many passes as `removal` takes at T
APPROXIMATORS = {
    'KernelSHAP-IQ': partial(KernelSHAPIQ, index='k-SII'),
    'SVARM-IQ': partial(SVARMIQ, index='k-SII'),
    'permutations, SII': partial(PermutationSamplingSII, index='SII'),
    'regression, FSII': RegressionFSII,
}


def worth_of(game):
    "As shapiq asks: (k, n) of what is kept → (k,)."

    def worth(kept):
        gone = ~torch.as_tensor(np.atleast_2d(kept), dtype=torch.bool)
        return (float(game.value) - game.values(gone)).numpy()

    return worth


def shapiq_pairs(
    game,  # `PairGame`
    make,  # an approximator's class
    budget,  # forward passes
    seed,
):
    "(n, n) symmetric."
    approximator = make(n=game.n, max_order=2, random_state=seed)
    found = approximator.approximate(budget, worth_of(game))
    values = found.get_n_order_values(2)
    return torch.as_tensor(values, dtype=torch.double)


def row_of(game, spent, seed):
    "Every approximator at every budget, held to the exact pairs."
    exact = game.record(game.exact)
    methods = {}
    for name, make in APPROXIMATORS.items():
        for times in TIMES:
            budget = min(times * spent, 2**game.n)
            p = game.record(shapiq_pairs(game, make, budget, seed))
            methods[f'{name}, {times}'] = dict(
                r=pair_agreement(p, exact),
                r_large=pair_agreement(p, exact, LARGE),
                best_tenth=best_tenth(p, exact),
                cost=budget,
            )
    return dict(n_units=game.n, methods=methods)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--part', choices=PAIRED, default='interactions-minilm')
    parser.add_argument('--data', help='the folder of data')
    parser.add_argument('--limit', type=int, help='sentences of the study')
    parser.add_argument('--out', help='default: beside those of the study')
    args = parser.parse_args()
    args.out = args.out or str(FOLDER / f'{args.part}-shapiq.json')
    return args


def main():
    args = arguments()
    torch.set_num_threads(1)
    study = read_results(FOLDER / f'{args.part}.json')
    seed = study['config']['seed']
    drawn, fit = interactions_examples(args.part, args.data, seed)
    costs = {row['i']: row['methods']['removal, T']['cost'] for row in study['rows']}
    fit = [one for one in fit if one[0] in costs][: args.limit]
    config = dict(
        experiment='pairs by shapiq',
        part=args.part,
        study=f'{args.part}.json',
        shapiq=version('shapiq'),
        times=list(TIMES),
        seed=seed,
        **drawn.info,
    )

    def row(i, enc, own):
        game = PairGame(drawn.model, enc, drawn.target, own)
        return row_of(game, costs[i], seed)

    results = Results(args.out, config)
    examples = [(i, i, enc, own) for i, enc, own in fit]
    add_rows(results, examples, row, f'shapiq: {drawn.words}')


if __name__ == '__main__':
    main()
