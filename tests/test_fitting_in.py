"The classes against Captum and `explain`; Quantus; pipelines; what is refused."

import os
import sys
from functools import partial
from types import SimpleNamespace

from conftest import in_a_child, shallow_demo
from families import family_tasks, random_inputs, random_model
import numpy as np
import pytest
import torch
import transformers

from lrp_loo import Target, explain, leave_one_out, load_demo, sweep
from lrp_loo.core.files import unpad_batch
from lrp_loo.data import load_digit_images, vit_pixels
from lrp_loo.interop import LRP, AttentionRollout, GradientXInput, IntegratedGradients
from lrp_loo.interop import LeaveOneOut, RemovalEstimate, quantus_explain
from lrp_loo.interop.tensors import TensorModel, TokenModel, named_inputs
from lrp_loo.lrp.composite import attn_lrp, gradient
from lrp_loo.lrp.rules import epsilon_rule
from lrp_loo.methods import METHODS
from lrp_loo.methods.baselines import ig_scores, lrp_scores
from lrp_loo.models.encoding import encode, input_embeddings
from lrp_loo.trust.curves import perturbation_curves

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


def test_a_rule_by_module_path_holds_in_embeddings(demo, batch):
    model = demo[0]
    ids, mask, E = batch
    of_one_module = gradient().with_rule(
        'linear',
        lambda f, *a, **kw: epsilon_rule(f(*a, **kw), 1.0),
        modules='*.encoder.layer.2.output.dense',
    )
    how = dict(target=1, additional_forward_args=mask)
    inside = LRP(model, of_one_module)
    of_ids = inside.attribute(ids, **how)
    assert not close(of_ids, GradientXInput(model).attribute(ids, **how))
    assert close(inside.attribute(E, **how).sum(-1), of_ids)


