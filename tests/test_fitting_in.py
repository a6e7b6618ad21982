"The classes against Captum and `explain`; Quantus; pipelines; what is refused."

import os
import sys
from types import SimpleNamespace

from conftest import in_a_child, shallow_demo
from families import random_inputs, random_model
import numpy as np
import pytest
import torch
import transformers

from lrp_loo import Target, explain, leave_one_out, load_demo, sweep
from lrp_loo.core.tensors import unpad_batch
from lrp_loo.data import load_digit_images, vit_pixels
from lrp_loo.interop import LRP, AttentionRollout, GradientXInput, IntegratedGradients
from lrp_loo.interop import LeaveOneOut, RemovalEstimate, quantus_explain
from lrp_loo.interop.tensors import TensorModel, TokenModel
from lrp_loo.lrp.composite import attn_lrp, gradient
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import input_embeddings
from lrp_loo.evaluate.faithfulness import perturbation_curves

TEXTS = ["a quiet film that says little and means it", "the jokes are old", "slow"]
CLASSES = {
    'attn_lrp': LRP,
    'cp_lrp': lambda m, **kw: LRP(m, 'cp_lrp', **kw),
    'canonized': lambda m, **kw: LRP(m, 'canonized', **kw),
    'grad_x_input': GradientXInput,
    'ig': IntegratedGradients,
    'loo': LeaveOneOut,
    'rollout': AttentionRollout,
    'removal': RemovalEstimate,
    'removal+loo': lambda m, **kw: RemovalEstimate(m, 2, **kw),
}


def close(a, b, tol=1e-5):
    "Of one shape, and apart by a share of the largest number at most."
    a, b = a.detach(), b.detach()
    largest = max(1e-3, float(b.abs().max()))
    return a.shape == b.shape and float((a - b).abs().max()) <= tol * largest


@pytest.fixture(scope='module')
def demo():
    "Three layers show what six would."
    return shallow_demo(layers=3)


@pytest.fixture(scope='module')
def batch(demo):
    tok = demo[1]
    enc = tok(TEXTS, padding=True, return_tensors='pt')
    return (
        enc['input_ids'],
        enc['attention_mask'],
        input_embeddings(demo[0])(enc['input_ids']).detach(),
    )


@pytest.fixture(scope='module')
def digits():
    x, y, _ = load_digit_images('embedded')
    return load_demo('mnist')[0], vit_pixels(x[:3]), y[:3]


@pytest.mark.parametrize('in_front', [False, True])
@pytest.mark.parametrize('name', CLASSES)
def test_as_explain(demo, batch, name, in_front):
    "Three texts of unlike length in one batch: each as if alone, padding 0."
    ids, mask, _ = batch
    shifts = [int((m == 0).sum()) if in_front else 0 for m in mask]
    ids, mask = (
        torch.stack([r.roll(n) for r, n in zip(rows, shifts)]) for rows in (ids, mask)
    )
    c = CLASSES[name](demo[0], tokenizer=demo[1])
    how = dict(n_steps=16) if name == 'ig' else {}
    (found,) = c.attribute((ids,), additional_forward_args=mask, **how)
    assert (found.shape, found.dtype) == (ids.shape, torch.float32)
    assert not found.requires_grad
    one = c.attribute(ids[2:], additional_forward_args=mask[2:], **how)
    options = how | ({'n_exact': 2} if name == 'removal+loo' else {})
    for i, scores in enumerate([*found, *one]):
        own = mask[min(i, 2)] > 0
        (alone,) = explain(*demo, TEXTS[min(i, 2)], method=name, **options)
        assert close(scores[own], alone.scores, 2e-5)
        assert (scores[~own] == 0).all()


