"An audit that takes long says so beforehand, and its bar moves within a text."

import pytest

from lrp_loo import audit, faithfulness, loo
from lrp_loo.cli import main
from lrp_loo.models import encode

SENTENCE = "The jokes are old, and the pace is slow."  # 13 tokens


class Bar:
    "Counts like tqdm, and remembers where it stood."

    def __init__(self):
        self.n = 0
        self.seen = []

    def update(self, n=1):
        self.n += n
        self.seen.append(self.n)


def test_long_work_says_how_long_it_will_take(demo, monkeypatch, capsys):
    monkeypatch.setattr(faithfulness, 'TOKEN_BUDGET', 1)
    monkeypatch.setattr(faithfulness, 'LONG', 0.0)
    audit(*demo, [SENTENCE], methods=['attn_lrp'])
    # 13 variants, and two curves of LOO and of AttnLRP with a step a token
    said = 'exact LOO and curves of 1 texts, 65 forward passes: about '
    assert said in capsys.readouterr().err


def test_short_work_says_nothing(demo, capsys):
    audit(*demo, [SENTENCE], methods=['attn_lrp'])
    assert 'about' not in capsys.readouterr().err


@pytest.fixture
def moved(demo):
    "A bar after one text was computed within it, before its row is kept."
    model, tokenizer = demo
    enc = encode(model, tokenizer, SENTENCE)
    bar = Bar()
    with faithfulness._within(bar, model, [enc], 2, 1) as progress:
        methods = {'attn_lrp': ('attn_lrp', {})}
        rows = faithfulness.faithfulness_rows(
            model, tokenizer, [enc], methods, progress=progress
        )
    assert len(rows) == 1
    return bar


def test_the_bar_moves_within_a_text(moved):
    assert len({n for n in moved.seen if 0 < n <= 1}) >= 3
    assert moved.seen == sorted(moved.seen)
    assert moved.seen[-1] <= 1


def test_the_bar_is_set_back_until_the_row_is_kept(moved):
    assert moved.n == 0


def test_the_command_line_hands_progress_to_loo(monkeypatch, capsys):
    monkeypatch.setattr(loo, 'TOKEN_BUDGET', 8)
    monkeypatch.setattr(loo, 'LONG', 0.0)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    said = 'exact LOO of 1 text, 13 forward passes: about '
    assert said in capsys.readouterr().err
