"""LOO within a budget: do its seconds grow as the passes that it counts? And the
memory of a process that explains one review, against AttnLRP's.

python research/benchmarks/budget.py [--data FOLDER] [--sentences 8] [--rounds 5]
"""

import resource
import subprocess
import sys

from common import arguments, pairs, record, texts

from lrp_loo import explain

BUDGETS = (7, 16)  # against one gradient pass, which counts as three
MODELS = ('mpnet-sst2', 'sst2', 'reviews-sst2')
REVIEW = ('auto', 'attn_lrp')  # what memory is compared of


def peak_gib(args, method):
    "Of a process of its own."
    command = [sys.executable, __file__, '--one', method]
    command += ['--data', args.data] if args.data else []
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])


def timed(args, demo):
    "Each budget of a model, in turn with one gradient pass."
    # so long that exact LOO does not fit into a budget
    how = dict(longest=128, shortest=40, demo=demo)
    model, tokenizer, found, _, setting = texts('sst2', args, args.sentences, **how)
    setting |= dict(model=demo)

    def run(passes):
        return explain(model, tokenizer, found, passes=passes)

    def pair(n):
        times = pairs(lambda: run(3), lambda: run(n), args.rounds)
        fewer, more = (sum(a.passes for a in run(passes)) for passes in (3, n))
        return times | dict(expected=more / fewer)

    for n in BUDGETS:
        times = pair(n)
        job = f'LOO in {n} passes, {demo}'
        record(args, job, 'one gradient pass, 3', None, setting, (), **times)
        print(
            f"{times['ratio']:.2f} times the time where {times['expected']:.2f} times"
            ' the passes are counted'
        )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=8, one='')
    if args.one:
        model, tokenizer, found, *_ = texts('imdb', args, 1, 512, 400)
        explain(model, tokenizer, found, method=args.one)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        raise SystemExit
    for demo in MODELS:
        timed(args, demo)
    peak = {method: peak_gib(args, method) for method in REVIEW}
    print('peak memory of a process, GiB:', {k: round(v, 2) for k, v in peak.items()})
