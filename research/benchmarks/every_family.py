"""Every family of transformers with random weights, small, and what lrp_loo makes of it.

`python research/benchmarks every_family --write` builds the text families of the installed
transformers (and some that read images), makes the checks of `CHECKS` on each, and writes
what came to results/every-family.json (a row per family, task and setting of the weights,
resumable) and .md (a row per family). The outcome of a check is one of

- right: the numbers are those of an independent computation;
- refused: an error or a warning of lrp_loo's own says what it cannot do;
- wrong: the numbers differ and nothing was said, or somebody else's error came;
- no case: there is nothing to check.

Names choose families: `... every_family bert xlm` prints what is wrong with them.
"""

import argparse
import collections
import contextlib
import copy
import hashlib
import math
import os
import re
import sys
import traceback
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('MPLBACKEND', 'agg')

TESTS = Path(__file__).parents[2] / 'tests'  # the small models are theirs, too
sys.path.append(str(TESTS))

import torch
import transformers
from small_models import (
    HELD_BACK,
    INSIDE,
    LENGTHS,
    SETTINGS,
    TASKS,
    VISION,
    WIDEST,
    WITH_AN_IMAGE,
    Words,
    build,
    class_name,
    inputs_for,
    logits_of,
    masked,
    number,
    plain,
    target_for,
    text_families,
)
from torch.overrides import TorchFunctionMode
from with_images import WITH_IMAGES

import lrp_loo
from lrp_loo.inputs.targets import Readout
from lrp_loo.core.files import write_text_atomic
from lrp_loo.core.tensors import pad_batch
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.removals import key_weights
from lrp_loo.lrp import lrp_rules
from lrp_loo.paper.conservation import conservation
from lrp_loo.lrp.composite import attn_lrp, cp_lrp, gradient
from lrp_loo.methods import explain_batch
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.call import check_model, forward, watch_embeddings
from lrp_loo.models.structure import input_embeddings
from lrp_loo.models.multipart import MultiPartModel
from lrp_loo.estimate import removal_scores
from lrp_loo.records.results import Results, read_results

RESULTS = Path(__file__).parents[2] / 'results'
LIBRARY = str(Path(lrp_loo.__file__).parent)
HARNESS = [Path(__file__), *(TESTS / f for f in ('small_models.py', 'with_images.py'))]

# ------------------------------------------------------------------ outcomes

OUTCOMES = ('right', 'no case', 'refused', 'wrong')  # from good to bad
FLOAT32 = torch.finfo(torch.float32).eps


def right(value):
    "The numbers agree; `value`: the largest difference in units of the scale."
    return dict(outcome='right', value=value)


def wrong(why, value=None):
    "The numbers differ, or somebody else's error came."
    return dict(outcome='wrong', why=one_line(why), value=value)


def refused(why):
    "The library said why not."
    return dict(outcome='refused', why=one_line(why))


def no_case(why):
    "There is nothing to check."
    return dict(outcome='no case', why=why)


def one_line(text, n=300):
    "A message in one line, cut."
    text = ' '.join(str(text).split())
    return text if len(text) <= n else f'{text[:n]} …'


def held(got, want, tolerance, floor=0.0, what=''):
    """Right where the largest difference of two tensors is within the tolerance, in units
    of the largest wanted number, or the floor, which is rounding whatever the scale.
    """
    error = float((got.double() - want.double()).abs().max())
    scale = float(want.double().abs().max())
    share = error / max(scale, floor / tolerance, sys.float_info.min)
    if share <= tolerance:
        return right(share)
    return wrong(f'{what}off by {error:.2g}, the largest is {scale:.2g}', share)


class Answer:
    """What came of a call: its value, or why there is none; and what the
    library warned of.
    """

    def __init__(self, call, *args, **options):
        self.value = None
        self.bad = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            try:
                self.value = call(*args, **options)
            except Exception as e:
                self.bad = judged(e)
        self.said = [str(w.message) for w in caught if is_ours(w)]

    def about(self, words):
        "The first warning that has these words."
        return next((m for m in self.said if words in m), None)

    def reason(self):
        "The first warning that says more than which operation has no rule."
        return next((m for m in self.said if not m.startswith('no rule')), None)


