"""The book: sixteen chapters on one path, short, each with its claim, the number
that decides it and the file it comes from, and the paper beside us at its end.
"""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import printed, sources
from tracked import tracked

from lrp_lab.ablation import ablation_effects
from lrp_lab.heads import judged
from lrp_loo import attn_lrp, cp_lrp, explain, load_demo, lrp_rules
from lrp_loo.lrp.rules import product_naive, product_rule, relevance
from lrp_loo.paper.beside import SENTENCES
from lrp_loo.paper.ledger import entry_name
from lrp_loo.paper.scalar import scalar_relevance
from lrp_loo.paper.softmax_row import attention_row
from lrp_loo.stats import pearson

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = {p.stem: p for p in tracked('nbs/[0-9]*.ipynb')}
LAB = {p.stem: p for p in tracked('research/nbs/[0-9]*.ipynb')}
EVERY = CHAPTERS | LAB
MOST_WORDS = 15_000
MOST_LINES = 3_000  # of code
IN_ONE = dict(words=1_300, lines=200)  # of a chapter
NEXT = r'Next: \[[^\]]+\]\((?:\.\./|guide/)?(\w+)\.(?:ipynb|md)[^)]*\)'
SENTENCE = 'A gripping, funny film that never once talks down to us.'
MASK = 'attention_mask'


@cache
def read(path):
    return json.loads((ROOT / path).read_text(encoding='utf-8'))


def cells_of(name, kind):
    "The sources of a chapter's cells of that kind."
    return sources(EVERY[name], kind)


def words(name):
    return len(' '.join(cells_of(name, 'markdown')).split())


def code_lines(name):
    "Of a chapter, without blank ones."
    lines = '\n'.join(cells_of(name, 'code')).splitlines()
    return sum(bool(line.strip()) for line in lines)


def next_of(name):
    "The chapters that a chapter sends its reader to."
    return re.findall(NEXT, '\n'.join(cells_of(name, 'markdown')))


def test_the_book_has_sixteen_chapters():
    assert [name[:3] for name in CHAPTERS] == [f'{k:02}_' for k in range(16)]


@pytest.mark.parametrize('name', EVERY)
def test_a_chapter_ends_with_what_to_read_next(name):
    assert len(next_of(name)) == 1
    # in the last words of its last cell
    assert re.search(NEXT, cells_of(name, 'markdown')[-1][-400:])


@pytest.mark.parametrize('first, part', [('00_question', CHAPTERS), ('00_run', LAB)])
def test_following_next_visits_every_chapter_once(first, part):
    name = first
    visited = []
    # a page may be named that is no chapter: there the book ends
    while name in part and name not in visited:
        visited.append(name)
        name = next_of(name)[0]
    assert visited == list(part)


@pytest.mark.parametrize('name', LAB)
def test_a_page_of_the_lab_is_read_in_one_sitting(name):
    assert words(name) <= 1500


@pytest.mark.parametrize('name', CHAPTERS)
def test_a_chapter_is_short(name):
    assert words(name) <= IN_ONE['words']
    assert code_lines(name) <= IN_ONE['lines']


def test_the_book_is_short():
    assert sum(map(words, CHAPTERS)) <= MOST_WORDS
    assert sum(map(code_lines, CHAPTERS)) <= MOST_LINES


@pytest.mark.parametrize(
    'number', ['00', '05', '06', '07', '09', '10', '11', '12', '15']
)
def test_one_sentence_is_read_through_the_book(number):
    (name,) = [name for name in CHAPTERS if name.startswith(f'{number}_')]
    assert SENTENCE in '\n'.join(cells_of(name, 'code'))


@pytest.mark.parametrize('number', ['00', '01', '04', '15'])
def test_one_digit_is_read_through_the_book(number):
    (name,) = [name for name in CHAPTERS if name.startswith(f'{number}_')]
    assert '1698' in '\n'.join(cells_of(name, 'code'))


