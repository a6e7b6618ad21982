"""The wheel: what is in it, how large it is, and that it works from a folder
that is no clone.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import needs_git
from tracked import tracked

# without git whatever a user has made would slip in
pytestmark = needs_git
ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = re.compile(r"load_demo\('(mpnet|smollm2)|\.\./results")  # not in the wheel
PACKED = ('pyproject.toml', 'README.md', 'LICENSE', 'lrp_loo/**/*')
BUILD = 'import setuptools.build_meta as b; print(b.build_wheel({!r}))'
USE = """
import os

import lrp_loo
from lrp_loo.reports.page import explain_page

here = os.path.realpath(lrp_loo.__file__)
assert here.startswith(os.path.realpath(os.environ['PYTHONPATH'])), here
for name in ('sst2', 'imdb', 'reviews', 'reviews-sst2', 'mnist'):
    assert lrp_loo.load_demo(name)[0].num_parameters() > 0
demo = lrp_loo.load_demo('sst2')
text = 'a gripping, funny film'
assert 'gripping' in explain_page(*demo, text, method=['loo'])
assert len(lrp_loo.load_texts('imdb', 'embedded')) >= 20
print(lrp_loo.explain(*demo, text, method='removal')[0])
"""


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "Built from a copy of what git tracks, so that nothing else can slip in."
    source = tmp_path_factory.mktemp('source')
    out = tmp_path_factory.mktemp('wheel')
    for path in tracked(*PACKED):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [sys.executable, '-c', BUILD.format(str(out))]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob('*.whl'))


def test_the_wheel_holds_the_package_and_no_more(wheel):
    assert wheel.stat().st_size < 10 * 2**20
    packed = zipfile.ZipFile(wheel)
    names = set(packed.namelist())
    package = {p.relative_to(ROOT).as_posix() for p in tracked('lrp_loo/**/*')}
    assert {
        'lrp_loo/assets/page.html',
        'lrp_loo/assets/paper_tables.csv',
        'lrp_loo/assets/reviews_short.jsonl',
        'lrp_loo/assets/minilm-sst2/adapter_model.safetensors',
        'lrp_loo/cli/commands.py',
    } <= package
    assert {n for n in names if '.dist-info/' not in n} == package
    assert not [n for n in names if n.endswith(('.bin', '.pkl', '.pt', '.pickle'))]
    (metadata,) = (n for n in names if n.endswith('METADATA'))
    about = packed.read(metadata).decode()
    assert 'Requires-Dist: torch' in about and 'Provides-Extra: demo' in about
    assert 'Project-URL' not in about  # there is none


def test_it_works_where_there_is_no_clone(wheel, tmp_path):
    site = tmp_path / 'site'
    zipfile.ZipFile(wheel).extractall(site)
    env = os.environ | dict(PYTHONPATH=str(site), HF_HUB_OFFLINE='1')
    env.pop('LRP_LOO_DATA', None)
    command = [sys.executable, '-P', '-c', USE]
    how = dict(cwd=tmp_path, env=env, capture_output=True, text=True)
    done = subprocess.run(command, **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('Attribution(removal')


@pytest.mark.slow
def test_pages_of_the_guide_run_from_the_wheel_alone(wheel, tmp_path):
    "Those whose models ship and that show no recorded rows: nothing else is there."
    site, home = tmp_path / 'site', tmp_path / 'home'
    zipfile.ZipFile(wheel).extractall(site)
    pages = [
        p for p in tracked('nbs/guide/*.ipynb') if not ELSEWHERE.search(p.read_text())
    ]
    assert len(pages) > 10
    for path in [ROOT / 'settings.ini', *pages]:
        copy = home / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    env = os.environ | dict(PYTHONPATH=str(site), HF_HUB_OFFLINE='1', MPLBACKEND='agg')
    env.pop('LRP_LOO_DATA', None)
    command = ['nbdev_test', '--path', 'nbs', '--n_workers', '1', '--do_print']
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count('Starting') == len(pages)
