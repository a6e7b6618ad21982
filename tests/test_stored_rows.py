"Rows in files: changed by hand, written by several processes, of another model."

import copy
import json
import os
from pathlib import Path
import random
import re
import subprocess
import sys

from conftest import OPINIONS, random_bert
from forked import fork
import numpy as np
import pandas as pd
import pytest
import torch

from lrp_loo import (
    audit,
    calibrate,
    compare,
    explain,
    load,
    summarize,
    sweep,
    top_tokens,
)
from lrp_loo.core.files import append_line, digest, whole_file, write_text_atomic
from lrp_loo.records.results import Results, read_results
from lrp_loo.evaluate.sweep import read_sweep
from lrp_loo.evaluate.audit import verdict
from lrp_loo.reports.summary import summarize_texts

QUIET = dict(progress=False)
needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')


@pytest.fixture(scope='module')
def small(tokenizer):
    return random_bert(layers=1), tokenizer


@pytest.fixture(scope='module')
def written(small, tmp_path_factory):
    "A file of an audit, with a summary and rows of another call."
    path = tmp_path_factory.mktemp('audit') / 'results.json'
    audit(*small, OPINIONS[:3], ['attn_lrp'], results=Results(path, {}), **QUIET)
    results = Results(path, dict(seed=17))
    audit(*small, OPINIONS[1:4], ['attn_lrp'], results=results, **QUIET)
    results.summary = dict(n=3, r=0.25)
    results.save()
    return path


def with_digit(text, place):
    digit = str((int(text[place]) + 1) % 10)
    return text[:place] + digit + text[place + 1 :]


def test_any_changed_digit_of_a_file_is_refused_and_its_place_is_named(
    written, tmp_path
):
    text = written.read_text()
    places = [m.start() for m in re.finditer(r'\d', text)]
    chosen = random.Random(0).sample(places, 80)
    path = tmp_path / 'results.json'
    for place in chosen:
        path.write_text(with_digit(text, place))
        for read in (read_results, lambda p: Results(p, {})):
            with pytest.raises(ValueError, match=r'results\.json.*(rows|others|head)'):
                read(path)


def test_a_changed_row_is_named(written, tmp_path):
    path = tmp_path / 'results.json'
    lines = written.read_text().splitlines(keepends=True)
    of_rows = [k for k, line in enumerate(lines) if line.startswith('  {"i"')]
    for row, k in enumerate(of_rows[:3]):
        place = lines[k].index('"logit": ') + 12
        path.write_text(
            ''.join([*lines[:k], with_digit(lines[k], place), *lines[k + 1 :]])
        )
        with pytest.raises(
            ValueError, match=rf'results\.json .*: rows\[{row}\] was changed'
        ):
            read_results(path)


@pytest.mark.parametrize('entry', ['missing', 'x', [], {}])
@pytest.mark.parametrize('name', ['r', 'attn_lrp', 'methods', 'i'])
def test_a_row_without_a_checksum_that_lacks_a_number_is_named(
    written, tmp_path, name, entry
):
    content = json.loads(written.read_text())
    for row in content['rows']:
        row.pop('checksum')
    row = content['rows'][1]
    holds = dict(r=row['methods']['attn_lrp'], attn_lrp=row['methods']).get(name, row)
    if (name, entry) in (('methods', 'missing'), ('i', 'missing'), ('attn_lrp', {})):
        pytest.skip('the next test, or no fault')
    holds.pop(name) if entry == 'missing' else holds.update({name: entry})
    path = tmp_path / 'results.json'
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r'results\.json.*rows\[1\]'):
        read_results(path)


def test_a_verdict_names_a_row_that_lacks_a_method(written):
    rows = copy.deepcopy(read_results(written)['rows'])
    del rows[2]['methods']['attn_lrp']
    with pytest.raises(ValueError, match=r'lacks rows\[2\]\.methods\.attn_lrp'):
        verdict(rows)


def test_rows_without_a_proof_are_shown_and_computed_again(small, written, tmp_path):
    content = json.loads(written.read_text())
    for row in content['rows'] + content['others']:
        row['methods']['attn_lrp']['r'] = 0.987
        del row['checksum']
    path = tmp_path / 'results.json'
    path.write_text(json.dumps(content))
    assert read_results(path)['rows'][0]['methods']['attn_lrp']['r'] == 0.987
    table = audit(
        *small, OPINIONS[:3], ['attn_lrp'], results=Results(path, {}), **QUIET
    )
    alone = audit(*small, OPINIONS[:3], ['attn_lrp'], **QUIET)
    assert np.isclose(table.loo_r['attn_lrp'], alone.loo_r['attn_lrp'])