def is_ours(w):
    """Is it a warning of lrp_loo's own? It stands at the caller's line, or at
    the `with` that ends.
    """
    return w.category is UserWarning and w.filename.startswith(
        (LIBRARY, __file__, contextlib.__file__)
    )


# What lrp_loo says of its own result and not of the call: these models' own
# numbers are finite.
NO_REASON = ('not finite', 'scores must have shape')


def judged(e):
    """An error as an outcome: a refusal where lrp_loo raised it in words of
    its own, else a crash.
    """
    last = traceback.extract_tb(e.__traceback__)[-1]
    raised_by_us = last.filename.startswith(LIBRARY) and 'raise ' in (last.line or '')
    kind_is_right = isinstance(e, (ValueError, TypeError, NotImplementedError))
    is_reason = str(e) and not any(words in str(e) for words in NO_REASON)
    if raised_by_us and kind_is_right and is_reason:
        return refused(e)
    return wrong(f'{type(e).__name__} in {Path(last.filename).name}: {e}')


# -------------------------------------------------- rules: logits, coverage

RULES = {'attn_lrp': attn_lrp, 'cp_lrp': cp_lrp}


class UnderRules(NamedTuple):
    "What one forward under the rules shows."

    rules: object
    x: torch.Tensor  # the embeddings, a leaf
    out: object  # the model's output


def under_rules(model, enc, composite, mode=None):
    "One forward under the rules."
    with torch.enable_grad(), watch_embeddings(model) as seen:
        with lrp_rules(model, composite) as rules, mode or contextlib.nullcontext():
            call = forward if isinstance(model, MultiPartModel) else plain
            out = call(model, enc)
    return UnderRules(rules, seen[0], out)


def check_logits(model, task, encs):
    """Under both rule sets the model computes the numbers that it computes
    alone.
    """
    with torch.no_grad():
        own = logits_of(plain(model, encs[0]), task)
    for name, rules in RULES.items():
        answer = Answer(under_rules, model, encs[0], rules())
        if answer.bad:
            return answer.bad
        got = logits_of(answer.value.out, task).detach()
        # the same operations: a few roundings
        found = held(got, own, 1e-5, what=f'{name}: ')
        if found['outcome'] == 'wrong':
            break
    return found


def check_coverage(model, task, encs):
    "Every operation has a rule, or is named in a warning."
    named = set()
    for name, rules in RULES.items():
        answer = Answer(under_rules, model, encs[0], rules())
        if answer.bad:
            return answer.bad
        missing = answer.value.rules.without_rule()
        silent = [m for m in missing if not answer.about(m)]
        if silent:
            return wrong(
                f'{name}: {", ".join(silent)} without a rule, and nothing is said'
            )
        if answer.about('no operation'):
            return refused(answer.about('no operation'))
        named |= set(missing)
    if named:
        return refused(f'no rule for {", ".join(sorted(named))}')
    return right(0.0)


# ------------------------------------------------------------------ LOO


@torch.no_grad()
def by_hand(model, task, enc):
    """LOO without the library: a forward of its own for each token masked, or
    patch zeroed.
    """
    whole = number(plain(model, enc), task)
    if task == 'image':
        places = range(n_patches(model, enc))
        variants = [zeroed(model, task, enc, i) for i in places]
    else:
        places = range(enc['input_ids'].shape[1])
        variants = [number(plain(model, masked(enc, i)), task) for i in places]
    return torch.stack([whole - v for v in variants])


def n_patches(model, enc):
    "How many places the patch embedding has."
    with watch_embeddings(model) as seen:
        plain(model, enc)
    return n_of(seen[0])


def n_of(x):
    "How many patches these embeddings are of."
    return x.shape[1] if x.ndim == 3 else x[0, 0].numel()


def zeroed(model, task, enc, i):
    """The number of an image whose patch i has a zero embedding, by a hook of
    our own.
    """

    def zero(module, args, out):
        x = (out[0] if isinstance(out, tuple) else out).clone()
        if x.ndim == 3:
            x[:, i] = 0
        else:
            x.flatten(2)[:, :, i] = 0
        return (x, *out[1:]) if isinstance(out, tuple) else x

    handle = input_embeddings(model).register_forward_hook(zero)
    try:
        return number(plain(model, enc), task)
    finally:
        handle.remove()


