"""A planted word found by `diagnose`, by SHAP's page and by a count of words: lines, seconds.

    python research/benchmarks/shortcut_peers.py --data FOLDER    beside the package: shap

Three of the models of `shortcuts.py`; 60 texts, of which SHAP reads the first 20, with
100 calls of the model a text (its default is 500) to keep the run short. The functions
below are what a user writes once model, texts, labels and imports are there; their lines
are counted. `rank` is the place of the planted word in what the tool lists first; seconds
are of one run on a loaded machine, for orientation only. Rows go to
research/results/shortcut-peers.json.
"""

import argparse
import inspect
import json
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import shap
from shortcuts import LABELS, N_TRAIN, PLANTS, planted, settings, train, words_of
from transformers import pipeline

from lrp_loo import diagnose, load_texts
from lrp_loo.core.files import versions, write_text_atomic

OUT = Path(__file__).parents[1] / 'results' / 'shortcut-peers.json'
N_TEXTS = dict(diagnose=60, shap=20, count=60)
MODELS = [('word', 0.75, 'bert'), ('name', 0.9, 'llama'), ('two_tokens', 0.6, 'bert')]


def with_diagnose(model, tokenizer, texts, labels, page):
    d = diagnose(model, tokenizer, texts, labels, progress=False)
    d.save(page)
    return d.shortcuts


def with_shap(model, tokenizer, texts, labels, page):
    pipe = pipeline('text-classification', model, tokenizer=tokenizer, top_k=None)
    values = shap.Explainer(pipe)(texts, max_evals=100, silent=True)
    page.write_text(shap.plots.text(values, display=False))
    mean = values[:, :, 'positive'].mean(0)
    order = abs(mean.values).argsort()[::-1]
    return [mean.feature_names[i] for i in order]


def with_count(model, tokenizer, texts, labels, page):
    counts = {label: Counter() for label in set(labels)}
    for text, label in zip(texts, labels):
        counts[label].update(set(text.lower().split()))
    n = Counter(labels)
    rate = {w: counts[0][w] / n[0] - counts[1][w] / n[1] for w in counts[0] | counts[1]}
    return sorted(rate, key=lambda w: -abs(rate[w]))


def rows_of(setting, train_data, test_data):
    "Train a model; yield a row per tool."
    kind, rate, label, architecture, seed = setting
    how = kind, rate, label, seed
    texts = planted(train_data.texts, train_data.labels, *how)
    model, tokenizer = train(texts, train_data.labels, architecture, seed)
    labels = test_data.labels[:60]
    texts = planted(test_data.texts[:60], labels, *how)
    pieces = {w.strip().casefold() for w in tokenizer.tokenize(PLANTS[kind][0])}
    plant = words_of(PLANTS[kind][0]) | {w.strip('#Ġ▁') for w in pieces}
    for tool in (with_diagnose, with_shap, with_count):
        name = tool.__name__.removeprefix('with_')
        n = N_TEXTS[name]
        with TemporaryDirectory() as folder:
            start, cpu = time.perf_counter(), time.process_time()
            page = Path(folder) / 'page.html'
            names = tool(model, tokenizer, texts[:n], labels[:n], page)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        hits = [i for i, x in enumerate(names, 1) if x.strip().casefold() in plant]
        row = dict(kind=kind, rate=rate, label=LABELS[label], architecture=architecture)
        row |= dict(tool=name, n=n, rank=min(hits, default=None), listed=len(names))
        row |= dict(seconds=round(seconds, 2), cpu_seconds=round(cpu, 2))
        yield row | dict(lines=len(inspect.getsource(tool).splitlines()) - 1)


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--data', required=True, help="a folder in the hub's layout")
    p.add_argument('--out', default=str(OUT))
    args = p.parse_args()
    train_data = load_texts('sst2', args.data, split='train', limit=N_TRAIN)
    test_data = load_texts('sst2', args.data, split='validation', seed=1)
    rows = []
    for setting in settings():
        if (setting[0], setting[1], setting[3]) in MODELS:
            for row in rows_of(setting, train_data, test_data):
                rows.append(row)
                print(row, flush=True)
    record = dict(versions=versions() | dict(shap=shap.__version__), rows=rows)
    write_text_atomic(Path(args.out), json.dumps(record, indent=1) + '\n')
