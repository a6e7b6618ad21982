"""The rule sets on a stock BERT against a second derivation of the whole model
(naive_bert.py), conservation, and leaving no trace.
"""

import copy
import threading
from functools import partial

import naive_bert
import pytest
import torch
import transformers
from close import assert_close
from conftest import TEXTS, random_bert
from naive_bert import explain as naive
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lrp_loo import attn_lrp, cp_lrp, explain, lrp_rules
from lrp_loo.paper.conservation import conservation
from lrp_loo.methods.table import METHODS
from lrp_loo.models.encoding import encode


def close(a, b, rel):
    "Relative to the largest score."
    off = (a - b).abs().max()
    largest = b.abs().max()
    assert off <= rel * largest, (off / largest).item()


def scores(model, tokenizer, text, method='attn_lrp', **kw):
    "One text's scores in double precision."
    return explain(model, tokenizer, text, method, **kw)[0].scores.double()


def naive_of(model, ids, **kw):
    c = model.config
    sizes = dict(layers=c.num_hidden_layers, heads=c.num_attention_heads)
    return naive(model.state_dict(), ids, **sizes, ln_eps=c.layer_norm_eps, **kw)


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('bypass', [(), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize('dtype,rel', [(torch.float64, 1e-6), (torch.float32, 2e-4)])
def test_relevance_is_the_naive_one(tokenizer, attention, bypass, dtype, rel):
    model = random_bert(dtype=dtype)
    model.set_attn_implementation(attention)
    for text in TEXTS:
        ids = encode(model, tokenizer, text)['input_ids'][0]
        logits, R, total = naive_of(model, ids, bypass=bypass)
        how = dict(method='attn_lrp', bypass_softmax=bypass)
        word, both = (
            explain(model, tokenizer, text, embeddings=e, **how)[0]
            for e in ('word', 'sum')
        )
        assert abs(word.logit - logits.max()) < 1e-3
        close(word.scores.double(), R, rel)
        close(both.scores.double(), total, rel)


@pytest.mark.parametrize('bypass', [(), tuple(range(6))])
def test_relevance_of_the_demo_model_is_the_naive_one(demo, bypass):
    model, tokenizer = demo
    double = copy.deepcopy(model).double()
    for text in TEXTS[:1]:
        ids = encode(model, tokenizer, text)['input_ids'][0]
        R = naive_of(model, ids, bypass=bypass)[1]
        close(scores(double, tokenizer, text, bypass_softmax=bypass), R, 1e-5)
        # what float32 costs
        close(scores(model, tokenizer, text, bypass_softmax=bypass), R, 1e-3)


@pytest.mark.parametrize('eps', [1e-3, 1e-1])
def test_an_explicit_eps_is_the_naive_one(tokenizer, eps, monkeypatch):
    "ε at linear layers and products; LayerNorm and additions stay at ε → 0."
    model = random_bert(layers=1, dtype=torch.float64)
    ids = encode(model, tokenizer, TEXTS[0])['input_ids'][0]
    R0 = naive_of(model, ids)[1]
    norm_back, add_back = naive_bert.LayerNorm.back, naive_bert.add_back
    monkeypatch.setattr(
        naive_bert.LayerNorm, 'back', lambda self, R, eps: norm_back(self, R, 1e-12)
    )
    monkeypatch.setattr(
        naive_bert, 'add_back', lambda a, b, R, eps: add_back(a, b, R, 1e-12)
    )
    R = scores(model, tokenizer, TEXTS[0], eps=eps)
    close(R, naive_of(model, ids, eps=eps)[1], 1e-6)
    assert eps < 1e-1 or (R - R0).abs().max() > 1e-4 * R0.abs().max()


norm = partial(F.layer_norm, normalized_shape=(8,))
ROW, LAST = nn.Parameter(torch.linspace(-1, 1, 8)), torch.arange(8) > 3


def filled(first, second):
    table = torch.empty_like(second)
    table[..., :4] = first[..., :4]
    table[..., 4:].copy_(second[..., 4:])
    return table


# a model of one's own, written with and without operations in place
IN_PLACE = {
    'gelu': (lambda h, x: F.gelu(h) + x, lambda h, x: F.gelu(h).add_(x)),
    'silu': (lambda h, x: F.silu(h) * x, lambda h, x: F.silu(h).mul_(x)),
    'relu': (lambda h, x: F.relu(h) + x, lambda h, x: h.relu_().add_(x)),
    'tanh': (lambda h, x: h.tanh() - x, lambda h, x: h.tanh().sub_(x)),
    'softmax': (lambda h, x: h.softmax(-1) * x, lambda h, x: h.softmax(-1).mul_(x)),
    'norm': (lambda h, x: norm(h) + x, lambda h, x: norm(h).add_(x)),
    'linear': (lambda h, x: h / 2 + x, lambda h, x: h.div_(2).add_(x)),
    'weights': (lambda h, x: h * ROW + x, lambda h, x: h * filled(ROW, ROW) + x),
    'half': (lambda h, x: h.where(LAST, ROW) * x, lambda h, x: filled(ROW, h) * x),
}
UNDER_RULES = [('attn_lrp', {}), ('attn_lrp', dict(eps=1e-3)), ('cp_lrp', {})]
UNDER_RULES += [('grad_x_input', {}), ('ig', dict(n_steps=3))]


class Written(nn.ModuleList):
    def __init__(self, operation):
        torch.manual_seed(0)
        super().__init__([nn.Embedding(200, 8), *(nn.Linear(8, 8) for _ in range(3))])
        self.operation, self.get_input_embeddings = operation, lambda: self[0]

    def forward(self, input_ids, attention_mask=None):
        x = self[0](input_ids)
        return self[3](self.operation(self[1](x), self[2](x)).mean(1))


@pytest.mark.parametrize('method, options', UNDER_RULES)
@pytest.mark.parametrize('operation', IN_PLACE)
def test_an_operation_in_place_counts_as_its_twin(
    operation, method, options, tokenizer
):
    enc = dict(input_ids=torch.arange(5, 17)[None])
    plain, in_place = (
        METHODS[method](Written(f).eval(), tokenizer, [enc], 1, **options).scores
        for f in IN_PLACE[operation]
    )
    close(in_place, plain, 1e-5)


@pytest.mark.parametrize('text', TEXTS)
def test_without_biases_and_positions_the_logit_goes_to_the_words(tokenizer, text):
    "All of it under CP-LRP; AttnLRP's softmax rule absorbs some."
    model = random_bert(bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.zero_()
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    enc = encode(model, tokenizer, text)
    for composite in (cp_lrp(), attn_lrp()):
        s = conservation(model, enc, composite)
        most = 1e-4 * abs(s['logit'])
        assert s['biases'] == s['constants'] == 0
        assert abs(s['words'] + s['softmax'] - s['logit']) < most
        if composite.name == 'cp_lrp':
            assert s['softmax'] == 0
            R = scores(model, tokenizer, text, method='cp_lrp')
            assert abs(R.sum() - s['logit']) < most
        else:
            assert abs(s['softmax']) > 1e-3


def global_state():
    "Return what a patch of torch or transformers would have to change."
    bert = transformers.models.bert.modeling_bert
    owners = (torch, torch.nn.functional, torch.Tensor, torch.autograd, bert)
    owners += (torch.nn.Module, torch.nn.LayerNorm, torch.nn.Linear)
    owners += tuple(getattr(bert, f'Bert{n}') for n in ('SelfAttention', 'Layer'))
    functions = [{k: id(v) for k, v in vars(o).items() if callable(v)} for o in owners]
    return [*functions, {k: id(f) for k, f in ALL_ATTENTION_FUNCTIONS.items()}]


def state_of(model):
    "Return what a call could leave changed in a model: hooks, parameters, settings."
    kinds = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks')
    hooks = [len(getattr(m, kind)) for m in model.modules() for kind in kinds]
    parameters = [
        (name, p.requires_grad, p.grad is None, p.data_ptr())
        for name, p in model.named_parameters()
    ]
    return hooks, parameters, model.config.to_dict(), model.training


@torch.no_grad()
def logits_of(model, enc):
    return model(**enc).logits


@pytest.mark.parametrize('method', ['loo', 'ig', 'rollout', 'attn_lrp', 'cp_lrp'])
def test_a_call_leaves_no_trace(demo, method):
    enc = encode(*demo, TEXTS[2])
    logits = logits_of(demo[0], enc)
    state, world = state_of(demo[0]), global_state()
    explain(*demo, TEXTS, method=method)
    assert torch.equal(logits_of(demo[0], enc), logits)
    assert (state_of(demo[0]), global_state()) == (state, world)


def test_an_exception_leaves_no_trace(demo):
    model = demo[0]
    state, world = state_of(model), global_state()
    enc = encode(*demo, TEXTS[0])
    handle = model.bert.encoder.layer[3].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), lrp_rules(model, attn_lrp()):
        model(**enc)
    handle.remove()
    assert (state_of(model), global_state()) == (state, world)
    with lrp_rules(model, attn_lrp()) as rules:
        model(**enc)
    assert rules.running.layer is None


def test_two_threads_two_rule_sets(demo):
    methods = ('attn_lrp', 'cp_lrp')
    serial = {m: explain(*demo, TEXTS, method=m) for m in methods}
    wrong = []

    def work(method):
        for _ in range(3):
            found = explain(*demo, TEXTS, method=method)
            for mine, alone in zip(found, serial[method]):
                try:  # two at work share the cores, so sums may be split otherwise
                    assert_close(mine.scores, alone.scores)
                except AssertionError:
                    wrong.append(method)

    threads = [threading.Thread(target=work, args=(m,)) for m in serial]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize('module', ['', 'bert.encoder.layer.1'])
def test_the_error_of_a_users_hook_is_what_is_raised(module):
    def refuse(*args):
        raise RuntimeError('by a hook')

    model = random_bert(layers=2)
    enc = dict(input_ids=torch.tensor([[101, 1037, 2986, 102]]))
    handle = model.get_submodule(module).register_forward_pre_hook(refuse)
    with lrp_rules(model, attn_lrp()) as rules:
        with pytest.raises(RuntimeError, match='by a hook'):
            model(**enc)
        handle.remove()
        assert model(**enc).logits.requires_grad
        assert rules.running.name == ''  # no module is running
