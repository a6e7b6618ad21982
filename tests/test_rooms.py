"Data flows one way through the package's rooms."

import pytest
from rooms import House

SOURCE = {
    'a/__init__': 'from .b import one',
    'a/b': 'one = 1',
    'c': 'def late():\n    from lrp_loo.a import one',
    '__init__': 'from .c import late',
}


@pytest.fixture
def house(tmp_path):
    "A small package, more modules as they are given."

    def built(**more):
        root = tmp_path / 'lrp_loo'
        for name, text in (SOURCE | more).items():
            path = root / f'{name}.py'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding='utf-8')
        return House(root)

    return built


def test_a_room_stands_above_what_it_takes_from(house):
    small = house()
    assert small.arrows == {'a': set(), 'c': {'a'}}
    assert small.floors == {'a': 1, 'c': 2}


def test_a_circle_has_no_floor(house):
    assert house(**{'a/d': 'from ..c import late'}).floors == {}


def test_no_room_stands_in_a_circle():
    ours = House()
    assert set(ours.arrows) == set(ours.floors)


def test_the_library_never_looks_at_the_paper_or_the_lab():
    ours = House()
    above = {room for room, below in ours.arrows.items() if 'paper' in below}
    assert above <= {'cli'}
    assert not [m for m, text in ours.text.items() if 'import lrp_lab' in text]