@pytest.mark.parametrize(
    'family,task', [(f, t) for f, t in family_tasks() if t in ('class', 'next token')]
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


@pytest.mark.parametrize('family', ['ViT', 'DeiT', 'CLIP vision'])
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
    E, t = both.E, both.ours['target']
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
        ours, theirs = (
            of.compute_convergence_delta(0.1 * E, b, E, t, mask)
            for of, mask in ((ours_of, both.mask), (theirs_of, (both.mask,)))
        )
        assert close(ours, theirs, 1e-4)
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


@pytest.mark.parametrize(
    'kind',
    [
        LRP,
        LeaveOneOut,
        IntegratedGradients,
        AttentionRollout,
        RemovalEstimate,
        GradientXInput,
    ],
)
def test_captums_tools_take_our_classes(both, kind):
    metrics = pytest.importorskip('captum.metrics')
    ours = kind(both.model)
    assert ours.get_name().replace(' ', '') == kind.__name__
    assert isinstance(ours.multiplies_by_inputs, bool)
    assert isinstance(ours.forward_func, TensorModel)
    assert ours.has_convergence_delta() is (kind in (LRP, IntegratedGradients))
    options = both.theirs | dict(target=torch.tensor([1, 0, 1]))
    if kind is IntegratedGradients:
        options['n_steps'] = 3
    s = metrics.sensitivity_max(ours.attribute, both.E, n_perturb_samples=1, **options)
    assert s.shape == (3,)
    assert torch.isfinite(s).all() and (s > 0).all()
    torch.manual_seed(0)
    noisy = both.captum.NoiseTunnel(ours).attribute(
        both.E, nt_samples=2, stdevs=1e-6, **options
    )
    assert close(noisy, ours.attribute(both.E, **options), 1e-2)


@pytest.mark.parametrize('method', METHODS)
def test_where_gradients_are_off_a_method_turns_them_on(demo, method):
    (a,) = explain(*demo, TEXTS[1], method=method)
    with torch.no_grad():
        (b,) = explain(*demo, TEXTS[1], method=method)
    assert torch.equal(a.scores, b.scores)
    assert not b.scores.requires_grad


def steps(n, **more):
    return lambda m: partial(IntegratedGradients(m).attribute, n_steps=n, **more)


OF_QUANTUS = {
    'a name': (dict(method='cp_lrp'), {}, lambda m: LRP(m, 'cp_lrp').attribute),
    'a function': (dict(method=partial(ig_scores, n_steps=4)), {}, steps(4)),
    'options of a call': (
        dict(method=IntegratedGradients),
        dict(n_steps=3, baselines=-1, device='cpu'),
        steps(3, baselines=-1),
    ),
}


@pytest.mark.parametrize('way', OF_QUANTUS)
def test_explain_func(digits, way):
    vit, X, y = digits
    made_of, options, ours = OF_QUANTUS[way]
    a = quantus_explain(**made_of)(TensorModel(vit), X.numpy(), y.numpy(), **options)
    assert isinstance(a, np.ndarray)
    assert np.allclose(a, ours(vit)(X, target=y))


def test_explain_func_of_ids(demo):
    model, tokenizer = demo
    ids = tokenizer(TEXTS, padding=True, return_tensors='np')['input_ids'][:, None]
    a = quantus_explain('loo')(TokenModel(model), ids.astype('float32'))
    (alone,) = explain(model, tokenizer, TEXTS[1], method='loo')
    assert a.shape == ids.shape
    assert np.allclose(a[1, 0, :6], alone.scores, atol=1e-5)
    assert (a[ids == 0] == 0).all()


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


def test_metrics_of_quantus_take_images(quantus, digits):
    vit, X, y = digits
    drawn = dict(nr_runs=5, subset_size=196, perturb_baseline=-1.0)
    for name, options, low, high in (
        ('FaithfulnessCorrelation', dict(drawn, return_aggregate=False), -1, 1),
        ('MaxSensitivity', dict(nr_samples=1), 0, 10),
    ):
        metric = getattr(quantus, name)(disable_warnings=True, **options)
        found = measured(metric, TensorModel(vit), X.numpy(), y.numpy(), 'attn_lrp')
        assert len(found) == 3
        assert all(low <= v <= high for v in found)


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


def test_a_pipeline_of_images_is_its_model(digits):
    from PIL import Image

    def processor(images, return_tensors='pt', **_):
        images = images if isinstance(images, list) else [images]
        x = torch.stack([torch.tensor(np.array(i.convert('L'))) for i in images]) / 255
        return transformers.BatchFeature({'pixel_values': vit_pixels(x)})

    vit, _, _ = digits
    x = load_digit_images('embedded')[0][0]
    picture = Image.fromarray((x * 255).round().byte().numpy())
    pipe = transformers.pipeline(
        'image-classification', model=vit, image_processor=processor
    )
    (a,) = explain(pipe, None, picture, method='loo')
    (b,) = explain(vit, processor, picture, method='loo')
    assert torch.equal(a.scores, b.scores)
    assert a.label == pipe(picture)[0]['label']


# what advice.toml and bad_input.toml have no row for
REFUSED = [
    (ValueError, 'take 0 to 1', lambda g: g.of_target([0, 1, 5])),
    (ValueError, 'one per example', lambda g: g.of_target(torch.zeros(3, 1).long())),
    (ValueError, 'baselines have shape', lambda g: g.based(g.E, g.E[:2])),
    (TypeError, 'token id', lambda g: g.based(g.ids, 0.5)),
    (TypeError, 'a number', lambda g: g.based(g.E, 'pad')),
    (ValueError, 'NaN', lambda g: g.based(g.E, g.nan)),
    (ValueError, 'has 30522 tokens', lambda g: g.based(g.ids, 40000)),
    (ValueError, 'NaN or infinite', lambda g: g.lrp.attribute(g.nan)),
    (ValueError, 'NaN or infinite', lambda g: g.of_pixels.attribute(g.X / 0.0)),
    (ValueError, 'token ids go from', lambda g: g.lrp.attribute(g.ids + 30000)),
    (TypeError, 'a tensor, got list', lambda g: g.lrp.attribute(g.ids.tolist())),
    (ValueError, 'not take pixel_values', lambda g: g.lrp.attribute(g.X)),
    (ValueError, 'not take input_ids', lambda g: g.of_pixels.attribute(g.ids)),
    (ValueError, 'takes 5 after input_ids', lambda g: g.more((g.mask,) * 6)),
    (ValueError, 'inputs_embeds cannot', lambda g: g.more((None, None, None, g.E))),
    (TypeError, 'a tensor, a tuple or a dict', lambda g: g.more(3)),
    (ValueError, 'mask must be a tensor of shape', lambda g: g.more(g.mask[:2])),
    (ValueError, 'of 0 and 1', lambda g: g.more(g.mask * 2)),
    (ValueError, 'unbroken stretch of tokens.*row 0', lambda g: g.more(g.hole)),
    (ValueError, 'not in row 2', lambda g: g.more(g.no_text)),
    (
        ValueError,
        'not in row 2',
        lambda g: g.loo.attribute(g.ids, None, None, g.no_text),
    ),
    (
        ValueError,
        'cannot be given beside pixel_values',
        lambda g: g.of_pixels.attribute(
            g.X, additional_forward_args=dict(attention_mask=torch.ones(3, 1))
        ),
    ),
    (ValueError, 'one id for token ids', lambda g: g.loo.attribute(g.E, baselines=3)),
    (
        ValueError,
        'perturbations_per_eval must be',
        lambda g: g.loo.attribute(g.ids, perturbations_per_eval=0),
    ),
    (
        ValueError,
        'not both',
        lambda g: LeaveOneOut(g.model, 'delete').attribute(g.ids, baselines=0),
    ),
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


def test_arguments_in_the_models_order():
    "DistilBERT has no token types: its second argument after the ids is another."
    bert, gpt2 = random_model('BERT'), random_model('GPT-2')
    ids = random_inputs(bert)['input_ids']
    ones = torch.ones_like(ids)
    both = ['input_ids', 'attention_mask']
    assert list(named_inputs(bert, ids, (ones, ones, None))) == [
        *both,
        'token_type_ids',
    ]
    assert list(named_inputs(gpt2, ids, (None, ones))) == both
    with pytest.raises(ValueError, match='inputs_embeds cannot be given'):
        named_inputs(random_model('DistilBERT'), ids, (ones, ones))
    said = '(cache|past_key_values) cannot be given.*None leaves one out'
    with pytest.raises(ValueError, match=said):
        LRP(gpt2).attribute(ids, 0, ones)
    types = torch.zeros_like(ids)
    types[:, 6:] = 1
    given = (ones, (ones, types), dict(token_type_ids=types))
    plain, *typed = (LRP(bert).attribute(ids, 0, more) for more in given)
    assert not close(typed[0], plain)
    assert close(*typed)


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
