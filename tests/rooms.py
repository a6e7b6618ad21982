"""The package's imports, read from the source.

python tests/rooms.py   rooms by floor, arrows, lines, functions

A room is a module or package directly below `lrp_loo`. All imports count: those
inside functions, and those that only type checkers read. `lrp_loo/__init__.py`,
which loads every public name, and `lrp_loo/__main__.py` are no rooms.
"""

import ast
from collections import Counter
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FRONT = ('__init__', '__main__')


class House:
    "The modules of a package in a folder."

    def __init__(self, root=ROOT / 'lrp_loo'):
        paths = [p for p in sorted(root.rglob('*.py')) if p.name != '_modidx.py']
        names = {p: p.relative_to(root).with_suffix('').as_posix() for p in paths}
        self.package = root.name
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
            elif parts[0] == self.package:
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

    @cached_property
    def floors(self):
        "Room → its floor: one above the highest room that it imports from."
        floors = {}
        for room in TopologicalSorter(self.arrows).static_order():
            below = self.arrows[room]
            floors[room] = 1 + max((floors[r] for r in below), default=0)
        return floors

    @property
    def circle(self):
        "The modules of an import circle, or []."
        arrows = {m: set(self.imported(m)) - {m, '__init__'} for m in self.tree}
        try:
            TopologicalSorter(arrows).prepare()
        except CycleError as e:
            return e.args[1]
        return []

    def weights(self, modules):
        "Count lines and functions, and private functions that are called once."
        used = Counter(
            getattr(node, 'id', None) or node.attr
            for tree in self.tree.values()
            for node in ast.walk(tree)
            if isinstance(node, (ast.Name, ast.Attribute))
        )
        nodes = [n for m in modules for n in ast.walk(self.tree[m])]
        names = [
            n.name for n in nodes if isinstance(n, FUNCTIONS) and n.name[:2] != '__'
        ]
        private = [name for name in names if name[0] == '_']
        return dict(
            lines=sum(len(self.text[m].splitlines()) for m in modules),
            functions=len(names),
            private=len(private),
            called_once=sum(used[name] <= 1 for name in private),
        )


def main():
    house = House()
    for floor in sorted(set(house.floors.values()), reverse=True):
        print(floor, *sorted(r for r, f in house.floors.items() if f == floor))
    arrows = sum(map(len, house.arrows.values()))
    print(f'{len(house.arrows)} rooms, {arrows} arrows, circle: {house.circle}')
    paper = [m for m in house.tree if m.startswith('paper.')]
    print('library', house.weights([m for m in house.tree if m not in paper]))
    print('paper', house.weights(paper))


if __name__ == '__main__':
    main()
