"A data set's rows are the single calls', also when a worker was killed."

import copy
import os
import signal
import sys
import threading
import time
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from conftest import shallow_demo

from lrp_loo import explain
from lrp_loo.loo import leave_one_out
from lrp_loo.methods import METHODS
from lrp_loo.models.encoding import encode
from lrp_loo.stats import agreement, pearson
from lrp_loo.trust.sweep import ray_cluster, read_sweep, sweep

TEXTS = """a slow start , but the last act is a quiet triumph
the jokes are old
a warm and funny film , and never once dull
it knows what it wants to say and says it twice
nothing in it is new , and none of it is true
you will not forget the last ten minutes
good
the actors try hard and the script lets them down""".splitlines()
METHOD_NAMES = ['attn_lrp', 'cp_lrp', 'removal']
needs_ray = pytest.mark.skipif(
    find_spec('ray') is None, reason="ray is not installed (pip install 'lrp_loo[ray]')"
)
no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason='this machine may have what is refused'
)


@pytest.fixture(scope='module')
def loaded():
    return shallow_demo()


@pytest.fixture(scope='module')
def folder(loaded, tmp_path_factory):
    "The same model as a folder, which a worker loads in a third of the time."
    path = tmp_path_factory.mktemp('models') / 'minilm-sst2'
    for part in loaded:
        part.save_pretrained(path)
    return str(path)


def swept(of, texts, out, method='attn_lrp', **options):
    options = dict(progress=False) | options
    return sweep(*of, texts, out, method, **options)


@pytest.fixture(scope='module')
def plain(loaded, tmp_path_factory):
    "The sweep in one process: its folder."
    out = tmp_path_factory.mktemp('plain')
    swept(loaded, TEXTS, out, METHOD_NAMES, batch_size=3)
    return out


EXACT = ['index', 'text_sha256', 'method', 'target', 'model']
EXACT += ['dtype', 'device', 'version']


def same_rows(a, b):
    "To the last digits that another batch may change."
    key = ['index', 'method']
    a, b = (d.sort_values(key).reset_index(drop=True) for d in (a, b))
    assert len(a) == len(b)
    assert not b.duplicated(key).any()
    for c in EXACT:
        assert a[c].tolist() == b[c].tolist(), c
    for c in ('tokens', 'is_special'):
        assert [list(x) for x in a[c]] == [list(x) for x in b[c]], c
    for c in ('scores', 'loo'):
        for x, y in zip(a[c], b[c]):
            assert np.allclose(x, y, atol=1e-4), c
    assert np.allclose(a.r, b.r, atol=1e-4, equal_nan=True)
    assert np.allclose(a.logit, b.logit, atol=1e-4)


def test_rows_are_the_single_calls_with_exact_loo_and_the_agreement(loaded, plain):
    model, tokenizer = loaded
    rows = read_sweep(plain)
    assert len(rows) == len(TEXTS) * len(METHOD_NAMES)
    assert set(rows.method) == set(METHOD_NAMES) and 'text' not in rows
    assert set(rows.device) == {'cpu'} and set(rows.worker) == {os.getpid()}
    for row in rows.itertuples():
        (a,) = explain(model, tokenizer, TEXTS[row.index], method=row.method)
        loo, _, target = leave_one_out(model, encode(*loaded, TEXTS[row.index]))
        assert row.target == a.target == target
        assert list(row.tokens) == a.tokens
        assert list(row.is_special) == a.is_special.tolist()
        assert row.logit == pytest.approx(a.logit, abs=1e-4)
        assert np.allclose(row.scores, a.scores, atol=1e-4)
        assert np.allclose(row.loo, loo, atol=1e-4)
        r = agreement(torch.tensor(list(row.scores)), loo, a.is_special)
        assert row.r == pytest.approx(r, abs=1e-3, nan_ok=True)


METHODS_WITH_OPTIONS = {
    'bypassed': ('attn_lrp', dict(bypass_softmax=[1])),
    'exact': ('removal+loo', {}),  # takes one text at a time
    'loo': ('loo', {}),
    'mask': ('loo', dict(removal='mask_token')),
}


