"""How the code is written, as a table.   python .ci/measure.py [--check]

A code line is counted without its comment; docstrings, blank lines, the
`__all__` that nbdev writes and `_modidx.py` are left out. A function's tokens
are Python's own, without comments, docstrings and line ends; its complexity is
ruff's (C901).
`--check` names each breach of the bounds below, and exits with 1 if there is
one.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

from tracked import tracked  # noqa: E402

GROUPS = {  # what a row of the table covers
    'package': ('lrp_loo/*.py', 'lrp_loo/studies/*.py'),
    'notebooks': ('nbs/*.ipynb',),
    'tests': ('tests/*.py',),
    'tools': ('benchmarks/*.py', '.ci/*.py', 'docs/*.py'),
}
WIDEST = 100  # columns of any code line
USUAL = 85  # columns of nine lines in ten
COMPLEXITY = 10
CHAPTERS = r'(0\d_\w+|index)\.ipynb'  # the paper's, and the front page
CELL_LINES = 20
CELL_COLUMNS = 80
SHARED = {  # names that mean the same in two modules, on purpose
    'explain',  # the function and the command
    'audit',
    'sweep',
    'summarize',
    'accuracy',  # of a text model, of the images' network
    'STUDIES',  # what `reproduce` collects
}
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass
class Unit:
    "A module, or a notebook's cell."

    where: str  # path, and the cell's number from 1
    source: str

    def __post_init__(self):
        self.tree = ast.parse(self.source)
        reader = io.StringIO(self.source).readline
        self.tokens = list(tokenize.generate_tokens(reader))
        self.skipped = set(_skipped_lines(self.tree))


@dataclass
class Counts:
    "What one row of the table is made of."

    lines: list = field(default_factory=list)  # (where, length)
    semicolons: list = field(default_factory=list)  # where
    functions: list = field(default_factory=list)  # (where, tokens)
    complexity: list = field(default_factory=list)  # (where, complexity)


def _docstring(node):
    "The statement that is a node's docstring, or None."
    if not isinstance(
        node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        return None
    if ast.get_docstring(node, clean=False) is None:
        return None
    return node.body[0]


def _skipped_lines(tree):
    "Lines of docstrings and of nbdev's `__all__`."
    for node in ast.walk(tree):
        said = _docstring(node)
        if said is not None:
            yield from range(said.lineno, said.end_lineno + 1)
    for node in tree.body:
        if isinstance(node, ast.Assign) and bound(node) == ['__all__']:
            yield from range(node.lineno, node.end_lineno + 1)


def bound(node):
    "The names that a statement at a module's top binds; imports bind none."
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return [node.name]
    targets = getattr(node, 'targets', None) or [getattr(node, 'target', None)]
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return []
    return [
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]


def code_cells(path):
    "Number from 1 and source of a notebook's code cells; magics are no code."
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    for number, cell in enumerate(cells, 1):
        source = ''.join(cell['source'])
        magic = re.search(r'^\s*[%!]', source, re.M)
        if cell['cell_type'] == 'code' and not magic:
            yield number, source


def units(path):
    "The units of a file."
    name = str(path.relative_to(ROOT))
    if path.suffix == '.py':
        return [Unit(name, path.read_text(encoding='utf-8'))]
    return [Unit(f'{name}, cell {n}', text) for n, text in code_cells(path)]


def paths(group):
    "The files of a row, nbdev's index left out."
    return [p for p in tracked(*GROUPS[group]) if p.name != '_modidx.py']


def line_lengths(unit):
    "Number and length of each code line, without its comment."
    text = unit.source.splitlines()
    ends = {}
    for token in unit.tokens:
        if token.type in LAYOUT:
            continue
        first, last = token.start[0], token.end[0]
        for line in range(first, last):  # of a string over several lines
            ends[line] = len(text[line - 1])
        ends[last] = max(ends.get(last, 0), token.end[1])
    return [(n, ends[n]) for n in sorted(set(ends) - unit.skipped)]


def function_tokens(unit):
    "Line and number of tokens of each function and method, inner ones too."
    counted = [
        t.start[0]
        for t in unit.tokens
        if t.type not in LAYOUT and t.start[0] not in unit.skipped
    ]
    for node in ast.walk(unit.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = range(node.lineno, node.end_lineno + 1)
            yield node.lineno, sum(line in inside for line in counted)


def complexities(files):
    "Where and how much, of each function: ruff's, asked with no allowance."
    words = [sys.executable, '-m', 'ruff', 'check', '--isolated']
    words += ['--select', 'C901', '--output-format', 'json', '--no-cache']
    words += ['--config', 'lint.mccabe.max-complexity=0', *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f'ruff: {done.stderr.strip()}')
    for found in json.loads(done.stdout):
        name, value = re.search(
            r'`(.+)` is too complex \((\d+) ', found['message']
        ).groups()
        path = Path(found['filename']).relative_to(ROOT)
        yield f'{path}, {name}', int(value)


def count(group):
    "Everything that is counted in the files of one row."
    counts = Counts()
    for path in paths(group):
        for unit in units(path):
            counts.lines += [
                (f'{unit.where}:{n}', length)
                for n, length in line_lengths(unit)
            ]
            counts.semicolons += [
                f'{unit.where}:{t.start[0]}'
                for t in unit.tokens
                if t.type == tokenize.OP and t.string == ';'
            ]
            counts.functions += [
                (f'{unit.where}:{n}', tokens)
                for n, tokens in function_tokens(unit)
            ]
    counts.complexity = list(complexities(paths(group)))
    return counts


def percentile(values, share):
    "The smallest value that so large a share does not exceed."
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * share // 100) - 1)]


def table_row(group, counts):
    "A line of the table, the columns of the issue."
    lengths = [length for _, length in counts.lines]
    over = sum(length > 120 for length in lengths) / len(lengths)
    semicolons = len(set(counts.semicolons)) / len(lengths)
    spread = ' / '.join(str(percentile(lengths, s)) for s in (50, 90, 99))
    tokens = percentile([n for _, n in counts.functions], 90)
    complexity = percentile([n for _, n in counts.complexity], 90)
    return (
        f'| {group} | {len(lengths):,} | {spread} | {max(lengths)} |'
        f' {over:.1%} | {semicolons:.1%} | {tokens} | {complexity} |'
    )


HEAD = """\
| code lines | number | median / 90th / 99th | longest | over 120 \
| semicolons | function tokens, 90th | complexity, 90th |
|---|---|---|---|---|---|---|---|"""


def group_breaches(group, counts):
    "What goes beyond the bounds in the files of one row."
    usual = percentile([length for _, length in counts.lines], 90)
    if usual > USUAL:
        yield f'{group}: 90th percentile of line lengths {usual} > {USUAL}'
    for where, length in counts.lines:
        if length > WIDEST:
            yield f'{where}: {length} columns'
    for where in counts.semicolons:
        yield f'{where}: a semicolon'
    for where, value in counts.complexity:
        if value > COMPLEXITY:
            yield f'{where}: complexity {value}'


def name_breaches():
    "Public names at the top of two modules of the package."
    homes = defaultdict(set)
    for path in paths('package'):
        for statement in units(path)[0].tree.body:
            for name in bound(statement):
                homes[name].add(str(path.relative_to(ROOT)))
    for name, where in sorted(homes.items()):
        special = name.startswith('_') or name in SHARED
        if len(where) > 1 and not special:
            yield f'{name} is defined in {" and in ".join(sorted(where))}'


def cell_breaches(path):
    "Cells that a reader has to scroll, comments counted."
    for number, source in code_cells(path):
        where = f'{path.relative_to(ROOT)}, cell {number}'
        lines = source.splitlines()
        shown = [x for x in lines if not x.startswith('#|') and x.strip()]
        if len(shown) > CELL_LINES:
            yield f'{where}: {len(shown)} lines'
        for n, line in enumerate(lines, 1):
            if len(line) > CELL_COLUMNS:
                yield f'{where}:{n}: {len(line)} columns'


def breaches(counted):
    "All of them. `counted`: group → Counts."
    for group, counts in counted.items():
        yield from group_breaches(group, counts)
    yield from name_breaches()
    for path in paths('notebooks'):
        if re.fullmatch(CHAPTERS, path.name):
            yield from cell_breaches(path)


def main(words):
    "The table, and with --check the breaches; the exit code."
    counted = {group: count(group) for group in GROUPS}
    print(HEAD)
    for group, counts in counted.items():
        print(table_row(group, counts))
    print('\nLeft out: `__all__` of the package and `_modidx.py`, by nbdev.')
    if '--check' not in words:
        return 0
    found = list(breaches(counted))
    for breach in found:
        print(breach, file=sys.stderr)
    if found:
        print(f'{len(found)} breaches', file=sys.stderr)
    return int(bool(found))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
