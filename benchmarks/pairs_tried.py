"""What was tried to make the estimate of pairs better, on sentences to train on.

Where the removed token stands, which rules lie between the attentions, how the
two directions are weighed, which √T tokens get a pass: each held against the
exact interactions of training sentences of SST-2, no pair exact. Chapter 45
says what was taken.

python benchmarks/pairs_tried.py [--data FOLDER] [--limit 30] [--out FILE]
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from lrp_loo.models import n_layers
from lrp_loo.pairs import estimates_without, pair_agreement, symmetric_mean
from lrp_loo.removal import removal_pass
from lrp_loo.results import Results, read_results
from lrp_loo.stats import mean_se
from lrp_loo.studies.between import between_rules
from lrp_loo.studies.common import Part, add_rows, part_examples
from lrp_loo.studies.interactions import PairGame, interactions_content

OUT = Path(__file__).parents[1] / 'results' / 'folder' / 'pairs-tried.json'
PART = Part('sst2', 'sst2', 'attention_mask', longest=128, split='train')
WEIGHTS = (0.0, 1e-3, 0.1, 0.5)  # m_j
BETWEEN = dict(
    activations=('slope', 'rules'),
    norms=('constant', 'slope'),
    both=('constant', 'rules'),
)


class Tried:
    "What the variants are made of, for one sentence."

    def __init__(self, game):
        self.game = game
        self.every = torch.arange(game.n)
        self.k = math.ceil(math.sqrt(game.n))
        terms = self.terms()
        self.R = terms.sum(1)[0].cpu().double()
        self.spread = terms.square().sum(1)[0].sqrt().cpu().double()
        self.D = self.differences()

    def terms(self, composite=None):
        g = self.game
        given = (g.model, g.enc, g.target, [g.units], None, composite)
        return removal_pass(*given).terms

    def differences(self, composite=None, weight=0.0):
        "D[j, i]: j is removed, i is scored."
        g = self.game
        R, _ = estimates_without(
            g.model,
            g.enc,
            g.target,
            self.every,
            g.n,
            g.units,
            composite,
            weight=weight,
        )
        whole = self.R
        if composite is not None:
            whole = self.terms(composite).sum(1)[0].cpu().double()
        return whole - R

    def of_all(self, D):
        return symmetric_mean(D, self.every)

    def of_rows(self, D, size):
        "Of the √T tokens of the largest size."
        chosen = size.argsort(descending=True)[: self.k]
        return symmetric_mean(D[chosen], chosen)


def weighed(t, power):
    "Both directions, that of the larger spread removed the more so."
    s = t.spread**power
    share = s[:, None] / (s[:, None] + s)
    D = share * t.D
    return (D + D.T).fill_diagonal_(0)


def stretched(t, floor=3.0):
    "Rows by what the removed token's exact LOO is to its estimate."
    least = floor * t.R.square().mean()
    ratio = (t.game.loo * t.R + least) / (t.R.square() + least)
    return t.of_all(ratio[:, None] * t.D)


def read_first(t):
    "|LOO| of the 2 √T of the largest spread, 0 of others."
    some = t.spread.argsort(descending=True)[: 2 * t.k]
    size = torch.zeros_like(t.R)
    size[some] = t.game.loo[some].abs()
    return size


def all_variants(t):
    "Name → (n, n)."
    game = t.game
    found = {'T': t.of_all(t.D)}
    for w in WEIGHTS[1:]:
        found[f'T, m_j = {w}'] = t.of_all(t.differences(weight=w))
    for name, (norm, inner) in BETWEEN.items():
        rules = between_rules(norm, inner, 'none', n_layers(game.model))
        found[f'T, rules: {name}'] = t.of_all(t.differences(rules))
    for power in (-1, 0.5, 1):
        found[f'T, weighed by spread^{power}'] = weighed(t, power)
    found['T, stretched by LOO'] = stretched(t)
    sizes = dict(spread=t.spread, R=t.R.abs(), LOO=game.loo.abs())
    sizes |= {'LOO of 2 √T': read_first(t)}
    for name, size in sizes.items():
        found[f'√T, by {name}'] = t.of_rows(t.D, size)
    found['√T, exact rows'] = t.of_rows(game.exact, t.spread)
    return found


def row(game):
    exact = game.record(game.exact)
    found = all_variants(Tried(game))
    r = {k: pair_agreement(game.record(v), exact) for k, v in found.items()}
    return dict(n_units=game.n, r=r)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', help='the folder of data')
    parser.add_argument('--limit', type=int, default=30)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--out', default=str(OUT))
    args = parser.parse_args()
    known = dict(tried=PART)
    drawn = part_examples('tried', args.data, 2 * args.limit, args.seed, known)
    content = interactions_content(drawn.examples)
    fit = [
        (i, enc, content[i])
        for i, enc, _ in drawn.examples
        if 8 <= int(content[i].sum()) <= 48
    ]
    config = dict(experiment='pairs, tried', seed=args.seed, **drawn.info)
    results = Results(args.out, config)

    def of(enc, own):
        return row(PairGame(drawn.model, enc, drawn.target, own))

    add_rows(results, fit[: args.limit], of, 'pairs, tried')
    rows = read_results(args.out)['rows']
    for name in rows[0]['r']:
        r, se, n = mean_se(np.array([of["r"][name] for of in rows]))
        print(f'{name:28s} {r:.3f} ± {se:.3f} (n = {n})')


if __name__ == '__main__':
    main()
