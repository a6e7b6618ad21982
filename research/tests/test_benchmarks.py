"""Benchmarks run by hand, so nothing else would notice that a name they take
from the package has moved.
"""

import ast
import importlib
import inspect
import pkgutil

import pytest
from cost import CHECKS
from tracked import tracked

SCRIPTS = tracked('research/benchmarks/*.py')


def imported(script):
    "Pairs of a module of the package and a name that is taken from it."
    tree = ast.parse(script.read_text(encoding='utf-8'))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ''
        if module.split('.')[0] == 'lrp_loo':
            yield from ((module, alias.name) for alias in node.names)


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_takes_names_that_are_there(script):
    for module, name in imported(script):
        assert hasattr(importlib.import_module(module), name), (module, name)


@pytest.mark.parametrize('name', CHECKS)
def test_a_check_that_guard_leaves_out_is_there(name):
    assert callable(pkgutil.resolve_name(f'lrp_loo.{name}'))


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_of_the_entry_takes_its_words(script):
    names = ast.parse(script.with_name('__main__.py').read_text()).body
    (names,) = (ast.literal_eval(x.value) for x in names if isinstance(x, ast.Assign))
    if script.stem in names:
        inspect.signature(importlib.import_module(script.stem).main).bind(['word'])


def test_scripts_are_found_and_take_something():
    assert len(SCRIPTS) > 6
    assert sum(len(list(imported(script))) > 0 for script in SCRIPTS) > 4
