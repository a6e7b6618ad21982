"""Runs that are killed, disks that are full, readers that come in between: nothing is lost, nothing stands twice, nobody sees a part; and one seed gives the same bytes.
Children are forked and really killed here; `python tests/test_resume.py --write` kills the commands `reproduce` and `sweep` 20 times each at random moments and writes results/kills.json.
"""

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
import torch
from conftest import random_bert
from transformers import AutoTokenizer

from lrp_loo import explain_dataset, load_texts
from lrp_loo.cli import main
from lrp_loo.results import Results, read_results
from lrp_loo.core import versions, write_text_atomic
from lrp_loo.dataset import read_sweep
from lrp_loo.studies.experiments import text_experiment
from lrp_loo.models import demo_base

RESULTS = Path(__file__).parents[1] / 'results'
KILLS = 8
PARTS = os.environ.get(
    'LRP_LOO_SAME_BYTES', 'scalar,sst2'
)  # of `reproduce`, run twice
COMMAND = [
    sys.executable,
    '-c',
    'import sys; from lrp_loo.cli import main; sys.exit(main())',
]
needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
WHERE = (
    'before',
    'half',
    'written',
    'after',
    # a write begins, is half done, is done beside the old file, has taken its
    # place
)


def child(job, n=None, where=None):
    """Run `job()` in a child; with n, its n-th file is where it is killed.
    True if it came to its end.
    """
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        # the parent's threads are not there
        plain = os.replace
        left = [n]

        def replace(tmp, path):
            left[0] -= 1
            if left[0] == 0 and where == 'before':
                os.unlink(tmp)
            if left[0] == 0 and where == 'half':
                os.truncate(tmp, os.path.getsize(tmp) // 2)
            if left[0] == 0 and where == 'after':
                plain(tmp, path)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            plain(tmp, path)

        if n:
            os.replace = replace
        try:
            job()
            os._exit(0)
        except BaseException as e:
            print(repr(e), file=sys.stderr)
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert (
        status == 0
        or os.WIFSIGNALED(status)
        and os.WTERMSIG(status) == signal.SIGKILL
    ), status
    return status == 0


def leftovers(folder):
    return sorted(
        p.name
        for p in Path(folder).rglob('*')
        if p.is_file() and ('tmp' in p.suffix or p.name.startswith('.'))
    )


def same_sweeps(a, b):
    """Two sweeps' rows, to the last bit, and the files they stand in; the
    process that made a row aside. Every row once.
    """
    rows = [
        pd.concat(
            [
                pq.read_table(f).to_pandas()
                for f in sorted(Path(x).glob('*.parquet'))
            ]
        )
        .drop(columns='worker')
        .sort_values(['index', 'method'])
        .reset_index(drop=True)
        for x in (a, b)
    ]
    assert not rows[1].duplicated(['index', 'method']).any() and sorted(
        p.name for p in Path(a).iterdir()
    ) == sorted(p.name for p in Path(b).iterdir())
    for c in rows[0]:
        assert all(
            np.array_equal(x, y, equal_nan=isinstance(x, float))
            for x, y in zip(rows[0][c], rows[1][c])
        ), c
    records = [read_results(Path(x) / 'sweep.json') for x in (a, b)]
    for r in records:
        r['summary'].pop('computed')  # by the last call
    assert records[0] == records[1] and len(rows[0]) == len(rows[1])
    return len(rows[1])


@pytest.fixture(scope='module')
def small(tokenizer):
    return random_bert(layers=2), tokenizer


@needs_fork
def test_an_experiment_killed_while_it_writes(small, tmp_path):
    data = load_texts('sst2', 'embedded', limit=30)
    rng = np.random.default_rng(0)
    few = {m: (m, {}) for m in ('loo', 'attn_lrp', 'cp_lrp')}
    path = tmp_path / 'killed' / 'r.json'

    def run(path):
        return text_experiment(
            path, *small, data, dict(name='small', layers=2), few
        )

    assert child(lambda: run(tmp_path / 'whole.json'))
    whole = (tmp_path / 'whole.json').read_bytes()
    rows = json.loads(whole)['rows']
    kept = []
    for k in range(KILLS):
        assert not child(
            lambda: run(path), int(rng.integers(1, 5)), WHERE[k % 4]
        )
        now = read_results(path)['rows'] if path.exists() else []
        assert (
            now[: len(kept)] == kept
            and [r['i'] for r in now] == list(range(len(now)))
            and now == rows[: len(now)]
        )
        kept = now
    assert (
        0 < len(kept) < len(rows)
        and child(lambda: run(path))
        and path.read_bytes() == whole
        and os.listdir(path.parent) == ['r.json']
    )


@needs_fork
def test_a_sweep_killed_while_it_writes(small, tmp_path):
    texts = load_texts('sst2', 'embedded', limit=24).texts
    rng = np.random.default_rng(1)
    out = tmp_path / 'killed'

    def run(out):
        return explain_dataset(
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
        assert not child(
            lambda: run(out), int(rng.integers(1, 4)), WHERE[k % 4]
        )
        now = len(read_sweep(out)) if list(out.glob('*.parquet')) else 0
        assert n <= now < 48
        n = now
    assert (
        n
        and child(lambda: run(out))
        and same_sweeps(tmp_path / 'whole', out) == 48
        and not leftovers(out)
    )


@needs_fork
def test_a_run_killed_at_random_times(small, tmp_path):
    "Not where we choose, but whenever the signal comes."
    data = load_texts('sst2', 'embedded', limit=16)
    rng = np.random.default_rng(2)
    few = {m: (m, {}) for m in ('loo', 'attn_lrp')}
    path = tmp_path / 'killed' / 'r.json'

    def run(path):
        return text_experiment(
            path, *small, data, dict(name='small', layers=2), few
        )

    start = time.time()
    assert child(lambda: run(tmp_path / 'whole.json'))
    took = time.time() - start
    died = 0
    for delay in rng.uniform(0, took, KILLS):
        pid = os.fork()
        if not pid:
            torch.set_num_threads(1)
            try:
                run(path)
                os._exit(0)
            except BaseException:
                os._exit(1)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        died += os.WIFSIGNALED(status)
        assert status == 0 or os.WIFSIGNALED(status)
        now = (
            [r['i'] for r in read_results(path)['rows']]
            if path.exists()
            else []
        )
        assert now == list(range(len(now)))
    assert (
        died
        and child(lambda: run(path))
        and path.read_bytes() == (tmp_path / 'whole.json').read_bytes()
        and os.listdir(path.parent) == ['r.json']
    )


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
    assert len(seen) > 10 and all(seen) and os.listdir(tmp_path) == ['r.txt']


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
        OSError,
        match=r'r\.json could not be written \(No space left on device\)',
    ):
        r.add(dict(i=1, text='y' * 20_000))
    assert (disk / 'r.json').read_bytes() == old and sorted(
        os.listdir(disk)
    ) == ['other', 'r.json']
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
        OSError,
        match=r'\.parquet could not be written \(.*No space left on device',
    ):
        run()
    n = len(read_sweep(disk / 'out'))
    assert 0 < n < 60 and not leftovers(disk / 'out')
    subprocess.run(['mount', '-o', 'remount,size=16m', str(disk)], check=True)
    assert run().n['attn_lrp'] == 60 and len(read_sweep(disk / 'out')) == 60


