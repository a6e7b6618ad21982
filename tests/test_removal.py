"""Removal-aware attribution against definitions: finite differences of the mask,
keys really left out of each softmax, the same function written otherwise.
"""

import copy
import itertools
import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from families import FAMILIES, family_tasks, random_inputs, random_model
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lrp_loo import explain, load_demo, refine
from lrp_loo.inputs.targets import Readout
from lrp_loo.inputs.units import Units
from lrp_loo.core.tensors import pad_batch
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.removals import EncodedText, key_weights
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.table import fused_attention
from lrp_loo.lrp.composite import gradient
from graph_memory import graph_bytes
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.call import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.estimate import removal_scores
from lrp_loo.estimate.estimates import FLOOR, SLOPE, SLOPE_VARIANCE
from lrp_loo.estimate.one_pass import key_effects, removal_pass

SENTENCE = "a slow start , but the last act is a quiet triumph"
SENTENCES = [
    SENTENCE,
    "the jokes are old",
    "an hour too long and not one laugh",
    "she carries every scene with ease",
]
# of the largest score: float32 rounds by 1e-7 a step, which adds up to 3e-6
# (research/results/removal-precision.json)
SINGLE = 1e-5


@pytest.fixture(scope='module')
def encs(demo):
    return [encode(*demo, text) for text in SENTENCES]


def of_largest(a, b):
    "The largest difference in units of the largest score of b."
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


# --- the derivative by the mask, on every family


@pytest.mark.parametrize('family,task', family_tasks())
def test_mask_derivative_and_one_estimate_of_both_implementations(family, task):
    estimates = []
    for attention in ['eager', 'sdpa'] if FAMILIES[family].fused else ['eager']:
        model = random_model(family, task, attention)
        inputs = random_inputs(model)
        derivative, readout = mask_derivative(model, inputs)
        for j in (1, len(derivative) - 2):
            # some models take softmax in single precision
            assert float(derivative[j]) == pytest.approx(
                finite_difference(model, inputs, readout, j), rel=1e-2, abs=1e-3
            ), attention
        scores = removal_scores(model, None, [inputs]).scores
        assert scores.shape == (1, EncodedText(model, inputs).n_positions)
        assert torch.isfinite(scores).all()
        estimates.append(scores)
    # eager attention takes its softmax in single precision
    assert of_largest(estimates[0], estimates[-1]) < 2e-3


def mask_derivative(model, inputs):
    "Σ ∂f/∂Z_ij over layers, heads and rows; the number that is explained."
    with (
        torch.enable_grad(),
        watch_embeddings(model),
        lrp_rules(model, gradient(), record=True) as rules,
    ):
        out = forward(model, inputs)
    readout = Readout(None, out, inputs)
    with torch.enable_grad():
        value = readout(out)
    logits = [w.Z for w in rules.attention]
    columns = [g.sum((0, 1, 2)) for g in torch.autograd.grad(value.sum(), logits)]
    return sum(columns)[-EncodedText(model, inputs).n_positions :], readout


def finite_difference(model, inputs, readout, j, step=1e-2):
    "∂f/∂log m_j, one-sided and of second order: weights stay at most 1."
    f = []
    for h in (0.0, step, 2 * step):
        m = torch.ones(1, EncodedText(model, inputs).n_positions, dtype=torch.double)
        m[0, j] = math.exp(-h)
        with torch.no_grad(), key_weights(m):
            f.append(float(readout(forward(model, inputs))))
    return (3 * f[0] - 4 * f[1] + f[2]) / (2 * step)


# --- against keys that are really left out


@dataclass
class Call:
    "A fused attention call of one text: tensors (1, heads, T, d)."

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict
    out: torch.Tensor  # a tensor whose gradient can be asked for

    def visible(self, head, row):
        "The keys that a row sees."
        T = self.k.shape[2]
        keys = range(row + 1) if self.options.get('is_causal') else range(T)
        mask = self.options.get('attn_mask')
        if mask is None:
            return list(keys)
        m = mask.expand(1, self.q.shape[1], T, T)[0, head, row]
        open_ = m if m.dtype == torch.bool else m > -1e9
        return [j for j in keys if open_[j]]

    def effects(self, head, row):
        "key j → O_row − O_row without j, the softmax taken over the rest."
        own = head // (self.q.shape[1] // self.k.shape[1])  # grouped queries
        scale = self.options.get('scale') or self.q.shape[-1] ** -0.5
        z = (self.k[0, own] @ self.q[0, head, row]).detach() * scale
        keys = self.visible(head, row)
        found = {}
        for j in keys:
            rest = [n for n in keys if n != j]
            if rest:
                without = z[rest].softmax(0) @ self.v[0, own][rest]
                found[j] = (self.out[0, head, row] - without).detach()
        return found


