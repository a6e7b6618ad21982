"What the lab's tests share with those of the tool, and more of their own."

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / 'tests'
LAB = ROOT / 'research'
sys.path.append(str(HOUSE))
spec = importlib.util.spec_from_file_location('house', HOUSE / 'conftest.py')
house = importlib.util.module_from_spec(spec)
sys.modules['house'] = house
spec.loader.exec_module(house)
globals().update({k: v for k, v in vars(house).items() if k[0] != '_'})

from test_experiments import folder  # noqa: E402, F401
from tracked import tracked  # noqa: E402


@pytest.fixture(scope='session')
def kept_results(tmp_path_factory):
    """A folder like `results/`, with the rows that are kept and no others: the
    paper's and the lab's beside one another.
    """
    found = tmp_path_factory.mktemp('results')
    for home in (ROOT, LAB):
        name = home.relative_to(ROOT).as_posix().removeprefix('.')
        start = f'{name}/results/**/*'.removeprefix('/')
        for path in tracked(f'{start}.json', f'{start}.json.gz'):
            kept = found / path.relative_to(home / 'results')
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.symlink_to(path)
    return found


@pytest.fixture(scope='module')
def shallow_parts():
    """The demo models of studies have two layers: a third of the rule sets and
    of the work, and every step of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lrp_lab.parts.load_demo', house.shallow_demo)
        yield
