"""A data set's rows are the single calls' rows, whichever way they were computed,
also when a worker was killed."""

import os
import signal
import sys
import threading
import time
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import shallow_demo

from lrp_loo import explain
from lrp_loo.cli import main
from lrp_loo.loo import leave_one_out
from lrp_loo.methods import METHODS
from lrp_loo.models.encoding import encode
from lrp_loo.stats import agreement, pearson
from lrp_loo.trust.sweep import explain_dataset, ray_cluster, read_sweep

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
    "it knows what it wants to say and says it twice",
    "nothing in it is new , and none of it is true",
    "you will not forget the last ten minutes",
    "good",
    "the actors try hard and the script lets them down",
]
METHOD_NAMES = ['attn_lrp', 'cp_lrp', 'removal']
needs_ray = pytest.mark.skipif(
    find_spec('ray') is None, reason="ray is not installed (pip install 'lrp_loo[ray]')"
)
no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason='this machine may have what is refused'
)


@pytest.fixture(scope='module')
def loaded():
    return *shallow_demo(), 'minilm-sst2'


@pytest.fixture(scope='module')
def folder(loaded, tmp_path_factory):
    "The same model as a folder, which a worker loads in a third of the time."
    path = tmp_path_factory.mktemp('models') / 'minilm-sst2'
    for part in loaded[:2]:
        part.save_pretrained(path)
    return str(path)


@pytest.fixture(scope='module')
def plain(loaded, tmp_path_factory):
    "The sweep in one process: its folder."
    out = tmp_path_factory.mktemp('plain')
    explain_dataset(
        TEXTS, out, METHOD_NAMES, model=loaded, batch_size=3, progress=False
    )
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


# --- rows


def test_there_is_a_row_for_each_text_and_method(plain):
    rows = read_sweep(plain)
    assert len(rows) == len(TEXTS) * len(METHOD_NAMES)
    assert set(rows.method) == set(METHOD_NAMES)
    assert 'text' not in rows
    assert set(rows.device) == {'cpu'}
    assert set(rows.worker) == {os.getpid()}


def test_rows_are_the_single_calls(loaded, plain):
    model, tokenizer, _ = loaded
    for row in read_sweep(plain).itertuples():
        a = explain(model, tokenizer, TEXTS[row.index], method=row.method)[0]
        assert row.target == a.target
        assert list(row.tokens) == a.tokens
        assert list(row.is_special) == a.is_special.tolist()
        assert row.logit == pytest.approx(a.logit, abs=1e-4)
        assert np.allclose(row.scores, a.scores, atol=1e-4)


def test_rows_hold_exact_loo_and_the_agreement_with_it(loaded, plain):
    model, tokenizer, _ = loaded
    for row in read_sweep(plain).itertuples():
        enc = encode(model, tokenizer, TEXTS[row.index])
        loo, _, target = leave_one_out(model, enc)
        assert row.target == target
        assert np.allclose(row.loo, loo, atol=1e-4)
        special = torch.tensor(list(row.is_special))
        r = agreement(torch.tensor(list(row.scores)), loo, special)
        assert row.r == pytest.approx(r, abs=1e-3, nan_ok=True)


METHODS_WITH_OPTIONS = {
    'bypassed': ('attn_lrp', dict(bypass_softmax=[1])),
    'exact': ('removal+loo', {}),  # takes one text at a time
    'loo': ('loo', {}),
    'mask': ('loo', dict(removal='mask_token')),
}


@pytest.fixture(scope='module')
def of_class_0(loaded, tmp_path_factory):
    "Rows of methods with options, for a named class, with their sentences."
    out = tmp_path_factory.mktemp('options')
    explain_dataset(
        TEXTS[:3],
        out,
        METHODS_WITH_OPTIONS,
        model=loaded,
        target=0,
        keep_texts=True,
        progress=False,
    )
    return read_sweep(out)


