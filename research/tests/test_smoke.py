"""Each study of the lab on one text, by demo models of two layers: what CI runs."""

import sys

import pytest
from conftest import shallow_demo

from lrp_lab import experts, run
from lrp_lab.__main__ import COMMANDS
from lrp_loo.cli import main
from lrp_loo.trust.results import read_results

# networks are trained, thousands of variants tuned on, a calibration takes more
# texts: `make research-test` has these in small
LONG = {'canonized', 'related', 'coverage'}
WORDS = [w for w in run.groups_of(run.studies())['all'] if w not in LONG]


def shallow_of(name='sst2', **training):
    "Of any training: which one is the same to code."
    return shallow_demo(name)


@pytest.fixture(scope='module', autouse=True)
def shallow():
    with pytest.MonkeyPatch.context() as patch:
        for name in run.MODULES + ('lrp_lab.parts',):
            if hasattr(sys.modules[name], 'load_demo'):
                patch.setattr(f'{name}.load_demo', shallow_of)
        # what was trained has six layers
        patch.setattr(experts, 'load_experts', experts.untrained)
        yield


@pytest.mark.parametrize('word', WORDS)
def test_a_study_runs_on_one_text(word, tmp_path):
    words = ['reproduce', word, '--limit', '1', '--data', 'embedded']
    assert main([*words, '--out', str(tmp_path)], COMMANDS, 'lrp_lab') == 0
    files = run.paper.files_of(run.studies(), [word])
    folder = tmp_path / 'results' / 'studies-embedded'
    assert {path.stem for path in folder.glob('*.json')} == files
    assert all(read_results(path)['rows'] for path in folder.glob('*.json'))
