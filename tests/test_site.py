"The site's own pages: the order of its parts, its search, its gallery."

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import griffe
import nbformat
import pytest

import lrp_loo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'docs'))

import chapter  # noqa: E402
import comments  # noqa: E402
import hooks  # noqa: E402
import reference  # noqa: E402


def notebook(title):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_markdown_cell(f'# {title}')]
    return nb


def test_patterns_of_the_navigation_give_what_is_left():
    pages = ['index.md', '02_b.md', '01_a.md', 'guide/c.md', 'guide/a.md']
    pages += ['lib/x_one.md', 'lib/y.md', 'lib/x.md', 'api/y/a.md', 'api/y/index.md']
    given = ['index.md', {'Do': ['guide/c.md', 'guide/*.md']}, {'Book': ['[0-9]*.md']}]
    given += [{'Built': ['lib/']}, {'API': ['api/']}]
    assert hooks.expanded(given, pages) == [
        'index.md',
        {'Do': ['guide/c.md', 'guide/a.md']},
        {'Book': ['01_a.md', '02_b.md']},
        {'Built': [{'x': ['lib/x.md', 'lib/x_one.md']}, 'lib/y.md']},
        {'API': [{'y': ['api/y/a.md', 'api/y/index.md']}]},
    ]


PUBLIC = {
    'methods': {'explain': 'Explain texts.', 'refine': ''},
    'cli.commands': {'explain': ''},
    'core.stats': {'mean': ''},
    'models.parts': {'Estimate': ''},
    'evaluate.intervals': {'Estimate': ''},
}


@pytest.mark.parametrize(
    'text, links',
    [
        ('`explain(model)` says', '[`explain(model)`][lrp_loo.methods.explain] says'),
        ('the `mean` of it', 'the `mean` of it'),  # a word
        ('`mean()`', '[`mean()`][lrp_loo.core.stats.mean]'),
        ('`Estimate`', '`Estimate`'),  # two modules have it
        ('# `refine()`', '# `refine()`'),
        ('[`refine()`](a.md)', '[`refine()`](a.md)'),
    ],
)
def test_names_of_the_package_become_links(text, links):
    assert chapter.linked(text, {}, chapter.homes_of(PUBLIC)) == links


def test_links_go_to_pages_and_to_files_and_lose_what_the_site_has_not():
    nb = notebook('Linked')
    nb.cells[0].source += (
        '\n[a](../lib/data.ipynb#x) [b](../../results/a.json) '
        '[c](../../research/nbs/80.ipynb) [d](words.ipynb)'
    )
    page, _ = chapter.as_page(nb, 'guide/linked', {})
    assert '[a](../lib/data.md#x) [b](../results/a.json)' in page
    assert ' c [d](words.md)' in page


@pytest.fixture(scope='module')
def books():
    return hooks.notebooks()


def shown(text, books):
    config = SimpleNamespace(extra=dict(books=books))
    page = SimpleNamespace(file=SimpleNamespace(src_uri='gallery.md'))
    return hooks.on_page_markdown(text, page, config, None)


def test_the_gallery_shows_what_cells_gave(books, caplog):
    text = (ROOT / 'docs' / 'static' / 'gallery.md').read_text(encoding='utf-8')
    n = text.count('\nview: ')
    page = shown(text, books)
    assert n > 5 and page.count('<div class="output">') == n
    assert 'view: ' not in page and caplog.records == []


def test_each_name_in_front_has_a_line(books):
    page = reference.pages(books, hooks.names_of(books))['reference/index.md']
    rows = dict(re.findall(r'^\| \[`(\w+)`\]\[[\w.]+\] \| (.+) \|$', page, re.M))
    assert [name for name in lrp_loo.__all__ if not rows.get(name, '').strip()] == []


SOURCE = """
def call(
    a,  # what is given *here*
    *rest: int,
    b: int = 2,
) -> str:  # what comes back
    'Do it.'
"""


@pytest.fixture
def api(tmp_path):
    (tmp_path / 'small.py').write_text(SOURCE, encoding='utf-8')
    extensions = griffe.load_extensions(comments.Comments())
    return griffe.load('small', search_paths=[tmp_path], extensions=extensions)


def parts(thing):
    return {section.kind.value: section.value for section in thing.docstring.parsed}


def test_comments_of_parameters_are_read(api):
    found = parts(api['call'])
    given = {p.name: (p.description, p.default) for p in found['parameters']}
    assert given['a'] == ('what is given \\*here\\*', None)
    assert given['b'] == ('', '2')
    assert list(given) == ['a', 'rest', 'b']
    (back,) = found['returns']
    assert (str(back.annotation), back.description) == ('str', 'what comes back')
