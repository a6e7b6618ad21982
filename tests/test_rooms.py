"Imports go one way through the package, those for type checkers too."

import pytest
from rooms import ROOT, House

FLOORS = (  # from below
    'core',
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
MOST_ARROWS = 75  # between rooms


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
    above = {room for room, below in house.arrows.items() if 'paper' in below}
    assert above <= {'cli'}
    assert not [m for m, text in house.text.items() if 'import lrp_lab' in text]


def test_the_front_is_short_and_imports_nothing_of_the_package(house):
    assert len(house.text['__init__'].splitlines()) < 40
    assert not list(house.imported('__init__'))
    assert (ROOT / 'lrp_loo' / '__init__.pyi').is_file()
