"""Removal weighed by layer: the groups of rows, the fit, what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from lrp_loo import explain, fit_layers, load_demo, weighed_removal
from lrp_loo.core import pad_batch
from lrp_loo.models import encode
from lrp_loo.removal import GROUPS_OF_ROWS, removal_pass
from lrp_loo.units import text_units
from lrp_loo.weighing import (
    Fit,
    carrier_rules,
    chosen_fit,
    fitted_weights,
    moments_of,
    text_moments,
)

TEXTS = ('a slow start , but the last act is a triumph', 'dull jokes')
OWN = (
    'A quiet film with a loud heart.',
    'Nobody in this comedy is having any fun.',
    'It drags, then it soars, then it drags again.',
    'The best thing here is the train station.',
    'I laughed twice, and once by mistake.',
    'The director forgot to hire a writer.',
)
# sums of float32 in another order, at the scale of the largest
ROUNDING = 1e-5


@pytest.fixture(scope='module', params=['sst2', 'reviews-sst2'])
def demo(request):
    return load_demo(request.param)


def close(a, b):
    return (a - b).abs().max() <= ROUNDING * b.abs().max()


def test_groups_add_up_to_heads_in_a_padded_batch(demo):
    model, tokenizer = demo
    batch = pad_batch(tokenizer, [encode(*demo, t) for t in TEXTS])
    heads = removal_pass(model, batch).terms
    groups = removal_pass(model, batch, by_group=True).terms
    n_layers = groups.shape[1]
    assert close(groups.sum(3), heads.unflatten(1, (n_layers, -1)).sum(2))


@pytest.mark.parametrize('units', [None, 'word'])
def test_groups_are_sums_over_their_rows(demo, units):
    model, tokenizer = demo
    enc = encode(*demo, TEXTS[0])
    if units:
        units = [text_units(tokenizer, enc, TEXTS[0], units)]
    by_row = removal_pass(model, enc, units=units, by_row=True).terms[0]
    found = removal_pass(model, enc, units=units, by_group=True).terms[0]
    n_rows, n_units = by_row.shape
    read = 0 if 'Bert' in type(model).__name__ else n_rows - 1
    number = torch.arange(n_rows) if units is None else units[0].number
    expected = torch.zeros(n_units, len(GROUPS_OF_ROWS))
    for unit in range(n_units):
        own = (number == unit).nonzero()[:, 0].tolist()
        for row in range(n_rows):
            group = 2
            if row - 1 in own or row + 1 in own:
                group = 1
            if row == read:
                group = 0
            expected[unit, group] += by_row[row, unit]
    assert close(found.sum(0), expected)


def test_groups_of_an_image_add_up():
    model, _ = load_demo('mnist')
    pixels = torch.randn(1, 1, 28, 28, generator=torch.manual_seed(0))
    batch = dict(pixel_values=pixels)
    heads = removal_pass(model, batch).terms.sum(1)
    groups = removal_pass(model, batch, by_group=True).terms
    assert close(groups.sum((1, 3)), heads)


def test_rows_and_groups_are_not_taken_together(demo):
    enc = encode(*demo, TEXTS[1])
    with pytest.raises(ValueError, match='take one of them'):
        removal_pass(demo[0], enc, by_row=True, by_group=True)


def test_equal_weights_are_removal(demo):
    (plain,) = explain(*demo, TEXTS[0], method='removal')
    (same,) = explain(*demo, TEXTS[0], method=weighed_removal)
    assert close(same.scores, plain.scores)


def test_weights_of_another_model_are_refused(demo):
    with pytest.raises(ValueError, match='fit_layers'):
        explain(*demo, TEXTS[0], method=weighed_removal, weights=[[1, 1, 1]])


def test_a_weight_that_is_no_number_is_refused(demo):
    weights = [[float('nan')] * 3] * 6
    with pytest.raises(ValueError, match='finite'):
        explain(*demo, TEXTS[0], method=weighed_removal, weights=weights)


def test_an_unknown_carrier_is_refused(demo):
    with pytest.raises(ValueError, match="carrier='mule'"):
        carrier_rules('mule', demo[0])


def test_a_fit_serves_its_own_texts_better_than_equal_weights(demo):
    fit = fit_layers(*demo, OWN, progress=False)
    kept = [text_moments(*demo, encode(*demo, t))[fit.carrier] for t in OWN]
    w = np.ravel(fit.weights)
    fitted = np.mean([m.r(w) for m in kept])
    assert fitted > np.mean([m.r(np.ones_like(w)) for m in kept])
    assert fit.n_texts == len(OWN)


def test_r_from_moments_is_the_weighed_scores_r(demo):
    fit = fit_layers(*demo, OWN, progress=False)
    (a,) = explain(*demo, OWN[0], method=weighed_removal, **fit.options)
    (loo,) = explain(*demo, OWN[0], method='loo')
    content = ~a.is_special
    r = np.corrcoef(a.scores[content], loo.scores[content])[0, 1]
    found = text_moments(*demo, encode(*demo, OWN[0]))[fit.carrier]
    # r of float32 scores
    assert abs(found.r(np.ravel(fit.weights)) - r) < 1e-4


def test_too_few_texts_are_refused(demo):
    with pytest.raises(ValueError, match='at least 5'):
        fit_layers(*demo, OWN[:4], progress=False)


def test_a_ridge_draws_towards_one_scale():
    draw = np.random.default_rng(0)
    made = [
        moments_of(x, np.array([1.0, 2.0]) @ x)
        for x in (draw.normal(size=(2, 6)) for _ in range(8))
    ]
    apart = [np.ptp(fitted_weights(made, ridge)) for ridge in (0.01, 1, 100)]
    assert apart == sorted(apart, reverse=True)


def test_slopes_stand_where_rules_win_by_less_than_an_error():
    slopes = Fit('slopes', 1.0, np.array([0.5, 0.6, 0.7]))
    unsure = Fit('rules', 1.0, np.array([0.3, 0.9, 0.62]))
    sure = Fit('rules', 1.0, slopes.r + np.array([0.1, 0.11, 0.12]))
    assert chosen_fit([slopes, unsure]) is slopes
    assert chosen_fit([slopes, sure]) is sure


def test_words_labels_and_columns_are_taken_as_by_explain():
    model, tokenizer = load_demo('sst2')
    column = pd.Series(OWN)
    asked = dict(target='positive', units='word')
    fit = fit_layers(model, tokenizer, column, **asked, progress=False)
    method = dict(method=weighed_removal, **fit.options)
    (a,) = explain(model, tokenizer, OWN[0], **method, **asked)
    assert a.target == 1
    assert a.tokens[1:3] == ['A', 'quiet'] or a.tokens[1:3] == ['a', 'quiet']


def test_one_text_alone_is_refused(demo):
    with pytest.raises(TypeError, match='got one str'):
        fit_layers(*demo, OWN[0], progress=False)
