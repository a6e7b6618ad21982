"The site's own pages: the order of its parts, its search, its gallery."

import importlib.util
import json
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'docs'))

import chapter  # noqa: E402
import gallery  # noqa: E402
import hooks  # noqa: E402


def checks():
    "The module of .ci/site.py."
    spec = importlib.util.spec_from_file_location(
        'site_checks', ROOT / '.ci' / 'site.py'
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


CHECKS = checks()


def notebook(title):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_markdown_cell(f'# {title}')]
    return nb


def test_parts_stand_as_the_settings_have_them():
    rows = '| [05_b](05_b.ipynb) |\n| [80_a](80_a.ipynb) |\n| [03_c](03_c.ipynb) |'
    front = notebook(f'Front\n## The chapters\n\n{rows}\n')
    books = {'index': front, '05_b': notebook('B'), '03_c': notebook('C')}
    books['80_a'] = notebook('A')
    groups = {'index': 'Start', '8': 'Work', '9': 'Empty', '0': 'Paper'}
    assert hooks.chapters_nav(books, groups) == [
        {'Start': [{'Start here': 'index.md'}]},
        {'Work': [{'80 · A': '80_a.md'}]},
        {'Paper': [{'5 · B': '05_b.md'}, {'3 · C': '03_c.md'}]},
    ]


def test_your_own_work_stands_second():
    text = (ROOT / 'docs' / 'mkdocs.yml').read_text(encoding='utf-8')
    start = text.index('  groups:')
    lines = text[start : text.index('extra_css')].splitlines()[1:]
    assert lines[1].strip() == 'guide: For your own work'


@pytest.fixture
def search(tmp_path):
    docs = [
        dict(location='a.html', title='Curves', text='<p>A multi-label head'),
        dict(location='b.html#x', title='Multi-label', text='Names.'),
        dict(location='c.html', title='Labels', text='a multi set'),
    ]
    index = dict(config=dict(separator='[\\s\\-]+'), docs=docs)
    path = tmp_path / 'search_index.json'
    path.write_text(json.dumps(index), encoding='utf-8')
    return CHECKS.Search(path)


def test_every_word_must_occur_and_titles_come_first(search):
    assert search.found('multi-label') == ['b.html#x', 'a.html']
    assert search.found('names') == ['b.html#x']
    assert search.found('regression') == []


def test_commands_of_a_shell_are_shown_as_they_are_typed():
    nb = notebook('Shell')
    said = nbformat.v4.new_output('stream', name='stdout', text='12 texts')
    source = '!lrp_loo audit --limit 12 \\\n    --json\n!wc -l a.csv'
    nb.cells.append(nbformat.v4.new_code_cell(source, outputs=[said]))
    page, _ = chapter.as_page(nb, 'shell', {}, 'https://lab/')
    typed = 'sh\nlrp_loo audit --limit 12 \\\n    --json\nwc -l a.csv\n'
    assert typed in page and '12 texts' in page


def test_a_cell_that_draws_is_folded():
    nb = notebook('Drawn')
    png = nbformat.v4.new_output('display_data', {'image/png': 'aGk='})
    lines = '\n'.join(f'x = {k}' for k in range(chapter.DRAWING + 1))
    for source, outputs in ((lines, [png]), (lines, []), ('draw()', [png])):
        nb.cells.append(nbformat.v4.new_code_cell(source, outputs=outputs))
    page, _ = chapter.as_page(nb, 'drawn', {}, 'https://lab/')
    assert page.count('<details') == page.count('Drawing, 9 lines') == 1


@pytest.fixture(scope='module')
def books():
    return hooks.notebooks()


@pytest.fixture(scope='module')
def homes(books):
    return {chapter.module_of(nb): name for name, nb in books.items()}


def test_every_picture_has_a_caption_and_a_chapter(books, homes):
    found = gallery.pictures(books, homes)
    assert [p.path for p in found] != []
    assert {p.path for p in found} == set(gallery.files())
    assert all(p.caption and p.home in books for p in found)
    at = {p.path.relative_to(ROOT).as_posix(): p.home for p in found}
    # the study's chapter, not that of the function that it borrows
    assert at['figures/minilm/table1.png'] == 'paper_mnist_tables'


def test_a_picture_of_no_study_is_refused(books, homes, monkeypatch):
    stray = ROOT / 'figures' / 'minilm' / 'stray.png'
    monkeypatch.setattr(gallery, 'files', lambda: [stray])
    with pytest.raises(ValueError, match='stray.png is of no study'):
        gallery.pictures(books, homes)


def test_the_gallery_shows_all_of_them(books, homes):
    page = gallery.as_page(books, homes, str)
    for path in gallery.files():
        assert f']({path.relative_to(ROOT).as_posix()})' in page
