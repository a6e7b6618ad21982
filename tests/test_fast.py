"The fast path is the model: every subset, every text, every family that it takes; and where it is not the model, it steps back."

import contextlib
import threading

import pytest
import torch
from torch import nn

from conftest import CountTokens

from lrp_loo import explain, load_demo
from lrp_loo.studies.families import family_tasks, random_inputs, random_model
from lrp_loo.faithfulness import faithfulness_row, faithfulness_rows
from lrp_loo.fast import (
    READ_FIRST_ROW,
    FastEncoder,
    fast_encoder,
    read_row_only,
)
from lrp_loo.models import encode, forward, special_mask, watch_embeddings
from lrp_loo.variants import (
    cores,
    many_subset_logits,
    on_every_core,
    subset_logits,
)
from lrp_loo.removals import key_weights
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.curves import (
    many_perturbation_curves,
    perturbation_curves,
    removal_units,
)
from lrp_loo.targets import Target, output_field

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
]


@pytest.mark.parametrize('family,task', family_tasks())
def test_families(family, task):
    """Where a model is taken, its numbers are the model's; BERT's kin with a
    class per text are taken.
    """
    try:
        model = random_model(family, task, 'sdpa')
    except ValueError:
        pytest.skip('no fused attention')
    inputs = random_inputs(model)
    fast = fast_encoder(model, inputs, tol=1e-9)
    assert (fast is not None) == (
        family in ('BERT', 'RoBERTa', 'ELECTRA', 'CamemBERT', 'XLM-RoBERTa')
        and task == 'class'
    )
    if fast is None:
        return
    T = inputs['input_ids'].shape[1]
    keep = torch.rand(12, T, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[0] = True
    logits = subset_logits(model, inputs, keep)
    for k, l in zip(keep, logits):
        with torch.no_grad():
            assert torch.allclose(
                output_field(
                    forward(model, inputs | dict(attention_mask=k[None].long()))
                )[0],
                l,
                atol=1e-9,
            )


def test_many_texts_are_each_text():
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    alone = [leave_one_out(model, e, drop=False) for e in encs]
    for budget in (1, 30, 8192):
        for (loo, row, c), (ours, value, readout, whole) in zip(
            alone, many_loo(model, encs, token_budget=budget)
        ):
            assert (
                torch.allclose(loo, ours, atol=1e-4)
                and torch.allclose(row, whole, atol=1e-4)
                and readout.chosen(0) == c
                and float(value) == pytest.approx(float(row[c]), abs=1e-4)
            )
    for a, (loo, _, c) in zip(
        explain(model, tokenizer, TEXTS, method='loo'), alone
    ):
        assert torch.allclose(a.scores, loo, atol=1e-4) and a.target == c
    words = explain(
        model,
        tokenizer,
        TEXTS,
        method='loo',
        units=['word', 'token', 'sentence'],
    )
    for a, t, u in zip(words, TEXTS, ('word', 'token', 'sentence')):
        assert torch.allclose(
            a.scores,
            explain(model, tokenizer, t, method='loo', units=u, drop=False)[
                0
            ].scores,
            atol=1e-4,
        )


def test_nothing_left_but_the_row_that_is_read():
    "Every content token gone; [CLS] gone as well; only [CLS] gone."
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, TEXTS[0])
    T = enc['input_ids'].shape[1]
    keep = torch.zeros(3, T, dtype=torch.bool)
    keep[0, 0] = keep[0, -1] = True
    keep[1, -1] = True
    keep[2, 1:] = True
    with torch.no_grad():
        own = torch.cat(
            [
                model(**enc | dict(attention_mask=k[None].long())).logits
                for k in keep
            ]
        )
    assert torch.allclose(subset_logits(model, enc, keep), own, atol=1e-4)
    none = torch.zeros(1, T, dtype=torch.bool)
    with torch.no_grad():
        own = model(**enc | dict(attention_mask=none.long())).logits
    assert torch.allclose(
        subset_logits(model, enc, none), own, atol=1e-4, equal_nan=True
    )


