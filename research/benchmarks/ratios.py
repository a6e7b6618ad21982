"""Seconds of the methods as ratios: each method against a gradient by hand, for 192
sentences, sorted by length and in their order; at four lengths a budget of passes
against exact LOO, and exact LOO against the batch that anybody writes by hand and
against Captum at its best; beside the ratios that were recorded before.

python research/benchmarks/ratios.py [--models mpnet-sst2,smollm2] [--write]

CPU time of this process with one thread (--threads 2: wall time); the median of some
rounds, in which all jobs run in turn. Nothing fails here: read it before a release.
A model takes some five minutes; MPNet and SmolLM2, of which half as many texts and an
eighth of the sentences are read, with --rounds 1. `--write` writes each group when it is
measured, and keeps the rows of other models, lengths and thread counts.
Captum's columns need it (pip install -e '.[bench]').
"""

import argparse
import json
import statistics
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from common import captum_loo, processor

from lrp_loo import explain, load_demo, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.core.tensors import pad_batch
from lrp_loo.models.encoding import encode

OUT = Path(__file__).parents[1] / 'results' / 'ratios.json'
# tokens of a text, and how many texts
LENGTHS = {(8, 12): 8, (20, 26): 8, (40, 60): 3, (100, 130): 1}
N_SENTENCES, BATCH = 192, 32  # texts of the gradients
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


def last_row(model):
    "Return the argument by which a language model computes one row of logits."
    is_causal_lm = 'ForCausalLM' in type(model).__name__
    return dict(logits_to_keep=1) if is_causal_lm else {}


def gradient_times_input(model, tokenizer, texts, is_sorted=True):
    "Compute gradient × input by hand; sorted texts have little padding in a batch."
    table = model.get_input_embeddings().weight
    encoded = tokenizer(texts)
    rows = [dict(zip(encoded, entries)) for entries in zip(*encoded.values())]
    if is_sorted:
        rows.sort(key=lambda row: len(row['input_ids']))
    encs = [{k: torch.tensor([v]) for k, v in row.items()} for row in rows]
    for start in range(0, len(encs), BATCH):
        batch = pad_batch(tokenizer, encs[start : start + BATCH])
        batch = {k: v.to(table.device) for k, v in batch.items()}
        x = table[batch['input_ids']].detach().requires_grad_()
        embeddings = model.get_input_embeddings()
        hook = embeddings.register_forward_hook(lambda *args, x=x: x)
        logits = model(**batch, **last_row(model)).logits
        (g,) = torch.autograd.grad(logits.flatten(1).amax(1).sum(), x)
        hook.remove()
        (x * g).sum(-1)


@torch.no_grad()
def by_hand(model, encs):
    "Compute exact LOO of each text by one batch of masked copies."
    options = last_row(model)
    for enc in encs:
        n = enc['input_ids'].shape[1]
        copies = {k: v.expand(n, -1) for k, v in enc.items()}
        copies['attention_mask'] = 1 - torch.eye(n, dtype=torch.long)
        whole = model(**enc, **options).logits.flatten(1).amax(1)
        whole - model(**copies, **options).logits.flatten(1).amax(1)


def gradient_jobs(model, tokenizer, sentences):
    "Return name → a function that computes it once for all sentences."
    options = dict(batch_size=BATCH)
    by_hand = partial(gradient_times_input, model, tokenizer, sentences)
    found = {
        'gradient': by_hand,
        'gradient in order': partial(by_hand, is_sorted=False),
    }
    for method in METHODS:
        found[method] = partial(
            explain, model, tokenizer, sentences, method=method, **options
        )
    return found


def loo_jobs(model, tokenizer, texts):
    "Return name → a function that computes it once for all texts."
    encs = [encode(model, tokenizer, text) for text in texts]
    explained = partial(explain, model, tokenizer, texts)
    found = dict(loo=partial(explained, method='loo'))
    found['by_hand'] = partial(by_hand, model, encs)
    if find_spec('captum'):
        found['captum'] = partial(captum_loo, model, encs, 64)
    return found | {f'passes={n}': partial(explained, passes=n) for n in BUDGETS}


def seconds(work, rounds, clock):
    "Return name → the median seconds of jobs that run in turn."
    times = {name: [] for name in work}
    for _ in range(rounds):
        for name, job in work.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def ratios(took):
    "Return the ratios that the table shows."
    if 'gradient' in took:
        gradients = ('gradient', 'gradient in order')
        table = {f'{g} / {m}': took[g] / took[m] for g in gradients for m in METHODS}
    else:
        rivals = [name for name in ('by_hand', 'captum') if name in took]
        table = {f'{name} / loo': took[name] / took['loo'] for name in rivals}
        budgets = (f'passes={n}' for n in BUDGETS)
        table |= {f'{name} / loo': took[name] / took['loo'] for name in budgets}
    return {name: round(ratio, 3) for name, ratio in table.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--models', default='sst2,reviews-sst2')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--write', action='store_true', help=f'write {OUT.name}')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    recorded = json.loads(OUT.read_text()) if OUT.exists() else dict(ratios={})
    machine = dict(processor=processor(), rounds=args.rounds)
    for name in args.models.split(','):
        model, tokenizer = load_demo(name)
        model.requires_grad_(False)
        is_large = sum(p.numel() for p in model.parameters()) > 5e7
        n_sentences = N_SENTENCES // 8 if is_large else N_SENTENCES
        sentences = load_texts('sst2', 'embedded', limit=n_sentences).texts
        # the first calls of a process are slower
        seconds(gradient_jobs(model, tokenizer, sentences[:BATCH]), 1, clock)
        seconds(loo_jobs(model, tokenizer, sentences[:2]), 1, clock)
        work = {f'{n_sentences} sentences': gradient_jobs(model, tokenizer, sentences)}
        for (shortest, longest), n in LENGTHS.items():
            n = max(1, n // 2) if is_large else n
            texts = texts_of_length(tokenizer, shortest, longest, n)
            group = f'{len(texts)} texts of {shortest} to {longest} tokens'
            work[group] = loo_jobs(model, tokenizer, texts)
        for group, group_jobs in work.items():
            took = seconds(group_jobs, args.rounds, clock)
            key = f'{name}, {group}, {args.threads} threads'
            row = ratios(took)
            before = recorded['ratios'].get(key, {})
            first, *_ = took
            print(f'{key}; {first} {took[first]:.2f} s')
            for ratio, value in row.items():
                known = before.get(ratio, '-')
                print(f'  {ratio:29} {value:.2f}  before {known}', flush=True)
            if args.write:
                recorded = json.loads(OUT.read_text()) if OUT.exists() else recorded
                recorded['ratios'][key] = row
                recorded |= dict(versions=versions(), machine=machine)
                write_text_atomic(OUT, json.dumps(recorded, indent=1) + '\n')


if __name__ == '__main__':
    main()