class Capture(TorchFunctionMode):
    "Keeps every fused attention call."

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, '__name__', '') != 'scaled_dot_product_attention':
            return func(*args, **kwargs)
        out = func(*args, **kwargs) * 1.0
        self.calls.append(Call(*args[:3], kwargs, out))
        return out


def naive_removal(model, inputs):
    """⟨∂f/∂O_i, O_i − O_i without key j⟩ with key j left out of the softmax,
    one row of one head at a time.
    """
    table = model.get_input_embeddings()
    e = table(inputs['input_ids']).detach().requires_grad_()
    with torch.enable_grad(), Capture() as seen:
        out = model(inputs_embeds=e, attention_mask=inputs['attention_mask'])
    value = Readout(None, out, inputs)(out).sum()
    gradients = torch.autograd.grad(value, [c.out for c in seen.calls])
    read = gradients[-1][0].abs().sum((0, 2)) > 0  # rows that the output reads
    total = torch.zeros(len(read), dtype=torch.double)
    for call, g in zip(seen.calls, gradients):
        heads = range(call.q.shape[1])
        for head, row in itertools.product(heads, range(len(read))):
            for j, effect in call.effects(head, row).items():
                if j != row or read[row]:
                    total[j] += g[0, head, row] @ effect
    return total


@pytest.mark.parametrize('family', ['BERT', 'RoBERTa', 'Llama', 'Qwen2'])
def test_one_pass_is_the_sum_of_keys_left_out(family):
    model = random_model(family, 'class', 'sdpa')
    inputs = random_inputs(model, 7)
    ours = removal_scores(model, None, [inputs]).scores[0]
    assert torch.allclose(ours, naive_removal(model, inputs), rtol=1e-6, atol=1e-9)


# --- precision


def test_single_precision_is_near_double_in_any_batch(demo, encs):
    single = removal_scores(*demo, encs).scores
    double = copy.deepcopy(demo[0]).double()
    for i, enc in enumerate(encs):
        exact = removal_scores(double, demo[1], [enc]).scores[0]
        assert of_largest(single[i, : len(exact)], exact) < SINGLE
        alone = removal_scores(*demo, [enc]).scores[0]
        beside = removal_scores(*demo, [enc, *encs]).scores
        for row in (0, i + 1):
            assert of_largest(beside[row, : len(alone)], alone) < SINGLE


# --- one softmax


def random_rows():
    "Logits, values, the gradient at the output: two heads, four rows, five keys."
    g = torch.Generator().manual_seed(0)
    shapes = ((1, 2, 4, 5), (1, 2, 5, 3), (1, 2, 4, 3))
    return [torch.randn(*s, generator=g, dtype=torch.double) for s in shapes]


def effect_of_leaving_out(Z, V, u, j):
    "u·(O − O without key j), the softmax taken again over what is left; per row."
    rest = [k for k in range(Z.shape[-1]) if k != j]
    without = Z[..., rest].softmax(-1) @ V[..., rest, :]
    return (u * (Z.softmax(-1) @ V - without)).sum(-1)


# eps of the dtype, logits up to 60, sums of five
@pytest.mark.parametrize('dtype,bound', [(torch.double, 1e-14), (torch.float32, 1e-5)])
# 60: the largest key leaves 1e-26 to the others, far below what 1 − A can hold
@pytest.mark.parametrize('peak', [0.0, 20.0, 60.0])
def test_one_key_has_nearly_all(peak, dtype, bound):
    Z, V, u = random_rows()
    Z = Z + torch.tensor([0, 0, peak, 0, 0], dtype=torch.double)
    gain = u @ V.mT
    effects = key_effects(gain.to(dtype), Z.to(dtype).softmax(-1))
    exact = torch.stack([effect_of_leaving_out(Z, V, u, j) for j in range(5)], -1)
    assert (effects - exact).abs().max() < bound * gain.abs().max()