def loo_of(model, enc, target):
    "The library's scores."
    return leave_one_out(model, enc, target)[0]


@torch.no_grad()
def largest_logit(model, task, enc):
    return float(logits_of(plain(model, enc), task).abs().max())


def check_loo(model, task, encs):
    """Leave-One-Out is what one masked forward at a time gives, and no model
    that ignores the mask.
    """
    enc = encs[0]
    answer = Answer(loo_of, model, enc, target_for(task))
    if answer.bad:
        return answer.bad
    logit = largest_logit(model, task, enc)
    want = by_hand(model, task, enc)
    # rounding of a logit over these models' few layers
    floor = 32 * FLOAT32 * logit
    found = held(answer.value, want, 1e-3, floor)
    if found['outcome'] == 'wrong':
        floor = max(floor, 4 * rounding(model, task, enc, want))
        found = held(answer.value, want, 1e-3, floor)
    largest = float(want.abs().max())
    if found['outcome'] == 'right' and 1e-3 * largest < floor:
        found = loo_in_float64(model, task, enc, logit) or found
    if found['outcome'] == 'right' and largest <= floor and task != 'image':
        moved = exchanged(model, task, enc)
        if moved > 100 * floor:
            found = wrong(
                'zero everywhere, and exchanging a token moves the logit by'
                f' {moved:.2g}'
            )
    if found['outcome'] == 'wrong' and answer.reason():
        return refused(answer.reason())
    return found


def rounding(model, task, enc, loo):
    "The largest rounding of LOO by hand, where float64 can tell; else 0."
    wide = in_float64(model, task, enc)
    if wide is None:
        return 0.0
    off = (by_hand(wide, task, floats(enc, torch.float64)) - loo).abs().max()
    return float(off.nan_to_num(nan=0.0))


def loo_in_float64(model, task, enc, logit):
    """The same where float32 cannot tell: LOO is smaller than the rounding of
    a logit.
    """
    wide = in_float64(model, task, enc)
    enc = floats(enc, torch.float64)
    if wide is None:
        return None
    answer = Answer(loo_of, wide, enc, target_for(task))
    if answer.bad:
        return answer.bad
    want = by_hand(wide, task, enc)
    if not want.isfinite().all():  # some models' masks do not fit float64
        return None
    # scores come back in float32, and some models compute norms in it
    floor = FLOAT32 * logit
    return held(answer.value, want, 1e-3, floor, 'in float64: ')


@torch.no_grad()
def exchanged(model, task, enc):
    "How far the number moves at most when one token is another one."
    moved, whole = [], number(plain(model, enc), task)
    for i in (1, INSIDE - 1, enc['input_ids'].shape[1] - 2):
        ids = enc['input_ids'].clone()
        ids[0, i] = 4
        value = number(plain(model, enc | {'input_ids': ids}), task)
        moved.append(float((value - whole).abs()))
    return max(moved)


def floats(enc, dtype):
    "The input with its pixels in another precision."
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in enc.items()}


def in_float64(model, task, enc):
    """The model in float64; None where transformers' own forward takes none or
    gives other numbers.
    """
    try:
        wide = copy.deepcopy(model).double()
        if hasattr(wide.config, '_experts_implementation'):
            # the grouped product takes no float64
            getattr(wide, 'inside', wide).set_experts_implementation('eager')
        with torch.no_grad():
            a = logits_of(plain(model, enc), task)
            b = logits_of(plain(wide, floats(enc, torch.float64)), task)
    except Exception:
        return None
    near = 1e-3 * float(a.abs().max())
    agree = torch.allclose(a.double(), b.double(), rtol=0, atol=near)
    return wide if agree else None


# ------------------------------------------------------------------ CP-LRP


