"""Every call of bad_input.toml gets the answer that it must get, and the page that says so is
what comes now.
"""

import builtins
import json

import pytest
from bad_input import CASES, RESULTS, World, as_markdown, row

from lrp_loo.core.files import versions


@pytest.fixture(scope='module')
def answers(tmp_path_factory):
    "Each call is made once."
    world = World(tmp_path_factory.mktemp('bad'))
    made = {}

    def answer(case):
        if case.name not in made:
            made[case.name] = row(case, world)
        return made[case.name]

    return answer


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)
def test_answer(answers, case):
    r, wrong = answers(case)
    assert not wrong, f"{wrong}: {r['came']}: {r['message']}"


def test_there_are_many_calls():
    assert len(CASES) >= 80


def test_every_call_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)
def test_what_is_expected_is_an_answer(case):
    if case.expected == 'works':
        assert isinstance(case.must, str)
        return
    # a row without words would take any message
    assert case.must
    assert all(isinstance(words, str) and words for words in case.must)
    if not case.expected.startswith('exit '):
        assert issubclass(getattr(builtins, case.expected), Exception)


@pytest.fixture(scope='module')
def stored():
    return json.loads((RESULTS / 'bad-input.json').read_text(encoding='utf-8'))


def _without_message(r):
    return {k: v for k, v in r.items() if k != 'message'}


def test_the_record_has_the_kind_of_every_answer(answers, stored):
    now = [_without_message(answers(case)[0]) for case in CASES]
    assert [_without_message(r) for r in stored['rows']] == now


def _others(versions):
    "All but our own."
    return {k: v for k, v in versions.items() if k != 'lrp_loo'}


def test_the_record_has_the_words_of_every_answer(answers, stored):
    "Where the libraries that the words may come from are the same."
    if _others(stored['versions']) != _others(versions()):
        pytest.skip('the record was made with other versions of libraries')
    assert stored['rows'] == [answers(case)[0] for case in CASES]


def test_the_page_is_the_record(stored):
    page = (RESULTS / 'bad-input.md').read_text(encoding='utf-8')
    assert page == as_markdown(stored)


@pytest.mark.parametrize(
    'word', ['/tmp', '/home', '/root', '/work', '/usr', 'Traceback']
)
def test_the_record_names_no_path_of_a_machine(stored, word):
    assert word not in json.dumps(stored)
