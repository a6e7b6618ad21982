"""The tests that touch other libraries, on three sets of versions of them.

    python tests/stacks.py                          # all three
    python tests/stacks.py newest --torch pinned    # one of them

oldest: the lower bounds of pyproject.toml; pinned: .ci/constraints.txt, in the
environment that runs this (`make venv`); newest: what a bare `pip install .` takes
today. The oldest and the newest have an environment each in a folder (.stacks). By itself
pip takes the newest torch that pyproject.toml allows, with gigabytes of libraries for a
GPU; --torch names another version, 'pinned' that of .ci/constraints.txt.
"""

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
STACKS = ('oldest', 'pinned', 'newest')
FILES = ('decoders', 'generation', 'units', 'exact_loo', 'fast', 'rows', 'families')
FILES += ('encoder_decoders', 'two_towers', 'vision_language', 'guide', 'lrp_calls')
EXTRAS = ('data', 'demo', 'plot', 'paper')  # the extra `paper` has all of them
TOOLS = ('pytest', 'pytest-xdist', 'hypothesis', 'nbformat')


def run(words, **env):
    "Run a command to its end, offline and without progress bars."
    how = dict(cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
    return subprocess.run(words, **how)


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


def pinned():
    "Map each package, in small letters, to its version in .ci/constraints.txt."
    lines = (ROOT / '.ci/constraints.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.lower().split('==') for line in lines if not line.startswith('#'))


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
    if not done.returncode:
        return python
    if run([*pip, 'index', 'versions', 'transformers']).returncode:
        reason = f"the package index can't be reached; {stack} is not run"
    else:
        output = done.stdout + done.stderr
        errors = [s for s in output.splitlines() if s.startswith('ERROR')]
        reason = f"{stack} can't be installed: {' '.join(errors) or output}"
    raise SystemExit(f'stacks: {reason}')


def tested(python, workers):
    "Run the tests in an environment."
    words = [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
    words += ['-n', str(workers), '--dist', 'loadfile', '-m', 'not large']
    env = dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', MPLBACKEND='agg')
    files = [f'tests/test_{name}.py' for name in FILES]
    return run([*words, *files], TOKENIZERS_PARALLELISM='false', **env)


def arguments(argv=None):
    "Read the command line."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('stacks', nargs='*', metavar='STACK', help=f'of {", ".join(STACKS)}')
    add('--torch', help="of the newest stack: a version, or 'pinned'")
    add('--workers', type=int, default=2, help='processes side by side')
    add('--folder', type=Path, default=ROOT / '.stacks', help='(.stacks)')
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
        done = tested(python, options.workers)
        print(f'{stack}: {done.stdout + done.stderr}', flush=True)
        code |= done.returncode
    return code


if __name__ == '__main__':
    sys.exit(main(arguments()))
