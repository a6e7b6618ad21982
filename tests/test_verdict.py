"What is said about several methods: enough texts, the same texts, intervals that hold."

import numpy as np
import pytest
import torch
from conftest import random_bert

from lrp_loo import audit, explain
from lrp_loo.evaluate.audit import verdict
from lrp_loo.core.stats import agreement, paired_difference

NAN = float('nan')


def rows(**r):
    "Make rows from each method's r per text."
    return [
        dict(methods={'loo': dict(r=1.0)} | {m: dict(r=x) for m, x in zip(r, of_text)})
        for of_text in zip(*r.values())
    ]


def test_an_interval_ends_at_the_mean_s_limits():
    d = paired_difference(np.array([0.99, 0.8, 0.95]), np.zeros(3), limits=(-1, 1))
    assert -1 <= d['low'] < d['mean'] < d['high'] == 1
    d = paired_difference(np.array([0.8, NAN]), np.array([NAN, 0.1]))
    assert d['n'] == 0 and np.isnan([d['mean'], d['low'], d['high']]).all()


@pytest.mark.parametrize(
    'r, n',
    [
        (dict(a=[0.8]), 1),
        (dict(a=[0.8, 0.82, 0.79, 0.81]), 4),
        (dict(a=[0.8, 0.82, 0.79, 0.81, 0.8]), 5),
        (dict(a=[NAN] * 6), 0),
        (dict(a=[0.5] * 3 + [NAN] * 3, b=[NAN] * 3 + [0.5] * 3), 0),
    ],
)
def test_four_texts_are_too_few_and_five_may_be_enough(r, n):
    v = verdict(rows(**r))
    assert v['method'] == ('a' if n == 5 else None)
    opening = 'On this model trust a' if n == 5 else 'Too few texts to tell on this'
    assert v['sentence'].startswith(opening)
    assert (f'over {n} texts' if n == 5 else f'model ({n})') in v['sentence']


def test_the_gain_over_the_runner_up_has_an_interval():
    v = verdict(rows(a=[0.9, 0.92, 0.91, 0.9, 0.93], b=[0.5, 0.6, 0.5, 0.5, 0.6]))
    assert v['method'] == 'a' and v['runner_up'] == 'b'
    assert v['gain_low'] < v['gain'] < v['gain_high']


def test_two_content_tokens_have_no_r_and_three_do(demo):
    special = torch.tensor([True, False, False, True])
    a, b = torch.tensor([9.0, 1.0, 2.0, 5.0]), torch.tensor([0.0, 3.0, 4.0, 1.0])
    assert np.isnan(agreement(a, b, special))
    assert not np.isnan(agreement(a, b, special, specials=True))
    texts = ['fine film', 'a fine film', 'good']
    table = audit(*demo, texts, ['attn_lrp'], progress=False)
    assert (table.n['attn_lrp'], table.n_undefined['attn_lrp']) == (3, 2)
    one_by_one = audit(*demo, texts, ['attn_lrp'], chunk=1, progress=False)
    assert table.delta.equals(one_by_one.delta)


def test_texts_in_which_no_word_matters_do_not_decide(tokenizer):
    "A model trained until it is sure: of three words no single one changes its answer."
    kinds, rng = ['dull slow bland', 'warm funny wise'], np.random.default_rng(0)
    words = [rng.permutation(k.split())[: rng.choice([1, 3])] for k in kinds * 1920]
    texts = [' and '.join(f'it is {word}' for word in some) for some in words]
    model = random_bert(layers=2, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for start in range(0, len(texts), 32):
        inputs = tokenizer(texts[start : start + 32], padding=True, return_tensors='pt')
        optimizer.zero_grad()
        model(**inputs, labels=torch.arange(32) % 2).loss.backward()
        optimizer.step()
    table = audit(model, tokenizer, texts, ['attn_lrp'], progress=False)
    row = table.loc['attn_lrp']
    assert row.loo_r > 0.99 > 0.8 > row.r_all_texts
    n = row.n_no_effect
    assert 12 <= n < row.n and f'{n:.0f} left out, where no single' in table.verdict
    assert 'no single word changes' in repr(
        explain(model, tokenizer, max(texts, key=len))
    )
