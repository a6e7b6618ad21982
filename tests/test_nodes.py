"A sweep over two nodes of Ray, one of them killed in the middle."

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from lrp_loo import sweep
from lrp_loo.evaluate import sweep as sweep_module

HERE = Path(__file__).parent.parent
TOO_SLOW = 'The current node timed out during startup'


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec('ray') is None or sys.platform == 'win32', reason='ray is not installed'
)
def test_nothing_is_lost_and_nothing_twice(tmp_path):
    out = tmp_path / 'ray.json'
    script = HERE / 'research' / 'benchmarks' / 'faults.py'
    words = '--texts 16 --victims node --write --workers'.split()
    done = subprocess.run(
        [sys.executable, script, 'ray', *words, '', '--out', out],
        capture_output=True,
        text=True,
        env=os.environ | dict(PYTHONPATH=str(HERE)),
    )
    if TOO_SLOW in done.stderr:
        pytest.skip("Ray's node did not start in the 15 s that Ray waits")
    assert done.returncode == 0, done.stderr[-2000:]
    (case,) = json.loads(out.read_text())['cases']
    assert case['begun_by_victim'] >= 2 and case['begun'] < 8  # batches of two texts
    assert case['rows_read'] == case['rows_expected'] == 16
    assert case['duplicates'] == case['unlike_one_process'] == 0


@pytest.mark.skipif(find_spec('ray') is None, reason='ray is not installed')
def test_workers_with_another_tokenizer_are_refused(tmp_path, monkeypatch):
    pool = {'tokenizer': 'of other words'}, None
    monkeypatch.setattr(sweep_module, 'ray_cluster', nullcontext)
    monkeypatch.setattr(sweep_module, '_ray_pool', lambda *args: pool)
    with pytest.raises(RuntimeError, match='the workers have another tokenizer'):
        sweep('demo', None, ['fine'], tmp_path, engine='ray', progress=False)
