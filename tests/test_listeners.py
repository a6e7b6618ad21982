"""Who listens to a model: another thread's explanation changes nothing here,
and whoever may change what the model computes keeps it from the short ways.
"""

import contextlib
import threading

import pytest
import torch
from close import masked_one_at_a_time
from conftest import CountTokens, random_bert
from families import random_model
from torch import nn
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from lrp_loo import METHODS, explain, leave_one_out
from lrp_loo.inputs.scores import last_rows_only
from lrp_loo.inputs.targets import output_field
from lrp_loo.models.call import forward, watch_embeddings
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
    methods = ['attn_lrp', 'cp_lrp', 'removal', 'ig', 'rollout']
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


def while_it_listens(model, call, times=6):
    "The call's results, begun while the other thread's hooks are there."
    found = []
    for _ in range(times):
        while not any(m._forward_hooks for m in model.modules()):
            pass
        found.append(call())
    return found


def rows_and_scores(model, tokenizer, enc, method):
    explain(model, tokenizer, [enc], method=method)  # what is shown once a model
    with CountTokens(model) as count:
        (a,) = explain(model, tokenizer, [enc], method=method)
    return count.n, a.scores


@pytest.mark.parametrize('method', ['auto', 'loo'])
def test_another_thread_keeps_nobody_from_the_short_way(busy, tokenizer, method):
    model, enc = busy
    how = (tokenizer, enc, method)
    rows, scores = rows_and_scores(random_bert(layers=2), *how)
    for n, found in while_it_listens(model, lambda: rows_and_scores(model, *how)):
        assert n == rows
        # float32: another kernel's order of summation
        assert torch.allclose(found, scores, rtol=1e-4, atol=1e-5)


# ---- somebody who may change what is computed


def mixed(x):
    "Rows meet."
    return x + 0.3 * x.mean(1, keepdim=True)


def mix(module, args, out):
    if torch.is_tensor(out) and out.ndim == 3 and out.shape[-1] == 32:
        return mixed(out)


def mix_before(module, args):
    x, *more = args or (None,)
    if torch.is_tensor(x) and x.ndim == 3:
        return mixed(x), *more


def mix_back(module, *gradients):
    given = gradients[0]
    return tuple(mixed(g) if g is not None and g.ndim == 3 else g for g in given)


class MixedRows(TorchFunctionMode):
    "Rows meet in every linear layer."

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        is_product = getattr(func, '__name__', '') == 'linear' and out.ndim == 3
        return mixed(out) if is_product else out


class MixingWeights(nn.Parameter):
    "Weights of a kind of their own, whose products let rows meet."

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if getattr(func, '__name__', '') == 'linear':
            return mixed(out.as_subclass(torch.Tensor))
        return out


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def last_dense(model):
    return model.bert.encoder.layer[-1].output.dense


@contextlib.contextmanager
def by_hook(register, hook, **options):
    handle = register(hook, **options)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def in_place(change):
    change()
    yield


def by_weights(model):
    dense = last_dense(model)
    dense.weight = MixingWeights(dense.weight.detach())


def doubled(model):
    parametrize.register_parametrization(last_dense(model), 'weight', Doubled())


ALWAYS = dict(always_call=True)
GLOBAL = {
    'forward': (every_module.register_module_forward_hook, mix),
    'before forward': (every_module.register_module_forward_pre_hook, mix_before),
    'backward': (every_module.register_module_full_backward_hook, mix_back),
    'before backward': (every_module.register_module_full_backward_pre_hook, mix_back),
}
CHANGES = {
    **{f'of all modules: {k}': lambda _, v=v: by_hook(*v) for k, v in GLOBAL.items()},
    'of all modules: whatever happens': lambda _: by_hook(*GLOBAL['forward'], **ALWAYS),
    'whatever happens': lambda m: by_hook(
        last_dense(m).register_forward_hook, mix, **ALWAYS
    ),
    'backward': lambda m: by_hook(last_dense(m).register_full_backward_hook, mix_back),
    'before backward': lambda m: by_hook(
        last_dense(m).register_full_backward_pre_hook, mix_back
    ),
    'a mode': lambda _: MixedRows(),
    'weights': lambda m: in_place(lambda: by_weights(m)),
    'a parametrization': lambda m: in_place(lambda: doubled(m)),
    'a compiled part': lambda m: in_place(
        lambda: last_dense(m).compile(backend='eager')
    ),
}


