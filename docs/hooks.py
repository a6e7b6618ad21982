"""Hooks of mkdocs.

The pages from notebooks and modules, the navigation in the reading order of
nbs/index.ipynb, equations as MathML, the font for them.
"""

import html
import logging
import re
import sys
import tomllib
from configparser import ConfigParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import chapter
import gallery
import nbformat
import reference
from fontTools import subset
from math_core import LatexError, LatexToMathML
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

from tracked import tracked  # noqa: E402

log = logging.getLogger('mkdocs.hooks')
FONT = Path(find_spec('ziamath').origin).parent / 'fonts' / 'STIXTwoMath-Regular.ttf'


def notebooks():
    return {p.stem: nbformat.read(p, 4) for p in tracked('nbs/**/*.ipynb')}


def folders():
    "The folder of nbs/ that each notebook lies in; '' for the book's own."
    places = {p.stem: p.parent.name for p in tracked('nbs/**/*.ipynb')}
    return {name: '' if place == 'nbs' else place for name, place in places.items()}


def reading_order(books):
    """The book and the guide as the chapters' table of the front page has them,
    then the library's own pages by module. A notebook of the book or guide that
    the table leaves out, or that is not there, is named.
    """
    text = '\n'.join(c.source for c in books['index'].cells)
    chapters = text[text.index('## The chapters') :]
    rows = '\n'.join(re.findall(r'^\|.*$', chapters, re.M))
    named = ['index', *re.findall(r'\((?:guide/)?(\w+)\.ipynb\)', rows)]
    library = [name for name, place in folders().items() if place == 'lib']
    order = list(dict.fromkeys([*named, *library]))
    for name in set(books) ^ set(order):
        where = "the chapters' table of nbs/index.ipynb"
        place = where if name in books else 'nbs/'
        log.warning(f'nbs/{name}.ipynb is missing in {place}')
    return [name for name in order if name in books]


def label(name, nb):
    if name == 'index':
        return 'Start here'
    title = chapter.title_of(nb)
    # of the library's own pages the module, as the folder is in its order
    number = chapter.number_of(name) or chapter.module_of(nb)
    return f'{number} · {title}' if number else title


def chapters_nav(books, groups):
    """The chapters under the part of their folder, or in the book of their
    first digit: parts as docs/mkdocs.yml orders them, chapters in reading order.
    """
    nav = {part: [] for part in groups.values()}
    places = folders()
    for name in reading_order(books):
        part = places.get(name) or (name[0] if name[0].isdigit() else name)
        page = {label(name, books[name]): f'{name}.md'}
        nav[groups[part]].append(page)
    return [{part: pages} for part, pages in nav.items() if pages]


def on_config(config):
    # the modules beside these notebooks, installed or not
    sys.path.insert(0, str(ROOT))
    settings = ConfigParser(delimiters=['='], interpolation=None)
    settings.read(ROOT / 'settings.ini', encoding='utf-8')
    settings = settings['DEFAULT']
    project = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
    config.update(
        site_name=settings['title'],
        site_description=tomllib.loads(project)['project']['description'],
        copyright=settings['copyright'],
        site_url=f"{settings['doc_host']}{settings['doc_baseurl']}/",
    )
    config.extra['lab'] = f"{settings['git_url']}/blob/{settings['branch']}/"
    books = notebooks()
    homes = {chapter.module_of(nb): name for name, nb in books.items()}
    modules = {m: n for m, n in homes.items() if m and m[0] != '_'}
    defined = {d: n for n, nb in books.items() for d in chapter.definitions(nb)}
    pages = [{f'lrp_loo.{m}': f'reference/{m}.md'} for m in sorted(modules)]
    config.nav = chapters_nav(books, config.extra['groups'])
    config.nav.append({'Figures': 'gallery.md'})
    config.nav.append({'API': [{'Public names': 'reference/index.md'}, *pages]})
    config.extra.update(books=books, modules=modules, defined=defined)
    config.extra['signs'] = set()  # of the equations
    return config


def pointed_at(books):
    "Files of the repository that texts link to, by path."
    texts = (
        cell.source
        for nb in books.values()
        for cell in nb.cells
        if cell.cell_type == 'markdown'
    )
    found = {
        path
        for text in texts
        for path in re.findall(r'\]\((?:\.\./)+([^)#\s]+)', text)
        if not re.match(r'research/.*\.(ipynb|md)$', path)
    }
    return sorted(path for path in found if (ROOT / path).is_file())


def on_files(files, config):
    books = config.extra['books']
    modules = config.extra['modules']
    public = {m: import_module('lrp_loo.' + m).__all__ for m in sorted(modules)}

    def add(path, content):
        files.append(File.generated(config, path, content=content))

    for name, nb in books.items():
        text, figures = chapter.as_page(nb, name, public, config.extra['lab'])
        add(f'{name}.md', text)
        for path, png in figures.items():
            add(path, png)
    for m, home in modules.items():
        title = label(home, books[home])
        chapters = {n: config.extra['defined'].get((m, n), home) for n in public[m]}
        page = reference.as_page(m, home, title, public, chapters)
        add(f'reference/{m}.md', page)
    add('reference/index.md', reference.package(public))
    add('gallery.md', gallery_page(books, modules))
    pictures = (p.relative_to(ROOT).as_posix() for p in gallery.files())
    for path in sorted({*pointed_at(books), *pictures}):  # as they are
        source = str(ROOT / path)
        files.append(File.generated(config, path, abs_src_path=source))
    return files


def gallery_page(books, homes):
    "All figures; one that no study draws is a warning."
    ordered = {name: books[name] for name in reading_order(books)}
    chapters = {n: nb for n, nb in ordered.items() if n != 'index'}
    try:
        return gallery.as_page(chapters, homes, lambda n: label(n, books[n]))
    except ValueError as e:
        log.warning(str(e))
        return gallery.TITLE


ARITHMATEX = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'


def on_page_content(text, page, config, files):
    """Equations as MathML, which browsers draw themselves. One that does not
    parse is a warning, and warnings fail the build.
    """
    # the font's own sign is too small to see in an index
    macros = {'setminus': r'\mathbin{\backslash}'}
    tex = LatexToMathML(fancy_error=False, macros=macros)

    def convert(m):
        kind = m[1]
        source = html.unescape(m[2])
        try:
            formula = tex.convert_with_local_state(source, displaystyle=kind == 'div')
        except LatexError as e:
            log.warning(
                f"{page.file.src_uri}: the equation {source!r} cannot be read: {e}"
            )
            return m[0]
        signs = html.unescape(re.sub(r'<[^>]*>', '', formula))
        config.extra['signs'].update(signs)
        long = ' long' if len(signs) > 30 else ''
        return f'<{kind} class="equation{long}">{formula}</{kind}>'

    return re.sub(ARITHMATEX, convert, text, flags=re.S)


def on_post_build(config):
    """The font of the equations, cut down to what they use: their signs, the
    root, and the letters that a browser slants by itself.
    """
    options = subset.Options(flavor='woff', layout_features=['*'])
    font = subset.load_font(str(FONT), options)
    cut = subset.Subsetter(options)
    cut.populate(
        unicodes={
            *map(ord, config.extra['signs']),
            *range(0x20, 0x7F),
            ord('√'),
            *range(0x2100, 0x2150),
            *range(0x1D400, 0x1D800),
        }
    )
    cut.subset(font)
    subset.save_font(font, str(Path(config.site_dir) / 'assets' / 'math.woff'), options)
