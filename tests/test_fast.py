"The fast path is the model, wherever it is taken; and where it is not the model, it steps back."

import contextlib
import copy
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import MPNetConfig, MPNetForSequenceClassification

from conftest import shallow_demo

from lrp_loo import explain
from families import FAMILIES, family_tasks, random_inputs, random_model
from lrp_loo.faithfulness import faithfulness_row, faithfulness_rows
from lrp_loo.fast import (
    PACKED,
    READ_FIRST_ROW,
    FastEncoder,
    fast_encoder,
    read_row_only,
)
from lrp_loo.models import encode, forward, special_mask, watch_embeddings
from lrp_loo.fast import cores, on_every_core
from lrp_loo.variants import many_subset_logits, subset_logits
from lrp_loo.removals import key_weights
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.curves import many_perturbation_curves, perturbation_curves, removal_units
from lrp_loo.targets import Target, output_field

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
]
TAKEN = ('BERT', 'RoBERTa', 'ELECTRA')
ROBERTAS_KIN = ('Camembert', 'XLMRoberta')  # the same parts by other names


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


FUSED = [(f, task) for f, task in family_tasks() if FAMILIES[f].fused]


@pytest.mark.parametrize('family,task', FUSED)
def test_berts_kin_with_a_class_per_text_are_taken(family, task):
    model = random_model(family, task, 'sdpa')
    fast = fast_encoder(model, random_inputs(model), tol=1e-9)
    taken = family in TAKEN and task == 'class'
    assert (fast is not None) == taken


def test_every_class_that_may_be_taken_is_tried_here():
    prefixes = {FAMILIES[family].prefix for family in TAKEN}
    tried = {
        f'{prefix}ForSequenceClassification'
        for prefix in prefixes | {*ROBERTAS_KIN, 'MPNet'}
    }
    assert tried == set(PACKED)


def random_mpnet():
    "Three layers whose attention adds a bias by distance that can be seen."
    config = MPNetConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        num_labels=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MPNetForSequenceClassification(config).double().eval()
        model.mpnet.encoder.relative_attention_bias.weight.data.normal_()
    return model


@pytest.fixture(params=[*TAKEN, 'MPNet', *ROBERTAS_KIN])
def taken(request, monkeypatch):
    "A model of every class that is taken."
    name = request.param
    if name == 'MPNet':
        return random_mpnet()
    if name in ROBERTAS_KIN:
        kin = replace(FAMILIES['RoBERTa'], prefix=name)
        monkeypatch.setitem(FAMILIES, name, kin)
    return random_model(name, 'class', 'sdpa')


def test_every_class_that_may_be_taken_is_taken(taken):
    assert fast_encoder(taken, random_inputs(taken), tol=1e-9) is not None