LETS_ROWS_MEET = {k for k in CHANGES if 'forward' in k or k in ('a mode', 'weights')}
LETS_ROWS_MEET |= {k for k in CHANGES if 'whatever happens' in k}


def gradient_of(model, enc):
    "The predicted class's gradient at the embeddings, and these."
    with watch_embeddings(model) as seen:
        logits = output_field(forward(model, enc))
    (g,) = torch.autograd.grad(logits[0, 0], seen[0])
    return g, seen[0]


MASK = 103


def loo_by_hand(model, enc):
    "LOO by another token in each one's place, which hides what rows hand on, too."
    logits, loo = model(**enc).logits[0], []
    for i in range(enc['input_ids'].shape[1]):
        ids = enc['input_ids'].clone()
        ids[0, i] = MASK
        loo.append(logits - model(**enc | dict(input_ids=ids)).logits[0])
    return torch.stack(loo)[:, logits.argmax()]


# torch's own, of hooks whose inputs have no gradient and of compiled parts
@pytest.mark.filterwarnings('ignore:For backward hooks', 'ignore:Full backward hook')
@pytest.mark.filterwarnings('ignore:Dynamo detected')
@pytest.mark.parametrize('change', CHANGES)
def test_whatever_is_changed_the_numbers_are_the_models_own(change, tokenizer):
    model = random_bert(layers=2)
    enc = encode(model, tokenizer, TEXT)
    with CHANGES[change](model):
        found = leave_one_out(model, enc, None, 'mask_token', MASK)[0]
        assert torch.allclose(found, loo_by_hand(model, enc), rtol=1e-4, atol=1e-5)
        if change in LETS_ROWS_MEET:  # then a mask hides nothing
            with pytest.raises(ValueError, match='mask hides still changes'):
                leave_one_out(model, enc)
        else:
            logits, loo = masked_one_at_a_time(enc, lambda x: model(**x).logits[0])
            found = leave_one_out(model, enc)[0]
            by_mask = loo[:, logits.argmax()]
            assert torch.allclose(found, by_mask, rtol=1e-4, atol=1e-5)
        # rules see eager calls alone, and say so
        if change != 'a compiled part':
            (a,) = explain(model, tokenizer, [enc], 'grad_x_input', target=0)
            g, x = gradient_of(model, enc)
            # float32, and gradients of some hundred
            own = (g * x).sum(-1)[0]
            assert torch.allclose(a.scores, own, rtol=1e-4, atol=1e-3)


def test_a_head_that_is_listened_to_gives_all_its_rows():
    model = random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)
    assert last_rows_only(model)
    of_head = model.lm_head.register_forward_hook
    for register in (of_head, every_module.register_module_forward_hook):
        with by_hook(register, mix):
            assert last_rows_only(model) == {}


def test_a_users_method_that_changes_the_model_gets_the_models_own_numbers(tokenizer):
    model = random_bert(layers=2)
    enc = encode(model, tokenizer, TEXT)

    def mixed_loo(model, tokenizer, encs, target=None):
        with by_hook(last_dense(model).register_forward_hook, mix):
            return METHODS['loo'](model, tokenizer, encs, target, 'mask_token')

    (plain,) = explain(model, tokenizer, [enc], 'loo', removal='mask_token')
    (a,) = explain(model, tokenizer, [enc], mixed_loo)
    with by_hook(last_dense(model).register_forward_hook, mix):
        by_hand = loo_by_hand(model, enc)
    assert torch.allclose(a.scores, by_hand, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(a.scores, plain.scores, rtol=1e-2)
