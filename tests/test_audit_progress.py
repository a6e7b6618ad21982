"An audit that takes long says so beforehand; its bar counts forward passes."

import os

import pytest
import tqdm.auto
import tqdm.notebook

from lrp_loo import audit
from lrp_loo.cli import main
from lrp_loo.core.tools import progress_bar

SENTENCE = "The jokes are old, and the pace is slow."  # 13 tokens


@pytest.mark.parametrize('is_long', [True, False])
def test_long_work_says_how_long_it_will_take(demo, monkeypatch, capsys, is_long):
    if is_long:
        monkeypatch.setattr('lrp_loo.evaluate.audit.TOKEN_BUDGET', 1)
        monkeypatch.setattr('lrp_loo.evaluate.audit.ANNOUNCED_SECONDS', 0.0)
    audit(*demo, [SENTENCE], method=['attn_lrp'])
    # 13 variants, and two curves of LOO and of AttnLRP with a step a token
    line = 'exact LOO and curves of 1 texts, 65 forward passes: about '
    assert (line in capsys.readouterr().err) == is_long


@pytest.mark.parametrize('kind', [tqdm.auto.tqdm, tqdm.notebook.tqdm])
def test_no_bar_is_shown_if_the_environment_disables_it(monkeypatch, capsys, kind):
    monkeypatch.setattr('lrp_loo.core.tools.tqdm', kind)
    monkeypatch.setenv('TQDM_DISABLE', '1')
    assert list(progress_bar(range(2))) == [0, 1]
    assert capsys.readouterr().err == ''


def test_the_bar_counts_forward_passes(demo, monkeypatch):
    positions = []

    class Bar(tqdm.auto.tqdm):
        def update(self, n=1):
            super().update(n)
            positions.append(self.n)

    def made(iterable, progress, **options):
        return Bar(**options, file=open(os.devnull, 'w'), disable=False)

    monkeypatch.setattr('lrp_loo.evaluate.audit.progress_bar', made)
    audit(*demo, [SENTENCE], method=['attn_lrp'])
    assert len(positions) > 2 and positions == sorted(positions)
    assert 30 < positions[-1] <= 65  # equal subsets are computed once


def test_the_command_line_reports_progress_of_loo(monkeypatch, capsys):
    monkeypatch.setattr('lrp_loo.loo.TOKEN_BUDGET', 8)
    monkeypatch.setattr('lrp_loo.loo.ANNOUNCED_SECONDS', 0.0)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    line = 'exact LOO of 1 text, 13 forward passes: about '
    assert line in capsys.readouterr().err
