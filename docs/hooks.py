"""Hooks of mkdocs.

The pages from notebooks, a page of the reference for each module, the patterns
of `nav`, equations as MathML, the font for them.
"""

import html
import json
import logging
import re
import shutil
import sys
import tomllib
from configparser import ConfigParser
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import chapter
import nbformat
import reference
from fontTools import subset
from math_core import LatexError, LatexToMathML
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / 'nbs'
sys.path.insert(0, str(ROOT / 'tests'))

from tracked import tracked  # noqa: E402

log = logging.getLogger('mkdocs.hooks')
FONT = Path(find_spec('ziamath').origin).parent / 'fonts' / 'STIXTwoMath-Regular.ttf'
# a folder of nbs/ → how early the search finds its pages
SEARCH = {'guide': dict(boost=10), '': dict(boost=2), 'lib': dict(exclude=True)}
# search_index.js has the index; there is one language
UNUSED = ('search_index.json', 'lunr', '*.map')


def notebooks():
    "Path in nbs/, without suffix → the notebook."
    found = tracked('nbs/**/*.ipynb')
    return {
        p.relative_to(NBS).with_suffix('').as_posix(): nbformat.read(p, 4)
        for p in found
    }


def label(name, nb):
    """What the navigation calls a page: a chapter by its number, a page of the
    library by its module.
    """
    title = chapter.title_of(nb)
    number = chapter.number_of(name) or chapter.module_of(nb)
    return f'{number} · {title}' if number and number[0] != '_' else title


def head(title, search, tags):
    "Of a page: its name in the navigation, how and by what it is found."
    meta = dict(title=title, search=search, tags=tags)
    return f'---\n{json.dumps(meta)}\n---\n\n'


def expanded(nav, pages):
    """`nav` with its patterns written out, in the order of their names; what an
    entry beside a pattern names is not repeated. A pattern of folders, `lib/`,
    makes a section of each room.
    """
    if isinstance(nav, dict):
        return {title: expanded(part, pages) for title, part in nav.items()}
    if isinstance(nav, str):
        return nav
    found = []
    for entry in nav:
        if isinstance(entry, str) and '*' in entry:
            fits = (p for p in sorted(pages) if fnmatch(p, entry))
            found += [p for p in fits if p not in found]
        elif isinstance(entry, str) and entry.endswith('/'):
            found += rooms([p for p in sorted(pages) if p.startswith(entry)], entry)
        else:
            found.append(expanded(entry, pages))
    return found


def rooms(pages, folder):
    "Pages by the first part of their module; a room of one page is this page."

    def room(page):
        return re.split(r'[/_.]', page.removeprefix(folder))[0]

    of_room = ((name, list(group)) for name, group in groupby(pages, room))
    return [{n: group} if len(group) > 1 else group[0] for n, group in of_room]


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
        site_url='',
    )
    config.extra['signs'] = set()  # of the equations
    config.extra['books'] = notebooks()
    return config


def pointed_at(books):
    "Files of the repository that texts link to, by path."
    texts = [c.source for nb in books.values() for c in nb.cells]
    pages = tracked('docs/static/*.md')
    texts += [page.read_text(encoding='utf-8') for page in pages]
    found = set(re.findall(r'\]\((?:\.\./)*([^)#\s]+)', '\n'.join(texts)))
    lab = re.compile(r'(research|docs)/.*\.(ipynb|md)$')
    return sorted(p for p in found if not lab.match(p) and (ROOT / p).is_file())


def names_of(books):
    "Module → its public names → what they say of themselves."
    public = {}
    for nb in books.values():
        for module, name, said in chapter.definitions(nb):
            public.setdefault(module, {})[name] = said
    return public


def on_files(files, config):
    books = config.extra['books']
    public = names_of(books)

    def add(path, content):
        files.append(File.generated(config, path, content=content))

    linked = {m: names for m, names in public.items() if m[0] != '_'}
    for name, nb in books.items():
        folder, _, stem = name.rpartition('/')
        page, figures = chapter.as_page(nb, name, linked)
        words = config.extra['words'].get(stem, [])
        tags = [stem.replace('_', ' '), *words] if folder == 'guide' else []
        add(f'{name}.md', f'{head(label(stem, nb), SEARCH[folder], tags)}{page}')
        for path, png in figures.items():
            add(f'{folder}/{path}'.lstrip('/'), png)
    for path, page in reference.pages(books, public).items():
        add(path, page)
    for path in pointed_at(books):  # as they are
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    pages = [f.src_uri for f in files.documentation_pages()]
    config.nav = expanded(config.nav, pages)
    return files


def on_page_markdown(text, page, config, files):
    """A line `view: NOTEBOOK PATTERN` shows the first output in HTML of a cell
    of the notebook that the pattern is found in.
    """

    def shown(m):
        for cell in config.extra['books'][m[1]].cells:
            outputs = cell.get('outputs', [])
            if re.search(m[2], chapter.source_of(cell), re.M):
                for o in (o for o in outputs if 'text/html' in o.get('data', {})):
                    return chapter.html_output(o.data['text/html'])
        log.warning(f'{page.file.src_uri}: no view by {m[2]!r} in nbs/{m[1]}.ipynb')
        return ''

    return re.sub(r'^view: (\S+) (.+)$', shown, text, flags=re.M)


# words and signs of code without a colour of their own
PLAIN = r'<span class="[nwp]">([^<]*)</span>'
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

    text = re.sub(PLAIN, r'\1', text)
    return re.sub(ARITHMATEX, convert, text, flags=re.S)


def on_post_page(output, page, config):
    "Without the indentation of templates, a quarter of a page of the reference."
    parts = re.split(r'(<pre.*?</pre>)', output, flags=re.S)
    parts[::2] = (re.sub(r'\n\s+(?=<|\n)', '\n', part) for part in parts[::2])
    return ''.join(parts)


@event_priority(-200)  # after the plugin that copies the index
def on_post_build(config):
    """What no reader's browser asks for is taken away. The font of the equations
    is cut down to what they use: their signs, the root, and the letters that a
    browser slants by itself.
    """
    site = Path(config.site_dir)
    for path in (p for pattern in UNUSED for p in [*site.rglob(pattern)]):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
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
