"""Who listens to a model: another thread's explanation changes nothing here,
and whoever may change what the model computes keeps it from the short ways.
"""

import contextlib
import threading

import pytest
import torch
from conftest import CountTokens, random_bert
from families import random_model
from torch import nn
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from lrp_loo import explain, leave_one_out
from lrp_loo.asked.rows import last_rows_only, read_row_only
from lrp_loo.asked.targets import output_field
from lrp_loo.methods import METHODS
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode

TEXT = "The jokes are old, but the pace of this quiet film never once slows."


# ---- another thread explains


@pytest.fixture
def busy(tokenizer):
    "A model that another thread explains by every method in turn, and a text."
    model = random_bert(layers=2)
    # an older tokenizer does not serve two threads
    enc = encode(model, tokenizer, TEXT)
    stop, inside = threading.Event(), threading.Event()
    methods = [m for m in METHODS if m not in ('loo', 'removal+rows')]
    failed = []

    def work():
        while not stop.is_set():
            for method in methods:
                try:
                    explain(model, tokenizer, [enc], method=method)
                except Exception as e:
                    failed.append(f'{method}: {e}')
                inside.set()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    yield model, enc
    stop.set()
    thread.join()
    assert failed == []


def listens(model):
    return any(m._forward_hooks for m in model.modules())


def while_it_listens(model, call, times=20):
    "The call's results, begun while the other thread's hooks are there."
    found = []
    for _ in range(times):
        while not listens(model):
            pass
        found.append(call())
    return found


def rows_and_scores(model, tokenizer, enc, method):
    with CountTokens(model) as count:
        (a,) = explain(model, tokenizer, [enc], method=method)
    return count.n, a.scores


@pytest.mark.parametrize('method', ['removal+rows', 'loo'])
def test_a_thread_that_explains_keeps_nobody_from_the_short_way(
    busy, tokenizer, method
):
    model, enc = busy
    how = (tokenizer, enc, method)
    rows, scores = rows_and_scores(random_bert(layers=2), *how)
    for n, found in while_it_listens(model, lambda: rows_and_scores(model, *how)):
        assert n == rows
        # float32: another kernel's order of summation
        assert torch.allclose(found, scores, rtol=1e-4, atol=1e-5)


def test_in_a_thread_that_explains_one_row_is_read(busy):
    model, enc = busy

    def rows():
        seen = []
        dense = model.bert.encoder.layer[-1].output.dense
        own = threading.get_ident()
        with torch.no_grad(), read_row_only(model):
            handle = dense.register_forward_hook(
                lambda m, args, out: (
                    seen.append(out.shape[1]) if threading.get_ident() == own else None
                )
            )
            forward(model, enc)
            handle.remove()
        return seen

    assert while_it_listens(model, rows) == [[1]] * 20


# ---- somebody who may change what is computed


def mix(module, args, out):
    "Rows meet."
    if torch.is_tensor(out) and out.ndim == 3 and out.shape[-1] == 32:
        return out + 0.3 * out.mean(1, keepdim=True)


def mix_before(module, args):
    x, *more = args or (None,)
    if torch.is_tensor(x) and x.ndim == 3:
        return x + 0.3 * x.mean(1, keepdim=True), *more


def mix_back(module, given, back):
    "Rows meet on the way back."
    return tuple(
        g + 0.3 * g.mean(1, keepdim=True) if g is not None and g.ndim == 3 else g
        for g in given
    )


def mix_back_before(module, back):
    return tuple(
        g + 0.3 * g.mean(1, keepdim=True) if g is not None and g.ndim == 3 else g
        for g in back
    )


class MixedRows(TorchFunctionMode):
    "Rows meet in every linear layer."

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if getattr(func, '__name__', '') == 'linear' and out.ndim == 3:
            return out + 0.3 * out.mean(1, keepdim=True)
        return out


class MixingWeights(nn.Parameter):
    "Weights of a kind of their own, whose products let rows meet."

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if getattr(func, '__name__', '') == 'linear':
            out = out.as_subclass(torch.Tensor)
            return out + 0.3 * out.mean(1, keepdim=True)
        return out


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def last_dense(model):
    return model.bert.encoder.layer[-1].output.dense


@contextlib.contextmanager
def by_hook(register):
    handle = register()
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def by_weights(model):
    dense = last_dense(model)
    dense.weight = MixingWeights(dense.weight.detach())
    yield


