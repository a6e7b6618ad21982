"""The package's imports, read from the source.

python tests/rooms.py   what each room imports from

A room is a module or package directly below `lrp_loo`. All imports count: those
inside functions, and those that only type checkers read. `lrp_loo/__init__.py` and
`lrp_loo/__main__.py` are no rooms.
"""

import ast
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FRONT = ('__init__', '__main__')


class House:
    "The modules of the package."

    def __init__(self):
        root = ROOT / 'lrp_loo'
        paths = [p for p in sorted(root.rglob('*.py')) if p.name != '_modidx.py']
        names = {p: p.relative_to(root).with_suffix('').as_posix() for p in paths}
        self.text = {
            names[p].replace('/', '.'): p.read_text(encoding='utf-8') for p in paths
        }
        self.tree = {name: ast.parse(text) for name, text in self.text.items()}

    def imported(self, module):
        "Yield the modules that a module imports from."
        for node in ast.walk(self.tree[module]):
            if not isinstance(node, ast.ImportFrom):
                continue
            parts = (node.module or '').split('.')
            if node.level:
                parts = module.split('.')[: -node.level] + parts
            elif parts[0] == 'lrp_loo':
                parts = parts[1:]
            else:
                continue
            home = '.'.join(filter(None, parts))
            for alias in node.names:
                tried = f'{home}.{alias.name}'.strip('.'), home, f'{home}.__init__'
                yield from [name for name in tried if name in self.tree][:1]

    @cached_property
    def arrows(self):
        "Room → the rooms that it imports from."
        arrows = {}
        for module in self.tree:
            room = module.split('.')[0]
            below = {name.split('.')[0] for name in self.imported(module)}
            arrows.setdefault(room, set()).update(below - {room, '__init__'})
        return {room: below for room, below in arrows.items() if room not in FRONT}

    @property
    def circle(self):
        "The modules of an import circle, or []."
        arrows = {m: set(self.imported(m)) - {m, '__init__'} for m in self.tree}
        try:
            TopologicalSorter(arrows).prepare()
        except CycleError as e:
            return e.args[1]
        return []


if __name__ == '__main__':
    house = House()
    for room, below in house.arrows.items():
        print(f'{room}: {" ".join(sorted(below))}')
    n_arrows = sum(map(len, house.arrows.values()))
    print(f'{len(house.arrows)} rooms, {n_arrows} arrows, circle: {house.circle}')
