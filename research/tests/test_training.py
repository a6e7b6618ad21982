"Demo models trained again, by the command."

import contextlib
import io
from functools import cache

import pytest

from lrp_lab.__main__ import COMMANDS
from lrp_loo import cli
from lrp_loo.models.demos import load_demo


def main(words):
    return cli.main(words, COMMANDS, 'python -m lrp_lab')


def train(out, name, limit):
    "The command on embedded data; its exit code."
    words = ['--data', 'embedded', '--limit', str(limit), '--out', str(out)]
    return main(['train', name, *words])


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    "Where a model was trained, once each, and what was said of it."

    @cache
    def trained(name, limit):
        out = tmp_path_factory.mktemp(name)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert train(out, name, limit) == 0
        return out, said.getvalue()

    return trained


ADAPTER = ('sst2', 16)


@pytest.fixture(scope='module')
def adapter(trained):
    "An adapter trained on a few sentences."
    return trained(*ADAPTER)[0]


def test_an_adapter_is_three_files(adapter):
    names = {'adapter_model.safetensors', 'adapter_config.json', 'README.md'}
    assert {p.name for p in adapter.iterdir()} == names


@pytest.mark.parametrize(
    'said', ['epochs | 4', 'seed | 0', 'sentence-transformers/all-MiniLM-L6-v2']
)
def test_the_card_of_an_adapter_says_how_it_was_trained(adapter, said):
    assert said in (adapter / 'README.md').read_text()


def test_a_trained_adapter_is_loaded(adapter):
    assert load_demo('sst2', folder=adapter)[0].num_labels == 2


def test_a_model_that_is_not_known_is_not_trained():
    assert main(['train', 'imdb2']) == 2


def test_training_needs_data_that_was_named(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv('LRP_LOO_DATA', raising=False)
    assert main(['train', 'sst2', '--out', str(tmp_path)]) == 2
    assert 'name a folder' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'name, limit, said',
    [
        (*ADAPTER, 'accuracy'),
        ('mnist', 64, 'accuracy'),
        ('reviews', 4, 'nats per token'),
        ('reviews-sst2', 16, 'accuracy'),
    ],
)
def test_a_trained_model_is_measured_and_has_a_card(trained, name, limit, said):
    out, printed = trained(name, limit)
    assert said in printed
    assert 'seed | 0' in (out / 'README.md').read_text()
    kinds = {f.suffix for f in out.iterdir()}
    assert kinds == {'.safetensors', '.json', '.md'}
