"Bars of long work, and the time that is announced before it."

import os

import pytest
import tqdm.auto
import tqdm.notebook

from lrp_loo import audit
from lrp_loo.cli import main
from lrp_loo.core.tools import progress_bar

SENTENCE = "The jokes are old, and the pace is slow."  # 13 tokens


@pytest.mark.parametrize('kind', [tqdm.auto.tqdm, tqdm.notebook.tqdm])
def test_no_bar_is_shown_if_the_environment_disables_it(monkeypatch, capsys, kind):
    monkeypatch.setattr('lrp_loo.core.tools.tqdm', kind)
    monkeypatch.setenv('TQDM_DISABLE', '1')
    assert list(progress_bar(range(2))) == [0, 1]
    assert capsys.readouterr().err == ''


def test_the_bar_counts_texts(demo, monkeypatch):
    bars = []

    def made(iterable, progress, **options):
        bars.append(
            tqdm.auto.tqdm(**options, disable=False, file=open(os.devnull, 'w'))
        )
        return bars[-1]

    monkeypatch.setattr('lrp_loo.evaluate.audit.progress_bar', made)
    audit(*demo, [SENTENCE, 'a fine film', SENTENCE], method=['attn_lrp'])
    assert [(bar.n, bar.total) for bar in bars] == [(2, 2)]  # one is a copy


def test_the_command_line_shows_a_bar_of_loo(monkeypatch):
    bars = []

    def made(**options):
        bar = progress_bar(**options | dict(delay=0))
        bars.append((bar, bar.disable))  # a bar that is closed is disabled
        return bar

    monkeypatch.setattr('lrp_loo.loo.progress_bar', made)
    monkeypatch.delenv('TQDM_DISABLE', raising=False)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    assert [(bar.n, bar.total, hidden) for bar, hidden in bars] == [(13, 13, False)]