class OneHead(torch.nn.Module):
    "Attention with random queries and keys; its first row is the output."

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3).double()
        self.get_input_embeddings = lambda: self.embed
        self.q, self.k = torch.randn(2, 3, 3, generator=torch.manual_seed(0)).double()

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)[:, None]
        return F.scaled_dot_product_attention(x @ self.q, x @ self.k, x)[:, 0, 0]


def test_a_span_of_everything_else_leaves_the_one_value():
    toy = OneHead().eval()
    enc = dict(input_ids=torch.arange(4)[None], attention_mask=torch.ones(1, 4).long())
    rest = Units(torch.tensor([-1, 0, 0, 0]), ['rest'], torch.tensor([False]))
    found = removal_pass(toy, enc, units=[rest])
    left = toy.embed.weight.detach()[0, found.readout.chosen(0)]
    effect = float(found.values) - float(left)
    assert float(found.terms.sum()) == pytest.approx(effect, abs=1e-9)


# --- other programs, images, batches, units


def test_patches_are_estimated_in_one_pass():
    model, _ = load_demo('mnist')
    g = torch.Generator().manual_seed(0)
    enc = encode(model, None, torch.rand(1, 28, 28, generator=g))
    loo, *_ = leave_one_out(model, enc, removal='attention_mask')
    scores = removal_scores(model, None, [enc]).scores[0]
    assert torch.corrcoef(torch.stack([scores, loo]))[0, 1] > 0.8


def test_patches_are_exact_where_they_are_paid_for():
    model, _ = load_demo('mnist')
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    (loo,) = explain(model, None, image, 'loo', removal='attention_mask')
    (mixed,) = explain(model, None, image, passes=9)
    which = mixed.info['exact']
    assert 6 <= len(which) < len(loo) and not mixed.exact
    assert torch.allclose(mixed.scores[which], loo.scores[which], atol=1e-4)
    (exact,) = explain(model, None, image, passes=None)
    assert exact.exact and torch.allclose(exact.scores, loo.scores, atol=1e-4)


def test_the_estimate_is_the_mean_of_a_normal_law_given_its_exact_tokens(demo):
    "LOO − e ~ N(κ m s, b s sᵀ + diag(d)) over the content, conditioned by hand."
    model, tokenizer = demo
    enc = encode(model, tokenizer, SENTENCE)
    a = refine(explain(model, tokenizer, SENTENCE, passes=3)[0], 2)
    known = a.info['exact']
    assert len(known) == 2
    with torch.no_grad():
        p = model(**enc).logits[0].double().softmax(-1)[a.target]
    terms = removal_pass(model, enc)
    e = terms.terms[0].sum(0).double()
    s = terms.spread[0].pow(2).sum(0).sqrt().double() * a.is_content
    prior = e + SLOPE * torch.logit(p) * s
    d = s**2 + FLOOR * (s[a.is_content] ** 2).mean()
    covariance = SLOPE_VARIANCE * s[:, None] * s + d.diag()
    loo = leave_one_out(model, enc)[0].double()
    weights = torch.linalg.solve(
        covariance[known][:, known], (loo - prior)[known][:, None]
    )
    mean = prior + (covariance[:, known] @ weights)[:, 0]
    assert torch.allclose(a.scores.double(), mean, atol=1e-4)
    unknown = [i for i in range(len(e)) if i not in known]
    assert (mean - prior)[unknown].abs().max() > 1e-2  # they learn from the exact ones


def test_words_are_units_and_exact_where_they_are_paid_for(demo):
    mixed = refine(explain(*demo, SENTENCE, units='word', passes=3)[0], 2)
    (loo,) = explain(*demo, SENTENCE, method='loo', units='word')
    assert mixed.tokens == ['[CLS]', *SENTENCE.split(), '[SEP]']
    which = mixed.info['exact']
    assert len(which) == 2
    assert torch.allclose(mixed.scores[which], loo.scores[which], atol=1e-4)


