"What is said of several methods: enough texts, the same texts, intervals that hold."

import numpy as np
import pytest
import torch

from lrp_loo import audit
from lrp_loo.stats import agreement, paired_difference
from lrp_loo.trust.verdict import verdict

NAN = float('nan')
FIVE = [0.8, 0.82, 0.79, 0.81, 0.8]


def rows(**r):
    "Rows as `faithfulness_row` makes them, of each method's r per text."
    n = len(next(iter(r.values())))
    methods = dict(loo=[1.0] * n, **r)
    return [
        dict(methods={m: dict(r=values[i]) for m, values in methods.items()})
        for i in range(n)
    ]


# --- the interval


def normal(g, size):
    return g.normal(size=size)


def near_one(g, size):
    return np.tanh(g.normal(1.5, 0.6, size))


def difference(g, size):
    return near_one(g, size) - np.tanh(g.normal(1.3, 0.6, size))


N_TEXTS = (3, 5, 10, 20, 50)
# what a text's number is drawn from: name → (draw, least coverage at these n of
# a nominal 0.95)
SETS = {
    'normal': (normal, (0.93,) * 5),
    'difference of two r': (difference, (0.93,) * 5),
    'r near 1, skewed': (near_one, (0.87, 0.88, 0.91, 0.92, 0.94)),
}


@pytest.mark.parametrize('name', SETS)
def test_the_interval_covers_the_mean(name):
    """1000 draws: the share that covers has a standard error below 0.01, and
    is 0.02 above what is asked. The percentile bootstrap covers 0.74, 0.83,
    0.91 of the normal ones at n = 3, 5, 10.
    """
    draw, least = SETS[name]
    mean = draw(np.random.default_rng(1), 10**6).mean()
    for n, share in zip(N_TEXTS, least):
        texts = draw(np.random.default_rng(n), (1000, n))
        found = [paired_difference(d, np.zeros(n)) for d in texts]
        covers = [d['low'] <= mean <= d['high'] for d in found]
        assert np.mean(covers) > share, n


def test_one_text_has_no_interval_and_none_no_mean():
    d = paired_difference(np.array([0.8, NAN]), np.array([0.1, 0.2]))
    assert d['n'] == 1
    assert d['mean'] == pytest.approx(0.7)
    assert np.isnan([d['low'], d['high']]).all()
    d = paired_difference(np.array([NAN]), np.array([0.1]))
    assert d['n'] == 0
    assert np.isnan([d['mean'], d['low'], d['high']]).all()


def test_an_interval_ends_where_the_mean_must():
    x = np.array([0.99, 0.8, 0.95])
    d = paired_difference(x, np.zeros(3), limits=(-1, 1))
    assert d['high'] == 1
    assert -1 <= d['low'] < d['mean']


# --- the verdict


def test_four_texts_are_too_few_and_five_may_be_enough():
    for n in (1, 4):
        v = verdict(rows(a=FIVE[:n]))
        assert v['method'] is None
        assert 'Too few texts to tell' in v['sentence']
        assert 'trust' not in v['sentence'] and '[' not in v['sentence']
    assert verdict(rows(a=FIVE))['method'] == 'a'


def test_methods_are_ranked_on_the_texts_that_all_of_them_have():
    "Over all texts a's mean is .5, b's over its own .8."
    easy = [0.9] * 6
    hard = [0.1] * 6
    v = verdict(rows(a=easy + hard, b=[0.8] * 6 + [NAN] * 6))
    assert v['method'] == 'a'
    assert (v['n'], v['n_left_out']) == (6, 6)
    assert '6 left out' in v['sentence']


def test_a_method_without_any_r_is_named_and_does_not_empty_the_rest():
    v = verdict(rows(a=FIVE, b=[NAN] * 5))
    assert v['method'] == 'a'
    assert v['left_out'] == ['b']
    assert 'b left out' in v['sentence']


@pytest.mark.parametrize(
    'r', [dict(a=[NAN] * 6), dict(a=[0.5] * 3 + [NAN] * 3, b=[NAN] * 3 + [0.5] * 3)]
)
def test_no_text_that_all_methods_have(r):
    v = verdict(rows(**r))
    assert v['method'] is None
    said = 'Too few texts to tell on this model (0)'
    assert v['sentence'].startswith(said)


# --- texts with two content tokens


def test_two_content_tokens_have_no_r_and_three_do():
    special = torch.tensor([True, False, False, True])
    a = torch.tensor([9.0, 1.0, 2.0, 5.0])
    b = torch.tensor([0.0, 3.0, 4.0, 1.0])
    assert np.isnan(agreement(a, b, special))
    assert not np.isnan(agreement(a, b, special, specials=True))
    three = torch.tensor([True, False, False, False, True])
    assert not np.isnan(agreement(torch.randn(5), torch.randn(5), three))


def test_short_texts_are_counted_in_an_audit(demo):
    texts = ['fine film', 'a fine film', 'good']
    t = audit(*demo, texts, ['attn_lrp'], progress=False)
    assert t.n['attn_lrp'] == 3
    assert t.n_undefined['attn_lrp'] == 2
