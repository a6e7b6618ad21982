"An audit that takes long says so beforehand, and its bar moves within a text."

import io
import os
import subprocess
import sys

import pytest
import tqdm.auto
import tqdm.notebook

from lrp_loo import audit
from lrp_loo.cli import main
from lrp_loo.core.progress import progress_bar
from lrp_loo.trust.results import Results

SENTENCE = "The jokes are old, and the pace is slow."  # 13 tokens


def test_long_work_says_how_long_it_will_take(demo, monkeypatch, capsys):
    monkeypatch.setattr('lrp_loo.trust.audit.TOKEN_BUDGET', 1)
    monkeypatch.setattr('lrp_loo.trust.audit.LONG', 0.0)
    audit(*demo, [SENTENCE], method=['attn_lrp'])
    # 13 variants, and two curves of LOO and of AttnLRP with a step a token
    said = 'exact LOO and curves of 1 texts, 65 forward passes: about '
    assert said in capsys.readouterr().err


def test_short_work_says_nothing(demo, capsys):
    audit(*demo, [SENTENCE], method=['attn_lrp'])
    assert 'about' not in capsys.readouterr().err


def test_a_bar_is_not_shown_where_the_environment_says_so(demo):
    "tqdm reads its environment when it is imported."
    said = '''
import lrp_loo

demo = lrp_loo.load_demo('sst2')
texts = ['The jokes are old.'] * 2
lrp_loo.audit(*demo, texts, 'cp_lrp')
lrp_loo.frontier(*demo, texts, budgets=(3,))
lrp_loo.explain_pairs(*demo, texts, progress=True)
'''
    for env in ({}, dict(TQDM_DISABLE='1')):
        own = {k: v for k, v in os.environ.items() if k != 'TQDM_DISABLE'} | env
        run = [sys.executable, '-W', 'ignore', '-c', said]
        bars = subprocess.run(run, env=own, capture_output=True, text=True, check=True)
        assert ('audit' in bars.stderr) != bool(env), bars.stderr


def test_a_bar_of_notebooks_is_not_shown_either(monkeypatch):
    monkeypatch.setattr('lrp_loo.core.progress.tqdm', tqdm.notebook.tqdm)
    monkeypatch.setenv('TQDM_DISABLE', '1')
    assert list(progress_bar(range(2))) == [0, 1]


class Bar(tqdm.auto.tqdm):
    "It is shown nowhere, and remembers where it stood."

    def __init__(self, **options):
        super().__init__(**options | dict(file=io.StringIO()))
        self.seen = []

    def update(self, n=1):
        super().update(n)
        self.seen.append(self.n)


@pytest.fixture
def bars(monkeypatch):
    "The bars of audits, in order."
    bars = []

    def made(given, progress, **options):
        bars.append(Bar(**options))
        return bars[-1]

    monkeypatch.setattr('lrp_loo.trust.audit.progress_bar', made)
    return bars


def test_the_bar_moves_within_a_text(demo, bars):
    audit(*demo, [SENTENCE], method=['attn_lrp'])
    (bar,) = bars
    *within, kept = bar.seen
    assert len({n for n in within if 0 < n <= 1}) >= 3
    assert within == sorted(within)
    assert within[-1] <= 1
    assert kept == 1


def test_the_bar_is_set_back_until_the_row_is_kept(demo, bars, monkeypatch):
    def stop(self, row):
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, 'add', stop)
    with pytest.raises(KeyboardInterrupt):
        audit(*demo, [SENTENCE], method=['attn_lrp'])
    (bar,) = bars
    assert max(bar.seen) > 0.5
    assert bar.n == 0


def test_the_command_line_hands_progress_to_loo(monkeypatch, capsys):
    monkeypatch.setattr('lrp_loo.loo.duration.TOKEN_BUDGET', 8)
    monkeypatch.setattr('lrp_loo.loo.duration.LONG', 0.0)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    said = 'exact LOO of 1 text, 13 forward passes: about '
    assert said in capsys.readouterr().err