# --- no maps: A is made again on the way back


FUSED = [(f, t) for f, t in family_tasks() if FAMILIES[f].fused]


def made_again_and_recorded(model, inputs, **options):
    "The terms without maps, and from those that a pass records."

    def record(self, call, composite):
        return fused_attention(call, composite)

    yield removal_pass(model, inputs, **options).terms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lrp_loo.estimate.one_pass._FusedCalls.rule', record)
        patch.setattr('lrp_loo.estimate.one_pass.why_no_states', lambda model: 'rules')
        yield removal_pass(model, inputs, **options).terms


@pytest.mark.parametrize('family,task', FUSED)
def test_maps_are_made_again_as_they_were(family, task, monkeypatch):
    model = random_model(family, task, 'sdpa')
    inputs = random_inputs(model)
    n = EncodedText(model, inputs).n_positions
    keep = torch.arange(n)[None] != 1
    for at_once in (1, 2**18):  # one head at a time, then all
        monkeypatch.setattr('lrp_loo.estimate.one_pass.AT_ONCE', at_once)
        for options in (dict(keep=keep), {}):
            again, recorded = made_again_and_recorded(model, inputs, **options)
            # float64; a few families take softmax in single precision
            assert of_largest(again, recorded) < 1e-5, options


def test_units_and_padding_without_maps(demo):
    model, tokenizer = demo
    two = [encode(*demo, text) for text in SENTENCES[:2]]
    batch = pad_batch(tokenizer, two)
    pair = torch.arange(two[1]['input_ids'].shape[1]) // 2
    units = [None, Units(pair, [str(i) for i in pair.unique().tolist()], None)]
    again, recorded = made_again_and_recorded(model, batch, units=units)
    assert of_largest(again, recorded) < SINGLE


def test_without_maps_a_pass_holds_what_attn_lrp_holds(demo):
    ids = torch.arange(256)[None] + 1000
    enc = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    held, plain = (
        graph_bytes(partial(f, demo[0], None, [enc]))
        for f in (removal_scores, lrp_scores)
    )
    assert held < 1.1 * plain


class HalfWrittenOut(torch.nn.Module):
    "Two attentions: a fused one, and one that writes its softmax out."

    calls_torch = True  # False: the formula of the fused one is written out as well

    def __init__(self, last_is_fused):
        super().__init__()
        torch.manual_seed(0)
        self.last_is_fused = last_is_fused
        self.embed = torch.nn.Embedding(20, 8)
        self.turn, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
        self.get_input_embeddings = lambda: self.embed

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)[:, None]
        for fused in (not self.last_is_fused, self.last_is_fused):
            q = self.turn(x)
            logits = q @ x.mT
            if fused and self.calls_torch:
                x = x + F.scaled_dot_product_attention(q, x, x, is_causal=True)
                continue
            if fused:
                later = torch.ones_like(logits).triu(1).bool()
                logits = (logits / 8**0.5).masked_fill(later, -torch.inf)
            x = x + logits.softmax(-1) @ x
        return self.head(x[:, 0, -1])


@pytest.mark.parametrize('last_is_fused', [True, False])
def test_a_model_that_fuses_some_calls_has_all_recorded(last_is_fused):
    model = HalfWrittenOut(last_is_fused).double().eval()
    enc = dict(input_ids=torch.tensor([[1, 5, 9, 13]]))
    again, recorded = made_again_and_recorded(model, enc)
    assert torch.equal(again, recorded)
    model.calls_torch = False
    assert torch.allclose(again, removal_pass(model, enc).terms)


@pytest.mark.parametrize('attention', ['eager', 'sdpa'])
def test_one_pass_is_one_forward_pass(attention):
    model = random_model('BERT', 'class', attention)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    removal_pass(model, random_inputs(model))
    assert len(calls) == 1


# --- calls that cannot be meant


def test_the_methods_are_the_direct_formula(demo, encs):
    "The sum of a pass's terms."
    for enc in encs[:3]:
        terms = removal_pass(*demo[:1], enc).terms[0]
        one = removal_scores(*demo, [enc]).scores[0]
        assert torch.allclose(one, terms.sum(0), atol=1e-6)
