"The site's own pages: the order of its parts, its search, its gallery."

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import griffe
import nbformat
import pytest
import yaml

import lrp_loo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'docs'))

import chapter  # noqa: E402
import comments  # noqa: E402
import hooks  # noqa: E402
import reference  # noqa: E402
from tracked import tracked  # noqa: E402


def notebook(title):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_markdown_cell(f'# {title}')]
    return nb


def nav():
    "As docs/mkdocs.yml has it; what the rest of the file asks of mkdocs is not read."
    text = (ROOT / 'docs' / 'mkdocs.yml').read_text(encoding='utf-8')
    start = text.index('nav:')
    return yaml.safe_load(text[start : text.index('theme:')])['nav']


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


def test_your_own_work_stands_second():
    (title,) = nav()[1]
    assert title == 'For your own work'
    assert nav()[1][title][0] == 'guide/explain.md'


def test_the_guide_is_found_before_the_book_and_the_library_not_at_all():
    found = hooks.SEARCH
    assert found['guide']['boost'] > found['']['boost'] > 1
    assert found['lib'] == dict(exclude=True)


def test_commands_of_a_shell_are_shown_as_they_are_typed():
    nb = notebook('Shell')
    said = nbformat.v4.new_output('stream', name='stdout', text='12 texts')
    source = '!lrp_loo audit --limit 12 \\\n    --json\n!wc -l a.csv'
    nb.cells.append(nbformat.v4.new_code_cell(source, outputs=[said]))
    page, _ = chapter.as_page(nb, 'shell', {})
    typed = 'sh\nlrp_loo audit --limit 12 \\\n    --json\nwc -l a.csv\n'
    assert typed in page and '12 texts' in page


def test_a_cell_that_draws_is_folded():
    nb = notebook('Drawn')
    png = nbformat.v4.new_output('display_data', {'image/png': 'aGk='})
    lines = '\n'.join(f'x = {k}' for k in range(chapter.DRAWING + 1))
    for source, outputs in ((lines, [png]), (lines, []), ('draw()', [png])):
        nb.cells.append(nbformat.v4.new_code_cell(source, outputs=outputs))
    page, _ = chapter.as_page(nb, 'drawn', {})
    assert page.count('<details') == page.count('Drawing, 9 lines') == 1


PUBLIC = {
    'methods': {'explain': 'Explain texts.', 'refine': ''},
    'cli.commands': {'explain': ''},
    'stats': {'mean': ''},
    'models.parts': {'Estimate': ''},
    'evaluate.intervals': {'Estimate': ''},
}


@pytest.mark.parametrize(
    'text, links',
    [
        ('`explain(model)` says', '[`explain(model)`][lrp_loo.methods.explain] says'),
        ('the `mean` of it', 'the `mean` of it'),  # a word
        ('`mean()`', '[`mean()`][lrp_loo.stats.mean]'),
        ('`Estimate`', '`Estimate`'),  # two modules have it
        ('# `refine()`', '# `refine()`'),
        ('[`refine()`](a.md)', '[`refine()`](a.md)'),
    ],
)
def test_names_of_the_package_become_links(text, links):
    assert chapter.linked(text, {}, chapter.homes_of(PUBLIC)) == links


def test_a_name_is_linked_where_its_own_module_is_told():
    own = {'Estimate': 'models.parts'}
    said = chapter.linked('`Estimate`', own, chapter.homes_of(PUBLIC))
    assert said == '[`Estimate`][lrp_loo.models.parts.Estimate]'


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


def test_a_view_that_is_gone_is_named(books, caplog):
    assert shown('view: guide/explain ^no such cell$', books) == ''
    assert "no view by '^no such cell$' in nbs/guide/explain.ipynb" in caplog.text


def test_every_picture_has_its_place_and_words():
    text = (ROOT / 'docs' / 'static' / 'figures.md').read_text(encoding='utf-8')
    for path in tracked('figures/**/*.png'):
        where = path.relative_to(ROOT).as_posix()
        (line,) = (line for line in text.splitlines() if f']({where})' in line)
        assert len(line.split(']')[0]) > 20, line


def test_each_name_in_front_has_a_line(books):
    page = reference.pages(books, hooks.names_of(books))['reference/index.md']
    rows = dict(re.findall(r'^\| \[`(\w+)`\]\[[\w.]+\] \| (.+) \|$', page, re.M))
    assert [name for name in lrp_loo.__all__ if not rows.get(name, '').strip()] == []


SOURCE = """
class Record:
    'What was read.'

    value: float  # the number

    def said(self):
        'It says something.'

    def silent(self):
        pass


def call(
    a,  # what is given *here*
    *rest: int,
    b: int = 2,
) -> str:  # what comes back
    'Do it.'


LARGE = 3  # more than two
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


def test_fields_are_told_and_silent_methods_left_out(api):
    (value,) = parts(api['Record'])['attributes']
    assert (value.name, value.description) == ('value', 'the number')
    assert set(api['Record'].members) == {'said'}


def test_a_variable_says_its_comment(api):
    first = api['LARGE'].docstring.parsed[0]
    assert first.value == 'more than two'
