"How far a lower precision is from float32: within its bound, and nothing is left behind."

import pytest
import torch

from lrp_lab.precision import (
    EMULATED,
    precision_errors,
    precision_table,
    tf32_emulation,
)
from lrp_loo import load_demo
from lrp_loo.models.call import at_precision, forward
from lrp_loo.models.encoding import encode

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
    "it knows what it wants to say and says it twice",
    "nothing in it is new , and none of it is true",
]


def precisions():
    "What torch computes products with, wherever it keeps that."
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    return [s.fp32_precision for s in settings]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_precision_leaves_settings_and_weights_as_they_were(demo, dtype):
    before = precisions()
    weights = {k: v.clone() for k, v in demo[0].state_dict().items()}
    with pytest.raises(KeyError), at_precision(demo[0], dtype):
        raise KeyError
    assert precisions() == before
    for name, v in demo[0].state_dict().items():
        assert v.dtype == weights[name].dtype and torch.equal(v, weights[name]), name


def test_float32_is_float32_whatever_is_set_outside(demo):
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = 'tf32'
    try:
        with at_precision(demo[0]):
            assert products.fp32_precision == 'ieee'
        assert products.fp32_precision == 'tf32'
    finally:
        products.fp32_precision = before


@pytest.mark.skipif(torch.cuda.is_available(), reason='this machine may have TF32')
def test_tf32_is_refused_where_there_is_none(demo):
    with pytest.raises(ValueError, match='compute capability'):
        with at_precision(demo[0], 'tf32'):
            pass


@pytest.fixture(scope='module')
def errors(demo):
    "Of five texts, as a table."
    model, tokenizer = demo
    with at_precision(model, 'bfloat16') as low:
        pass
    models = {'bfloat16': low, EMULATED: model}
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    return precision_table(
        [dict(errors=precision_errors(model, tokenizer, e, models)) for e in encs]
    )


@pytest.mark.parametrize('dtype, bound', [('bfloat16', 0.15), (EMULATED, 0.015)])
def test_errors_are_within_their_bound(errors, dtype, bound):
    """bfloat16 keeps 8 bits: a logit near 4 is off by up to 2⁻⁶ where it is
    stored alone, LOO is a difference of two that went through six layers.
    """
    largest = errors['max'][dtype]
    assert largest['loo'] < bound
    assert largest['logits'] < bound
    assert largest['attn_lrp'] < bound / 2
    assert errors.r_lowest[dtype, 'loo'] > 1 - bound / 5
    assert errors['mean'][dtype, 'loo'] > 0


def test_tf32_loses_less_than_bfloat16(errors):
    largest = errors['max']
    assert largest[EMULATED, 'loo'] < largest['bfloat16', 'loo'] / 4


def test_fused_attention_is_emulated_as_the_attention_written_out(demo):
    model, tokenizer = demo
    enc = encode(model, tokenizer, TEXTS[0])
    eager, _ = load_demo('sst2')
    eager.set_attn_implementation('eager')
    with torch.no_grad():
        exact = forward(model, enc).logits
        with tf32_emulation():
            fused = forward(model, enc).logits
            written = forward(eager, enc).logits
        again = forward(model, enc).logits
    assert torch.allclose(fused, written, atol=1e-3)
    assert 1e-6 < (fused - exact).abs().max() < 0.015
    assert torch.equal(again, exact)  # the model is untouched


def cut(t):
    "Ten bits of mantissa."
    return ((t.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def test_the_way_back_is_rounded_as_well():
    x = torch.randn(4, 8)
    w = torch.randn(3, 8, requires_grad=True)
    g = torch.randn(4, 3)
    with tf32_emulation():
        y = torch.nn.functional.linear(x, w, torch.ones(3))
        y.backward(g)
    assert torch.equal(y, cut(x) @ cut(w.detach()).T + 1)
    assert torch.allclose(w.grad, cut(g).T @ cut(x), atol=1e-6)
