"""Seconds and memory of the methods.

    python research/benchmarks cost ratios     # each method against a gradient by hand
    python research/benchmarks cost precision  # exact LOO in bfloat16 against float32
    python research/benchmarks cost length     # each method against a text's length
    python research/benchmarks cost size       # numbers of texts, one long text
    python research/benchmarks cost guard      # what the checks of each call take

ratios: 192 sentences, sorted by length and in their order, against gradients; at four
lengths a budget of passes against exact LOO, and exact LOO against the batch that
anybody writes by hand and against Captum at its best (pip install -e '.[bench]'); beside
the ratios recorded before. CPU time with one thread (--threads 2: wall time); the median
of rounds in which all jobs run in turn. Read it before a release: nothing fails here.
precision: CPU time of one thread, r and the worst error over a text's own tokens, beside
what the record expects of them; minima of rounds in which both run in turn.
length: one text alone, in a process of its own.
size: short texts through `explain(…, stream=True)`, through `summarize_texts` with its
rows in a file, and the same call again; one text through `passes=4`. One thread, each in
a process of its own; exponents are slopes of log cost on log size.
guard: CPU time of one thread with what compares a call with the model's own forward over
that without, in pairs: the median and the range. One warm text, and lists of which
nothing is known of such lengths.

`--write` puts rows into research/results/ in place of those of the same job.
"""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from unittest import mock

import torch
from common import (
    BATCH,
    LAB,
    gradient_times_input,
    last_row,
    machine,
    measure,
    replace_row,
    texts_of_length,
)

from lrp_loo import (
    attribute_context,
    explain,
    explain_generation,
    load_demo,
    load_texts,
    summarize_texts,
)
from lrp_loo.core.files import write_text_atomic
from lrp_loo.core.stats import agreement
from lrp_loo.loo import multiplies_bfloat16
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import proofs_of
from lrp_loo.records.results import Results

# tokens of a text, and how many texts
LENGTHS = {(8, 12): 8, (20, 26): 8, (40, 60): 3, (100, 130): 1}
N_SENTENCES = 192  # of the gradients
METHODS = ('attn_lrp', 'cp_lrp', 'removal')
BUDGETS = (3, 5, 7, 11, 16)
PRECISIONS = ('float32', 'bfloat16')


def loaded(name, device='cpu'):
    "Return a demo model without gradients of its weights, and its tokenizer."
    model, tokenizer = load_demo(name, device=device)
    return model.requires_grad_(False), tokenizer


def is_large(model):
    return sum(p.numel() for p in model.parameters()) > 5e7


# ------------------------------------------------------------------ ratios


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


@torch.no_grad()
def captum_loo(model, encs, per_eval):
    "Compute exact LOO by Captum: the keys of ids that it sets to −1 are masked."
    from captum.attr import FeatureAblation

    def f(ids, enc):
        given = {k: v.expand(len(ids), -1) for k, v in enc.items()}
        given['attention_mask'] = (ids >= 0).long()
        return model(**given, **last_row(model)).logits.flatten(1).amax(1)

    for enc in encs:
        FeatureAblation(f).attribute(
            enc['input_ids'],
            baselines=-1,
            additional_forward_args=(enc,),
            perturbations_per_eval=per_eval,
        )


def gradient_jobs(model, tokenizer, sentences):
    "Return name → a function that computes it once for all sentences."
    by_gradient = partial(gradient_times_input, model, tokenizer, sentences)
    jobs = {'gradient': by_gradient}
    jobs['gradient in order'] = partial(by_gradient, is_sorted=False)
    run = partial(explain, model, tokenizer, sentences, batch_size=BATCH)
    return jobs | {method: partial(run, method=method) for method in METHODS}


def loo_jobs(model, tokenizer, texts):
    "Return name → a function that computes it once for all texts."
    encs = [encode(model, tokenizer, text) for text in texts]
    run = partial(explain, model, tokenizer, texts)
    jobs = dict(loo=partial(run, method='loo'), by_hand=partial(by_hand, model, encs))
    if find_spec('captum'):
        jobs['captum'] = partial(captum_loo, model, encs, 64)
    return jobs | {f'passes={n}': partial(run, passes=n) for n in BUDGETS}


def median_seconds(jobs, rounds, clock):
    "Return name → the median seconds of jobs that run in turn."
    times = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def ratios_of(seconds):
    "Return the ratios that the table shows."
    if 'gradient' in seconds:
        gradients = ('gradient', 'gradient in order')
        pairs = [(g, method) for g in gradients for method in METHODS]
    else:
        pairs = [(name, 'loo') for name in seconds if name != 'loo']
    return {f'{a} / {b}': round(seconds[a] / seconds[b], 3) for a, b in pairs}


