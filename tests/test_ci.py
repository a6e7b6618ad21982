"`.ci/run` on machines that lack something."

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# what the script itself calls, and what a script that notes its call calls
KEPT = ('bash', 'dirname', 'env', 'timeout')
NOTE = """#!/usr/bin/env bash
echo "{name} $*" >>"{log}"
{more}
"""


@pytest.fixture
def machine(tmp_path):
    "Its commands in a folder; `said` and `called` of a run of `.ci/run`."
    commands = tmp_path / 'bin'
    commands.mkdir()
    for name in KEPT:
        (commands / name).symlink_to(shutil.which(name))
    for name in ('run', 'chromium.py'):
        folder = tmp_path / ('.ci' if name == 'run' else 'tests')
        folder.mkdir()
        shutil.copy(ROOT / folder.name / name, folder)
    return tmp_path


def has(machine, name, more=''):
    "Give it a command that notes how it was called."
    path = machine / 'bin' / name
    log = machine / 'log'
    path.write_text(NOTE.format(name=name, log=log, more=more))
    path.chmod(0o755)


def has_python(machine, venv=True):
    "A Python with or without what `python -m venv` needs."
    refuse = '' if venv else '[ "$2" != "import ensurepip" ] || exit 1'
    real = shutil.which('python3')
    path = machine / 'bin' / 'python3'
    path.write_text(f'#!/usr/bin/env bash\n{refuse}\nexec {real} "$@"\n')
    path.chmod(0o755)


def run(machine, user=0, code=0):
    "What it installed by, and what it said; `make test` follows in any case."
    has(machine, 'id', f'echo {user}')
    env = {k: v for k, v in os.environ.items() if k not in ('CI', 'CHROMIUM')}
    done = subprocess.run(
        ['bash', '.ci/run'],
        cwd=machine,
        env=env | dict(PATH=str(machine / 'bin')),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    called = (machine / 'log').read_text().splitlines()
    assert 'make test' in called
    return [line for line in called if line.startswith('apt-get ')], done.stderr


def test_whatever_a_machine_lacks_is_installed_without_asking(machine):
    has_python(machine)
    for name in ('make', 'chromium', 'apt-get'):
        has(machine, name)
    assert run(machine) == ([], '')
    for name in ('log', 'bin/chromium'):
        (machine / name).unlink()
    has_python(machine, venv=False)
    has(machine, 'make')
    (machine / 'bin' / 'make').rename(machine / 'make')
    has(machine, 'apt-get', f'/bin/cp {machine}/make {machine}/bin')
    (update, install), said = run(machine)
    assert (update, said) == ('apt-get update', '')
    assert install.startswith('apt-get install -y')
    assert {'make', 'python3-venv', 'chromium'} <= set(install.split())


@pytest.mark.parametrize(
    'user, n_called, words',
    [
        (0, 2, 'could not be installed'),  # left to the tests
        (1000, 0, 'sudo apt-get install chromium'),
    ],
)
def test_what_is_not_installed_is_said_in_one_line(machine, user, n_called, words):
    has_python(machine)
    has(machine, 'make')
    has(machine, 'apt-get', 'exit 100')
    called, said = run(machine, user=user)
    assert len(called) == n_called
    assert len(said.splitlines()) == 1
    assert words in said


@pytest.mark.parametrize('status, code', [(2, 1), (124, 0)])
def test_a_failure_fails_it_and_a_missing_time_does_not(machine, status, code):
    has_python(machine)
    has(machine, 'chromium')
    has(machine, 'make', f'[ "$*" != test-kernels ] || exit {status}')
    assert run(machine, code=code)[1] == code * '.ci/run: failed: make test-kernels\n'


def test_what_the_makefile_runs_exists():
    text = (ROOT / 'Makefile').read_text(encoding='utf-8')
    scripts = set(re.findall(r'[\w./]+\.(?:py|sh)\b', text))
    assert 'tests/large_models.py' in scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script
