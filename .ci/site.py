"""What must hold of the built site, each breach named with its page.

python .ci/site.py [--build] [FOLDER, default _docs]

`--build` makes it first, by docs/mkdocs.yml; a warning there is a failure.
Every page of nbs/ is there with its title; links, anchors and pictures
resolve; nothing is loaded from elsewhere; no directive, traceback, LaTeX or
Markdown shows raw; equations are MathML; all files have at most 25 MB. Where a
Chromium is found, it opens the front page and the chapters of the paper at
1,280 pixels: no block of code may have to be scrolled sideways, and the search
finds recipes first. Where CI is set a browser has to be found.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

from chromium import MISSING, Chromium, may_be_left_out  # noqa: E402
from tracked import tracked  # noqa: E402

LOADS = {  # attributes that make a browser fetch something
    'script': ('src',),
    'img': ('src', 'srcset'),
    'iframe': ('src',),
    'source': ('src',),
    'video': ('src',),
    'audio': ('src',),
    'object': ('data',),
    'embed': ('src',),
    'image': ('href',),
    'use': ('href',),
}
LOADED_LINKS = {
    'stylesheet',
    'icon',
    'preload',
    'prefetch',
    'preconnect',
    'dns-prefetch',
    'manifest',
    'modulepreload',
}
EMPTY_TAGS = {  # they have no end
    'meta',
    'link',
    'img',
    'br',
    'input',
    'hr',
    'source',
    'path',
    'mspace',
}
BLOCKS = {'p', 'li', 'td', 'th', 'h1', 'h2', 'h3', 'div', 'tr'}
RAW = {
    'a directive': r'^\s*#\|',
    'a traceback': r'Traceback \(most recent call last\)',
    'an error of LaTeX': (
        r'Undefined control sequence|Math Processing Error|LatexError|merror'
    ),
    'this machine': r'/(?:home|root|work|Users)/\w',
    'a warning': r'\w+Warning: ',
    'an address in memory': r' at 0x[0-9a-f]+',
}
PROSE = {
    'LaTeX': (r'\$[^$\n]*\\[A-Za-z]+|\\(?:frac|sum|mathrm|begin|partial|[(\[])|\$\$'),
    'a link': r'\]\([\w./#-]+\)',
    'bold': r'(?<!\w)\*\*\w[^*\n]*\*\*',
    'a table': r'^\s*\|.*\|\s*$',
    'a list': r'^\s*(?:[*-]|\d+\.) \S',
    'a heading': r'^#{1,6} \S',
    'code': r'`[^`]+`',
    'attributes': r'\{\s*[.#:][\w-]+\s*\}',
}
KINDS = 'guide/tasks.html'
SEARCHES = {  # what a reader types → the page that has to come first
    'generation': 'guide/generation.html',
    'budget': 'guide/explain.html',
    'own model': 'guide/tasks.html',
    'command line': 'guide/command_line.html',
    'regression': KINDS,
    'multi-label': KINDS,
    'NER': KINDS,
    'int8': KINDS,
    'SHAP': 'guide/other_tools.html',
}
WIDTH = 1280  # pixels of a window
PATIENCE = 30  # seconds that a search may take
MEGABYTES = 25  # of all files


class Page(HTMLParser):
    """What a page links to, loads, defines and says; `prose` is its text
    outside code, `code` and `math`.
    """

    def __init__(self, path):
        super().__init__()
        self.links = []
        self.loads = []
        self.ids = Counter()
        self.prose = []
        self.text = []
        self.titles = []
        self.stack = []
        self.math = 0
        self.marks = []
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        classes = (a.get('class') or '').split()
        if tag not in EMPTY_TAGS:
            self.stack.append(f'{tag}.output' if 'output' in classes else tag)
        self.note_address(tag, a)
        self.marks += re.findall(r'url\(([^)]*)\)', a.get('style') or '')
        if tag == 'math':
            self.math += 1
        if 'arithmatex' in (a.get('class') or ''):
            self.marks.append('arithmatex')
        if tag == 'h1':
            self.titles.append('')

    def note_address(self, tag, a):
        "Anchors, links, and what is loaded."
        names = [a.get('id'), a.get('name') if tag == 'a' else None]
        self.ids.update(name for name in names if name)
        if tag == 'a' and 'href' in a:
            self.links.append(a['href'])
        kinds = set((a.get('rel') or '').split())
        if tag == 'link' and kinds & LOADED_LINKS:
            self.loads.append(a['href'])
        self.loads += [a[k] for k in LOADS.get(tag, ()) if a.get(k)]

    def handle_endtag(self, tag):
        if tag in [t.split('.')[0] for t in self.stack]:
            while self.stack.pop().split('.')[0] != tag:
                pass
        if tag in BLOCKS:
            self.prose.append('\n')

    def handle_data(self, data):
        inside = set(self.stack)
        if 'style' in inside:
            urls = (u.strip('"\'') for u in re.findall(r'url\(([^)]*)\)', data))
            self.loads += [u for u in urls if not u.startswith('data:')]
        if {'script', 'style'} & inside:
            return
        if 'article' in inside:
            self.text.append(data)
            if not {'code', 'pre', 'math', 'div.output'} & inside:
                self.prose.append(data)
        if 'h1' in inside and 'a' not in inside:
            self.titles[-1] += data


@dataclass
class Notebook:
    "What a page has to show of its notebook."

    path: Path

    @cached_property
    def cells(self):
        return json.loads(self.path.read_text(encoding='utf-8'))['cells']

    @property
    def title(self):
        first = ''.join(self.cells[0]['source'])
        return re.search(r'^# (.*)$', first, re.M)[1].replace('`', '')

    @property
    def equations(self):
        "How many; dollars in code are none."
        pattern = r'\$\$.+?\$\$|(?<!\\)\$[^$\n]+?\$'
        texts = (
            re.sub(r'```.*?```|`[^`]*`', '', ''.join(c['source']), flags=re.S)
            for c in self.cells
            if c['cell_type'] == 'markdown'
        )
        return sum(len(re.findall(pattern, text, re.S)) for text in texts)

    @property
    def figures(self):
        outputs = (o for c in self.cells for o in c.get('outputs', []))
        return sum('image/png' in o.get('data', {}) for o in outputs)


def outside(address):
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


@dataclass
class Site:
    "The pages of a folder, and what is wrong with them: pairs (page, what)."

    folder: Path

    @cached_property
    def pages(self):
        found = sorted(self.folder.rglob('*.html'))
        return {path.resolve(): Page(path) for path in found}

    @cached_property
    def megabytes(self):
        files = (p for p in self.folder.rglob('*') if p.is_file())
        return sum(p.stat().st_size for p in files) / 1e6

    def target(self, address, page):
        "The file and the anchor of an address within the site."
        u = urlsplit(address)
        path = unquote(u.path)
        if not path:
            file = page
        elif path.startswith('/'):
            file = self.folder / path.lstrip('/')
        else:
            file = page.parent / path
        file = file / 'index.html' if file.is_dir() else file
        return file.resolve(), unquote(u.fragment)

    def breaches(self):
        "All of them; the browser looks while the files are read."
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(lambda: list(self.seen_breaches()))
            yield from self.read_breaches()
            yield from seen.result()

    def read_breaches(self):
        "What the files say."
        for path in tracked('nbs/**/*.ipynb'):
            yield from self.chapter_breaches(Notebook(path))
        for path, page in self.pages.items():
            name = str(path.relative_to(self.folder.resolve()))
            checks = (
                self.load_breaches(path, page),
                self.link_breaches(path, page),
                anchor_breaches(page),
                text_breaches(page),
            )
            for check in checks:
                yield from ((name, what) for what in check)
        yield from self.style_breaches()
        if self.megabytes > MEGABYTES:
            yield 'the site', f'has {self.megabytes:.1f} MB, at most {MEGABYTES}'

    def chapter_breaches(self, notebook):
        "Is the notebook there, with title, equations and figures?"
        place = notebook.path.relative_to(ROOT / 'nbs').with_suffix('.html')
        path = (self.folder / place).resolve()
        page = self.pages.get(path)
        if page is None:
            yield path.name, f'is missing, the page of nbs/{notebook.path.name}'
            return
        if [t.strip() for t in page.titles] != [notebook.title]:
            titles = f'{page.titles}, the notebook {notebook.title!r}'
            yield path.name, f'has the title {titles}'
            return
        if page.math < notebook.equations:
            said = f'{page.math} equations, the notebook has'
            yield path.name, f'shows {said} {notebook.equations}'
        shown = sum('figures/' in address for address in page.loads)
        if shown < notebook.figures:
            said = f'fewer than the {notebook.figures} figures of the notebook'
            yield path.name, f'shows {said}'

    def load_breaches(self, path, page):
        for address in page.loads:
            if address.startswith('data:'):
                continue
            if outside(address):
                yield f'loads {address} from elsewhere'
            elif not self.target(address, path)[0].exists():
                yield f'loads {address}, which is not there'

    def link_breaches(self, path, page):
        for address in page.links:
            if outside(address):
                continue
            file, anchor = self.target(address, path)
            if not file.exists():
                yield f'links to {address}, which is not there'
                continue
            known = self.pages[file].ids if file in self.pages else None
            if anchor in ('', '__skip') or known is None:
                continue
            if not known[anchor]:
                yield f'links to {address}, and there is no such anchor'

    def style_breaches(self):
        "What the style sheets load."
        pattern = r'(?:url\(|@import\s+)["\']?([^"\')]+)'
        for css in sorted(self.folder.rglob('*.css')):
            text = css.read_text(encoding='utf-8')
            for address in re.findall(pattern, text):
                if address.startswith(('data:', '#')):
                    continue
                there = (css.parent / urlsplit(address).path).exists()
                if outside(address) or not there:
                    yield str(css.relative_to(self.folder)), f'loads {address}'

    def seen_breaches(self):
        "What a browser shows."
        if may_be_left_out():
            print(f'nothing was looked at: {MISSING}')
            return
        with Chromium(WIDTH, 900) as browser:
            browser.width(WIDTH)
            yield from self.width_breaches(browser)
            yield from self.search_breaches(browser)

    def width_breaches(self, browser):
        "Blocks of code that are wider than their place."
        narrow = [self.folder / 'index.html', *self.folder.glob('[0-9]*.html')]
        for path in sorted(narrow):
            browser.open(path.resolve().as_uri())
            for block in browser.js(WIDE_BLOCKS):
                yield path.name, f'at {WIDTH} pixels scrolls: {block!r}'

    def search_breaches(self, browser):
        "Is what a reader looks for found, the right page first?"
        front = (self.folder / 'index.html').resolve().as_uri()
        browser.open(f'{front}?q=lrp')  # which reads the index
        first_found(browser)
        for query, page in SEARCHES.items():
            browser.js(ASK % json.dumps(query))
            first = first_found(browser)
            if not first.endswith(f'/{page}'):
                yield 'the search', f'finds {first} by {query!r}, not {page}'


def first_found(browser):
    "The page that the search names first, without what its address says of it."
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        address = browser.js(FIRST)
        if address:
            return re.split('[?#]', address)[0]
        time.sleep(0.1)
    return 'nothing'


# what was found before goes, so that what is there was found by this
ASK = """(query => {
  document.querySelectorAll('.md-search-result__item').forEach(e => e.remove());
  const input = document.querySelector('.md-search__input');
  input.value = query;
  input.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
})(%s)"""
FIRST = "document.querySelector('.md-search-result__item > a')?.href"
WIDE_BLOCKS = """
(() => {
  document.querySelectorAll('details').forEach(d => { d.open = true; });
  const wide = e => e.scrollWidth > e.clientWidth + 1;
  const blocks = [...document.querySelectorAll('article pre')];
  return blocks
    .filter(p => wide(p) || [...p.querySelectorAll('code')].some(wide))
    .map(p => p.textContent.trim().slice(0, 60));
})()
"""


def anchor_breaches(page):
    for name, n in page.ids.items():
        if n > 1:
            yield f'has the anchor {name!r} {n} times'
    for mark in page.marks:
        if mark == 'arithmatex':
            yield 'holds an equation that was not drawn'
        else:
            yield f'loads {mark} by style'


def text_breaches(page):
    "What a reader should not see."
    raw = ''.join(page.text)
    prose = ''.join(page.prose)
    for patterns, text, how in ((RAW, raw, ''), (PROSE, prose, AS_WRITTEN)):
        for what, pattern in patterns.items():
            for m in re.finditer(pattern, text, re.M):
                around = text[max(0, m.start() - 20) : m.end() + 60]
                yield f'shows {what}{how}: {around!r}'


AS_WRITTEN = ' as Markdown wrote it'


def build():
    "The site, by mkdocs; any warning ends it."
    words = [sys.executable, '-m', 'mkdocs', 'build', '--strict']
    words += ['-f', str(ROOT / 'docs' / 'mkdocs.yml')]
    env = os.environ | {'NO_MKDOCS_2_WARNING': '1'}
    if subprocess.run(words, env=env).returncode:
        sys.exit('the site was not built; what is wrong stands above')


def main(words):
    if '--build' in words:
        build()
    folders = [Path(word) for word in words if not word.startswith('--')]
    site = Site(folders[0] if folders else ROOT / '_docs')
    found = list(dict.fromkeys(site.breaches()))
    for page, what in found:
        print(f'{page}: {what}', file=sys.stderr)
    if found:
        sys.exit(f'{len(found)} breaches in {site.folder}')
    weight = f'{len(site.pages)} pages, {site.megabytes:.1f} MB'
    print(f'{weight}, in {site.folder} checked')


if __name__ == '__main__':
    main(sys.argv[1:])
