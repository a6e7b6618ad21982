"A hub that can't be reached is refused at once; a library's words are one line."

import json
import os
import subprocess
import sys
from unittest import mock

import huggingface_hub
import pandas as pd
import pytest
from conftest import random_bert

from lrp_loo.data import read_texts
from lrp_loo.models.loading import load_model

CLOSED = 'http://127.0.0.1:9'  # nobody listens there


CALLS = {
    "lrp_loo.load_model('nobody/no-such-model')": 'ValueError',
    "lrp_loo.read_texts('hub:nobody/no-such-data')": 'ConnectionError',
}
MAKE_CALLS = """
import sys, traceback
import lrp_loo
for call in {calls!r}:
    print('asked:', call, file=sys.stderr)
    try:
        exec(call)
    except Exception:
        traceback.print_exc()
"""


@pytest.fixture(scope='module')
def without_the_hub():
    "What is said of each call, where the hub is a closed port."
    offline = {'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE'}
    env = {k: v for k, v in os.environ.items() if k not in offline}
    command = [sys.executable, '-c', MAKE_CALLS.format(calls=[*CALLS])]
    how = dict(capture_output=True, text=True, timeout=300)
    done = subprocess.run(command, env=env | dict(HF_ENDPOINT=CLOSED), **how)
    _, *said = done.stderr.split('asked: ')
    return dict(x.split('\n', 1) for x in said)


@pytest.mark.parametrize('call, kind', CALLS.items())
def test_a_hub_that_cannot_be_reached_is_not_tried_again(without_the_hub, call, kind):
    said = without_the_hub[call]
    last = said.strip().splitlines()[-1]
    assert 'Retrying' not in said and last.startswith(f'{kind}: ')
    assert 'the hub cannot be reached' in last


@pytest.fixture
def unreachable(monkeypatch):
    "A network without an answer."
    no_answer = mock.Mock(side_effect=ConnectionError('no route'))
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', False)
    monkeypatch.setattr(huggingface_hub.HfApi, 'repo_info', no_answer)
    return no_answer


def test_a_model_in_the_cache_needs_no_hub(
    unreachable, monkeypatch, tmp_path, tokenizer
):
    "It is read from the cache alone, so that nothing is asked again."
    asked = []

    class Auto:
        @staticmethod
        def from_pretrained(name, **kwargs):
            asked.append(kwargs['local_files_only'])
            if 'output_loading_info' in kwargs:
                return random_bert(layers=1), dict(missing_keys=[])
            return tokenizer

    cached = str(tmp_path / 'config.json')
    monkeypatch.setattr('huggingface_hub.try_to_load_from_cache', lambda *a: cached)
    for name in ('AutoModelForSequenceClassification', 'AutoTokenizer'):
        monkeypatch.setattr(f'transformers.{name}', Auto)
    assert load_model('somebody/some-model')[2] == 'somebody/some-model'
    assert asked == [True, True]


CONFIGS = [{}, dict(num_attention_heads=5), dict(hidden_act='loud'), dict(id2label=3)]


@pytest.mark.parametrize('config', CONFIGS, ids=str)
def test_whatever_is_raised_while_loading_is_one_line_about_the_model(
    monkeypatch, tmp_path, tokenizer, config
):
    folder = tmp_path / 'odd'
    random_bert(layers=1).save_pretrained(folder)
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    fail = mock.Mock(side_effect=KeyError('layers'))  # by a config that is right
    monkeypatch.setattr('transformers.AutoTokenizer.from_pretrained', fail)
    with pytest.raises(ValueError) as e:
        load_model(folder)
    said = str(e.value)
    assert said.startswith("the model 'odd' cannot be loaded")
    assert config or said.endswith("KeyError: 'layers'")
    assert '\n' not in said and str(tmp_path) not in said
    assert not said.endswith(':')  # a heading alone


def test_a_folder_in_the_layout_of_the_hub_needs_no_hub(unreachable, tmp_path):
    pd.DataFrame(dict(text=['a warm film'])).to_parquet(
        tmp_path / 'train-00000-of-00001.parquet'
    )
    assert read_texts(f'hub:{tmp_path}').texts == ['a warm film']
