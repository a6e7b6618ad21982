"""Removal-aware attribution against definitions: finite differences of the mask, keys really left out of each softmax, the same function written otherwise, batches, spans."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lrp_loo import explain, load_demo
from lrp_loo.studies.beyond import REWRITINGS, rewritten
from lrp_loo.lrp import Composite, gradient, lrp_rules
from lrp_loo.results import read_results
from lrp_loo.studies.families import family_tasks, random_inputs, random_model
from lrp_loo.models import encode, forward, watch_embeddings
from lrp_loo.removals import input_positions, key_weights
from lrp_loo.loo import leave_one_out
from lrp_loo.removal import (
    key_effects,
    removal_loo_scores,
    removal_pass,
    removal_scores,
)
from lrp_loo.targets import Readout
from lrp_loo.units import Units

SENTENCE = "a slow start , but the last act is a quiet triumph"


@pytest.mark.parametrize('family,task', family_tasks())
def test_mask_derivative_is_a_finite_difference(family, task):
    """∂f/∂log m_j = Σ ∂f/∂Z_ij, on every family, eager and fused; and the
    estimate is the same in both.
    """
    estimates = []
    for attention in ('eager', 'sdpa'):
        try:
            model = random_model(family, task, attention)
        except ValueError:
            continue
        inputs = random_inputs(model)
        T = input_positions(model, inputs)
        with (
            torch.enable_grad(),
            watch_embeddings(model),
            lrp_rules(model, gradient(), record='attention') as rules,
        ):
            out = forward(model, inputs)
        readout = Readout(None, out, inputs)
        with torch.enable_grad():
            value = readout(out)
        derivative = sum(
            g.sum((0, 1, 2))
            for g in torch.autograd.grad(
                value.sum(), [Z for _, Z, _ in rules.attention]
            )
        )[-T:]
        for j in (1, T - 2):
            f = {}
            for h in (
                0.0,
                1e-2,
                2e-2,
            ):  # one-sided, second order: weights stay at most 1
                m = torch.ones(1, T, dtype=torch.double)
                m[0, j] = math.exp(-h)
                with torch.no_grad(), key_weights(m):
                    f[h] = float(readout(forward(model, inputs)))
            assert float(derivative[j]) == pytest.approx(
                (3 * f[0.0] - 4 * f[1e-2] + f[2e-2]) / 2e-2, rel=1e-2, abs=1e-3
            )  # some models take softmax in single precision
        estimates.append(
            removal_scores(model, None, [inputs], n_groups=2).scores
        )
        assert (
            estimates[-1].shape == (1, T)
            and torch.isfinite(estimates[-1]).all()
        )
    if len(estimates) == 2:
        assert (estimates[0] - estimates[1]).abs().max() < 2e-3 * estimates[
            1
        ].abs().max()  # eager attention takes its softmax in single precision


class Capture(TorchFunctionMode):
    """Every fused attention call: q, k, v, additive mask, and its output as a
    tensor whose gradient can be asked for.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, '__name__', '') != 'scaled_dot_product_attention':
            return func(*args, **kwargs)
        O = func(*args, **kwargs) * 1.0
        self.calls.append((*args[:3], kwargs, O))
        return O


