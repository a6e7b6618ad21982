"An audit that takes long says so beforehand, and its bar moves while one text is computed."

from lrp_loo import audit, faithfulness, perturbation
from lrp_loo.cli import main
from lrp_loo.models import encode

SENTENCE = "The jokes are old, and the pace is slow."


class Bar:
    "Counts like tqdm, and remembers where it stood."

    def __init__(self):
        self.n, self.seen = 0, []

    def update(self, n=1):
        self.n += n
        self.seen.append(self.n)


def test_long_work_says_how_long_it_will_take(demo, monkeypatch, capsys):
    monkeypatch.setattr(faithfulness, 'TOKEN_BUDGET', 1)
    monkeypatch.setattr(faithfulness, 'LONG', 0.0)
    audit(*demo, [SENTENCE], methods=['attn_lrp'])
    said = capsys.readouterr().err
    # 13 tokens: 13 variants, and two curves of LOO and of AttnLRP with a step a
    # token
    assert 'exact LOO and curves of 1 texts, 65 forward passes: about ' in said


def test_short_work_says_nothing(demo, capsys):
    audit(*demo, [SENTENCE], methods=['attn_lrp'])
    assert 'about' not in capsys.readouterr().err


def test_the_bar_moves_within_a_text(demo):
    model, tokenizer = demo
    enc = encode(model, tokenizer, SENTENCE)
    bar = Bar()
    with faithfulness._within(bar, model, [enc], 2, 1) as moved:
        methods = {'attn_lrp': ('attn_lrp', {})}
        rows = faithfulness.faithfulness_rows(
            model, tokenizer, [enc], methods, progress=moved
        )
    assert len(rows) == 1
    assert len({n for n in bar.seen if 0 < n <= 1}) >= 3
    assert bar.seen == sorted(bar.seen) and bar.seen[-1] <= 1
    assert bar.n == 0  # the row is counted once it is kept


def test_the_command_line_hands_progress_to_loo(monkeypatch, capsys):
    monkeypatch.setattr(perturbation, 'TOKEN_BUDGET', 8)
    monkeypatch.setattr(perturbation, 'LONG', 0.0)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    assert (
        'exact LOO of 1 text, 13 forward passes: about '
        in capsys.readouterr().err
    )
