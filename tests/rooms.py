"""The package's rooms: which module imports which, read from the source.

python tests/rooms.py   rooms by floor, arrows, lines, functions, as a table

A room is a module or package right below `lrp_loo`. An import inside of a
function counts like one at a module's head; one that type checkers alone read
(`if TYPE_CHECKING:`) does not. `lrp_loo/__init__.py`, which hands out every public
name, and `lrp_loo/__main__.py` are doors, and no rooms.
"""

import ast
from collections import Counter
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def running(tree):
    "The nodes of a module but those below `if TYPE_CHECKING:`."
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
            continue
        yield node
        yield from running(node)


class House:
    "The modules of a package as they stand in a folder."

    def __init__(self, root=ROOT / 'lrp_loo'):
        paths = [p for p in sorted(root.rglob('*.py')) if p.name != '_modidx.py']
        names = {p: p.relative_to(root).with_suffix('').as_posix() for p in paths}
        self.package = root.name
        self.text = {
            names[p].replace('/', '.'): p.read_text(encoding='utf-8') for p in paths
        }
        self.tree = {name: ast.parse(text) for name, text in self.text.items()}

    def imported(self, module):
        "The modules that one takes something from."
        for node in running(self.tree[module]):
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
        "Room → the rooms that it takes from."
        found = {}
        for module in self.tree:
            here = module.split('.')[0]
            there = {name.split('.')[0] for name in self.imported(module)}
            found.setdefault(here, set()).update(there - {here, '__init__'})
        for door in ('__init__', '__main__'):
            found.pop(door, None)
        return found

    @cached_property
    def floors(self):
        """Room → its floor: one above the highest that it takes from. Rooms of a
        circle, and what stands on one, have none.
        """
        floors = {}
        while new := {
            room: 1 + max((floors[r] for r in below), default=0)
            for room, below in self.arrows.items()
            if room not in floors and below <= floors.keys()
        }:
            floors.update(new)
        return floors

    def weights(self, modules):
        "Lines and functions of some modules; called once: by name, in all of them."
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
    print(
        f'{len(house.arrows)} rooms, {max(house.floors.values())} floors, {arrows} arrows'
    )
    paper = [m for m in house.tree if m.startswith('paper.')]
    print('library', house.weights([m for m in house.tree if m not in paper]))
    print('paper', house.weights(paper))


if __name__ == '__main__':
    main()