def test_a_target_for_each_text_or_one_for_all(demo, batch):
    ids, mask, _ = batch
    lrp, loo = LRP(demo[0]), LeaveOneOut(demo[0])

    def found(target, by=lrp):
        return by.attribute(ids, target=target, additional_forward_args=mask)

    zero, one = found(0), found(1)
    assert close(found((1, 0)), one - zero, 1e-4)
    own = torch.stack([one[0], zero[1], one[2]])
    each = [1, 0, 1]
    for target in (
        each,
        ['positive', 0, 'positive'],
        torch.tensor(each),
        np.array(each),
    ):
        assert close(found(target), own, 1e-4)
    for target in (torch.tensor(1), torch.tensor([1]), [1], 'positive', Target(1)):
        assert close(found(target), one, 1e-4)
    assert close(found(lambda out: out.logits[:, 1]), one, 1e-4)
    predicted = TensorModel(demo[0])(ids, mask).argmax(1)
    assert close(found(None, loo), found(predicted, loo))


@pytest.mark.parametrize(
    'family,task', [('BERT', 'class'), ('ALBERT', 'class'), ('GPT-2', 'next token')]
)
def test_embeddings_of_families(family, task):
    "The same logits as of ids, and per dimension what sums to the token's score."
    model = random_model(family, task)
    ids = random_inputs(model)['input_ids'].repeat(2, 1)
    ids[1] = ids[1].flip(0)
    # by name: in GPT-2 the cache comes first
    more = dict(attention_mask=torch.ones_like(ids))
    E = input_embeddings(model)(ids).detach()
    with torch.no_grad():
        f, out = TensorModel(model), model(input_ids=ids, **more).logits
        out = out if out.ndim == 2 else out[:, -1]
        assert torch.equal(f(ids, more), out)
        assert close(f(E, more), out, 1e-9)
    texts = unpad_batch(dict(input_ids=ids) | more)
    for composite in (attn_lrp(), gradient()):
        R, delta = LRP(model, composite).attribute(
            E, None, more, return_convergence_delta=True
        )
        found = lrp_scores(model, None, texts, composite=composite)
        assert close(R.sum(-1), found.scores, 1e-7)
        assert close(delta, found.values - found.scores.sum(1), 1e-6)
    model = model.float()
    loo = LeaveOneOut(model)
    of_embeddings = loo.attribute(E.float(), target=1)
    assert close(of_embeddings.sum(-1), loo.attribute(ids, target=1), 1e-4)


@pytest.mark.parametrize('family', ['ViT', 'CLIP vision'])
def test_pixels_of_families(family):
    captum = pytest.importorskip('captum.attr')
    model = random_model(family, 'image')
    f, x = TensorModel(model), random_inputs(model)['pixel_values']
    y = int(f(x).argmax())
    theirs = captum.InputXGradient(f).attribute(x.clone().requires_grad_(), target=y)
    assert close(GradientXInput(model).attribute(x, target=y), theirs, 1e-9)
    how = dict(target=y, n_steps=5)
    theirs = captum.IntegratedGradients(f).attribute(
        x.clone().requires_grad_(), baselines=-1.0, **how
    )
    ours = IntegratedGradients(model).attribute(x, baselines=-1, **how)
    assert close(ours.float(), theirs.float(), 1e-4)
    for c in (
        LeaveOneOut(model),
        AttentionRollout(model),
        RemovalEstimate(model),
        LeaveOneOut(model, 'attention_mask'),
    ):
        s = c.attribute(x, target=y)
        options = {k: v for k, v in c.options.items() if v}
        (a,) = explain(model, None, x[0], method=c.method, target=y, **options)
        per_patch = s.sum(1)[0].unfold(0, 7, 7).unfold(1, 7, 7).sum((2, 3)).flatten()
        assert s.shape == x.shape
        assert close(per_patch.float(), a.scores, 1e-4)


@pytest.fixture(scope='module')
def both(demo, batch):
    "What both libraries are asked of the demo model."
    captum = pytest.importorskip('captum.attr')
    ids, mask, E = batch
    t = dict(target=[1, 0, 1])
    return SimpleNamespace(
        captum=captum,
        model=demo[0],
        f=TensorModel(demo[0]),  # logits of ids or embeddings
        ids=ids,
        mask=mask,
        E=E,
        x=E.clone().requires_grad_(),  # as Captum wants them
        ours=t | dict(additional_forward_args=mask),
        theirs=t | dict(additional_forward_args=(mask,)),
    )


