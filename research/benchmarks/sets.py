"""Sets of units against all 2^n removals, and how often `is_redundant` speaks.

    python research/benchmarks/sets.py contexts smollm2 [--data FOLDER]
    python research/benchmarks/sets.py contexts t5
    python research/benchmarks/sets.py words sst2 [--data FOLDER]
    python research/benchmarks/sets.py redundant sst2 [--data FOLDER]

contexts: 40 contexts of at most seven passages, eight of each of KINDS, four of them
from XQuAD and four made here (paraphrases and halves are all made here, and so are all
40 for the small T5, which knows no other words). All subsets of passages are hidden by
the model's own attention mask, without this package's engines; the smallest sufficient
and necessary sets in this table are compared with those found by all subsets, with those
of the greedy search on the same table, also in 16 rows, with the sufficient input subset
of Carter et al. (2019), and with the head of the LOO ranking that has the share, as
ERASER scores a rationale (DeYoung et al. 2020).
words: the same for sentences of SST-2 of 9 to 11 words, where the search is greedy.
redundant: `is_redundant` of 200 sentences by word, and what all pairs say to it.
Rows, without any text, go to research/results/sets.json.
"""

import argparse
import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import load_dataset
from small_t5 import FACTS, OTHERS, accuracy, small_t5

from lrp_loo import attribute_context, explain, load_demo, load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.estimate import sets as sets_module

OUT = Path(__file__).parents[1] / 'results' / 'sets.json'
SHARE = 0.9
KINDS = ('copies', 'paraphrases', 'halves', 'distractor', 'none')


def by_hand(kind, i):
    "Return passages, question and answer of a context that is made here."
    name, fact, other, owner = FACTS[i]
    one, two = f'The {name} {fact}.', other.format(name)
    answer = one if i % 2 else f'It {fact}.'
    question = f'What do you know about the {name}?'
    first = {
        'copies': [one, one],
        'paraphrases': [one, two],
        'halves': [f'The {name} belongs to {owner}.', f'What {owner} has {fact}.'],
        'distractor': [one, f'The old station is far from the {name}.'],
        'none': [],
    }[kind]
    passages = [*OTHERS[: 5 - len(first)], *first]
    order = np.random.default_rng(i).permutation(len(passages))
    return [passages[k] for k in order], question, answer


def from_xquad(rows, kind, i):
    "Return passages, question and answer of a context of XQuAD, four sentences of it."
    found = -1
    for row in rows:
        ends = [m + 1 for m, c in enumerate(row['context']) if c == '.']
        cuts = [0, *ends, len(row['context'])]
        parts = [row['context'][a:b].strip() for a, b in itertools.pairwise(cuts)]
        parts = [part for part in parts if len(part.split()) > 3]
        holds = [k for k, part in enumerate(parts) if row['answer'] in part]
        if len(holds) != 1 or len(parts) < 4:
            continue
        start = max(0, min(holds[0] - 1, len(parts) - 4))  # four sentences around it
        holds, parts = [holds[0] - start], parts[start : start + 4]
        if len(' '.join(parts)) > 400:
            continue
        found += 1
        if found < i:
            continue
        decisive = parts[holds[0]]
        if kind == 'copies':
            parts.insert(0 if holds[0] else len(parts), decisive)
        elif kind == 'none':
            parts.remove(decisive)
        return parts, row['question'], row['answer']
    raise ValueError('too few contexts')


def all_masks(number, places):
    "Return (2^n, T) masks, in the order of the kept units' bits."
    n = len(places)
    bits = torch.arange(2**n)[:, None] >> torch.arange(n) & 1
    keep = torch.ones(2**n, len(number), dtype=torch.long)
    for k, i in enumerate(places):
        keep[:, number == i] = bits[:, k : k + 1]
    return keep


@torch.no_grad()
def all_removals(model, ids, masks, read, n_answer=0):
    """Return {kept units: number}, by the model's own masked forward; the decoder of an
    encoder-decoder reads the last 1 + n_answer tokens.
    """
    values, n = [], len(ids) - model.config.is_encoder_decoder * (1 + n_answer)
    for some in masks.split(16):
        tokens = ids.expand(len(some), -1)
        decoder = dict(decoder_input_ids=tokens[:, n:]) if n < len(ids) else {}
        out = model(input_ids=tokens[:, :n], attention_mask=some[:, :n], **decoder)
        values += read(out.logits).tolist()
    return dict(enumerate(values))


def log_prob(ids):
    "Return a function from logits to the log-probability of the last tokens."
    n, index = len(ids), torch.tensor(ids)

    def read(logits):
        rows = logits[:, -n - 1 : -1].log_softmax(-1)
        return rows.gather(-1, index.expand(len(rows), n)[..., None])[..., 0].sum(1)

    return read


