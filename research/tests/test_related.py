"""The related methods where the chapter does not go: a decoder with its masks,
texts of one or two tokens, units, calls that cannot be right.
"""

import copy

import pytest
import torch
from conftest import shallow_demo
from families import random_inputs
from test_kept_states import ROUNDING, llama_that_calls_it

from lrp_lab.related import (
    RELATED,
    _Rescored,
    attention_layers,
    cached_loo_scores,
    context_cite_scores,
    graddrop_scores,
    hierarchical_scores,
    kernel_shap_scores,
    related_methods,
    removal_effect,
    shallow,
)
from lrp_loo import load_demo
from lrp_loo.core.files import pad_batch
from lrp_loo.loo import leave_one_out
from lrp_loo.methods import explain, explain_batch
from lrp_loo.models import CACHES, forward
from lrp_loo.models.encoding import encode
from lrp_loo.stats import pearson

TEXT = 'A warm and clever film, if a little long.'


@pytest.fixture(scope='module')
def llama():
    return load_demo('reviews-sst2')


def test_slope_is_the_masks_derivative_in_a_decoder(llama):
    model, tok = llama
    enc = encode(model, tok, TEXT)
    n = enc['input_ids'].shape[1]
    seen = attention_layers(model, enc)
    m = torch.ones(n, requires_grad=True)
    with torch.enable_grad(), _Rescored(lambda Z: Z + m.log()):
        f = seen.readout(forward(model, enc)).sum()
    (g,) = torch.autograd.grad(f, m)
    slope = sum(removal_effect(s, 'slope') for s in seen.layers)[0]
    assert torch.allclose(slope, g, atol=1e-4)


def test_a_row_that_sees_itself_alone_has_finite_effects(llama):
    model, tok = llama
    seen = attention_layers(model, encode(model, tok, TEXT))
    for s in seen.layers:
        assert (s.A[..., 0, 1:] == 0).all()
        assert torch.isfinite(removal_effect(s, 'exact')).all()


@pytest.mark.parametrize('j', [0, 3])
def test_a_mask_of_zeros_is_loo_in_a_decoder(llama, j):
    model, tok = llama
    enc = encode(model, tok, TEXT)
    (loo,) = explain(model, tok, TEXT, method='loo')

    def without_j(Z):
        "No row but its own sees key j."
        at = torch.arange(Z.shape[-1])
        return Z.masked_fill((at == j) & (at[:, None] != j), -torch.inf)

    with torch.no_grad(), _Rescored(without_j):
        gone = forward(model, enc).logits[0, loo.target]
    assert abs(loo.logit - float(gone) - float(loo.scores[j])) < 1e-4


@pytest.mark.parametrize('name', RELATED)
@pytest.mark.parametrize('text', ['Good', 'Good film', 'Good film here'])
def test_short_texts_have_a_finite_score_per_token(demo, text, name):
    model, tok = demo
    m = RELATED[name]
    (a,) = explain(model, tok, text, method=m.run, **m.options)
    assert torch.isfinite(a.scores).all()
    assert a.tokens == ['[CLS]', *text.lower().split(), '[SEP]']
    assert a.scores.shape == (len(a.tokens),)


@pytest.mark.parametrize('tokens', [3, 4, 5, 60])
def test_every_method_costs_something(tokens):
    costs = {name: m.cost(tokens, 6) for name, m in related_methods().items()}
    assert min(costs.values()) > 0, costs


def test_a_single_player_has_it_all(demo):
    (loo,) = explain(*demo, 'Good', method='loo')
    (a,) = explain(*demo, 'Good', method=kernel_shap_scores)
    assert abs(float(a.scores[1] - loo.scores[1])) < 1e-4


@pytest.mark.parametrize(
    'method, options',
    [
        (hierarchical_scores, dict(refine=99)),
        (context_cite_scores, dict(n=400, p=0.97, surrogate='ridge', penalty=1e-4)),
    ],
    ids=['hierarchical', 'context_cite'],
)
def test_units_are_removed_whole(demo, method, options):
    model, tok = demo
    (loo,) = explain(model, tok, TEXT, method='loo', units='word')
    (a,) = explain(model, tok, TEXT, method=method, units='word', **options)
    assert a.tokens == loo.tokens
    content = ~loo.is_special
    assert float(pearson(a.scores[content], loo.scores[content])) > 0.95


@pytest.mark.parametrize('which', ['demo', 'llama'])
def test_a_proxy_leaves_the_model_alone(which, request):
    model, tok = request.getfixturevalue(which)
    enc = encode(model, tok, TEXT)
    before = forward(model, enc).logits
    small = shallow(model, (0,))
    assert not torch.allclose(forward(small, enc).logits, before)
    assert torch.equal(forward(model, enc).logits, before)
    own = {id(p) for p in model.parameters()}
    assert {id(p) for p in small.parameters()} < own


def test_no_hooks_are_left(demo):
    model, tok = demo
    explain(model, tok, TEXT, method=graddrop_scores)
    for m in model.modules():
        assert not m._forward_hooks
        assert not m._forward_pre_hooks


def test_a_padded_batch_is_not_one_text(demo):
    model, tok = demo
    both = pad_batch(tok, [encode(model, tok, t) for t in (TEXT, 'Fine.')])
    with pytest.raises(ValueError, match='batch of 2'):
        explain_batch(model, tok, [both], context_cite_scores)


@pytest.mark.parametrize(
    'method, options, error, message',
    [
        (context_cite_scores, dict(n=1), ValueError, 'n=1'),
        (kernel_shap_scores, dict(n=3), ValueError, 'at least 4'),
        (
            context_cite_scores,
            dict(m=3),
            TypeError,
            "'context_cite_scores' does not take",
        ),
    ],
)
def test_an_option_that_cannot_be_right(demo, method, options, error, message):
    with pytest.raises(error, match=message):
        explain(*demo, TEXT, method=method, **options)


def test_a_cache_explains_the_last_token_alone(llama):
    def first_place(out):
        return out.logits[:, 0]

    with pytest.raises(ValueError, match='last token'):
        explain(*llama, TEXT, method=cached_loo_scores, target=first_place)


def test_unknown_data_say_so():
    with pytest.raises(ValueError, match="'mnist'"):
        related_methods('mnist')


def test_tokens_of_an_image_cannot_be_removed():
    vit, _ = load_demo('mnist')
    with pytest.raises(ValueError, match='image'):
        explain(vit, None, torch.zeros(1, 28, 28), method=context_cite_scores)


def test_eager_attention_is_named(demo):
    model, tok = demo
    eager = copy.deepcopy(model)
    eager.set_attn_implementation('eager')
    with pytest.raises(ValueError, match='sdpa'):
        explain(eager, tok, TEXT, method=RELATED['atp'].run)


@pytest.mark.parametrize('name', CACHES)
def test_loo_from_a_cache_is_exact(name):
    model, tokenizer = llama_that_calls_it(name), shallow_demo('reviews')[1]
    enc = random_inputs(model, 12)
    found = cached_loo_scores(model, tokenizer, [enc])
    loo, *_ = leave_one_out(model, enc, drop=False)
    assert torch.allclose(found.scores[0], loo, atol=ROUNDING)
