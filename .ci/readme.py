"""README.md from nbs/index.ipynb, without Quarto.   python .ci/readme.py [--check]
Code cells that start with `#| echo: false` show their output only, those with `#| hide` nothing."""
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def cell_text(cell):
    if cell.cell_type == 'markdown': return cell.source
    if cell.source.startswith('#| hide'): return ''
    parts = [] if cell.source.startswith('#| echo: false') else [f'```python\n{cell.source}\n```']
    for o in cell.outputs:
        data = o.get('data', {})
        if 'text/markdown' in data: parts.append(data['text/markdown'])
        elif o.output_type == 'stream' and o.name == 'stdout': parts.append(f'```\n{o.text.rstrip()}\n```')
    return '\n\n'.join(parts)


def readme():
    nb = nbformat.read(ROOT/'nbs'/'index.ipynb', 4)
    text = '\n\n'.join(t for c in nb.cells if (t := cell_text(c).strip()))
    text = re.sub(r'\]\((\w+\.ipynb(#[^)]*)?)\)', r'](nbs/\1)', text).replace('](../', '](')
    return '<!-- made from nbs/index.ipynb by `make readme`: edit that -->\n\n' + text + '\n'


if __name__ == '__main__':
    path = ROOT/'README.md'
    if '--check' not in sys.argv: path.write_text(readme(), encoding='utf-8')
    elif path.read_text(encoding='utf-8') != readme(): sys.exit('README.md is not what nbs/index.ipynb says: run `make readme`')