def smallest(table, n, removes):
    "Return the size of the smallest set in a table of all subsets."
    whole = 2**n - 1
    total = table[whole] - table[0]
    enough = []
    for units, value in table.items():
        kept = (value - table[0]) / total
        if (1 - kept if removes else kept) >= SHARE:
            enough.append((whole ^ units if removes else units).bit_count())
    return min(enough)


def is_enough(table, n, found, places, removes):
    "Return True if the table by hand says that a set has the share, up to rounding."
    units = sum(1 << places.index(i) for i in found)
    whole = 2**n - 1
    kept = table[whole ^ units if removes else units]
    share = (kept - table[0]) / (table[whole] - table[0])
    return (1 - share if removes else share) >= SHARE - 1e-3


def compared(table, n, places, a, label):
    "Return what a record's sets are beside a table of all subsets."
    row = {f'{label}_passes': a.info['sets']['passes']}
    for name, removes in (('sufficient', False), ('necessary', True)):
        found = getattr(a, name)
        row[f'{label}_{name}'] = len(found)
        row[f'{label}_{name}_is_smallest'] = len(found) == smallest(table, n, removes)
        row[f'{label}_{name}_holds'] = is_enough(table, n, found, places, removes)
    return row


def ranked_size(table, n, removes):
    """Return the size of the smallest head of the LOO ranking that has the share, the
    rationale of ERASER's sufficiency or comprehensiveness (DeYoung et al. 2020).
    """
    whole = 2**n - 1
    total = table[whole] - table[0]
    loo = [(table[whole] - table[whole ^ 1 << i]) / total for i in range(n)]
    units = 0
    for size, i in enumerate(sorted(range(n), key=lambda i: -loo[i]), 1):
        units |= 1 << i
        kept = (table[whole ^ units if removes else units] - table[0]) / total
        if (1 - kept if removes else kept) >= SHARE:
            return size


def backward_selection(table, n):
    """Return size and passes of the sufficient input subset of Carter et al. (2019):
    units are removed one by one, the one that f misses least first, and come back in
    reverse order until f has the share.
    """
    total = table[2**n - 1] - table[0]
    units, removed = 2**n - 1, []
    while units:
        some = [1 << i for i in range(n) if units >> i & 1]
        removed.append(max(some, key=lambda bit: table[units ^ bit] / total))
        units ^= removed[-1]
    for bit in reversed(removed):
        units |= bit
        if (table[units] - table[0]) / total >= SHARE:
            return units.bit_count(), n * (n + 1) // 2


def peers(table, n):
    "Return sizes and passes of sets by other searches, on a table of all subsets."
    size, passes = backward_selection(table, n)
    least = {removes: smallest(table, n, removes) for removes in (False, True)}
    ranked = {removes: ranked_size(table, n, removes) for removes in (False, True)}
    return dict(
        smallest_sufficient=least[False],
        smallest_necessary=least[True],
        backward_sufficient=size,
        backward_passes=passes,
        ranked_sufficient=ranked[False],
        ranked_necessary=ranked[True],
    )


def greedy(table, texts, passes):
    """Return (passes, {name: size}) of the search without all subsets, on a table: a
    row counts as a pass, and pairs come from similar texts alone.
    """
    n, worth = len(texts), sets_module.word_overlap(texts)
    pairs = sorted(itertools.combinations(range(n), 2), key=lambda p: -worth[p])

    def read(kept):
        keys = [sum(1 << i for i in row.nonzero()[:, 0].tolist()) for row in kept]
        return torch.tensor([table[key] for key in keys]).double(), len(keys)

    limit, sets_module.ALL_SUBSETS = sets_module.ALL_SUBSETS, 0
    try:
        subsets = sets_module.Subsets(read, n, SHARE, passes)
        some = [1 << i | 1 << j for i, j in pairs[:n]] or [1]
        sets = sets_module.find_sets(subsets, lambda: some)
    finally:
        sets_module.ALL_SUBSETS = limit
    return sets['passes'], {k: len(sets[k]) for k in ('sufficient', 'necessary')}


