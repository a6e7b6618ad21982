"A data set's sweep: the rows are the single calls' rows, whichever engine made them, also when a worker was killed; and a lower precision's error is within its bound."

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

from lrp_loo import explain, load_demo
from lrp_loo.methods import METHODS
from lrp_loo.cli import main
from lrp_loo.stats import pearson
from lrp_loo.studies.precision import (
    EMULATED,
    precision_errors,
    precision_table,
    tf32_emulation,
)
from lrp_loo.dataset import explain_dataset, ray_cluster, read_sweep
from lrp_loo.stats import agreement
from lrp_loo.models import at_precision, encode, forward
from lrp_loo.loo import leave_one_out

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
    find_spec('ray') is None,
    reason="ray is not installed (pip install 'lrp_loo[ray]')",
)


@pytest.fixture(scope='module')
def loaded():
    return *load_demo('sst2'), 'minilm-sst2'


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


def same_rows(
    a,
    b,
    columns=(
        'index',
        'text_sha256',
        'method',
        'target',
        'model',
        'dtype',
        'device',
        'version',
    ),
):
    key = ['index', 'method']
    a, b = (d.sort_values(key).reset_index(drop=True) for d in (a, b))
    assert len(a) == len(b) and not b.duplicated(key).any()
    for c in columns:
        assert a[c].tolist() == b[c].tolist(), c
    for c in ('tokens', 'is_special'):
        assert [list(x) for x in a[c]] == [list(x) for x in b[c]]
    for c in ('scores', 'loo'):
        assert all(np.allclose(x, y, atol=1e-4) for x, y in zip(a[c], b[c])), c
    assert np.allclose(a.r, b.r, atol=1e-4, equal_nan=True) and np.allclose(
        a.logit, b.logit, atol=1e-4
    )


def test_rows_are_the_single_calls(loaded, plain):
    model, tokenizer, _ = loaded
    rows = read_sweep(plain)
    assert (
        len(rows) == len(TEXTS) * len(METHOD_NAMES)
        and 'text' not in rows
        and set(rows.device) == {'cpu'}
        and set(rows.worker) == {os.getpid()}
    )
    for r in rows.itertuples():
        loo, _, target = leave_one_out(
            model, encode(model, tokenizer, TEXTS[r.index])
        )
        a = explain(model, tokenizer, TEXTS[r.index], method=r.method)[0]
        assert (
            r.target == target == a.target
            and list(r.tokens) == a.tokens
            and list(r.is_special) == a.is_special.tolist()
            and r.logit == pytest.approx(a.logit, abs=1e-4)
        )
        assert np.allclose(r.scores, a.scores, atol=1e-4) and np.allclose(
            r.loo, loo, atol=1e-4
        )
        expected = agreement(a.scores, loo, a.is_special)
        assert (
            np.isnan(expected)
            and np.isnan(r.r)
            or r.r == pytest.approx(expected, abs=1e-3)
        )


def test_options_and_targets(loaded, tmp_path):
    """Methods with options, methods that take one text at a time, a named
    class, sentences where they are asked for.
    """
    model, tokenizer, _ = loaded
    methods = {
        'bypassed': ('attn_lrp', dict(bypass_softmax=range(3, 6))),
        'exact': ('removal+loo', {}),
        'loo': ('loo', {}),
        'mask': ('loo', dict(removal='mask_token')),
    }
    explain_dataset(
        TEXTS[:3],
        tmp_path,
        methods,
        model=loaded,
        target=0,
        keep_texts=True,
        progress=False,
    )
    rows = read_sweep(tmp_path)
    assert (
        set(rows.target) == {0}
        and rows.text.tolist() == [TEXTS[i] for i in rows['index']]
        and np.allclose(rows.r[rows.method == 'loo'], 1)
    )
    for r in rows.itertuples():
        m, kw = methods[r.method]
        assert np.allclose(
            r.scores,
            explain(model, tokenizer, TEXTS[r.index], method=m, target=0, **kw)[
                0
            ].scores,
            atol=1e-4,
        ), r.method