def test_where_a_model_is_taken_its_numbers_are_the_models(taken):
    inputs = random_inputs(taken)
    T = inputs['input_ids'].shape[1]
    keep = torch.rand(12, T, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[0] = True
    logits = subset_logits(taken, inputs, keep)
    own = masked_logits(taken, inputs, keep)
    assert torch.allclose(logits, own, atol=1e-9)


def test_a_bias_by_distance_is_looked_up_by_position():
    "Counted by rows it would be another model's; the whole text hides that."
    model = random_mpnet()
    inputs = random_inputs(model)
    keep = torch.ones(2, inputs['input_ids'].shape[1], dtype=torch.bool)
    keep[1, 1:4] = False  # all that follow move by three rows
    fast = fast_encoder(model, inputs, tol=1e-9)
    rows = fast.texts([inputs])
    by_rows = replace(rows, place=rows.place.clone())
    where = keep[1].nonzero()[:, 0][None]
    by_rows.place[where[0]] = torch.arange(where.shape[1])
    (own,) = masked_logits(model, inputs, keep[1:])
    assert torch.allclose(fast(rows, where)[0], own, atol=1e-9)
    assert not torch.allclose(fast(by_rows, where)[0], own, atol=1e-7)


def test_a_bias_by_distance_is_right_for_texts_of_several_lengths():
    model = random_mpnet()
    inputs = random_inputs(model)
    short = {k: v[:, :-3] for k, v in inputs.items()}
    keeps = [
        ~torch.eye(e['input_ids'].shape[1], dtype=torch.bool) for e in (inputs, short)
    ]
    found = many_subset_logits(model, [inputs, short], keeps)
    for enc, keep, logits in zip((inputs, short), keeps, found):
        own = masked_logits(model, enc, keep)
        assert torch.allclose(logits, own, atol=1e-9)


@pytest.fixture(scope='module')
def alone(sentences):
    "LOO of each text by itself, nothing dropped."
    return [leave_one_out(sentences.model, e, drop=False) for e in sentences.encs]


@pytest.mark.parametrize('budget', [1, 30, 8192])
def test_loo_of_many_texts_is_that_of_each(sentences, alone, budget):
    together = many_loo(sentences.model, sentences.encs, token_budget=budget)
    for one, (loo, logits, c) in zip(together, alone, strict=True):
        assert close(one.scores, loo)
        assert close(one.row, logits)
        assert one.readout.chosen(0) == c
        assert float(one.value) == pytest.approx(float(logits[c]), abs=1e-4)


def test_explained_loo_of_many_texts_is_that_of_each(sentences, alone):
    together = explain(sentences.model, sentences.tokenizer, TEXTS, method='loo')
    for a, (loo, _, c) in zip(together, alone, strict=True):
        assert close(a.scores, loo)
        assert a.target == c


def test_loo_by_units_of_many_texts_is_that_of_each(sentences):
    model, tokenizer = sentences.model, sentences.tokenizer
    units = ['word', 'token', 'sentence']
    together = explain(model, tokenizer, TEXTS, method='loo', units=units)
    for a, t, u in zip(together, TEXTS, units, strict=True):
        (one,) = explain(model, tokenizer, t, method='loo', units=u, drop=False)
        assert close(a.scores, one.scores)


def only(*places):
    "(1, T) bool of the first text, as a function of T."

    def keep(n):
        k = torch.zeros(1, n, dtype=torch.bool)
        k[0, list(places)] = True
        return k

    return keep


@pytest.mark.parametrize(
    'keep',
    [only(0, -1), only(-1), lambda n: (torch.arange(n) > 0)[None], only()],
    ids=['ends', '[SEP] alone', 'all but [CLS]', 'nothing'],
)
def test_nothing_left_but_the_row_that_is_read(sentences, keep):
    model, enc = sentences.model, sentences.encs[0]
    keep = keep(enc['input_ids'].shape[1])
    own = masked_logits(model, enc, keep)
    logits = subset_logits(model, enc, keep)
    assert torch.allclose(logits, own, atol=1e-4, equal_nan=True)


# ---- where the model is more than its weights


def louder(module, args, out):
    return out * 1.5 if torch.is_tensor(out) else None


PARTS = {
    'layer': lambda model: model.bert.encoder.layer[2],
    'linear': lambda model: model.bert.encoder.layer[2].output.dense,
    'classifier': lambda model: model.classifier,
    'encoder': lambda model: model.bert,
}


@pytest.fixture(params=PARTS)
def heard(request, own_model):
    "A model with a hook of somebody's, and a text."
    model, enc = own_model
    PARTS[request.param](model).register_forward_hook(louder)
    return model, enc


def test_a_model_with_a_hook_is_not_taken(heard):
    assert fast_encoder(*heard) is None


def test_a_model_with_a_hook_gives_its_own_numbers(heard):
    model, enc = heard
    keep = ~torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)[:3]
    own = masked_logits(model, enc, keep)
    assert close(subset_logits(model, enc, keep), own)


class Louder(nn.Linear):
    def forward(self, x):
        return 1.1 * super().forward(x)


