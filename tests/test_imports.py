"What an import, and the command's help, leave to the calls that need it."

import re
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest
from packaging.requirements import Requirement
from tracked import ROOT, tracked

import lrp_loo

CASES = {
    'from lrp_loo import explain': (
        'accelerate',
        'datasets',
        'matplotlib',
        'pandas',
        'peft',
        'scipy',
        'seaborn',
        'sklearn',
        'transformers',
    ),
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
    for path in tracked('lrp_loo/**/*.py')
    for found in re.findall(
        r"\bneeds\('(\w+)[\w.]*', '(\w+)'\)", path.read_text(encoding='utf-8')
    )
}
# a library → what an extra names for it
NAMED = dict(sklearn='scikit-learn', pyarrow='datasets', traitlets='anywidget')


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


def test_calls_for_every_extra_are_found():
    assert {'data', 'demo', 'others', 'paper', 'plot', 'ray', 'widget', 'xlsx'} <= {
        extra for _, extra in ASKED
    }


# names that left the module that most of their old one became
OF_BEFORE = {
    'fast': 'may_drop FastEncoder fast_encoder read_row_only last_rows_only',
    'faithfulness': 'audit verdict faithfulness_table',
    'models': 'load_model load_demo encode forward n_layers',
    'methods': 'explain METHODS as_methods ig_scores',
    'results': 'Results read_results recorded_methods function_name HOMES',
    'studies.scalar': 'scalar_relevance catalan',
    'studies.linear_attention': 'LinearAttention pixel_maps',
    'variants': 'Variants subset_logits',
    'view': 'Attributions compare tokens_html',
}


@pytest.mark.parametrize('old', sorted(OF_BEFORE.keys() | lrp_loo._MOVED.keys()))
def test_a_path_of_before_has_its_names(old):
    module = import_module(f'lrp_loo.{old}')
    names = [*getattr(module, '__all__', ()), *OF_BEFORE.get(old, '').split()]
    missing = [name for name in names if not hasattr(module, name)]
    assert missing == []
