"""Which versions of other libraries are allowed, and that they were tried."""

import subprocess
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import stacks
from packaging.requirements import Requirement
from packaging.version import Version
from stacks import RESULTS, ROOT, STACKS, at_least, requirements

from lrp_loo.results import read_results

REQUIRED = {r.name: r for r in requirements()}
# what a decoder's keys and values, and attention itself, depend on
CAPPED = ('torch', 'transformers')


def pinned():
    lines = (ROOT / 'constraints.txt').read_text(encoding='utf-8').splitlines()
    return dict(n.split('==') for n in lines if not n.startswith('#'))


def ceiling(name):
    return next(s.version for s in REQUIRED[name].specifier if s.operator == '<')


# ---- what is run


@pytest.mark.parametrize('part', stacks.PARTS)
def test_a_part_names_files_that_are_there(part):
    files = stacks.PARTS[part] + [w for w in stacks.QUICK if w.endswith('.py')]
    assert [name for name in files if not (ROOT / name).is_file()] == []


# ---- settings.ini


@pytest.mark.parametrize('name', REQUIRED)
def test_a_requirement_has_an_oldest_version(name):
    assert at_least(REQUIRED[name]).startswith(f'{name}==')


def test_a_requirement_without_one_is_refused():
    with pytest.raises(ValueError, match='oldest version'):
        at_least(Requirement('torch<3'))


@pytest.mark.parametrize('name', REQUIRED)
def test_what_is_installed_is_allowed(name):
    assert REQUIRED[name].specifier.contains(version(name))


@pytest.mark.parametrize('name', REQUIRED)
def test_what_is_pinned_is_allowed(name):
    assert REQUIRED[name].specifier.contains(pinned()[name])


@pytest.mark.parametrize('name', CAPPED)
def test_the_front_page_names_what_is_allowed(name):
    oldest = at_least(REQUIRED[name]).split('==')[1]
    newest = Version(ceiling(name))
    span = f'{name} {oldest} to {newest.major}.{newest.minor - 1}'
    assert span in (ROOT / 'README.md').read_text(encoding='utf-8')


# ---- the table


@pytest.fixture(scope='module')
def ran():
    "Stack → its row."
    return {row['i']: row for row in read_results(RESULTS)['rows']}


def test_three_stacks_were_run(ran):
    assert tuple(ran) == STACKS


@pytest.mark.parametrize('stack', STACKS)
def test_every_part_of_it_passed(stack, ran):
    assert list(ran[stack]['parts']) == list(stacks.PARTS)
    assert not stacks.failed(ran[stack])


@pytest.mark.parametrize('name', REQUIRED)
def test_the_oldest_is_what_is_allowed_at_least(name, ran):
    found = Version(ran['oldest']['versions'][name])
    oldest = at_least(REQUIRED[name]).split('==')[1]
    assert Version(found.public) == Version(oldest)


@pytest.mark.parametrize('name', REQUIRED)
def test_the_pinned_is_what_is_pinned(name, ran):
    found = Version(ran['pinned']['versions'][name])
    assert Version(found.public) == Version(pinned()[name])


@pytest.mark.parametrize('name', CAPPED)
def test_no_newer_one_is_allowed_than_was_run(name, ran):
    "The ceiling is the next minor version."
    found = Version(ran['newest']['versions'][name])
    assert ceiling(name) == f'{found.major}.{found.minor + 1}'


@pytest.mark.parametrize('stack', STACKS)
def test_a_stack_is_of_its_versions(stack, ran):
    has = ran[stack]['versions']
    assert all(r.specifier.contains(has[n]) for n, r in REQUIRED.items())


# ---- the command


def row(**counts):
    found = dict(passed=3, failed=0, skipped=0) | counts
    return dict(i='newest', versions={}, parts={'decoders': found})


def test_a_part_that_failed_or_ran_nothing_has_not_passed():
    assert not stacks.failed(row())
    assert stacks.failed(row(failed=1)) == ['decoders']
    assert stacks.failed(row(error=1)) == ['decoders']
    assert stacks.failed(row(passed=0)) == ['decoders']


def no_index(words, env):
    "As pip without a network."
    return SimpleNamespace(code=1, said='ERROR: no route', minutes=0)


@pytest.mark.parametrize('ci,code', [('', 0), ('true', 1)])
def test_without_an_index_one_line_says_so(ci, code, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv('CI', ci)
    monkeypatch.setattr(stacks, 'run', no_index)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: None)
    given = stacks.arguments(['newest', '--quick', '--folder', str(tmp_path)])
    assert stacks.main(given) == code
    said = capsys.readouterr().err
    assert said.count('\n') == 1 and "can't be reached" in said


def test_a_conflict_is_a_failure_anywhere(monkeypatch, tmp_path, capsys):
    def conflict(words, env):
        code = int('install' in words)
        return SimpleNamespace(code=code, said='ERROR: conflict', minutes=0)

    monkeypatch.delenv('CI', raising=False)
    monkeypatch.setattr(stacks, 'run', conflict)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: None)
    given = stacks.arguments(['oldest', '--folder', str(tmp_path)])
    assert stacks.main(given) == 1
    assert 'ERROR: conflict' in capsys.readouterr().err


def test_an_earlier_runs_other_rows_stay(tmp_path):
    path = tmp_path / 'stacks.json'
    for stack in ('newest', 'oldest'):
        made = stacks.record([row() | dict(i=stack)], path)
        path.write_text(stacks.json.dumps(made), encoding='utf-8')
    assert [r['i'] for r in read_results(path)['rows']] == ['oldest', 'newest']


def test_parts_of_the_same_versions_stay(tmp_path):
    path = tmp_path / 'stacks.json'
    guide = row() | dict(parts={'guide': dict(passed=2, failed=0, skipped=0)})
    for one in (guide, row(passed=7)):
        made = stacks.record([one], path)
        path.write_text(stacks.json.dumps(made), encoding='utf-8')
    (found,) = read_results(path)['rows']
    assert list(found['parts']) == ['decoders', 'guide']
    (other,) = stacks.record([row() | dict(versions={'torch': '3'})], path)['rows']
    assert list(other['parts']) == ['decoders']


def test_a_stack_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        stacks.arguments(['latest'])
    assert 'no such stack: latest' in capsys.readouterr().err
