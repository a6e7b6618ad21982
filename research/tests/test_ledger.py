"The ledger is what its rows say; no sentence says otherwise."

import json
import re

import pytest
from conftest import LAB, ROOT
from tracked import tracked

from lrp_lab.__main__ import chapter_records, entries_by_study, kept_folders
from lrp_lab.frontier import write_frontier
from lrp_loo.paper.ledger import ARRIVED, entry_name, ledger, ledger_notes

LINK = re.compile(r'\[([^\]]+)\]\([^)\s]*results/claims\.json "([^"]+)"\)')
NUMBER = re.compile(LINK.pattern + r' \((?:ρ )?([+−]\d\.\d\d \[[^)]+)\)')
WORDS = ('holds', 'reversed', 'equal', 'undecided', 'withdrawn')
NUMBERS = '82_in_numbers.ipynb'
PROMPT = 'paper_ledger.ipynb#About-a-prompt'  # explains the mark †


@pytest.fixture(scope='module')
def kept():
    return json.loads((ROOT / 'results' / 'claims.json').read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def computed():
    return ledger(kept_folders(), entries_by_study())


@pytest.fixture(scope='module')
def pages():
    "File → its text, of everything a reader reads."
    found = {'README.md': (ROOT / 'README.md').read_text(encoding='utf-8')}
    for path in tracked('nbs/**/*.ipynb', 'research/nbs/*.ipynb'):
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        found[path.name] = '\n'.join(''.join(c['source']) for c in cells)
    return found


def test_the_kept_ledger_is_what_the_rows_say(kept, computed):
    names = list(map(entry_name, kept))
    assert names == list(map(entry_name, computed))
    assert len(set(names)) == len(names)
    assert [e['verdict'] for e in kept] == [e['verdict'] for e in computed]


@pytest.mark.parametrize('number', ['mean', 'low', 'high', 'p', 'p_corrected'])
def test_the_kept_numbers_are_those_of_the_rows(kept, computed, number):
    found = [e[number] for e in computed]
    assert [e[number] for e in kept] == pytest.approx(found, rel=1e-3, abs=1e-6)


def test_the_kept_frontier_is_what_the_rows_say(tmp_path):
    write_frontier(LAB / 'results' / 'studies', tmp_path / 'frontier.json')
    now, then = (
        json.loads((folder / 'frontier.json').read_text(encoding='utf-8'))
        for folder in (tmp_path, ROOT / 'results')
    )
    assert now['measured'] == then['measured']
    for key in ('rows', 'tried'):
        texts = [
            [{k: v for k, v in row.items() if isinstance(v, str)} for row in of[key]]
            for of in (now, then)
        ]
        assert texts[0] == texts[1]
        r = [[row['r'] for row in of[key]] for of in (now, then)]
        assert r[0] == pytest.approx(r[1], rel=1e-3)


@pytest.fixture(scope='module')
def records(computed):
    return json.loads(json.dumps(chapter_records(computed)))


def of_chapter(name):
    return json.loads((ROOT / 'results' / f'{name}.json').read_text('utf-8'))


def test_the_kept_protocol_is_what_the_rows_say(records):
    now, then = records['protocol'], of_chapter('protocol')
    for name in ('patches', 'verdicts', 'by_removal'):
        assert now[name] == then[name], name
    assert now['references'] == pytest.approx(then['references'], rel=1e-3)
    for name in ('choices', 'by_training'):
        means = [[row['mean'] for row in of[name]] for of in (now, then)]
        assert means[0] == pytest.approx(means[1], rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize('name', ['order', 'causes', 'readings'])
def test_the_rows_that_a_chapter_shows_are_those_of_the_study(name, records):
    assert records[name] == of_chapter(name)


def test_no_sentence_contradicts_the_ledger(kept, pages):
    verdicts = {entry_name(e): e['verdict'] for e in kept}
    wrong = [
        (file, verdict, name, verdicts.get(name, 'no such entry'))
        for file, text in pages.items()
        for verdict, name in LINK.findall(text)
        if verdicts.get(name) != verdict
    ]
    assert not wrong


def test_the_readme_has_its_numbers_and_verdicts_from_the_ledger(kept, pages):
    line = '{mean:+.2f} [{low:+.2f}, {high:+.2f}], n = {n}'.format
    expected = {entry_name(e): line(**e).replace('-', '−') for e in kept}
    numbers = NUMBER.findall(pages['README.md'])
    assert len(numbers) > 10
    assert [(n, x) for _, n, x in numbers if expected[n] != x] == []
    start = pages['README.md'].index('## What holds')
    section = pages['README.md'][start:].split('\n## ')[0]
    assert {word for word, _ in LINK.findall(section)} <= set(WORDS)


# what is about a prompt


def test_what_a_mark_means_stands_below_only_where_there_is_one(kept):
    prompt, *_ = ledger_notes(kept)
    assert 'r counts every token of the template' in prompt
    (line,) = ledger_notes([e for e in kept if e['model'] == 'mpnet-sst2'])
    assert line.startswith('A verdict on Integrated Gradients is withdrawn unless')


def test_a_page_with_a_verdict_over_a_prompt_points_to_what_it_is_about(kept, pages):
    over = {entry_name(e) for e in kept if e['over'] == 'all'}
    apart = ('README.md', 'index.ipynb', 'paper_ledger.ipynb')
    cited = {
        page: [name for _, name in LINK.findall(text) if name in over]
        for page, text in pages.items()
        if page not in apart
    }
    assert any(cited.values())
    wrong = [
        page for page, names in cited.items() if names and PROMPT not in pages[page]
    ]
    assert wrong == []
    lines = pages[NUMBERS].splitlines()
    about = [x for x in lines if any(n in over for _, n in LINK.findall(x))]
    assert about and all('†' in line for line in about)


def test_no_verdict_rests_on_integrated_gradients_that_have_not_arrived(kept):
    entries = [e for e in kept if e['claim'] == 'attn-above-ig']
    for e in entries:
        assert (e['verdict'] == 'withdrawn') == (e['arrived'] < ARRIVED)
    of_smollm2 = [e for e in entries if e['model'].startswith('smollm2')]
    assert {e['file'] for e in of_smollm2} == {'studies/ig-smollm2'}
    assert {e['arrived'] for e in of_smollm2} == {1.0}
