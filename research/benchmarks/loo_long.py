"""Exact Leave-One-Out of reviews of 512 tokens against Captum at its best
batch size, and the peak memory of each in a process of its own.

python research/benchmarks/loo_long.py [--data FOLDER] [--reviews 1] [--rounds 5]
"""

import resource
import subprocess
import sys

from common import arguments, pairs, record, texts
from loo import captum

from lrp_loo.loo import many_loo

BEST = 16  # variants of 512 tokens at a time; more are no faster for Captum

if __name__ == '__main__':
    args = arguments(__doc__, reviews=1, one='')
    model, tokenizer, _, encs, setting = texts('imdb', args, args.reviews, 512, 400)
    run = dict(
        ours=lambda: many_loo(model, encs), captum=lambda: captum(model, encs, BEST)
    )
    if args.one:
        run[args.one]()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        raise SystemExit
    peak = {
        who: float(
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    '--one',
                    who,
                    '--reviews',
                    str(args.reviews),
                    *(['--data', args.data] if args.data else []),
                ],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()[-1]
        )
        for who in run
    }
    record(
        args,
        'exact LOO, IMDB, 400 to 512 tokens',
        'Captum FeatureAblation at its best setting',
        2.0,
        setting | dict(peak_gib=peak, perturbations_per_eval=BEST),
        ('captum',),
        **pairs(run['ours'], run['captum'], args.rounds, warm_up=False),
    )
    print(
        f"peak memory of the process: ours {peak['ours']:.2f} GiB (asked for:"
        f" under 2), Captum {peak['captum']:.2f} GiB"
    )
