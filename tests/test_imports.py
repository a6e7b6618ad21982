"What an import, and the command's help, leave to the calls that need it."

import subprocess
import sys

import pytest

CASES = {
    'from lrp_loo import explain': (
        'accelerate',
        'datasets',
        'matplotlib',
        'pandas',
        'peft',
        'scipy',
        'seaborn',
        'sklearn',
        'transformers',
    ),
    "from lrp_loo.cli import main; main(['--help'])": ('torch', 'numpy'),
    "from lrp_loo.cli import main; main(['explain', '--help'])": ('torch', 'numpy'),
}


@pytest.mark.parametrize('code', CASES)
def test_heavy_libraries_are_imported_by_the_calls_that_need_them(code):
    end = f"import sys; print('\\n', *sys.modules.keys() & {set(CASES[code])})"
    run = [sys.executable, '-c', f'{code}\n{end}']
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == []
