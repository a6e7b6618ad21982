"Runs that are killed, full disks, readers during a write; one seed."

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault('TQDM_DISABLE', '1')

import numpy as np
import pandas as pd
import pytest
from conftest import random_bert
from forked import fork

from lrp_loo import load_texts, sweep
from lrp_loo.cli import main
from lrp_loo.core.files import append_line, write_text_atomic
from lrp_loo.paper.experiments import text_experiment
from lrp_loo.records import results as results_module
from lrp_loo.records.results import Results, read_results
from lrp_loo.evaluate.sweep import read_sweep

KILLS = 4
PARTS = os.environ.get('LRP_LOO_SAME_BYTES', 'scalar,sst2')  # run twice
RUN = 'import sys; from lrp_loo.cli import main; sys.exit(main())'
COMMAND = [sys.executable, '-c', RUN]
needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
# a write begins, is half done, is done beside the old file, has taken its place
WHERE = ('before', 'half', 'written', 'after')


def replace_and_die(n, where):
    "An `os.replace` whose n-th call kills the process at that moment."
    plain = os.replace
    calls = itertools.count(1)

    def replace(tmp, path):
        if next(calls) != n:
            return plain(tmp, path)
        if where == 'before':
            os.unlink(tmp)
        if where == 'half':
            os.truncate(tmp, os.path.getsize(tmp) // 2)
        if where == 'after':
            plain(tmp, path)
        os.kill(os.getpid(), signal.SIGKILL)

    return replace


def in_child(job):
    "Fork; the child runs the job and exits with 0, or with 1 after an error."
    pid = fork()
    if pid:
        return pid
    try:
        job()
        os._exit(0)
    except BaseException as e:
        print(repr(e), file=sys.stderr)
        os._exit(1)


def append_and_die(n, where):
    "An `append_line` whose n-th call kills the process at that moment."
    calls = itertools.count(1)

    def append(path, line):
        if next(calls) != n:
            return append_line(path, line)
        if where == 'half':
            with open(path, 'a') as f:
                f.write(line[: len(line) // 2])
        if where in ('written', 'after'):
            append_line(path, line)
        os.kill(os.getpid(), signal.SIGKILL)

    return append


def child(job, n=None, where=None, dies=None):
    """Return True if `job()` ends in a child, which dies at its n-th whole file, or its
    n-th row.
    """

    def doomed():
        if dies == 'row':
            results_module.append_line = append_and_die(n, where)
        else:
            os.replace = replace_and_die(n, where)
        job()

    pid = in_child(doomed if n else job)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0


def leftovers(folder):
    files = [p for p in Path(folder).rglob('*') if p.is_file()]
    return [p.name for p in files if 'tmp' in p.suffix or p.name.startswith('.')]


def names_in(folder):
    return sorted(p.name for p in Path(folder).iterdir())


def same_sweeps(a, b):
    "Assert that two sweeps are the same in every bit; return their number of rows."
    assert names_in(a) == names_in(b)
    mine, theirs = map(read_sweep, (a, b))
    assert not theirs.duplicated(['index', 'method']).any()
    drop = dict(columns='worker')
    pd.testing.assert_frame_equal(
        mine.drop(**drop), theirs.drop(**drop), rtol=0, atol=0
    )
    summaries = [read_results(Path(x) / 'sweep.json')['summary'] for x in (a, b)]
    assert summaries[0] == summaries[1]
    return len(theirs)


def swept(small, n, out, methods, size):
    "Run a sweep of some texts by the small model."
    texts = load_texts('sst2', 'embedded', limit=n).texts
    how = dict(name='small', batch_size=size, progress=False)
    return sweep(*small, texts, out, methods, **how)


@pytest.fixture(scope='module')
def small(tokenizer):
    return random_bert(layers=2), tokenizer


def experiment(small, path, limit, methods):
    "Compute rows of Table 2 on the small model."
    data = load_texts('sst2', 'embedded', limit=limit)
    chosen = {m: (m, {}) for m in methods}
    return text_experiment(path, *small, data, dict(name='small', layers=2), chosen)


def kept_rows(path):
    return read_results(path)['rows'] if path.exists() else []


@pytest.fixture
def killable(small, tmp_path):
    "An experiment's run, its file, and that of a run without an interruption."
    path, whole = tmp_path / 'killed' / 'r.json', tmp_path / 'whole.json'

    def run(path=path):
        experiment(small, path, 10, ('loo', 'attn_lrp'))

    start = time.time()
    assert child(lambda: run(whole))
    yield run, path, json.loads(whole.read_text())['rows'], time.time() - start
    assert child(run)
    assert path.read_bytes() == whole.read_bytes()
    assert os.listdir(path.parent) == ['r.json']


@needs_fork
def test_an_experiment_killed_while_it_writes(killable):
    run, path, rows, _ = killable
    n = 0
    for k in range(KILLS):
        assert not child(run, 1, WHERE[k % 4], 'row')
        now = kept_rows(path)
        assert now == rows[: len(now)] and len(now) >= n
        n = len(now)
        assert not child(run, 1, WHERE[k % 4])
        now = kept_rows(path)
        assert now == rows[: len(now)] and len(now) >= n
        n = len(now)
    assert 0 < n < len(rows)


@needs_fork
def test_a_run_killed_at_random_times(killable):
    "The signal comes at any moment."
    run, path, rows, took = killable
    died = 0
    for delay in np.random.default_rng(2).uniform(0, took, KILLS):
        pid = in_child(run)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        died += os.WIFSIGNALED(status)
        assert status == 0 or os.WIFSIGNALED(status)
        now = kept_rows(path)
        assert now == rows[: len(now)]
    assert died


@needs_fork
def test_a_sweep_killed_while_it_writes(small, tmp_path):
    rng = np.random.default_rng(1)
    out = tmp_path / 'killed'

    def run(out=out):
        swept(small, 16, out, ['attn_lrp', 'removal'], 2)

    assert child(lambda: run(tmp_path / 'whole'))
    n = 0
    for k in range(KILLS):
        assert not child(run, int(rng.integers(1, 4)), WHERE[k % 4], 'row')
        now = len(read_sweep(out))
        assert n < now < 32
        n = now
    assert n
    assert child(run)
    assert same_sweeps(tmp_path / 'whole', out) == 32
    assert not leftovers(out)


IN_BACKGROUND = '"$@" & echo $!; wait $!'  # there Ctrl-C's signal is ignored


@pytest.fixture
def reproducing(tmp_path):
    "`reproduce` in a shell's background that has kept rows: the shell, its id."
    words = ['sh', '-c', IN_BACKGROUND, 'sh', *COMMAND, 'reproduce', '--only', 'sst2']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    env = dict(os.environ, OMP_NUM_THREADS='1')
    words += ['--limit', '60', '--out', tmp_path]
    shell = subprocess.Popen(words, env=env, **pipes)
    pid = int(shell.stdout.readline())
    try:
        while not rows_below(tmp_path):
            assert shell.poll() is None, shell.stderr.read()
            time.sleep(0.05)
        yield shell, pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        shell.wait()


def rows_below(folder):
    found = [read_results(p) for p in folder.rglob('*.json')]
    return sum(len(r['rows']) for r in found)


def test_a_command_in_the_background_ends_and_keeps_its_rows(reproducing, tmp_path):
    shell, pid = reproducing
    os.kill(pid, signal.SIGTERM)
    shell.communicate(timeout=60)
    assert shell.returncode == 128 + signal.SIGTERM
    assert rows_below(tmp_path)


def test_a_reader_never_sees_a_part(tmp_path):
    path = tmp_path / 'r.txt'
    seen = []
    stop = threading.Event()
    texts = [c * 300_000 for c in 'ab']
    write_text_atomic(path, texts[0])

    def read():
        while not stop.is_set():
            seen.append(path.read_text() in texts)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for k in range(200):
            write_text_atomic(path, texts[k % 2])
    finally:
        stop.set()
        reader.join()
    assert len(seen) > 10
    assert all(seen)
    assert os.listdir(tmp_path) == ['r.txt']


@pytest.fixture
def disk(tmp_path):
    "A disk of 64 kilobytes."
    where = tmp_path / 'disk'
    where.mkdir()
    words = ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', str(where)]
    may = shutil.which('mount')
    if not may or subprocess.run(words, capture_output=True).returncode:
        pytest.skip('nothing may be mounted here; bad_input.toml limits a file instead')
    try:
        yield where
    finally:
        subprocess.run(['umount', str(where)], check=True)


def test_a_full_disk(disk):
    "The old file stays whole, the error is named, and with room the run goes on."
    path = disk / 'r.json'
    results = Results(path, dict(seed=0))
    results.add(dict(i=0, text='x' * 20_000))
    old = path.read_bytes()
    (disk / 'other').write_bytes(b'o' * 32_000)
    message = r'r\.json could not be written \(No space left on device\)'
    with pytest.raises(OSError, match=message):
        results.add(dict(i=1, text='y' * 20_000))
    assert path.read_bytes() == old
    assert names_in(disk) == ['other', 'r.json']
    (disk / 'other').unlink()
    again = Results(path, dict(seed=0))
    assert again.done == {0}
    again.add(dict(i=1, text='y' * 10))
    assert read_results(path)['rows'][1]['i'] == 1


def test_a_full_disk_in_a_sweep(disk, small):
    asked = (small, 60, disk / 'out', ['attn_lrp'], 4)
    said = r'sweep\.json could not be written \(.*No space left on device'
    with pytest.raises(OSError, match=said):
        swept(*asked)
    assert 0 < len(read_sweep(disk / 'out')) < 60
    assert not leftovers(disk / 'out')
    subprocess.run(['mount', '-o', 'remount,size=16m', str(disk)], check=True)
    assert swept(*asked).n['attn_lrp'] == 60
    assert len(read_sweep(disk / 'out')) == 60


def reproduced(out, run):
    "Return path → bytes of all written files."
    words = ['reproduce', '--data', 'embedded', '--limit', '2']
    assert run([*words, '--only', PARTS, '--out', str(out)]) == 0
    files = [p for p in sorted(out.rglob('*')) if p.is_file()]
    return {p.relative_to(out): p.read_bytes() for p in files}


@pytest.mark.slow
def test_one_seed_gives_the_same_bytes(tmp_path):
    "Two processes, this one after whatever else ran in it."

    def apart(words):
        return subprocess.run([*COMMAND, *words], capture_output=True).returncode

    first = reproduced(tmp_path / 'a', apart)
    assert first == reproduced(tmp_path / 'b', main)
    asked = {f'{p}.json' for p in PARTS.split(',')}
    written = {p.name for p in first}
    assert written >= asked | {'against_paper.json', 'figure1.png'}
