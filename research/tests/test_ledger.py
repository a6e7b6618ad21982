"The ledger is what its rows say; no sentence says otherwise."

import json
import re

import pytest
from conftest import LAB, ROOT, tracked

from lrp_lab.frontier import write_frontier
from lrp_lab.run import every_study, kept_folders
from lrp_loo.paper.ledger import (
    ARRIVED,
    entry_name,
    file_entries,
    ledger,
    ledger_notes,
    ledger_table,
    verdicts_by_model,
)
from lrp_loo.paper.reproduce import entries_by_study
from lrp_loo.trust.results import read_results

KEPT = ROOT / 'results' / 'claims.json'
LINK = re.compile(r'\[([^\]]+)\]\([^)\s]*results/claims\.json "([^"]+)"\)')
WORDS = ('holds', 'reversed', 'equal', 'undecided', 'withdrawn')
NUMBERS = '82_in_numbers.ipynb'
PROMPT = 'paper_ledger.ipynb#About-a-prompt'  # says what † means


@pytest.fixture(scope='module')
def kept():
    return json.loads(KEPT.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def computed(kept_results):
    folders = [kept_results / path.name for path in kept_folders()]
    return ledger(folders, entries_by_study(every_study()))


def sentences():
    "File → its text, of everything a reader reads."
    found = {'README.md': (ROOT / 'README.md').read_text(encoding='utf-8')}
    for path in tracked('nbs/**/*.ipynb', 'research/nbs/*.ipynb'):
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        texts = [''.join(c['source']) for c in cells]
        found[path.name] = '\n'.join(texts)
    return found


def test_the_kept_ledger_has_an_entry_for_every_question(kept, computed):
    assert list(map(entry_name, kept)) == list(map(entry_name, computed))


def test_the_kept_verdicts_are_those_of_the_rows(kept, computed):
    assert [e['verdict'] for e in kept] == [e['verdict'] for e in computed]


def test_the_kept_frontier_is_what_the_rows_say(tmp_path):
    write_frontier(LAB / 'results' / 'studies', tmp_path / 'frontier.json')
    now, then = (
        json.loads((folder / 'frontier.json').read_text(encoding='utf-8'))
        for folder in (tmp_path, ROOT / 'results')
    )
    assert now['measured'] == then['measured']
    for key in ('rows', 'tried'):
        assert len(now[key]) == len(then[key])
        for a, b in zip(now[key], then[key]):
            assert {k: v for k, v in a.items() if isinstance(v, str)} == {
                k: v for k, v in b.items() if isinstance(v, str)
            }
            assert a['r'] == pytest.approx(b['r'], rel=1e-3)


@pytest.mark.parametrize('number', ['mean', 'low', 'high', 'p', 'p_corrected'])
def test_the_kept_numbers_are_those_of_the_rows(kept, computed, number):
    # five digits are kept
    found = [e[number] for e in computed]
    assert [e[number] for e in kept] == pytest.approx(found, rel=1e-4)


def test_no_question_is_answered_twice(kept):
    names = list(map(entry_name, kept))
    assert len(set(names)) == len(names)


def test_no_sentence_contradicts_the_ledger(kept):
    verdicts = {entry_name(e): e['verdict'] for e in kept}
    wrong = [
        (file, said, name, verdicts.get(name, 'no such entry'))
        for file, text in sentences().items()
        for said, name in LINK.findall(text)
        if verdicts.get(name) != said
    ]
    assert not wrong


NUMBER = re.compile(LINK.pattern + r' \(([+−]\d\.\d\d)\)')


def test_the_readme_has_its_numbers_from_the_ledger(kept):
    means = {entry_name(e): f'{e["mean"]:+.2f}'.replace('-', '−') for e in kept}
    said = NUMBER.findall(sentences()['README.md'])
    assert len(said) > 10
    assert [(n, x) for _, n, x in said if means[n] != x] == []


def test_the_readme_has_its_verdicts_from_the_ledger():
    readme = sentences()['README.md']
    start = readme.index('## What holds')
    section = readme[start : readme.index('\n## ', start + 3)]
    said = [word for word, _ in LINK.findall(section)]
    assert set(said) <= set(WORDS)
    assert len(said) >= 8


@pytest.mark.parametrize('part', ['planted', 'imdb'])
def test_contexts_that_were_set_aside_are_in_no_claim(part):
    path = LAB / 'results' / 'studies' / f'contexts-{part}.json'
    results = read_results(path)
    asked = sum(bool(row['methods']) for row in results['rows'])
    assert 0 < asked < len(results['rows'])
    assert {entry['n'] for entry in file_entries(results)} == {asked}


# what is about a prompt


def files_over_prompts(key):
    "Those whose rows were asked in one prompt ('prompt'), in several ('prompts')."
    found = set()
    for path in tracked('results/*/*.json', 'research/results/studies/*.json'):
        content = json.loads(path.read_text(encoding='utf-8'))
        config = content.get('config', {}) if isinstance(content, dict) else {}
        if config.get(key):
            found.add(f'{path.parent.name}/{path.stem}')
    return found


def test_every_entry_over_the_tokens_of_a_prompt_says_so(kept):
    over_all = {e['file'] for e in kept if e['over'] == 'all'}
    in_one, in_several = files_over_prompts('prompt'), files_over_prompts('prompts')
    assert over_all & in_several
    assert over_all <= in_one | in_several
    # of one prompt nothing is said of the text
    assert not [e for e in kept if e['file'] in in_one and e['over'] != 'all']
    own = {e['file'] for e in kept if e['over'] == 'content'}
    assert over_all & in_several <= own


def test_a_verdict_about_a_prompt_is_marked_and_no_other(kept):
    claims = ['cp-above-attn', 'weighed-above-better']

    def marked(entries):
        said = verdicts_by_model(entries, claims)
        return said.apply(lambda column: column.str.contains('†').tolist())

    # over the text where there is such an entry, and then without a mark
    assert not marked(kept).to_numpy().any()
    # as if weights had been asked of a prompt alone
    weighed = [e for e in kept if e['claim'] == 'weighed-above-better']
    of_prompts = [e for e in kept if e not in weighed or e['over'] == 'all']
    alone = marked(of_prompts)
    assert alone.pop('SmolLM2, 30 layers').tolist() == [False, True]
    assert not alone.to_numpy().any()
    assert {m for m, *_ in ledger_table(kept).columns if m.endswith('†')} == {
        'smollm2-135m-instruct †'
    }


def test_what_a_mark_means_stands_below_only_where_there_is_one(kept):
    prompt, few, off = ledger_notes(kept)
    assert 'r counts every token of the template' in prompt
    (line,) = ledger_notes([e for e in kept if e['model'] == 'mpnet-sst2'])
    assert line.startswith('A verdict on Integrated Gradients is withdrawn unless')
    cells = json.loads((LAB / 'nbs' / NUMBERS).read_text(encoding='utf-8'))['cells']
    outputs = [o for c in cells for o in c.get('outputs', ())]
    shown = '\n'.join(''.join(o['data'].get('text/markdown', '')) for o in outputs)
    assert prompt in shown and few in shown and off in shown


# pages that say it themselves, or whose numbers are of a text's own tokens
APART = ('README.md', 'index.ipynb', 'paper_ledger.ipynb')
APART += ('tasks_pairs.ipynb', '69b_found.ipynb')


def test_a_chapter_with_numbers_of_smollm2_points_to_what_they_are_about():
    numbers = re.compile(r'SmolLM2.*\d\.\d\d|\d\.\d\d.*SmolLM2')
    read = {p: t for p, t in sentences().items() if p not in APART}
    said = [page for page, text in read.items() if numbers.search(text)]
    assert len(said) > 7
    assert [page for page in said if PROMPT not in read[page]] == []


def test_a_chapter_with_a_verdict_over_a_prompt_points_to_what_it_is_about(kept):
    over = {entry_name(e) for e in kept if e['over'] == 'all'}
    read = {p: t for p, t in sentences().items() if p not in APART}
    said = [
        page
        for page, text in read.items()
        if any(name in over for _, name in LINK.findall(text))
    ]
    assert said
    assert [page for page in said if PROMPT not in read[page]] == []


def test_a_verdict_over_a_prompt_is_marked_beside_the_numbers(kept):
    over = {entry_name(e) for e in kept if e['over'] == 'all'}
    lines = sentences()[NUMBERS].splitlines()
    said = [x for x in lines if any(n in over for _, n in LINK.findall(x))]
    assert said
    assert [line for line in said if '†' not in line] == []


# maps that have arrived, and those that have not


def test_no_verdict_rests_on_integrated_gradients_that_have_not_arrived(kept):
    asked = [e for e in kept if e['claim'] == 'attn-above-ig']
    for e in asked:
        assert (e['verdict'] == 'withdrawn') == (e['arrived'] < ARRIVED)
    here = [e for e in asked if e['model'].startswith('smollm2')]
    # of up to 4,096 points: every sum has arrived
    assert {e['file'] for e in here} == {'studies/ig-smollm2'}
    assert {e['arrived'] for e in here} == {1.0}
    verdicts = {e['over']: e['verdict'] for e in here}
    assert verdicts == dict(content='holds', all='undecided')
