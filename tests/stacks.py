"""The tests that touch other libraries, on three sets of versions of them.

    python tests/stacks.py                          # all three, results/stacks.json
    python tests/stacks.py newest --torch pinned    # one of them
    python tests/stacks.py newest --torch pinned --quick  # as CI does: less, nothing is written
    python tests/stacks.py pinned newest --parts --tables  # families, bad input and kills instead

oldest: what pyproject.toml allows at least; pinned: constraints.txt, in the
environment that runs this (`make venv`); newest: what a bare `pip install .`
takes today. The oldest and the newest have an environment each in a folder
(.stacks), with the package itself in it. By itself pip takes the newest torch that
pyproject.toml allows, with gigabytes of libraries for a GPU; --torch names
another one, 'pinned' that of constraints.txt.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from kernels import counted, environment, run
from packaging.requirements import Requirement

from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.trust.results import read_results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'stacks.json'
STACKS = ('oldest', 'pinned', 'newest')
PARTS = {  # what pytest is given
    'decoders': ['tests/test_decoders.py', 'tests/test_kept_states.py'],
    'generation': ['tests/test_generation.py', 'tests/test_units.py'],
    'exact LOO': ['tests/test_exact_loo.py'],
    'fast paths': ['tests/test_fast.py', 'tests/test_rows.py'],
    'rules': ['tests/test_lrp.py', 'tests/test_softmax_layers.py'],
    'families': ['tests/test_families.py'],
    'every family': ['tests/test_every_family.py'],
    'of several parts': [
        'tests/test_encoder_decoders.py',
        'tests/test_two_towers.py',
        'tests/test_vision_language.py',
        'tests/test_sounds.py',
    ],
    'guide': ['tests/test_guide.py'],
}
# what makes a table, and says in a line what came of it
TABLES = {
    'every family': 'benchmarks/every_family.py',
    'bad input': 'tests/bad_input.py',
    'kills': 'tests/test_resume.py',
}
# in six minutes on two cores, in one run of pytest
QUICK = [
    *PARTS['decoders'],
    'tests/test_generation.py',
    'tests/test_exact_loo.py',
    'tests/test_fast.py',
    'tests/test_every_family.py',
    *PARTS['of several parts'],
    'tests/test_guide.py',
    '-k',
    'not its_check_fails',
]
# of `paper`, which is all of them
EXTRAS = ('data', 'demo', 'plot', 'paper')
# beside the package: what the tests themselves need
TOOLS = ('pytest', 'pytest-xdist', 'hypothesis', 'nbformat')
# beside the requirements: what they bring, and much depends on
BROUGHT = ('tokenizers', 'huggingface_hub', 'pyarrow', 'accelerate')


# ------------------------------------------------------------ what is installed


def requirements():
    "What pyproject.toml says that the package and `lrp_loo reproduce` need."
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    extras = project['project']['optional-dependencies']
    named = project['project']['dependencies'] + sum(map(extras.get, EXTRAS), [])
    # an exact one has no oldest version, and an extra of extras none at all
    return [Requirement(r) for r in named if '>=' in r]


def at_least(
    requirement: Requirement,
) -> str:  # the same package, at the oldest version that is allowed
    "torch>=2.9,<2.15 → torch==2.9"
    oldest = [s.version for s in requirement.specifier if s.operator == '>=']
    if len(oldest) != 1:
        raise ValueError(
            f"{requirement} of pyproject.toml must name one oldest version (>=)"
        )
    return f'{requirement.name}=={oldest[0]}'


def ceiling(
    requirement: Requirement,
) -> str:  # the version that is not allowed any more
    "torch>=2.9,<2.15 → 2.15"
    return next(s.version for s in requirement.specifier if s.operator == '<')


def pinned():
    "Package → its version in constraints.txt."
    lines = (ROOT / 'constraints.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.split('==') for line in lines if not line.startswith('#'))


def install(stack, torch, folder):
    """The interpreter of an environment that is made or renewed; it raises
    SystemExit where pip did not find what it was asked for.
    """
    if stack == 'pinned':
        return sys.executable
    python = str(folder / stack / 'bin' / 'python')
    if not Path(python).exists():
        words = [sys.executable, '-m', 'venv', str(folder / stack)]
        subprocess.run(words, check=True)
    held = []  # pip's constraints
    if stack == 'oldest':
        held = [at_least(r) for r in requirements()]
    elif torch:
        held = [f'torch=={pinned()["torch"] if torch == "pinned" else torch}']
    constraints = folder / f'{stack}.txt'
    constraints.write_text(''.join(f'{line}\n' for line in held), encoding='utf-8')
    what = ['-c', str(constraints), '-e', '.[paper]', *TOOLS]
    renew = ['--upgrade', '--upgrade-strategy', 'eager']
    pip, env = [python, '-m', 'pip'], dict(os.environ)
    done = run([*pip, 'install', '-q', *renew, *what], env)
    if not done.code:
        return python
    if run([*pip, 'index', 'versions', 'transformers'], env).code:
        why = f"the package index can't be reached; {stack} is not run"
    else:
        errors = [s for s in done.said.splitlines() if s.startswith('ERROR')]
        why = f"{stack} can't be installed: {' '.join(errors) or done.said}"
    raise SystemExit(f'stacks: {why}')


# ------------------------------------------------------------------- what is run


def versions_in(python):
    "Of Python and of what was installed."
    names = [*(r.name for r in requirements()), *BROUGHT]
    words = (
        'import json, platform; from importlib.metadata import version;'
        f' print(json.dumps(dict(python=platform.python_version(),'
        f' **{{n: version(n) for n in {names}}})))'
    )
    return json.loads(run([python, '-c', words], dict(os.environ)).said)


def tested(python, given, workers):
    "What came of some tests, and what was printed."
    beside = ['-n', str(workers), '--dist', 'loadfile']
    words = [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *beside]
    env = environment('best', 1)
    env.pop('TQDM_DISABLE')  # some tests look at the bar
    done = run([*words, *given], env)
    found = dict(passed=0, failed=0, skipped=0) | counted(done.said)
    found['minutes'] = round(done.minutes, 1)
    return found, done


def row_of(stack, python, given):
    """A row of the table: its versions, what came of each part and, where they are
    asked for, of each table; SystemExit where something is wrong in one.
    """
    row = dict(i=stack, versions=versions_in(python), parts={})
    for part in given.parts:
        found, done = tested(python, PARTS[part], given.workers)
        row['parts'][part] = found
        print(f'{stack}, {part}: {found}', flush=True)
        if done.code:
            print(done.said, flush=True)
    for name, script in TABLES.items() if given.tables else ():
        done = run([python, '-W', 'ignore', script], environment('best', 1))
        if done.code:
            raise SystemExit(f'stacks: {stack}, {name}: {done.said}')
        (said,) = re.findall(r'^.* (?:wrong|lost)$', done.said, re.M)[-1:]
        row.setdefault('tables', {})[name] = said
        print(f'{stack}, {name}: {said}', flush=True)
    return row


def failed(row):
    "The parts that did not pass; a part that ran nothing is one of them."
    return [
        part
        for part, found in row['parts'].items()
        if found['failed'] or found.get('error') or not found['passed']
    ]


def record(rows, path):
    """What is written; of an earlier run the rows of other stacks are kept, and
    of the same versions the parts that were not run again.
    """
    config = dict(
        experiment='stacks',
        requirements=[str(r) for r in requirements()],
        parts={part: list(given) for part, given in PARTS.items()},
    )
    kept = {}
    if path.exists():
        old = read_results(path)
        if old['config'] == config:
            kept = {row['i']: row for row in old['rows']}
    for row in rows:
        before = kept.get(row['i'], row)
        found = row['parts']
        if before['versions'] == row['versions']:
            found = before['parts'] | found
            row = before | row
        found = {part: found[part] for part in PARTS if part in found}
        kept[row['i']] = row | dict(parts=found)
    return dict(
        config=config,
        versions=versions(),
        rows=[kept[stack] for stack in STACKS if stack in kept],
    )


# ------------------------------------------------------------------ the command


def arguments(argv=None):
    "What the command was given."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('stacks', nargs='*', metavar='STACK', help=f'of {", ".join(STACKS)}')
    add('--torch', help="of the newest stack: a version, or 'pinned'")
    add('--parts', nargs='*', choices=PARTS, default=list(PARTS))
    add('--tables', action='store_true', help=f'{", ".join(TABLES)} as well')
    add('--workers', type=int, default=2, help='processes side by side')
    add('--quick', action='store_true', help='less, and nothing is written')
    add('--folder', type=Path, default=ROOT / '.stacks', help='(.stacks)')
    add('--out', type=Path, default=RESULTS, help='(results/stacks.json)')
    given = parser.parse_args(argv)
    given.stacks = given.stacks or list(STACKS)
    if unknown := set(given.stacks) - set(STACKS):
        parser.error(f'no such stack: {", ".join(unknown)}')
    return given


def main(given):
    "Each stack in turn; the exit code says whether all passed."
    rows = []
    code = 0
    for stack in given.stacks:
        try:
            python = install(stack, given.torch, given.folder)
        except SystemExit as e:
            print(e, file=sys.stderr)
            # a reader without a network goes on; CI has one
            unreached = "can't be reached" in str(e)
            code |= int(not unreached or os.environ.get('CI') == 'true')
            continue
        if given.quick:
            has = versions_in(python)
            named = (f'{n} {has[n]}' for n in ('torch', 'transformers', 'numpy'))
            print(f'{stack}: {", ".join(named)}', flush=True)
            _, done = tested(python, QUICK, given.workers)
            print(done.said, flush=True)
            code |= done.code
            continue
        rows.append(row_of(stack, python, given))
        code |= int(bool(failed(rows[-1])))
        made = json.dumps(record(rows, given.out), indent=1)
        write_text_atomic(given.out, made + '\n')
    return code


if __name__ == '__main__':
    sys.exit(main(arguments()))
