"Batches, and one row of the last layer: the model's own numbers."

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from conftest import shallow_demo

from lrp_loo import explain
from lrp_loo.inputs.targets import output_field
from lrp_loo.loo import many_loo
from lrp_loo.loo.engines import read_subsets
from lrp_loo.models.call import forward
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


@pytest.fixture
def own_model():
    "One that a test may change, and a text."
    model, tokenizer = shallow_demo(layers=3)
    return model, encode(model, tokenizer, TEXTS[0])


@torch.no_grad()
def masked_logits(model, enc, keep):
    "One pass at a time."
    rows = []
    for k in keep:
        inputs = enc | dict(attention_mask=k[None].long())
        rows.append(output_field(forward(model, inputs))[0])
    return torch.stack(rows)


def close(a, b):
    "Of logits near 1, in float32."
    return torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize('budget', [1, 30, 8192])
def test_loo_of_many_texts_is_that_of_masked_passes(sentences, budget):
    model, encs = sentences.model, sentences.encs
    together = many_loo(model, encs, token_budget=budget)
    explained = explain(model, sentences.tokenizer, TEXTS, method='loo')
    for one, a, enc in zip(together, explained, encs, strict=True):
        with torch.no_grad():
            logits = model(**enc).logits[0]
        c = int(logits.argmax())
        keep = ~torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)
        loo = logits[c] - masked_logits(model, enc, keep)[:, c]
        assert close(one.scores, loo) and close(a.scores, loo)
        assert close(one.row, logits)
        assert one.readout.chosen(0) == a.target == c
        assert float(one.value) == pytest.approx(float(logits[c]), abs=1e-4)


def test_loo_by_units_of_many_texts_is_that_of_each(sentences):
    given = sentences.model, sentences.tokenizer
    units = ['word', 'token', 'sentence']
    together = explain(*given, TEXTS, method='loo', units=units)
    for a, t, u in zip(together, TEXTS, units, strict=True):
        (one,) = explain(*given, t, method='loo', units=u, token_budget=1)
        assert close(a.scores, one.scores)


PARTS = {
    'nothing': lambda model: torch.nn.Identity(),
    'layer': lambda model: model.bert.encoder.layer[2],
    'linear': lambda model: model.bert.encoder.layer[2].output.dense,
    'classifier': lambda model: model.classifier,
    'encoder': lambda model: model.bert,
}


@pytest.mark.parametrize('part', PARTS)
def test_subsets_of_a_model_with_a_hook_have_its_own_numbers(
    own_model, part, monkeypatch
):
    "One each, the ends, [SEP] alone, all but [CLS], nothing."
    monkeypatch.setattr('lrp_loo.loo.engines.MIN_STORED', 0)

    def louder(module, args, out):
        return out * 1.5 if torch.is_tensor(out) else None

    model, enc = own_model
    PARTS[part](model).register_forward_hook(louder)
    n = enc['input_ids'].shape[1]
    keep = torch.zeros(7, n, dtype=torch.bool)
    keep[:3] = ~torch.eye(n, dtype=torch.bool)[:3]
    keep[3, [0, -1]] = keep[4, -1] = keep[5, 1:] = True
    own = masked_logits(model, enc, keep)[:, 1]
    (found,) = read_subsets(model, [enc], [keep], [1])
    assert torch.allclose(found.values, own, atol=1e-4, equal_nan=True)


# ---- curves


def test_curves_of_many_texts_are_those_of_each(sentences, monkeypatch):
    "As if each were alone, and whether states are stored or not."
    model, encs = sentences.model, sentences.encs
    g = torch.Generator().manual_seed(0)
    ids = [e['input_ids'][0] for e in encs]
    scores = [{m: torch.randn(len(i), generator=g) for m in 'ab'} for i in ids]
    units = [removal_units(special_mask(sentences.tokenizer, i), 2) for i in ids]
    texts = (encs, scores, units, [0, 1, None])
    together = perturbation_curves(model, *texts, token_budget=64)
    monkeypatch.setattr('lrp_loo.loo.engines.MIN_STORED', 0)
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