@pytest.mark.parametrize('name', CHAPTERS)
def test_a_chapter_ends_with_the_paper_beside_us(name):
    shown = cells_of(name, 'markdown') + printed(CHAPTERS[name], 'text/markdown')
    table = next(text for text in shown if '| the paper says |' in text)
    if name != '00_question':  # which has no number of the paper's
        lines = table[table.index('| the paper says |') :].splitlines()[2:]
        column = 3
        verdicts = {
            re.sub(r'\W*(\w+).*', r'\1', x.split('|')[column + 1]) for x in lines
        }
        assert verdicts <= {'holds', 'fails', 'undecided'}


# The number of each chapter's claim, computed again.


def in_ledger(name):
    (entry,) = (e for e in read('results/claims.json') if entry_name(e) == name)
    return f'{entry["mean"]:+.2f}'


def of_sst2(claim):
    return [in_ledger(f'{claim}, {place}') for place in SENTENCES.values()]


def miniature():
    "r with LOO on four inputs."
    x = torch.tensor([1.0, 2.0, 3.0, 0.5])
    f = x[0] + 2 * x[1] - x[2] * x[3]
    loo = [x[0], 2 * x[1], -x[2] * x[3], -x[2] * x[3]]
    lrp = [x[0], 2 * x[1], -x[2] * x[3] / 2, -x[2] * x[3] / 2]
    assert sum(lrp) == f
    return f'{float(pearson(torch.stack(lrp), torch.stack(loo))):.3f}'


def two_maps():
    maps = [scalar_relevance((2, 3, 4), b).tolist() for b in (((0, 1), 2), (0, (1, 2)))]
    return [str(m) for m in maps]


def fast_is_naive():
    "Equations 3 as sums and as half a gradient."
    torch.manual_seed(0)
    A, V, R = (torch.rand(n, m).double() + 0.1 for n, m in ((4, 3), (3, 5), (4, 5)))
    A, V = A.requires_grad_(), V.requires_grad_()
    fast = relevance(product_rule(torch.matmul, A, V), [A, V], R)
    naive = product_naive(A.detach(), V.detach(), R, eps=1e-12)
    return all(torch.allclose(f, n, atol=1e-6) for f, n in zip(fast, naive))


def one_row():
    "The largest distance of the softmax rule from LOO times its factor."
    z = torch.linspace(-1, 2, 5, dtype=torch.double)
    row = attention_row(z, torch.tensor([1.0, -2, 3, 0, 1], dtype=torch.double))
    by_loo = z * (1 - row['A']) * row['loo'] / 2
    return float((row['attn_lrp_z'] - by_loo).abs().max()) < 1e-8


def in_two_lines():
    "Relevance that arrives at the last layer's input, and the logit."
    model, tokenizer = load_demo('sst2')
    model = model.double()
    enc = tokenizer(SENTENCE, return_tensors='pt')
    out = model(**enc, output_hidden_states=True)
    found = []
    for rules in (attn_lrp(), cp_lrp()):
        x = out.hidden_states[5].detach().requires_grad_()
        with lrp_rules(model, rules):
            h = model.bert.encoder.layer[5](x)
            logit = model.classifier(model.bert.pooler(h))[0, out.logits.argmax()]
        (g,) = torch.autograd.grad(logit, x)
        found.append(f'{float((x * g).sum().detach()):.2f}')
    return [*found, f'{float(logit.detach()):.2f}']


def without_never():
    "LOO of one word in two meanings of removed."
    model, tokenizer = load_demo('sst2')
    ways = (MASK, 'delete')
    maps = (
        explain(model, tokenizer, SENTENCE, method='loo', removal=w)[0] for w in ways
    )
    return [f'{a.scores[a.tokens.index("that")]:.2f}' for a in maps]


def curves_of_loo():
    loos = [row['methods']['loo'] for row in read('results/minilm/sst2.json')['rows']]
    up, down = (np.mean([x[k] for x in loos]) for k in ('lerf', 'morf'))
    return f'{up:.2f}, {down:.2f}, {up - down:.2f}'.replace('-', '−')


def norm_rule():
    effects = ablation_effects(read('research/results/studies/ablation-sst2.json'))
    main = effects.set_index(['kind', 'rule'])
    return f"{main.loc[('main', 'norm'), 'mean']:.2f}"


def on_the_vit():
    "CP-LRP minus AttnLRP, a removed patch hidden and painted grey."
    entry = 'cp-above-attn, vit-mnist, mnist test, {}'.format
    return [in_ledger(entry(removal)) for removal in (MASK, 'grey_patch')]


