"""README.md from nbs/index.ipynb, without Quarto.

python .ci/readme.py [--check]

Code cells that start with `#| echo: false` show their output only, those with
`#| hide` nothing.
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
HEAD = '<!-- made from nbs/index.ipynb by `make readme`: edit that -->\n\n'


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
        if o.output_type == 'stream' and o.name == 'stdout':
            printed += o.text
        elif 'text/markdown' in o.get('data', {}):
            parts += [block(printed), o.data['text/markdown']]
            printed = ''
    parts.append(block(printed))
    return '\n\n'.join(filter(None, parts))


def block(printed):
    return f'```\n{printed.rstrip()}\n```' if printed.strip() else ''


def readme():
    "The whole text; links to notebooks and files as they are from the root."
    nb = nbformat.read(ROOT / 'nbs' / 'index.ipynb', 4)
    texts = (cell_text(cell).strip() for cell in nb.cells)
    text = '\n\n'.join(filter(None, texts))
    text = re.sub(r'\]\(((?:lib/|guide/)?\w+\.ipynb(#[^)]*)?)\)', r'](nbs/\1)', text)
    return HEAD + text.replace('](../', '](') + '\n'


if __name__ == '__main__':
    path = ROOT / 'README.md'
    if '--check' not in sys.argv:
        path.write_text(readme(), encoding='utf-8')
    elif path.read_text(encoding='utf-8') != readme():
        sys.exit('README.md is not what nbs/index.ipynb says: run `make readme`')
