"Which versions of other libraries are allowed, and what tries them."

import json
import subprocess

import pytest
import stacks
from packaging.requirements import Requirement
from packaging.version import Version
from stacks import ROOT, at_least, ceiling, pinned, requirements

REQUIRED = {r.name: r for r in requirements()}


def test_parts_name_files_that_are_there():
    names = stacks.files_of(stacks.PARTS)
    assert [name for name in names if not (ROOT / name).is_file()] == []
    assert set(stacks.QUICK) < set(stacks.PARTS)


@pytest.mark.parametrize('name', REQUIRED)
def test_a_requirement_has_an_oldest_version_and_allows_what_is_pinned(name):
    assert at_least(REQUIRED[name]).startswith(f'{name}==')
    assert REQUIRED[name].specifier.contains(pinned()[name])


def test_a_requirement_without_an_oldest_version_is_refused():
    with pytest.raises(ValueError, match='oldest version'):
        at_least(Requirement('torch<3'))


@pytest.mark.parametrize('name', ['torch', 'transformers'])
def test_the_front_page_names_what_is_allowed(name):
    oldest = at_least(REQUIRED[name]).split('==')[1]
    newest = Version(ceiling(REQUIRED[name]))
    span = f'{name} {oldest} to {newest.major}.{newest.minor - 1}'
    assert span in (ROOT / 'README.md').read_text(encoding='utf-8')


def row(stack='newest', **counts):
    part = dict(passed=3, failed=0, skipped=0) | counts
    return dict(i=stack, versions={}, parts=dict(decoders=part))


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
def test_a_failed_installation_is_reported_in_a_line(
    ci, index, code, words, monkeypatch, tmp_path, capsys
):
    def pip(words):
        is_failure = 'install' in words or not index
        return stacks.Done(int(is_failure), 'ERROR: conflict', 0)

    monkeypatch.setenv('CI', ci)
    monkeypatch.setattr(stacks, 'run', pip)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: None)
    options = stacks.arguments(['oldest', '--quick', '--folder', str(tmp_path)])
    assert stacks.main(options) == code
    message = capsys.readouterr().err
    assert message.count('\n') == 1 and words in message


def test_rows_of_other_stacks_stay(tmp_path):
    path = tmp_path / 'stacks.json'
    for one in (row(), row('oldest'), row(passed=7)):
        path.write_text(json.dumps(stacks.record([one], path)), encoding='utf-8')
    rows = json.loads(path.read_text())['rows']
    assert [r['i'] for r in rows] == ['oldest', 'newest']
    assert rows[1]['parts']['decoders']['passed'] == 7


def test_an_unknown_stack_is_refused(capsys):
    with pytest.raises(SystemExit):
        stacks.arguments(['latest'])
    assert 'no such stack: latest' in capsys.readouterr().err