def test_methods_get_their_options_and_rows_what_was_asked_for(loaded, of_class_0):
    model, tokenizer, _ = loaded
    assert set(of_class_0.target) == {0}
    assert of_class_0.text.tolist() == [TEXTS[i] for i in of_class_0['index']]
    assert np.allclose(of_class_0.r[of_class_0.method == 'loo'], 1)
    for row in of_class_0.itertuples():
        method, options = METHODS_WITH_OPTIONS[row.method]
        text = TEXTS[row.index]
        a = explain(model, tokenizer, text, method=method, target=0, **options)[0]
        assert np.allclose(row.scores, a.scores, atol=1e-4), row.method


def test_targets_of_each_text_are_kept_apart(loaded, tmp_path):
    asked = dict(methods=['cp_lrp'], model=loaded, progress=False)
    explain_dataset(TEXTS[:4], tmp_path, target=['positive', 0] * 2, **asked)
    rows = read_sweep(tmp_path)
    assert rows.target.tolist() == [1, 0, 1, 0]
    for row in rows.itertuples():
        (a,) = explain(*loaded[:2], TEXTS[row.index], 'cp_lrp', row.target)
        assert np.allclose(row.scores, a.scores, atol=1e-4)
    # more texts, and not other targets
    explain_dataset(TEXTS[:6], tmp_path, target=[1, 0] * 3, **asked)
    assert len(read_sweep(tmp_path)) == 6
    with pytest.raises(ValueError, match='other targets: 1 of 6'):
        explain_dataset(TEXTS[:6], tmp_path, target=[1, 0, 1, 1, 1, 0], **asked)


# --- going on


class Counted:
    "A sweep whose method counts the texts it is given."

    def __init__(self, loaded, out):
        self.loaded, self.out = loaded, out
        self.n = 0

    def method(self, model, tokenizer, encs, target=None):
        self.n += len(encs)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    def __call__(self, texts, **options):
        return explain_dataset(
            texts,
            self.out,
            {'mine': (self.method, {})},
            model=self.loaded,
            batch_size=2,
            progress=False,
            **options,
        )

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


def test_a_torn_file_is_refused_by_a_reader_and_computed_again(counted):
    counted(TEXTS)
    torn = counted.files()[0]
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(ValueError, match='not whole'):
        read_sweep(counted.out)
    counted(TEXTS)
    assert 8 < counted.n <= 10


def test_a_function_of_ones_own_has_its_rows(counted, plain):
    counted(TEXTS)
    rows = read_sweep(plain)
    same_rows(
        rows[rows.method == 'attn_lrp'].assign(method='mine'), read_sweep(counted.out)
    )


# --- what is refused


def two_texts(loaded, out, **options):
    common = dict(
        texts=TEXTS[:2], out=out, methods=['attn_lrp'], model=loaded, progress=False
    )
    return explain_dataset(**common | options)


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(methods=['lime']), "'lime'"),
        (dict(methods=[]), 'methods is empty'),
        (dict(dtype='float16'), "'float16'"),
        (dict(device='no-such', model='demo'), "'no-such'"),
        (dict(workers=0, engine='ray'), 'at least 1'),
        (dict(workers=2), "engine='ray'"),
        (dict(engine='dask'), "'dask'"),
        (dict(batch_size=0), 'batch_size'),
        (dict(target='none such'), 'none such'),
        (dict(target=(0, 1)), "a class's number"),
        (dict(target=7), '0 to 1'),
        (dict(texts=[]), 'empty'),
        (dict(texts=['fine', ' ']), r'texts\[1\]: the text is empty'),
        (dict(texts=['word ' * 10_000]), 'the text has 10002 tokens'),
        (dict(model='/no/such/model'), 'no model folder'),
        (dict(model='demo', name='mnist'), 'images'),
        (dict(engine='ray'), 'loads the model itself'),
    ],
)
def test_a_call_that_cannot_be_right(loaded, tmp_path, options, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        two_texts(loaded, tmp_path / 'out', **options)


def test_one_string_is_not_a_list_of_texts(loaded, tmp_path):
    with pytest.raises(TypeError, match='one str'):
        two_texts(loaded, tmp_path / 'out', texts='fine')


@no_gpu
@pytest.mark.parametrize('by_name', [True, False])
def test_tf32_is_refused_on_a_processor(loaded, tmp_path, by_name):
    model = 'demo' if by_name else loaded
    with pytest.raises(ValueError, match='compute capability'):
        two_texts(model, tmp_path / 'out', dtype='tf32')


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(dtype='bfloat16'), 'dtype'),
        (dict(methods=['cp_lrp']), 'methods'),
        (dict(texts=TEXTS[1:3]), 'other texts'),
        (dict(keep_texts=True), 'keep_texts'),
    ],
)
def test_a_folder_of_another_sweep(loaded, tmp_path, options, said):
    two_texts(loaded, tmp_path / 'out')
    with pytest.raises(ValueError, match=said):
        two_texts(loaded, tmp_path / 'out', **options)