def test_resuming_computes_what_is_missing(loaded, plain, tmp_path):
    calls = []

    def counted(model, tokenizer, encs, target=None):
        calls.append(len(encs))
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    def sweep(texts, **kw):
        return explain_dataset(
            texts,
            tmp_path / 'out',
            {'mine': (counted, {})},
            model=loaded,
            batch_size=2,
            progress=False,
            **kw,
        )

    first = sweep(TEXTS[:5])
    assert (
        sum(calls) == 5 and sweep(TEXTS[:5]).equals(first) and sum(calls) == 5
    )
    next((tmp_path / 'out').glob('*.parquet')).unlink()
    sweep(TEXTS)
    assert 8 < sum(calls) <= 10  # one or two texts lost, three new
    assert sorted(read_sweep(tmp_path / 'out')['index']) == list(range(8))
    whole = sorted((tmp_path / 'out').glob('*.parquet'))[0]
    whole.write_bytes(whole.read_bytes()[:-9])
    n = sum(calls)
    with pytest.raises(ValueError, match='not whole'):
        read_sweep(tmp_path / 'out')
    sweep(TEXTS)
    assert n < sum(calls) <= n + 2
    sweep(TEXTS, fresh=True)
    assert sum(calls) > n + 2 and len(read_sweep(tmp_path / 'out')) == 8
    rows = read_sweep(plain)
    same_rows(
        rows[rows.method == 'attn_lrp'].assign(method='mine'),
        read_sweep(tmp_path / 'out'),
    )


def test_bad_inputs(loaded, tmp_path, monkeypatch):
    def sweep(texts=TEXTS[:2], **kw):
        return explain_dataset(
            texts,
            tmp_path / 'out',
            **dict(methods=['attn_lrp'], model=loaded, progress=False) | kw,
        )

    for kw, said in (
        (dict(methods=['lime']), "'lime'"),
        (dict(methods=[]), 'methods is empty'),
        (dict(dtype='float16'), "'float16'"),
        (dict(device='no-such', model='demo'), "'no-such'"),
        (dict(workers=0, engine='ray'), 'at least 1'),
        (dict(workers=2), "engine='ray'"),
        (dict(engine='dask'), "'dask'"),
        (dict(batch_size=0), 'batch_size'),
        (dict(target='positive'), 'class'),
        (dict(target=7), '0 to 1'),
        (dict(texts=[]), 'empty'),
        (dict(texts=['fine', ' ']), 'text 1: the text is empty'),
        (dict(texts=['word ' * 10_000]), 'text 0: the text has 10002 tokens'),
        (dict(model='/no/such/model'), 'no model folder'),
        (dict(model='demo', name='mnist'), 'images'),
        (dict(engine='ray'), 'loads the model itself'),
    ):
        with pytest.raises(
            (ValueError, FileNotFoundError, ModuleNotFoundError), match=said
        ):
            sweep(**kw)
    with pytest.raises(TypeError, match='one str'):
        sweep(texts='fine')
    if not torch.cuda.is_available():
        for model in ('demo', loaded):
            with pytest.raises(ValueError, match='compute capability'):
                sweep(dtype='tf32', model=model)
    sweep(fresh=True)
    for kw, said in (
        (dict(dtype='bfloat16'), 'dtype'),
        (dict(methods=['cp_lrp']), 'methods'),
        (dict(texts=TEXTS[1:3]), 'other texts'),
        (dict(keep_texts=True), 'keep_texts'),
    ):
        with pytest.raises(ValueError, match=said):
            sweep(**kw)
    (tmp_path / 'strange').mkdir()
    pq.write_table(pa.table(dict(a=[1])), tmp_path / 'strange' / 'a.parquet')
    with pytest.raises(ValueError, match="no sweep's"):
        explain_dataset(
            TEXTS[:2], tmp_path / 'strange', ['attn_lrp'], model=loaded
        )
    with pytest.raises(FileNotFoundError, match='lrp_loo sweep'):
        read_sweep(tmp_path)
    monkeypatch.setattr('lrp_loo.dataset.find_spec', lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install 'lrp_loo\[ray\]'"
    ):
        sweep(engine='ray', model='demo')


