"""README.md from nbs/index.ipynb, without Quarto.   python .ci/readme.py [--check]
Code cells that start with `#| echo: false` show their output only, those with `#| hide` nothing.
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def cell_text(cell):
    if cell.cell_type == 'markdown':
        return cell.source
    if cell.source.startswith('#| hide'):
        return ''
    parts = (
        []
        if cell.source.startswith('#| echo: false')
        else [f'```python\n{cell.source}\n```']
    )
    printed = ''
    for o in cell.outputs:
        if o.output_type == 'stream' and o.name == 'stdout':
            printed += o.text  # one block, however many pieces it came in
        elif 'text/markdown' in o.get('data', {}):
            parts += [block(printed), o.data['text/markdown']]
            printed = ''
    return '\n\n'.join(filter(None, [*parts, block(printed)]))


def block(printed):
    return f'```\n{printed.rstrip()}\n```' if printed.strip() else ''


def readme():
    nb = nbformat.read(ROOT / 'nbs' / 'index.ipynb', 4)
    text = '\n\n'.join(t for c in nb.cells if (t := cell_text(c).strip()))
    text = re.sub(r'\]\((\w+\.ipynb(#[^)]*)?)\)', r'](nbs/\1)', text).replace(
        '](../', ']('
    )
    return (
        '<!-- made from nbs/index.ipynb by `make readme`: edit that -->\n\n'
        + text
        + '\n'
    )


if __name__ == '__main__':
    path = ROOT / 'README.md'
    if '--check' not in sys.argv:
        path.write_text(readme(), encoding='utf-8')
    elif path.read_text(encoding='utf-8') != readme():
        sys.exit(
            'README.md is not what nbs/index.ipynb says: run `make readme`'
        )