class ConstantAttention(TorchFunctionMode):
    """Attention weights held constant by this file's own means: every softmax
    that is no router's.
    """

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name == 'scaled_dot_product_attention':
            query, key, *rest = args
            return func(without_gradient(query), without_gradient(key), *rest, **kwargs)
        if name == 'multi_head_attention_forward':  # whose softmax this mode can't see
            query, key, *rest = args
            kwargs |= dict(attn_mask=without_gradient(kwargs.get('attn_mask')))
            return func(without_gradient(query), without_gradient(key), *rest, **kwargs)
        out = func(*args, **kwargs)
        weighs_tokens = (
            name == 'softmax' and out.ndim > 2 and out.shape[-1] not in self.experts
        )
        return without_gradient(out) if weighs_tokens else out


def without_gradient(x):
    """The same numbers as a constant, made where the rules do not look: they
    refuse a gradient that ends.
    """
    with torch._C.DisableTorchFunction():
        return x.detach() if torch.is_tensor(x) else x


def experts_of(model):
    "The sizes that a router's softmax has."
    names = ('num_experts', 'num_local_experts', 'n_routed_experts', 'moe_num_experts')
    sizes = (getattr(model.config, n, None) for n in names)
    return {n for n in sizes if isinstance(n, int)}


def relevance(model, task, enc, composite, mode=None):
    "Relevance of every entry of the embeddings, and the rules."
    rules, x, out = under_rules(model, enc, composite, mode)
    (g,) = torch.autograd.grad(number(out, task), x)
    return x.detach() * g, rules


def softmaxes(rules, rule):
    "The modules whose softmax got this rule."
    r = rules.report()
    return sorted(set(r[(r.operation == 'softmax') & (r.rule == rule)].module))


def check_cp_softmax(model, task, encs):
    """CP-LRP holds the weights of every attention: the same as cutting them by
    hand.
    """
    how = dict(composite=cp_lrp(), dims=True)
    answer = Answer(lrp_scores, model, None, encs[:1], target_for(task), **how)
    if answer.bad:
        return answer.bad
    cut = ConstantAttention(experts_of(model))
    no_bypass = replace(cp_lrp(), bypass_softmax=())
    want, _ = relevance(model, task, encs[0], no_bypass, cut)
    # the same operations, summed in float32
    found = held(answer.value.scores, want, 1e-3)
    if found['outcome'] == 'right':
        return found
    if said := answer.about('softmax'):
        return refused(said)
    _, rules = relevance(model, task, encs[0], cp_lrp())
    for rule in ('own gradient', 'constant weights'):
        if modules := softmaxes(rules, rule):
            found['why'] += f'; {rule} at the softmax of {modules[0]}'
    return found


def check_cp_sum(model, task, encs):
    """Under CP-LRP the logit goes to words, biases and added constants, and
    nothing is lost.
    """
    enc, tolerance = encs[0], 1e-3
    if (wide := in_float64(model, task, enc)) is not None:  # norms stay in float32
        model, enc, tolerance = wide, floats(enc, torch.float64), 1e-4
    answer = Answer(conservation, model, enc, cp_lrp(), target_for(task))
    if answer.bad:
        return answer.bad
    if answer.about('no rule'):
        return no_case('an operation without a rule keeps its gradient, as is said')
    s = answer.value
    share = abs(s['remainder']) / max(map(abs, s.values()))
    if share <= tolerance:
        return right(share)
    _, rules = relevance(model, task, enc, cp_lrp())
    if own := softmaxes(rules, 'own gradient'):
        return no_case(f'the softmax of {own[0]} keeps its gradient')
    return wrong(f'{s["remainder"]:.2g} of a logit of {s["logit"]:.2g} is lost', share)


# ------------------------------------------------------------------ removal


class Recorded(NamedTuple):
    "One forward and backward pass, and every attention's maps."

    calls: list  # `Weights`
    by_logits: list  # ∂f/∂Z of each
    by_weights: list  # ∂f/∂A
    places: list  # of the rows and the keys of each, −1: none
    value: object  # value(model, inputs) is the explained number


def recorded(model, enc, target):
    "By plain gradients."
    with (
        torch.enable_grad(),
        watch_embeddings(model) as seen,
        lrp_rules(model, gradient(), record=True) as rules,
    ):
        out = forward(model, enc)
        readout = Readout(target, out, enc)
        value = readout(out).sum()
    calls = [w for w in rules.attention if w.A.ndim == 4]
    maps = [x for w in calls for x in (w.Z, w.A)]
    how = dict(allow_unused=True, materialize_grads=True)
    grads = torch.autograd.grad(value, maps, **how)
    n = enc['input_ids'].shape[1] if 'input_ids' in enc else n_of(seen[0])
    places = [w.positions or in_front(w.A, n) for w in calls]
    return Recorded(calls, grads[::2], grads[1::2], places, readout), n


