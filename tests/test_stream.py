"Texts are read in windows, and rows of each call go to a file."

import json

import pytest
import torch
from conftest import OPINIONS, random_bert

from lrp_loo import audit, calibrate, explain, refine, summarize_texts, sweep
from lrp_loo.records.results import read_results
from lrp_loo.evaluate.sweep import read_sweep
from lrp_loo.inputs.call import WINDOW
from lrp_loo.methods.table import METHODS
from lrp_loo.models import structure

QUIET = dict(progress=False)


@pytest.fixture(scope='module')
def small(tokenizer):
    return random_bert(layers=1), tokenizer


@pytest.fixture(scope='module')
def texts():
    "More than a window, of several lengths."
    return [f'{OPINIONS[k % 6]} {"very " * (k % 5)}{k}' for k in range(WINDOW + 20)]


def test_a_generator_is_read_one_window_at_a_time(small, texts):
    read = []

    def generator():
        for text in texts:
            read.append(text)
            yield text

    maps = explain(*small, generator(), 'grad_x_input', stream=True)
    assert not read
    assert next(maps).info['text'] == texts[0] and len(read) == WINDOW
    rest = list(maps)
    assert [a.info['text'] for a in rest] == texts[1:] and read == texts
    whole = explain(*small, texts, 'grad_x_input')
    for a, b in zip(whole[1:], rest):
        assert torch.allclose(a.scores, b.scores, atol=1e-5)


def test_lists_of_targets_and_units_are_divided_with_their_texts(small, texts):
    targets = [k % 2 for k in range(len(texts))]
    units = ['word', 'token', 'token'] * (len(texts) // 3)
    maps = explain(*small, texts, 'grad_x_input', targets, units=units)
    assert [a.target for a in maps] == targets
    assert ['unit_of_token' in a.info for a in maps] == [u == 'word' for u in units]
    with pytest.raises(ValueError, match=rf'{WINDOW} entries for {len(texts)} texts'):
        explain(*small, texts, 'grad_x_input', targets[:WINDOW])


def test_an_error_names_the_text_of_a_later_window(small, texts):
    for count in (1, 5):
        wrong = [*texts[:WINDOW], *texts[: count - 1], '']
        with pytest.raises(
            ValueError, match=rf'texts\[{WINDOW + count - 1}\]: .*empty'
        ):
            explain(*small, wrong, 'grad_x_input')
    with pytest.raises(ValueError, match='texts is empty'):
        list(explain(*small, iter([]), 'grad_x_input', stream=True))


def test_modules_are_walked_a_few_times_in_a_window(small, texts, monkeypatch):
    walks = []
    plain = torch.nn.Module.named_modules

    def counted(module, *args, **options):
        yield from plain(module, *args, **options)
        walks.append(module)  # to its end

    monkeypatch.setattr(torch.nn.Module, 'named_modules', counted)
    list(explain(*small, iter(texts), 'grad_x_input', stream=True))
    assert walks.count(small[0]) <= len(texts) / 8  # about one for a batch of 16
    assert structure._RESULTS.get() is None


def test_maps_of_many_texts_keep_no_estimate(small, texts):
    (a,) = explain(*small, texts[0], 'auto', passes=4)
    assert refine(a, 3).passes > a.passes
    many = explain(*small, [*texts[:2], *texts[:WINDOW]], 'auto', passes=4)
    assert {b.partial_estimate for b in many} == {None}
    with pytest.raises(ValueError, match=f'at most {WINDOW} texts'):
        refine(many[0])


COMPUTED, STOPS = [], set()  # encodings that `method` got; numbers at which it stops


def method(model, tokenizer, encs, target=None):
    COMPUTED.extend(encs)
    if len(COMPUTED) in STOPS:
        raise KeyboardInterrupt
    return METHODS['removal'](model, tokenizer, encs, target)


@pytest.mark.parametrize('name', ['audit', 'calibrate', 'summarize', 'sweep'])
def test_every_call_goes_on_from_its_file(small, tmp_path, name):
    texts, path = [f'{OPINIONS[k % 6]} {k}' for k in range(9)], tmp_path / 'r.json'

    def call():
        if name == 'audit':
            how = dict(results=path, **QUIET)
            return audit(*small, texts, dict(m=(method, {})), **how).loo_r
        if name == 'calibrate':
            how = dict(batch_size=2, results=str(path), **QUIET)
            return calibrate(*small, texts, method, **how).texts
        if name == 'summarize':
            how = dict(batch_size=2, results=path, min_count=1, **QUIET)
            return summarize_texts(*small, texts, method, **how).to_frame()
        sweep(*small, texts, tmp_path, dict(m=(method, {})), batch_size=2, **QUIET)
        return read_sweep(tmp_path)

    if name == 'sweep':
        path = tmp_path / 'sweep.json'
    STOPS.update(range(5, 20))
    COMPUTED.clear()
    with pytest.raises(KeyboardInterrupt, match='finished rows are in'):
        call()
    n = len(read_results(path)['rows'])
    json.loads(path.read_text())  # one document, also after Ctrl-C
    assert (name == 'audit' or n > 0) and n < len(texts)  # an audit's batch has eight
    STOPS.clear()
    COMPUTED.clear()
    before = call()
    assert 0 < len(COMPUTED) <= len(texts) - n + 1
    COMPUTED.clear()
    after = call()
    assert not COMPUTED
    assert after.equals(before) if hasattr(after, 'equals') else after == before
