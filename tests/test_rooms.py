"Imports go one way through the package, those for type checkers too."

import pytest
from rooms import FRONT, House

FLOORS = (  # from below
    'core stats',
    'records models data',
    'inputs',
    'lrp loo',
    'estimate',
    'methods',
    'evaluate reports interop',
    'tasks paper',
    'cli',
)
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms.split()}
SOURCE = {
    'a/__init__': 'from .b import one',
    'a/b': 'one = 1',
    'c': 'if TYPE_CHECKING:\n    from lrp_loo.a import one',
    '__init__': 'from .c import late',
}


@pytest.fixture(scope='module')
def ours():
    return House()


@pytest.fixture
def house(tmp_path):
    "Builds a small package, with more modules if they are given."

    def build(**more):
        root = tmp_path / 'lrp_loo'
        for name, text in (SOURCE | more).items():
            path = root / f'{name}.py'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding='utf-8')
        return House(root)

    return build


def test_arrows_and_circles_are_found(house):
    assert house().arrows == {'a': set(), 'c': {'a'}}
    assert house().floors == {'a': 1, 'c': 2} and house().circle == []
    assert set(house(**{'a/d': 'from ..c import late'}).circle) <= {'a.b', 'a.d', 'c'}
    circle = house(**{'a/b': 'def f():\n    from ..c import late'}).circle
    assert {'a.b', 'c'} <= set(circle)


def test_modules_have_no_circle(ours):
    assert ours.circle == []


@pytest.mark.parametrize('room', FLOOR)
def test_nothing_imports_upwards(ours, room):
    floors = {below: FLOOR[below] for below in ours.arrows[room]}
    assert {below for below, floor in floors.items() if floor > FLOOR[room]} == set()


def test_every_room_has_a_floor(ours):
    assert set(ours.arrows) == set(FLOOR)
    rooms = {m.split('.')[0] for m in ours.tree} - set(FRONT)
    assert rooms == set(FLOOR)


def test_the_library_never_looks_at_the_paper_or_the_lab(ours):
    above = {room for room, below in ours.arrows.items() if 'paper' in below}
    assert above <= {'cli'}
    assert not [m for m, text in ours.text.items() if 'import lrp_lab' in text]
