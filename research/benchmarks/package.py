"""The package as a user gets it.

The wheel's size, an empty environment that it is installed into, what works
from there, and how long imports take. Needs the package index. Runs outside the
clone, so that nothing of it can help.

python research/benchmarks/package.py [--out results/package.json]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from lrp_loo.trust.results import Results

ROOT = Path(__file__).resolve().parents[2]
USE = (
    "import lrp_loo; print(lrp_loo.__file__); a ="
    " lrp_loo.explain(*lrp_loo.load_demo('sst2'), 'a gripping, funny film',"
    " method='removal')[0]; print(a)"
)
FIRST = "from lrp_loo import explain"


def seconds(words, rounds=5):
    "Wall time of a process, the least and the median."

    def one():
        t = time.perf_counter()
        subprocess.run(
            words,
            check=True,
            cwd=tempfile.gettempdir(),
            env=clean(),
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - t

    times = sorted(one() for _ in range(rounds))
    return dict(least=times[0], median=times[rounds // 2])


def clean():
    return {
        k: v
        for k, v in os.environ.items()
        if k not in ('PYTHONPATH', 'LRP_LOO_DATA', 'VIRTUAL_ENV')
    } | {'HF_HUB_OFFLINE': '1'}


def run(*words):
    return subprocess.run(
        [str(w) for w in words],
        check=True,
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
        env=clean(),
    ).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', default=ROOT / 'research' / 'results' / 'package.json')
    args = parser.parse_args()
    results = None
    with tempfile.TemporaryDirectory() as d:
        run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w', d, ROOT)
        wheel = next(Path(d).glob('*.whl'))
        results = Results(
            args.out,
            dict(experiment='package', wheel=wheel.name, cpus=os.cpu_count()),
            fresh=True,
        )
        results.add(
            dict(
                i=0,
                what='wheel',
                bytes=wheel.stat().st_size,
                files=len(zipfile.ZipFile(wheel).namelist()),
            )
        )
        run(sys.executable, '-m', 'venv', f'{d}/empty')
        python = f'{d}/empty/bin/python'
        t = time.perf_counter()
        run(python, '-m', 'pip', 'install', '-q', 'torch==2.13.0')
        run(python, '-m', 'pip', 'install', '-q', f'{wheel}[demo]')
        said = run(python, '-c', USE).splitlines()
        assert said[0].startswith(f'{d}/empty/'), said
        results.add(
            dict(
                i=1,
                what='installed into an empty environment',
                seconds=time.perf_counter() - t,
                packages=len(run(python, '-m', 'pip', 'list').splitlines()) - 2,
                said=said[-1],
            )
        )
        assert 'usage: lrp_loo' in run(f'{d}/empty/bin/lrp_loo', '--help')
        for i, (what, words) in enumerate(
            (
                ('python alone', [python, '-c', '']),
                ('import lrp_loo', [python, '-c', 'import lrp_loo']),
                ('lrp_loo --help', [f'{d}/empty/bin/lrp_loo', '--help']),
                (FIRST, [python, '-c', FIRST]),
            ),
            2,
        ):
            results.add(dict(i=i, what=what, **seconds(words)))
    for r in results.rows:
        print({k: v for k, v in r.items() if k != 'i'})


if __name__ == '__main__':
    main()
