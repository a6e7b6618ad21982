"What is said of several methods: from enough texts, on the same texts, with intervals that hold."

import numpy as np
import pytest
import torch

from lrp_loo import audit
from lrp_loo.dataset import explain_dataset
from lrp_loo.stats import agreement
from lrp_loo.stats import paired_difference
from lrp_loo.faithfulness import verdict

NAN = float('nan')


def rows(**r):
    "Rows as `faithfulness_row` makes them, of each method's r per text."
    n = len(next(iter(r.values())))
    return [
        dict(
            methods={
                m: dict(r=v[i]) for m, v in dict(loo=[1.0] * n, **r).items()
            }
        )
        for i in range(n)
    ]


# --- the interval


# what a text's number is drawn from: name → (draw, least coverage at n = 3, 5,
# 10, 20, 50 of a nominal 0.95)
SETS = {
    'normal': (lambda g, size: g.normal(size=size), (0.93,) * 5),
    'difference of two r': (
        lambda g, size: (
            np.tanh(g.normal(1.5, 0.6, size))
            - np.tanh(g.normal(1.3, 0.6, size))
        ),
        (0.93,) * 5,
    ),
    'r near 1, skewed': (
        lambda g, size: np.tanh(g.normal(1.5, 0.6, size)),
        (0.87, 0.88, 0.91, 0.92, 0.94),
    ),
}


@pytest.mark.parametrize('name', SETS)
def test_the_interval_covers_the_mean(name):
    """1000 draws: the share that covers has a standard error below 0.01, and
    is 0.02 above what is asked. The percentile bootstrap covers 0.74, 0.83,
    0.91 of the normal ones at n = 3, 5, 10.
    """
    draw, least = SETS[name]
    mean = draw(np.random.default_rng(1), 10**6).mean()
    for n, share in zip((3, 5, 10, 20, 50), least):
        texts = draw(np.random.default_rng(n), (1000, n))
        found = [paired_difference(d, np.zeros(n)) for d in texts]
        assert (
            np.mean([d['low'] <= mean <= d['high'] for d in found]) > share
        ), n


def test_one_text_has_no_interval():
    d = paired_difference(np.array([0.8, NAN]), np.array([0.1, 0.2]))
    assert (
        d['n'] == 1
        and d['mean'] == pytest.approx(0.7)
        and np.isnan(d['low'])
        and np.isnan(d['high'])
    )


def test_an_interval_ends_where_the_mean_must():
    d = paired_difference(
        np.array([0.99, 0.8, 0.95]), np.zeros(3), limits=(-1, 1)
    )
    assert d['high'] == 1 and -1 <= d['low'] < d['mean']


# --- the verdict


def test_one_text_is_too_few():
    v = verdict(rows(a=[0.8], b=[0.2]))
    assert (
        'Too few texts to tell' in v['sentence']
        and 'trust' not in v['sentence']
        and '[' not in v['sentence']
        and v['method'] is None
    )


def test_four_texts_are_too_few_and_five_may_be_enough():
    r = [0.8, 0.82, 0.79, 0.81, 0.8]
    assert (
        verdict(rows(a=r[:4]))['method'] is None
        and verdict(rows(a=r))['method'] == 'a'
    )


def test_methods_are_ranked_on_the_texts_that_all_of_them_have():
    easy = [0.9] * 6
    hard = [0.1] * 6
    v = verdict(
        rows(a=easy + hard, b=[0.8] * 6 + [NAN] * 6)
    )  # a's mean over all texts is .5, b's over its own .8
    assert (
        v['method'] == 'a'
        and v['n'] == 6
        and v['n_left_out'] == 6
        and '6 left out' in v['sentence']
    )


def test_a_method_without_any_r_is_named_and_does_not_empty_the_rest():
    v = verdict(rows(a=[0.8, 0.82, 0.79, 0.81, 0.8], b=[NAN] * 5))
    assert (
        v['method'] == 'a'
        and v['left_out'] == ['b']
        and 'b left out' in v['sentence']
    )


@pytest.mark.parametrize(
    'r',
    [dict(a=[NAN] * 6), dict(a=[0.5] * 3 + [NAN] * 3, b=[NAN] * 3 + [0.5] * 3)],
)
def test_no_text_that_all_methods_have(r):
    v = verdict(rows(**r))
    assert v['method'] is None and v['sentence'].startswith(
        'Too few texts to tell on this model (0)'
    )


# --- texts with two content tokens


def test_two_content_tokens_have_no_r():
    special = torch.tensor([True, False, False, True])
    a = torch.tensor([9.0, 1.0, 2.0, 5.0])
    b = torch.tensor([0.0, 3.0, 4.0, 1.0])
    assert np.isnan(agreement(a, b, special)) and not np.isnan(
        agreement(a, b, special, specials=True)
    )
    assert not np.isnan(
        agreement(
            torch.randn(5),
            torch.randn(5),
            torch.tensor([True, False, False, False, True]),
        )
    )


def test_short_texts_are_counted_in_an_audit(demo):
    t = audit(
        *demo,
        ['fine film', 'a fine film', 'good'],
        ['attn_lrp'],
        progress=False,
    )
    assert t.n['attn_lrp'] == 3 and t.n_undefined['attn_lrp'] == 2


def test_short_texts_are_counted_in_a_sweep(demo, tmp_path):
    t = explain_dataset(
        ['fine film', 'a fine film'],
        tmp_path,
        ['attn_lrp'],
        model=(*demo, 'minilm-sst2'),
        progress=False,
    )
    assert t.n['attn_lrp'] == 2 and t.n_undefined['attn_lrp'] == 1
