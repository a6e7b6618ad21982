"Demo models trained again, by the command."

import pytest

from lrp_lab import __main__ as run
from lrp_lab.training import train
from lrp_loo.models.loading import load_demo

# name → training examples, what is measured
MODELS = {
    'sst2': (16, 'accuracy'),
    'mnist': (64, 'accuracy'),
    'reviews': (4, 'nats per token'),
    'reviews-sst2': (16, 'accuracy'),
}


@pytest.mark.parametrize('name', MODELS)
def test_a_trained_model_is_measured_and_has_a_card(name, tmp_path, capsys):
    limit, measure = MODELS[name]
    train(name, data='embedded', limit=limit, out=str(tmp_path))
    assert measure in capsys.readouterr().out
    card = (tmp_path / 'README.md').read_text()
    assert 'seed | 0' in card
    assert {f.suffix for f in tmp_path.iterdir()} == {'.safetensors', '.json', '.md'}
    if name == 'sst2':
        files = {'adapter_model.safetensors', 'adapter_config.json', 'README.md'}
        assert {p.name for p in tmp_path.iterdir()} == files
        assert 'epochs | 4' in card
        assert 'sentence-transformers/all-MiniLM-L6-v2' in card
        assert load_demo('sst2', folder=tmp_path)[0].num_labels == 2


@pytest.mark.parametrize('name, message', [('imdb2', 'imdb2'), ('sst2', 'folder')])
def test_training_needs_a_known_model_and_named_data(
    name, message, tmp_path, monkeypatch
):
    monkeypatch.delenv('LRP_LOO_DATA', raising=False)
    with pytest.raises(SystemExit, match=message):
        run.main(['train', name, '--out', str(tmp_path)])
    assert not list(tmp_path.iterdir())
