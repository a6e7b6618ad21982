"The records of every family and of the stacks of libraries: nothing in them is wrong."

from importlib.metadata import version

import pytest
import stacks
import transformers
from every_family import (
    CHECKS,
    HELD_BACK,
    RESULTS,
    SETTINGS,
    as_markdown,
    jobs,
    summary,
)
from packaging.version import Version
from stacks import STACKS, at_least, ceiling, pinned, requirements

from lrp_loo.evaluate.results import read_results

REQUIRED = {r.name: r for r in requirements()}


@pytest.fixture(scope='module')
def stored():
    return read_results(RESULTS / 'every-family.json')


@pytest.fixture(scope='module')
def built(stored):
    "The rows of models that could be built."
    return [row for row in stored['rows'] if row['built']]


@pytest.mark.parametrize('setting', SETTINGS)
def test_the_stored_table_has_a_hundred_families_at(setting, built):
    families = {row['family'] for row in built if row['setting'] == setting}
    assert len(families) >= 100


def test_the_stored_table_holds_nothing_wrong(built):
    for row in built:
        assert list(row['checks']) == list(CHECKS)
        wrong = [c for c, found in row['checks'].items() if found['outcome'] == 'wrong']
        assert not wrong, row


def test_the_stored_table_has_every_job(stored):
    if stored['versions']['transformers'] != transformers.__version__:
        pytest.skip('the record was made with another version of transformers')
    keys = ('i', 'family', 'task', 'setting')
    assert [tuple(row[k] for k in keys) for row in stored['rows']] == jobs()


def test_families_that_were_held_back_are_the_last_rows():
    assert len(HELD_BACK) == 2
    families = [job.family for job in jobs()]
    first = min(map(families.index, HELD_BACK))
    assert set(families[first:]) == set(HELD_BACK)


def test_the_page_is_the_table(stored):
    assert stored['summary'] == summary(stored['rows'])
    page = (RESULTS / 'every-family.md').read_text(encoding='utf-8')
    assert page == as_markdown(stored)


# ---- stacks


@pytest.fixture(scope='module')
def ran():
    "Stack → its row."
    return {row['i']: row for row in read_results(stacks.RESULTS)['rows']}


def test_every_part_of_three_stacks_passed(ran):
    assert tuple(ran) == STACKS
    for row in ran.values():
        assert list(row['parts']) == list(stacks.PARTS)
        assert not stacks.failed(row)
        has = row['versions']
        assert all(r.specifier.contains(has[n]) for n, r in REQUIRED.items())


@pytest.mark.parametrize('name', REQUIRED)
def test_the_stacks_are_what_is_allowed_at_least_and_what_is_pinned(name, ran):
    oldest, found = (Version(ran[s]['versions'][name]) for s in ('oldest', 'pinned'))
    assert Version(oldest.public) == Version(at_least(REQUIRED[name]).split('==')[1])
    assert Version(found.public) == Version(pinned()[name])
    assert REQUIRED[name].specifier.contains(version(name))


@pytest.mark.parametrize('name', ['torch', 'transformers'])
def test_no_newer_one_is_allowed_than_was_run(name, ran):
    "The ceiling is the next minor version."
    found = Version(ran['newest']['versions'][name])
    assert ceiling(REQUIRED[name]) == f'{found.major}.{found.minor + 1}'