def naive_removal(model, inputs, own_rows=False):
    """⟨∂f/∂O_i, O_i − O_i without key j⟩ with key j left out of the softmax,
    one row of one head at a time.
    """
    T = inputs['input_ids'].shape[1]
    e = (
        model.get_input_embeddings()(inputs['input_ids'])
        .detach()
        .requires_grad_()
    )
    with torch.enable_grad(), Capture() as seen:
        out = model(inputs_embeds=e, attention_mask=inputs['attention_mask'])
    readout = Readout(None, out, inputs)
    g = torch.autograd.grad(readout(out).sum(), [c[-1] for c in seen.calls])
    total = torch.zeros(T, dtype=torch.double)
    read = {i for i in range(T) if g[-1][0, :, i].abs().sum() > 0}
    for (q, k, v, kw, O), gO in zip(seen.calls, g):
        group = q.shape[1] // k.shape[1]
        mask = kw.get('attn_mask')
        for h in range(q.shape[1]):
            for i in range(T):
                z = (k[0, h // group] @ q[0, h, i]).detach() * (
                    kw.get('scale') or q.shape[-1] ** -0.5
                )
                seen_keys = [
                    j for j in range(T) if not (kw.get('is_causal') and j > i)
                ]
                if mask is not None:
                    m = mask.expand(1, q.shape[1], T, T)[0, h, i]
                    seen_keys = [
                        j
                        for j in seen_keys
                        if (
                            bool(m[j]) if m.dtype == torch.bool else m[j] > -1e9
                        )
                    ]
                for j in seen_keys:
                    rest = [n for n in seen_keys if n != j]
                    if not rest or (i == j and i not in read and not own_rows):
                        continue
                    total[j] += (
                        gO[0, h, i]
                        @ (
                            O[0, h, i]
                            - z[rest].softmax(0) @ v[0, h // group][rest]
                        ).detach()
                    )
    return total


@pytest.mark.parametrize(
    'family,task',
    [
        ('BERT', 'class'),
        ('RoBERTa', 'class'),
        ('Llama', 'class'),
        ('Llama', 'next token'),
        ('Qwen2', 'class'),
    ],
)
@pytest.mark.parametrize('own_rows', [False, True])
def test_against_keys_left_out(family, task, own_rows):
    model = random_model(family, task, 'sdpa')
    inputs = random_inputs(model, 7)
    ours = removal_scores(model, None, [inputs], own_rows=own_rows).scores[0]
    naive = naive_removal(model, inputs, own_rows)
    assert torch.allclose(ours, naive, rtol=1e-6, atol=1e-9)


# of the largest score: float32 rounds by 1e-7 a step, which adds up to 3e-6
# (results/removal-precision.json)
SINGLE = 1e-5
SENTENCES = [
    SENTENCE,
    "the jokes are old",
    "an hour too long and not one laugh",
    "she carries every scene with ease",
]


def largest_difference(a, b):
    "In units of the largest score of b."
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def test_single_precision_is_near_double():
    model, tokenizer = load_demo('sst2')
    double = copy.deepcopy(model).double()
    for text in SENTENCES:
        enc = encode(model, tokenizer, text)
        single, exact = (
            removal_scores(m, tokenizer, [enc]).scores for m in (model, double)
        )
        assert largest_difference(single, exact) < SINGLE


def test_the_same_text_in_another_batch():
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in SENTENCES]
    for i, enc in enumerate(encs):
        alone = removal_scores(model, tokenizer, [enc]).scores[0]
        beside = removal_scores(model, tokenizer, [enc, *encs]).scores
        for row in (0, i + 1):
            assert largest_difference(beside[row, : len(alone)], alone) < SINGLE


def test_precision_that_was_measured():
    found = read_results(
        Path(__file__).parent.parent / 'results' / 'removal-precision.json'
    )
    assert found['config']['bound'] == SINGLE
    assert sum(r['setting'] == 'one thread' for r in found['rows']) == 200
    assert {r['setting'] for r in found['rows']} == set(
        found['config']['settings']
    )
    for r in found['rows']:
        assert r['double'] <= SINGLE and r['batch'] <= SINGLE, r


def random_rows():
    """Logits, values and the gradient at the output: two heads, four rows,
    five keys.
    """
    g = torch.Generator().manual_seed(0)
    return (
        torch.randn(*s, generator=g, dtype=torch.double)
        for s in ((1, 2, 4, 5), (1, 2, 5, 3), (1, 2, 4, 3))
    )


def effect_of_leaving_out(Z, V, u, keys):
    """u·(O − O without the keys), the softmax taken again over what is left;
    per row.
    """
    rest = [k for k in range(Z.shape[-1]) if k not in keys]
    return (
        u * (Z.softmax(-1) @ V - Z[..., rest].softmax(-1) @ V[..., rest, :])
    ).sum(-1)


@pytest.mark.parametrize(
    'dtype,bound', [(torch.double, 1e-14), (torch.float32, 1e-5)]
)  # eps of the dtype, logits up to 60, sums of five
@pytest.mark.parametrize(
    'peak',
    [0.0, 20.0, 60.0],
    # 60: the largest key leaves 1e-26 to the others, far below what 1 − A can
    # hold
)
def test_one_key_has_nearly_all(peak, dtype, bound):
    Z, V, u = random_rows()
    Z = Z + torch.tensor([0, 0, peak, 0, 0], dtype=torch.double)
    gain = u @ V.mT
    effects = key_effects(gain.to(dtype), Z.to(dtype).softmax(-1))
    for j in range(5):
        error = (
            (effects[..., j] - effect_of_leaving_out(Z, V, u, [j])).abs().max()
        )
        assert error < bound * gain.abs().max()


def test_units_at_weights_of_their_own():
    Z, V, u = random_rows()
    units = [1, 2], [0, 3]  # key 4 belongs to none
    members = torch.zeros(1, 5, 2, dtype=torch.double)
    log_w = torch.zeros(5, dtype=torch.double)
    weights = torch.tensor([[0.3, 0.6]], dtype=torch.double)
    for n, keys in enumerate(units):
        members[0, keys, n] = 1
        log_w[keys] = weights[0, n].log()
    effects = key_effects(u @ V.mT, (Z + log_w).softmax(-1), members, weights)
    for n, keys in enumerate(units):
        present = log_w.clone()
        present[keys] = 0.0  # this unit whole, the other as it stands
        exact = effect_of_leaving_out(Z + present, V, u, keys)
        assert torch.allclose(effects[..., n], exact, rtol=1e-10, atol=1e-12)


def test_rows_with_nothing_else_to_see():
    A = torch.tensor([[[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.25, 0.75]]]])
    gain = torch.tensor([3.0, -1.0, 2.0]).expand(1, 1, 3, 3)
    effects = key_effects(gain, A)[0, 0]
    assert torch.equal(effects[:2], torch.zeros(2, 3))
    assert effects[2].tolist() == [0.0, -0.75, 2.25]
    everything = key_effects(
        gain, A, torch.ones(1, 3, 1)
    )  # a unit of all keys leaves nothing, either
    assert torch.equal(everything, torch.zeros(1, 1, 3, 1))


