"A sweep's rows are those of single calls, also after a worker was killed."

from contextlib import ExitStack
import copy
from importlib.util import find_spec
import os
import sys
from types import SimpleNamespace

from conftest import shallow_demo
import numpy as np
import pandas as pd
import pytest
import torch

from lrp_loo import explain
from lrp_loo.evaluate.sweep import ray_cluster, read_sweep, sweep
from lrp_loo.loo import leave_one_out
from lrp_loo.methods.table import METHODS
from lrp_loo.models.encoding import encode
from lrp_loo.core.stats import agreement

TEXTS = """a slow start , but the last act is a quiet triumph
the jokes are old
a warm and funny film , and never once dull
it knows what it wants to say and says it twice
nothing in it is new , and none of it is true
you will not forget the last ten minutes
good
the actors try hard and the script lets them down""".splitlines()
VARIABLE = 'RAY_USAGE_STATS_ENABLED'
METHOD_NAMES = ['attn_lrp', 'cp_lrp', 'removal']
# ray warns of itself while it starts its processes
pytestmark = pytest.mark.filterwarnings('default')
needs_ray = pytest.mark.skipif(find_spec('ray') is None, reason="ray is not installed")
no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason='this machine may have what is refused'
)


@pytest.fixture(scope='module', autouse=True)
def as_many_threads_as_a_worker():
    "r of a text without effect depends on how sums are divided among threads."
    n_threads = torch.get_num_threads()
    torch.set_num_threads(max(1, os.cpu_count() // 2))  # there are two workers
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope='module')
def loaded():
    return shallow_demo()


@pytest.fixture(scope='module')
def folder(loaded, tmp_path_factory):
    "The same model as a folder."
    path = tmp_path_factory.mktemp('models') / 'minilm-sst2'
    for part in loaded:
        part.save_pretrained(path)
    return str(path)


def swept(model, texts, out, method='attn_lrp', **options):
    return sweep(*model, texts, out, method, **dict(progress=False) | options)


@pytest.fixture(scope='module')
def plain(loaded, tmp_path_factory):
    "The folder of a sweep in one process."
    out = tmp_path_factory.mktemp('plain')
    swept(loaded, TEXTS, out, METHOD_NAMES, batch_size=3)
    return out


def assert_same_rows(a, b):
    "Up to the last digits, which depend on the batch."
    key = ['index', 'method']
    a, b = (
        d.sort_values(key).reset_index(drop=True).drop(columns=['worker', 'digest'])
        for d in (a, b)
    )
    assert not b.duplicated(key).any()
    pd.testing.assert_frame_equal(a, b, rtol=0, atol=1e-4)


def test_rows_are_the_single_calls_with_exact_loo_and_the_agreement(loaded, plain):
    rows = read_sweep(plain)
    assert len(rows) == len(TEXTS) * len(METHOD_NAMES)
    assert set(rows.worker) == {os.getpid()}
    for row in rows.itertuples():
        (a,) = explain(*loaded, TEXTS[row.index], method=row.method)
        loo, _, target = leave_one_out(loaded[0], encode(*loaded, TEXTS[row.index]))
        assert row.target == a.target == target
        assert list(row.tokens) == a.tokens
        assert list(row.is_special) == a.is_special.tolist()
        assert np.allclose(row.scores, a.scores, atol=1e-4)
        assert np.allclose([row.logit, *row.loo], [a.logit, *loo], atol=1e-4)
        r = agreement(torch.tensor(list(row.scores)), loo, a.is_special)
        assert np.isclose(row.r, r, atol=1e-3, equal_nan=True)


def test_methods_get_their_options_and_the_target(loaded, tmp_path):
    methods = {
        'rows': ('auto', dict(passes=4)),
        'loo': ('loo', {}),
        'mask': ('loo', dict(removal='mask_token')),
    }
    swept(loaded, TEXTS[:4], tmp_path, methods, target='positive')
    rows = read_sweep(tmp_path)
    assert rows.target.tolist() == [1] * 12
    assert np.allclose(rows.r[rows.method == 'loo'], 1)
    for row in rows.itertuples():
        method, options = methods[row.method]
        (a,) = explain(*loaded, TEXTS[row.index], method, row.target, **options)
        assert np.allclose(row.scores, a.scores, atol=1e-4), row.method
    # more texts are added, rows of another target stay apart
    swept(loaded, TEXTS[:6], tmp_path, methods, target=1)
    assert len(read_sweep(tmp_path)) == 18
    swept(loaded, TEXTS[:6], tmp_path, methods, target=0)
    assert set(read_sweep(tmp_path).target) == {0}
    swept(loaded, TEXTS[:4], tmp_path, methods, target=1)
    assert read_sweep(tmp_path).equals(rows)


def test_maps_alone_are_those_beside_loo_in_rows_of_their_own(loaded, plain, tmp_path):
    table = swept(loaded, TEXTS, tmp_path, METHOD_NAMES, loo=False, batch_size=3)
    assert table.to_dict('list') == dict(n=[len(TEXTS)] * len(METHOD_NAMES))
    rows, beside = read_sweep(tmp_path), read_sweep(plain)
    assert rows.loo.isna().all() and rows.r.isna().all()
    assert_same_rows(rows.drop(columns=['loo', 'r']), beside.drop(columns=['loo', 'r']))
    swept(loaded, TEXTS, tmp_path, METHOD_NAMES, batch_size=3)
    assert read_sweep(tmp_path).loo.notna().all()
    with pytest.raises(ValueError, match="precision='bfloat16' is that of exact LOO"):
        swept(loaded, TEXTS, tmp_path, loo=False, precision='bfloat16')


def test_a_module_resumes_the_sweep_of_its_folder(loaded, folder, tmp_path):
    "Rows hold the model's name; those of other weights under that name stay apart."
    swept((folder, None), TEXTS[:2], tmp_path)
    swept(loaded, TEXTS[:4], tmp_path)
    assert read_sweep(tmp_path).model.tolist() == ['minilm-sst2'] * 4
    other = copy.deepcopy(loaded[0])
    with torch.no_grad():
        other.classifier.bias += 1
    rows = read_sweep(tmp_path)
    swept((other, loaded[1]), TEXTS[:4], tmp_path)
    assert not np.allclose(read_sweep(tmp_path).logit, rows.logit)
    swept(loaded, TEXTS[:4], tmp_path)
    assert read_sweep(tmp_path).equals(rows)


COMPUTED = []  # encodings that `counted` got


def counted(model, tokenizer, encs, target=None):
    COMPUTED.extend(encs)
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


def test_only_missing_texts_are_computed(loaded, plain, tmp_path):
    def run(texts, **options):
        methods = {'mine': (counted, {})}
        return swept(loaded, texts, tmp_path, methods, batch_size=2, **options)

    first = run(TEXTS[:5])
    assert run(TEXTS[:5]).equals(first) and len(COMPUTED) == 5
    run(TEXTS)
    assert 5 + 3 <= len(COMPUTED) <= 5 + 6  # a batch that lacks a row is computed whole
    rows = read_sweep(plain)
    rows = rows[rows.method == 'attn_lrp'].assign(method='mine')
    assert_same_rows(rows, read_sweep(tmp_path))
    COMPUTED.clear()
    run(TEXTS[:3], fresh=True)
    assert len(COMPUTED) == len(read_sweep(tmp_path)) == 3


@pytest.fixture(scope='module')
def cluster():
    "One for all tests. Ray waits 30 s for a start, too short on a busy machine."
    with ExitStack() as stack:
        for attempts_left in (2, 1, 0):
            try:
                ray = stack.enter_context(ray_cluster(2))
                break
            except Exception as error:
                if not attempts_left or 'timed out during startup' not in str(error):
                    raise
        yield ray


def _meeting(folder):
    "A method that waits for two processes, of which one kills itself."

    def method(model, tokenizer, encs, target=None):
        import os
        from pathlib import Path
        import signal
        import time

        from lrp_loo.methods.table import METHODS

        here, pid = Path(folder), os.getpid()
        (here / f'{pid}.pid').touch()
        end = time.time() + 100
        while len(list(here.glob('*.pid'))) < 2 and time.time() < end:
            time.sleep(0.05)
        try:
            (here / 'victim').mkdir()
        except FileExistsError:
            return METHODS['attn_lrp'](model, tokenizer, encs, target)
        (here / 'victim' / str(pid)).touch()
        os.kill(pid, signal.SIGKILL)

    return method


@needs_ray
@pytest.mark.skipif(sys.platform == 'win32', reason='no SIGKILL')
def test_several_processes_made_the_rows_and_one_was_killed(
    cluster, folder, plain, tmp_path
):
    "Four batches, two processes: the rows are those of one process, each once."
    pids_folder = tmp_path / 'pids'
    pids_folder.mkdir()
    methods = {n: (n, {}) for n in METHOD_NAMES}
    methods['meet'] = (_meeting(str(pids_folder)), {})
    how = dict(engine='ray', workers=2, batch_size=2, device='cpu')
    table = swept((folder, None), TEXTS, tmp_path / 'out', methods, **how)
    rows = read_sweep(tmp_path / 'out')
    pids = {int(p.stem) for p in pids_folder.glob('*.pid')}
    workers = set(rows.worker)
    (killed,) = (int(p.name) for p in (pids_folder / 'victim').iterdir())
    assert killed in pids - workers
    assert workers < pids and os.getpid() not in pids
    rows_of_plain = read_sweep(plain)
    assert_same_rows(rows_of_plain, rows[rows.method != 'meet'])
    assert (rows.method == 'meet').sum() == len(TEXTS)
    mean = rows.r[rows.method == 'attn_lrp'].mean()
    assert np.isclose(table.r['attn_lrp'], mean)
    assert cluster.is_initialized()


def by_ray(out, method='attn_lrp', of=('demo', None), **options):
    common = dict(engine='ray', workers=1, device='cpu')
    return swept(of, TEXTS[:2], out, method, **common | options)


def test_without_ray_a_sweep_says_so_before_it_loads_a_model(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ModuleNotFoundError, match='this needs ray'):
        by_ray(tmp_path, of=('nowhere', None))


@pytest.mark.parametrize('setting', [None, '1'])
def test_ray_reports_no_usage_unless_the_user_says_so(setting, monkeypatch):
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: None)
    monkeypatch.setitem(sys.modules, 'ray', ray)
    monkeypatch.setattr(os, 'environ', {VARIABLE: setting} if setting else {})
    with ray_cluster(1):
        assert os.environ[VARIABLE] == (setting or '0')
    assert os.environ.get(VARIABLE) == setting


@needs_ray
def test_an_error_of_a_worker_is_raised(cluster, folder, tmp_path):
    def broken(model, tokenizer, encs, target=None):
        raise ValueError('a bad day')

    with pytest.raises(ValueError, match='a bad day'):
        by_ray(tmp_path / 'out', {'mine': (broken, {})}, (folder, None))


@needs_ray
@pytest.mark.parametrize(
    'options, words',
    [
        (dict(workers=99), 'logical CPUs'),
        (dict(device='meta', workers=None), 'its own GPU'),
        (dict(of=('demo', 'its own')), 'give the model.s name or folder, and None'),
        pytest.param(dict(device='cuda'), '1 GPUs, and the cluster', marks=no_gpu),
    ],
)
def test_arguments_that_a_cluster_cannot_serve(cluster, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        by_ray(tmp_path / 'out', **options)
