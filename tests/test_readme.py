"Every snippet of README.md, run; the first shell line goes through a shell."

import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pandas as pd
import pytest
from conftest import OPINIONS

from lrp_loo.cli import main
from lrp_loo.models.loading import load_demo

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def script(name):
    "A module of .ci/."
    spec = spec_from_file_location(name, ROOT / '.ci' / f'{name}.py')
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE = script('readme')
BLOCKS = re.findall(r'^```(\w*)\n(.*?)^```', README, re.M | re.S)
ENV = dict(os.environ, HF_HUB_OFFLINE='1', NO_COLOR='1')
ENV['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{ENV["PATH"]}'
ANSWER = r'trust \w+|do not tell apart|No method follows'  # of an audit


def blocks(language):
    "The blocks of one language."
    return [text for k, text in BLOCKS if k == language]


def shell_lines():
    "What a reader would type, without what installs or takes long."
    lines = [line for block in blocks('sh') for line in block.splitlines()]
    return [x for x in lines if x.strip() and not x.startswith(('make ', 'pip ', '#'))]


def without_numbers(text):
    "They may differ in the last digit on another machine."
    return re.sub(r'[+-]?\d+(\.\d+)?', '#', ' '.join(text.split()))


def test_python_snippets_run_in_order_and_print_what_is_shown(
    tmp_path, monkeypatch, capsys
):
    assert len(blocks('python')) >= 2
    monkeypatch.chdir(tmp_path)
    exec('\n'.join(blocks('python')), dict(__name__='__main__'))
    printed = capsys.readouterr().out
    assert without_numbers(printed) == without_numbers('\n'.join(blocks('')))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "A reader's folder: a model, reviews."
    path = tmp_path_factory.mktemp('reader')
    model, tokenizer = load_demo('sst2')
    model.save_pretrained(path / 'my-model')
    tokenizer.save_pretrained(path / 'my-model')
    pd.DataFrame(dict(text=OPINIONS)).to_csv(path / 'reviews.csv', index=False)
    return path


@pytest.fixture
def called(folder, monkeypatch, capsys):
    "What the command prints for a line, without a process of its own."
    monkeypatch.chdir(folder)
    monkeypatch.delenv('LRP_LOO_DATA', raising=False)
    monkeypatch.setenv('NO_COLOR', '1')

    def called(line):
        command, *words = shlex.split(line, comments=True)
        assert command == 'lrp_loo'
        code = main(words)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return called


def test_a_shell_finds_the_command_and_only_splits_the_lines(folder, called):
    lines = shell_lines()
    assert len(lines) >= 4
    how = dict(cwd=folder, env=ENV, stdin=subprocess.DEVNULL, text=True)
    done = subprocess.run(['bash', '-c', lines[0]], capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    assert without_numbers(done.stdout) == without_numbers(called(lines[0]))
    assert not [x for x in lines if set('|&;<>$`*?~') & set(x)]


@pytest.mark.parametrize('line', shell_lines())
def test_a_line_prints_what_it_was_typed_for(folder, called, line):
    out = called(line)
    assert out
    if ' audit' in line:
        assert re.search(ANSWER, out.splitlines()[-1]), out
    if '--html' in line:
        page = line.split('--html ')[1].split()[0]
        assert 'wonderful' in (folder / page).read_text(encoding='utf-8')


def test_nothing_is_named_that_lies_outside_the_repository():
    assert 'http' not in README
    targets = re.findall(r'\]\(([^)\s#]+)', README)
    assert len(targets) > 40
    assert not [name for name in targets if not (ROOT / name).exists()]
    targets = re.findall(r'^(\w[\w-]*):', (ROOT / 'Makefile').read_text(), re.M)
    named = re.findall(r'^make (\w+)', README, re.M)
    assert named and set(named) <= set(targets)


def test_links_are_absolute_in_a_release():
    release = script('wheel')
    text = '[a](b.md#c "d") ![e](f.png) [g](https://h) [i](#j)'
    assert release.with_address(text, 'https://host/us', '1.0') == (
        '[a](https://host/us/blob/v1.0/b.md#c "d") ![e](https://host/us/raw/v1.0/f.png)'
        ' [g](https://h) [i](#j)'
    )


def test_the_picture_is_of_what_the_notebook_shows():
    assert MADE.picture_of() == MADE.mark(MADE.explanation())
