"""A small T5 that answers questions about contexts, trained on contexts made here.

    python research/benchmarks/small_t5.py [--steps N]    trains it and prints its accuracy

No pretrained encoder-decoder can be had from the package index. This one (two layers
each, width 128, a word a token) learns from passages in a drawn order: a fact, the same
fact again or in other words, a fact in two halves, facts of other things, no fact. A
name and a fact that stand together in the contexts of `sets.py`, and each fifth other
pair, are never together in training.
"""

import argparse
import random

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

FACTS = [  # of a thing, its owner: a fact, and the same in other words
    ('museum', 'opens at ten', 'Doors of the {} open at ten.', 'Ada'),
    ('tower', 'closes at six', 'The {} is shut at six.', 'Ben'),
    ('harbour', 'was built by Holm', 'Holm built the {}.', 'Cora'),
    ('market', 'is in Bergen', 'One finds the {} in Bergen.', 'Dan'),
    ('theatre', 'costs four euros', 'Four euros let you into the {}.', 'Eva'),
    ('garden', 'opens in May', 'From May on the {} is open.', 'Finn'),
    ('library', 'holds maps', 'Maps are kept in the {}.', 'Gro'),
    ('bridge', 'was painted red', 'Red is the colour of the {}.', 'Hal'),
]
OTHERS = [
    'Dogs must wait outside.',
    'The ferry leaves twice a day.',
    'Rain is common in the autumn.',
    'Bread is sold at the corner.',
]
UNKNOWN = 'Nobody knows.'
WORDS = dict(pad_token='<pad>', eos_token='</s>', unk_token='<unk>')


def texts(name, i, owner):
    "Return a fact of a thing: the sentence, the same in other words, two halves of it."
    _, fact, other, _ = FACTS[i]
    halves = f'The {name} belongs to {owner}.', f'What {owner} has {fact}.'
    return f'The {name} {fact}.', other.format(name), halves


def is_held_out(k, i):
    "Return True for a thing and a fact that are never together in training."
    return k == i or (3 * k + i) % 5 == 0


def a_context(draw, held_out=False):
    "Return passages, question, answer and kind of a drawn context."
    pairs = [(k, i) for k in range(len(FACTS)) for i in range(len(FACTS))]
    pairs = [pair for pair in pairs if is_held_out(*pair) == held_out]
    k, i = draw.choice(pairs)
    names, owners = ([fact[c] for fact in FACTS] for c in (0, 3))
    owner, *rest = draw.sample(owners, len(owners))
    one, other, halves = texts(names[k], i, owner)
    kind = draw.choice(('one', 'copies', 'paraphrases', 'halves', 'distractor', 'none'))
    passages = dict(
        one=[draw.choice((one, other))],
        copies=[one, one],
        paraphrases=[one, other],
        halves=[*halves],
        distractor=[one, f'The old station is far from the {names[k]}.'],
        none=[],
    )[kind]
    for j in draw.sample(
        range(len(FACTS)), draw.randint(0, 2)
    ):  # facts of other things
        other_k = draw.choice([m for m in range(len(FACTS)) if m != k])
        if not is_held_out(other_k, j):
            one_j, other_j, (_, second) = texts(names[other_k], j, rest[0])
            passages.append(draw.choice((one_j, other_j, second)))
    passages += draw.sample(OTHERS, draw.randint(0, min(4, 5 - len(passages))))
    draw.shuffle(passages)
    answer = UNKNOWN if kind == 'none' else draw.choice((one, f'It {FACTS[i][1]}.'))
    return passages, f'What do you know about the {names[k]}?', answer, kind


def prompt(passages, question):
    return '\n\n'.join([*passages, question]) + '\n'


def word_tokenizer():
    "Return a tokenizer of all words that the contexts have."
    draw = random.Random(0)
    some = [
        a_context(draw, held_out) for held_out in (False, True) for _ in range(2000)
    ]
    whole = ' '.join(f'{prompt(p, q)} {a}' for p, q, a, _ in some)
    split = pre_tokenizers.BertPreTokenizer()
    words = sorted({w for w, _ in split.pre_tokenize_str(whole.lower())})
    vocab = {w: n for n, w in enumerate([*WORDS.values(), *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=WORDS['unk_token']))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = split
    end = WORDS['eos_token']
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f'$A {end}', pair=f'$A $B {end}', special_tokens=[(end, vocab[end])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **WORDS)


def encoded(tokenizer, some):
    "Return the inputs of a batch, its labels among them."
    enc = tokenizer(
        [prompt(p, q) for p, q, *_ in some], padding=True, return_tensors='pt'
    )
    labels = tokenizer([a for *_, a, _ in some], padding=True, return_tensors='pt')
    labels = labels['input_ids'].masked_fill(labels['attention_mask'] == 0, -100)
    keep = {name: enc[name] for name in ('input_ids', 'attention_mask')}
    return keep | dict(labels=labels)


@torch.no_grad()
def accuracy(model, tokenizer, n=240, seed=1):
    "Return the share of answers with the fact, by kind, of held-out pairs."
    draw = random.Random(seed)
    right = {}
    some = [a_context(draw, held_out=True) for _ in range(n)]
    enc = encoded(tokenizer, some)
    enc.pop('labels')
    out = model.generate(**enc, do_sample=False, max_new_tokens=12)
    for ids, (_, question, answer, kind) in zip(out, some):
        own = tokenizer.decode(ids, skip_special_tokens=True).replace(' .', '.')
        thing = question.split()[-1][:-1]
        fact = answer.lower().removeprefix(f'the {thing} ').removeprefix('it ')
        wanted = {fact, f'it {fact}', f'the {thing} {fact}'}
        right.setdefault(kind, []).append(own.strip() in wanted)
    return {kind: sum(x) / len(x) for kind, x in sorted(right.items())}


def small_t5(steps=4000, batch_size=32, rate=1e-3, seed=0, report=None):
    "Return the trained model in eval mode, and its tokenizer."
    tokenizer, draw = word_tokenizer(), random.Random(seed)
    torch.manual_seed(seed)
    sizes = dict(d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4)
    config = T5Config(
        vocab_size=len(tokenizer),
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        **sizes,
    )
    model = T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, steps, pct_start=0.1
    )
    for step in range(steps):
        loss = model(
            **encoded(tokenizer, [a_context(draw) for _ in range(batch_size)])
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if report and step % report == 0:
            print(step, round(loss.item(), 3), flush=True)
    return model.eval(), tokenizer


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('--steps', type=int, default=4000)
    args = p.parse_args()
    model, tokenizer = small_t5(args.steps, report=200)
    print(sum(p.numel() for p in model.parameters()), len(tokenizer))
    print(accuracy(model, tokenizer))
