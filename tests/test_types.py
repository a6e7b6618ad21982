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
    names = {p.arg for p in parameters if p and p.annotation is None}
    has_return = function.returns is not None or function.name == '__init__'
    return names - {'self', 'cls'} | ({'return'} if not has_return else set())


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
            if f.name != '__getitem__' and unannotated(f):
                lacking[f'{path.stem}.{name}'] = unannotated(f)
    assert lacking == {}


USER = FIXTURES / 'typed'
KINDS = {  # of pyright → of mypy
    'reportArgumentType': 'arg-type',
    'reportCallIssue': 'call-arg',
    'reportAttributeAccessIssue': 'attr-defined',
}


def ran(folder, *words):
    "Run a checker in a user's folder, on the package as it stands here."
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    env |= dict(MYPYPATH=str(ROOT), NO_COLOR='1')
    how = dict(cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    return subprocess.run([sys.executable, '-m', *words], **how).stdout


def by_mypy(folder, scripts):
    "Yield script, line and kind of each error, with --strict."
    cache = str(ROOT / '.pytest_cache' / 'mypy')
    words = ['--strict', '--python-executable', sys.executable, '--cache-dir', cache]
    said = ran(folder, 'mypy', *words, *scripts)
    for name, line, kind in re.findall(
        r'^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$', said, re.M
    ):
        yield name, int(line), kind


def by_pyright(folder, scripts):
    "Yield script, line and kind, in mypy's words, of each error."
    config = dict(extraPaths=[str(ROOT)], typeCheckingMode='standard')
    (folder / 'pyrightconfig.json').write_text(json.dumps(config), encoding='utf-8')
    said = ran(
        folder, 'pyright', '--outputjson', '--pythonpath', sys.executable, *scripts
    )
    for d in json.loads(said)['generalDiagnostics']:
        if d['severity'] == 'error':
            kind = KINDS.get(d.get('rule'), d.get('rule', d['message']))
            yield Path(d['file']).name, d['range']['start']['line'] + 1, kind


@pytest.mark.parametrize('checker', [by_mypy, by_pyright])
def test_a_checker_passes_what_is_right_and_names_each_mistake(checker, tmp_path):
    if find_spec(checker.__name__.removeprefix('by_')) is None:
        pytest.skip(f'{checker.__name__} is not installed')
    scripts = sorted(p.name for p in USER.glob('*.py'))
    for name in scripts:
        shutil.copy(USER / name, tmp_path)
    lines = (USER / 'fails.py').read_text(encoding='utf-8').splitlines()
    marks = ((n, re.search(r'  # ([\w-]+)$', line)) for n, line in enumerate(lines, 1))
    expected = {n: match[1] for n, match in marks if match}
    found = {}
    for name, line, kind in checker(tmp_path, scripts):
        found.setdefault(name, {}).setdefault(line, set()).add(kind)
    assert set(found) <= {'fails.py'}
    assert set(found['fails.py']) == set(expected)
    assert all(kind in found['fails.py'][n] for n, kind in expected.items())
