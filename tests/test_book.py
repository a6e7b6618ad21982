"""The book: sixteen chapters on one path, short, each with its claim, the number
that decides it and the paper's number beside ours at its end.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pages import printed, sources
from tracked import tracked

from lrp_loo.records.results import read_json
from lrp_loo.paper.ledger import NOT_HERE, SENTENCES, WORDS, entry_name

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = {p.stem: p for p in tracked('nbs/[0-9]*.ipynb')}
MOST_WORDS = 11_500
MOST_LINES = 2_350  # of code
IN_ONE = dict(words=1_300, lines=235)  # of a chapter
NEXT = r'Next: \[[^\]]+\]\((?:\.\./|guide/)?(\w+)\.(?:ipynb|md)[^)]*\)'


@cache
def read(path):
    return read_json(ROOT / path)


def cells_of(name, kind):
    "The sources of a chapter's cells of that kind."
    return sources(CHAPTERS[name], kind)


def words(name):
    return len(' '.join(cells_of(name, 'markdown')).split())


def code_lines(name):
    lines = '\n'.join(cells_of(name, 'code')).splitlines()
    return sum(bool(line.strip()) for line in lines)


def test_sixteen_short_chapters():
    assert [name[:3] for name in CHAPTERS] == [f'{k:02}_' for k in range(16)]
    for name in CHAPTERS:
        assert words(name) <= IN_ONE['words'], name
        assert code_lines(name) <= IN_ONE['lines'], name
    assert sum(map(words, CHAPTERS)) <= MOST_WORDS
    assert sum(map(code_lines, CHAPTERS)) <= MOST_LINES


def test_each_chapter_ends_with_the_next_one():
    names = list(CHAPTERS)
    for name, after in zip(names, names[1:]):
        assert re.findall(NEXT, '\n'.join(cells_of(name, 'markdown'))) == [after]
        # in the last words of its last cell
        assert re.search(NEXT, cells_of(name, 'markdown')[-1][-400:])


@pytest.mark.parametrize('name', CHAPTERS)
def test_a_chapter_ends_with_the_paper_beside_us(name):
    shown = cells_of(name, 'markdown') + printed(CHAPTERS[name], 'text/markdown')
    heading = '| the paper says |' if name == '00_question' else '| claim |'
    table = next(text for text in shown if heading in text)
    if name != '00_question':  # which has no number of the paper's
        lines = table[table.index(heading) :].splitlines()[2:]
        verdicts = {re.search(r'\w[\w ]*\w', x.split('|')[4])[0] for x in lines}
        assert verdicts <= {*WORDS.values(), NOT_HERE}


# The number of a chapter's claim, computed again from results/; the other chapters'
# claims are asserted in their cells.


def in_ledger(name):
    (entry,) = (e for e in read('results/claims.json') if entry_name(e) == name)
    return f'{entry["mean"]:+.2f}'


def of_sst2(claim):
    return [in_ledger(f'{claim}, {place}') for place in SENTENCES.values()]


def curves_of_loo():
    loos = [row['methods']['loo'] for row in read('results/minilm/sst2.json')['rows']]
    up, down = (np.mean([x[k] for x in loos]) for k in ('lerf', 'morf'))
    return f'{up:.2f}, {down:.2f}, {up - down:.2f}'.replace('-', '−')


def on_the_vit():
    "CP-LRP minus AttnLRP, a removed patch hidden and painted grey."
    entry = 'cp-above-attn, vit-mnist, mnist test, {}'.format
    return [in_ledger(entry(removal)) for removal in ('attention_mask', 'grey_patch')]


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
    '04': (
        '+0.04 [+0.03, +0.06], n = 80',
        lambda: in_ledger(
            'brackets-differ, linear attention, 16 settings, mnist test, zero_pixel'
        ),
        '+0.04',
    ),
    '07': ('2.91, −0.73, 3.64', curves_of_loo, '2.91, −0.73, 3.64'),
    '08': (
        '−0.03 [−0.05, −0.02] on an encoder of six layers',
        lambda: of_sst2('cp-above-attn'),
        ['-0.03', '-0.06', '+0.00'],
    ),
    '09': (
        'the best single layer gains hundredths',
        lambda: of_sst2('best-single') + of_sst2('upper-half'),
        ['+0.01', '+0.00', '+0.01', '-0.02', '-0.01', '+0.01'],
    ),
    '11': ("minus AttnLRP's is −0.11", on_the_vit, ['-0.11', '+0.12']),
    '13': (
        '+0.10 [+0.08, +0.12], n = 397',
        lambda: of_sst2('removal-above-better'),
        ['+0.10', '+0.12', '+0.18'],
    ),
    '14': ('nearer to LOO than every peer', lambda: least_lead() > 0, True),
    '15': (
        'at seven passes r is 0.99 [0.99, 0.99] on MiniLM (n = 60), 0.97',
        lambda: auto_at(7),
        ['0.99', '0.97', '0.98'],
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
