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

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / 'tests' / 'fixtures'
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def unannotated(function):
    "Return the parameters without an annotation, and 'return'."
    a = function.args
    parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    names = [p.arg for p in parameters if p and p.annotation is None]
    names = [name for name in names if name not in ('self', 'cls')]
    has_return = function.returns is not None or function.name == '__init__'
    return names + ['return'] * (not has_return)


def public_functions(tree):
    "Yield name → node of a module's public functions and methods."
    for node in tree.body:
        if getattr(node, 'name', '_')[0] == '_':
            continue
        if isinstance(node, FUNCTIONS):
            yield node.name, node
        for f in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(f, FUNCTIONS) and (f.name[0] != '_' or f.name == '__init__'):
                yield f'{node.name}.{f.name}', f


def test_every_public_function_is_annotated():
    lacking = {}
    for path in sorted((ROOT / 'lrp_loo').rglob('*.py')):
        if path.name == '_modidx.py' or 'paper' in path.relative_to(ROOT).parts:
            continue
        tree = ast.parse(path.read_text(encoding='utf-8'))
        for name, f in public_functions(tree):
            overload = any(ast.unparse(d) == 'overload' for d in f.decorator_list)
            if not overload and f.name != '__getitem__' and unannotated(f):
                lacking[f'{path.stem}.{name}'] = unannotated(f)
    assert lacking == {}


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
