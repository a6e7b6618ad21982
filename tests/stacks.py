"""The tests that touch other libraries, on three sets of versions of them.

    python tests/stacks.py                          # all three, results/stacks.json
    python tests/stacks.py newest --torch pinned    # one of them
    python tests/stacks.py newest --torch pinned --quick  # less, and nothing is written

oldest: the lower bounds of pyproject.toml; pinned: .ci/constraints.txt, in the
environment that runs this (`make venv`); newest: what a bare `pip install .` takes
today. The oldest and the newest have an environment each in a folder (.stacks). By itself
pip takes the newest torch that pyproject.toml allows, with gigabytes of libraries for a
GPU; --torch names another version, 'pinned' that of .ci/constraints.txt.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from lrp_loo.core.files import versions, write_text_atomic

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'stacks.json'
STACKS = ('oldest', 'pinned', 'newest')
PARTS = {  # name → test files
    'decoders': ['decoders'],
    'generation': ['generation', 'units'],
    'exact LOO': ['exact_loo'],
    'fast paths': ['fast', 'rows'],
    'rules': ['lrp', 'softmax_layers'],
    'families': [
        'families',
        'encoder_decoders',
        'two_towers',
        'vision_language',
        'sounds',
    ],
    'every family': ['every_family'],
    'guide': ['guide'],
}
QUICK = ('decoders', 'generation', 'exact LOO', 'fast paths', 'families', 'guide')
EXTRAS = ('data', 'demo', 'plot', 'paper')  # the extra `paper` has all of them
TOOLS = ('pytest', 'pytest-xdist', 'hypothesis', 'nbformat')
# packages that the requirements bring, and that much depends on
BROUGHT = ('tokenizers', 'huggingface_hub', 'pyarrow', 'accelerate')


class Done(NamedTuple):
    "A command that has run."

    code: int
    output: str
    minutes: float


def run(words, **env):
    "Run a command to its end, offline and without progress bars."
    started = time.perf_counter()
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | env, capture_output=True, text=True
    )
    minutes = (time.perf_counter() - started) / 60
    return Done(done.returncode, done.stdout + done.stderr, minutes)


def requirements():
    "Return the requirements of the package and of `lrp_loo reproduce`."
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    extras = project['project']['optional-dependencies']
    named = project['project']['dependencies'] + sum(map(extras.get, EXTRAS), [])
    # an exact one has no oldest version, and an extra of extras none at all
    return [Requirement(r) for r in named if '>=' in r]


def at_least(requirement: Requirement) -> str:
    "Return the oldest version that is allowed: torch>=2.9,<2.15 → torch==2.9."
    oldest = [s.version for s in requirement.specifier if s.operator == '>=']
    if len(oldest) != 1:
        raise ValueError(
            f"{requirement} of pyproject.toml must name one oldest version (>=)"
        )
    return f'{requirement.name}=={oldest[0]}'


def ceiling(requirement: Requirement) -> str:
    "Return the first version that is not allowed: torch>=2.9,<2.15 → 2.15."
    return next(s.version for s in requirement.specifier if s.operator == '<')


def pinned():
    "Map each package, in small letters, to its version in .ci/constraints.txt."
    lines = (ROOT / '.ci/constraints.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.lower().split('==') for line in lines if not line.startswith('#'))


def files_of(parts):
    "Return the test files of some parts."
    return [f'tests/test_{name}.py' for part in parts for name in PARTS[part]]


def install(stack, torch, folder):
    "Make or renew an environment and return its Python; SystemExit if pip fails."
    if stack == 'pinned':
        return sys.executable
    python = str(folder / stack / 'bin' / 'python')
    if not Path(python).exists():
        subprocess.run([sys.executable, '-m', 'venv', str(folder / stack)], check=True)
    bounds = []
    if stack == 'oldest':
        bounds = [at_least(r) for r in requirements()]
    elif torch:
        bounds = [f'torch=={pinned()["torch"] if torch == "pinned" else torch}']
    constraints = folder / f'{stack}.txt'
    constraints.write_text(''.join(f'{line}\n' for line in bounds), encoding='utf-8')
    pip = [python, '-m', 'pip']
    renew = ['--upgrade', '--upgrade-strategy', 'eager', '-c', str(constraints)]
    done = run([*pip, 'install', '-q', *renew, '-e', '.[paper]', *TOOLS])
    if not done.code:
        return python
    if run([*pip, 'index', 'versions', 'transformers']).code:
        reason = f"the package index can't be reached; {stack} is not run"
    else:
        errors = [s for s in done.output.splitlines() if s.startswith('ERROR')]
        reason = f"{stack} can't be installed: {' '.join(errors) or done.output}"
    raise SystemExit(f'stacks: {reason}')


def versions_in(python):
    "Return the versions of Python and of the installed packages."
    names = [*(r.name for r in requirements()), *BROUGHT]
    words = (
        'import json, platform; from importlib.metadata import version;'
        f' print(json.dumps(dict(python=platform.python_version(),'
        f' **{{n: version(n) for n in {names}}})))'
    )
    return json.loads(run([python, '-c', words]).output)


def tested(python, parts, workers):
    "Run the tests of some parts; return what came of them, and the command."
    words = [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
    words += ['-n', str(workers), '--dist', 'loadfile', '-m', 'not large']
    env = dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', MPLBACKEND='agg')
    done = run([*words, *files_of(parts)], TOKENIZERS_PARALLELISM='false', **env)
    last = done.output.strip().splitlines()[-1:]
    counts = re.findall(r'(\d+) (passed|failed|skipped|error)', ''.join(last))
    found = dict(passed=0, failed=0, skipped=0) | {what: int(n) for n, what in counts}
    found['minutes'] = round(done.minutes, 1)
    return found, done


def row_of(stack, python, workers):
    "Run all parts on a stack and return its row: versions, and counts of each part."
    row = dict(i=stack, versions=versions_in(python), parts={})
    for part in PARTS:
        row['parts'][part], done = tested(python, [part], workers)
        print(f'{stack}, {part}: {row["parts"][part]}', flush=True)
        if done.code:
            print(done.output, flush=True)
    return row


def failed(row):
    "Return the parts that did not pass; a part that ran nothing is one of them."
    return [
        part
        for part, found in row['parts'].items()
        if found['failed'] or found.get('error') or not found['passed']
    ]


def record(rows, path):
    "Return what is written: new rows, and an earlier run's rows of other stacks."
    kept = {}
    if path.exists():
        kept = {row['i']: row for row in json.loads(path.read_text())['rows']}
    kept |= {row['i']: row for row in rows}
    config = dict(experiment='stacks', requirements=[str(r) for r in requirements()])
    rows = [kept[stack] for stack in STACKS if stack in kept]
    return dict(config=config, versions=versions(), rows=rows)


def arguments(argv=None):
    "Read the command line."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('stacks', nargs='*', metavar='STACK', help=f'of {", ".join(STACKS)}')
    add('--torch', help="of the newest stack: a version, or 'pinned'")
    add('--workers', type=int, default=2, help='processes side by side')
    add('--quick', action='store_true', help='less, and nothing is written')
    add('--folder', type=Path, default=ROOT / '.stacks', help='(.stacks)')
    add('--out', type=Path, default=RESULTS, help='(results/stacks.json)')
    options = parser.parse_args(argv)
    options.stacks = options.stacks or list(STACKS)
    if unknown := set(options.stacks) - set(STACKS):
        parser.error(f'no such stack: {", ".join(unknown)}')
    return options


def main(options):
    "Run each stack in turn; return an exit code."
    code = 0
    for stack in options.stacks:
        try:
            python = install(stack, options.torch, options.folder)
        except SystemExit as e:
            print(e, file=sys.stderr)
            # a reader without a network goes on; CI has one
            unreached = "can't be reached" in str(e)
            code |= int(not unreached or os.environ.get('CI') == 'true')
            continue
        if options.quick:
            _, done = tested(python, QUICK, options.workers)
            print(done.output, flush=True)
            code |= done.code
            continue
        row = row_of(stack, python, options.workers)
        code |= int(bool(failed(row)))
        made = json.dumps(record([row], options.out), indent=1)
        write_text_atomic(options.out, made + '\n')
    return code


if __name__ == '__main__':
    sys.exit(main(arguments()))
