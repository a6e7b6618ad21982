"Every call of `bad_input.py` gets the answer it must get, and the page that says so is what comes now."

import json

import pytest
from bad_input import CASES, RESULTS, World, as_markdown, row

from lrp_loo.core import versions


@pytest.fixture(scope='module')
def answers(tmp_path_factory):
    "Each call is made once."
    world = World(tmp_path_factory.mktemp('bad'))
    made = {}

    def answer(case):
        if case[0] not in made:
            made[case[0]] = row(case, world)
        return made[case[0]]

    return answer


@pytest.mark.parametrize('case', CASES, ids=lambda c: c[0])
def test_answer(answers, case):
    r, wrong = answers(case)
    assert not wrong, f"{wrong}: {r['came']}: {r['message']}"


def test_names():
    assert len({c[0] for c in CASES}) == len(CASES) >= 80 and all(
        isinstance(c[2], str) or issubclass(c[2], Exception) for c in CASES
    )


def test_the_page_is_what_comes_now(answers):
    """The kind of every answer; its words too, where the libraries that they
    may come from are the same.
    """
    d = json.loads((RESULTS / 'bad-input.json').read_text(encoding='utf-8'))
    now = [answers(c)[0] for c in CASES]
    same = {k: v for k, v in d['versions'].items() if k != 'lrp_loo'} == {
        k: v for k, v in versions().items() if k != 'lrp_loo'
    }

    def what(r):
        return {k: v for k, v in r.items() if same or k != 'message'}

    assert [what(r) for r in d['rows']] == [what(r) for r in now]
    assert (RESULTS / 'bad-input.md').read_text(
        encoding='utf-8'
    ) == as_markdown(d)
    assert not any(
        w in json.dumps(d)
        for w in ('/tmp', '/home', '/root', '/work', '/usr', 'Traceback')
    )