def test_where_the_model_is_more_than_its_weights():
    """Hooks, replaced parts and other classes: refused by construction, or by
    the check.
    """
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, TEXTS[0])
    layer = model.bert.encoder.layer[2]
    assert fast_encoder(model, enc) is not None
    for module in (layer, layer.output.dense, model.classifier, model.bert):
        handle = module.register_forward_hook(
            lambda m, args, out: out * 1.5 if torch.is_tensor(out) else None
        )
        assert fast_encoder(model, enc) is None
        keep = ~torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)[:3]
        with torch.no_grad():
            own = torch.cat(
                [
                    model(**enc | dict(attention_mask=k[None].long())).logits
                    for k in keep
                ]
            )
        assert torch.allclose(subset_logits(model, enc, keep), own, atol=1e-4)
        handle.remove()

    class Louder(nn.Linear):
        def forward(self, x):
            return 1.1 * super().forward(x)

    new = Louder(384, 384)
    new.load_state_dict(layer.attention.output.dense.state_dict())
    old = layer.attention.output.dense
    layer.attention.output.dense = new
    with pytest.raises(ValueError, match='parts that BERT'):
        FastEncoder(model)
    layer.attention.output.dense = old
    layer.attention.self.scaling *= 2  # built alike, computed otherwise
    assert FastEncoder(model) and fast_encoder(model, enc) is None
    layer.attention.self.scaling /= 2
    assert fast_encoder(model, enc) is not None
    assert fast_encoder(model.train(), enc) is None
    model.eval()


def test_errors_name_the_subsets():
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in TEXTS[:2]]
    with pytest.raises(ValueError, match='keep must be'):
        many_subset_logits(
            model, encs, [torch.ones(1, 3, dtype=torch.bool)] * 2
        )


def test_curves_of_many_texts():
    "Each text's curves as if it were alone, and as if nothing were dropped."
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    g = torch.Generator().manual_seed(0)
    scores = [
        {m: torch.randn(e['input_ids'].shape[1], generator=g) for m in 'ab'}
        for e in encs
    ]
    units = [
        removal_units(special_mask(tokenizer, e['input_ids'][0]), 2)
        for e in encs
    ]
    targets = [0, 1, None]
    for e, s, u, t, ours in zip(
        encs,
        scores,
        units,
        targets,
        many_perturbation_curves(
            model, encs, scores, units, targets, token_budget=64
        ),
    ):
        alone = perturbation_curves(model, e, s, u, t, drop=False)
        for m in s:
            assert all(
                torch.allclose(x, y, atol=1e-4) and len(x) == int(u.max()) + 2
                for x, y in zip(ours[m], alone[m])
            )
    with pytest.raises(ValueError, match='no token'):
        many_perturbation_curves(
            model, encs[:1], scores[:1], [torch.full_like(units[0], -1)], [None]
        )


@pytest.mark.parametrize('demo', ['reviews-sst2', 'reviews'])
def test_a_decoders_prefix_is_computed_once(demo):
    """LOO, spans and curves from the cache are those of masked texts; and
    fewer tokens go through the model.
    """
    model, tokenizer = load_demo(demo)
    enc = encode(model, tokenizer, ' '.join(TEXTS))
    T = enc['input_ids'].shape[1]
    runs = {}
    for drop in (None, False):
        with CountTokens(model) as count:
            loo = leave_one_out(model, enc, drop=drop)[0]
        runs[drop] = loo, count.n
    assert (
        torch.allclose(runs[None][0], runs[False][0], atol=1e-4)
        and runs[None][1] < 0.8 * runs[False][1]
    )
    spans = torch.full((T,), -1)
    spans[2:4], spans[5:9] = 0, 1
    assert torch.allclose(
        leave_one_out(model, enc, units=spans)[0],
        leave_one_out(model, enc, units=spans, drop=False)[0],
        atol=1e-4,
    )
    units = removal_units(special_mask(tokenizer, enc['input_ids'][0]))
    scores = {'order': torch.arange(T).float()}
    for a, b in zip(
        perturbation_curves(model, enc, scores, units, None)['order'],
        perturbation_curves(model, enc, scores, units, None, drop=False)[
            'order'
        ],
    ):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    'family,task', [f for f in family_tasks() if f[1] == 'class']
)
def test_one_row_of_the_last_layer(family, task):
    """Logits and gradients of the whole pass, from one row where the class is
    known; other models untouched.
    """
    model = random_model(family, task, 'eager')
    inputs = random_inputs(model)
    rows = []
    if not hasattr(getattr(model.base_model, 'encoder', None), 'layer'):
        pytest.skip('built otherwise')

    def listen():
        return model.base_model.encoder.layer[-1].register_forward_hook(
            lambda m, a, out: rows.append(
                (out if torch.is_tensor(out) else out[0]).shape[1]
            )
        )

    def run(context):
        with context, watch_embeddings(model) as seen:
            handle = listen()
            value = output_field(forward(model, inputs))
            handle.remove()
        return value, torch.autograd.grad(value[0, 0], seen[0])[0]

    one, g = run(read_row_only(model))
    whole, h = run(contextlib.nullcontext())
    assert torch.allclose(one, whole, atol=1e-12) and torch.allclose(
        g, h, atol=1e-12
    )
    assert (rows[0] == 1) == (type(model).__name__ in READ_FIRST_ROW)
    for target in (
        lambda out: out.logits[:, 0],
        Target(0, output='hidden_states'),
    ):
        rows.clear()
        run(read_row_only(model, target))
        assert rows[0] > 1  # may read what is left out
    model.train()
    rows.clear()
    run(read_row_only(model))
    assert rows[0] > 1
    model.eval()


