"Options of methods: keywords with types, what is recorded of them, unknown names, costs."

from typing import get_args

import pytest
from conftest import TEXTS, random_bert

from lrp_loo import explain, explain_labels
from lrp_loo.core.arguments import MethodName, RemovalName
from lrp_loo.loo.removals import REMOVALS
from lrp_loo.methods import explain_batch
from lrp_loo.methods.table import METHODS
from lrp_loo.models.encoding import encode


@pytest.fixture(scope='module')
def small():
    return random_bert(layers=2)


def test_type_checkers_know_every_method():
    assert set(get_args(MethodName)) == set(METHODS)
    assert get_args(RemovalName) == tuple(REMOVALS)


@pytest.mark.parametrize(
    'method, options',
    [
        ('auto', {}),
        ('auto', dict(passes=None)),
        ('auto', dict(removal='zero_embedding')),
        ('attn_lrp', dict(bypass_softmax=[1], strict=True)),
    ],
)
def test_the_record_holds_the_options_of_the_call(small, tokenizer, method, options):
    (a,) = explain(small, tokenizer, TEXTS[0], method, **options)
    assert a.info.get('options', {}) == options


def test_a_function_takes_options_of_its_own(small, tokenizer):
    def mine(model, tokenizer, encs, target=None, passes=1, sharp=2, **more):
        scores = METHODS['rollout'](model, tokenizer, encs, target)
        scores.info = [dict(options=(passes, sharp, more))] * len(encs)
        return scores

    (a,) = explain(small, tokenizer, TEXTS[0], mine, passes=3, sharp=4, wide=5)
    assert a.info['options'] == dict(passes=3, sharp=4, wide=5)


@pytest.mark.parametrize(
    'call, messages',
    [
        (dict(n_step=3), ["n_step=3 is no option of method 'auto'", "n_steps of"]),
        (dict(method='ig', n_step=3), ['mean n_steps?', 'which takes n_steps, base']),
        (dict(method='attn_lrp', passes=5), ["passes of method 'auto'?", 'eps']),
        (dict(bypass_softmax=[1]), ["bypass_softmax of method 'attn_lrp'?"]),
        (dict(unit='word'), ['mean units of explain?']),
        (dict(methods='loo'), ['mean method of explain?']),
        (dict(units='head', eps=0.1), ["eps=0.1 is no option of method 'auto'"]),
        (dict(method='lrp', layernorm='gradient'), ['mean layer_norm?']),
        (dict(zzz=1), ["zzz=1 is no option of method 'auto', which takes passes, rem"]),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(
    small, tokenizer, call, messages
):
    with pytest.raises(TypeError) as e:
        explain(small, tokenizer, TEXTS[0], **call)
    assert all(words in str(e.value) for words in messages), str(e.value)


def test_other_functions_answer_alike(small, tokenizer):
    enc = encode(small, tokenizer, TEXTS[0])
    with pytest.raises(TypeError, match="truncation=True is no option of method 'ig'"):
        explain_batch(small, tokenizer, [enc], 'ig', truncation=True)
    with pytest.raises(TypeError, match="label='all' is no option"):
        explain_labels(small, tokenizer, TEXTS[0], label='all')


@pytest.mark.parametrize(
    'name, options, passes',
    [
        ('attn_lrp', {}, 3),
        ('cp_lrp', {}, 3),
        ('rollout', {}, 1),
        ('removal', {}, 3),
        ('ig', dict(n_steps=5), 2 + 3 * 5),
        ('loo', dict(removal='zero_embedding'), None),
    ],
)
def test_the_cost_of_a_method(small, tokenizer, name, options, passes):
    (a,) = explain(small, tokenizer, TEXTS[0], name, **options)
    # counted: a vision model's and this removal's f(x) is read once more; a row
    # without any content
    assert passes is None or a.passes == passes
    assert passes is not None or 1 + len(a) + 1 <= a.passes <= 2 + len(a) + 1


@pytest.mark.parametrize('units', ['token', 'word'])
def test_exact_loo_costs_what_the_budget_counts(small, tokenizer, units):
    (loo,) = explain(small, tokenizer, TEXTS[0], 'loo', units=units)
    (auto,) = explain(small, tokenizer, TEXTS[0], passes=None, units=units)
    assert loo.exact and loo.passes == auto.passes
    assert loo.spent == auto.spent == f'LOO, exact, {loo.passes:.0f} passes'
