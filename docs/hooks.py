"""Hooks of mkdocs: the pages from notebooks and modules, the navigation in the reading order of nbs/index.ipynb, equations as MathML, the font for them."""

import html
import logging
import re
import sys
from configparser import ConfigParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import nbformat
from fontTools import subset
from math_core import LatexError, LatexToMathML
from mkdocs.structure.files import File

import chapter
import reference

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger('mkdocs.hooks')
FONT = (
    Path(find_spec('ziamath').origin).parent
    / 'fonts'
    / 'STIXTwoMath-Regular.ttf'
)


def notebooks():
    return {
        p.stem: nbformat.read(p, 4)
        for p in sorted((ROOT / 'nbs').glob('*.ipynb'))
    }


def reading_order(books):
    """As the chapters' table of the front page has them; a notebook that it
    leaves out is named.
    """
    text = '\n'.join(c.source for c in books['index'].cells)
    rows = '\n'.join(
        re.findall(r'^\|.*$', text[text.index('## The chapters') :], re.M)
    )
    order = list(
        dict.fromkeys(['index', *re.findall(r'\((\w+)\.ipynb\)', rows)])
    )
    for name in set(books) - set(order):
        log.warning(
            f"nbs/{name}.ipynb is missing in the chapters' table of"
            " nbs/index.ipynb"
        )
    return order


def label(name, nb):
    number = chapter.number_of(name)
    title = chapter.title_of(nb)
    return f'{number} · {title}' if number else 'Start here'


def on_config(config):
    sys.path.insert(
        0, str(ROOT)
    )  # the modules beside these notebooks, installed or not
    settings = ConfigParser(delimiters=['='], interpolation=None)
    settings.read(ROOT / 'settings.ini', encoding='utf-8')
    settings = settings['DEFAULT']
    config.update(
        site_name=settings['title'],
        site_description=settings['description'],
        copyright=settings['copyright'],
        site_url=f"{settings['doc_host']}{settings['doc_baseurl']}/",
    )
    books = notebooks()
    modules = {
        m: name
        for name, nb in books.items()
        if (m := chapter.module_of(nb)) and m != '__init__'
    }
    config.nav = []
    groups = config.extra['groups']
    for name in reading_order(books):
        if name in groups:
            config.nav.append({groups[name]: []})
        list(config.nav[-1].values())[0].append(
            {label(name, books[name]): f'{name}.md'}
        )
    for name in set(groups) - set(books):
        log.warning(
            f"docs/mkdocs.yml begins a group with {name}, and there is no such"
            " notebook"
        )
    config.nav.append(
        {
            'API': [
                {'Public names': 'reference/index.md'},
                *(
                    {f'lrp_loo.{m}': f'reference/{m}.md'}
                    for m in sorted(modules)
                ),
            ]
        }
    )
    config.extra.update(books=books, modules=modules, signs=set())
    return config


def on_files(files, config):
    books = config.extra['books']
    modules = config.extra['modules']
    public = {m: import_module('lrp_loo.' + m).__all__ for m in sorted(modules)}

    def add(path, content):
        files.append(File.generated(config, path, content=content))

    for name, nb in books.items():
        text, figures = chapter.as_page(nb, name, public)
        add(f'{name}.md', text)
        for path, png in figures.items():
            add(path, png)
    for m in public:
        add(
            f'reference/{m}.md',
            reference.as_page(
                m, modules[m], label(modules[m], books[modules[m]]), public
            ),
        )
    add('reference/index.md', reference.package(public))
    pointed = {
        m
        for nb in books.values()
        for c in nb.cells
        if c.cell_type == 'markdown'
        for m in re.findall(r'\]\(\.\./([^)#\s]+)', c.source)
    }
    for path in sorted(p for p in pointed if (ROOT / p).is_file()):
        files.append(
            File.generated(config, path, abs_src_path=str(ROOT / path))
        )  # what pages point at, copied as it is
    return files


def on_page_content(text, page, config, files):
    """Equations as MathML, which browsers draw themselves. One that does not
    parse is a warning, and warnings fail the build.
    """
    tex = LatexToMathML(
        fancy_error=False, macros={'setminus': r'\mathbin{\backslash}'}
    )  # the font's own sign is too small to see in an index

    def convert(m):
        kind = m[1]
        source = html.unescape(m[2])
        try:
            formula = tex.convert_with_local_state(
                source, displaystyle=kind == 'div'
            )
        except LatexError as e:
            log.warning(
                f"{page.file.src_uri}: the equation {source!r} cannot be"
                f" read: {e}"
            )
            return m[0]
        signs = html.unescape(re.sub(r'<[^>]*>', '', formula))
        config.extra['signs'].update(signs)
        return (
            f'<{kind}'
            f' class="equation{" long" if len(signs) > 30 else ""}">{formula}</{kind}>'
        )

    return re.sub(
        r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
        convert,
        text,
        flags=re.S,
    )


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
    subset.save_font(
        font, str(Path(config.site_dir) / 'assets' / 'math.woff'), options
    )