def test_a_model_with_a_part_of_another_class_is_not_taken(own_model):
    model, _ = own_model
    output = model.bert.encoder.layer[2].attention.output
    other = Louder(384, 384)
    other.load_state_dict(output.dense.state_dict())
    output.dense = other
    with pytest.raises(ValueError, match='parts that BERT'):
        FastEncoder(model)


def test_a_model_that_computes_otherwise_fails_the_trial(own_model):
    "Built alike: nothing but its numbers gives it away."
    model, enc = own_model
    model.bert.encoder.layer[2].attention.self.scaling *= 2
    FastEncoder(model)
    assert fast_encoder(model, enc) is None


def test_a_model_in_training_is_not_taken(own_model):
    model, enc = own_model
    assert fast_encoder(model, enc) is not None
    assert fast_encoder(model.train(), enc) is None


def test_errors_name_the_subsets(sentences):
    keeps = [torch.ones(1, 3, dtype=torch.bool)] * 2
    with pytest.raises(ValueError, match='keep must be'):
        many_subset_logits(sentences.model, sentences.encs[:2], keeps)


# ---- curves


def units_of(tokenizer, enc, chunk=1):
    return removal_units(special_mask(tokenizer, enc['input_ids'][0]), chunk)


def test_curves_of_many_texts_are_those_of_each(sentences):
    "As if each were alone, and as if nothing were dropped."
    model, encs = sentences.model, sentences.encs
    g = torch.Generator().manual_seed(0)
    scores = [
        {m: torch.randn(e['input_ids'].shape[1], generator=g) for m in 'ab'}
        for e in encs
    ]
    units = [units_of(sentences.tokenizer, e, chunk=2) for e in encs]
    targets = [0, 1, None]
    together = many_perturbation_curves(
        model, encs, scores, units, targets, token_budget=64
    )
    texts = zip(encs, scores, units, targets, strict=True)
    for (enc, s, u, target), found in zip(texts, together, strict=True):
        alone = perturbation_curves(model, enc, s, u, target, drop=False)
        for m in s:
            for curve, expected in zip(found[m], alone[m], strict=True):
                assert len(curve) == int(u.max()) + 2
                assert close(curve, expected)


def test_a_text_without_a_token_to_remove_has_no_curve(sentences):
    enc = sentences.encs[0]
    n = enc['input_ids'].shape[1]
    nothing = torch.full((n,), -1)
    with pytest.raises(ValueError, match='no token'):
        many_perturbation_curves(
            sentences.model, [enc], [{'a': torch.ones(n)}], [nothing], [None]
        )


# ---- one row of the last layer


LAYERED = ('BERT', 'RoBERTa', 'ELECTRA', 'DeBERTa-v2')


def test_these_models_have_their_last_layer_where_bert_has_it():
    "The others are built otherwise."
    found = [
        family
        for family, task in family_tasks()
        if task == 'class' and bert_layers(random_model(family, task)) is not None
    ]
    assert found == [*LAYERED]


def bert_layers(model):
    encoder = getattr(model.base_model, 'encoder', None)
    return getattr(encoder, 'layer', None)


@pytest.fixture(params=LAYERED)
def layered(request):
    return random_model(request.param, 'class', 'eager')


class LastLayer:
    "What a model and its last layer give in one pass."

    def __init__(self, model, context):
        self.rows = None

        def listen(module, args, out):
            out = out if torch.is_tensor(out) else out[0]
            self.rows = out.shape[1]

        layer = model.base_model.encoder.layer[-1]
        with context, watch_embeddings(model) as seen:
            handle = layer.register_forward_hook(listen)
            self.logits = output_field(forward(model, random_inputs(model)))
            handle.remove()
        (self.gradient,) = torch.autograd.grad(self.logits[0, 0], seen[0])


def test_one_row_gives_the_logits_and_gradients_of_all(layered):
    one = LastLayer(layered, read_row_only(layered))
    whole = LastLayer(layered, contextlib.nullcontext())
    assert torch.allclose(one.logits, whole.logits, atol=1e-12)
    assert torch.allclose(one.gradient, whole.gradient, atol=1e-12)


