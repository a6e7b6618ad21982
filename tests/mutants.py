"""Plant small faults in the library, one at a time, and report those that nothing notices.

python tests/mutants.py [N [SEED]]   N faults (300) drawn by SEED (0); WORKERS=2

A fault meets the checks of its module's notebook, then tests that run its line, for
SECONDS in all. What survives must stand in mutants.toml, with the reason.
"""

import ast
import copy
import os
import re
import signal
import sys
import time
import tomllib
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from multiprocessing import get_context

import matplotlib.pyplot  # noqa: F401 (imported before each fork, as it takes long)
import peft  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
from pages import sources
from tracked import ROOT, tracked
from transformers import AutoTokenizer, BertForSequenceClassification  # noqa: F401

ROOMS = ('loo', 'estimate', 'lrp', 'inputs', 'evaluate')
FILES = {str(p) for room in ROOMS for p in tracked(f'lrp_loo/{room}/*.py')}
SECONDS = 15
PYTEST = ['-q', '-p', 'no:cacheprovider', '-m', 'not large and not slow']
PYTEST += ['-W', 'ignore::pytest.PytestAssertRewriteWarning']
PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)]
PAIRS += [(ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.Mult, ast.Div)]
PAIRS += [(ast.BitAnd, ast.BitOr), (ast.And, ast.Or), (ast.FloorDiv, ast.Pow)]
PAIRS += [('min', 'max'), ('any', 'all'), ('amin', 'amax'), ('argmin', 'argmax')]
OTHER = dict(PAIRS) | {b: a for a, b in PAIRS}
NO_CODE = (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)
NO_FIELD = ('annotation', 'returns', 'decorator_list')


