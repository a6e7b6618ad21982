"""What was tried to make the estimate of pairs better, on sentences to train on.

Where the removed token stands, which rules lie between the attentions, how the
two directions are weighed, which √T tokens get a pass: each held against the
exact interactions of training sentences of SST-2, no pair exact. And, on every
model, the cost of a pass for each token divided between passes and exact pairs.
Chapter 45 says what was taken.

python research/benchmarks/pairs_tried.py [--model minilm] [--data FOLDER] [--limit 30]
    [--out FILE]
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from lrp_lab.between import between_rules
from lrp_lab.interactions import PairGame, interactions_content
from lrp_lab.parts import SENTENCES, part_examples
from lrp_loo.models.layers import n_layers
from lrp_loo.paper.common import add_rows
from lrp_loo.removal.one_pass import removal_pass
from lrp_loo.removal.rows import GRADIENT_PASS
from lrp_loo.stats import mean_se
from lrp_loo.tasks.pairs import (
    affordable_pairs,
    estimates_without,
    pair_agreement,
    pair_worth,
    symmetric_mean,
)
from lrp_loo.trust.results import Results, read_results

OUT = Path(__file__).parents[1] / 'results' / 'studies'
FILES = dict(
    minilm='pairs-tried.json',
    mpnet='pairs-tried-mpnet.json',
    smollm2='pairs-tried-smollm2.json',
)
# units of a sentence; exact pairs of more take long
FEWEST = dict(minilm=8, mpnet=6, smollm2=6)
MOST = dict(minilm=48, mpnet=16, smollm2=9)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)  # of the passes that are made
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
            g.model, g.enc, g.target, self.every, g.n, g.units, composite, weight=weight
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


def by_size(D, alone):
    return D.abs()


def by_loo(D, alone):
    return (alone[:, None] * alone).abs()


def by_both(D, alone):
    return pair_worth(D, alone, torch.ones(len(D), dtype=torch.bool))


def divided(t, share, worth=by_both):
    "Some passes, and exact pairs for what the others would have cost."
    k = math.ceil(share * t.game.n)
    chosen = t.spread.argsort(descending=True)[:k]
    scores = symmetric_mean(t.D[chosen], chosen)
    read = torch.zeros(t.game.n, dtype=torch.bool)
    read[chosen] = True
    alone = torch.where(read, t.game.loo, t.R)
    forwards = GRADIENT_PASS * (t.game.n - k)
    every = torch.ones(t.game.n, dtype=torch.bool)
    which = worth(scores, alone)
    i, j = affordable_pairs(which, every, read, forwards).T
    scores[i, j] = scores[j, i] = t.game.exact[i, j]
    return scores


def variants_of_cost(t):
    "Name → (n, n)."
    found = {'T': t.of_all(t.D), '√T, by spread': t.of_rows(t.D, t.spread)}
    for share in SHARES:
        found[f'{share} of T, the rest exact'] = divided(t, share)
    for worth in (by_size, by_loo):
        name = f'0.5 of T, the rest exact {worth.__name__}'
        found[name] = divided(t, 0.5, worth)
    return found


def all_variants(t):
    "Name → (n, n)."
    game = t.game
    found = variants_of_cost(t)
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


def row(game, variants):
    exact = game.record(game.exact)
    found = variants(Tried(game))
    r = {k: pair_agreement(game.record(v), exact) for k, v in found.items()}
    return dict(n_units=game.n, r=r)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', choices=list(FILES), default='minilm')
    parser.add_argument('--data', help='the folder of data')
    parser.add_argument('--limit', type=int, default=30)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--out')
    args = parser.parse_args()
    out = args.out or str(OUT / FILES[args.model])
    known = dict(tried=SENTENCES[args.model]._replace(split='train'))
    of_all = 2 if args.model == 'minilm' else 20  # many are too long
    n_drawn = of_all * args.limit
    drawn = part_examples('tried', args.data, n_drawn, args.seed, known)
    content = interactions_content(drawn.examples)
    fit = [
        (i, enc, content[i])
        for i, enc, _ in drawn.examples
        if FEWEST[args.model] <= int(content[i].sum()) <= MOST[args.model]
    ]
    config = dict(experiment='pairs, tried', seed=args.seed, **drawn.info)
    results = Results(out, config)
    variants = all_variants if args.model == 'minilm' else variants_of_cost

    def of(enc, own):
        return row(PairGame(drawn.model, enc, drawn.target, own), variants)

    add_rows(results, fit[: args.limit], of, 'pairs, tried')
    rows = read_results(out)['rows']
    for name in rows[0]['r']:
        r, se, n = mean_se(np.array([of["r"][name] for of in rows]))
        print(f'{name:28s} {r:.3f} ± {se:.3f} (n = {n})')


if __name__ == '__main__':
    main()