def test_a_changed_number_of_a_sweep_is_refused(small, tmp_path):
    sweep(*small, OPINIONS[:2], tmp_path, 'attn_lrp', **QUIET)
    path = tmp_path / 'sweep.json'
    head, _, row = path.read_text().rpartition('  {"i": 1')
    for name in ('r', 'logit', 'target', 'scores', 'loo'):
        place = re.search(rf'"{name}": [^0-9]*\d', row).end() - 1
        path.write_text(f'{head}  {{"i": 1{with_digit(row, place)}')
        for use in (
            read_sweep,
            lambda p: sweep(*small, OPINIONS[:2], p, 'attn_lrp', **QUIET),
        ):
            with pytest.raises(
                ValueError, match=r'sweep\.json .*rows\[1\] was changed'
            ):
                use(tmp_path)


def test_a_changed_digit_of_a_saved_record_is_refused(small, tmp_path):
    path = tmp_path / 'c.json'
    calibrate(*small, OPINIONS, 'removal', **QUIET).save(path)
    summarize_texts(*small, OPINIONS, 'attn_lrp', min_count=1, **QUIET).save(
        tmp_path / 's.json'
    )
    assert len({text.digest for text in load(path).texts}) == len(OPINIONS)
    assert len(set(load(tmp_path / 's.json').digests)) == len(OPINIONS)
    for file, what in ((path, r'texts\[\d\]|it'), (tmp_path / 's.json', 'it')):
        text = file.read_text()
        numbers = [m.start() + 3 for m in re.finditer(r'\d\.\d{4,}', text)]
        for place in random.Random(0).sample(numbers, 8):
            file.write_text(with_digit(text, place))
            with pytest.raises(
                ValueError, match=rf'{file.name} .*({what}) was changed'
            ):
                load(file)


# several writers


class NoLock:
    "A lock of a disk that knows none: everybody gets it."

    def __init__(self, path, timeout):
        self.lock_file = str(path)

    def acquire(self):
        pass

    release = acquire


class UnknownLock(NoLock):
    "A lock of a disk that says so."

    def acquire(self):
        raise NotImplementedError('FileSystem does not appear to support flock')


@needs_fork
@pytest.mark.parametrize('lock', [NoLock, UnknownLock])
@pytest.mark.parametrize('same', [True, False])
def test_writers_of_one_file_all_finish_without_locks(
    small, tmp_path, monkeypatch, lock, same
):
    monkeypatch.setattr('filelock.FileLock', lock)
    path, children = tmp_path / 'r.json', []
    for k in range(4):
        pid = fork()
        if not pid:
            try:
                texts = OPINIONS if same else OPINIONS[k : k + 3]
                how = dict(results=Results(path, {}), **QUIET)
                table = audit(*small, texts, ['attn_lrp'], **how)
                assert table.n['attn_lrp'] == len(texts)
                os._exit(0)
            except BaseException as e:
                print(repr(e), file=sys.stderr)
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    stored = read_results(path)
    rows = stored['rows'] + stored['others']
    assert len({row['digest'] for row in rows}) == len(rows)
    # who replaces the file last keeps its own rows; another's may be computed again
    assert len(rows) >= (len(OPINIONS) if same else 3)
    assert {p.name for p in tmp_path.iterdir()} <= {'r.json', '.r.json.lock'}


def test_a_temporary_file_of_a_living_or_distant_writer_stays(tmp_path):
    path = tmp_path / 'r.json'
    ended = subprocess.run(
        [sys.executable, '-c', 'import os; print(os.getpid())'], capture_output=True
    )
    with whole_file(path) as tmp:
        pass
    host, pid = re.fullmatch(r'\.r\.json\.(\w+)-(\d+)\.\w+\.lrp_loo', tmp.name).groups()
    assert int(pid) == os.getpid()
    names = {
        'mine': tmp.name,
        'distant': tmp.name.replace(host, '0' * 8).replace(
            pid, ended.stdout.decode().strip()
        ),
        'ended': tmp.name.replace(pid, ended.stdout.decode().strip()),
        'parent': tmp.name.replace(f'-{pid}.', f'-{os.getppid()}.'),
    }
    for name in names.values():
        (tmp_path / name).touch()
    write_text_atomic(path, 'any file')
    left = {kind for kind, name in names.items() if (tmp_path / name).exists()}
    assert left == {'mine', 'distant', 'parent'}


