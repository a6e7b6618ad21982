"The related methods where the chapter does not go: a decoder with its masks, texts of one or two tokens, units, calls that cannot be right."

import pytest
import torch

from lrp_loo import load_demo
from lrp_loo.methods import explain, explain_batch
from lrp_loo.models import encode, forward, pad_batch
from lrp_loo.studies.related import (
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

TEXT = 'A warm and clever film, if a little long.'


@pytest.fixture(scope='module')
def sst2():
    return load_demo('sst2')


@pytest.fixture(scope='module')
def llama():
    return load_demo('reviews-sst2')


def test_slope_is_the_masks_derivative_in_a_decoder(llama):
    model, tok = llama
    enc = encode(model, tok, TEXT)
    n = enc['input_ids'].shape[1]
    (layers,), value, readout = attention_layers(model, enc)
    m = torch.ones(n, requires_grad=True)
    with torch.enable_grad(), _Rescored(lambda Z: Z + m.log()):
        f = readout(forward(model, enc)).sum()
    (g,) = torch.autograd.grad(f, m)
    assert torch.allclose(
        sum(removal_effect(s, 'slope') for s in layers)[0], g, atol=1e-4
    )
    assert all(
        torch.isfinite(removal_effect(s, 'exact')).all() for s in layers
    )  # the first row sees itself alone


def test_a_mask_of_zeros_is_loo_in_a_decoder(llama):
    model, tok = llama
    enc = encode(model, tok, TEXT)
    (loo,) = explain(model, tok, TEXT, method='loo')
    for j in (0, 3):
        with (
            torch.no_grad(),
            _Rescored(
                lambda Z: Z.masked_fill(
                    (torch.arange(Z.shape[-1]) == j)
                    & (torch.arange(Z.shape[-1])[:, None] != j),
                    -torch.inf,
                )
            ),
        ):
            gone = forward(model, enc).logits[0, loo.target]
        assert abs(loo.logit - float(gone) - float(loo.scores[j])) < 1e-4


@pytest.mark.parametrize('text', ['Good', 'Good film', 'Good film here'])
def test_short_texts(sst2, text):
    model, tok = sst2
    (loo,) = explain(model, tok, text, method='loo')
    for name, (f, options, cost) in RELATED.items():
        (a,) = explain(model, tok, text, method=f, **options)
        assert torch.isfinite(a.scores).all() and len(a) == len(loo), name
        assert cost(len(a), 6) > 0
    if text == 'Good':
        assert (
            abs(
                float(
                    explain(model, tok, text, method=kernel_shap_scores)[
                        0
                    ].scores[1]
                    - loo.scores[1]
                )
            )
            < 1e-4
        )  # one player has it all


def test_units_are_removed_whole(sst2):
    model, tok = sst2
    (loo,) = explain(model, tok, TEXT, method='loo', units='word')
    for m, kw in (
        (hierarchical_scores, dict(refine=99)),
        (
            context_cite_scores,
            dict(n=400, p=0.97, surrogate='ridge', penalty=1e-4),
        ),
    ):
        (a,) = explain(model, tok, TEXT, method=m, units='word', **kw)
        assert a.tokens == loo.tokens
        assert (
            float(
                torch.corrcoef(
                    torch.stack([a.scores, loo.scores])[:, ~loo.is_special]
                )[0, 1]
            )
            > 0.95
        )


def test_a_proxy_leaves_the_model_alone(sst2, llama):
    for model, tok in (sst2, llama):
        enc = encode(model, tok, TEXT)
        before = forward(model, enc).logits
        small = shallow(model, (0,))
        assert not torch.allclose(forward(small, enc).logits, before)
        assert torch.equal(forward(model, enc).logits, before)
        assert {id(p) for p in small.parameters()} < {
            id(p) for p in model.parameters()
        }


def test_no_hooks_are_left(sst2):
    model, tok = sst2
    explain(model, tok, TEXT, method=graddrop_scores)
    assert not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )


def test_calls_that_cannot_be_right(sst2, llama):
    model, tok = sst2
    encs = [encode(model, tok, t) for t in (TEXT, 'Fine.')]
    both = pad_batch(tok, encs)
    with pytest.raises(ValueError, match='batch of 2'):
        explain_batch(model, tok, [both], context_cite_scores)
    with pytest.raises(ValueError, match='n=1'):
        explain(model, tok, TEXT, method=context_cite_scores, n=1)
    with pytest.raises(ValueError, match='at least 4'):
        explain(model, tok, TEXT, method=kernel_shap_scores, n=3)
    with pytest.raises(TypeError, match="'context_cite_scores' does not take"):
        explain(model, tok, TEXT, method=context_cite_scores, m=3)
    with pytest.raises(ValueError, match='last token'):
        explain(
            *llama,
            TEXT,
            method=cached_loo_scores,
            target=lambda out: out.logits[:, 0],
        )
    with pytest.raises(ValueError, match="'mnist'"):
        related_methods('mnist')
    vit, _ = load_demo('mnist')
    with pytest.raises(ValueError, match='image'):
        explain(vit, None, torch.zeros(1, 28, 28), method=context_cite_scores)


def test_eager_attention_is_named(sst2):
    import copy

    model = copy.deepcopy(sst2[0])
    model.set_attn_implementation('eager')
    with pytest.raises(ValueError, match='sdpa'):
        explain(model, sst2[1], TEXT, method=RELATED['atp'][0])
