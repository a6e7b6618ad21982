"Shared batches, one row of the last layer, and threads: the model's own numbers."

import contextlib
import copy
import itertools
import threading
from types import SimpleNamespace

import pytest
import torch
from conftest import shallow_demo
from families import random_inputs, random_model

from lrp_loo import explain
from lrp_loo.inputs.scores import READ_FIRST_ROW, read_row_only
from lrp_loo.inputs.targets import Target, output_field
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.loo.droppable import max_workers, run_in_threads
from lrp_loo.loo.engines import subset_logits
from lrp_loo.loo.removals import key_weights
from lrp_loo.models.call import forward, watch_embeddings
from lrp_loo.models.encoding import encode, special_mask
from lrp_loo.evaluate.audit import faithfulness_row, faithfulness_rows
from lrp_loo.evaluate.faithfulness import (
    many_perturbation_curves,
    perturbation_curves,
    removal_units,
)

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
def test_loo_of_many_texts_is_that_of_each(sentences, budget):
    model, encs = sentences.model, sentences.encs
    together = many_loo(model, encs, token_budget=budget)
    explained = explain(model, sentences.tokenizer, TEXTS, method='loo')
    for one, a, enc in zip(together, explained, encs, strict=True):
        loo, logits, c = leave_one_out(model, enc, drop=False)
        assert close(one.scores, loo) and close(a.scores, loo)
        assert close(one.row, logits)
        assert one.readout.chosen(0) == a.target == c
        assert float(one.value) == pytest.approx(float(logits[c]), abs=1e-4)


def test_loo_by_units_of_many_texts_is_that_of_each(sentences):
    given = sentences.model, sentences.tokenizer
    units = ['word', 'token', 'sentence']
    together = explain(*given, TEXTS, method='loo', units=units)
    for a, t, u in zip(together, TEXTS, units, strict=True):
        (one,) = explain(*given, t, method='loo', units=u, drop=False)
        assert close(a.scores, one.scores)


def test_nothing_left_but_the_row_that_is_read(sentences):
    "The ends, [SEP] alone, all but [CLS], nothing."
    model, enc = sentences.model, sentences.encs[0]
    keep = torch.zeros(4, enc['input_ids'].shape[1], dtype=torch.bool)
    keep[0, [0, -1]] = keep[1, -1] = keep[2, 1:] = True
    for k in keep:
        own = masked_logits(model, enc, k[None])
        logits = subset_logits(model, enc, k[None])
        assert torch.allclose(logits, own, atol=1e-4, equal_nan=True)


# ---- where the model is more than its weights


PARTS = {
    'layer': lambda model: model.bert.encoder.layer[2],
    'linear': lambda model: model.bert.encoder.layer[2].output.dense,
    'classifier': lambda model: model.classifier,
    'encoder': lambda model: model.bert,
}


@pytest.mark.parametrize('part', PARTS)
def test_a_model_with_a_hook_gives_its_own_numbers(own_model, part):
    def louder(module, args, out):
        return out * 1.5 if torch.is_tensor(out) else None

    model, enc = own_model
    PARTS[part](model).register_forward_hook(louder)
    keep = ~torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)[:3]
    own = masked_logits(model, enc, keep)
    assert close(subset_logits(model, enc, keep), own)


# ---- curves


def test_curves_of_many_texts_are_those_of_each(sentences):
    "As if each were alone, and as if nothing were dropped."
    model, encs = sentences.model, sentences.encs
    g = torch.Generator().manual_seed(0)
    ids = [e['input_ids'][0] for e in encs]
    scores = [{m: torch.randn(len(i), generator=g) for m in 'ab'} for i in ids]
    units = [removal_units(special_mask(sentences.tokenizer, i), 2) for i in ids]
    texts = (encs, scores, units, [0, 1, None])
    together = many_perturbation_curves(model, *texts, token_budget=64)
    for found, enc, s, u, target in zip(together, *texts, strict=True):
        alone = perturbation_curves(model, enc, s, u, target, drop=False)
        for m in s:
            for curve, expected in zip(found[m], alone[m], strict=True):
                assert len(curve) == int(u.max()) + 2
                assert close(curve, expected)


