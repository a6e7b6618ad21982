"""Checks look at what git has, and not at what a user has made beside it."""

import subprocess

import pytest
import tracked


@pytest.fixture
def tree(tmp_path, monkeypatch):
    "A folder of a reader's; `tracked` looks there."
    root = tmp_path / 'outer' / 'tree'
    for name in ('nbs/05_loo.ipynb', 'settings.ini', 'figures/a/1.png'):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    monkeypatch.setattr(tracked, 'ROOT', root)
    tracked.known_to_git.cache_clear()
    yield root
    tracked.known_to_git.cache_clear()


def git(folder, *words):
    subprocess.run(['git', *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tree):
    "The same with git."
    git(tree, 'init')
    (tree / '.gitignore').write_text('figures/embedded/\n')
    git(tree, 'add', '.')
    return tree


def names(folder, *patterns):
    found = tracked.tracked(*patterns)
    return [path.relative_to(folder).as_posix() for path in found]


def test_git_tells_what_is_the_package_s(clone):
    for name in ('nbs/Untitled.ipynb', 'figures/embedded/1.png', 'nbs/06_curves.ipynb'):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).touch()
    git(clone, 'add', 'nbs/06_curves.ipynb')
    (clone / 'nbs/05_loo.ipynb').unlink()
    assert names(clone, 'nbs/*.ipynb') == ['nbs/06_curves.ipynb']
    assert names(clone, 'figures/**/*.png') == ['figures/a/1.png']
    assert names(clone, '*.png', 'figures/*.png') == []  # a star stays in its folder


@pytest.mark.parametrize('without', ['a clone', 'a clone of its own', 'git'])
def test_an_unpacked_archive_is_taken_as_it_is(tree, monkeypatch, without):
    if without == 'a clone of its own':
        git(tree.parent, 'init')
    if without == 'git':
        monkeypatch.setenv('PATH', str(tree))
    assert not tracked.known_to_git()
    assert names(tree, '**/*.png', 'nbs/*') == ['figures/a/1.png', 'nbs/05_loo.ipynb']
