"""Imports go one way through the package, those for type checkers too; each notebook
of nbs/lib is the source of one module, and says first what it is for.

python tests/test_rooms.py   what each room imports from

A room is a module or package directly below `lrp_loo`. All imports count: those
inside functions, and those that only type checkers read. `lrp_loo/__init__.py` and
`lrp_loo/__main__.py` are no rooms.
"""

import ast
import re
from collections import Counter
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import pytest
from pages import cells_of, sources
from tracked import ROOT, tracked

FRONT = ('__init__', '__main__')
FLOORS = (  # from below
    'core',
    'records models data',
    'inputs',
    'lrp loo',
    'estimate',
    'methods',
    'evaluate reports interop',
    'tasks',
    'cli',
    'paper',
)
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms.split()}
MOST_ARROWS = 70  # between rooms
PAGES = {p.stem: p for p in tracked('nbs/lib/*.ipynb')}


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


@pytest.fixture(scope='module')
def house():
    return House()


def test_rooms_have_floors_few_arrows_and_no_circle(house):
    assert set(house.arrows) == set(FLOOR)
    assert sum(map(len, house.arrows.values())) <= MOST_ARROWS
    assert house.circle == []


@pytest.mark.parametrize('room', FLOOR)
def test_nothing_imports_upwards(house, room):
    floors = {below: FLOOR[below] for below in house.arrows[room]}
    assert {below for below, floor in floors.items() if floor > FLOOR[room]} == set()


def test_the_library_never_looks_at_the_paper_or_the_lab(house):
    assert not [room for room, below in house.arrows.items() if 'paper' in below]
    assert not [m for m, text in house.text.items() if 'import lrp_lab' in text]


def test_the_front_is_short_and_imports_what_describes_names_alone(house):
    assert len(house.text['__init__'].splitlines()) < 40
    assert list(house.imported('__init__')) == ['core.tools', 'core.arguments']
    assert (ROOT / 'lrp_loo' / '__init__.pyi').is_file()


@pytest.mark.parametrize('name', PAGES)
def test_a_page_says_first_what_its_module_is_for(name):
    assert cells_of(PAGES[name])[0]['cell_type'] == 'markdown'
    title, line, *_ = sources(PAGES[name], 'markdown')[0].split('\n\n')
    assert title.startswith('# ') and line.startswith('> ')


def test_a_module_has_one_notebook():
    homes = Counter(
        match[1]
        for path in PAGES.values()
        for source in sources(path, 'code')
        if (match := re.search(r'#\|\s*default_exp (\S+)', source))
    )
    assert max(homes.values()) == 1
    assert sum(homes.values()) == len(PAGES)


if __name__ == '__main__':
    house = House()
    for room, below in house.arrows.items():
        print(f'{room}: {" ".join(sorted(below))}')
    n_arrows = sum(map(len, house.arrows.values()))
    print(f'{len(house.arrows)} rooms, {n_arrows} arrows, circle: {house.circle}')
