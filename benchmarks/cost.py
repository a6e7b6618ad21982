"""What the methods cost, as ratios measured in turn (A B A B …) in one process: medians over rounds.
AttnLRP and CP-LRP against the plain gradient × input; removal against AttnLRP; exact LOO (`leave_one_out`) against one masked forward pass at a time.
With --long: one text of 512 tokens, removal against AttnLRP, and exact LOO (once: it takes minutes) against removal.
Embedded texts, the demo model, CPU.   python benchmarks/cost.py [--rounds 5] [--texts 24] [--long]"""
import argparse
import statistics
import time

import torch

from lrp_loo import explain, load_demo, load_texts
from lrp_loo.attribution import explain_batch
from lrp_loo.core import versions
from lrp_loo.models import encode
from lrp_loo.perturbation import leave_one_out


def one_by_one(model, encs):
    with torch.no_grad():
        for e in encs:
            n = e['input_ids'].shape[1]; model(**e)
            for i in range(n):
                mask = torch.ones(1, n, dtype=torch.long); mask[0, i] = 0
                model(input_ids=e['input_ids'], attention_mask=mask)


def ratio(a, b, rounds):
    "Seconds of a and b, alternating; the median of the ratios a/b pair by pair."
    times = []
    for r in range(rounds + (rounds > 1)): # the first is a warm-up, where there are several
        pair = []
        for f in (a, b): t = time.perf_counter(); f(); pair.append(time.perf_counter() - t)
        if r or rounds == 1: times.append(pair)
    rs = sorted(x/y for x, y in times)
    return dict(ours=statistics.median(x for x, _ in times), other=statistics.median(y for _, y in times), ratio=statistics.median(rs), low=rs[0], high=rs[-1])


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__); p.add_argument('--rounds', type=int, default=5); p.add_argument('--texts', type=int, default=24); p.add_argument('--long', action='store_true'); args = p.parse_args()
    model, tokenizer = load_demo('sst2'); texts = load_texts('sst2', 'embedded', limit=args.texts).texts
    encs = [encode(model, tokenizer, t) for t in texts]
    run = lambda method: lambda: explain(model, tokenizer, texts, method=method)
    print({k: v for k, v in versions().items() if k in ('python', 'torch', 'transformers')}, torch.get_num_threads(), 'threads,', len(texts), 'texts,', sum(e['input_ids'].shape[1] for e in encs)/len(encs), 'tokens on average')
    def show(name, r): print(f"{name:40s} ratio {r['ratio']:.2f} (from {r['low']:.2f} to {r['high']:.2f}; {r['ours']:.2f} s against {r['other']:.2f} s)", flush=True)
    if args.long:
        long = ' '.join(load_texts('sst2', 'embedded').texts*20); enc = encode(model, tokenizer, long, truncation=True, max_length=512); print(enc['input_ids'].shape[1], 'tokens')
        one = lambda method, **kw: lambda: explain_batch(model, tokenizer, [enc], method, **kw)
        show('removal / attn_lrp', ratio(one('removal'), one('attn_lrp'), args.rounds)); show('removal, 9 passes / attn_lrp', ratio(one('removal', n_groups=8), one('attn_lrp'), 1))
        show('exact LOO / removal', ratio(lambda: leave_one_out(model, enc), one('removal'), 1)); raise SystemExit
    for name, a, b in (('removal / attn_lrp', run('removal'), run('attn_lrp')), ('attn_lrp / grad_x_input', run('attn_lrp'), run('grad_x_input')), ('cp_lrp / grad_x_input', run('cp_lrp'), run('grad_x_input')),
                       ('exact LOO / one masked pass at a time', lambda: [leave_one_out(model, e) for e in encs], lambda: one_by_one(model, encs))):
        show(name, ratio(a, b, args.rounds))
