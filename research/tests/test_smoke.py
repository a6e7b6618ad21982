"Each study of the lab on one text, by demo models of two layers: what CI runs."

import sys

import pytest
from conftest import shallow_demo

from lrp_lab import __main__ as run
from lrp_loo.records.results import read_results

WORDS = run.groups_of(run.studies())['all']


@pytest.fixture(scope='module', autouse=True)
def shallow():
    with pytest.MonkeyPatch.context() as patch:
        for name in run.MODULES + ('lrp_lab.parts',):
            if hasattr(sys.modules[name], 'load_demo'):
                patch.setattr(f'{name}.load_demo', shallow_demo)
        yield


@pytest.mark.parametrize('word', WORDS)
def test_a_study_runs_on_one_text(word, tmp_path):
    run.reproduce(word, data='embedded', limit=1, out=str(tmp_path))
    files = run.paper.files_of(run.studies(), [word])
    folder = tmp_path / 'results' / 'studies-embedded'
    assert {path.stem for path in folder.glob('*.json')} == files
    assert all(read_results(path)['rows'] for path in folder.glob('*.json'))
