"""All notebooks and tests under other kernels and numbers of threads.

    python tests/kernels.py --write                     # every setting, results/kernels.json
    python tests/kernels.py --only default-1 avx2-2     # some of them

torch picks its kernels by the processor; `ATEN_CPU_CAPABILITY` makes it take plainer ones.
A number that two machines compute differently shows here on one."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from lrp_loo.results import read_results
from lrp_loo.core import versions, write_text_atomic

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'kernels.json'
CAPABILITIES = (
    'best',
    'avx2',
    'default',
)  # best: what torch takes by itself; default: no vector instructions of ours
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
    )
    env |= dict(
        TOKENIZERS_PARALLELISM='false', TQDM_DISABLE='1', PYTHONPATH=str(ROOT)
    )
    env.pop('ATEN_CPU_CAPABILITY', None)
    if capability != 'best':
        env['ATEN_CPU_CAPABILITY'] = capability
    return env


def run(words, env):
    "A command's exit code, all that it printed, and its minutes."
    started = time.perf_counter()
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        (time.perf_counter() - started) / 60,
    )


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
    return run([sys.executable, '-c', words], env)[1].strip()


def one(name, parts, workers, tests, log):
    "A row: notebooks and tests under one setting, or one of the two."
    env = environment(*SETTINGS[name])
    row = dict(i=name, kernels=capability_in(env), threads=SETTINGS[name][1])
    if 'notebooks' in parts:
        words = ['nbdev_test', '--path', 'nbs', '--n_workers', str(workers)]
        code, said, minutes = run(words, env)
        keep(log, f'{name}-notebooks', said)
        row |= dict(
            notebooks_pass=code == 0, notebooks_minutes=round(minutes, 1)
        )
    if 'tests' in parts:
        code, said, minutes = run(
            [sys.executable, '-m', 'pytest', '-q', *tests], env
        )
        keep(log, f'{name}-tests', said)
        row |= dict(
            tests_pass=code == 0,
            tests=counted(said),
            given=[Path(t).name for t in tests],
        )
        row |= dict(tests_minutes=round(minutes, 1))
    return row


def keep(log, name, said):
    "What was printed, where a folder was named for it."
    if log:
        (Path(log) / f'{name}.log').write_text(said, encoding='utf-8')


def processor():
    "The processor's name, without its clock."
    for line in (
        Path('/proc/cpuinfo').read_text().splitlines()
        if os.path.exists('/proc/cpuinfo')
        else ()
    ):
        if line.startswith('model name'):
            return line.split(':', 1)[1].strip()
    return platform.processor()


def record(rows, path):
    "What is written: rows by setting, earlier rows of the same versions kept."
    kept = {}
    if path.exists() and (old := read_results(path))['versions'] == versions():
        kept = {r['i']: r for r in old['rows']}
    for r in rows:  # notebooks and tests may have been run apart
        kept[r['i']] = kept.get(r['i'], {}) | r
    config = dict(
        experiment='kernels', processor=processor(), settings=list(SETTINGS)
    )
    return dict(
        config=config,
        versions=versions(),
        rows=[kept[n] for n in SETTINGS if n in kept],
    )


if __name__ == '__main__':
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--only', nargs='+', choices=SETTINGS, default=list(SETTINGS)
    )
    parser.add_argument(
        '--parts', nargs='+', choices=PARTS, default=list(PARTS)
    )
    parser.add_argument(
        '--workers', type=int, default=1, help='notebooks run side by side'
    )
    parser.add_argument(
        '--tests', nargs='+', default=['tests'], help='what pytest is given'
    )
    parser.add_argument('--log', help='a folder that takes what was printed')
    parser.add_argument(
        '--write', action='store_true', help='write what came out'
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=RESULTS,
        help='where to (results/kernels.json)',
    )
    given = parser.parse_args()
    rows = []
    for name in given.only:
        rows.append(
            one(name, given.parts, given.workers, given.tests, given.log)
        )
        print(rows[-1], flush=True)
        if given.write:
            write_text_atomic(
                given.out, json.dumps(record(rows, given.out), indent=1) + '\n'
            )
    sys.exit(
        not all(
            r.get('notebooks_pass', True) and r.get('tests_pass', True)
            for r in rows
        )
    )