def largest_of_heads():
    found = []
    for part in ('sst2', 'mpnet', 'smollm2', 'decoder', 'vit'):
        d = read(f'research/results/studies/heads-{part}.json')
        by_claim = judged(d['rows'], d['config']['model']['layers'])
        found += [
            by_claim[f'{claim}-hurt-fixed'] for claim in ('flat-heads', 'large-logits')
        ]
    top = max(found, key=lambda x: x['mean'])
    return f'{top["mean"]:+.2f} [{top["low"]:+.2f}, {top["high"]:+.2f}]'


def auto_at(passes):
    found = {
        row['model']: f'{row["r"]:.2f}'
        for row in read('results/frontier.json')['rows']
        if (row['method'].split(', ')[0], row['template']) == ('auto', 'all')
        and row['passes'] == passes
        and row['data'].startswith('SST-2')
    }
    return [found[model] for model in ('MiniLM', 'MPNet', 'SmolLM2')]


def least_lead():
    "The smallest mean lead of auto over a peer at the peer's cost."
    peers = ('feature ablation', 'ContextCite', 'KernelSHAP', 'AttriBoT', 'FlashTrace')
    return min(
        row['lead']['mean']
        for row in read('results/frontier.json')['rows']
        if row['template'] == 'all'
        and row.get('lead')
        and row['method'].startswith(peers)
    )


CLAIM = {  # chapter → words of its text or outputs, how they come about
    '00': ('r with LOO = 0.996', miniature, '0.996'),
    '01': ('[6.0, 6.0, 12.0]', two_maps, ['[6.0, 6.0, 12.0]', '[12.0, 6.0, 6.0]']),
    '02': ('to 1e-6 in float64', fast_is_naive, True),
    '03': ('½ z (1 − A)', one_row, True),
    '04': (
        '+0.04 [+0.03, +0.06], n = 80',
        lambda: in_ledger(
            'brackets-differ, linear attention, 16 settings, mnist test, zero_pixel'
        ),
        '+0.04',
    ),
    '05': ('4.02 (CP-LRP) and 2.15', in_two_lines, ['2.15', '4.02', '4.06']),
    '06': ("'that': 0.03", without_never, ['0.03', '0.38']),
    '07': ('2.91, −0.73, 3.64', curves_of_loo, '2.91, −0.73, 3.64'),
    '08': (
        'it is 0.03 behind, on one of twelve 0.06',
        lambda: of_sst2('cp-above-attn'),
        ['-0.03', '-0.06', '+0.00'],
    ),
    '09': (
        'the best single layer gains hundredths',
        lambda: of_sst2('best-single') + of_sst2('upper-half'),
        ['+0.01', '+0.00', '+0.01', '-0.02', '-0.01', '+0.01'],
    ),
    '10': ("it adds 0.65 to MiniLM's r", norm_rule, '0.65'),
    '11': ('0.11 below AttnLRP', on_the_vit, ['-0.11', '+0.12']),
    '12': ('+0.04 [-0.03, +0.10]', largest_of_heads, '+0.04 [-0.03, +0.10]'),
    '13': (
        '+0.10 [+0.08, +0.12], n = 397',
        lambda: of_sst2('removal-above-better'),
        ['+0.10', '+0.12', '+0.18'],
    ),
    '14': ('nearer to LOO than every peer', lambda: least_lead() > 0, True),
    '15': (
        'r 0.97, 0.87 and 0.91 at seven passes',
        lambda: auto_at(7),
        ['0.97', '0.87', '0.91'],
    ),
}


@pytest.mark.parametrize('number', CLAIM)
def test_a_chapters_claim_has_its_number(number):
    (name,) = [name for name in CHAPTERS if name.startswith(f'{number}_')]
    said, compute, expected = CLAIM[number]
    texts = cells_of(name, 'markdown') + cells_of(name, 'code')
    texts += printed(CHAPTERS[name], 'text', 'text/plain', 'text/markdown')
    assert said in '\n'.join(texts)
    assert compute() == expected


def test_every_chapter_has_a_claim():
    assert sorted(CLAIM) == [name[:2] for name in CHAPTERS]