def test_a_file_that_was_written_meanwhile_is_read_before_it_is_replaced(
    tmp_path, monkeypatch
):
    path, n = tmp_path / 'r.json', []
    one, other = Results(path, {}), Results(path, {})
    write_text = Path.write_text

    def slow(*args, **options):
        if not n:
            n.append(1)
            other.add(dict(i=1))
        write_text(*args, **options)

    monkeypatch.setattr('filelock.FileLock', NoLock)
    monkeypatch.setattr(Path, 'write_text', slow)
    one.add(dict(i=0))
    assert [row['i'] for row in read_results(path)['rows']] == [0, 1]


def test_a_row_is_appended_and_the_file_written_twice(small, tmp_path, monkeypatch):
    texts = [f'{text} {k}' for k in range(9) for text in OPINIONS]
    appended, written = [], []

    def append(path, line):
        appended.append(append_line(path, line))
        return appended[-1]

    def write(path):
        written.append(path)
        return whole_file(path)

    monkeypatch.setattr('lrp_loo.records.results.append_line', append)
    monkeypatch.setattr('lrp_loo.records.results.whole_file', write)
    path = tmp_path / 'r.json'
    audit(*small, texts, ['attn_lrp'], results=path, **QUIET)
    assert appended == [True] * (len(texts) - 1) and len(written) == 2
    audit(*small, texts, ['attn_lrp'], results=str(path), **QUIET)
    assert len(appended) == len(texts) - 1
    assert len(read_results(path)['rows']) == len(texts)


def test_rows_at_the_end_of_a_file_are_read_once(tmp_path):
    path = tmp_path / 'r.json'
    results = Results(path, {})
    for i in range(5):
        results.add(dict(i=i, x=i / 7))
    lines = path.read_text().splitlines()
    whole = read_results(path)
    assert [row['i'] for row in whole['rows']] == [0, 1, 2, 3, 4]
    assert sum(line.startswith('{"i"') for line in lines) == 4
    with open(path, 'a') as f:
        f.write(lines[-1] + '\n' + lines[-2][:30])
    assert read_results(path) == whole and Results(path, {}).rows == whole['rows']
    Results(path, {}).add(dict(i=5))
    assert [row['i'] for row in read_results(path)['rows']] == [0, 1, 2, 3, 4, 5]
    assert '\n{"i"' not in path.read_text()
    changed = path.read_text().replace('"x": 0.5714286', '"x": 0.5714287')
    path.write_text(changed + lines[-1] + '\n')
    with pytest.raises(ValueError, match=r'rows\[4\] was changed'):
        read_results(path)


# the model that a record came from


def one_weight(model):
    "In the middle of a large table, past what versions count."
    model.bert.embeddings.word_embeddings.weight.data[15_000, 3] += 1


def counted_weight(model):
    "The same, as an optimizer changes it."
    model.bert.embeddings.word_embeddings.weight[15_000, 3] += 1


def activation(model):
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.ReLU()


def patched(model):
    pooler, plain = model.bert.pooler, type(model.bert.pooler).forward
    pooler.forward = lambda states: plain(pooler, states) * 2


def adapter(model):
    peft = pytest.importorskip('peft')
    config = peft.LoraConfig(target_modules=['query'], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)


CHANGES = [one_weight, activation, patched, adapter, lambda m: m.to(torch.bfloat16)]
CHANGES += [lambda m: setattr(m.bert.encoder.layer[0].attention.self, 'scaling', 0.1)]
CHANGES += [lambda m: m.bert.pooler.register_forward_hook(lambda m, x, out: out * 2)]


@pytest.mark.parametrize('change', CHANGES)
def test_a_calibration_of_another_model_of_that_name_is_refused(small, change):
    calibration = calibrate(*small, OPINIONS, 'removal', **QUIET)
    how = dict(calibration=calibration, confidence=0.5)
    same = copy.deepcopy(small[0])
    same.config._name_or_path = same.name_or_path = 'elsewhere/same'
    explain(same, small[1], OPINIONS[0], 'removal', **how)
    change(same)
    with pytest.raises(ValueError, match='the calibration is of model'):
        explain(same, small[1], OPINIONS[0], 'removal', **how)


