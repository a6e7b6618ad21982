"Which versions of other libraries are allowed, and what tries them."

import json
import subprocess
from types import SimpleNamespace

import pytest
import stacks
from packaging.requirements import Requirement
from packaging.version import Version
from stacks import ROOT, at_least, ceiling, pinned, requirements

from lrp_loo.trust.results import read_results

REQUIRED = {r.name: r for r in requirements()}


def test_parts_name_files_that_are_there():
    named = [*sum(stacks.PARTS.values(), []), *stacks.QUICK, *stacks.TABLES.values()]
    files = [name for name in named if name.endswith('.py')]
    assert [name for name in files if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize('name', REQUIRED)
def test_a_requirement_has_an_oldest_version_and_allows_what_is_pinned(name):
    assert at_least(REQUIRED[name]).startswith(f'{name}==')
    assert REQUIRED[name].specifier.contains(pinned()[name])


def test_a_requirement_without_an_oldest_version_is_refused():
    with pytest.raises(ValueError, match='oldest version'):
        at_least(Requirement('torch<3'))


# what a decoder's keys and values, and attention itself, depend on
@pytest.mark.parametrize('name', ['torch', 'transformers'])
def test_the_front_page_names_what_is_allowed(name):
    oldest = at_least(REQUIRED[name]).split('==')[1]
    newest = Version(ceiling(REQUIRED[name]))
    span = f'{name} {oldest} to {newest.major}.{newest.minor - 1}'
    assert span in (ROOT / 'README.md').read_text(encoding='utf-8')


def row(part='decoders', stack='newest', versions=None, **counts):
    found = dict(passed=3, failed=0, skipped=0) | counts
    return dict(i=stack, versions=versions or {}, parts={part: found})


def test_a_part_that_failed_or_ran_nothing_has_not_passed():
    assert not stacks.failed(row())
    for counts in (dict(failed=1), dict(error=1), dict(passed=0)):
        assert stacks.failed(row(**counts)) == ['decoders']


@pytest.mark.parametrize(
    'ci, index, code, words',
    [
        ('', False, 0, "can't be reached"),  # a reader without a network goes on
        ('true', False, 1, "can't be reached"),
        ('', True, 1, 'ERROR: conflict'),
    ],
)
def test_what_cannot_be_installed_is_said_in_a_line(
    ci, index, code, words, monkeypatch, tmp_path, capsys
):
    def pip(asked, env):
        failed = 'install' in asked or not index
        return SimpleNamespace(code=int(failed), said='ERROR: conflict', minutes=0)

    monkeypatch.setenv('CI', ci)
    monkeypatch.setattr(stacks, 'run', pip)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: None)
    given = stacks.arguments(['oldest', '--quick', '--folder', str(tmp_path)])
    assert stacks.main(given) == code
    said = capsys.readouterr().err
    assert said.count('\n') == 1 and words in said


def recorded(path, *rows):
    "The rows that are kept when these come one after the other."
    for one in rows:
        made = stacks.record([one], path)
        path.write_text(json.dumps(made), encoding='utf-8')
    return read_results(path)['rows']


def test_what_an_earlier_run_found_stays(tmp_path):
    both = recorded(tmp_path / 'a.json', row(), row(stack='oldest'))
    assert [r['i'] for r in both] == ['oldest', 'newest']
    (found,) = recorded(tmp_path / 'b.json', row('guide'), row(passed=7))
    assert list(found['parts']) == ['decoders', 'guide']
    other = row(versions={'torch': '3'})
    (found,) = recorded(tmp_path / 'b.json', other)
    assert list(found['parts']) == ['decoders']


def test_a_stack_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        stacks.arguments(['latest'])
    assert 'no such stack: latest' in capsys.readouterr().err
