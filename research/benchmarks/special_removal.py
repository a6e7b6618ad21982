"""What `removal` says of [CLS]:

its estimate and its exact score beside exact LOO, and where the estimate goes
wrong, layer by layer.

python research/benchmarks/special_removal.py [--data FOLDER] [--limit 60]
"""

import argparse
from pathlib import Path

import torch

from lrp_loo import load_demo, load_texts
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.removals import key_weights
from lrp_loo.methods.record import attention_maps
from lrp_loo.models import forward
from lrp_loo.models.demos import DEMOS
from lrp_loo.models.encoding import encode
from lrp_loo.models.layers import describe_model
from lrp_loo.removal import removal_scores
from lrp_loo.removal.one_pass import removal_pass
from lrp_loo.trust.results import Results

OUT = Path(__file__).parent.parent / 'results' / 'removal-special.json'


@torch.no_grad()
def without_in_layer(model, enc, readout, layer, n_layers):
    "f minus f with [CLS]'s key hidden in one layer alone."
    ones = torch.ones(enc['input_ids'].shape)
    hidden = ones.clone()
    hidden[0, 0] = 0.0
    with key_weights([hidden if k == layer else ones for k in range(n_layers)]):
        return float(readout(forward(model, enc)))


def layers_of(model, enc):
    """[CLS] layer by layer: what the estimate says, what hiding it there alone
    does, and how much the other rows look at it.
    """
    found = removal_pass(model, enc)
    maps = attention_maps(model, **enc)
    n = len(maps)
    return dict(
        estimate=found.terms[0, :, 0].view(n, -1).sum(1).tolist(),
        alone=[
            float(found.values) - without_in_layer(model, enc, found.readout, l, n)
            for l in range(n)
        ],
        attention=[float(A[0, :, 1:, 0].mean()) for A in maps],
    )


def row(model, tokenizer, enc):
    loo, _, target = leave_one_out(model, enc)
    scores = {
        name: removal_scores(
            model, tokenizer, [enc], target, exact_special=exact
        ).scores[0]
        for name, exact in (('estimate', False), ('exact_special', True))
    }
    scores['loo'] = loo
    assert torch.equal(
        scores['estimate'][1:-1], scores['exact_special'][1:-1]
    )  # content stays as it is
    first = {name: float(s[0]) for name, s in scores.items()}
    last = {name: float(s[-1]) for name, s in scores.items()}
    darkest = {name: int(s.abs().argmax()) == 0 for name, s in scores.items()}
    return dict(
        n_tokens=len(loo),
        cls=first,
        sep=last,
        cls_is_darkest=darkest,
        layers=layers_of(model, enc),
    )


def summary_of(rows):
    def share(xs):
        return sum(xs) / len(rows)

    def wrong(token, name):
        return share(r[token][name] * r[token]['loo'] < 0 for r in rows)

    def mean(what):
        return (
            torch.tensor([r['layers'][what] for r in rows])
            .double()
            .abs()
            .mean(0)
            .tolist()
        )

    shares = {
        name: dict(
            cls_wrong_sign=wrong('cls', name),
            sep_wrong_sign=wrong('sep', name),
            cls_is_darkest=share(r['cls_is_darkest'][name] for r in rows),
        )
        for name in ('estimate', 'exact_special', 'loo')
    }
    return dict(
        n=len(rows),
        shares=shares,
        mean_size={w: mean(w) for w in ('estimate', 'alone', 'attention')},
    )


def main(args):
    model, tokenizer = load_demo('sst2')
    texts = load_texts('sst2', args.data, limit=args.limit)
    config = dict(
        experiment='special tokens under removal',
        data=texts.info,
        seed=0,
        model=describe_model(model, DEMOS['sst2'][0]),
    )
    results = Results(args.out, config, fresh=args.fresh)
    for i, text in enumerate(texts.texts):
        if i not in results.done:
            results.add(
                dict(i=i, **row(model, tokenizer, encode(model, tokenizer, text)))
            )
    results.summary = summary_of(results.rows)
    results.save()
    print(results.summary)


if __name__ == '__main__':
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        '--data', help="a folder laid out as the hub's data sets, or 'embedded'"
    )
    p.add_argument('--limit', type=int, default=60, help='texts')
    p.add_argument('--out', default=str(OUT))
    p.add_argument('--fresh', action='store_true', help='start over')
    main(p.parse_args())