def test_one_seed_gives_the_same_bytes(tmp_path):
    """Two processes; more parts (mnist, which is trained first) by the
    environment variable.
    """
    for d in 'ab':
        subprocess.run(
            [
                *COMMAND,
                'reproduce',
                '--data',
                'embedded',
                '--limit',
                '2',
                '--only',
                PARTS,
                '--out',
                str(tmp_path / d),
            ],
            check=True,
            capture_output=True,
        )
    files = {
        d: {
            p.relative_to(tmp_path / d): p.read_bytes()
            for p in sorted((tmp_path / d).rglob('*'))
            if p.is_file()
        }
        for d in 'ab'
    }
    assert files['a'] == files['b'] and {p.name for p in files['a']} >= {
        f'{p}.json' for p in PARTS.split(',')
    } | {'against_paper.json', 'figure1.png'}


def test_the_record_of_kills():
    d = json.loads((RESULTS / 'kills.json').read_text(encoding='utf-8'))
    for r in d['runs'].values():
        assert (
            r['kills'] == 20 == len(r['rows_after_each_kill'])
            and r['rows_after_each_kill'] == sorted(r['rows_after_each_kill'])
            and r['rows_at_the_end'] > r['rows_after_each_kill'][-1] > 0
            and r['lost'] == r['twice'] == 0
            and r['equal_to_the_undisturbed_run']
        )


