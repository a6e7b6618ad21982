"The drawn attention block against the definitions: LOO by leaving a key out, LRP by its equations."

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lrp_loo.paper.rules import product_naive, softmax_naive
from lrp_loo.paper.block import BLOCK_METHODS, block_relevance, block_values, draw_block

NUMBERS = st.floats(-3, 3).filter(lambda x: abs(x) > 0.1)


@st.composite
def blocks(draw):
    "A query, and two to five keys and values."
    n = draw(st.integers(2, 5))
    keys, values = (draw(st.lists(NUMBERS, min_size=n, max_size=n)) for _ in range(2))
    found = block_values(draw(NUMBERS), keys, values)
    assume(abs(found.O) > 1e-3)  # equation 3 divides by it
    return found


@settings(deadline=None, max_examples=30)
@given(blocks())
def test_removal_is_leave_one_out(values):
    left_out = []
    for i in range(len(values.K)):
        rest = [j for j in range(len(values.K)) if j != i]
        O = values.Z[rest].softmax(-1) @ values.V[rest]
        left_out.append(values.O - O)
    found = block_relevance(values, 'removal').words
    torch.testing.assert_close(found, torch.stack(left_out))


@settings(deadline=None, max_examples=30)
@given(blocks())
def test_attn_lrp_is_equations_3_to_5(values):
    R_O = values.O.view(1, 1)
    A, V = values.A[None], values.V[:, None]
    # ε below double precision's rounding
    R_A, R_V = product_naive(A, V, R_O, eps=1e-15)
    R_Z = softmax_naive(values.Z, R_A[0])
    R = block_relevance(values, 'attn_lrp')
    scale = max(float(x.abs().max()) for x in (R_A, R_V, R_Z))
    close = dict(rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(R.A, R_A[0], **close)
    torch.testing.assert_close(R.V, R_V[:, 0], **close)
    torch.testing.assert_close(R.Z, R_Z, **close)
    torch.testing.assert_close(R.K, R_Z / 2, **close)
    torch.testing.assert_close(R.Q, R_Z.sum() / 2, **close)


@settings(deadline=None, max_examples=30)
@given(blocks())
def test_cp_lrp_is_each_values_own_part(values):
    R = block_relevance(values, 'cp_lrp')
    torch.testing.assert_close(R.words, values.A * values.V)
    assert R.Q is R.K is R.Z is R.A is None


def test_the_drawing_shows_every_number():
    values = block_values(1.0, torch.tensor([6.0, 2.0]).log(), [4.0, -4.0])
    fig = draw_block(values, ('good', 'bad'))
    assert len(fig.axes) == len(BLOCK_METHODS)
    for ax, method in zip(fig.axes, BLOCK_METHODS):
        shown = '\n'.join(text.get_text() for text in ax.texts)
        R = block_relevance(values, method)
        for name in ('Q', 'K', 'V', 'Z', 'A', 'O'):
            scores = getattr(R, name)
            for score in [] if scores is None else scores.reshape(-1):
                assert f'= {score:.2f}'.replace('-', '−') in shown
        assert 'good' in shown
        assert 'LOO −2.00' in shown
