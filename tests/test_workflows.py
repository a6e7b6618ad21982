"What .github holds: workflows that call our commands and nothing else, and forms."

import re
import shlex
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import stacks
import yaml

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / '.github'
NAMES = ('docs', 'release', 'test')
# who may write, and what
WRITERS = {
    ('docs', 'deploy'): {'pages': 'write', 'id-token': 'write'},
    ('release', 'publish'): {'id-token': 'write'},
    ('release', 'page'): {'contents': 'write'},
}
PINNED = r'\s*(?:- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+'


def read(path):
    return yaml.safe_load(path.read_text(encoding='utf-8'))


WORKFLOWS = {name: read(HOME / 'workflows' / f'{name}.yml') for name in NAMES}
TEXTS = {
    name: (HOME / 'workflows' / f'{name}.yml').read_text('utf-8') for name in NAMES
}
JOBS = {
    (name, job): content
    for name, workflow in WORKFLOWS.items()
    for job, content in workflow['jobs'].items()
}
SPEC = spec_from_file_location('steps', ROOT / '.ci' / 'steps.py')
MADE = module_from_spec(SPEC)
SPEC.loader.exec_module(MADE)
STEPS = list(MADE.steps())  # as .ci/steps.py runs them here
RUN = list(dict.fromkeys((workflow, job, run) for workflow, job, _, run, _ in STEPS))


@pytest.mark.parametrize('place', RUN, ids=' '.join)
def test_a_step_is_a_command_of_ours(place):
    "A target of the Makefile, .ci/run, or the call that makes a release's page."
    words = shlex.split(place[-1])
    targets = re.findall(r'^(\w[\w-]*):', (ROOT / 'Makefile').read_text(), re.M)
    if words[0] == 'make':
        assert words[1] in targets
        assert all(word.startswith('ARGS=') for word in words[2:])
    elif words[0] == 'bash':
        assert (ROOT / words[1]).is_file() and len(words) == 2
    else:
        assert words[:3] == ['gh', 'release', 'create']
    # what comes from outside comes as a variable, never as a piece of the command
    assert '${{' not in place[-1]


def test_every_python_meets_every_stack():
    "Except that the oldest versions have no wheels for the newest Python."
    matrix = WORKFLOWS['test']['jobs']['stacks']['strategy']['matrix']
    assert tuple(matrix['stack']) == stacks.STACKS
    assert matrix['exclude'] == [dict(python='3.13', stack='oldest')]
    wheel = WORKFLOWS['test']['jobs']['wheel']['strategy']['matrix']
    assert wheel['python'] == matrix['python']
    about = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))['project']
    assert about['requires-python'] == f'>={matrix["python"][0]}'
    named = re.findall(r'Python :: (3\.\d+)', '\n'.join(about['classifiers']))
    assert named == matrix['python']
    for _, job, place, command, env in STEPS:
        if job == 'stacks':
            (words,) = re.findall(r'ARGS="(.*)"', command)
            words = shlex.split(words.replace('$STACK', env['STACK']))
            options = stacks.arguments(words)
            assert (options.stacks, options.torch) == ([place['stack']], 'pinned')


@pytest.mark.parametrize('name', NAMES)
def test_a_workflow_may_read_does_not_race_and_pins_its_actions(name):
    assert WORKFLOWS[name]['permissions'] == {'contents': 'read'}
    assert set(WORKFLOWS[name]['concurrency']) == {'group', 'cancel-in-progress'}
    used = [line for line in TEXTS[name].splitlines() if re.search(r'\buses:', line)]
    assert used and not [line for line in used if not re.fullmatch(PINNED, line)]
    actions = set(re.findall(r'uses: (\S+)@(\S+)', '\n'.join(TEXTS.values())))
    assert len({action for action, _ in actions}) == len(actions)


def test_jobs_end_keep_no_token_and_write_only_if_they_have_to():
    assert {p.stem for p in (HOME / 'workflows').iterdir()} == set(NAMES)
    own = {p: job['permissions'] for p, job in JOBS.items() if 'permissions' in job}
    assert own == WRITERS
    for job in JOBS.values():
        assert job['timeout-minutes'] <= 330
        for step in job['steps']:
            if step.get('uses', '').startswith('actions/checkout'):
                assert step['with'] == {'persist-credentials': False}
