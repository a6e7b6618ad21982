"""The commands of the workflows, as they would be run there.

python .ci/steps.py                          lists them, a line for each place of a matrix
python .ci/steps.py test wheel [python=3.12]    runs those of a job, one after the other

Steps that use an action (checkout, uploads) are not run; the Python is the one that
PYTHON names for make.
"""

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))
from tracked import tracked  # noqa: E402


def places(job):
    "A job's places in its matrix, as name → value; one that is empty without."
    matrix = dict(job.get('strategy', {}).get('matrix', {}))
    left_out = matrix.pop('exclude', [])
    for values in itertools.product(*matrix.values()):
        place = dict(zip(matrix, values))
        if place not in left_out:
            yield place


def filled(text, place):
    "With what the matrix says; of what only GitHub knows, nothing."
    known = {f'matrix.{name}': value for name, value in place.items()}
    return re.sub(r'\$\{\{ ([\w.]+) \}\}', lambda m: known.get(m[1], ''), str(text))


def steps():
    "(workflow, job, place, command, its variables), in the order they are run."
    for path in sorted(tracked('.github/workflows/*.yml')):
        for name, job in yaml.safe_load(path.read_text(encoding='utf-8'))[
            'jobs'
        ].items():
            for place in places(job):
                for step in (s for s in job['steps'] if 'run' in s):
                    given = step.get('env', {}).items()
                    env = {key: filled(value, place) for key, value in given}
                    yield path.stem, name, place, step['run'], env


def main(words):
    asked = dict(word.split('=') for word in words if '=' in word)
    named = [word for word in words if '=' not in word]
    for workflow, job, place, command, env in steps():
        where = ' '.join([workflow, job, *(f'{k}={v}' for k, v in place.items())])
        if not named:
            print(f'{where}: {" ".join(f"{k}={v}" for k, v in env.items())} {command}')
        elif named == [workflow, job] and asked.items() <= place.items():
            print(f'== {where}: {command}', flush=True)
            start = time.monotonic()
            run = ['bash', '-eo', 'pipefail', '-c', command]
            done = subprocess.run(run, cwd=ROOT, env=os.environ | env)
            print(f'== {done.returncode} after {time.monotonic() - start:.0f} s')
            if done.returncode:
                sys.exit(done.returncode)


if __name__ == '__main__':
    main(sys.argv[1:])
