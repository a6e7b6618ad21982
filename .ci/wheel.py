"""The sdist and the wheel, as they are released, in dist/.

python .ci/wheel.py [--tag v0.2.0] [--address URL] [--no-try]

It needs nothing but Python: in environments of its own it builds both, asks twine what
a package index would say, holds their contents to what git has, and tries the wheel
where nothing else is installed: the front page's example, without a network.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / 'dist'
sys.path.insert(0, str(ROOT / 'tests'))

from tracked import tracked  # noqa: E402

MOST_MIB = 10
# what lies on a path of the caller's is not installed
ENV = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
# in an sdist beside the package
BESIDE = ('LICENSE', 'README.md', 'pyproject.toml')
OF_BUILD = r'PKG-INFO|setup\.cfg|lrp_loo\.egg-info/.*'


def version():
    config = ConfigParser(delimiters=['='], interpolation=None)
    config.read(ROOT / 'settings.ini', encoding='utf-8')
    return config['DEFAULT']['version']


def environment(folder, *what):
    "Its interpreter; pip stays within .ci/constraints.txt."
    venv.create(folder, with_pip=True)
    python = str(Path(folder) / 'bin' / 'python')
    pip = [
        python,
        '-m',
        'pip',
        'install',
        '-q',
        '-c',
        str(ROOT / '.ci' / 'constraints.txt'),
    ]
    subprocess.run([*pip, *what], env=ENV, check=True)
    return python


LINK = re.compile(r'(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?:|#)([^()\s]+)')


def with_address(text, address, version):
    "Make the relative links of README.md absolute: files of a tag of a repository."

    def absolute(match):
        sign, words, path = match.groups()
        home = 'raw' if sign else 'blob'
        return f'{sign}{words}({address}/{home}/v{version}/{path}'

    return LINK.sub(absolute, text)


def build(address):
    "Build both files from a copy of what git has: nothing else can slip in."
    rmtree(DIST, ignore_errors=True)
    with TemporaryDirectory() as folder:
        source = Path(folder) / 'source'
        for path in tracked('*', 'lrp_loo/**/*'):
            copy = source / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        readme = source / 'README.md'
        if address:
            text = readme.read_text(encoding='utf-8')
            readme.write_text(with_address(text, address, version()), encoding='utf-8')
        python = environment(Path(folder) / 'tools', 'build', 'twine')
        done = [python, '-m', 'build', '--outdir', str(DIST), str(source)]
        subprocess.run(done, check=True, stdout=subprocess.DEVNULL)
        files = sorted(map(str, DIST.iterdir()))
        subprocess.run([python, '-m', 'twine', 'check', '--strict', *files], check=True)
    (sdist,) = DIST.glob('*.tar.gz')
    (wheel,) = DIST.glob('*.whl')
    return sdist, wheel


def difference(found, wanted):
    "What is too much (+) and what is missing (-)."
    more = [f'+ {name}' for name in sorted(found - wanted)]
    return more + [f'- {name}' for name in sorted(wanted - found)]


def wrong(sdist, wheel, tag):
    "What is not as it should be, a line each."
    package = {p.relative_to(ROOT).as_posix() for p in tracked('lrp_loo/**/*')}
    packed = zipfile.ZipFile(wheel).namelist()
    found = difference({n for n in packed if '.dist-info/' not in n}, package)
    with tarfile.open(sdist) as f:
        names = {m.name.partition('/')[2] for m in f.getmembers() if m.isfile()}
    own = {n for n in names if not re.fullmatch(OF_BUILD, n)}
    found += [f'{line} (sdist)' for line in difference(own, package | set(BESIDE))]
    if wheel.stat().st_size > MOST_MIB * 2**20:
        found.append(f'{wheel.name} is larger than {MOST_MIB} MiB')
    if tag and tag != f'v{version()}':
        found.append(f'the tag is {tag}, the version of settings.ini {version()}')
    return found


def contents(wheel):
    "A line for each folder: files and KiB."
    sizes = {}
    for f in zipfile.ZipFile(wheel).infolist():
        folder = '/'.join(f.filename.split('/')[:-1][:3])
        sizes.setdefault(folder, []).append(f.compress_size)
    for folder, of in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        print(f'{sum(of) / 1024:9,.0f} KiB {len(of):4} files  {folder}')


def example():
    "The first code of the front page."
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    return re.search(r'^```python\n(.*?)^```', text, re.M | re.S)[1]


def tried(wheel):
    "The front page's example where nothing but the wheel was installed."
    with TemporaryDirectory() as folder:
        start = time.monotonic()
        python = environment(folder, str(wheel))
        installed = time.monotonic()
        how = dict(cwd=folder, env=ENV | dict(HF_HUB_OFFLINE='1'), check=True)
        subprocess.run([python, '-I', '-c', example()], **how)
        seconds = installed - start, time.monotonic() - installed
    print('installed in {:.0f} s, the example in {:.0f} s'.format(*seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--tag', help='of a release: v and the version')
    parser.add_argument(
        '--address', help='of the repository, for the links of README.md'
    )
    parser.add_argument('--no-try', action='store_true', help='install nothing')
    given = parser.parse_args()
    sdist, wheel = build(given.address)
    contents(wheel)
    for path in (sdist, wheel):
        print(f'{path.stat().st_size / 2**20:.2f} MiB {path.name}')
    if lines := wrong(sdist, wheel, given.tag):
        sys.exit('\n'.join(lines))
    if not given.no_try:
        tried(wheel)


if __name__ == '__main__':
    main()