def test_one_row_where_the_class_is_known(layered):
    one = LastLayer(layered, read_row_only(layered))
    assert (one.rows == 1) == (type(layered).__name__ in READ_FIRST_ROW)


@pytest.mark.parametrize(
    'target',
    [lambda out: out.logits[:, 0], Target(0, output='hidden_states')],
    ids=['a function', 'another field'],
)
def test_all_rows_where_the_target_may_read_any(target):
    model = random_model('BERT', 'class', 'eager')
    assert LastLayer(model, read_row_only(model, target)).rows > 1


def test_all_rows_in_training():
    model = random_model('BERT', 'class', 'eager').train()
    assert LastLayer(model, read_row_only(model)).rows > 1


# ---- batches and cores


def test_rows_of_many_texts_are_each_text(sentences):
    # in double precision: what differs between batches is their arithmetic
    model, tokenizer = (copy.deepcopy(sentences.model).double(), sentences.tokenizer)
    methods = {m: (m, {}) for m in ('attn_lrp', 'removal', 'ig')}
    together = faithfulness_rows(model, tokenizer, sentences.encs, methods)
    for row, enc in zip(together, sentences.encs, strict=True):
        one = faithfulness_row(model, tokenizer, enc, methods)
        assert row['target'] == one['target']
        assert row['n_tokens'] == one['n_tokens']
        assert list(row['methods']) == list(one['methods'])
        for m, found in row['methods'].items():
            expected = one['methods'][m]
            for k in ('r', 'r_all', 'lerf', 'morf'):
                assert found[k] == pytest.approx(expected[k], abs=1e-6), (m, k)


@pytest.fixture(scope='module')
def ig_alone(sentences):
    return [
        explain(sentences.model, sentences.tokenizer, t, method='ig')[0] for t in TEXTS
    ]


@pytest.mark.parametrize('size', [1, 16, 40, 256])
def test_integrated_gradients_do_not_depend_on_the_batch(sentences, ig_alone, size):
    together = explain(
        sentences.model,
        sentences.tokenizer,
        TEXTS,
        method='ig',
        internal_batch_size=size,
    )
    for a, b in zip(together, ig_alone, strict=True):
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
    texts = TEXTS * 4
    found = {}
    for n in (1, 2):
        threads(n)
        assert cores(sentences.model) == n
        found[n] = explain(sentences.model, sentences.tokenizer, texts, method=method)
        assert torch.get_num_threads() == n
    for a, b in zip(found[1], found[2], strict=True):
        assert close(a.scores, b.scores)
        assert a.tokens == b.tokens
        assert a.target == b.target


def test_jobs_leave_the_callers_thread(threads):
    threads(2)
    ran = set()
    jobs = [(i,) for i in range(8)]
    on_every_core(lambda i: ran.add(threading.get_ident()), jobs, 2)
    assert ran
    assert threading.get_ident() not in ran


def test_an_error_in_a_job_leaves_the_threads_as_they_were(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError):
        on_every_core(lambda i: 1 // i, [(1,), (0,), (2,)], 2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    'context',
    [
        lambda: torch.autocast('cpu', torch.bfloat16),
        lambda: key_weights(torch.ones(1, 4)),
    ],
    ids=['autocast', 'a mode'],
)
def test_a_context_of_the_callers_keeps_the_work_in_its_thread(
    sentences, threads, context
):
    threads(2)
    with context():
        assert cores(sentences.model) == 1


def test_a_hook_of_the_callers_keeps_the_work_in_its_thread(
    own_model, tokenizer, threads
):
    threads(2)
    model, _ = own_model
    ran = set()
    model.classifier.register_forward_hook(
        lambda m, a, out: ran.add(threading.get_ident())
    )
    assert cores(model) == 1
    explain(model, tokenizer, TEXTS * 4, method='attn_lrp', batch_size=2)
    assert ran == {threading.get_ident()}