def test_methods_get_their_options_and_rows_what_was_asked_for(loaded, tmp_path):
    asked = dict(target=0, keep_texts=True)
    swept(loaded, TEXTS[:3], tmp_path, METHODS_WITH_OPTIONS, **asked)
    rows = read_sweep(tmp_path)
    assert set(rows.target) == {0}
    assert rows.text.tolist() == [TEXTS[i] for i in rows['index']]
    assert np.allclose(rows.r[rows.method == 'loo'], 1)
    for row in rows.itertuples():
        method, options = METHODS_WITH_OPTIONS[row.method]
        (a,) = explain(*loaded, TEXTS[row.index], method, 0, **options)
        assert np.allclose(row.scores, a.scores, atol=1e-4), row.method


def test_targets_of_each_text_are_kept_apart(loaded, tmp_path):
    asked = (tmp_path, 'cp_lrp')
    swept(loaded, TEXTS[:4], *asked, target=['positive', 0] * 2)
    rows = read_sweep(tmp_path)
    assert rows.target.tolist() == [1, 0, 1, 0]
    for row in rows.itertuples():
        (a,) = explain(*loaded, TEXTS[row.index], 'cp_lrp', row.target)
        assert np.allclose(row.scores, a.scores, atol=1e-4)
    # more texts, and not other targets
    swept(loaded, TEXTS[:6], *asked, target=[1, 0] * 3)
    assert len(read_sweep(tmp_path)) == 6
    with pytest.raises(ValueError, match='other targets: 1 of 6'):
        swept(loaded, TEXTS[:6], *asked, target=[1, 0, 1, 1, 1, 0])


def test_a_module_goes_on_where_its_folder_began(loaded, folder, tmp_path):
    "Rows say the model's name; other weights under that name are refused."
    swept((folder, None), TEXTS[:2], tmp_path)
    swept(loaded, TEXTS[:4], tmp_path)
    assert set(read_sweep(tmp_path).model) == {'minilm-sst2'}
    assert len(read_sweep(tmp_path)) == 4
    swept(loaded, TEXTS[:2], tmp_path / 'named', name='mine')
    assert set(read_sweep(tmp_path / 'named').model) == {'mine'}
    other = copy.deepcopy(loaded[0])
    with torch.no_grad():
        other.classifier.bias += 1
    with pytest.raises(ValueError, match='another run: config differs in model'):
        swept((other, loaded[1]), TEXTS[:4], tmp_path)


class Counted:
    "A sweep whose method counts the texts it is given."

    def __init__(self, loaded, out):
        self.loaded, self.out, self.n = loaded, out, 0

    def method(self, model, tokenizer, encs, target=None):
        self.n += len(encs)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    def __call__(self, texts, **options):
        mine = {'mine': (self.method, {})}
        return swept(self.loaded, texts, self.out, mine, batch_size=2, **options)

    def files(self):
        return sorted(self.out.glob('*.parquet'))


@pytest.fixture
def counted(loaded, tmp_path):
    return Counted(loaded, tmp_path / 'out')


def test_what_is_there_is_not_computed_again_but_fresh(counted):
    first = counted(TEXTS[:5])
    assert counted(TEXTS[:5]).equals(first)
    assert counted.n == 5
    counted(TEXTS, fresh=True)
    assert counted.n == 13
    assert len(read_sweep(counted.out)) == 8


def test_a_lost_file_and_new_texts_are_computed(counted):
    counted(TEXTS[:5])
    counted.files()[0].unlink()
    counted(TEXTS)
    assert 8 < counted.n <= 10  # one or two texts lost, three new
    assert sorted(read_sweep(counted.out)['index']) == list(range(8))


def test_a_torn_file_is_refused_by_a_reader_and_computed_again(counted, plain):
    "And a function of one's own has its rows."
    counted(TEXTS)
    torn = counted.files()[0]
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(ValueError, match='not whole'):
        read_sweep(counted.out)
    counted(TEXTS)
    assert 8 < counted.n <= 10
    rows = read_sweep(plain)
    rows = rows[rows.method == 'attn_lrp'].assign(method='mine')
    same_rows(rows, read_sweep(counted.out))


def test_ray_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lrp_loo\[ray\]'"):
        swept(('demo', None), TEXTS[:2], tmp_path / 'out', engine='ray')