def test_a_folder_of_somebody_elses_files(loaded, tmp_path):
    pq.write_table(pa.table(dict(a=[1])), tmp_path / 'a.parquet')
    with pytest.raises(ValueError, match="no sweep's"):
        two_texts(loaded, tmp_path)


def test_a_folder_without_rows(tmp_path):
    with pytest.raises(FileNotFoundError, match='lrp_loo sweep'):
        read_sweep(tmp_path)


def test_ray_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr('lrp_loo.trust.sweep.find_spec', lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lrp_loo\[ray\]'"):
        two_texts('demo', tmp_path / 'out', engine='ray')


# --- the command


def command(method, out):
    words = ['sweep', '--limit', '4', '--methods', method, '--out', str(out)]
    return main(words)


def test_the_command_writes_rows_and_says_where(tmp_path, capsys):
    assert command('attn_lrp', tmp_path / 'out') == 0
    said = capsys.readouterr().out
    assert 'attn_lrp' in said
    assert '*.parquet' in said
    assert len(read_sweep(tmp_path / 'out')) == 4
    assert command('cp_lrp', tmp_path / 'out') == 1
    assert '--fresh' in capsys.readouterr().err


# --- precision


@pytest.fixture(scope='module')
def in_bfloat16(loaded, tmp_path_factory):
    "The same texts in batches of one and of four."
    found = []
    for size in (1, 4):
        out = tmp_path_factory.mktemp('bfloat16')
        explain_dataset(
            TEXTS[:4],
            out,
            ['attn_lrp'],
            model=loaded,
            dtype='bfloat16',
            batch_size=size,
            progress=False,
        )
        found.append(read_sweep(out))
    return found


def test_bfloat16_loo_depends_on_its_text_alone(in_bfloat16):
    "The same bits in any batch."
    alone, batched = in_bfloat16
    assert [list(x) for x in alone.loo] == [list(x) for x in batched.loo]
    assert set(alone.dtype) == {'bfloat16'}


def test_bfloat16_loo_is_near_float32s(loaded, in_bfloat16):
    model, tokenizer, _ = loaded
    for row in in_bfloat16[0].itertuples():
        enc = encode(model, tokenizer, TEXTS[row.index])
        exact = leave_one_out(model, enc, row.target)[0]
        loo = torch.tensor(list(row.loo))
        assert (loo - exact).abs().max() < 0.15
        assert float(pearson(loo, exact)) > 0.97


# --- Ray


@pytest.fixture(scope='module')
def cluster():
    "One for all: starting it takes longer than they do."
    with ray_cluster(2) as ray:
        yield ray


def _meeting(folder):
    """A method that waits until two processes have come; the first of them
    then says who it is and waits to be killed.
    """

    def method(model, tokenizer, encs, target=None):
        import os
        import time
        from pathlib import Path

        from lrp_loo.methods import METHODS

        here = Path(folder) / f'{os.getpid()}.pid'
        here.touch()
        end = time.time() + 100
        while len(list(Path(folder).glob('*.pid'))) < 2 and time.time() < end:
            time.sleep(0.05)
        try:
            os.close(os.open(f'{folder}/first', os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            Path(folder, 'victim.tmp').write_text(str(os.getpid()))
            os.replace(f'{folder}/victim.tmp', f'{folder}/victim')
            time.sleep(100)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    return method


def _kill(folder, killed):
    "Once the victim has said who it is."
    end = time.time() + 100
    while not (folder / 'victim').exists() and time.time() < end:
        time.sleep(0.05)
    pid = int((folder / 'victim').read_text())
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


@pytest.fixture(scope='module')
def killed_once(cluster, folder, tmp_path_factory):
    """Four batches, two processes that wait for each other; then one is killed
    in the middle of its batch. (table, rows as written, pids, the killed one)
    """
    tmp = tmp_path_factory.mktemp('killed')
    here = tmp / 'pids'
    here.mkdir()
    killed = []
    killer = threading.Thread(target=_kill, args=(here, killed), daemon=True)
    killer.start()
    methods = {n: (n, {}) for n in METHOD_NAMES}
    methods['meet'] = (_meeting(str(here)), {})
    table = explain_dataset(
        TEXTS,
        tmp / 'out',
        methods,
        model=folder,
        engine='ray',
        workers=2,
        batch_size=2,
        device='cpu',
        progress=False,
    )
    killer.join(timeout=10)
    files = (tmp / 'out').glob('*.parquet')
    rows = pd.concat([pq.read_table(f).to_pandas() for f in files])
    pids = {int(p.stem) for p in here.glob('*.pid')}
    return table, rows, pids, killed


needs_kill = pytest.mark.skipif(sys.platform == 'win32', reason='no SIGKILL')


@needs_ray
@needs_kill
def test_several_processes_made_the_rows_and_one_was_killed(killed_once):
    _, rows, pids, killed = killed_once
    workers = set(rows.worker)
    assert len(killed) == 1
    assert killed[0] in pids
    assert killed[0] not in workers
    assert workers < pids
    assert os.getpid() not in pids


@needs_ray
@needs_kill
def test_the_rows_are_those_of_one_process_each_once(killed_once, plain):
    "As they were written, nothing set aside."
    _, rows, _, _ = killed_once
    same_rows(read_sweep(plain), rows[rows.method != 'meet'])
    assert (rows.method == 'meet').sum() == len(TEXTS)


@needs_ray
@needs_kill
def test_the_table_is_of_these_rows(killed_once):
    table, rows, _, _ = killed_once
    mean = float(rows.r[rows.method == 'attn_lrp'].mean())
    assert table.r['attn_lrp'] == pytest.approx(mean)


@needs_ray
@needs_kill
def test_a_cluster_that_was_there_before_stays(cluster, killed_once):
    assert cluster.is_initialized()


def by_ray(out, methods=('attn_lrp',), **options):
    common = dict(engine='ray', workers=1, device='cpu', progress=False)
    return explain_dataset(TEXTS[:2], out, methods, **common | options)


@needs_ray
def test_what_a_worker_raises_is_raised(cluster, folder, tmp_path):
    def broken(model, tokenizer, encs, target=None):
        raise ValueError('a bad day')

    with pytest.raises(ValueError, match='^a bad day$'):
        by_ray(tmp_path / 'out', {'mine': (broken, {})}, model=folder)


@needs_ray
def test_more_workers_than_the_cluster_has_room_for(cluster, tmp_path):
    with pytest.raises(ValueError, match='logical CPUs'):
        by_ray(tmp_path / 'out', workers=99)


@needs_ray
@no_gpu
def test_a_gpu_that_the_cluster_lacks(cluster, tmp_path):
    with pytest.raises(ValueError, match='the cluster has 0'):
        by_ray(tmp_path / 'out', device='cuda')


@needs_ray
def test_ray_gives_each_worker_its_own_gpu(cluster, tmp_path):
    device = 'cuda:0' if torch.cuda.is_available() else 'meta'
    with pytest.raises(ValueError, match='its own GPU'):
        by_ray(tmp_path / 'out', device=device, workers=None)