@contextlib.contextmanager
def by_parametrization(model):
    parametrize.register_parametrization(last_dense(model), 'weight', Doubled())
    yield


@contextlib.contextmanager
def by_compiling_a_part(model):
    last_dense(model).compile(backend='eager')
    yield


GLOBAL = {
    'forward': lambda _: by_hook(
        lambda: every_module.register_module_forward_hook(mix)
    ),
    'forward, whatever happens': lambda _: by_hook(
        lambda: every_module.register_module_forward_hook(mix, always_call=True)
    ),
    'before forward': lambda _: by_hook(
        lambda: every_module.register_module_forward_pre_hook(mix_before)
    ),
    'backward': lambda _: by_hook(
        lambda: every_module.register_module_full_backward_hook(mix_back)
    ),
    'before backward': lambda _: by_hook(
        lambda: every_module.register_module_full_backward_pre_hook(mix_back_before)
    ),
}
LOCAL = {
    'forward, whatever happens': lambda m: by_hook(
        lambda: last_dense(m).register_forward_hook(mix, always_call=True)
    ),
    'backward': lambda m: by_hook(
        lambda: last_dense(m).register_full_backward_hook(mix_back)
    ),
    'before backward': lambda m: by_hook(
        lambda: last_dense(m).register_full_backward_pre_hook(mix_back_before)
    ),
    'a mode': lambda _: MixedRows(),
    'weights': by_weights,
    'a parametrization': by_parametrization,
    'a compiled part': by_compiling_a_part,
}
CHANGES = {f'of all modules: {k}': v for k, v in GLOBAL.items()} | LOCAL


def gradient_of(model, enc, context):
    "The predicted class's logit, and its gradient at the embeddings."
    with context, watch_embeddings(model) as seen:
        logits = output_field(forward(model, enc))
    (g,) = torch.autograd.grad(logits[0, 0], seen[0])
    return logits.detach(), g


@pytest.mark.parametrize('change', CHANGES)
def test_one_row_is_read_where_that_changes_nothing(change, tokenizer):
    model = random_bert(layers=2)
    enc = encode(model, tokenizer, TEXT)
    with CHANGES[change](model):
        whole = gradient_of(model, enc, contextlib.nullcontext())
        one = gradient_of(model, enc, read_row_only(model))
    for a, b in zip(one, whole):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def loo_by_hand(model, enc):
    "One masked pass for each token."
    n = enc['input_ids'].shape[1]
    keep = torch.cat([torch.ones(1, n), 1 - torch.eye(n)]).long()
    logits = torch.cat(
        [model(**enc | dict(attention_mask=row[None])).logits for row in keep]
    )
    target = logits[0].argmax()
    return logits[0, target] - logits[1:, target]


@pytest.mark.parametrize('change', CHANGES)
def test_loo_is_one_masked_pass_for_each_token(change, tokenizer):
    model = random_bert(layers=2)
    enc = encode(model, tokenizer, TEXT)
    with CHANGES[change](model):
        found = leave_one_out(model, enc)[0]
        by_hand = loo_by_hand(model, enc)
    assert torch.allclose(found, by_hand, rtol=1e-4, atol=1e-5)


# rules see eager calls alone, and say so
EAGER = [name for name in CHANGES if name != 'a compiled part']


@pytest.mark.parametrize('change', EAGER)
def test_gradient_x_input_is_the_models_own(change, tokenizer):
    model = random_bert(layers=2)
    enc = encode(model, tokenizer, TEXT)
    with CHANGES[change](model):
        (a,) = explain(model, tokenizer, [enc], 'grad_x_input', target=0)
        with watch_embeddings(model) as seen:
            logits = output_field(forward(model, enc))
        (g,) = torch.autograd.grad(logits[0, 0], seen[0])
    # float32, and gradients of some hundred
    assert torch.allclose(a.scores, (g * seen[0]).sum(-1)[0], rtol=1e-4, atol=1e-3)


def test_a_head_that_is_listened_to_gives_all_its_rows():
    model = random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)
    assert last_rows_only(model)
    handle = model.lm_head.register_forward_hook(mix)
    assert last_rows_only(model) == {}
    handle.remove()
    handle = every_module.register_module_forward_hook(mix)
    assert last_rows_only(model) == {}
    handle.remove()