def test_a_bypassed_softmax_still_loses_its_key():
    """Rules that hold attention weights constant stop the way back there;
    ∂f/∂A of each layer is asked for all the same.
    """
    held = Composite(
        'held',
        'all',
        product='gradient',
        layer_norm='gradient',
        activation='gradient',
    )
    for attention in ('eager', 'sdpa'):
        model = random_model('BERT', 'class', attention)
        enc = random_inputs(model)
        plain, bypassed = (
            removal_pass(model, enc, composite=c)[0].view(3, 4, -1)
            for c in (None, held)
        )
        assert torch.allclose(
            plain[-1], bypassed[-1]
        )  # the last layer has no softmax above it
        assert (bypassed.abs().sum((1, 2)) > 0).all()
        assert not torch.allclose(plain[0], bypassed[0], rtol=0.01)


def test_special_tokens_exactly():
    model, tokenizer = load_demo('sst2')
    encs = [encode(model, tokenizer, t) for t in SENTENCES[:2]]
    plain = removal_scores(model, tokenizer, encs).scores
    found = removal_scores(model, tokenizer, encs, exact_special=True)
    mended = found.scores
    for b, enc in enumerate(encs):
        loo = leave_one_out(model, enc)[0]
        special = [0, len(loo) - 1]
        assert found.info[b]['exact'] == special
        assert torch.allclose(
            mended[b, special], loo[special], atol=1e-4
        )  # float32, variants in other batches
        content = slice(1, len(loo) - 1)
        assert torch.equal(mended[b, content], plain[b, content])
    words = explain(
        model,
        tokenizer,
        SENTENCES[:2],
        method='removal',
        units='word',
        exact_special=True,
    )
    assert [w.info['exact'] for w in words] == [[0, len(w) - 1] for w in words]


def test_what_was_measured_of_special_tokens():
    found = read_results(
        Path(__file__).parent.parent / 'results' / 'removal-special.json'
    )['summary']['shares']
    assert found['estimate']['cls_wrong_sign'] > 0.3
    assert (
        found['exact_special']['cls_wrong_sign']
        == found['exact_special']['sep_wrong_sign']
        == 0
    )
    assert (
        found['exact_special']['cls_is_darkest']
        < found['estimate']['cls_is_darkest']
    )


