"The record of every family: nothing in it is wrong."

import pytest
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

from lrp_loo.records.results import read_results


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
