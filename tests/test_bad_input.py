"Every call of bad_input.toml gets the answer that it must get."

import builtins
import contextlib
import io
import re
import tomllib
import warnings
from pathlib import Path

import pytest
from bad_world import CommandFailed, World

TABLE = Path(__file__).with_name('bad_input.toml')
CASES = tomllib.loads(TABLE.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp('bad'))


def evaluate(code, world, **names):
    "Evaluate a call or a condition, written in one line or several."
    code = ' '.join(code.strip('\n').split('\n'))
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter('ignore')
        return eval(code, world.names_in(re.findall(r'\w+', code)) | names)


@pytest.mark.parametrize('name', CASES)
def test_answer(world, name):
    case = CASES[name]
    if 'works' in case:
        out = evaluate(case['call'], world)
        assert evaluate(case['works'], world, out=out)
        return
    raises = getattr(builtins, case.get('raises', 'ValueError'))
    raises = CommandFailed if 'exit' in case else raises
    with pytest.raises(raises) as error:
        evaluate(case['call'], world)
    message = str(error.value).strip()
    # the system's errors have many classes
    assert type(error.value) is raises or raises is OSError
    assert case['says']  # a case without words would accept any message
    for words in case['says']:
        assert words in message
    exit_code = getattr(error.value, 'code', None)
    assert exit_code == case.get('exit', exit_code)
    if exit_code != 2:  # which comes with the usage
        assert '\n' not in message and 'Traceback' not in message
