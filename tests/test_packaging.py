"""The wheel: what is in it, how large it is, and that it works from a folder that is no clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
USE = """
import lrp_loo, os
assert os.path.realpath(lrp_loo.__file__).startswith(os.path.realpath(os.environ['WHEEL'])), lrp_loo.__file__
for name in ('sst2', 'imdb', 'reviews', 'reviews-sst2', 'mnist'): assert lrp_loo.load_demo(name)[0].num_parameters() > 0
a = lrp_loo.explain(*lrp_loo.load_demo('sst2'), 'a gripping, funny film', method='removal')[0]
from lrp_loo.page import explain_page
assert 'gripping' in explain_page(*lrp_loo.load_demo('sst2'), 'a gripping, funny film', methods=['loo']) and len(lrp_loo.load_texts('imdb', 'embedded')) >= 20
from lrp_loo.faithfulness import paper_numbers
assert len(paper_numbers('2')) == 40
print(a)
"""


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "Built from a copy of what git tracks, so that nothing else can slip in."
    source = tmp_path_factory.mktemp('source')
    out = tmp_path_factory.mktemp('wheel')
    files = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split('\0')
    for f in files:
        if (
            f
            and (ROOT / f).is_file()
            and not f.startswith(('nbs/', 'results/', 'figures/'))
        ):
            (source / f).parent.mkdir(parents=True, exist_ok=True)
            (source / f).write_bytes((ROOT / f).read_bytes())
    done = subprocess.run(
        [
            sys.executable,
            '-c',
            (
                "import setuptools.build_meta as b;"
                f" print(b.build_wheel({str(out)!r}))"
            ),
        ],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob('*.whl'))


def test_what_is_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        'lrp_loo/assets/page.html',
        'lrp_loo/assets/paper_tables.csv',
        'lrp_loo/assets/reviews_short.jsonl',
        'lrp_loo/assets/minilm-sst2/adapter_model.safetensors',
        'lrp_loo/cli.py',
        'lrp_loo/view.py',
    } <= set(names)
    tracked = {
        str(p.relative_to(ROOT))
        for p in (ROOT / 'lrp_loo').rglob('*')
        if p.is_file() and '__pycache__' not in p.parts
    }
    assert {n for n in names if '.dist-info/' not in n} == tracked, (
        set(names) ^ tracked
    )
    assert (
        not [n for n in names if n.endswith(('.bin', '.pkl', '.pt', '.pickle'))]
        and wheel.stat().st_size < 20 * 2**20
    ), wheel.stat().st_size
    meta = (
        zipfile.ZipFile(wheel)
        .read(next(n for n in names if n.endswith('METADATA')))
        .decode()
    )
    assert (
        'Requires-Dist: torch' in meta
        and 'Provides-Extra: demo' in meta
        and 'Requires-Python: >=3.11' in meta
    )
    assert (
        'lrp_loo = lrp_loo.cli:main'
        in zipfile.ZipFile(wheel)
        .read(next(n for n in names if n.endswith('entry_points.txt')))
        .decode()
    )


def test_it_works_where_there_is_no_clone(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / 'site')
    env = {
        **os.environ,
        'PYTHONPATH': str(tmp_path / 'site'),
        'WHEEL': str(tmp_path / 'site'),
        'HF_HUB_OFFLINE': '1',
    }
    env.pop('LRP_LOO_DATA', None)
    done = subprocess.run(
        [sys.executable, '-P', '-c', USE],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith(
        'Attribution(removal'
    ), done.stderr
