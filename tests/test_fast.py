"Batches, and one row of the last layer: the model's own numbers."

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from conftest import shallow_demo

from lrp_loo import explain
from lrp_loo.models.encoding import encode, special_mask
from lrp_loo.evaluate.audit import faithfulness_rows
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
]


@pytest.fixture(scope='module')
def sentences():
    "The demo model's first layers and three texts."
    model, tokenizer = shallow_demo(layers=3)
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    return SimpleNamespace(model=model, tokenizer=tokenizer, encs=encs)


def close(a, b):
    "Of logits near 1, in float32."
    return torch.allclose(a, b, atol=1e-4)


def test_loo_by_units_of_many_texts_is_that_of_each(sentences):
    given = sentences.model, sentences.tokenizer
    units = ['word', 'token', 'sentence']
    together = explain(*given, TEXTS, method='loo', units=units)
    for a, t, u in zip(together, TEXTS, units, strict=True):
        (one,) = explain(*given, t, method='loo', units=u, token_budget=1)
        assert close(a.scores, one.scores)


# ---- curves


def test_curves_of_many_texts_are_those_of_each(sentences):
    "As if each were alone."
    model, encs = sentences.model, sentences.encs
    g = torch.Generator().manual_seed(0)
    ids = [e['input_ids'][0] for e in encs]
    scores = [{m: torch.randn(len(i), generator=g) for m in 'ab'} for i in ids]
    units = [removal_units(special_mask(sentences.tokenizer, i), 2) for i in ids]
    texts = (encs, scores, units, [0, 1, None])
    together = perturbation_curves(model, *texts, token_budget=64)
    for found, *text in zip(together, *texts, strict=True):
        (alone,) = perturbation_curves(model, *([x] for x in text))
        _, s, u, _ = text
        for m in s:
            for curve, expected in zip(found[m], alone[m], strict=True):
                assert len(curve) == int(u.max()) + 2
                assert close(curve, expected)


# ---- batches and cores


def test_rows_of_many_texts_are_each_text(sentences):
    # in double precision: what differs between batches is their arithmetic
    given = copy.deepcopy(sentences.model).double(), sentences.tokenizer
    methods = {m: (m, {}) for m in ('attn_lrp', 'removal')}
    methods['ig'] = ('ig', dict(n_steps=4))
    together = faithfulness_rows(*given, sentences.encs, methods)
    for row, enc in zip(together, sentences.encs, strict=True):
        (one,) = faithfulness_rows(*given, [enc], methods)
        for k in ('target', 'n_tokens'):
            assert row[k] == one[k]
        assert list(row['methods']) == list(one['methods'])
        for m, k in itertools.product(methods, ('r', 'r_all', 'lerf', 'morf')):
            found, expected = (r['methods'][m][k] for r in (row, one))
            assert found == pytest.approx(expected, abs=1e-6), (m, k)


@pytest.mark.parametrize('size', [1, 40])
def test_integrated_gradients_do_not_depend_on_the_batch(sentences, size):
    model, tokenizer = sentences.model, sentences.tokenizer
    how = dict(method='ig', n_steps=4)
    together = explain(model, tokenizer, TEXTS, **how, internal_batch_size=size)
    for a, text in zip(together, TEXTS, strict=True):
        (b,) = explain(model, tokenizer, text, **how)
        error, expected = (x.info['completeness_error'] for x in (a, b))
        assert close(a.scores, b.scores)
        assert error == pytest.approx(expected, abs=1e-4)
