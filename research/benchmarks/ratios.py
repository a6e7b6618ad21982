"""Seconds of the methods as ratios: each method against a plain gradient, a budget of
passes against exact LOO, exact LOO against the batch that anybody writes by hand and
against Captum; at four lengths, beside the ratios that were recorded before.

python research/benchmarks/ratios.py [--models sst2,reviews-sst2] [--write]

CPU time of this process with one thread (--threads 2: wall time); the median of some
rounds, in which all jobs run in turn. Nothing fails here: read it before a release.
Captum's columns need it (pip install -e '.[bench]').
"""

import argparse
import json
import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from common import captum_loo, processor

from lrp_loo import explain, load_demo, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.inputs.scores import last_rows_only
from lrp_loo.models.encoding import encode

OUT = Path(__file__).parents[1] / 'results' / 'ratios.json'
LENGTHS = ((8, 12), (20, 26), (40, 60), (100, 130))  # tokens of a text
METHODS = ('attn_lrp', 'cp_lrp', 'removal')
BUDGETS = (3, 5, 7, 11, 16)


def texts_of_length(tokenizer, shortest, longest, n):
    "Return n texts of so many tokens: sentences, or beginnings of reviews."
    sentences = load_texts('sst2', 'embedded', seed=1).texts
    words = [text.split() for text in load_texts('imdb', 'embedded', seed=1).texts]
    n_words = (shortest + longest) * 3 // 8
    texts = [*sentences, *(' '.join(w[:n_words]) for w in words if len(w) >= n_words)]
    sizes = [len(tokenizer(text)['input_ids']) for text in texts]
    fitting = [t for t, size in zip(texts, sizes) if shortest <= size <= longest]
    return fitting[:n]


def gradient_times_input(model, encs):
    "Compute the plain gradient of each text, one pass a text."
    table = model.get_input_embeddings().weight
    for enc in encs:
        x = table[enc['input_ids']].detach().requires_grad_()
        inputs = dict(inputs_embeds=x, attention_mask=enc['attention_mask'])
        logits = model(**inputs, **last_rows_only(model)).logits
        torch.autograd.grad(logits.flatten(1).amax(1).sum(), x)


@torch.no_grad()
def by_hand(model, encs):
    "Compute exact LOO of each text by one batch of masked copies."
    options = last_rows_only(model)
    for enc in encs:
        n = enc['input_ids'].shape[1]
        copies = {k: v.expand(n, -1) for k, v in enc.items()}
        copies['attention_mask'] = 1 - torch.eye(n, dtype=torch.long)
        whole = model(**enc, **options).logits.flatten(1).amax(1)
        whole - model(**copies, **options).logits.flatten(1).amax(1)


def jobs(name, model, tokenizer, texts):
    "Return name → a function that does it once for all texts."
    encs = [encode(model, tokenizer, text) for text in texts]

    def explained(method, **options):
        return lambda: explain(model, tokenizer, texts, method=method, **options)

    found = dict(gradient=lambda: gradient_times_input(model, encs))
    found |= {method: explained(method) for method in METHODS}
    found |= dict(loo=explained('loo'), by_hand=lambda: by_hand(model, encs))
    if find_spec('captum'):
        found['captum'] = lambda: captum_loo(model, encs, 64)
    return found | {f'passes={n}': explained('auto', passes=n) for n in BUDGETS}


def seconds(work, rounds, clock):
    "Return name → the median seconds of jobs that run in turn."
    times = {name: [] for name in work}
    for i in range(rounds + 1):
        for name, job in work.items():
            start = clock()
            job()
            if i:  # the first round warms up
                times[name].append(clock() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def ratios(took):
    "Return the ratios that the table shows."
    table = {f'gradient / {name}': took['gradient'] / took[name] for name in METHODS}
    for rival in ('by_hand', 'captum'):
        if rival in took:
            table[f'{rival} / loo'] = took[rival] / took['loo']
    names = (f'passes={n}' for n in BUDGETS)
    table |= {f'{name} / loo': took[name] / took['loo'] for name in names}
    return {name: round(ratio, 3) for name, ratio in table.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--models', default='sst2,reviews-sst2,mpnet-sst2,smollm2')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--texts', type=int, default=8, help='of each length')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    recorded = json.loads(OUT.read_text()) if OUT.exists() else dict(ratios={})
    rows = {}
    for name in args.models.split(','):
        model, tokenizer = load_demo(name)
        model.requires_grad_(False)
        for shortest, longest in LENGTHS:
            texts = texts_of_length(tokenizer, shortest, longest, args.texts)
            took = seconds(jobs(name, model, tokenizer, texts), args.rounds, clock)
            key = f'{name}, {shortest} to {longest} tokens, {args.threads} threads'
            rows[key] = ratios(took)
            before = recorded['ratios'].get(key, {})
            print(f"{key}; exact LOO {took['loo']:.2f} s of {len(texts)} texts")
            for ratio, value in rows[key].items():
                print(f'  {ratio:20} {value:.2f}  before {before.get(ratio, "-")}')
    if args.write:
        machine = dict(processor=processor(), rounds=args.rounds, texts=args.texts)
        made = dict(versions=versions(), machine=machine)
        rows = recorded['ratios'] | rows
        text = json.dumps(made | dict(ratios=rows), indent=1)
        write_text_atomic(OUT, text + '\n')


if __name__ == '__main__':
    main()
