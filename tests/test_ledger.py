"The ledger is what its rows say; no sentence says otherwise."

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ledger import KEPT
from tracked import tracked

from lrp_loo.results import read_results
from lrp_loo.studies.layerwise import picked
from lrp_loo.studies.ledger import (
    CLAIMS,
    Rows,
    entry_name,
    file_entries,
    incomplete_share,
    ledger,
    ledger_notes,
    ledger_table,
    over_lengths,
    verdict_of,
    verdicts_by_model,
)
from lrp_loo.studies.reproduce import entries_by_study

ROOT = Path(__file__).parent.parent
LINK = re.compile(r'\[([^\]]+)\]\([^)\s]*results/claims\.json "([^"]+)"\)')
WORDS = ('holds', 'reversed', 'undecided', 'withdrawn')
PROMPT = '59_ledger.ipynb#About-a-prompt'  # says what † means


@pytest.fixture(scope='module')
def kept():
    return json.loads(KEPT.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def computed(kept_results):
    folders = sorted(kept_results.glob('folder*'))
    return ledger(folders, entries_by_study())


def sentences():
    "File → its text, of everything a reader reads."
    found = {'README.md': (ROOT / 'README.md').read_text(encoding='utf-8')}
    for path in tracked('nbs/*.ipynb'):
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        texts = [''.join(c['source']) for c in cells]
        found[path.name] = '\n'.join(texts)
    return found


def test_the_kept_ledger_has_an_entry_for_every_question(kept, computed):
    assert list(map(entry_name, kept)) == list(map(entry_name, computed))


def test_the_kept_verdicts_are_those_of_the_rows(kept, computed):
    assert [e['verdict'] for e in kept] == [e['verdict'] for e in computed]


@pytest.mark.parametrize('number', ['mean', 'low', 'high', 'p', 'p_holm'])
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


def test_the_readme_has_its_verdicts_from_the_ledger():
    readme = sentences()['README.md']
    start = readme.index('## What holds')
    section = readme[start : readme.index('\n## ', start + 3)]
    said = [word for word, _ in LINK.findall(section)]
    assert set(said) <= set(WORDS)
    assert len(said) >= 8


def test_a_choice_is_measured_on_texts_that_did_not_make_it():
    "Noise alone: the best of many choices gains nothing on other texts."
    draws = np.random.default_rng(0).normal(size=(50, 400))
    best = draws.mean(1).max()
    assert best > 0.08
    assert abs(picked(draws)[0].mean()) < 0.08


def test_a_claim_needs_the_methods_it_speaks_of():
    row = dict(i=0, n_tokens=9, methods=dict(loo=dict(r=1.0, r_sum=1.0)))
    rows = Rows([row] * 4, 2)
    assert [c.key for c in CLAIMS if c.difference(rows) is not None] == []


@pytest.mark.parametrize('part', ['planted', 'imdb'])
def test_contexts_that_were_set_aside_are_in_no_claim(part):
    path = ROOT / 'results' / 'folder' / f'contexts-{part}.json'
    results = read_results(path)
    asked = sum(bool(row['methods']) for row in results['rows'])
    assert 0 < asked < len(results['rows'])
    assert {entry['n'] for entry in file_entries(results)} == {asked}


def texts_of(lengths):
    "Rows of texts with so many tokens."
    return Rows([dict(n_tokens=n) for n in lengths], 2)


def test_the_gain_that_falls_with_length_is_seen():
    lengths = np.arange(10.0, 70.0)
    noise = np.random.default_rng(0).normal(size=60)
    found = over_lengths(-lengths / 10 + noise, texts_of(lengths))
    assert found['mean'] > 0.5
    assert found['low'] > 0
    assert found['p'] < 1e-3


def test_few_texts_say_nothing_about_length():
    assert over_lengths(np.arange(5.0), texts_of(range(5))) is None


def test_every_claim_has_a_key_of_its_own():
    keys = [c.key for c in CLAIMS]
    assert len(set(keys)) == len(keys)


def test_several_trainings_must_agree_for_a_verdict():
    sure = dict(mean=0.1, p=1e-6)
    assert verdict_of(**sure) == 'holds'
    assert verdict_of(**sure, trainings_low=0.02, trainings_high=0.2) == 'holds'
    wide = dict(trainings_low=-0.02, trainings_high=0.2)
    assert verdict_of(**sure, **wide) == 'undecided'
    below = dict(mean=-0.1, p=1e-6)
    apart = dict(trainings_low=-0.2, trainings_high=-0.01)
    assert verdict_of(**below, **apart) == 'reversed'
    assert verdict_of(**below, **wide) == 'undecided'


def test_a_study_with_claims_of_its_own_is_asked_for_them(tmp_path):
    content = dict(config={}, versions={}, rows=[dict(i=0)])
    (tmp_path / 'mine.json').write_text(json.dumps(content))
    about = dict(claim='mine', sentence='', model='m', sha256='', data='d')
    numbers = dict(tokens='', removal='none', mean=1.0, n=9, p=1e-3)
    entries = ledger([tmp_path], {'mine': lambda results: [about | numbers]})
    assert [e['verdict'] for e in entries] == ['holds']
    assert entries[0]['file'] == f'{tmp_path.name}/mine'


# what is about a prompt


def files_over_prompts():
    "Those whose rows hold r over every token of a question around a text."
    found = set()
    for path in tracked('results/folder*/*.json'):
        content = json.loads(path.read_text(encoding='utf-8'))
        if isinstance(content, dict) and 'prompt' in content.get('config', {}):
            found.add(f'{path.parent.name}/{path.stem}')
    # their pairs are of the text's own tokens
    return found - {'folder/interactions-smollm2'}


def test_every_entry_over_the_tokens_of_a_prompt_says_so(kept):
    about_prompts = {e['file'] for e in kept if e['over_prompt']}
    assert about_prompts
    asked = files_over_prompts()
    assert about_prompts <= asked
    assert not [e for e in kept if e['file'] in asked - about_prompts]


def test_a_column_about_a_prompt_is_marked_and_no_other(kept):
    marked = [
        name
        for name in verdicts_by_model(kept, ['cp-above-attn'])
        if name.endswith('†')
    ]
    assert marked == ['SmolLM2, 30 layers †']
    assert {m for m, *_ in ledger_table(kept).columns if m.endswith('†')} == {
        'smollm2-135m-instruct †'
    }


def test_what_a_mark_means_stands_below_only_where_there_is_one(kept):
    prompt, withdrawn = ledger_notes(kept)
    assert 'ten tokens of the template' in prompt
    assert '83 to 97 %' in withdrawn
    assert ledger_notes([e for e in kept if e['model'] == 'mpnet-sst2']) == []
    readme = sentences()['README.md']
    assert prompt in readme and withdrawn in readme


# pages that say it themselves, or whose numbers are of a text's own tokens
APART = ('README.md', 'index.ipynb', '59_ledger.ipynb')
APART += ('45_pairs.ipynb', '69b_found.ipynb')


def test_a_chapter_with_numbers_of_smollm2_points_to_what_they_are_about():
    numbers = re.compile(r'SmolLM2.*\d\.\d\d|\d\.\d\d.*SmolLM2')
    read = {p: t for p, t in sentences().items() if p not in APART}
    said = [page for page, text in read.items() if numbers.search(text)]
    assert len(said) > 7
    assert [page for page in said if PROMPT not in read[page]] == []


def test_a_chapter_with_a_verdict_over_a_prompt_points_to_what_it_is_about(
    kept,
):
    over = {entry_name(e) for e in kept if e['over_prompt']}
    read = {p: t for p, t in sentences().items() if p not in APART}
    said = [
        page
        for page, text in read.items()
        if any(name in over for _, name in LINK.findall(text))
    ]
    assert len(said) > 2
    assert [page for page in said if PROMPT not in read[page]] == []


def test_a_verdict_over_a_prompt_is_marked_on_the_front_page(kept):
    over = {entry_name(e) for e in kept if e['over_prompt']}
    lines = sentences()['README.md'].splitlines()
    said = [x for x in lines if any(n in over for _, n in LINK.findall(x))]
    assert len(said) > 3
    assert [line for line in said if '†' not in line] == []


# maps that have not arrived


def of_ig(*pairs):
    "A row for each pair of f(x) and the error of a map's sum."
    return [
        dict(logit=f, methods=dict(ig=dict(completeness_error=e)))
        for f, e in pairs
    ]


def test_a_map_is_off_where_its_sum_misses_by_more_than_the_output():
    assert incomplete_share(of_ig((1, 0.9), (-1, -0.9)), 'ig') == 0
    assert incomplete_share(of_ig((1, -1.1), (-1, 0.9)), 'ig') == 0.5


def test_a_map_whose_error_was_not_recorded_counts_as_off():
    rows = [dict(logit=9.0, methods=dict(ig=dict(r=0.5)))]
    assert incomplete_share(rows, 'ig') == 1


def test_a_claim_on_maps_that_have_not_arrived_is_withdrawn():
    sure = dict(mean=0.2, p=1e-9)
    assert verdict_of(**sure, incomplete=0.2) == 'holds'
    assert verdict_of(**sure, incomplete=0.6) == 'withdrawn'


def test_no_verdict_on_smollm2_rests_on_integrated_gradients(kept):
    said = {e['verdict'] for e in kept if e['claim'] == 'attn-above-ig'}
    here = [
        e['verdict']
        for e in kept
        if e['claim'] == 'attn-above-ig' and e['model'].startswith('smollm2')
    ]
    assert set(here) == {'withdrawn'} and len(here) == 6
    assert 'holds' in said  # elsewhere the maps have arrived
