"The scalar chapter against a second derivation: top down, one split at a time, in exact fractions."

import json
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from lrp_loo.results import Results, read_results
from lrp_loo.studies.scalar import (
    bracketing_from_depths,
    bracketing_name,
    bracketings,
    catalan,
    depth_relevance,
    draw_figure1,
    draw_tree,
    leaf_depths,
    product,
    scalar_ig,
    scalar_loo,
    scalar_nodes,
    scalar_relevance,
    scalar_table,
)

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


@st.composite
def bracketed(draw, lo=1, hi=9):
    "A random bracketing of lo … hi factors and a value for each."

    def tree(i, j):
        if j - i == 1:
            return i
        k = draw(st.integers(i + 1, j - 1))
        return tree(i, k), tree(k, j)

    n = draw(st.integers(lo, hi))
    return tree(0, n), draw(
        st.lists(
            st.floats(-4, 4).filter(lambda v: abs(v) > 1e-3),
            min_size=n,
            max_size=n,
        )
    )


def test_the_papers_numbers():
    assert scalar_relevance((2, 3, 4), A).tolist() == [6, 6, 12]
    assert scalar_relevance((2, 3, 4), B).tolist() == [12, 6, 6]
    assert scalar_loo((2, 3, 4)).tolist() == [24, 24, 24]


@settings(deadline=None, max_examples=60)
@given(bracketed())
def test_rules_equal_the_naive_split_and_the_closed_form(case):
    b, x = case
    y = 1
    for v in x:
        y *= Fraction(v)
    naive = split(y, b, {})
    want = torch.tensor(
        [float(naive[i]) for i in range(len(x))], dtype=torch.double
    )
    for got in (scalar_relevance(x, b), depth_relevance(x, b)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    assert sum(naive.values()) == y  # conserved, exactly
    torch.testing.assert_close(
        product(x, b).item(), float(y), rtol=1e-12, atol=0
    )


@settings(deadline=None, max_examples=40)
@given(bracketed(lo=2))
def test_loo_and_ig_do_not_see_the_brackets(case):
    b, x = case
    y = product(x, b).item()
    loo = [
        y - product([0.0 if j == i else v for j, v in enumerate(x)], b).item()
        for i in range(len(x))
    ]
    torch.testing.assert_close(scalar_loo(x).tolist(), loo, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        scalar_ig(x).tolist(), [y / len(x)] * len(x), rtol=1e-10, atol=0
    )


def test_number_of_maps_is_catalan():
    for n in range(1, 9):
        trees = bracketings(n)
        maps = {
            tuple(scalar_relevance([1.0] * n, b).tolist()) for b in trees
        }  # powers of two: exact
        assert len(set(trees)) == len(trees) == len(maps) == catalan(n - 1)


@settings(deadline=None, max_examples=60)
@given(bracketed(hi=14))
def test_depths_determine_the_tree(case):
    b, _ = case
    assert bracketing_from_depths(leaf_depths(b)) == b
    assert (
        sum(Fraction(1, 2**d) for d in leaf_depths(b)) == 1
    )  # Kraft's equality


def test_a_map_that_no_tree_has_is_refused():
    for depths in ([], [1], [1, 2, 1], [2, 1, 2], [1, 1, 1], [0, 0], [3, 3, 2]):
        with pytest.raises(ValueError, match='full binary tree'):
            bracketing_from_depths(depths)


def test_zero_factors_and_one_factor():
    assert scalar_relevance((0, 3, 4), A).tolist() == [0, 0, 0]
    assert scalar_loo((0, 3, 4)).tolist() == [0, 0, 0] and scalar_ig(
        (0, 3, 4)
    ).tolist() == [0, 0, 0]
    assert (
        scalar_relevance([5.0], 0).tolist() == scalar_loo([5.0]).tolist() == [5]
        and bracketing_name(0) == 'x1'
    )


def test_callers_tensor_is_left_alone():
    x = torch.tensor([2.0, 3.0, 4.0])
    scalar_relevance(x, A)
    scalar_nodes(x, A)
    scalar_ig(x)
    assert not x.requires_grad and x.tolist() == [2, 3, 4] and x.grad is None


def test_brackets_read_back_from_json_work():
    assert scalar_relevance((2, 3, 4), json.loads(json.dumps(A))).tolist() == [
        6,
        6,
        12,
    ]


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: product((2, 3, 4), (0, 1)), ['0 to 2', '(0, 1)']),
        (lambda: product((2, 3, 4), ((1, 0), 2)), ['in order', '((1, 0), 2)']),
        (lambda: product((2, 3), (0, 0)), ['each once', '(0, 0)']),
        (lambda: product((2, 3, 4), (0, 1, 2)), ['pair', '(0, 1, 2)']),
        (lambda: product((2, 3), (0.0, 1.0)), ['pair', '0.0']),
        (lambda: product((2, 3), (False, True)), ['pair', 'False']),
        (lambda: leaf_depths('ab'), ['pair', "'ab'"]),
        (lambda: bracketing_name((0, 1, 2)), ['pair', '(0, 1, 2)']),
        (lambda: scalar_relevance([], 0), ['one or more', '[]']),
        (lambda: scalar_loo([[1.0, 2.0]]), ['one per factor', '[[1.0, 2.0]]']),
        (lambda: scalar_loo('two'), ['finite numbers', "'two'"]),
        (lambda: depth_relevance((1, float('inf')), (0, 1)), ['finite', 'inf']),
        (lambda: bracketings(0), ['1 to 14', '0']),
        (lambda: bracketings(15), ['1 to 14', '15']),
        (lambda: bracketings(3.0), ['1 to 14', '3.0']),
        (lambda: catalan(-1), ['from 0', '-1']),
        (lambda: scalar_ig((2, 3), 0), ['n_steps', '0']),
        (lambda: draw_figure1((1, 2)), ['three', 'got 2']),
    ],
)
def test_wrong_calls_say_what_was_given_and_what_is_taken(call, words):
    with pytest.raises(ValueError) as e:
        call()
    for word in words:
        assert word in str(e.value)


def test_table_rows_go_into_results(tmp_path):
    rows = scalar_table()
    assert [(r['graph'], r['lrp']) for r in rows] == [
        ('(x1 x2) x3', [6, 6, 12]),
        ('x1 (x2 x3)', [12, 6, 6]),
    ]
    r = Results(tmp_path / 'scalar.json', dict(x=[2, 3, 4]))
    for row in rows:
        r.add(row)
    assert read_results(tmp_path / 'scalar.json')['rows'][0]['ig'] == [8, 8, 8]
    assert len(scalar_table((1, 2, 3, 4, 5))) == 14


def test_figure_shows_every_number():
    fig = draw_figure1()
    assert isinstance(fig, Figure) and len(fig.axes) == 2
    for ax, lrp in zip(fig.axes, ([6, 6, 12], [12, 6, 6])):
        texts = [t.get_text() for t in ax.texts]
        assert texts.count('$y = 24$\n$R = 24$') == 1
        k = texts.index('LRP')
        assert texts[k + 1 : k + 4] == [str(v) for v in lrp]
        k = texts.index('LOO')
        assert texts[k + 1 : k + 4] == ['24', '24', '24']


def test_figure_is_written_and_any_tree_can_be_drawn(tmp_path):
    draw_figure1((-1, 0.5, 0)).savefig(tmp_path / 'f.png')
    assert (tmp_path / 'f.png').stat().st_size > 5000
    ax = Figure().subplots()
    draw_tree(ax, range(1, 6), bracketings(5)[3])
    assert len(ax.lines) == 8  # two edges for each of four products