def test_bfloat16_loo_depends_on_its_text_alone_and_is_near_float32s(loaded, tmp_path):
    "The same bits in batches of one and of four."
    for n in (1, 4):
        how = dict(dtype='bfloat16', batch_size=n)
        swept(loaded, TEXTS[:4], tmp_path / str(n), **how)
    alone, batched = (read_sweep(tmp_path / n) for n in '14')
    assert [list(x) for x in alone.loo] == [list(x) for x in batched.loo]
    assert set(alone.dtype) == {'bfloat16'}
    model, tokenizer = loaded
    for row in alone.itertuples():
        enc = encode(model, tokenizer, TEXTS[row.index])
        exact = leave_one_out(model, enc, row.target)[0]
        loo = torch.tensor(list(row.loo))
        assert (loo - exact).abs().max() < 0.15
        assert float(pearson(loo, exact)) > 0.97


@pytest.fixture(scope='module')
def cluster():
    "One for all: starting it takes longer than they do."
    with ray_cluster(2) as ray:
        yield ray


def _meeting(folder):
    "A method: waits for two processes; the first says who it is, to be killed."

    def method(model, tokenizer, encs, target=None):
        import os
        import time
        from pathlib import Path

        from lrp_loo.methods import METHODS

        here = Path(folder)
        (here / f'{os.getpid()}.pid').touch()
        end = time.time() + 100
        while len(list(here.glob('*.pid'))) < 2 and time.time() < end:
            time.sleep(0.05)
        try:
            os.close(os.open(here / 'first', os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            (here / 'victim.tmp').write_text(str(os.getpid()))
            os.replace(here / 'victim.tmp', here / 'victim')
            time.sleep(100)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    return method


def _kill(folder, killed):
    "Once the victim has said who it is: on a busy machine workers start late."
    end = time.time() + 600
    while not (folder / 'victim').exists() and time.time() < end:
        time.sleep(0.05)
    pid = int((folder / 'victim').read_text())
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


@pytest.fixture(scope='module')
def killed_once(cluster, folder, tmp_path_factory):
    "Four batches, two processes that wait for each other."
    tmp = tmp_path_factory.mktemp('killed')
    here = tmp / 'pids'
    here.mkdir()
    killed = []
    killer = threading.Thread(target=_kill, args=(here, killed), daemon=True)
    killer.start()
    methods = {n: (n, {}) for n in METHOD_NAMES}
    methods['meet'] = (_meeting(str(here)), {})
    how = dict(engine='ray', workers=2, batch_size=2, device='cpu')
    table = swept((folder, None), TEXTS, tmp / 'out', methods, **how)
    killer.join(timeout=10)
    files = (tmp / 'out').glob('*.parquet')
    rows = pd.concat([pq.read_table(f).to_pandas() for f in files])
    pids = {int(p.stem) for p in here.glob('*.pid')}
    return table, rows, pids, killed


needs_kill = pytest.mark.skipif(sys.platform == 'win32', reason='no SIGKILL')


@needs_ray
@needs_kill
def test_several_processes_made_the_rows_and_one_was_killed(
    killed_once, plain, cluster
):
    "The rows, as they were written, are those of one process, each once."
    table, rows, pids, killed = killed_once
    workers = set(rows.worker)
    assert len(killed) == 1
    assert killed[0] in pids - workers
    assert workers < pids and os.getpid() not in pids
    same_rows(read_sweep(plain), rows[rows.method != 'meet'])
    assert (rows.method == 'meet').sum() == len(TEXTS)
    mean = float(rows.r[rows.method == 'attn_lrp'].mean())
    assert table.r['attn_lrp'] == pytest.approx(mean)
    assert cluster.is_initialized()


def by_ray(out, method='attn_lrp', of=('demo', None), **options):
    common = dict(engine='ray', workers=1, device='cpu')
    return swept(of, TEXTS[:2], out, method, **common | options)


@needs_ray
def test_what_a_worker_raises_is_raised(cluster, folder, tmp_path):
    def broken(model, tokenizer, encs, target=None):
        raise ValueError('a bad day')

    with pytest.raises(ValueError, match='^a bad day$'):
        by_ray(tmp_path / 'out', {'mine': (broken, {})}, (folder, None))


REFUSED = [
    (dict(workers=99), 'logical CPUs'),
    (dict(device='meta', workers=None), 'its own GPU'),
    (dict(of=shallow_demo()), 'give the model.s name or folder, and None'),
    (dict(of=('demo', 'its own')), 'give the model.s name or folder, and None'),
    pytest.param(dict(device='cuda'), 'the cluster has 0', marks=no_gpu),
]


@needs_ray
@pytest.mark.parametrize('options, said', REFUSED)
def test_what_a_cluster_cannot_do(cluster, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        by_ray(tmp_path / 'out', **options)