@pytest.mark.parametrize('demo', ['sst2', 'reviews-sst2'])
def test_another_program_same_estimate(demo):
    """The estimate belongs to the function and its attention weights;
    rewriting the program leaves it alone.
    """
    model, tokenizer = load_demo(demo)
    enc = encode(model, tokenizer, SENTENCE)
    plain = removal_scores(model, tokenizer, [enc]).scores
    names = [n for n, (which, _) in REWRITINGS.items() if demo in which]
    assert len(names) >= 5
    for name in names:
        other = removal_scores(rewritten(model, name), tokenizer, [enc]).scores
        assert (other - plain).abs().max() < 2e-3 * plain.abs().max(), name


def test_patches():
    "A patch that no one looks at: exact by key weights, estimated in one pass."
    model, _ = load_demo('mnist')
    g = torch.Generator().manual_seed(0)
    side = model.config.image_size
    enc = encode(
        model,
        None,
        torch.rand(model.config.num_channels, side, side, generator=g),
    )
    loo = leave_one_out(model, enc, removal='attention_mask')[0]
    scores = removal_scores(model, None, [enc]).scores[0]
    assert (
        scores.shape == loo.shape
        and torch.corrcoef(torch.stack([scores, loo]))[0, 1] > 0.8
    )
    exact = removal_loo_scores(model, None, [enc], n_exact=len(loo))
    assert torch.allclose(exact.scores[0], loo, atol=1e-4)


def test_batch_and_units():
    model, tokenizer = load_demo('sst2')
    texts = [SENTENCE, "the jokes are old", "a warm and funny film"]
    for options in (
        {},
        dict(n_groups=3),
        dict(weight=0.5),
        dict(weight=(1.0, 0.2), n_groups=1),
        dict(n_contexts=2),
    ):
        together = explain(model, tokenizer, texts, method='removal', **options)
        alone = [
            explain(model, tokenizer, [t], method='removal', **options)[0]
            for t in texts
        ]
        for a, b in zip(together, alone):
            assert torch.allclose(
                a.scores, b.scores, atol=1e-3
            ) and a.logit == pytest.approx(b.logit, abs=1e-4)
    words = explain(model, tokenizer, texts, method='removal', units='word')
    assert [len(a) for a in words] == [len(a.tokens) for a in words] and words[
        1
    ].tokens[1:-1] == ['the', 'jokes', 'are', 'old']
    tokens = explain(model, tokenizer, [texts[1]], method='removal')[
        0
    ]  # words of one token each: the same
    assert torch.allclose(words[1].scores, tokens.scores, atol=1e-4)
    exact = explain(
        model,
        tokenizer,
        [SENTENCE],
        method='removal+loo',
        units='word',
        n_exact=2,
    )[0]
    loo = explain(model, tokenizer, [SENTENCE], method='loo', units='word')[0]
    assert len(exact.info['exact']) == 2 and torch.allclose(
        exact.scores[exact.info['exact']],
        loo.scores[exact.info['exact']],
        atol=1e-4,
    )


def test_a_span_of_everything_else():
    """One set of keys that leaves a single one: that one's value is what every
    row gets.
    """
    q, k, v = (
        torch.randn(
            1,
            1,
            4,
            3,
            dtype=torch.double,
            generator=torch.Generator().manual_seed(s),
        )
        for s in range(3)
    )

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(4, 3).double()

        def get_input_embeddings(self):
            return self.embed

        def forward(self, input_ids, attention_mask=None):
            x = self.embed(input_ids)[:, None]
            return F.scaled_dot_product_attention(
                x @ q[0, 0, :3], x @ k[0, 0, :3], x
            )[:, 0, 0]

    toy = Toy().eval()
    enc = dict(
        input_ids=torch.tensor([[0, 1, 2, 3]]),
        attention_mask=torch.ones(1, 4, dtype=torch.long),
    )
    u = Units(torch.tensor([-1, 0, 0, 0]), ['rest'], torch.tensor([False]))
    per_head, value, readout = removal_pass(toy, enc, units=[u])
    left = float(toy.embed.weight[0, readout.chosen(0)])
    assert float(per_head.sum()) == pytest.approx(float(value) - left, abs=1e-9)


