"The scalar chapter against a second derivation: top down, one split at a time, in exact fractions."

import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrp_loo.paper.bracketings import bracketings, draw_figure1, scalar_table
from lrp_loo.paper.scalar import bracketing_name, depth_relevance, leaf_depths, product
from lrp_loo.paper.scalar import scalar_ig, scalar_loo, scalar_relevance

A = ((0, 1), 2)
B = (0, (1, 2))


def split(R, bracketing, out):
    """The paper's derivation: relevance comes in at the top, each factor of a
    multiplication gets half.
    """
    if isinstance(bracketing, int):
        out[bracketing] = R
        return out
    for part in bracketing:
        split(R / 2, part, out)
    return out


NUMBERS = st.floats(-4, 4).filter(lambda v: abs(v) > 1e-3)


@st.composite
def bracketed(draw, lo=1, hi=9):
    "A random bracketing of lo … hi factors and a value for each."

    def tree(i, j):
        if j - i == 1:
            return i
        k = draw(st.integers(i + 1, j - 1))
        return tree(i, k), tree(k, j)

    n = draw(st.integers(lo, hi))
    return tree(0, n), draw(st.lists(NUMBERS, min_size=n, max_size=n))


def exact_product(x):
    return math.prod(map(Fraction, x))


def assert_equal(got, want, rtol=1e-12):
    torch.testing.assert_close(got, want, rtol=rtol, atol=0)


def test_the_papers_numbers():
    assert scalar_relevance((2, 3, 4), A).tolist() == [6, 6, 12]
    assert scalar_relevance((2, 3, 4), B).tolist() == [12, 6, 6]
    assert scalar_loo((2, 3, 4)).tolist() == [24, 24, 24]


@settings(deadline=None, max_examples=60)
@given(bracketed())
def test_rules_equal_the_naive_split_and_the_closed_form(case):
    b, x = case
    y, naive = exact_product(x), split(exact_product(x), b, {})
    assert sum(naive.values()) == y  # it conserves the product
    assert_equal(product(x, b).item(), float(y))
    want = torch.tensor([float(naive[i]) for i in range(len(x))], dtype=torch.double)
    assert_equal(scalar_relevance(x, b), want)
    assert_equal(depth_relevance(x, b), want)


@settings(deadline=None, max_examples=40)
@given(bracketed(lo=2))
def test_loo_and_ig_do_not_see_the_brackets(case):
    b, x = case
    y = product(x, b).item()
    loop = []
    for i in range(len(x)):
        without = [0.0 if j == i else v for j, v in enumerate(x)]
        loop.append(y - product(without, b).item())
    assert_equal(scalar_loo(x).tolist(), loop)
    assert_equal(scalar_ig(x).tolist(), [y / len(x)] * len(x), rtol=1e-10)


def test_each_bracketing_has_a_map_of_its_own():
    for n in range(1, 8):
        trees = bracketings(n)
        # powers of two: exact
        maps = {tuple(scalar_relevance([1.0] * n, b).tolist()) for b in trees}
        assert len(set(trees)) == len(trees) == len(maps)


def test_a_factor_zero_and_a_factor_alone():
    for scores in (scalar_relevance((0, 3, 4), A), scalar_loo((0, 3, 4))):
        assert scores.tolist() == [0, 0, 0]
    assert scalar_ig((0, 3, 4)).tolist() == [0, 0, 0]
    assert scalar_relevance([5.0], 0).tolist() == scalar_loo([5.0]).tolist() == [5]
    assert bracketing_name(0) == 'x1'
    # brackets read back from JSON
    lists = json.loads(json.dumps(A))
    assert scalar_relevance((2, 3, 4), lists).tolist() == [6, 6, 12]


WRONG = [
    (lambda: product((2, 3, 4), ((1, 0), 2)), r'in order.*\(\(1, 0\), 2\)'),
    (lambda: product((2, 3), (0, 0)), r'each once.*\(0, 0\)'),
    (lambda: leaf_depths('ab'), "pair.*'ab'"),
    (lambda: scalar_loo([[1.0, 2.0]]), 'one per factor'),
]


@pytest.mark.parametrize('call, message', WRONG)
def test_wrong_calls_say_what_was_given_and_what_is_taken(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_figure_and_the_table_show_every_number():
    fig = draw_figure1()
    assert len(fig.axes) == 2
    for ax, lrp in zip(fig.axes, (['6', '6', '12'], ['12', '6', '6'])):
        texts = [text.get_text() for text in ax.texts]
        assert texts.count('$y = 24$\n$R = 24$') == 1
        for head, row in (('LRP', lrp), ('LOO', ['24'] * 3)):
            k = texts.index(head)
            assert texts[k + 1 : k + 4] == row
    rows = {r['graph']: r['lrp'] for r in scalar_table()}
    assert rows == {'(x1 x2) x3': [6, 6, 12], 'x1 (x2 x3)': [12, 6, 6]}
