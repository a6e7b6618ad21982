"""Runs that are killed, disks that are full, readers that come in between:
nothing is lost, nothing stands twice, nobody sees a part; and one seed gives
the same bytes.

Children are forked and really killed here. `python tests/test_resume.py
--write` kills the commands `reproduce` and `sweep` 20 times each at random
moments and writes results/kills.json.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('TQDM_DISABLE', '1')

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import random_bert, start_command
from forked import fork
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from lrp_loo import explain_dataset, load_texts
from lrp_loo.cli import _ended_by_signals, _endings, main
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.models.demos import demo_base
from lrp_loo.models.products import product_kernel
from lrp_loo.paper.experiments import text_experiment
from lrp_loo.trust.results import Results, read_results
from lrp_loo.trust.sweep import read_sweep

RESULTS = Path(__file__).parents[1] / 'results'
KILLS = 8
# of `reproduce`, run twice
PARTS = os.environ.get('LRP_LOO_SAME_BYTES', 'scalar,sst2')
COMMAND = [
    sys.executable,
    '-c',
    'import sys; from lrp_loo.cli import main; sys.exit(main())',
]
needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
# a write begins, is half done, is done beside the old file, has taken its place
WHERE = ('before', 'half', 'written', 'after')


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch):
    """Which kernel takes products is timed, once in a process; where both are
    level, two processes may find otherwise, and round otherwise.
    """
    monkeypatch.setenv('LRP_LOO_PRODUCTS', product_kernel())


def replace_and_die(n, where):
    "An `os.replace` whose n-th call kills the process at that moment."
    plain = os.replace
    calls = 0

    def replace(tmp, path):
        nonlocal calls
        calls += 1
        if calls != n:
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
    "Fork; the child does the job and ends with 0, or with 1 and what it raised."
    pid = fork()
    if pid:
        return pid
    try:
        job()
        os._exit(0)
    except BaseException as e:
        print(repr(e), file=sys.stderr)
        os._exit(1)


def was_killed(status):
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def child(job, n=None, where=None):
    """Run `job()` in a child; with n, its n-th file is where it is killed.
    True if it came to its end.
    """

    def doomed():
        os.replace = replace_and_die(n, where)
        job()

    pid = in_child(doomed if n else job)
    status = os.waitpid(pid, 0)[1]
    assert status == 0 or was_killed(status), status
    return status == 0


def leftovers(folder):
    return sorted(
        p.name
        for p in Path(folder).rglob('*')
        if p.is_file() and ('tmp' in p.suffix or p.name.startswith('.'))
    )


def rows_in(folder):
    "Of all of a sweep's files, as written."
    files = sorted(Path(folder).glob('*.parquet'))
    return pd.concat([pq.read_table(f).to_pandas() for f in files])


def names_in(folder):
    return sorted(p.name for p in Path(folder).iterdir())


def same_sweeps(a, b):
    """Two sweeps' rows, to the last bit, and the files they stand in; the
    process that made a row aside. Every row once.
    """
    key = ['index', 'method']
    mine, theirs = (
        rows_in(x).drop(columns='worker').sort_values(key).reset_index(drop=True)
        for x in (a, b)
    )
    assert names_in(a) == names_in(b)
    assert not theirs.duplicated(key).any()
    assert len(mine) == len(theirs)
    for c in mine:
        for x, y in zip(mine[c], theirs[c]):
            assert np.array_equal(x, y, equal_nan=isinstance(x, float)), c
    records = [read_results(Path(x) / 'sweep.json') for x in (a, b)]
    for r in records:
        r['summary'].pop('computed')  # by the last call
    assert records[0] == records[1]
    return len(theirs)


@pytest.fixture(scope='module')
def small(tokenizer):
    return random_bert(layers=2), tokenizer


def experiment(small, path, limit, methods):
    "Rows of Table 2 on the small model."
    data = load_texts('sst2', 'embedded', limit=limit)
    info = dict(name='small', layers=2)
    chosen = {m: (m, {}) for m in methods}
    return text_experiment(path, *small, data, info, chosen)


def numbers_in(path):
    "Of the rows that are there so far."
    if not path.exists():
        return []
    return [r['i'] for r in read_results(path)['rows']]


@needs_fork
def test_a_killed_child_takes_no_lock_along():
    "Bars share one; whoever is killed with it in hand must not stop us."
    shared = tqdm.get_lock().mp_lock

    def die():
        tqdm.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    assert not child(die)
    assert shared.acquire(False)
    shared.release()


@needs_fork
def test_an_experiment_killed_while_it_writes(small, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / 'killed' / 'r.json'

    def run(path=path):
        experiment(small, path, 30, ('loo', 'attn_lrp', 'cp_lrp'))

    assert child(lambda: run(tmp_path / 'whole.json'))
    whole = (tmp_path / 'whole.json').read_bytes()
    rows = json.loads(whole)['rows']
    kept = []
    for k in range(KILLS):
        assert not child(run, int(rng.integers(1, 5)), WHERE[k % 4])
        now = read_results(path)['rows'] if path.exists() else []
        assert now[: len(kept)] == kept
        assert [r['i'] for r in now] == list(range(len(now)))
        assert now == rows[: len(now)]
        kept = now
    assert 0 < len(kept) < len(rows)
    assert child(run)
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == ['r.json']


@needs_fork
def test_a_sweep_killed_while_it_writes(small, tmp_path):
    texts = load_texts('sst2', 'embedded', limit=24).texts
    rng = np.random.default_rng(1)
    out = tmp_path / 'killed'

    def run(out=out):
        explain_dataset(
            texts,
            out,
            ['attn_lrp', 'removal'],
            model=(*small, 'small'),
            batch_size=2,
            progress=False,
        )

    assert child(lambda: run(tmp_path / 'whole'))
    n = 0
    for k in range(KILLS):
        assert not child(run, int(rng.integers(1, 4)), WHERE[k % 4])
        now = len(read_sweep(out)) if list(out.glob('*.parquet')) else 0
        assert n <= now < 48
        n = now
    assert n
    assert child(run)
    assert same_sweeps(tmp_path / 'whole', out) == 48
    assert not leftovers(out)


@needs_fork
def test_a_run_killed_at_random_times(small, tmp_path):
    "Not where we choose, but whenever the signal comes."
    rng = np.random.default_rng(2)
    path = tmp_path / 'killed' / 'r.json'

    def run(path=path):
        experiment(small, path, 16, ('loo', 'attn_lrp'))

    start = time.time()
    assert child(lambda: run(tmp_path / 'whole.json'))
    took = time.time() - start
    died = 0
    for delay in rng.uniform(0, took, KILLS):
        pid = in_child(run)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        died += os.WIFSIGNALED(status)
        assert status == 0 or os.WIFSIGNALED(status)
        now = numbers_in(path)
        assert now == list(range(len(now)))
    assert died
    assert child(run)
    assert path.read_bytes() == (tmp_path / 'whole.json').read_bytes()
    assert os.listdir(path.parent) == ['r.json']


# ---- ended by a signal


IN_BACKGROUND = '"$@" & echo $!; wait $!'  # there Ctrl-C's signal is ignored


@pytest.fixture
def reproducing(tmp_path):
    "`reproduce` in a shell's background that has kept rows: the shell, its id."
    env = dict(os.environ, OMP_NUM_THREADS='1')
    words = ['reproduce', '--only', 'sst2', '--limit', '60']
    shell = subprocess.Popen(
        ['sh', '-c', IN_BACKGROUND, 'sh', *COMMAND, *words, '--out', tmp_path],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_command_in_the_background_ends_and_keeps_its_rows(
    reproducing, tmp_path, name
):
    shell, pid = reproducing
    number = getattr(signal, name)
    os.kill(pid, number)
    _, said = shell.communicate(timeout=60)
    assert shell.returncode == 128 + number
    last = said.strip().splitlines()[-1]
    assert last.startswith('lrp_loo reproduce: interrupted; finished rows are in')
    assert rows_below(tmp_path)
    assert not list(tmp_path.rglob('*.tmp'))


def test_nohup_is_obeyed():
    "A terminal that is closed ends nothing that was started by it."
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in _endings()
        assert signal.SIGTERM in _endings()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_leaves_the_callers_signals_as_they_were():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with _ended_by_signals():
        pass
    now = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert now == before


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
    if (
        not shutil.which('mount')
        or subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', str(where)],
            capture_output=True,
        ).returncode
    ):
        pytest.skip(
            'nothing may be mounted here; test_bad_input.py has a limit on the'
            ' size of a file instead'
        )
    try:
        yield where
    finally:
        subprocess.run(['umount', str(where)], check=True)


def test_a_full_disk(disk):
    """The old file stays whole, the error says which file and why, nothing is
    left behind, and with room again the run goes on.
    """
    r = Results(disk / 'r.json', dict(seed=0))
    r.add(dict(i=0, text='x' * 20_000))
    old = (disk / 'r.json').read_bytes()
    (disk / 'other').write_bytes(b'o' * 24_000)
    with pytest.raises(
        OSError, match=r'r\.json could not be written \(No space left on device\)'
    ):
        r.add(dict(i=1, text='y' * 20_000))
    assert (disk / 'r.json').read_bytes() == old
    assert sorted(os.listdir(disk)) == ['other', 'r.json']
    (disk / 'other').unlink()
    again = Results(disk / 'r.json', dict(seed=0))
    assert again.done == {0}
    again.add(dict(i=1, text='y' * 10))
    assert read_results(disk / 'r.json')['rows'][1]['i'] == 1


def test_a_full_disk_in_a_sweep(disk, small):
    texts = load_texts('sst2', 'embedded', limit=60).texts

    def run():
        return explain_dataset(
            texts,
            disk / 'out',
            ['attn_lrp'],
            model=(*small, 'small'),
            batch_size=4,
            progress=False,
        )

    with pytest.raises(
        OSError, match=r'\.parquet could not be written \(.*No space left on device'
    ):
        run()
    n = len(read_sweep(disk / 'out'))
    assert 0 < n < 60
    assert not leftovers(disk / 'out')
    subprocess.run(['mount', '-o', 'remount,size=16m', str(disk)], check=True)
    assert run().n['attn_lrp'] == 60
    assert len(read_sweep(disk / 'out')) == 60


def in_this_process(words):
    assert main(words) == 0


def in_a_process_of_its_own(words):
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)


def reproduced(out, run):
    "Path → bytes of what was written."
    words = ['reproduce', '--data', 'embedded', '--limit', '2']
    words += ['--only', PARTS, '--out', str(out)]
    run(words)
    files = [p for p in sorted(out.rglob('*')) if p.is_file()]
    return {p.relative_to(out): p.read_bytes() for p in files}


def test_one_seed_gives_the_same_bytes(tmp_path):
    """Two processes, this one after whatever else ran in it; more parts
    (mnist, which is trained first) by the environment variable.
    """
    first = reproduced(tmp_path / 'a', in_a_process_of_its_own)
    second = reproduced(tmp_path / 'b', in_this_process)
    assert first == second
    asked = {f'{p}.json' for p in PARTS.split(',')}
    written = {p.name for p in first}
    assert written >= asked | {'against_paper.json', 'figure1.png'}


def test_the_record_of_kills():
    d = json.loads((RESULTS / 'kills.json').read_text(encoding='utf-8'))
    for r in d['runs'].values():
        assert r['kills'] == 20 == len(r['rows_after_each_kill'])
        assert r['rows_after_each_kill'] == sorted(r['rows_after_each_kill'])
        assert r['rows_at_the_end'] > r['rows_after_each_kill'][-1] > 0
        assert r['lost'] == r['twice'] == 0
        assert r['equal_to_the_undisturbed_run']


def finished(words):
    assert os.waitpid(start_command(words), 0)[1] == 0


RUNS = (0, 0)  # what `waitpid` says of a process that has not ended


def wait_until_it_moves(pid, count):
    "Until there are more rows, or the command has ended; what waitpid says."
    before = count()
    state = RUNS
    while state == RUNS and count() == before:
        time.sleep(0.02)
        state = os.waitpid(pid, os.WNOHANG)
    return state


def kill_command(words, count, n, seed, span):
    """The command, killed n times at random moments after it has moved on;
    then left alone. Rows after each kill.
    """
    rng = np.random.default_rng(seed)
    after = []
    while len(after) < n:
        pid = start_command(words)
        state = wait_until_it_moves(pid, count)
        if state == RUNS:
            time.sleep(rng.uniform(0, span))
            state = os.waitpid(pid, os.WNOHANG)
        if state != RUNS:
            raise RuntimeError(
                f'the command ended by itself ({state[1]}) after {len(after)}'
                ' kills; give it more to do'
            )
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        after.append(count())
    finished(words)
    return after


def entry(after, want, got, same, left):
    "What the record holds of one command."
    return dict(
        kills=len(after),
        rows_after_each_kill=after,
        rows_at_the_end=len(got),
        lost=len(set(want) - set(got)),
        twice=len(got) - len(set(got)),
        equal_to_the_undisturbed_run=same,
        leftovers=left,
    )


def record_reproduce(d, n, seed):
    "The command's words, and what came of it."
    words = ['reproduce', '--data', 'embedded', '--model', str(d / 'small')]
    words += ['--only', 'sst2', '--limit', '192']

    def path(run):
        return d / run / 'results' / 'small-embedded' / 'sst2.json'

    def count():
        return len(numbers_in(path('killed')))

    finished([*words, '--out', str(d / 'whole')])
    again = [*words, '--out', str(d / 'killed')]
    after = kill_command(again, count, n, seed, 0.5)
    want, got = (numbers_in(path(run)) for run in ('whole', 'killed'))
    same = path('whole').read_bytes() == path('killed').read_bytes()
    return words, entry(after, want, got, same, leftovers(d / 'killed'))


def record_sweep(d, n, seed):
    "The command's words, and what came of it."
    words = ['sweep', '--data', 'embedded', '--model', str(d / 'small')]
    words += ['--limit', '200', '--methods', 'attn_lrp,removal']
    words += ['--batch_size', '4']

    def count():
        return 8 * len(list((d / 'k').glob('*.parquet')))

    def keys(folder):
        found = rows_in(folder)[['index', 'method']]
        return list(found.itertuples(index=False, name=None))

    finished([*words, '--out', str(d / 'w')])
    after = kill_command([*words, '--out', str(d / 'k')], count, n, seed, 0.3)
    want, got = keys(d / 'w'), keys(d / 'k')
    same = same_sweeps(d / 'w', d / 'k') == len(want)
    return words, entry(after, want, got, same, leftovers(d / 'k'))


def record(n=20, seed=0):
    "Both commands, each killed n times."
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        d = Path(folder)
        random_bert(layers=2).save_pretrained(d / 'small')
        tokenizer = AutoTokenizer.from_pretrained(demo_base())
        tokenizer.save_pretrained(d / 'small')
        for command in (record_reproduce, record_sweep):
            words, found = command(d, n, seed)
            runs[' '.join(words).replace(f'{d}/', '')] = found
    config = dict(
        experiment='kills',
        signal='SIGKILL',
        seed=seed,
        how='each command in a child that is forked after the imports',
    )
    return dict(config=config, versions=versions(), runs=runs)


if __name__ == '__main__':
    d = record()
    print(json.dumps(d, indent=1))
    if '--write' in sys.argv:
        write_text_atomic(RESULTS / 'kills.json', json.dumps(d, indent=1) + '\n')
    n = {k: sum(r[k] for r in d['runs'].values()) for k in ('kills', 'lost')}
    print(f"{n['kills']} kills, {n['lost']} rows lost")
