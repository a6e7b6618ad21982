"Which versions of other libraries are allowed, and what tries them."

import subprocess
from types import SimpleNamespace

import pytest
import stacks
from packaging.version import Version
from stacks import ROOT, at_least, pinned, requirements

REQUIRED = {r.name: r for r in requirements()}


@pytest.mark.parametrize('name', REQUIRED)
def test_a_requirement_has_an_oldest_version_and_allows_what_is_pinned(name):
    assert at_least(REQUIRED[name]).startswith(f'{name}==')
    assert REQUIRED[name].specifier.contains(pinned()[name])


@pytest.mark.parametrize('name', ['torch', 'transformers'])
def test_the_front_page_names_what_is_allowed(name):
    oldest = at_least(REQUIRED[name]).split('==')[1]
    (newest,) = (s.version for s in REQUIRED[name].specifier if s.operator == '<')
    span = f'{name} {oldest} to {Version(newest).major}.{Version(newest).minor - 1}'
    assert span in (ROOT / 'README.md').read_text(encoding='utf-8')


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
        return SimpleNamespace(
            returncode=int(is_failure), stdout='ERROR: conflict', stderr=''
        )

    assert all((ROOT / f'tests/test_{name}.py').is_file() for name in stacks.FILES)
    monkeypatch.setenv('CI', ci)
    monkeypatch.setattr(stacks, 'run', pip)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: None)
    options = stacks.arguments(['oldest', '--folder', str(tmp_path)])
    assert stacks.main(options) == code
    message = capsys.readouterr().err
    assert message.count('\n') == 1 and words in message
