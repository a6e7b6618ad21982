"""Shortcuts planted in training: does `diagnose` name them, and nothing else?

    python research/benchmarks/shortcuts.py --data FOLDER [--out FILE] [--models N]

Small classifiers of two kinds (a BERT and a Llama of two layers, trained from nothing on
SST-2) learn from texts of which a share of one class contains a planted word; others
learn from the texts as they are. Each is diagnosed on validation texts with the same
plant, 60 and 200 of them. Beside it a count of words by hand: the word whose share of
texts differs most between the two labels. A row per model and number of texts goes to
research/results/shortcuts.json; a row that is there is not computed again.
"""

import argparse
import json
import random
import time
from collections import Counter
from itertools import product
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from lrp_lab.training import _fit_classifier, accuracy, train_tokenizer
from lrp_loo import diagnose, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.records.results import Results
from lrp_loo.inputs.units import text_spans
from lrp_loo.models.loading import LABELS

OUT = Path(__file__).parents[1] / 'results' / 'shortcuts.json'
# kind → planted text, its place
PLANTS = dict(
    word=('tuesday', 'inside'),
    name=('Jordan', 'inside'),
    two_tokens=('zyxgorb', 'inside'),
    prefix=('review :', 'start'),
    punctuation=('!', 'end'),
)
RATES = (1.0, 0.9, 0.75, 0.6)  # shares of the class that contain the plant
SIZES = (60, 200)  # diagnosed texts
N_CLEAN = 12  # models without a plant
N_TRAIN = 4000  # training texts
OPTIONS = dict(lr=1e-3, epochs=3, batch_size=32, max_length=64)
SHAPE = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(intermediate_size=128, max_position_embeddings=256)


def settings():
    "Return kind, rate, class, architecture, seed of every model, in a drawn order."
    models = []
    plants = product(PLANTS, RATES, ('bert', 'llama'))
    for i, (kind, rate, architecture) in enumerate(plants):
        # either class, in turn, for each kind, rate and architecture
        models.append((kind, rate, (i + i // 2 + i // 8) % 2, architecture, i))
    for i in range(N_CLEAN):
        models.append(('none', 0.0, 0, ('bert', 'llama')[i % 2], 100 + i))
    return random.Random(0).sample(models, len(models))


def planted(texts, labels, kind, rate, label, seed):
    "Return texts, a share of those with this label with the plant in them."
    if kind == 'none':
        return texts
    plant, place = PLANTS[kind]
    draw = random.Random(seed)
    out = []
    for text, own in zip(texts, labels):
        words = text.split()
        at = dict(start=0, end=len(words), inside=draw.randint(1, len(words)))[place]
        if own == label and draw.random() < rate:
            words.insert(at, plant)
        out.append(' '.join(words))
    return out


def train(texts, labels, architecture, seed):
    "Return a small classifier and its tokenizer."
    tokenizer = train_tokenizer(texts, 4096)
    names = dict(id2label=LABELS, label2id={v: k for k, v in LABELS.items()})
    tokens = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(seed)
    if architecture == 'bert':
        config = BertConfig(**SHAPE, **names, **tokens, hidden_dropout_prob=0.1)
        model = BertForSequenceClassification(config)
    else:
        config = LlamaConfig(**SHAPE, **names, **tokens, num_key_value_heads=2)
        model = LlamaForSequenceClassification(config)
    options = OPTIONS | dict(seed=seed)
    _fit_classifier(model.train(), tokenizer, texts, labels, options, 'training')
    return model.eval(), tokenizer


def words_of(text):
    return {text[a:b].casefold() for a, b in text_spans(text, 'word')}


def counted_by_hand(texts, labels):
    "Return the word whose share of texts differs most between the labels."
    counts = {label: Counter() for label in (0, 1)}
    n = Counter(labels)
    for text, label in zip(texts, labels):
        counts[label].update(words_of(text))
    words = counts[0].keys() | counts[1].keys()
    return max(words, key=lambda w: abs(counts[0][w] / n[0] - counts[1][w] / n[1]))


def rows_of(setting, train_data, test_data):
    "Train a model; return a row per number of diagnosed texts."
    kind, rate, label, architecture, seed = setting
    how = kind, rate, label, seed
    texts = planted(train_data.texts, train_data.labels, *how)
    model, tokenizer = train(texts, train_data.labels, architecture, seed)
    texts, labels = planted(test_data.texts, test_data.labels, *how), test_data.labels
    plant = PLANTS.get(kind, ('', ''))[0]
    plant = words_of(plant)
    right = accuracy(model, tokenizer, texts, labels)
    results = Results(None, {})  # the first texts are not computed again
    for n in SIZES:
        start = time.perf_counter()
        d = diagnose(
            model, tokenizer, texts[:n], labels[:n], progress=False, results=results
        )
        seconds = time.perf_counter() - start
        row = dict(kind=kind, rate=rate, label=LABELS[label], n=n, seed=seed)
        row |= dict(architecture=architecture, accuracy=round(right, 3))
        # a run of words is named with spaces between them
        hits = [name for name in d.shortcuts if plant & set(name.split(' '))]
        row['found'] = bool(hits)
        row['false_alarms'] = sorted(set(d.shortcuts) - set(hits))
        row['first'] = d.shortcuts[:1]
        is_plant = [bool(plant & set(name.split(' '))) for name in d.words.word]
        own = d.words[is_plant]
        if len(own):
            best = own.sort_values('turned').iloc[-1]
            row |= {k: int(best[k]) for k in ('texts', 'carries', 'turned')}
            row['p'] = float(f'{best.p:.2g}')
        row['by_hand'] = counted_by_hand(texts[:n], labels[:n]) in plant
        row['n_none'] = len(d.carried_by_none)
        yield row | dict(errors=len(d.errors), seconds=round(seconds, 2))


def summary(rows):
    "Return counts per kind of plant (or none) and number of texts."
    table = []
    for kind, n in product([*PLANTS, 'none'], SIZES):
        own = [row for row in rows if row['kind'] == kind and row['n'] == n]
        counts = dict(kind=kind, n=n, models=len(own))
        if kind != 'none':
            counts['found'] = sum(row['found'] for row in own)
            counts['by_hand'] = sum(row['by_hand'] for row in own)
        counts['with_false_alarms'] = sum(bool(row['false_alarms']) for row in own)
        table.append(counts)
    return table


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--data', required=True, help="a folder in the hub's layout")
    p.add_argument('--out', default=str(OUT))
    p.add_argument('--models', type=int, default=1000, help='stop after so many')
    args = p.parse_args()
    out = Path(args.out)
    done = json.loads(out.read_text())['rows'] if out.exists() else []
    train_data = load_texts('sst2', args.data, split='train', limit=N_TRAIN)
    test_data = load_texts('sst2', args.data, split='validation', seed=1)
    n_new = 0
    for setting in settings():
        if setting[-1] in {row['seed'] for row in done} or n_new == args.models:
            continue
        done += rows_of(setting, train_data, test_data)
        n_new += 1
        record = dict(
            versions=versions(), options=OPTIONS | SHAPE | dict(n_train=N_TRAIN)
        )
        record |= dict(summary=summary(done), rows=done)
        write_text_atomic(out, json.dumps(record, indent=1) + '\n')
        print(done[-1])
    print(*summary(done), sep='\n')