def faults(node):
    "Yield the fields of a node that may be wrong, or a node in place of it."
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            yield dict(ops=[OTHER[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            yield from [dict(op=OTHER[type(op)]())] if type(op) in OTHER else []
        case ast.Attribute(attr=name) | ast.Name(id=name) if name in OTHER:
            yield {'id' if isinstance(node, ast.Name) else 'attr': OTHER[name]}
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test):
            yield dict(test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Constant(value=int() | float() as x):
            yield dict(value=not x if isinstance(x, bool) else x + 1)
        case ast.Call(keywords=words):
            yield from (dict(keywords=[w for w in words if w != x]) for x in words)


def places(node, name='', lines=()):
    "Yield the nodes of code, each with its function and the lines of its statement."
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        name, lines = f'{name}.{node.name}'.strip('.'), ()
    elif isinstance(node, ast.stmt):
        part = getattr(node, 'test', getattr(node, 'iter', node))
        end = node.lineno if isinstance(node, ast.With) else part.end_lineno
        lines = range(node.lineno, end + 1)
    yield node, name, lines
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field not in NO_FIELD and isinstance(child, ast.AST):
                if not isinstance(child, NO_CODE):
                    yield from places(child, name, lines)


def draw(n, seed):
    "Return n faults {words: …}, drawn by their words: other code changes no draw."
    found = {}
    for path in sorted(FILES):
        module = path[len(f'{ROOT}/') : -3].replace('/', '.').removesuffix('.__init__')
        tree = ast.parse(open(path, encoding='utf-8').read())
        for node, name, lines in places(tree):
            for new in faults(node):
                if isinstance(new, dict):
                    fields, new = new, copy.copy(node)
                    vars(new).update(fields)
                parts = (ast.unparse(getattr(x, 'test', x)) for x in (node, new))
                words = ' '.join(' → '.join(parts).split())[:160]
                fault = (path, module, tree, node, new, lines)
                found.setdefault(f'{module} {name}: {words}', fault)
    order = sorted(found, key=lambda words: sha256(f'{seed} {words}'.encode()).digest())
    return {words: found[words] for words in order[:n]}


class Lines:
    "Notes the seconds of each test, and the lines of FILES that it runs."

    def __init__(self):
        self.of_test, self.failed = {}, set()

    def pytest_runtest_logreport(self, report):
        if report.failed:  # under a trace
            self.failed.add(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        lines, start = set(), time.monotonic()

        def trace(frame, event, arg):
            if frame.f_code.co_filename in FILES:
                lines.add((frame.f_code.co_filename, frame.f_lineno))
                return trace

        sys.settrace(trace)
        yield
        sys.settrace(None)
        self.of_test[item.nodeid] = (time.monotonic() - start, lines)


def lines_of_file(path):
    lines = Lines()
    with suppress(Exception):  # of what tests leave behind
        pytest.main([*PYTEST, str(path)], plugins=[lines])
    return {t: row for t, row in lines.of_test.items() if t not in lines.failed}


def run_notebook(module):
    "Run the checks of a module's notebook; return True if there is no error."
    exported = re.compile(rf'default_exp {re.escape(module[8:])}(\.__init__)?$', re.M)
    pages = [sources(path, 'code') for path in tracked('nbs/lib/*.ipynb')]
    (cells,) = (cells for cells in pages if any(map(exported.search, cells)))
    os.chdir(ROOT / 'nbs' / 'lib')
    try:
        names = dict(vars(import_module(module)))
        for cell in cells:
            if not re.match(r'#\s*\|\s*(export|default_exp)', cell):
                exec(compile(cell, module, 'exec'), names)
    except Exception:
        return False
    finally:
        os.chdir(ROOT)
    return True


def tests_of(path, lines, table):
    "Return the quickest case of each test function that runs a line, of SECONDS in all."
    some = {(path, i) for i in lines}
    run = [(s, t) for t, (s, ran) in table.items() if some & ran]
    # a line that runs when its module is imported: tests of the module
    run = run or [(s, t) for t, (s, ran) in table.items() if path in dict(ran)]
    quickest = {t.partition('[')[0]: (s, t) for s, t in sorted(run, reverse=True)}
    times = sorted(quickest.values())
    ends = accumulate(s for s, _ in times)
    return [t for (_, t), end in zip(times, ends) if end <= SECONDS or t == times[0][1]]


def outcome(words):
    "Plant a fault; return True if nothing notices."
    path, module, tree, node, new, _ = DRAWN[words]
    node.__class__ = type(new)
    vars(node).update(vars(new))
    code = compile(ast.fix_missing_locations(tree), path, 'exec')

    def get_code(self, name, original=SourceFileLoader.get_code):
        return code if name == module else original(self, name)

    def stop(*args):
        raise KeyboardInterrupt

    SourceFileLoader.get_code = get_code
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    # seconds of this process, so that a crowded machine notices nothing; others for a hang
    limits = {signal.ITIMER_PROF: 10 * SECONDS, signal.ITIMER_REAL: 100 * SECONDS}
    for timer, limit in limits.items():
        signal.setitimer(timer, limit, SECONDS)
    try:
        passed = not HAS_CHECKS[module] or run_notebook(module)
        passed = passed and pytest.main([*PYTEST, '-x', *TESTS[words]]) == 0
    except KeyboardInterrupt:  # too slow
        passed = False
    for timer in limits:
        signal.setitimer(timer, 0)
    return passed


def quiet():
    os.chdir(ROOT)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def of_each(function, items):
    "Return {item: the function's result}, each in a process of its own."
    items, workers = list(items), int(os.environ.get('WORKERS', 2))
    with get_context('fork').Pool(workers, quiet, maxtasksperchild=1) as pool:
        return dict(zip(items, pool.imap(function, items)))


DRAWN, TESTS, HAS_CHECKS = {}, {}, {}  # what later processes read


def main(n=300, seed=0):
    DRAWN.update(draw(int(n), seed))
    HAS_CHECKS.update(of_each(run_notebook, {row[1]: None for row in DRAWN.values()}))
    files = of_each(lines_of_file, tracked('tests/test_*.py'))
    table = {test: row for rows in files.values() for test, row in rows.items()}
    for words, (path, *_, lines) in DRAWN.items():
        TESTS[words] = tests_of(path, lines, table)
    survivors = {words for words, passed in of_each(outcome, DRAWN).items() if passed}
    reasons = tomllib.loads((ROOT / 'tests' / 'mutants.toml').read_text('utf-8'))
    noticed = reasons.keys() & DRAWN.keys() - survivors
    print(f'{len(DRAWN)} faults, {len(survivors)} survived')
    for words in sorted(survivors):
        print(f'{words}: {reasons.get(words, "NOT EXPLAINED")}')
    for words in sorted(noticed):
        print(f'{words}: noticed, and explained in mutants.toml')
    return bool(noticed or survivors - reasons.keys())


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
