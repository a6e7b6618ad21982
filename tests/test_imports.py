"What an import, and the command's help, leave to the calls that need it."

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from lrp_loo.core import tools
from lrp_loo.core.tools import install_command
from tracked import ROOT

CASES = {
    'from lrp_loo import LRP': ('captum', 'datasets', 'matplotlib'),
    'from lrp_loo import explain': (
        'accelerate datasets matplotlib peft scipy seaborn sklearn transformers'
    ).split(),
    "from lrp_loo.cli import main; main(['--help'])": ('torch', 'numpy'),
    "from lrp_loo.cli import main; main(['explain', '--help'])": ('torch', 'numpy'),
}


@pytest.mark.parametrize('code', CASES)
def test_heavy_libraries_are_imported_by_the_calls_that_need_them(code):
    end = f"import sys; print('\\n', *sys.modules.keys() & {set(CASES[code])})"
    run = [sys.executable, '-c', f'{code}\n{end}']
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == []


PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))[
    'project'
]
ASKED = {  # (library, extra) of each call of `needs`
    tuple(found)
    for path in (ROOT / 'lrp_loo').rglob('*.py')
    for found in re.findall(
        r"\bneeds\('(\w+)[\w.]*', '(\w+)'\)", path.read_text(encoding='utf-8')
    )
}
# a library → what an extra names for it
NAMED = dict(sklearn='scikit-learn', pyarrow='datasets')


def of_extra(name):
    "What an extra brings, others of this package that it names among them."
    for given in map(Requirement, PROJECT['optional-dependencies'][name]):
        yield given.name
        if given.name == PROJECT['name']:
            for other in given.extras:
                yield from of_extra(other)


@pytest.mark.parametrize(('library', 'extra'), sorted(ASKED))
def test_the_extra_that_an_error_names_has_the_library(library, extra):
    assert NAMED.get(library, library) in set(of_extra(extra))


def test_a_package_without_source_or_metadata_can_be_used(monkeypatch):
    def without_source(value):
        raise OSError('could not get source code')

    def without_metadata(name):
        raise tools.PackageNotFoundError(name)

    monkeypatch.setattr(tools.inspect, 'getsource', without_source)
    monkeypatch.setattr(tools, 'requires', without_metadata)

    def function(x):
        "Return x."

    assert tools.describe_parameters(function).__doc__ == 'Return x.'
    assert tools.install_command('plot') == "pip install '.[plot]' in a clone"


def test_the_command_of_an_error_names_packages_of_the_index():
    # the extra `paper` names others of this package
    command = install_command('paper')
    assert command.startswith('pip install ') and 'lrp_loo' not in command
    assert all(name == 'lrp_loo' or name in command for name in of_extra('paper'))


FRESH = """
import pickle, sys, torch
from lrp_loo import Attribution
a = Attribution(['a', 'b'], torch.tensor([1.0, -2.0]), torch.zeros(2).bool(), 1, 0.5)
a.save(sys.argv[1] + '/a.html')
pickle.dump(a, open(sys.argv[1] + '/a.pkl', 'wb'))
"""
WORKER = """
import pickle, sys
a = pickle.load(open(sys.argv[1] + '/a.pkl', 'rb'))
a.save(sys.argv[1] + '/b.html')
assert 'lrp_loo.methods' not in sys.modules
"""


def test_a_record_is_complete_in_a_fresh_process_and_after_pickling(tmp_path):
    for code in (FRESH, WORKER):
        subprocess.run([sys.executable, '-c', code, str(tmp_path)], check=True)
    assert (tmp_path / 'a.html').read_text() == (tmp_path / 'b.html').read_text()
