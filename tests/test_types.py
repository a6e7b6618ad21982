"""What type checkers and editors see of the package."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / 'tests' / 'fixtures'
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


# ------------------------------------------------- every public name is annotated


def listed(tree):
    "The names of a module's last `__all__`, where it is a list of strings."
    names = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
            names = [e.value for e in getattr(node.value, 'elts', [])]
    return names


def unannotated(function, of_class=False):
    "The parameters that have no annotation, 'return' among them."
    a = function.args
    asked = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    static = any(ast.unparse(d) == 'staticmethod' for d in function.decorator_list)
    asked = [p for p in asked if p][of_class and not static :]
    lacking = [p.arg for p in asked if p.annotation is None]
    makes = function.name == '__init__'
    return lacking + ['return'] * (function.returns is None and not makes)


def lacking_in(text):
    "Public functions and methods → what they lack."
    tree = ast.parse(text)
    names, found = listed(tree), {}
    for node in tree.body:
        if getattr(node, 'name', None) not in names:
            continue
        if isinstance(node, FUNCTIONS):
            found[node.name] = unannotated(node)
            continue
        for f in node.body:
            public = isinstance(f, FUNCTIONS) and (
                f.name[0] != '_' or f.name in ('__init__', '__call__')
            )
            if public:
                found[f'{node.name}.{f.name}'] = unannotated(f, of_class=True)
    return {name: lacks for name, lacks in found.items() if lacks}


MODULES = {
    p.relative_to(ROOT / 'lrp_loo').with_suffix('').as_posix(): p
    for p in sorted((ROOT / 'lrp_loo').rglob('*.py'))
    if p.name != '_modidx.py' and 'paper' not in p.relative_to(ROOT).parts
}


@pytest.mark.parametrize('module', MODULES)
def test_every_public_function_is_annotated(module):
    assert lacking_in(MODULES[module].read_text(encoding='utf-8')) == {}


def test_what_has_no_annotation_is_found():
    text = """
__all__ = ['f', 'C']
def f(a: int, b, *c, d=1, **e) -> int: ...
def g(a): ...
class C:
    def __init__(self, x): ...
    def m(self) -> None: ...
    def _p(self, x): ...
    @property
    def q(self): ...
    @staticmethod
    def s(x) -> int: ...
"""
    assert lacking_in(text) == {
        'f': ['b', 'd', 'c', 'e'],
        'C.__init__': ['x'],
        'C.q': ['return'],
        'C.s': ['x'],
    }
