"""Removal weighed by layer: the groups of rows, the fit, what is refused."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import OPINIONS

from lrp_loo import (
    Target,
    audit,
    explain,
    fit_layers,
    load_demo,
    load_layer_weights,
    weighed_removal,
)
from lrp_loo.asked.units import text_units
from lrp_loo.core.files import pad_batch
from lrp_loo.models.encoding import encode
from lrp_loo.removal.one_pass import GROUPS_OF_ROWS, removal_pass
from lrp_loo.trust.weights import text_moments

TEXTS = ('a slow start , but the last act is a triumph', 'dull jokes')
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
    for unit, row in itertools.product(range(n_units), range(n_rows)):
        own = (number == unit).nonzero()[:, 0].tolist()
        group = 1 if row - 1 in own or row + 1 in own else 2
        expected[unit, 0 if row == read else group] += by_row[row, unit]
    assert close(found.sum(0), expected)


def test_groups_of_an_image_add_up():
    model, _ = load_demo('mnist')
    pixels = torch.randn(1, 1, 28, 28, generator=torch.manual_seed(0))
    heads = removal_pass(model, dict(pixel_values=pixels)).terms.sum(1)
    groups = removal_pass(model, dict(pixel_values=pixels), by_group=True).terms
    assert close(groups.sum((1, 3)), heads)


def test_a_fit_serves_its_own_texts_better_than_equal_weights(demo):
    fit = fit_layers(*demo, OPINIONS, progress=False)
    kept = [text_moments(*demo, encode(*demo, t))[fit.carrier] for t in OPINIONS]
    w = np.ravel(fit.weights)
    fitted = np.mean([m.r(w) for m in kept])
    assert fitted > np.mean([m.r(np.ones_like(w)) for m in kept])
    assert fit.n_texts == len(OPINIONS)
    # r from moments is the weighed scores' r
    (a,) = explain(*demo, OPINIONS[0], method=weighed_removal, **fit.options)
    (loo,) = explain(*demo, OPINIONS[0], method='loo')
    content = ~a.is_special
    r = np.corrcoef(a.scores[content], loo.scores[content])[0, 1]
    assert abs(kept[0].r(w) - r) < 1e-4  # of float32 scores


def test_words_labels_and_columns_are_taken_as_by_explain():
    shown = load_demo('sst2')
    asked = dict(target='positive', units='word')
    fit = fit_layers(*shown, pd.Series(OPINIONS), **asked, progress=False)
    (a,) = explain(*shown, OPINIONS[0], method=weighed_removal, **fit.options, **asked)
    assert a.target == 1
    assert [t.lower() for t in a.tokens[1:3]] == ['a', 'quiet']


# ------------------------------------------- what weights hang on


@pytest.fixture(scope='module')
def fit():
    return fit_layers(*load_demo('sst2'), OPINIONS, progress=False)


def test_what_was_not_fitted_is_refused_by_name(fit):
    "Much of the attention may rest on a special token in front."
    model, tokenizer = load_demo('sst2')
    asked = dict(method=weighed_removal, **fit.options)
    bare = [tokenizer(TEXTS[0], add_special_tokens=False)]
    for text, options, said in (
        (TEXTS[0], dict(target=Target(1, log_prob=True)), 'number=.*fit them anew'),
        (TEXTS[0], dict(target=(1, 0)), 'fitted on number=.*fit them anew'),
        (TEXTS[0], dict(target=lambda o: o.logits[:, 1]), 'fitted on number='),
        (TEXTS[0], dict(units='word'), "units='token', and this is units"),
        (bare, {}, 'begins_special=True, and this'),
    ):
        with pytest.raises(ValueError, match=said):
            explain(model, tokenizer, text, **asked, **options)
    # without the record the weights are taken as they are
    del asked['fitted']
    assert explain(model, tokenizer, bare, **asked)


def test_what_was_fitted_is_taken_whatever_class_is_explained(fit):
    asked = dict(method=weighed_removal, **fit.options)
    for target in (None, 0, 'positive', Target(1)):
        explain(*load_demo('sst2'), TEXTS[0], target=target, **asked)
    two = {'weighed': (weighed_removal, fit.options)}
    table = audit(*load_demo('sst2'), TEXTS, two, progress=False)
    assert 'refused' not in table


NAN = float('nan')
WEIGHTS = [[[1.0, n, 1.0]] * 6 for n in (NAN, '2', None)]
WRONG_WEIGHTS = [
    *[dict(weights=w) for w in (*WEIGHTS, [[1.0, 1.0]] * 6, None, 3)],
    *[dict(carrier='mule'), dict(carrier=['slopes']), dict(ridge='high')],
    *[dict(held_out=NAN), dict(model='Bert'), dict(model={}), dict(fitted={})],
    *[dict(fitted=7), dict(more=1)],
]


@pytest.mark.parametrize('changed', WRONG_WEIGHTS, ids=str)
def test_a_file_of_wrong_weights_is_named(fit, tmp_path, changed):
    path = tmp_path / 'w.json'
    fit.save(path)
    assert load_layer_weights(path) == fit
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match='w.json holds no layer weights') as e:
        load_layer_weights(path)
    assert '\n' not in str(e.value)