def test_a_text_without_a_token_to_remove_has_no_curve(sentences):
    n = sentences.encs[0]['input_ids'].shape[1]
    given = [{'a': torch.ones(n)}], [torch.full((n,), -1)], [None]
    with pytest.raises(ValueError, match='no token'):
        many_perturbation_curves(sentences.model, sentences.encs[:1], *given)


# ---- one row of the last layer


LAYERED = ('BERT', 'RoBERTa', 'ELECTRA', 'DeBERTa-v2')


def last_layer(model, context):
    "Rows that its last layer computes, logits and their gradient in one pass."
    rows = []

    def listen(module, args, out):
        rows.append((out if torch.is_tensor(out) else out[0]).shape[1])

    layer = model.base_model.encoder.layer[-1]
    with context, watch_embeddings(model) as seen:
        handle = layer.register_forward_hook(listen)
        logits = output_field(forward(model, random_inputs(model)))
        handle.remove()
    (gradient,) = torch.autograd.grad(logits[0, 0], seen[0])
    return rows[0], logits, gradient


@pytest.mark.parametrize('family', LAYERED)
def test_one_row_gives_the_logits_and_gradients_of_all(family):
    model = random_model(family, 'class', 'eager')
    n, *one = last_layer(model, read_row_only(model))
    _, *whole = last_layer(model, contextlib.nullcontext())
    for ours, own in zip(one, whole):
        assert torch.allclose(ours, own, atol=1e-12)
    assert (n == 1) == (type(model).__name__ in READ_FIRST_ROW)


def test_all_rows_where_the_target_may_read_any():
    model = random_model('BERT', 'class', 'eager')
    for target in (lambda out: out.logits[:, 0], Target(0, output='hidden_states')):
        assert last_layer(model, read_row_only(model, target))[0] > 1
    model.train()
    assert last_layer(model, read_row_only(model))[0] > 1


# ---- batches and cores


def test_rows_of_many_texts_are_each_text(sentences):
    # in double precision: what differs between batches is their arithmetic
    given = copy.deepcopy(sentences.model).double(), sentences.tokenizer
    methods = {m: (m, {}) for m in ('attn_lrp', 'removal')}
    methods['ig'] = ('ig', dict(n_steps=4))
    together = faithfulness_rows(*given, sentences.encs, methods)
    for row, enc in zip(together, sentences.encs, strict=True):
        one = faithfulness_row(*given, enc, methods)
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


@pytest.fixture
def threads():
    "torch's setting is put back."
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'ig', 'rollout', 'loo'])
def test_two_threads_give_the_numbers_of_one(sentences, threads, method):
    texts = TEXTS * 2
    how = dict(n_steps=4) if method == 'ig' else {}
    found = {}
    for n in (1, 2):
        threads(n)
        assert max_workers(sentences.model) == n
        found[n] = explain(sentences.model, sentences.tokenizer, texts, method, **how)
        assert torch.get_num_threads() == n
    for a, b in zip(found[1], found[2], strict=True):
        assert close(a.scores, b.scores)
        assert a.tokens == b.tokens
        assert a.target == b.target


def test_jobs_leave_the_callers_thread_and_its_setting(threads):
    threads(2)
    ran = set()
    jobs = [(i,) for i in range(8)]
    run_in_threads(lambda i: ran.add(threading.get_ident()), jobs, 2)
    assert ran
    assert threading.get_ident() not in ran
    with pytest.raises(ZeroDivisionError):
        run_in_threads(lambda i: 1 // i, [(1,), (0,), (2,)], 2)
    assert torch.get_num_threads() == 2


def test_what_the_caller_put_around_keeps_the_work_in_its_thread(
    own_model, tokenizer, threads
):
    threads(2)
    model, _ = own_model
    for context in (
        torch.autocast('cpu', torch.bfloat16),
        key_weights(torch.ones(1, 4)),
    ):
        with context:
            assert max_workers(model) == 1
    ran = set()
    model.classifier.register_forward_hook(
        lambda m, a, out: ran.add(threading.get_ident())
    )
    assert max_workers(model) == 1
    explain(model, tokenizer, TEXTS * 4, method='attn_lrp', batch_size=2)
    assert ran == {threading.get_ident()}
