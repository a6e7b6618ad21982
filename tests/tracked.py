"""The files of the repository as git has them. What a user has made beside
them (results, figures, notebooks, environments) is not the package's.

python tests/tracked.py PATTERN…   their paths, a line each
"""

import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _listed(*patterns):
    "Paths that git has, added ones too; none where it does not know this tree."
    # whoever runs these checks trusts this folder, whosever it is
    words = ['git', '-c', f'safe.directory={ROOT}', 'ls-files', '-z', '--']
    words += [f':(glob){pattern}' for pattern in patterns]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:  # no git here
        return []
    return done.stdout.split('\0')[:-1]


@cache
def known_to_git():
    "Whether this is a clone, and no unpacked archive."
    return bool(_listed('settings.ini'))


def tracked(*patterns):
    """The files that match, in order, such as 'figures/**/*.png'. Where git
    does not know this tree, nothing tells a user's files apart: all that match.
    """
    if known_to_git():
        found = {ROOT / name for name in _listed(*patterns)}
    else:
        found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path for path in found if path.is_file())


if __name__ == '__main__':
    for found in tracked(*sys.argv[1:]):
        print(found.relative_to(ROOT).as_posix())