def ratio_groups(name):
    "Yield the name of each group of jobs of a model, and the jobs."
    model, tokenizer = loaded(name)
    n = N_SENTENCES // 8 if is_large(model) else N_SENTENCES
    sentences = load_texts('sst2', 'embedded', limit=n).texts
    # the first calls of a process are slower
    median_seconds(gradient_jobs(model, tokenizer, sentences[:BATCH]), 1, time.time)
    median_seconds(loo_jobs(model, tokenizer, sentences[:2]), 1, time.time)
    yield f'{n} sentences', gradient_jobs(model, tokenizer, sentences)
    for (shortest, longest), n in LENGTHS.items():
        n = max(1, n // 2) if is_large(model) else n
        texts = texts_of_length(tokenizer, shortest, longest, n)
        group = f'{len(texts)} texts of {shortest} to {longest} tokens'
        yield group, loo_jobs(model, tokenizer, texts)


def ratios(args):
    "Print ratios of seconds beside the recorded ones."
    path = LAB / 'ratios.json'
    clock = time.process_time if args.threads == 1 else time.perf_counter
    for name in (args.models or 'sst2,reviews-sst2').split(','):
        for group, jobs in ratio_groups(name):
            seconds = median_seconds(jobs, args.rounds or 3, clock)
            key, row = f'{name}, {group}, {args.threads} threads', ratios_of(seconds)
            stored = json.loads(path.read_text())
            before = stored['ratios'].get(key, {})
            first, *_ = seconds
            print(f'{key}; {first} {seconds[first]:.2f} s')
            for ratio, value in row.items():
                known = before.get(ratio, '-')
                print(f'  {ratio:29} {value:.2f}  before {known}', flush=True)
            if args.write:
                stored['ratios'][key] = row
                stored |= machine()
                write_text_atomic(path, json.dumps(stored, indent=1) + '\n')


# ------------------------------------------------------------------ precision

PROMPT = 'The film starts slowly, but the last act is a quiet triumph. I would say that'
CONTEXT = (
    'The film starts slowly. Its hero sells umbrellas in a town where it never rains.'
    ' Nobody buys one. In the last act a storm comes, and he gives them all away.'
)


def precision_jobs(model, tokenizer):
    "Yield the name of a job, and a function of the precision that returns its maps."
    if last_row(model):
        options = dict(method='loo', max_new_tokens=4)
        run = partial(explain_generation, model, tokenizer, PROMPT, **options)
        yield 'generation', run
        arguments = (model, tokenizer, CONTEXT, 'He gives them away.')
        options = dict(question='What does he do?', method='loo', units='word')
        run = partial(attribute_context, *arguments, **options)
        yield 'context', lambda precision: [run(precision=precision)]
    else:
        review = max(load_texts('imdb', 'embedded', seed=1).texts[:8], key=len)
        cut = dict(truncation=True, max_length=150)
        yield 'a review', partial(explain, model, tokenizer, review, 'loo', **cut)
    for (low, high), n in LENGTHS.items():
        texts = texts_of_length(tokenizer, low, high, n)
        run = partial(explain, model, tokenizer, method='loo')
        yield f'{low}-{high} tokens', partial(run, texts)
        if low == 20:
            yield 'one text of 20-26 tokens', partial(run, texts[:1])


def apart(a, b):
    "Return r and the worst error of a map, over the tokens asked about."
    content = a.is_content
    error = (a.scores - b.scores)[content].abs().max() / a.scores[content].abs().max()
    return agreement(a.scores, b.scores, ~content), float(error)


def precision_row(run, rounds):
    "Return the seconds of both precisions, and how far their maps are apart."
    seconds, maps = {p: [] for p in PRECISIONS}, {}
    for _ in range(rounds):
        for precision in PRECISIONS:
            start = time.process_time()
            maps[precision] = list(run(precision=precision))
            seconds[precision].append(time.process_time() - start)
    r, error = zip(*(apart(a, b) for a, b in zip(*maps.values())))
    known = [x for x in r if x == x]
    before, after = map(min, seconds.values())
    expected = maps['bfloat16']
    return dict(
        n=len(r),
        tokens=statistics.mean(len(a) for a in maps['float32']),
        float32=round(before, 3),
        bfloat16=round(after, 3),
        ratio=round(after / before, 2),
        r=round(statistics.median(known), 5),
        least_r=round(min(known), 5),
        expected_r=round(statistics.median(a.expected_r for a in expected), 5),
        error=round(statistics.median(error), 4),
        most_error=round(max(error), 4),
        expected_error=round(statistics.median(a.expected_error for a in expected), 4),
    )


def precision(args):
    "Compare exact LOO in both precisions."
    able = multiplies_bfloat16(torch.device('cpu'))
    about = machine() | dict(multiplies_bfloat16=able)
    for name in (args.models or 'sst2,reviews-sst2,mpnet-sst2,smollm2').split(','):
        for job, run in precision_jobs(*load_demo(name)):
            row = dict(model=name, job=job) | precision_row(run, args.rounds or 2)
            print(row, flush=True)
            if args.write:
                replace_row(LAB / 'precision.json', row, ('model', 'job'), about)


# ------------------------------------------------------------------ length and size

OF_LENGTH = ('grad_x_input', 'attn_lrp', 'cp_lrp', 'rollout', 'ig', 'removal', 'loo')


def text_of(tokenizer, n):
    "Return our sentences, one after another, cut at n tokens."
    ids = tokenizer(' '.join(load_texts('sst2', 'embedded').texts))['input_ids']
    special = tokenizer.num_special_tokens_to_add()
    return tokenizer.decode(ids[1 : n - special + 1])


def method_on_length(method, n, rounds):
    "Return seconds and MiB of a method on one text of n tokens."
    model, tokenizer = loaded('sst2')
    run = partial(explain, model, tokenizer, text_of(tokenizer, n), method)
    explain(model, tokenizer, 'a first call', method)
    return dict(tokens=n, texts=1) | measure(run, rounds)


def short_texts(n):
    "Yield n different texts of about ten tokens."
    sentences = load_texts('sst2', 'embedded').texts
    words = [' '.join(text.split()[:6]) for text in sentences]
    for i in range(n):
        yield f'{words[i % len(words)]} {i}'


def many_texts(n):
    """Return the cost of n short texts by a BERT of two layers with random weights, which
    takes so little time that the cost of everything else shows.
    """
    sys.path.append(str(Path(__file__).parents[2] / 'tests'))
    from conftest import random_bert

    model, (_, tokenizer) = random_bert(layers=2), load_demo('sst2')
    explain(model, tokenizer, 'a first call', 'cp_lrp')
    start = time.perf_counter()
    options = dict(method='cp_lrp', stream=True, progress=False)
    records = explain(model, tokenizer, short_texts(n), **options)
    next(iter(records))
    row = dict(first=round(time.perf_counter() - start, 3))
    row['stream'] = measure(partial(deque, records, maxlen=0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'rows.json'
        options = dict(method='cp_lrp', results=path, progress=False)
        arguments = (model, tokenizer, list(short_texts(n)))
        run = partial(summarize_texts, *arguments, **options)
        row['summary'] = measure(run)
        row['file_mb'] = round(path.stat().st_size / 1e6, 2)
        row['again'] = measure(run)
    return dict(texts=n) | row


def long_text(n):
    "Return the cost of `passes=4` on n tokens, beside a forward and backward pass."
    model, tokenizer = loaded('reviews')
    model.config.max_position_embeddings = tokenizer.model_max_length = 8192
    words = ' '.join(load_texts('imdb', 'embedded').texts) * 20
    ids = tokenizer(words)['input_ids'][:n]
    text = tokenizer.decode(ids[1:] if ids[0] == tokenizer.bos_token_id else ids)
    explain(model, tokenizer, 'a first call', passes=4)
    row = dict(tokens=len(tokenizer(text)['input_ids']))
    row['gradient'] = measure(partial(gradient_times_input, model, tokenizer, [text]))
    run = partial(explain, model, tokenizer, text, passes=4, progress=False)
    row['four_passes'] = measure(run)  # with its proofs
    row['again'] = measure(run)
    return row


MEASURED = {f.__name__: f for f in (method_on_length, many_texts, long_text)}


def in_process(name, *arguments, threads=1):
    "Return the row that one of MEASURED gives in a process of its own."
    words = json.dumps([name, *arguments])
    call = [sys.executable, __file__, 'one', '--job', words, '--threads', str(threads)]
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def one(args):
    "Print one row of MEASURED, for `in_process`."
    name, *arguments = json.loads(args.job)
    print(json.dumps(MEASURED[name](*arguments)))


def length(args):
    "Measure each method against a text's length."
    rounds = args.rounds or 5
    about = dict(name='sst2', source='embedded')
    config = dict(experiment='cost-length', model=dict(name='minilm-sst2'), data=about)
    config |= dict(rounds=rounds, threads=args.threads, dtype='float32')
    results = Results(LAB / 'cost-length.json' if args.write else None, config)
    lengths = [int(n) for n in (args.lengths or '16,32,64,128,256,512').split(',')]
    for i, (n, method) in enumerate(product(lengths, OF_LENGTH)):
        if i not in results.done:
            job = ('method_on_length', method, n, rounds)
            row = in_process(*job, threads=args.threads)
            results.add(dict(i=i, method=method) | row)
            print(results.rows[-1], flush=True)


def exponent(rows, size, cost):
    "Return the slope of log cost on log size, from the first row to the last."
    first, last = rows[0], rows[-1]
    seconds = last[cost]['seconds'] / first[cost]['seconds']
    return round(math.log(seconds) / math.log(last[size] / first[size]), 2)


SIZES = {  # unit → the job, its sizes, what is timed
    'texts': ('many_texts', '1000,10000,100000', ('stream', 'summary', 'again')),
    'tokens': ('long_text', '512,1024,2000,4000', ('gradient', 'four_passes')),
}


def size(args):
    "Measure cost against the number of texts and against one text's length."
    found, exponents = {}, {}
    asked = dict(texts=args.numbers, tokens=args.lengths)
    for unit, (job, sizes, costs) in SIZES.items():
        if any(asked.values()) and not asked[unit]:
            continue
        rows = []
        for n in map(int, (asked[unit] or sizes).split(',')):
            rows.append(in_process(job, n))
            print(rows[-1], flush=True)
        if len(rows) > 1:
            exponents |= {cost: exponent(rows, unit, cost) for cost in costs}
        found[dict(texts='numbers', tokens='lengths')[unit]] = rows
    print(exponents)
    if args.write:
        path = LAB / 'size.json'
        content = json.loads(path.read_text()) | machine() | found
        content['exponents'] |= exponents
        write_text_atomic(path, json.dumps(content, indent=1) + '\n')


# ------------------------------------------------------------------ guard

CHECKS = {  # what compares a call with the model's own forward → its value without
    'models.structure.Proofs.holds': True,
    'methods.batches.differs_from_model': False,
    'loo.engines._are_right': True,
    'loo.engines.Variants.is_read_alone': True,
    'loo.engines.check_hidden': None,
    'estimate.estimates.check_hidden': None,
    'estimate.auto.rows_are_right': True,
}
GUARDED = ('auto', *OF_LENGTH)


def explain_new(model, tokenizer, calls, method, is_checked):
    "Explain lists of texts one after another, with the checks or without."
    if len(calls) == 1:  # a new list
        proofs_of(model).longest.clear()
    with contextlib.ExitStack() as stack:
        for name, value in {} if is_checked else CHECKS.items():

            def stand_in(*args, value=value, **options):
                return value

            stack.enter_context(mock.patch(f'lrp_loo.{name}', stand_in))
        for texts in calls:
            explain(model, tokenizer, texts, method)


def guard_row(model, tokenizer, texts, method, rounds):
    "Return the ratio of seconds with the checks to those without."
    calls = [texts] * 10 if len(texts) == 1 else [texts]
    run = partial(explain_new, model, tokenizer, calls, method)
    jobs, ratios = {checked: partial(run, checked) for checked in (True, False)}, []
    run(True)  # the first call on a model makes its trials
    for _ in range(rounds):
        seconds = median_seconds(jobs, 1, time.process_time)
        ratios.append(seconds[True] / seconds[False])
        jobs = dict(reversed(jobs.items()))
    found = dict(ratio=statistics.median(ratios), low=min(ratios), high=max(ratios))
    return {name: round(ratio, 3) for name, ratio in found.items()}


def guard(args):
    "Measure what the checks of each call take."
    sentences = load_texts('sst2', 'embedded', limit=N_SENTENCES // 2, seed=1).texts
    n = int(args.numbers or len(sentences))
    for name in (args.models or 'sst2,reviews-sst2,mpnet-sst2,smollm2').split(','):
        model, tokenizer = loaded(name)
        several = sentences[: n // 4 if is_large(model) else n]
        middle = sorted(sentences, key=len)[len(sentences) // 2]
        for method, texts in product(GUARDED, ([middle], several)):
            row = dict(model=name, method=method, texts=len(texts))
            row |= guard_row(model, tokenizer, texts, method, args.rounds or 5)
            print(row, flush=True)
            if args.write:
                keys = ('model', 'method', 'texts')
                replace_row(LAB / 'guard.json', row, keys, machine())


COMMANDS = {f.__name__: f for f in (ratios, precision, length, size, guard, one)}


def main(argv=None):
    "Run one of COMMANDS."
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('command', choices=COMMANDS)
    p.add_argument('--models', help='names that load_demo takes, commas between them')
    p.add_argument('--rounds', type=int)
    p.add_argument('--threads', type=int, default=1)
    p.add_argument('--numbers', help='of texts (size, guard)')
    p.add_argument('--lengths', help='tokens of a text (length, size)')
    p.add_argument('--write', action='store_true', help='write research/results/')
    p.add_argument('--job', help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    torch.set_num_threads(args.threads)
    COMMANDS[args.command](args)


if __name__ == '__main__':
    main()
