"Options of methods: keywords with types, what counts as given, the answer to one that is none."

import inspect
from typing import get_args

import pytest

from conftest import TEXTS, random_bert
from lrp_loo import explain, explain_labels
from lrp_loo.core.types import MethodName
from lrp_loo.methods import METHODS, explain_batch
from lrp_loo.methods.options import ITS_OWN, ExplainOptions, MethodOptions, options_of
from lrp_loo.models.encoding import encode

KEYWORDS = inspect.signature(explain).parameters


@pytest.fixture(scope='module')
def small():
    return random_bert(layers=2)


def test_type_checkers_know_every_option_of_every_method_and_no_other():
    taken = {name for m in METHODS.values() for name in options_of(m.run)}
    # `progress`, which functions of many texts have too, stands with `explain`'s
    assert taken == {*MethodOptions.__annotations__, 'progress'}
    assert set(get_args(MethodName)) == set(METHODS)


def test_the_common_options_are_keywords_of_explain():
    own = {k for k, p in KEYWORDS.items() if p.default is ITS_OWN}
    assert 6 <= len(own) <= 10 and own < set(MethodOptions.__annotations__)
    others = set(ExplainOptions.__annotations__) - set(MethodOptions.__annotations__)
    assert others - {'progress'} < set(KEYWORDS)
    for name in own:
        assert KEYWORDS[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert any(name in options_of(m.run) for m in METHODS.values())
    assert "= <the method's own>" in str(inspect.signature(explain))


def test_only_what_was_given_counts_as_given(small, tokenizer):
    for given in (
        {},
        dict(passes=None),
        dict(passes=16),
        dict(removal='zero_embedding'),
    ):
        (a,) = explain(small, tokenizer, TEXTS[0], **given)
        assert a.info.get('options', {}) == given
    given = dict(bypass_softmax=[1], strict=True)
    (a,) = explain(small, tokenizer, TEXTS[0], 'attn_lrp', **given)
    assert a.info['options'] == given


def test_a_function_takes_options_of_its_own(small, tokenizer):
    def mine(model, tokenizer, encs, target=None, passes=1, sharp=2, **more):
        found = METHODS['rollout'](model, tokenizer, encs, target)
        found.info = [dict(seen=(passes, sharp, more))] * len(encs)
        return found

    (a,) = explain(small, tokenizer, TEXTS[0], mine, passes=3, sharp=4, wide=5)
    assert a.info['seen'] == (3, 4, dict(wide=5))


@pytest.mark.parametrize(
    'given, said',
    [
        (dict(n_step=3), ["n_step=3 is no option of method 'auto'", "n_steps of"]),
        (dict(method='ig', n_step=3), ['mean n_steps?', 'which takes n_steps, base']),
        (dict(method='attn_lrp', passes=5), ["passes of method 'auto'?", 'eps']),
        (dict(unit='word'), ['mean units of explain?']),
        (dict(methods='loo'), ['mean method of explain?']),
        (dict(units='head', eps=0.1), ["eps=0.1 is no option of method 'auto'"]),
        (dict(method='lrp', layernorm='gradient'), ['mean layer_norm?']),
        (dict(zzz=1), ["zzz=1 is no option of method 'auto', which takes passes, rem"]),
    ],
)
def test_an_option_that_is_none_is_answered_with_the_nearest(
    small, tokenizer, given, said
):
    with pytest.raises(TypeError) as e:
        explain(small, tokenizer, TEXTS[0], **given)
    assert all(words in str(e.value) for words in said), str(e.value)
    assert '_scores()' not in str(e.value)


def test_other_doors_answer_alike(small, tokenizer):
    enc = encode(small, tokenizer, TEXTS[0])
    with pytest.raises(TypeError, match="n_step=3 is no option of method 'ig'"):
        explain_batch(small, tokenizer, [enc], 'ig', n_step=3)
    with pytest.raises(TypeError, match="truncation=True is no option of method 'ig'"):
        explain_batch(small, tokenizer, [enc], 'ig', truncation=True)
    with pytest.raises(TypeError, match='did you mean labels of explain_labels'):
        explain_labels(small, tokenizer, TEXTS[0], label='all')
    with pytest.raises(ValueError, match="did you mean 'attn_lrp'"):
        explain(small, tokenizer, TEXTS[0], 'atn_lrp')


@pytest.mark.parametrize(
    'name, given, passes',
    [
        ('attn_lrp', {}, 3),
        ('cp_lrp', dict(checkpoint=True), 4),
        ('rollout', {}, 1),
        ('removal', {}, 3),
        ('removal', dict(exact_special=True), 3 + 1 + 2),
        ('removal+loo', dict(n_exact=2), 3 + 1 + 2),
        ('removal+loo', dict(n_exact=0), 3),
        ('ig', dict(n_steps=5), 2 + 3 * 5),
        ('loo', dict(removal='zero_embedding'), None),
    ],
)
def test_what_a_method_cost(small, tokenizer, name, given, passes):
    (a,) = explain(small, tokenizer, TEXTS[0], name, **given)
    assert a.passes == (1 + len(a) if passes is None else passes)


def test_exact_loo_costs_what_the_budget_counts(small, tokenizer):
    for units in ('token', 'word'):
        given = (small, tokenizer, TEXTS[0])
        (loo,) = explain(*given, 'loo', units=units)
        (auto,) = explain(*given, passes=None, units=units)
        assert loo.exact and loo.passes == auto.passes
        assert loo.spent == auto.spent == f'LOO, exact, {loo.passes:.0f} passes'


@pytest.mark.parametrize('name', METHODS)
def test_every_method_says_what_it_cost(demo, name):
    (a,) = explain(*demo, TEXTS[0], name)
    assert a.passes >= 1
