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


def test_an_interval_ends_where_the_mean_must():
    x = np.array([0.99, 0.8, 0.95])
    d = paired_difference(x, np.zeros(3), limits=(-1, 1))
    assert d['high'] == 1
    assert -1 <= d['low'] < d['mean']
    d = paired_difference(np.array([0.8, NAN]), np.array([NAN, 0.1]))
    assert d['n'] == 0
    assert np.isnan([d['mean'], d['low'], d['high']]).all()


def test_four_texts_are_too_few_and_five_may_be_enough():
    for n in (1, 4):
        v = verdict(rows(a=FIVE[:n]))
        assert v['method'] is None
        assert 'Too few texts to tell' in v['sentence']
        assert 'trust' not in v['sentence'] and '[' not in v['sentence']
    assert verdict(rows(a=FIVE))['method'] == 'a'


@pytest.mark.parametrize(
    'r', [dict(a=[NAN] * 6), dict(a=[0.5] * 3 + [NAN] * 3, b=[NAN] * 3 + [0.5] * 3)]
)
def test_no_text_that_all_methods_have(r):
    v = verdict(rows(**r))
    assert v['method'] is None
    said = 'Too few texts to tell on this model (0)'
    assert v['sentence'].startswith(said)


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