def contexts(name, data, limit):
    knows_xquad = name != 't5'
    if knows_xquad:
        xquad = load_dataset(f'{data}/xquad-en', split='validation')
        model, tokenizer = load_demo(name)
    else:
        model, tokenizer = small_t5()
        print(accuracy(model, tokenizer))
    for kind, i in itertools.product(KINDS, range(limit)):
        is_made = kind in ('paraphrases', 'halves') or i >= limit / 2
        is_made |= not knows_xquad
        made = by_hand(kind, i) if is_made else from_xquad(xquad, kind, i)
        passages, question, answer = made
        given = (model, tokenizer, passages, answer, question)

        a = attribute_context(*given, sets=SHARE)
        row = dict(study='contexts', model=name, kind=kind, made=is_made)
        places, number = list(range(len(a))), torch.tensor(a.info['unit_of_token'])
        ids = tokenizer(answer, add_special_tokens=False)['input_ids']
        if a.input_ids[-len(ids) :].tolist() != ids:  # one space before it
            ids = tokenizer(f' {answer}', add_special_tokens=False)['input_ids']
        assert a.input_ids[-len(ids) :].tolist() == ids
        masks = all_masks(number, places)
        table = all_removals(model, a.input_ids, masks, log_prob(ids), len(ids))
        row |= compared(table, len(a), places, a, 'all') | peers(table, len(a))
        for passes in (None, 16):
            label = f'greedy{passes or ""}'
            row[f'{label}_passes'], sizes = greedy(table, passages, passes)
            for kind_of_set, size in sizes.items():
                least = smallest(table, len(a), kind_of_set == 'necessary')
                row[f'{label}_{kind_of_set}_is_smallest'] = size == least
        largest = float(a.scores.abs().max())
        row |= dict(n=len(a), total=a.total_effect, largest=largest, f=a.logit)
        yield row | dict(is_redundant=a.is_redundant)


def select(target, logits):
    return logits[:, target]


def words(name, data, limit):
    model, tokenizer = load_demo(name)
    texts = load_texts('sst2', data, seed=0).texts
    texts = [t for t in texts if 9 <= len(t.split()) <= 11][:limit]
    for text in texts:
        row = dict(study='words', model=name)
        for label, passes in (('greedy', 300), ('greedy100', 100), ('greedy30', 30)):
            how = dict(units='word', sets=SHARE, passes=passes)
            (a,) = explain(model, tokenizer, text, **how)
            places = a.is_content.nonzero()[:, 0].tolist()
            if label == 'greedy':
                if not 9 <= len(places) <= 11:
                    break
                number = torch.tensor(a.info['unit_of_token'])
                masks = all_masks(number, places)
                read = partial(select, a.target)
                table = all_removals(model, a.input_ids, masks, read)
            row |= compared(table, len(places), places, a, label)
        else:
            row |= peers(table, len(places))
            yield row | dict(n=len(places), total=a.total_effect)


def redundant(name, data, limit):
    model, tokenizer = load_demo(name)
    texts = load_texts('sst2', data, seed=0).texts[:limit]
    for text in texts:
        (a,) = explain(model, tokenizer, text, method='loo', units='word')
        places = a.is_content.nonzero()[:, 0].tolist()
        number = torch.tensor(a.info['unit_of_token'])
        pairs = list(itertools.combinations(places, 2))
        if not pairs:
            continue
        masks = torch.stack([~torch.isin(number, torch.tensor(p)) for p in pairs])
        read = partial(select, a.target)
        values = [*all_removals(model, a.input_ids, masks.long(), read).values()]
        lost, total = a.logit - np.array(values), a.total_effect
        sums = np.array([float(a.scores[i] + a.scores[j]) for i, j in pairs])
        scores = a.scores[a.is_content]
        yield dict(
            study='redundant',
            model=name,
            n=len(places),
            f=a.logit,
            total=total,
            is_redundant=a.is_redundant,
            largest=float(scores.abs().max() / abs(total)),
            sum=float(scores.sum() / total),
            pair=float((lost / total).max()),
            excess=float(((lost - sums) / total).max()),
        )


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('study', choices=('contexts', 'words', 'redundant'))
    p.add_argument('model')
    p.add_argument('--data', default='../shared/data')
    p.add_argument('--limit', type=int)
    p.add_argument('--out', default=str(OUT))
    args = p.parse_args()
    limit = args.limit or dict(contexts=8, words=20, redundant=200)[args.study]
    path, rows = Path(args.out), []
    if path.exists():
        rows = json.loads(path.read_text())['rows']
    key = (args.study, args.model)
    rows = [r for r in rows if (r['study'], r['model']) != key]
    for row in globals()[args.study](args.model, args.data, limit):
        rows.append(row)
        print(row, flush=True)
        lines = ',\n'.join(json.dumps(r) for r in rows)
        head = json.dumps(versions())
        write_text_atomic(path, f'{{"versions": {head}, "rows": [\n{lines}\n]}}\n')


if __name__ == '__main__':
    main()
