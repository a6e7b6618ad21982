"""A name on the hub that can't be reached is refused at once; what a library
says while it loads is put in one line of ours.
"""

import json
import os
import subprocess
import sys

import huggingface_hub
import pytest
from conftest import random_bert

from lrp_loo.core.files import hub_answers
from lrp_loo.data import read_texts
from lrp_loo.models.loading import load_model

CLOSED = 'http://127.0.0.1:9'  # nobody listens there


CALLS = {
    "lrp_loo.load_model('nobody/no-such-model')": 'ValueError',
    "lrp_loo.read_texts('hub:nobody/no-such-data')": 'ConnectionError',
    "lrp_loo.load_texts('sst2', 'hub')": 'ConnectionError',
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
    """What is said of each call. Nothing is said about being offline, and the
    hub is a closed port.
    """
    offline = {'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE'}
    env = {k: v for k, v in os.environ.items() if k not in offline}
    env['HF_ENDPOINT'] = CLOSED
    done = subprocess.run(
        [sys.executable, '-c', MAKE_CALLS.format(calls=[*CALLS])],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )
    _, *said = done.stderr.split('asked: ')
    return dict(x.split('\n', 1) for x in said)


@pytest.mark.parametrize('call, kind', CALLS.items())
def test_a_hub_that_cannot_be_reached_is_not_tried_again_and_again(
    without_the_hub, call, kind
):
    said = without_the_hub[call]
    assert 'Retrying' not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith(f'{kind}: ')
    assert 'the hub cannot be reached' in last


@pytest.fixture
def unreachable(monkeypatch):
    "A network without an answer."

    def no_answer(*args, **kwargs):
        raise ConnectionError('no route')

    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', False)
    monkeypatch.setattr(huggingface_hub.HfApi, 'repo_info', no_answer)


def test_a_model_in_the_cache_needs_no_hub(
    unreachable, monkeypatch, tmp_path, tokenizer
):
    "It is read from the cache alone, so that nothing is asked again."
    asked = []
    model = random_bert(layers=1)

    class Auto:
        @staticmethod
        def from_pretrained(name, **kwargs):
            asked.append(kwargs)
            if 'output_loading_info' in kwargs:
                return model, dict(missing_keys=[])
            return tokenizer

    monkeypatch.setattr(
        'huggingface_hub.try_to_load_from_cache',
        lambda *a: str(tmp_path / 'config.json'),
    )
    monkeypatch.setattr('transformers.AutoModelForSequenceClassification', Auto)
    monkeypatch.setattr('transformers.AutoTokenizer', Auto)
    assert load_model('somebody/some-model')[2] == 'somebody/some-model'
    assert [k['local_files_only'] for k in asked] == [True, True]


def test_a_folder_in_the_layout_of_the_hub_needs_no_hub(unreachable, tmp_path):
    import pandas as pd

    pd.DataFrame(dict(text=['a warm film'])).to_parquet(
        tmp_path / 'train-00000-of-00001.parquet'
    )
    assert read_texts(f'hub:{tmp_path}').texts == ['a warm film']


# what a library says while it loads


def saved(folder, tokenizer, **config):
    "A model's folder whose config says something else."
    random_bert(layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.parametrize(
    'config',
    [
        dict(hidden_size='wide'),
        dict(num_attention_heads=0),
        dict(num_attention_heads=5),
        dict(model_type='no-such-kind'),
        dict(hidden_act='loud'),
        dict(dtype='float99'),
        dict(vocab_size=-1),
        dict(id2label=3),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_meant_is_one_line_about_the_model(
    tmp_path, tokenizer, config
):
    folder = saved(tmp_path / 'odd', tokenizer, **config)
    with pytest.raises(ValueError) as e:
        load_model(folder)
    said = str(e.value)
    assert said.startswith("the model 'odd' cannot be loaded")
    assert '\n' not in said
    assert not said.endswith(':')  # a heading alone
    assert str(tmp_path) not in said


def test_a_model_of_another_kind_names_the_task(tmp_path, tokenizer):
    folder = saved(tmp_path / 'clip', tokenizer, model_type='clip_text_model')
    with pytest.raises(ValueError, match='no model of its kind for this task'):
        load_model(folder, task='next token')


@pytest.mark.parametrize(
    'error',
    [
        RuntimeError(),
        KeyError('layers'),
        AttributeError("'NoneType' object has no attribute 'shape'"),
        AssertionError(),
    ],
    ids=repr,
)
def test_whatever_is_raised_while_loading_is_said_of_the_model(
    monkeypatch, tmp_path, tokenizer, error
):
    folder = saved(tmp_path / 'mine', tokenizer)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr('transformers.AutoTokenizer.from_pretrained', fail)
    with pytest.raises(
        ValueError, match=f"the model 'mine' cannot be loaded.*{type(error).__name__}"
    ):
        load_model(folder)


def test_no_answer_is_no_answer_and_an_error_is_one(unreachable, monkeypatch):
    from huggingface_hub.errors import HFValidationError

    assert not hub_answers('nobody/no-such-model')

    def refuse(*args, **kwargs):
        raise HFValidationError('no name')

    monkeypatch.setattr(huggingface_hub.HfApi, 'repo_info', refuse)
    assert hub_answers('nobody/no-such-model')