def test_integrated_gradients_are_captums(both):
    E = both.E
    theirs_of = both.captum.IntegratedGradients(both.f)
    ours_of = IntegratedGradients(both.model)
    for b in (0, E.flip(0), torch.zeros_like(E[:1])):
        how = dict(baselines=b, n_steps=11, return_convergence_delta=True)
        theirs, delta = theirs_of.attribute(
            both.x, method='gausslegendre', **how, **both.theirs
        )
        ours, own_delta = ours_of.attribute(
            E, internal_batch_size=7, **how, **both.ours
        )
        assert close(ours, theirs, 1e-4)
        assert close(own_delta, delta, 1e-3)
    ids = torch.full_like(both.ids, 103)
    theirs = both.captum.LayerIntegratedGradients(
        both.f, input_embeddings(both.model)
    ).attribute(both.ids, baselines=ids, n_steps=11, **both.theirs)
    for b in (103, ids):
        ours = ours_of.attribute(both.ids, baselines=b, n_steps=11, **both.ours)
        assert close(ours, theirs.sum(-1), 1e-4)


def test_leave_one_out_is_captums_ablation_and_gradients_too(both):
    ablation = both.captum.FeatureAblation
    loo = LeaveOneOut(both.model)
    t = dict(target=both.ours['target'], additional_forward_args=(both.ids,))
    theirs = ablation(lambda m, i: both.f(i, m)).attribute(both.mask, baselines=0, **t)
    for n in (None, 1, 4):
        ours = loo.attribute(both.ids, perturbations_per_eval=n, **both.ours)
        assert close(ours, theirs, 1e-4)
    # one id in a token's place
    theirs = ablation(both.f).attribute(both.ids, baselines=1012, **both.theirs)
    ours = loo.attribute(both.ids, 1012, **both.ours)
    assert close(ours, theirs * both.mask, 1e-4)
    theirs = both.captum.InputXGradient(both.f).attribute(both.x, **both.theirs)
    assert close(GradientXInput(both.model).attribute(both.E, **both.ours), theirs)


@pytest.fixture(scope='module')
def quantus():
    return pytest.importorskip('quantus', exc_type=ImportError)


def measured(metric, model, x, y, method):
    "What a metric of Quantus gives."
    return metric(
        model=model,
        x_batch=x,
        y_batch=y,
        a_batch=None,
        channel_first=True,
        explain_func=quantus_explain(method),
        softmax=False,
        device='cpu',
    )


@pytest.fixture(scope='module')
def one_text():
    "Model, ids as numbers, class; AttnLRP, which ranks several words above [CLS]."
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, TEXTS[0])
    (a,) = explain(model, tokenizer, TEXTS[0], method='attn_lrp')
    x = enc['input_ids'].numpy()[:, None].astype('float32')
    return (TokenModel(model), x, np.array([a.target])), enc, a


def test_quantus_morf_curve_is_ours_until_cls_goes(quantus, one_text):
    given, enc, a = one_text
    removing = dict(perturb_baseline=0.0, disable_warnings=True)
    flipping = quantus.PixelFlipping(normalise=False, **removing)
    theirs = np.array(measured(flipping, *given, 'attn_lrp'))[0]
    every = torch.arange(len(a))
    curves = perturbation_curves(given[0].model, enc, {'a': a.scores}, every, a.target)
    ours, _ = curves['a']
    order = torch.argsort(a.scores, descending=True, stable=True).tolist()
    cls = order.index(0)
    assert cls > 2
    assert np.allclose(theirs[:cls], ours[1 : cls + 1], atol=1e-4)
    # with one pixel set at a time faithfulness is a correlation
    np.random.seed(0)
    drawing = dict(nr_runs=40, subset_size=1, return_aggregate=False)
    faithfulness = quantus.FaithfulnessCorrelation(**drawing, **removing)
    (r,) = measured(faithfulness, *given, 'loo')
    assert r > 0.95


