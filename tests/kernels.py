"""All notebooks and tests under other kernels and numbers of threads.

    python tests/kernels.py --write                     # every setting, results/kernels.json
    python tests/kernels.py --only default-1 avx2-2     # some of them

torch picks its kernels by the processor; `ATEN_CPU_CAPABILITY` makes it take plainer ones.
A number that two machines compute differently shows here on one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tracked import tracked

from lrp_loo.core.files import processor, versions, write_text_atomic
from lrp_loo.trust.results import read_results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'kernels.json'
# best: what torch takes by itself; default: no vector instructions of ours
CAPABILITIES = ('best', 'avx2', 'default')
THREADS = (1, 2)
PARTS = ('notebooks', 'tests')
SETTINGS = {f'{c}-{t}': (c, t) for c in CAPABILITIES for t in THREADS}


def environment(capability, threads):
    "The environment variables of one setting."
    env = dict(
        os.environ,
        OMP_NUM_THREADS=str(threads),
        HF_HUB_OFFLINE='1',
        MPLBACKEND='agg',
        TOKENIZERS_PARALLELISM='false',
        TQDM_DISABLE='1',
        PYTHONPATH=str(ROOT),
    )
    env.pop('ATEN_CPU_CAPABILITY', None)
    if capability != 'best':
        env['ATEN_CPU_CAPABILITY'] = capability
    return env


class Done(NamedTuple):
    "A command that has run."

    code: int  # its exit code
    said: str  # all that it printed
    minutes: float


def run(words, env):
    "Run a command to its end."
    started = time.perf_counter()
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    minutes = (time.perf_counter() - started) / 60
    return Done(done.returncode, done.stdout + done.stderr, minutes)


def counted(text):
    "What pytest's last line counts: passed, failed, skipped, errors."
    last = text.strip().splitlines()[-1] if text.strip() else ''
    return {
        what: int(n)
        for n, what in re.findall(r'(\d+) (passed|failed|skipped|error)', last)
    }


def capability_in(env):
    "The kernels that torch really takes there."
    words = 'import torch; print(torch.backends.cpu.get_cpu_capability())'
    return run([sys.executable, '-c', words], env).said.strip()


def notebooks_row(name, env, given):
    "All notebooks under one setting."
    names = '|'.join(path.name for path in tracked('nbs/**/*.ipynb'))
    words = ['nbdev_test', '--path', 'nbs', '--file_re', f'^({names})$']
    words += ['--n_workers', str(given.workers)]
    done = run(words, env)
    keep(given.log, f'{name}-notebooks', done.said)
    return dict(notebooks_pass=done.code == 0, notebooks_minutes=round(done.minutes, 1))


def tests_row(name, env, given):
    "The tests under one setting."
    done = run([sys.executable, '-m', 'pytest', '-q', *given.tests], env)
    keep(given.log, f'{name}-tests', done.said)
    return dict(
        tests_pass=done.code == 0,
        tests=counted(done.said),
        given=[Path(t).name for t in given.tests],
        tests_minutes=round(done.minutes, 1),
    )


def one(name, given):
    "A row: notebooks and tests under one setting, or one of the two."
    capability, threads = SETTINGS[name]
    env = environment(capability, threads)
    row = dict(i=name, kernels=capability_in(env), threads=threads)
    if 'notebooks' in given.parts:
        row |= notebooks_row(name, env, given)
    if 'tests' in given.parts:
        row |= tests_row(name, env, given)
    return row


def keep(log, name, said):
    "What was printed, where a folder was named for it."
    if log:
        (Path(log) / f'{name}.log').write_text(said, encoding='utf-8')


def rows_kept(path):
    "Earlier rows of the same versions, by setting."
    if not path.exists():
        return {}
    old = read_results(path)
    if old['versions'] != versions():
        return {}
    return {row['i']: row for row in old['rows']}


def record(rows, path):
    "What is written: rows by setting, earlier rows of the same versions kept."
    kept = rows_kept(path)
    for row in rows:  # notebooks and tests may have been run apart
        kept[row['i']] = kept.get(row['i'], {}) | row
    config = dict(experiment='kernels', processor=processor(), settings=list(SETTINGS))
    return dict(
        config=config,
        versions=versions(),
        rows=[kept[name] for name in SETTINGS if name in kept],
    )


def passed(row):
    "Of the parts that were run."
    return row.get('notebooks_pass', True) and row.get('tests_pass', True)


def arguments(argv=None):
    "What the command was given."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--only', nargs='+', choices=SETTINGS, default=list(SETTINGS))
    add('--parts', nargs='+', choices=PARTS, default=list(PARTS))
    add('--workers', type=int, default=1, help='notebooks run side by side')
    add('--tests', nargs='+', default=['tests'], help='what pytest is given')
    add('--log', help='a folder that takes what was printed')
    add('--write', action='store_true', help='write what came out')
    add('--out', type=Path, default=RESULTS, help='where to (results/kernels.json)')
    return parser.parse_args(argv)


def main(given):
    "Every setting in turn; the exit code says whether all passed."
    rows = []
    for name in given.only:
        rows.append(one(name, given))
        print(rows[-1], flush=True)
        if given.write:
            made = json.dumps(record(rows, given.out), indent=1)
            write_text_atomic(given.out, made + '\n')
    return int(not all(map(passed, rows)))


if __name__ == '__main__':
    sys.exit(main(arguments()))