def test_bad_calls():
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, SENTENCE)
    for options, words in (
        (dict(n_groups=1.5), 'n_groups'),
        (dict(n_contexts=-1), 'n_contexts'),
        (dict(share=0), 'share'),
        (dict(weight=1.2), 'weight'),
        (dict(weight=()), 'empty path'),
        (dict(weight=(1.0, 0.0)), 'weight'),
    ):
        with pytest.raises(ValueError, match=words):
            removal_scores(model, tokenizer, [enc], **options)
    with pytest.raises(ValueError, match='n_exact'):
        removal_loo_scores(model, tokenizer, [enc], n_exact=-1)
    every = removal_loo_scores(model, tokenizer, [enc], n_exact=99)
    assert every.info[0]['exact'] == list(
        range(1, enc['input_ids'].shape[1] - 1)
    )  # a budget, not a promise: special tokens stay estimates
    with pytest.raises(ValueError, match='one text at a time'):
        removal_loo_scores(
            model, tokenizer, [{k: v.repeat(2, 1) for k, v in enc.items()}]
        )
    with pytest.raises(TypeError, match='does not take'):
        explain(model, tokenizer, SENTENCE, method='removal', eps=1e-3)

    class NoAttention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.e = torch.nn.Embedding(9, 4)
            self.o = torch.nn.Linear(4, 2)

        def get_input_embeddings(self):
            return self.e

        def forward(self, input_ids, attention_mask=None):
            return self.o(self.e(input_ids).mean(1))

    with pytest.raises(ValueError, match='no attention call'):
        removal_scores(
            NoAttention().eval(),
            None,
            [
                dict(
                    input_ids=torch.tensor([[1, 2]]),
                    attention_mask=torch.ones(1, 2, dtype=torch.long),
                )
            ],
        )
    with pytest.raises(ValueError, match='keys for 3 inputs'):
        with key_weights(torch.ones(1, 3)):
            forward(model, enc)


def test_experiments_end_to_end(tmp_path, capsys):
    """The command line runs the parts, draws their figures, and goes on from
    finished rows.
    """
    from lrp_loo.cli import main
    from lrp_loo.results import read_results

    command = [
        'reproduce',
        '--data',
        'embedded',
        '--only',
        'gap,weights',
        '--limit',
        '2',
        '--out',
        str(tmp_path),
    ]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert 'own trapezoid' in out and 'contexts, 4 passes' in out
    gap = read_results(tmp_path / 'results' / 'embedded' / 'gap.json')
    assert (
        len(gap['rows']) == 2
        and gap['rows'][0]['r']['own trapezoid']
        > gap['rows'][0]['r']['mask derivative']
    )
    assert (tmp_path / 'figures' / 'embedded' / 'gap.png').stat().st_size > 5000
    before = (tmp_path / 'results' / 'embedded' / 'gap.json').read_text()
    assert main([*command[:4], 'gap', *command[5:]]) == 0
    assert (
        tmp_path / 'results' / 'embedded' / 'gap.json'
    ).read_text() == before


def test_remedy_claims_are_computed():
    "The verdicts follow the rows: turn the rows over and they turn over."
    from lrp_loo.studies.remedy import REMEDY, remedy_claims, remedy_table

    def row(i, good, bad):
        return dict(
            i=i,
            n_tokens=9,
            methods={
                'loo': dict(
                    r=1.0,
                    r_sum=1.0,
                    r_sum_both=1.0,
                    r_all=1.0,
                    lerf=2.0,
                    morf=1.0,
                )
            }
            | {
                m: dict(
                    r=good if 'removal' in m else bad,
                    r_sum=0.0,
                    r_sum_both=0.0,
                    r_all=0.0,
                    lerf=1.0 + (good if 'removal' in m else bad),
                    morf=0.0,
                )
                for m in REMEDY
            },
        )

    config = dict(methods={n: list(v) for n, v in REMEDY.items()})
    good, bad = (
        {
            'sst2': dict(
                config=config, rows=[row(i, g + i / 1000, b) for i in range(5)]
            )
        }
        for g, b in ((0.98, 0.5), (0.5, 0.98))
    )
    assert all(c['holds'] for c in remedy_claims(good)) and not any(
        c['holds'] for c in remedy_claims(bad) if 'morf' not in c['claim']
    )
    assert remedy_table(good['sst2']).passes['removal, 9 passes'] == 9