def test_rows_of_many_texts_are_each_text():
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    methods = {m: (m, {}) for m in ('attn_lrp', 'removal', 'ig')}
    for a, b in zip(
        faithfulness_rows(model, tokenizer, encs, methods),
        (faithfulness_row(model, tokenizer, e, methods) for e in encs),
    ):
        assert (
            a['target'] == b['target']
            and a['n_tokens'] == b['n_tokens']
            and list(a['methods']) == list(b['methods'])
        )
        for m in a['methods']:
            assert all(
                a['methods'][m][k]
                == pytest.approx(b['methods'][m][k], abs=1e-4)
                for k in ('r', 'r_all', 'lerf', 'morf')
            )


def test_integrated_gradients_do_not_depend_on_the_batch():
    model, tokenizer = load_demo('sst2')
    alone = [explain(model, tokenizer, t, method='ig')[0] for t in TEXTS]
    for size in (1, 16, 40, 256):
        for a, b in zip(
            explain(
                model, tokenizer, TEXTS, method='ig', internal_batch_size=size
            ),
            alone,
        ):
            assert torch.allclose(a.scores, b.scores, atol=1e-4) and a.info[
                'completeness_error'
            ] == pytest.approx(b.info['completeness_error'], abs=1e-4)


def test_cores_share_the_work_where_they_may():
    """Two threads give one thread's numbers and leave torch's setting; a
    context or a hook of the caller's keeps the work in its thread.
    """
    model, tokenizer = load_demo('sst2')
    before = torch.get_num_threads()
    texts = TEXTS * 4
    here = threading.get_ident()
    ran = set()
    try:
        torch.set_num_threads(1)
        alone = {
            m: explain(model, tokenizer, texts, method=m)
            for m in ('attn_lrp', 'removal', 'ig', 'rollout', 'loo')
        }
        torch.set_num_threads(2)
        assert cores(model) == 2
        for m, expected in alone.items():
            for a, b in zip(
                explain(model, tokenizer, texts, method=m), expected
            ):
                assert (
                    torch.allclose(a.scores, b.scores, atol=1e-4)
                    and a.tokens == b.tokens
                    and a.target == b.target
                )
        assert torch.get_num_threads() == 2
        on_every_core(
            lambda i: ran.add(threading.get_ident()),
            [(i,) for i in range(8)],
            2,
        )
        assert here not in ran
        with pytest.raises(ZeroDivisionError):
            on_every_core(lambda i: 1 // i, [(1,), (0,), (2,)], 2)
        assert torch.get_num_threads() == 2
        with torch.autocast('cpu', torch.bfloat16):
            assert cores(model) == 1
        with key_weights(torch.ones(1, 4)):
            assert cores(model) == 1
        handle = model.classifier.register_forward_hook(
            lambda m, a, out: ran.add(threading.get_ident())
        )
        ran.clear()
        assert cores(model) == 1
        explain(model, tokenizer, texts, method='attn_lrp', batch_size=2)
        assert ran == {here}
        handle.remove()
    finally:
        torch.set_num_threads(before)
