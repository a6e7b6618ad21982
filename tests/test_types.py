"""What type checkers and editors see of the package."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import tracked

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
    for p in sorted(tracked.tracked('lrp_loo/**/*.py'))
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


# ------------------------------------------------------ what two checkers say

USER = FIXTURES / 'typed'
KNOWN = {'arg-type': 'reportArgumentType', 'call-arg': 'reportCallIssue'}
KNOWN['attr-defined'] = 'reportAttributeAccessIssue'
# where a function has several signatures pyright names what the nearest refuses
OVERLOADED = {'call-overload': {'call-overload', *KNOWN}}


def expected(script):
    "Line → the kind of mistake that stands behind it, in mypy's words."
    lines = script.read_text(encoding='utf-8').splitlines()
    found = ((n, re.search(r'  # ([\w-]+)$', line)) for n, line in enumerate(lines, 1))
    return {n: match[1] for n, match in found if match}


def ran(words, folder):
    "A checker, in a folder of a user's, on the package as it stands here."
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    env |= dict(MYPYPATH=str(ROOT), NO_COLOR='1')
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=900
    )


def by_mypy(folder, scripts):
    "Script → line → kinds, with --strict and no error left out."
    asked = ['--strict', '--python-executable', sys.executable]
    cache = ROOT / '.pytest_cache' / 'mypy'
    words = [sys.executable, '-m', 'mypy', *asked, '--cache-dir', str(cache)]
    said = ran([*words, *scripts], folder)
    assert said.returncode in (0, 1), said.stderr + said.stdout
    found = {name: {} for name in scripts}
    pattern = r'^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$'
    for name, line, kind in re.findall(pattern, said.stdout, re.M):
        if name in found:
            found[name].setdefault(int(line), []).append(kind)
    return found


def by_pyright(folder, scripts):
    "As `by_mypy`, in mypy's words."
    config = dict(extraPaths=[str(ROOT)], typeCheckingMode='standard')
    (folder / 'pyrightconfig.json').write_text(json.dumps(config), encoding='utf-8')
    words = [sys.executable, '-m', 'pyright', '--outputjson']
    said = ran([*words, '--pythonpath', sys.executable, *scripts], folder)
    found = {name: {} for name in scripts}
    names = {v: k for k, v in KNOWN.items()}
    for d in json.loads(said.stdout)['generalDiagnostics']:
        if d['severity'] == 'error':
            line = d['range']['start']['line'] + 1
            kind = names.get(d.get('rule', ''), d.get('rule', d['message']))
            found[Path(d['file']).name].setdefault(line, []).append(kind)
    return found


CHECKERS = dict(mypy=by_mypy, pyright=by_pyright)


@pytest.fixture(scope='module', params=CHECKERS)
def said(request, tmp_path_factory):
    "What a checker says of both scripts."
    if find_spec(request.param) is None:
        pytest.skip(f'{request.param} is not installed')
    folder = tmp_path_factory.mktemp(request.param)
    scripts = sorted(p.name for p in USER.glob('*.py'))
    for name in scripts:
        shutil.copy(USER / name, folder)
    return CHECKERS[request.param](folder, scripts)


def test_a_script_that_is_right_passes(said):
    assert said['passes.py'] == {}


def test_each_mistake_is_found_where_it_is(said):
    asked = expected(USER / 'fails.py')
    assert set(said['fails.py']) == set(asked)


def test_a_mistake_is_called_what_it_is(said):
    asked = expected(USER / 'fails.py')
    taken = {n: OVERLOADED.get(kind, {kind}) for n, kind in asked.items()}
    found = said['fails.py']
    assert {n: kinds for n, kinds in found.items() if not taken[n] & {*kinds}} == {}
