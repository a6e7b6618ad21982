"""The source of the library: each notebook of nbs/lib is one module, is opened by
what the module is for, and shows every public function and class at work.
"""

import ast
import json
import re
from collections import Counter
from functools import cache

import pytest
from tracked import tracked

PAGES = {p.stem: p for p in tracked('nbs/lib/*.ipynb')}
LINES = 15  # of a code cell, on the mean
DEFINED = (ast.FunctionDef, ast.ClassDef)


@cache
def cells(name):
    "Pairs of a cell's kind and its source."
    found = json.loads(PAGES[name].read_text(encoding='utf-8'))['cells']
    return [(c['cell_type'], ''.join(c['source'])) for c in found]


def is_export(source):
    return bool(re.match(r'#\|\s*export\b', source))


def tree_of(source):
    "Of a cell, without the notebook's own commands."
    return ast.parse(re.sub(r'^\s*[%!].*$', '', source, flags=re.M))


def code(name, exported):
    sources = (s for kind, s in cells(name) if kind == 'code')
    return [tree_of(s) for s in sources if is_export(s) == exported]


def public(name):
    "What the notebook exports and names without an underscore."
    nodes = (node for tree in code(name, True) for node in tree.body)
    return [n.name for n in nodes if isinstance(n, DEFINED) and n.name[0] != '_']


def used(name):
    "Every name that the other cells take, from this module or by attribute."
    nodes = (node for tree in code(name, False) for node in ast.walk(tree))
    named = {
        n.id if isinstance(n, ast.Name) else getattr(n, 'attr', None) for n in nodes
    }
    return named - {None}


@pytest.mark.parametrize('name', PAGES)
def test_every_public_name_is_shown_at_work(name):
    assert [n for n in public(name) if n not in used(name)] == []


@pytest.mark.parametrize('name', PAGES)
def test_a_page_says_first_what_its_module_is_for(name):
    kind, head = cells(name)[0]
    title, line, *rest = head.split('\n\n')
    assert kind == 'markdown' and title.startswith('# ') and line.startswith('> ')
    assert 'Next: [' not in '\n'.join(s for k, s in cells(name) if k == 'markdown')


def test_a_module_has_one_notebook():
    homes = Counter(
        match[1]
        for name in PAGES
        for _, source in cells(name)
        if (match := re.search(r'#\|\s*default_exp (\S+)', source))
    )
    assert max(homes.values()) == 1
    assert sum(homes.values()) == len(PAGES)


@pytest.mark.parametrize('name', PAGES)
def test_a_page_leaves_gradients_on(name):
    "Notebooks run one after another in one process."
    shown = [s for kind, s in cells(name) if kind == 'code' and not is_export(s)]
    if any('set_grad_enabled(False)' in s for s in shown):
        assert 'set_grad_enabled(True)' in shown[-1]


def test_cells_are_short_on_the_mean():
    sources = [s for name in PAGES for kind, s in cells(name) if kind == 'code']
    lines = [sum(bool(x.strip()) for x in s.splitlines()) for s in sources]
    assert sum(lines) / len(lines) <= LINES


def test_a_name_that_is_not_shown_is_found():
    "The check itself: an export that no other cell uses."
    shown = tree_of('from here import f\nf(1)')
    names = {n.id for n in ast.walk(shown) if isinstance(n, ast.Name)}
    assert 'f' in names and 'g' not in names
