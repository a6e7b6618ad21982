"Every snippet of README.md, pasted; the first shell line goes through a shell."

import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from lrp_loo.cli import main
from lrp_loo.models.demos import load_demo

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')
SPEC = spec_from_file_location('readme', ROOT / '.ci' / 'readme.py')
MADE = module_from_spec(SPEC)
SPEC.loader.exec_module(MADE)
BLOCKS = re.findall(r'^```(\w*)\n(.*?)^```', README, re.M | re.S)
ENV = dict(os.environ, HF_HUB_OFFLINE='1', NO_COLOR='1')
ENV['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{ENV["PATH"]}'
# they make the environment this runs in, or take long (notebooks run `reproduce`)
INSTALLING = ('make ', 'python3 -m venv', 'pip install', 'bash tests/run.sh')
INSTALLING += ('lrp_loo reproduce',)
REVIEWS = [
    'the jokes are old and the pace is slow',
    'a quiet, generous film',
    'not one scene feels borrowed',
    'two hours that no one gives back',
    'the songs are warm and the ending is cold',
    'a film that never once talks down to us',
]
ANSWER = r'trust \w+|do not tell apart|No method follows'  # of an audit


def of(kind):
    "The blocks of one language."
    return [text for k, text in BLOCKS if k == kind]


def shell_lines():
    "What a reader would type, without what installs."
    lines = [line for block in of('sh') for line in block.splitlines()]
    passed_over = (*INSTALLING, '#')
    return [x for x in lines if x.strip() and not x.startswith(passed_over)]


def without_numbers(text):
    "They may differ in the last digit on another machine."
    return re.sub(r'[+-]?\d+(\.\d+)?', '#', ' '.join(text.split()))


def test_python_snippets_run_in_order_and_print_what_is_shown(
    tmp_path, monkeypatch, capsys
):
    assert len(of('python')) >= 2
    monkeypatch.chdir(tmp_path)
    exec('\n'.join(of('python')), dict(__name__='__main__'))
    printed = capsys.readouterr().out
    shown = '\n'.join(of(''))
    assert without_numbers(printed) == without_numbers(shown)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "A reader's folder: a model, reviews."
    path = tmp_path_factory.mktemp('reader')
    model, tokenizer = load_demo('sst2')
    model.save_pretrained(path / 'my-model')
    tokenizer.save_pretrained(path / 'my-model')
    pd.DataFrame(dict(text=REVIEWS)).to_csv(path / 'reviews.csv', index=False)
    return path


def typed(line, folder):
    "What a shell prints for a line."
    how = dict(cwd=folder, env=ENV, stdin=subprocess.DEVNULL, text=True)
    done = subprocess.run(['bash', '-c', line], capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    "The rest of the lines need not import everything again."
    lines = shell_lines()
    assert len(lines) >= 4
    assert without_numbers(typed(lines[0], folder)) == without_numbers(called(lines[0]))
    assert not [x for x in lines if set('|&;<>$`*?~') & set(x)]


@pytest.mark.parametrize('line', shell_lines())
def test_a_line_prints_what_it_was_typed_for(folder, called, line, monkeypatch):
    out = called(line)
    assert out
    if ' audit' in line:
        assert re.search(ANSWER, out.splitlines()[-1]), out
    if '--html' in line:
        page = line.split('--html ')[1].split()[0]
        assert 'wonderful' in (folder / page).read_text(encoding='utf-8')
    # on a bare install: without an extra, and so without the demo model's encoder
    monkeypatch.setattr('lrp_loo.models.demos.find_spec', lambda module: None)
    assert called(line)


def test_the_front_page_is_short_and_begins_with_the_install():
    assert len(README.splitlines()) <= 130
    assert of('sh')[0] == 'pip install lrp_loo\n'
    lines = [x for x in of('python')[0].splitlines() if x.strip()]
    assert len(lines) <= 10


def test_until_an_index_has_it_the_repository_does():
    "By the address that the settings name, and the version of the changelog."
    changelog = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
    version = re.search(r'^## (\d+\.\d+\.\d+)', changelog, re.M)[1]
    url = MADE.settings()['git_url']
    wheel = f'{url}/releases/download/v{version}/lrp_loo-{version}-py3-none-any.whl'
    (block,) = (text for text in of('sh') if 'git+' in text)
    assert re.findall(r'https?://[^\s\']+', block) == [url]
    assert f'[a release\'s wheel]({wheel})' in README


def test_a_package_index_shows_every_link():
    "What README.md names has a whole address, and is in the repository."
    s = MADE.settings()
    targets = re.findall(r'\]\(([^)\s]+)', README)
    assert all(t.startswith('https://') for t in targets)
    home = re.compile(f'{s["git_url"]}/(?:blob|raw)/{s["branch"]}/([^#]+)')
    files = [found[1] for t in targets if (found := home.match(t))]
    assert len(files) > 40
    assert not [name for name in files if not (ROOT / name).exists()]
    images = re.findall(r'!\[[^\]]*\]\(([^)\s]+)', README)
    assert not [t for t in images if '/blob/' in t]


def test_a_link_of_the_notebook_is_whole():
    s = MADE.settings()
    base = f'{s["git_url"]}/blob/{s["branch"]}'

    def whole(text):
        return MADE.LINK.sub(MADE.whole, text)

    assert whole('[a](b.ipynb#c)') == f'[a]({base}/nbs/b.ipynb#c)'
    assert whole('[a](../d "e, f")') == f'[a]({base}/d "e, f")'
    kept = '[a](https://b.c) a[0](1 of 2) [b](#c)'
    assert whole(kept) == kept
    assert whole('![a](../d.png)') == f'![a]({base.replace("blob", "raw")}/d.png)'


def test_a_badge_says_what_is_so():
    "The workflow is there, the licence and the Pythons are those of the package."
    s = MADE.settings()
    shown = MADE.badges()
    assert shown in README
    (workflow,) = set(re.findall(r'actions/workflows/([\w.]+\.yml)', shown))
    assert (ROOT / '.github' / 'workflows' / workflow).is_file()
    licence = (ROOT / 'LICENSE').read_text(encoding='utf-8')
    assert 'Apache%202.0' in shown and 'Apache License' in licence[:400]
    assert f'({s["doc_host"]}{s["doc_baseurl"]}/)' in shown


def test_the_picture_is_of_what_the_notebook_shows():
    assert MADE.picture_of() == MADE.mark(MADE.explanation())


def test_what_readme_names_is_there():
    known = re.findall(r'^(\w+):', (ROOT / 'Makefile').read_text(), re.M)
    named = re.findall(r'^make (\w+)', README, re.M)
    assert named and set(named) <= set(known)


def test_what_a_cell_printed_is_one_block_and_a_table_stands_between():
    def printed(text):
        return nbformat.v4.new_output('stream', name='stdout', text=text)

    data = {'text/markdown': '| a table |'}
    table = nbformat.v4.new_output('display_data', data=data)
    outputs = [printed('a first line\n'), printed('a second\n'), table, printed('b\n')]
    cell = nbformat.v4.new_code_cell('#| echo: false\n1', outputs=outputs)
    shown = '```\na first line\na second\n```\n\n| a table |\n\n```\nb\n```'
    assert MADE.cell_text(cell) == shown
