"What many texts cost: the arithmetic, with a clock of the test."

from close import assert_close
import pytest

from lrp_loo import cost_of, load_texts
from lrp_loo.evaluate import cost as module


class Clock:
    "Core-seconds that move only when `explain` is called."

    now = 0.0

    def process_time(self):
        return self.now


def test_seconds_hours_and_money(demo, monkeypatch):
    "A text takes as many seconds as it has words."
    clock, sizes = Clock(), []

    def explain(model, tokenizer, texts, method, **options):
        clock.now += sum(len(t.split()) for t in texts)
        sizes.append(len(texts))
        return [type('A', (), dict(passes=3.0))] * len(texts)

    monkeypatch.setattr(module, 'time', clock)
    monkeypatch.setattr(module, 'explain', explain)
    monkeypatch.setattr(module, 'device_of', lambda m: type('D', (), dict(type='cpu')))
    texts = ['a ' * n for n in (3, 1, 4, 1, 5, 2, 6)]
    cost = cost_of(*demo, texts, 7000, batch_size=2, price=1.8)
    assert_close([cost.seconds, cost.money], [22_000, 11.0])
    assert (cost.passes, cost.processor) == (3.0, 'core')
    assert sum(sizes[1:]) == 7 and max(sizes) == 2
    # texts of a batch have similar lengths: (1, 1), (2, 3), (4, 5), (6,)
    means = [1, 1, 2.5, 2.5, 4.5, 4.5, 6]
    mean = sum(means) / 7
    se = (sum((x - mean) ** 2 for x in means) / 6 / 7) ** 0.5
    assert_close(cost.seconds_se, 7000 * se)
    assert repr(cost).startswith('7,000 texts: 6.1 h of a core (')


def test_options_reach_explain(demo):
    texts = load_texts('sst2', 'embedded', limit=4).texts
    long = [' '.join([t] * 300) for t in texts]
    how = dict(batch_size=2, truncation=True, max_length=8)
    assert cost_of(*demo, long, 16, 'attn_lrp', **how).seconds > 0


@pytest.mark.parametrize(
    'options, words',
    [
        (dict(n_texts=0), 'n_texts must be a whole number'),
        (dict(price=-1), 'price must be a finite number, at least 0'),
        (dict(price=float('nan')), 'price must be a finite number, at least 0'),
        (dict(batch_size=9), 'two batches or more, 18 texts, got 16'),
    ],
)
def test_arguments_are_checked(demo, options, words):
    with pytest.raises(ValueError, match=words):
        cost_of(*demo, ['a film'] * 16, **dict(n_texts=99) | options)