def test_a_pipeline_is_its_model(demo, batch, tmp_path):
    model, tokenizer = demo
    pipe = transformers.pipeline('sentiment-analysis', model=model, tokenizer=tokenizer)
    ids, mask, _ = batch
    ours = explain(pipe, None, TEXTS)
    assert [a.label for a in ours] == [answer['label'] for answer in pipe(TEXTS)]
    enc = encode(*demo, TEXTS[1])
    assert torch.equal(leave_one_out(pipe, enc)[0], leave_one_out(demo[0], enc)[0])
    of_pipe = RemovalEstimate(pipe, own_rows=True)
    of_model = RemovalEstimate(demo[0], tokenizer=demo[1], own_rows=True)
    assert torch.equal(*(c.attribute(ids, None, mask) for c in (of_pipe, of_model)))
    with pytest.raises(ValueError, match='each worker loads the model'):
        sweep(pipe, None, TEXTS, tmp_path / 'c', engine='ray')


# what advice.toml and bad_input.toml have no row for
REFUSED = [
    (ValueError, 'one per example', lambda g: g.of_target(torch.zeros(3, 1).long())),
    (ValueError, 'baselines have shape', lambda g: g.based(g.E, g.E[:2])),
    (TypeError, 'token id', lambda g: g.based(g.ids, 0.5)),
    (ValueError, 'NaN', lambda g: g.based(g.E, g.nan)),
    (ValueError, 'NaN or infinite', lambda g: g.lrp.attribute(g.nan)),
    (ValueError, 'token ids go from', lambda g: g.lrp.attribute(g.ids + 30000)),
    (ValueError, 'not take pixel_values', lambda g: g.lrp.attribute(g.X)),
    (ValueError, 'takes 5 after input_ids', lambda g: g.more((g.mask,) * 6)),
    (ValueError, 'mask must be a tensor of shape', lambda g: g.more(g.mask[:2])),
    (ValueError, 'consecutive tokens only.*row 0', lambda g: g.more(g.hole)),
    (ValueError, 'gaps in row 2', lambda g: g.more(g.no_text)),
    (TypeError, 'unexpected keyword', lambda g: LRP(g.model, gamma=3).attribute(g.ids)),
]


def test_what_cannot_be_right(demo, batch, digits):
    ids, mask, E = batch
    hole, no_text = mask.clone(), mask.clone()
    hole[0, 2] = no_text[2] = 0
    model = demo[0]
    lrp, ig = LRP(model), IntegratedGradients(model)
    g = SimpleNamespace(
        **dict(ids=ids, mask=mask, E=E, X=digits[1], model=model, lrp=lrp, ig=ig),
        loo=LeaveOneOut(model),
        of_pixels=LRP(digits[0]),
        nan=torch.where(E > 0, E, torch.nan),
        hole=hole,
        no_text=no_text,
        of_target=lambda t: lrp.attribute(ids, target=t),
        based=lambda x, b: ig.attribute(x, baselines=b),
        more=lambda args: lrp.attribute(ids, additional_forward_args=args),
    )
    for kind, said, call in REFUSED:
        with pytest.raises(kind, match=said):
            call(g)


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
def test_without_captum_and_quantus():
    "In a child, which need not import everything else again."

    def imported_anew():
        for name in list(sys.modules):
            if name.split('.')[0] in ('lrp_loo', 'captum', 'quantus'):
                del sys.modules[name]
        sys.modules.update(captum=None, quantus=None)
        from lrp_loo import LRP as Again, load_demo

        model, tokenizer = load_demo('sst2')
        ids = tokenizer('old jokes', return_tensors='pt')['input_ids']
        assert sys.modules['captum'] is None and Again is not LRP
        return list(Again(model).attribute(ids).shape)

    assert in_a_child(imported_anew) == [1, 4]
