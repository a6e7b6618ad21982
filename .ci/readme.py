"""Write README.md from nbs/index.ipynb, and the picture in it.

python .ci/readme.py [--check]

Code cells that start with `#| echo: false` show their output only, those with
`#| hide` nothing. Links are relative: a release makes them absolute (.ci/wheel.py). The
explanation that a notebook shows as HTML is a picture here, .github/front.png: Chromium
draws it again if the cell's output has changed.
"""

import re
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

import chromium  # noqa: E402

HEAD = '<!-- made from nbs/index.ipynb by `make readme`: edit that -->\n\n'
PICTURE = '.github/front.png'
SHOWN = 'The sentence, each word coloured by what the answer loses without it'
LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)(?= "|\))')


def cell_text(cell):
    "A cell as Markdown."
    if cell.cell_type == 'markdown':
        return cell.source
    if cell.source.startswith('#| hide'):
        return ''
    parts = []
    if not cell.source.startswith('#| echo: false'):
        parts.append(f'```python\n{cell.source}\n```')
    printed = ''  # one block, however many pieces it came in
    for o in cell.outputs:
        data = o.get('data', {})
        if o.output_type == 'stream' and o.name == 'stdout':
            printed += o.text
        elif 'text/markdown' in data:
            parts += [block(printed), data['text/markdown']]
            printed = ''
        elif 'text/html' in data:
            parts += [block(printed), f'![{SHOWN}](../{PICTURE})']
            printed = ''
    parts.append(block(printed))
    return '\n\n'.join(filter(None, parts))


def block(printed):
    return f'```\n{printed.rstrip()}\n```' if printed.strip() else ''


def from_root(match):
    "A link of nbs/ as it is written from the root of the repository."
    sign, words, target = match.groups()
    if not re.match(r'https?:|#', target):
        target = target[3:] if target.startswith('../') else f'nbs/{target}'
    return f'{sign}[{words}]({target}'


def cells():
    return nbformat.read(ROOT / 'nbs' / 'index.ipynb', 4).cells


def readme():
    "The whole text."
    texts = (cell_text(cell).strip() for cell in cells())
    text = '\n\n'.join(filter(None, texts))
    return f'{HEAD}{LINK.sub(from_root, text)}\n'


def explanation():
    "The one output that is HTML."
    outputs = (o for cell in cells() for o in cell.get('outputs', ()))
    data = (o.get('data', {}) for o in outputs)
    (found,) = (d['text/html'] for d in data if set(d) == {'text/html', 'text/plain'})
    return found


def picture_of():
    "The mark of the output that the picture was drawn from; none without a picture."
    path = ROOT / PICTURE
    if not path.exists():
        return None
    with Image.open(path) as image:
        return image.info.get('of')


def mark(text):
    return sha256(text.encode()).hexdigest()


def draw(text):
    "On white, which a dark page shows as a card; two pixels for one."
    body = f'<body style="margin:0;font:16px/1.5 sans-serif;background:#fff">{text}'
    with TemporaryDirectory() as folder, chromium.Chromium() as browser:
        page = Path(folder) / 'page.html'
        page.write_text(f'<!doctype html><meta charset="utf-8">{body}', 'utf-8')
        size = dict(width=760, height=400, deviceScaleFactor=2, mobile=False)
        browser('Emulation.setDeviceMetricsOverride', **size)
        browser.open(page.as_uri())
        box = browser.js(
            "(() => { const b = document.querySelector('.lrp-loo')"
            '.getBoundingClientRect(); return [b.right, b.bottom] })()'
        )
        shot = Path(folder) / 'shot.png'
        browser.picture(shot)
        about = PngInfo()
        about.add_text('of', mark(text))
        with Image.open(shot) as image:
            image = image.crop((0, 0, *(round(2 * x) for x in box))).convert('RGB')
        image.save(ROOT / PICTURE, optimize=True, pnginfo=about)


def main(checked):
    path = ROOT / 'README.md'
    stale = picture_of() != mark(explanation())
    if not checked:
        path.write_text(readme(), encoding='utf-8')
        if stale and chromium.find():
            draw(explanation())
        elif stale:
            print(f'{PICTURE} is of another output; to draw it {chromium.MISSING}')
    elif path.read_text(encoding='utf-8') != readme():
        sys.exit('README.md is not what nbs/index.ipynb says: run `make readme`')
    elif stale:
        sys.exit(f'{PICTURE} is not what nbs/index.ipynb shows: run `make readme`')


if __name__ == '__main__':
    main('--check' in sys.argv)
