"""The source of the library: each notebook of nbs/lib is one module, is opened by
what the module is for, and shows every public function and class at work.
"""

import ast
import re
from collections import Counter

import pytest
from pages import cells_of, sources
from tracked import tracked

PAGES = {p.stem: p for p in tracked('nbs/lib/*.ipynb')}
LINES = 15  # of a code cell, on the mean
DEFINED = (ast.FunctionDef, ast.ClassDef)


def is_export(source):
    return bool(re.match(r'#\|\s*export\b', source))


def tree_of(source):
    "Of a cell, without the notebook's own commands."
    return ast.parse(re.sub(r'^\s*[%!].*$', '', source, flags=re.M))


def unshown(cells):
    "What exported cells define without an underscore and no other cell takes."
    trees = {True: [], False: []}
    for source in cells:
        trees[is_export(source)].append(tree_of(source))
    defined = [n for tree in trees[True] for n in tree.body if isinstance(n, DEFINED)]
    nodes = [node for tree in trees[False] for node in ast.walk(tree)]
    taken = {n.id for n in nodes if isinstance(n, ast.Name)}
    taken |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return [n.name for n in defined if n.name[0] != '_' and n.name not in taken]


@pytest.mark.parametrize('name', PAGES)
def test_every_public_name_is_shown_at_work(name):
    assert unshown(sources(PAGES[name], 'code')) == []


@pytest.mark.parametrize('name', PAGES)
def test_a_page_says_first_what_its_module_is_for(name):
    assert cells_of(PAGES[name])[0]['cell_type'] == 'markdown'
    texts = sources(PAGES[name], 'markdown')
    title, line, *rest = texts[0].split('\n\n')
    assert title.startswith('# ') and line.startswith('> ')
    assert 'Next: [' not in '\n'.join(texts)


def test_a_module_has_one_notebook():
    homes = Counter(
        match[1]
        for path in PAGES.values()
        for source in sources(path, 'code')
        if (match := re.search(r'#\|\s*default_exp (\S+)', source))
    )
    assert max(homes.values()) == 1
    assert sum(homes.values()) == len(PAGES)


@pytest.mark.parametrize('name', PAGES)
def test_a_page_leaves_gradients_on(name):
    "Notebooks run one after another in one process."
    shown = [s for s in sources(PAGES[name], 'code') if not is_export(s)]
    if any('set_grad_enabled(False)' in s for s in shown):
        assert 'set_grad_enabled(True)' in shown[-1]


def test_cells_are_short_on_the_mean():
    cells = [s for path in PAGES.values() for s in sources(path, 'code')]
    lines = [sum(bool(x.strip()) for x in s.splitlines()) for s in cells]
    assert sum(lines) / len(lines) <= LINES


def test_a_name_that_is_not_shown_is_found():
    exported = '#| export\ndef f(): ...\nclass G: ...\ndef _h(): ...'
    imported = 'from here import f, G'
    assert unshown([exported, imported]) == ['f', 'G']
    assert unshown([exported, imported, 'here.G(1)']) == ['f']
    assert unshown([exported, '#| export\nx = f(G)']) == ['f', 'G']
