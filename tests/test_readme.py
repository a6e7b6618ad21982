"""Every snippet of README.md, pasted: python blocks in one session, shell lines in a folder of the reader's."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
from lrp_loo.models import load_demo

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(
    r'^```(\w*)\n(.*?)^```',
    (ROOT / 'README.md').read_text(encoding='utf-8'),
    re.M | re.S,
)
ENV = {
    **os.environ,
    'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
    'HF_HUB_OFFLINE': '1',
    'NO_COLOR': '1',
}
ENV.pop('LRP_LOO_DATA', None)
INSTALLING = (
    'make ',
    'python3 -m venv',
    'pip install',
    'lrp_loo reproduce',
    'bash tests/run.sh',
    # they make the environment this runs in, or take long; the notebooks run
    # `reproduce`
)


def of(kind):
    return [text for k, text in BLOCKS if k == kind]


def numbers(text):
    return re.sub(r'[+-]?\d+(\.\d+)?', '#', text)


def test_python_snippets_run_in_order_and_print_what_is_shown(tmp_path):
    assert len(of('python')) >= 2
    done = subprocess.run(
        [sys.executable, '-c', '\n'.join(of('python'))],
        cwd=tmp_path,
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # numbers may differ in the last digit on another machine
    said = done.stdout.split()
    shown = ' '.join(of('')).split()
    assert numbers(' '.join(said)) == numbers(' '.join(shown))


def test_ten_lines():
    assert len([l for l in of('python')[0].splitlines() if l.strip()]) <= 12


def test_shell_lines_run(tmp_path):
    model, tokenizer = load_demo('sst2')
    model.save_pretrained(tmp_path / 'my-model')
    tokenizer.save_pretrained(tmp_path / 'my-model')
    pd.DataFrame(
        dict(
            text=[
                'the jokes are old and the pace is slow',
                'a quiet, generous film',
                'not one scene feels borrowed',
                'two hours that no one gives back',
                'the songs are warm and the ending is cold',
                'a film that never once talks down to us',
            ]
        )
    ).to_csv(tmp_path / 'reviews.csv', index=False)
    lines = [
        l
        for block in of('sh')
        for l in block.splitlines()
        if l.strip() and not l.startswith(INSTALLING)
    ]
    assert len(lines) >= 4
    for line in lines:
        done = subprocess.run(
            ['bash', '-c', line],
            cwd=tmp_path,
            env=ENV,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and done.stdout, (line, done.stderr)
        if 'audit' in line:
            assert re.search(
                r'trust \w+|do not tell apart|No method follows',
                done.stdout.splitlines()[-1],
            ), done.stdout
    assert 'gripping' in (tmp_path / 'out.html').read_text(encoding='utf-8')


def test_what_readme_names_is_there():
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    for target in re.findall(r'\]\(([^)#\s]+)', text):
        if not target.startswith('http'):
            assert (ROOT / target).exists(), target
    targets = re.findall(r'^(\w+):', (ROOT / 'Makefile').read_text(), re.M)
    for t in re.findall(r'^make (\w+)', text, re.M):
        assert t in targets, t


def test_what_a_cell_printed_is_one_block_however_many_pieces_it_came_in():
    spec = importlib.util.spec_from_file_location(
        'readme', ROOT / '.ci' / 'readme.py'
    )
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    pieces = [
        nbformat.v4.new_output('stream', name='stdout', text=t)
        for t in ('a first line\n', 'a second\n')
    ]
    shown = nbformat.v4.new_output(
        'display_data', data={'text/markdown': '| a table |'}
    )
    cell = nbformat.v4.new_code_cell(
        '#| echo: false\nprint()', outputs=[*pieces, shown, pieces[0]]
    )
    assert (
        readme.cell_text(cell)
        == '```\na first line\na second\n```\n\n| a table |\n\n```\na first'
        ' line\n```'
    )
