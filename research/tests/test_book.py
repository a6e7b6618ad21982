"""The chapters as a book: one way through all of them, none too long for one
sitting, and a first decade that is short in code, too.
"""

import json
import re

import pytest
from conftest import tracked

CHAPTERS = {p.stem: p for p in tracked('nbs/[0-9]*.ipynb')}
LAB = {p.stem: p for p in tracked('research/nbs/[0-9]*.ipynb')}
EVERY = CHAPTERS | LAB
FIRST_DECADE = [name for name in CHAPTERS if name.startswith('0')]
MOST_WORDS = 1500
MOST_LINES = 250  # of code, in a chapter of the first decade
NEXT = r"Next: \[[^\]]+\]\((?:\.\./|guide/)?(\w+)\.(?:ipynb|md)[^)]*\)"
SENTENCE = 'A gripping, funny film that never once talks down to us.'


def cells_of(name, kind):
    "The sources of a chapter's cells of that kind."
    cells = json.loads(EVERY[name].read_text(encoding='utf-8'))['cells']
    return [''.join(c['source']) for c in cells if c['cell_type'] == kind]


def next_of(name):
    "The chapters that a chapter sends its reader to."
    return re.findall(NEXT, '\n'.join(cells_of(name, 'markdown')))


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


@pytest.mark.parametrize('name', EVERY)
def test_a_chapter_is_read_in_one_sitting(name):
    words = ' '.join(cells_of(name, 'markdown')).split()
    assert len(words) <= MOST_WORDS


def code_lines(name):
    "Of a chapter, without blank ones."
    lines = '\n'.join(cells_of(name, 'code')).splitlines()
    return sum(bool(line.strip()) for line in lines)


@pytest.mark.parametrize('name', FIRST_DECADE)
def test_a_chapter_of_the_first_decade_has_little_code(name):
    assert code_lines(name) <= MOST_LINES


@pytest.mark.parametrize('name', [name for name in CHAPTERS if name[0] == '1'])
def test_a_chapter_beyond_the_paper_is_short(name):
    assert len(' '.join(cells_of(name, 'markdown')).split()) <= 1000
    assert code_lines(name) <= 200


def test_the_first_decade_has_ten_chapters():
    # 09a is a second page of 09
    whole = [name[:3] for name in FIRST_DECADE if name[2] == '_']
    assert whole == [f'0{k}_' for k in range(10)]


@pytest.mark.parametrize('number', ['00', '04', '05', '06', '07', '08', '09'])
def test_one_sentence_is_read_from_the_question_to_the_verdict(number):
    (name,) = [name for name in FIRST_DECADE if name.startswith(f'{number}_')]
    assert SENTENCE in '\n'.join(cells_of(name, 'code'))


@pytest.mark.parametrize('number', ['00', '01', '03', '09'])
def test_one_digit_is_read_from_the_question_to_the_verdict(number):
    (name,) = [name for name in FIRST_DECADE if name.startswith(f'{number}_')]
    assert '1698' in '\n'.join(cells_of(name, 'code'))