def in_front(A, n):
    "Rows and keys are the inputs; a class token or two stand before patches."
    rows, keys = (torch.arange(k) - (k - n) for k in A.shape[2:])
    return rows.clamp(min=-1), keys.clamp(min=-1)


class Wide(TorchFunctionMode):
    """Norms and softmaxes that a model computes in float32 stay in float64, so that a
    step tells that is too small for a ReLU to switch on the way.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, '__name__', '')
        given = args[0] if args and torch.is_tensor(args[0]) else None
        if name == 'float' and given is not None and not given.is_floating_point():
            return given.double()  # positions, which meet frequencies in float64
        is_wide = given is not None and given.dtype == torch.float64
        if is_wide and (
            name == 'float' or (name in ('to', 'type') and torch.float32 in args)
        ):
            return given
        if is_wide and kwargs.get('dtype') == torch.float32:
            kwargs['dtype'] = torch.float64
        if name.startswith('scatter') and torch.is_tensor(kwargs.get('src')):
            args = (given.to(kwargs['src'].dtype), *args[1:])  # TAPAS makes zeros
        return func(*args, **kwargs)


def check_derivative(model, task, encs):
    """What the maps say of a key that fades is what the model says when it does,
    by finite differences; `removal` is their sum over keys that are gone.
    """
    target = target_for(task)
    answer = Answer(explain_batch, model, Words(), encs[:1], 'removal', target)
    if answer.bad:
        return answer.bad
    wide = in_float64(model, task, encs[0])
    if wide is None:
        return no_case('no forward in float64, where differences could be told')
    enc = floats(encs[0], torch.float64)
    maps, n = recorded(wide, enc, target)
    differences = by_differences(wide, enc, maps.value, n)
    found = held(fading(maps, n), differences, 1e-3, 1e-7)
    if found['outcome'] == 'wrong':
        return found
    whole = removal_scores(wide, None, [enc], target)
    return held(whole.scores[0].double(), gone(maps, n), 1e-3, 1e-7, 'the sum: ')


def fading(maps, n):
    "∂f/∂ log m_j of every place j, from the maps."
    total = torch.zeros(n, dtype=torch.float64)
    for g, (_, keys) in zip(maps.by_logits, maps.places):
        total.index_add_(0, keys[keys >= 0], g.double().sum((0, 1, 2))[keys >= 0])
    return total


def gone(maps, n):
    """Every row without key j, linear after its softmax, summed; key j's own row only
    where the output reads it.
    """
    total = torch.zeros(n, dtype=torch.float64)
    is_read = read_by_the_output(maps)
    for w, g, (rows, keys) in zip(maps.calls, maps.by_weights, maps.places):
        A = w.A.detach()
        unread = ~is_read[tuple(rows.tolist())]
        for k, j in enumerate(keys.tolist()):
            if j < 0:
                continue
            left = A.clone()
            left[..., k] = 0
            rest = left.sum(-1, keepdim=True)
            change = (A - left / rest).masked_fill(rest == 0, 0)
            change[:, :, (rows == j) & unread] = 0
            total[j] += (g * change).sum()
    return total


def read_by_the_output(maps):
    "Rows of a part → which of them the output reads: its last call says so."
    is_read, read_by_parts = {}, set()
    calls = [*zip(maps.by_weights, maps.places)]
    for g, (rows, keys) in reversed([c for c in calls if c[0].any()]):
        part, read = tuple(rows.tolist()), tuple(keys.tolist())
        if part not in is_read:
            by_part = any(row in read_by_parts for row in part)
            is_read[part] = (g != 0).any(-1).any(1)[0] & (not by_part)
        if part != read:  # another part reads these, never the output alone
            read_by_parts.update(set(read) - {-1})
    nothing = ((tuple(r.tolist()), torch.zeros(len(r)).bool()) for r, _ in maps.places)
    return dict(nothing) | is_read


@torch.no_grad()
def by_differences(model, enc, value, n, step=1e-4):
    "∂f/∂ log m_j at m = 1, from three values, as m_j goes down."

    def at(j, h):
        m = torch.ones(1, n, dtype=torch.float64)
        m[0, j] = math.exp(-h)
        with key_weights(m), Wide():
            return float(value(forward(model, enc)).sum())

    whole = at(0, 0.0)
    slopes = [3 * whole - 4 * at(j, step) + at(j, 2 * step) for j in range(n)]
    return torch.tensor(slopes, dtype=torch.float64) / (2 * step)


# ------------------------------------------------------------------ batches

METHODS = ('loo', 'attn_lrp', 'cp_lrp', 'grad_x_input', 'ig', 'removal', 'rollout')
# few points of a path show as well as many whether a batch is its texts
OPTIONS = {'ig': dict(n_steps=8)}


def check_batch(model, task, encs, method):
    "Two texts in one padded batch get the scores that each gets alone."
    options, target = OPTIONS.get(method, {}), target_for(task)

    def call(some):
        return explain_batch(model, Words(), some, method, target, **options)

    alone = [Answer(call, [enc]) for enc in encs]
    both = Answer(call, encs)
    bad = [a.bad for a in (*alone, both) if a.bad]
    if bad:
        return max(bad, key=badness)
    pairs = zip(alone, both.value, (largest_logit(model, task, enc) for enc in encs))
    worst = max((same(a.value[0], b, scale) for a, b, scale in pairs), key=badness)
    if worst['outcome'] == 'wrong' and both.reason():
        return refused(both.reason())
    return worst


def same(alone, batched, scale):
    """Two explanations of one text are one: the number to 1e-3, the scores to 1e-2 of the
    largest. Scores of gradient × input are sums that cancel; what is left of them can be
    rounding, of the text's largest logit.
    """
    a, b = alone.logit, batched.logit
    if not abs(a - b) <= 1e-3 * max(abs(a), 1e-3):
        return wrong(f'the explained number is {b:.4g} in the batch and {a:.4g} alone')
    return held(batched.scores, alone.scores, 1e-2, 1e-5 * scale)


def badness(outcome):
    "The key that sorts outcomes from good to bad."
    return OUTCOMES.index(outcome['outcome']), outcome.get('value') or 0.0


CHECKS = {  # name → check(model, task, inputs)
    'logits unchanged': check_logits,
    'coverage': check_coverage,
    'LOO': check_loo,
    'CP softmax': check_cp_softmax,
    'CP sum': check_cp_sum,
    'removal': check_derivative,
    **{f'batch {m}': partial(check_batch, method=m) for m in METHODS},
}

# ------------------------------------------------------------------ rows


def tasks_of(family):
    """The tasks that a family is checked on: its first, and beside it a language
    model's and those of two parts.
    """
    with_image = [t for t, known in WITH_AN_IMAGE.items() if family in known]
    if family in VISION:
        return ['image', *with_image]
    of_text = [t for t in TASKS if t != 'image' and class_name(family, t)]
    beside = [t for t in ('masked token', 'next token') if t in of_text[1:]][:1]
    # a class whose name stands in two tables
    beside = [
        t for t in beside if class_name(family, t) != class_name(family, 'source')
    ]
    beside += [t for t in ('source', 'two texts') if t in of_text]
    return list(dict.fromkeys([*of_text[:1], *beside, *with_image]))


class Job(NamedTuple):
    "A row to be made."

    i: int  # its number
    family: str
    task: str
    setting: str


def jobs(families=None):
    "Each family once at the widest setting first, then the rest."
    if families:
        todo = models_of(families)
    else:
        everything = dict.fromkeys((*text_families(), *VISION, *WITH_IMAGES))
        tried = [f for f in everything if f not in HELD_BACK]
        todo = models_of(tried) + models_of(HELD_BACK)
    return [Job(i, *model) for i, model in enumerate(todo)]


def models_of(families):
    "(family, task, setting) of every model of these families."
    tasks = {f: tasks_of(f) for f in families}
    out = [(f, tasks[f][0], WIDEST) for f in families]
    out += [(f, task, WIDEST) for f in families for task in tasks[f][1:]]
    others = [setting for setting in SETTINGS if setting != WIDEST]
    return out + [(f, tasks[f][0], setting) for setting in others for f in families]


def row_of(family, task, setting):
    "The outcomes of one model, or why it is not built."
    row = dict(family=family, task=task, setting=setting)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model = build(family, task, setting)
            encs = inputs_for(model, task, family)
            check_own_forward(model, task, encs)
        except Exception as e:
            return row | dict(
                built=False, why=one_line(f'{type(e).__name__}: {e}', 160)
            )
        refusal = Answer(check_model, model).bad  # what `explain` asks first
        found = {
            name: refusal or outcome_of(check, model, task, encs)
            for name, check in CHECKS.items()
        }
    return row | dict(built=True, model=type(model).__name__, checks=found)


@torch.no_grad()
def check_own_forward(model, task, encs):
    """An error where transformers cannot run the model: a text, one with a
    token masked, a batch.
    """
    number(plain(model, encs[0]), task)
    if task != 'image':
        number(plain(model, masked(encs[0], 1)), task)
    if isinstance(model, MultiPartModel):
        plain(model, encs[1])
    elif task != 'image':
        plain(model, pad_batch(Words(), encs))


def outcome_of(check, *args):
    "A check's outcome; one that itself fails is wrong, so that somebody looks."
    try:
        return check(*args)
    except Exception as e:
        return wrong(f'the check failed: {type(e).__name__}: {e}')


def digest(paths):
    "A hash of files: rows of one code are not mixed with those of another."
    return hashlib.sha256(b''.join(p.read_bytes() for p in paths)).hexdigest()[:16]


def run(path, fresh=False, families=None):
    "Every row, resumable; with `path` None they are kept in memory."
    config = dict(
        experiment='every family',
        settings=SETTINGS,
        lengths=LENGTHS,
        checks=list(CHECKS),
        held_back=HELD_BACK,
        library=digest(sorted(Path(LIBRARY).rglob('*.py'))),
        harness=digest(HARNESS),
    )
    results = Results(path, config, fresh)

    def rows_of(batch):
        return [row_of(job.family, job.task, job.setting) for job in batch]

    batches = [[job] for job in jobs(families)]
    results.extend(batches, rows_of, 'every family', True)
    results.summary = summary(results.rows)
    results.save()
    return results


def worst_of(rows, family, check):
    "A family's worst outcome of one check over tasks and settings."
    found = (r['checks'][check] for r in rows if r['built'] and r['family'] == family)
    return max(found, key=badness)['outcome']


def summary(rows):
    "How many families have which worst outcome, for each check."
    built = [r for r in rows if r['built']]
    families = sorted({r['family'] for r in built})

    def count(check):
        return collections.Counter(worst_of(built, f, check) for f in families)

    return dict(
        families=len(families),
        models=len(built),
        not_built=len({r['family'] for r in rows} - set(families)),
        checks={check: dict(sorted(count(check).items())) for check in CHECKS},
    )


# ------------------------------------------------------------------ the page

SIGNS = {'right': 'right', 'no case': '–', 'refused': 'refused', 'wrong': '**wrong**'}


WHAT = """\
Made by `python research/benchmarks every_family --write`, held by \
`tests/test_every_family.py`. Weights: as transformers makes them, or every matrix and \
bias has a standard deviation of 0.1 or 0.05; a second task of a family is checked with \
0.1 alone. A cell says the worst of a family's models. *right*: the numbers are those of \
an independent computation. *refused*: an error or a warning of lrp_loo says what it \
cannot do. –: there is nothing to check. Attention that selects keys by an index selects \
all here: with fewer, transformers' own choice among equals depends on padding. LOO and \
the sum are held to 1e-3 of the largest score and of the largest term, logits to 1e-5, a \
batch to 1e-2 of the largest score; what is below the rounding of float32 is right."""


def as_markdown(results):
    "A row per family with the worst outcome of each check, and the reasons below."
    rows, s = results['rows'], summary(results['rows'])
    versions = ', '.join(f'{k} {v}' for k, v in results['versions'].items() if v)
    models = f'{s["models"]} small models of {s["families"]} families of transformers'
    lines = [
        '# Every family',
        '',
        f'{models} with random weights, and what came of each',
    ]
    lines[-1] += f' check. {WHAT}'
    lines += ['', f'Versions: {versions}.', '', *totals(rows)]
    lines += ['', '## Families', '', *family_table(rows)]
    for kind in ('wrong', 'refused'):
        lines += ['', f'## What is {kind}', '', *reasons(rows, kind)]
    return '\n'.join([*lines, '', '## Not built', '', *not_built(rows)]) + '\n'


def totals(rows):
    "Families by outcome, for each check."
    counts = summary(rows)['checks'].items()
    cells = [(check, *(n.get(o, 0) for o in OUTCOMES)) for check, n in counts]
    return table(('check', *OUTCOMES), *cells)


def family_table(rows):
    "The worst outcomes of each family."
    built = [r for r in rows if r['built']]
    cells = []
    for f in sorted({r['family'] for r in built}):
        tasks = dict.fromkeys(r['task'] for r in built if r['family'] == f)
        outcomes = [SIGNS[worst_of(built, f, check)] for check in CHECKS]
        cells.append((f, ', '.join(tasks), *outcomes))
    return table(('family', 'tasks', *CHECKS), *cells)


def table(head, *rows):
    "The lines of a table."
    first, *lines = (f'| {" | ".join(map(str, cells))} |' for cells in (head, *rows))
    return [first, '|' + '---|' * len(head), *lines]


def reasons(rows, kind):
    "The reasons of an outcome, each with the families and checks that it holds for."
    families = collections.defaultdict(dict)
    checks = collections.defaultdict(dict)
    for r in rows:
        for check, o in r.get('checks', {}).items():
            if o['outcome'] == kind:
                why = without_numbers(o['why'])
                families[why][r['family']] = checks[why][check] = None
    lines = []
    for why in sorted(families, key=lambda why: (-len(families[why]), why)):
        where = f'{", ".join(checks[why])} of {", ".join(families[why])}'
        lines.append(escaped(f'- {len(families[why])}: {why} — {where}'))
    return lines or ['Nothing.']


def without_numbers(why):
    "A reason without what differs from model to model."
    why = re.sub(r'\b[A-Z]\w+(For|LMHead|With)\w+', 'the model', why)
    return re.sub(r'-?\d+\.?\d*(e[-+]\d+)?', '…', why)


def not_built(rows):
    "Families that could not be built, and why."
    built = {r['family'] for r in rows if r['built']}
    families = collections.defaultdict(dict)
    for r in rows:
        if r['family'] not in built:
            families[r['why']][r['family']] = None
    return [escaped(f'- {", ".join(f)}: {why}') for why, f in families.items()] or [
        'Nothing.'
    ]


def escaped(line):
    "A line as Markdown shows it."
    return line.replace('<', '&lt;').replace('|', '\\|')


# ------------------------------------------------------------------ the command


def show(rows):
    "Print what is wrong; the exit code says whether anything is."
    bad = 0
    for r in rows:
        name = f'{r["family"]}, {r["task"]}, {r["setting"]}'
        if not r['built']:
            print(f'{name}: not built: {r["why"]}')
        for check, o in r.get('checks', {}).items():
            if o['outcome'] == 'wrong':
                bad += 1
                print(f'{name}, {check}: {o["why"]}')
    built = [r for r in rows if r['built']]
    families = {r['family'] for r in built}
    print(f'{len(families)} families, {len(built)} models, {bad} wrong')
    return int(bad > 0)


def main(argv=None):
    "The command."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('families', nargs='*', help='only these; nothing is written')
    parser.add_argument('--write', action='store_true', help='write every-family.*')
    parser.add_argument('--out', type=Path, default=RESULTS, help='into this folder')
    parser.add_argument('--fresh', action='store_true', help='start over')
    a = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # these models are too small to be shared out
    if a.families or not a.write:
        return show(run(None, families=a.families).rows)
    path = a.out / 'every-family.json'
    results = run(path, a.fresh)
    write_text_atomic(a.out / 'every-family.md', as_markdown(read_results(path)))
    return show(results.rows)


if __name__ == '__main__':
    sys.exit(main())
