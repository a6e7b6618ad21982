"""What must hold of the built site, each breach named with its page.   python .ci/site.py [--build] [FOLDER, default _docs]
`--build` makes it first, by docs/mkdocs.yml; a warning there is a failure. Every page of nbs/ is there with its title; links, anchors and pictures resolve; nothing is loaded from elsewhere; no directive, traceback, LaTeX or Markdown shows raw; equations are MathML.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
LOADS = {
    ('script', 'src'),
    ('img', 'src'),
    ('img', 'srcset'),
    ('iframe', 'src'),
    ('source', 'src'),
    ('video', 'src'),
    ('audio', 'src'),
    ('object', 'data'),
    ('embed', 'src'),
    ('image', 'href'),
    ('use', 'href'),
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
    'LaTeX': (
        r'\$[^$\n]*\\[A-Za-z]+|\\(?:frac|sum|mathrm|begin|partial|[(\[])|\$\$'
    ),
    'a link': r'\]\([\w./#-]+\)',
    'bold': r'(?<!\w)\*\*\w[^*\n]*\*\*',
    'a table': r'^\s*\|.*\|\s*$',
    'a list': r'^\s*(?:[*-]|\d+\.) \S',
    'a heading': r'^#{1,6} \S',
    'code': r'`[^`]+`',
    'attributes': r'\{\s*[.#:][\w-]+\s*\}',
}


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
        if tag not in (
            'meta',
            'link',
            'img',
            'br',
            'input',
            'hr',
            'source',
            'path',
            'mspace',
        ):
            self.stack.append(
                tag
                + (
                    '.output'
                    if 'output' in (a.get('class') or '').split()
                    else ''
                )
            )
        if a.get('id'):
            self.ids[a['id']] += 1
        if tag == 'a' and a.get('name'):
            self.ids[a['name']] += 1
        if tag == 'a' and 'href' in a:
            self.links.append(a['href'])
        if tag == 'link' and set((a.get('rel') or '').split()) & LOADED_LINKS:
            self.loads.append(a['href'])
        self.loads += [a[k] for t, k in LOADS if t == tag and a.get(k)]
        self.marks += re.findall(r'url\(([^)]*)\)', a.get('style') or '')
        if tag == 'math':
            self.math += 1
        if 'arithmatex' in (a.get('class') or ''):
            self.marks.append('arithmatex')
        if tag == 'h1':
            self.titles.append('')

    def handle_endtag(self, tag):
        if tag in [t.split('.')[0] for t in self.stack]:
            while self.stack.pop().split('.')[0] != tag:
                pass
        if tag in ('p', 'li', 'td', 'th', 'h1', 'h2', 'h3', 'div', 'tr'):
            self.prose.append('\n')

    def handle_data(self, data):
        if 'style' in self.stack:
            self.loads += [
                u.strip('"\'')
                for u in re.findall(r'url\(([^)]*)\)', data)
                if not u.strip('"\'').startswith('data:')
            ]
        if {'script', 'style'} & set(self.stack):
            return
        if 'article' in self.stack:
            self.text.append(data)
            if (
                not {'code', 'pre', 'math'} & set(self.stack)
                and 'div.output' not in self.stack
            ):
                self.prose.append(data)
        if 'h1' in self.stack and 'a' not in self.stack:
            self.titles[-1] += data


def outside(address):
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def target(address, page, site, base):
    "The file and the anchor of an address within the site."
    u = urlsplit(address)
    path = unquote(u.path)
    file = (
        page
        if not path
        else (
            site / path.removeprefix(base).lstrip('/')
            if path.startswith('/')
            else page.parent / path
        )
    )
    return (file / 'index.html' if file.is_dir() else file).resolve(), unquote(
        u.fragment
    )


def breaches(site):
    "Every breach as (page, what)."
    settings = ConfigParser(delimiters=['='], interpolation=None)
    settings.read(ROOT / 'settings.ini', encoding='utf-8')
    base = settings['DEFAULT']['doc_baseurl'] + '/'
    pages = {p.resolve(): Page(p) for p in sorted(site.rglob('*.html'))}
    for nb in sorted((ROOT / 'nbs').glob('*.ipynb')):
        cells = json.loads(nb.read_text(encoding='utf-8'))['cells']
        page = (site / f'{nb.stem}.html').resolve()
        title = re.search(r'^# (.*)$', ''.join(cells[0]['source']), re.M)[1]
        if page not in pages:
            yield page.name, f'is missing, the page of nbs/{nb.name}'
        elif [t.strip() for t in pages[page].titles] != [
            title.replace('`', '')
        ]:
            yield (
                page.name,
                f'has the title {pages[page].titles}, the notebook {title!r}',
            )
        else:
            equations = sum(
                len(
                    re.findall(
                        r'\$\$.+?\$\$|(?<!\\)\$[^$\n]+?\$',
                        re.sub(
                            r'```.*?```|`[^`]*`',
                            '',
                            ''.join(c['source']),
                            flags=re.S,
                        ),
                        re.S,
                    )
                )
                for c in cells
                if c['cell_type'] == 'markdown'
            )
            if pages[page].math < equations:
                yield (
                    page.name,
                    (
                        f'shows {pages[page].math} equations, the notebook has'
                        f' {equations}'
                    ),
                )
            figures = sum(
                'image/png' in o.get('data', {})
                for c in cells
                for o in c.get('outputs', [])
            )
            if sum('figures/' in x for x in pages[page].loads) < figures:
                yield (
                    page.name,
                    f'shows fewer than the {figures} figures of the notebook',
                )
    for module in sorted((ROOT / 'lrp_loo').glob('[a-z]*.py')):
        if not (site / 'reference' / f'{module.stem}.html').exists():
            yield f'reference/{module.stem}.html', 'is missing'
    for path, page in pages.items():
        name = str(path.relative_to(site.resolve()))
        for address in page.loads:
            if address.startswith('data:'):
                continue
            if outside(address):
                yield name, f'loads {address} from elsewhere'
            elif not target(address, path, site, base)[0].exists():
                yield name, f'loads {address}, which is not there'
        for address in page.links:
            if outside(address):
                continue
            file, anchor = target(address, path, site, base)
            if not file.exists():
                yield name, f'links to {address}, which is not there'
            elif (
                anchor
                and file in pages
                and not pages[file].ids[anchor]
                and anchor != '__skip'
            ):
                yield name, f'links to {address}, and there is no such anchor'
        for i, n in page.ids.items():
            if n > 1:
                yield name, f'has the anchor {i!r} {n} times'
        for mark in page.marks:
            yield (
                name,
                (
                    'holds an equation that was not drawn'
                    if mark == 'arithmatex'
                    else f'loads {mark} by style'
                ),
            )
        for what, pattern in RAW.items():
            for m in re.finditer(pattern, ''.join(page.text), re.M):
                yield (
                    name,
                    (
                        f'shows {what}:'
                        f' {m.string[max(0, m.start() - 20) : m.end() + 60]!r}'
                    ),
                )
        for what, pattern in PROSE.items():
            for m in re.finditer(pattern, ''.join(page.prose), re.M):
                yield (
                    name,
                    (
                        f'shows {what} as Markdown wrote it:'
                        f' {m.string[max(0, m.start() - 20) : m.end() + 60]!r}'
                    ),
                )
    for css in sorted(site.rglob('*.css')):
        for address in re.findall(
            r'(?:url\(|@import\s+)["\']?([^"\')]+)',
            css.read_text(encoding='utf-8'),
        ):
            if address.startswith(('data:', '#')):
                continue
            if (
                outside(address)
                or not (css.parent / urlsplit(address).path).exists()
            ):
                yield str(css.relative_to(site)), f'loads {address}'


if __name__ == '__main__':
    build = [
        sys.executable,
        '-m',
        'mkdocs',
        'build',
        '--strict',
        '-f',
        str(ROOT / 'docs' / 'mkdocs.yml'),
    ]
    if (
        '--build' in sys.argv
        and subprocess.run(
            build, env=os.environ | {'NO_MKDOCS_2_WARNING': '1'}
        ).returncode
    ):
        sys.exit('the site was not built; what is wrong stands above')
    site = next(
        (Path(a) for a in sys.argv[1:] if not a.startswith('--')),
        ROOT / '_docs',
    )
    found = list(dict.fromkeys(breaches(site)))
    for page, what in found:
        print(f'{page}: {what}', file=sys.stderr)
    if found:
        sys.exit(f'{len(found)} breaches in {site}')
    print(f'{len(list(site.rglob("*.html")))} pages of {site} checked')