@pytest.mark.parametrize('change', [one_weight, activation, patched])
def test_a_comparison_tells_models_by_their_digest_and_not_by_name(small, change):
    model = copy.deepcopy(small[0])
    (loo,) = explain(model, small[1], OPINIONS[0], 'loo', 1)
    model.config._name_or_path = 'elsewhere/same'
    (same,) = explain(model, small[1], OPINIONS[0], 'attn_lrp', 1)
    assert 'r with loo' in compare(loo, same)._repr_html_()
    summarize([loo, loo], min_count=1)
    maps = explain(small[0], small[1], OPINIONS[:2], 'attn_lrp', 1)
    assert len(summarize([*maps, same], min_count=1).texts) == 3
    if change is one_weight:
        change = counted_weight
    with torch.no_grad():
        change(model)
    (other,) = explain(model, small[1], OPINIONS[0], 'attn_lrp', 1)
    assert 'r with loo' not in compare(loo, other)._repr_html_()
    with pytest.raises(ValueError, match='maps of different models'):
        summarize([*maps, other], min_count=1)
    two = summarize(maps, min_count=1), summarize([other, other], min_count=1)
    assert two[0].weights != two[1].weights


@pytest.mark.parametrize('method', ['auto', 'removal', 'attn_lrp'])
@pytest.mark.parametrize('text', ['fine film', OPINIONS[0], OPINIONS[2] * 2])
def test_the_top_of_a_text_whose_map_may_be_exact(small, method, text):
    passes = dict(passes=6) if method == 'auto' else {}
    calibration = calibrate(*small, OPINIONS * 2, method, **passes, **QUIET)
    top = top_tokens(*small, text, 1, calibration, 0.5)
    (loo,) = explain(*small, text, 'loo', top.attribution.target)
    for i in top.exact:
        assert np.isclose(top.attribution.scores[i], loo.scores[i], atol=1e-4)
    if top.attribution.exact:
        content = np.abs(loo.scores.numpy()) * loo.is_content.numpy()
        assert (top.which, top.exact) == ([int(content.argmax())], [])


def words(small, by_class, **options):
    how = dict(by_class=by_class, min_count=1, **QUIET, **options)
    return summarize_texts(*small, OPINIONS[:4], 'attn_lrp', **how)


def test_one_group_of_all_texts_of_one_class(small):
    summary = words(small, False, target=1)
    assert summary.classes == words(small, True, target=1).classes
    groups = np.array(['a', 'a', 'b', 'b'], dtype=object)
    for by_class in (groups, pd.Series(groups), (x for x in groups), [0, 0, 1, 1]):
        assert len(words(small, by_class, target=1).classes) == 2


@pytest.mark.parametrize('by_class', [None, 'ab', 5, 0.5, {'a': 1}, ['a'], []])
def test_groups_that_are_none_are_refused_before_a_text_is_explained(small, by_class):
    with pytest.raises((TypeError, ValueError), match='by_class'):
        words((None, None), by_class, target=1)
    maps = explain(*small, OPINIONS[:4], 'attn_lrp', 1)
    with pytest.raises((TypeError, ValueError), match='by_class'):
        summarize(maps, by_class=by_class, min_count=1)


# digests


def test_a_digest_is_of_the_content_alone(small, tokenizer, tmp_path):
    model = small[0]
    before = digest(model), digest(tokenizer)
    explain(model, tokenizer, OPINIONS, 'attn_lrp')
    tokenizer(OPINIONS, padding=True, truncation=True, max_length=7)
    assert (digest(model), digest(tokenizer)) == before
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    loaded = [type(part).from_pretrained(tmp_path) for part in (model, tokenizer)]
    assert tuple(map(digest, loaded)) == before
    code = (
        'from transformers import BertForSequenceClassification\n'
        'from lrp_loo.core.files import digest\n'
        f'print(digest(BertForSequenceClassification.from_pretrained({str(tmp_path)!r})))'
    )
    path = os.pathsep.join(sys.path)
    env = dict(os.environ, PYTHONHASHSEED='3', PYTHONPATH=path)
    said = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True)
    assert said.stdout.decode().split()[-1] == before[0]


def test_a_digest_of_functions_and_objects():
    def made(n, scale=1):
        return lambda x: x * n + scale

    class Thing:
        size = 1

        def run(self):
            return self.size

    one, two = Thing(), Thing()
    two.size = 2
    values = [1, 1.0, True, '1', None, [1], {1: 1}, {1: 2}, one, two, Thing]
    values += [made(1), made(2), made(1, 2), made, torch.ones(2), torch.ones(2, 1)]
    values += [torch.ones(2).bfloat16(), torch.zeros(2), np.ones(2), Path('a'), one.run]
    values += [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), re.compile('a')]
    values += [
        re.compile('b'),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ]
    assert len({digest(v) for v in values}) == len(values)
    assert digest(made(1)) == digest(made(1)) and digest(Thing()) == digest(one)
    assert digest(dict(a=1, b=2)) == digest(dict(b=2, a=1))
    one.itself = one
    assert digest(one) != digest(two)