def test_command(tmp_path, capsys):
    assert (
        main(
            [
                'sweep',
                '--limit',
                '4',
                '--methods',
                'attn_lrp',
                '--out',
                str(tmp_path / 'out'),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert (
        'attn_lrp' in said
        and '*.parquet' in said
        and len(read_sweep(tmp_path / 'out')) == 4
    )
    assert (
        main(
            [
                'sweep',
                '--limit',
                '4',
                '--methods',
                'cp_lrp',
                '--out',
                str(tmp_path / 'out'),
            ]
        )
        == 1
        and '--fresh' in capsys.readouterr().err
    )


# --- precision


def test_precisions_leave_nothing_behind(loaded):
    model, tokenizer, _ = loaded
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [s.fp32_precision for s in settings]
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    for dtype in ('float32', 'bfloat16'):
        with pytest.raises(KeyError), at_precision(model, dtype):
            raise KeyError
    assert [s.fp32_precision for s in settings] == before and all(
        torch.equal(v, weights[k])
        and v.dtype == torch.float32
        or not v.is_floating_point()
        for k, v in model.state_dict().items()
    )
    torch.backends.cuda.matmul.fp32_precision = (  # float32 is float32, whatever is set outside
        'tf32'
    )
    try:
        with at_precision(model):
            assert settings[0].fp32_precision == 'ieee'
        assert settings[0].fp32_precision == 'tf32'
    finally:
        settings[0].fp32_precision = before[0]


@pytest.mark.skipif(
    torch.cuda.is_available(), reason='this machine may have TF32'
)
def test_tf32_is_refused_where_there_is_none(loaded):
    with (
        pytest.raises(ValueError, match='compute capability'),
        at_precision(loaded[0], 'tf32'),
    ):
        pass


def test_errors_within_bounds(loaded):
    """bfloat16 keeps 8 bits: a logit near 4 is off by up to 2⁻⁶ where it is
    stored alone, LOO is a difference of two that went through six layers.
    """
    model, tokenizer, _ = loaded
    with at_precision(model, 'bfloat16') as low:
        pass
    rows = [
        dict(
            errors=precision_errors(
                model,
                tokenizer,
                encode(model, tokenizer, t),
                {'bfloat16': low, EMULATED: model},
            )
        )
        for t in TEXTS[:5]
    ]
    t = precision_table(rows)
    for d, bound in (('bfloat16', 0.15), (EMULATED, 0.015)):
        assert (
            t['max'][d, 'loo'] < bound
            and t['max'][d, 'logits'] < bound
            and t['max'][d, 'attn_lrp'] < bound / 2
            and t.r_lowest[d, 'loo'] > 1 - bound / 5
            and 0 < t['mean'][d, 'loo']
        )
    assert t['max'][EMULATED, 'loo'] < t['max']['bfloat16', 'loo'] / 4


def test_emulation_reaches_every_product(loaded):
    """Fused attention is the attention written out; the way back is rounded as
    well; the model is untouched afterwards.
    """
    model, tokenizer, _ = loaded
    enc = encode(model, tokenizer, TEXTS[0])
    eager, _ = load_demo('sst2')
    eager.set_attn_implementation('eager')
    with torch.no_grad():
        exact = forward(model, enc).logits
        with tf32_emulation():
            fused = forward(model, enc).logits
            written = forward(eager, enc).logits
        assert torch.equal(forward(model, enc).logits, exact)
    assert (
        torch.allclose(fused, written, atol=1e-3)
        and 1e-6 < (fused - exact).abs().max() < 0.015
    )
    x = torch.randn(4, 8)
    w = torch.randn(3, 8, requires_grad=True)
    g = torch.randn(4, 3)

    def cut(t):
        return ((t.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    with tf32_emulation():
        y = torch.nn.functional.linear(x, w, torch.ones(3))
        y.backward(g)
    assert torch.equal(y, cut(x) @ cut(w.detach()).T + 1) and torch.allclose(
        w.grad, cut(g).T @ cut(x), atol=1e-6
    )


def test_bfloat16_rows_depend_on_their_text_alone(loaded, tmp_path):
    "LOO of a text is the same bits in any batch, and near float32's."
    rows = []
    for size in (1, 4):
        explain_dataset(
            TEXTS[:4],
            tmp_path / str(size),
            ['attn_lrp'],
            model=loaded,
            dtype='bfloat16',
            batch_size=size,
            progress=False,
        )
        rows.append(read_sweep(tmp_path / str(size)))
    model, tokenizer, _ = loaded
    for a, b in zip(rows[0].itertuples(), rows[1].itertuples()):
        exact = leave_one_out(
            model, encode(model, tokenizer, TEXTS[a.index]), a.target
        )[0]
        assert (
            list(a.loo) == list(b.loo)
            and np.abs(np.array(a.loo) - exact.numpy()).max() < 0.15
            and a.dtype == 'bfloat16'
            and float(pearson(torch.tensor(a.loo), exact)) > 0.97
        )


# --- Ray


@pytest.fixture(scope='module')
def cluster():
    "One for all: starting it takes longer than they do."
    with ray_cluster(2) as ray:
        yield ray


def _meeting(folder):
    """a method that waits until two processes have come; the first of them
    then says who it is and waits to be killed.
    """

    def method(model, tokenizer, encs, target=None):
        from pathlib import Path
        import os, time
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


@needs_ray
@pytest.mark.skipif(sys.platform == 'win32', reason='no SIGKILL')
def test_two_workers_one_of_them_killed(cluster, plain, folder, tmp_path):
    """Four batches, two processes that wait for each other; then one is killed
    in the middle of its batch. The rows are those of one process, each
    once.
    """
    here = tmp_path / 'pids'
    killed = []
    here.mkdir()
    killer = threading.Thread(target=_kill, args=(here, killed), daemon=True)
    killer.start()
    table = explain_dataset(
        TEXTS,
        tmp_path / 'out',
        {n: (n, {}) for n in METHOD_NAMES}
        | {'meet': (_meeting(str(here)), {})},
        model=folder,
        engine='ray',
        workers=2,
        batch_size=2,
        device='cpu',
        progress=False,
    )
    killer.join(timeout=10)
    pids = {int(p.stem) for p in here.glob('*.pid')}
    rows = pd.concat(
        [
            pq.read_table(f).to_pandas()
            for f in (tmp_path / 'out').glob('*.parquet')
        ]
    )  # as written, nothing set aside
    assert (
        len(killed) == 1
        and killed[0] in pids
        and killed[0] not in set(rows.worker)
        and set(rows.worker) < pids
        and os.getpid() not in pids
    )
    same_rows(read_sweep(plain), rows[rows.method != 'meet'])
    assert len(rows[rows.method == 'meet']) == len(TEXTS)
    assert (
        table.r['attn_lrp']
        == pytest.approx(float(rows.r[rows.method == 'attn_lrp'].mean()))
        and cluster.is_initialized()
    )  # it was there before, so it stays


@needs_ray
def test_what_a_worker_raises_and_what_the_cluster_lacks(
    cluster, folder, tmp_path
):
    def broken(model, tokenizer, encs, target=None):
        raise ValueError('a bad day')

    with pytest.raises(ValueError, match='^a bad day$'):
        explain_dataset(
            TEXTS[:2],
            tmp_path / 'out',
            {'mine': (broken, {})},
            model=folder,
            engine='ray',
            workers=1,
            device='cpu',
            progress=False,
        )
    with pytest.raises(ValueError, match='logical CPUs'):
        explain_dataset(
            TEXTS[:2],
            tmp_path / 'many',
            ['attn_lrp'],
            engine='ray',
            workers=99,
            device='cpu',
            progress=False,
        )
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='the cluster has 0'):
            explain_dataset(
                TEXTS[:2],
                tmp_path / 'gpu',
                ['attn_lrp'],
                engine='ray',
                workers=1,
                device='cuda',
                progress=False,
            )
    with pytest.raises(ValueError, match='its own GPU'):
        explain_dataset(
            TEXTS[:2],
            tmp_path / 'one',
            ['attn_lrp'],
            engine='ray',
            device='cuda:0' if torch.cuda.is_available() else 'meta',
            progress=False,
        )
