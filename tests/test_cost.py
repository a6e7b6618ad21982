"What many texts cost: the arithmetic, with a clock of our own."

import pytest

from lrp_loo import cost_of, load_demo, load_texts
from lrp_loo.trust import cost as module


class Clock:
    "Core-seconds that stand still but for one more at each call of explain."

    now = 0.0

    def process_time(self):
        return self.now


@pytest.fixture(scope='module')
def demo():
    return load_demo('sst2')


def test_seconds_hours_and_money(demo, monkeypatch):
    "A text takes as many seconds as it has words."
    clock, sizes = Clock(), []

    def explain(model, tokenizer, texts, method, batch_size, **options):
        clock.now += sum(len(t.split()) for t in texts)
        sizes.append(len(texts))
        return [type('A', (), dict(passes=3.0))] * len(texts)

    monkeypatch.setattr(module, 'time', clock)
    monkeypatch.setattr(module, 'explain', explain)
    monkeypatch.setattr(module, 'device_of', lambda m: type('D', (), dict(type='cpu')))
    texts = ['a ' * n for n in (3, 1, 4, 1, 5, 2, 6)]
    cost = cost_of(*demo, texts, 7000, batch_size=2, price=1.8)
    assert cost.seconds == pytest.approx(22_000)
    assert cost.money == pytest.approx(11.0)
    assert (cost.passes, cost.processor) == (3.0, 'core')
    assert sum(sizes[1:]) == 7 and max(sizes) == 2
    # texts of a batch are of like length: (1, 1), (2, 3), (4, 5), (6,)
    means = [1, 1, 2.5, 2.5, 4.5, 4.5, 6]
    mean = sum(means) / 7
    se = (sum((x - mean) ** 2 for x in means) / 6 / 7) ** 0.5
    assert cost.seconds_se == pytest.approx(7000 * se)
    assert repr(cost).startswith('7,000 texts: 6.1 h of a core (')


def test_a_longer_run_costs_as_much_more(demo):
    texts = load_texts('sst2', 'embedded', limit=16).texts
    model, tokenizer = demo
    cost = cost_of(model, tokenizer, texts, 16, 'attn_lrp', batch_size=4)
    assert cost.seconds > 0 and cost.money is None
    long = [' '.join([t] * 300) for t in texts]
    how = dict(batch_size=8, truncation=True, max_length=8)
    assert cost_of(model, tokenizer, long, 16, 'attn_lrp', **how).seconds > 0


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(n_texts=0), 'n_texts must be a whole number'),
        (dict(price=-1), 'price must be a number, at least 0'),
        (dict(price=float('nan')), 'price must be a number, at least 0'),
        (dict(batch_size=9), 'two batches or more, 18 texts, got 16'),
    ],
)
def test_what_cannot_be_meant(demo, options, said):
    with pytest.raises(ValueError, match=said):
        cost_of(*demo, ['a film'] * 16, **dict(n_texts=99) | options)