def started(words):
    """The command in a child that need not import everything again; its
    process id.
    """
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            os._exit(main(words))
        except BaseException:
            os._exit(99)
    return pid


def finished(words):
    assert os.waitpid(started(words), 0)[1] == 0


def kill_command(words, count, n, seed, span):
    """The command, killed n times at random moments after it has moved on;
    then left alone. Rows after each kill.
    """
    rng = np.random.default_rng(seed)
    after = []
    while len(after) < n:
        pid = started(words)
        before = count()
        over = (0, 0)
        while over == (0, 0) and count() == before:
            time.sleep(0.02)
            over = os.waitpid(pid, os.WNOHANG)
        if over == (0, 0):
            time.sleep(rng.uniform(0, span))
            over = os.waitpid(pid, os.WNOHANG)
        if over != (0, 0):
            raise RuntimeError(
                f'the command ended by itself ({over[1]}) after {len(after)}'
                ' kills; give it more to do'
            )
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        after.append(count())
    finished(words)
    return after


def record(n=20, seed=0):
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        runs = {}

        def path(x):
            return d / x / 'results' / 'embedded-small' / 'sst2.json'

        def tell(words):
            return ' '.join(words).replace(f'{d}/', '')

        for part in (
            random_bert(layers=2),
            AutoTokenizer.from_pretrained(demo_base()),
        ):
            part.save_pretrained(d / 'small')
        words = [
            'reproduce',
            '--data',
            'embedded',
            '--model',
            str(d / 'small'),
            '--only',
            'sst2',
            '--limit',
            '192',
        ]

        def count():
            return (
                len(read_results(path('killed'))['rows'])
                if path('killed').exists()
                else 0
            )

        finished([*words, '--out', str(d / 'whole')])
        after = kill_command(
            [*words, '--out', str(d / 'killed')], count, n, seed, 0.5
        )
        want, got = (
            [r['i'] for r in read_results(path(x))['rows']]
            for x in ('whole', 'killed')
        )
        runs[tell(words)] = dict(
            kills=len(after),
            rows_after_each_kill=after,
            rows_at_the_end=len(got),
            lost=len(set(want) - set(got)),
            twice=len(got) - len(set(got)),
            equal_to_the_undisturbed_run=path('whole').read_bytes()
            == path('killed').read_bytes(),
            leftovers=leftovers(d / 'killed'),
        )
        words = [
            'sweep',
            '--data',
            'embedded',
            '--model',
            str(d / 'small'),
            '--limit',
            '200',
            '--methods',
            'attn_lrp,removal',
            '--batch_size',
            '4',
        ]

        def count():
            return 8 * len(list((d / 'k').glob('*.parquet')))

        finished([*words, '--out', str(d / 'w')])
        after = kill_command(
            [*words, '--out', str(d / 'k')], count, n, seed, 0.3
        )

        def key(x):
            return pd.concat(
                [
                    pq.read_table(f).to_pandas()
                    for f in Path(x).glob('*.parquet')
                ]
            )[['index', 'method']]

        want = key(d / 'w')
        got = key(d / 'k')
        lost = len(
            set(want.itertuples(index=False, name=None))
            - set(got.itertuples(index=False, name=None))
        )
        runs[tell(words)] = dict(
            kills=len(after),
            rows_after_each_kill=after,
            rows_at_the_end=len(got),
            lost=lost,
            twice=int(got.duplicated().sum()),
            equal_to_the_undisturbed_run=same_sweeps(d / 'w', d / 'k')
            == len(want),
            leftovers=leftovers(d / 'k'),
        )
        return dict(
            config=dict(
                experiment='kills',
                signal='SIGKILL',
                seed=seed,
                how='each command in a child that is forked after the imports',
            ),
            versions=versions(),
            runs=runs,
        )


if __name__ == '__main__':
    d = record()
    print(json.dumps(d, indent=1))
    if '--write' in sys.argv:
        write_text_atomic(
            RESULTS / 'kills.json', json.dumps(d, indent=1) + '\n'
        )
