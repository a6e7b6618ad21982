"The classes against Captum and `explain`; Quantus; pipelines; what is refused."

import os
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import in_a_child, shallow_demo
from families import family_tasks, random_inputs, random_model

from lrp_loo import (
    Target,
    attribute_context,
    audit,
    explain,
    explain_dataset,
    leave_one_out,
    load_demo,
)
from lrp_loo.core.files import unpad_batch
from lrp_loo.data import load_digit_images, vit_pixels
from lrp_loo.interop import (
    LRP,
    AttentionRollout,
    GradientXInput,
    IntegratedGradients,
    LeaveOneOut,
    RemovalEstimate,
    quantus_explain,
)
from lrp_loo.interop.tensors import Attributor, TensorModel, TokenModel, named_inputs
from lrp_loo.lrp.composite import attn_lrp, gradient
from lrp_loo.lrp.rules import epsilon_rule
from lrp_loo.methods import METHODS
from lrp_loo.methods.baselines import ig_scores, lrp_scores
from lrp_loo.models.encoding import encode, input_embeddings, unwrap
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
OPTIONS = {'ig': dict(n_steps=16), 'removal+loo': {}}


def close(a, b, tol=1e-5):
    "Of one shape, and apart by a share of the largest number at most."
    a = a.detach()
    b = b.detach()
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


# the numbers of `explain`


def explained_alone(demo, name):
    "Scores of each text by `explain`, one after the other."
    options = {'n_exact': 2} if name == 'removal+loo' else {}
    return [explain(*demo, t, method=name, **options)[0].scores for t in TEXTS]


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
    how = OPTIONS.get(name, {})
    found = c.attribute(ids, additional_forward_args=mask, **how)
    assert (found.shape, found.dtype) == (ids.shape, torch.float32)
    assert not found.requires_grad
    options = {'n_exact': 2} if name == 'removal+loo' else {}
    for text, scores, own in zip(TEXTS, found, mask > 0):
        (alone,) = explain(*demo, text, method=name, **options)
        assert close(scores[own], alone.scores, 2e-5)
        assert (scores[~own] == 0).all()


@pytest.mark.parametrize('name', ['loo', 'attn_lrp', 'removal'])
def test_one_padded_text(demo, batch, name):
    "A batch of one that is padded all the same: padding is no text."
    ids, mask, _ = batch
    (a,) = explain(*demo, TEXTS[2], method=name)
    (s,) = CLASSES[name](demo[0]).attribute(ids[2:], additional_forward_args=mask[2:])
    assert close(s[: len(a)], a.scores, 2e-5)
    assert (s[len(a) :] == 0).all()


@pytest.fixture(scope='module')
def of_class(demo, batch):
    "Relevance for class 0 and for class 1, each for all texts."
    ids, mask, _ = batch
    lrp = LRP(demo[0])
    return [lrp.attribute(ids, target=c, additional_forward_args=mask) for c in (0, 1)]


EACH = [[1, 0, 1], ['positive', 0, 'positive']]
EACH += [torch.tensor(EACH[0]), np.array(EACH[0])]
ALL = [torch.tensor(1), torch.tensor([1]), [1], 'positive', Target(1)]
ALL += [lambda out: out.logits[:, 1]]


@pytest.mark.parametrize('target', [*EACH, *ALL, (1, 0)])
def test_a_target_for_each_text_or_one_for_all(demo, batch, of_class, target):
    ids, mask, _ = batch
    found = LRP(demo[0]).attribute(ids, target=target, additional_forward_args=mask)
    zero, one = of_class
    expected = one - zero if isinstance(target, tuple) else one
    if any(target is t for t in EACH):
        expected = torch.stack([one[0], zero[1], one[2]])
    assert close(found, expected, 1e-4)


def test_without_a_target_the_predicted_class(demo, batch):
    ids, mask, _ = batch
    loo = LeaveOneOut(demo[0])
    predicted = TensorModel(demo[0])(ids, mask).argmax(1)
    assert close(
        loo.attribute(ids, additional_forward_args=mask),
        loo.attribute(ids, target=predicted, additional_forward_args=mask),
    )


def test_a_tuple_of_one_gives_a_tuple(demo, batch):
    ids, mask, _ = batch
    (found,) = LRP(demo[0]).attribute((ids,), additional_forward_args=mask)
    assert found.shape == ids.shape


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
    """Embeddings instead of ids: the same logits, and per dimension what sums
    to the token's score, in every family.
    """
    model = random_model(family, task)
    ids = random_inputs(model)['input_ids'].repeat(2, 1)
    ids[1] = ids[1].flip(0)
    # by name: in GPT-2 the cache comes first
    more = dict(attention_mask=torch.ones_like(ids))
    E = input_embeddings(model)(ids).detach()
    check_logits(model, ids, E, more)
    for composite in (attn_lrp(), gradient()):
        check_sums(model, ids, E, more, composite)
    model = model.float()
    loo = LeaveOneOut(model)
    of_embeddings = loo.attribute(E.float(), target=1)
    assert close(of_embeddings.sum(-1), loo.attribute(ids, target=1), 1e-4)


@torch.no_grad()
def check_logits(model, ids, E, more):
    f = TensorModel(model)
    out = model(input_ids=ids, **more).logits
    out = out if out.ndim == 2 else out[:, -1]
    assert torch.equal(f(ids, more), out)
    assert close(f(E, more), out, 1e-9)


def check_sums(model, ids, E, more, composite):
    R, delta = LRP(model, composite).attribute(
        E, None, more, return_convergence_delta=True
    )
    texts = unpad_batch(dict(input_ids=ids) | more)
    found = lrp_scores(model, None, texts, composite=composite)
    assert close(R.sum(-1), found.scores, 1e-7)
    assert close(delta, found.values - found.scores.sum(1), 1e-6)


@pytest.mark.parametrize('family', ['ViT', 'DeiT', 'CLIP vision'])
def test_pixels_of_families(family):
    InputXGradient = pytest.importorskip('captum.attr').InputXGradient
    model = random_model(family, 'image')
    x = random_inputs(model)['pixel_values']
    y = int(TensorModel(model)(x).argmax())
    assert close(
        GradientXInput(model).attribute(x, target=y),
        InputXGradient(TensorModel(model)).attribute(
            x.clone().requires_grad_(), target=y
        ),
        1e-9,
    )
    for c in (
        LeaveOneOut(model),
        AttentionRollout(model),
        RemovalEstimate(model),
        LeaveOneOut(model, 'attention_mask'),
    ):
        s = c.attribute(x, target=y)
        a = explain(
            model,
            None,
            x[0],
            method=c.method,
            target=y,
            **{k: v for k, v in c.options.items() if v},
        )[0]
        per_patch = s.sum(1)[0].unfold(0, 7, 7).unfold(1, 7, 7).sum((2, 3)).flatten()
        assert s.shape == x.shape
        assert close(per_patch.float(), a.scores, 1e-4)


# the numbers of Captum


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


BASELINES_OF_IG = {
    'a number': lambda E: 0,
    'a tensor': lambda E: E.flip(0),
    'one for all': lambda E: torch.zeros_like(E[:1]),
}


@pytest.mark.parametrize('baseline', BASELINES_OF_IG)
def test_integrated_gradients_are_captums(both, baseline):
    b = BASELINES_OF_IG[baseline](both.E)
    how = dict(baselines=b, n_steps=11, return_convergence_delta=True)
    theirs, delta = both.captum.IntegratedGradients(both.f).attribute(
        both.x, method='gausslegendre', **how, **both.theirs
    )
    ours, own_delta = IntegratedGradients(both.model).attribute(
        both.E, internal_batch_size=7, **how, **both.ours
    )
    assert close(ours, theirs, 1e-4)
    assert close(own_delta, delta, 1e-3)


@pytest.mark.parametrize('baseline', BASELINES_OF_IG)
def test_a_convergence_delta_is_captums(both, baseline):
    b = BASELINES_OF_IG[baseline](both.E)
    attributions = 0.1 * both.E
    theirs = both.captum.IntegratedGradients(both.f)
    ours = IntegratedGradients(both.model)
    t = both.ours['target']
    assert close(
        ours.compute_convergence_delta(attributions, b, both.E, t, both.mask),
        theirs.compute_convergence_delta(attributions, b, both.E, t, (both.mask,)),
        1e-4,
    )


@pytest.mark.parametrize(
    'baseline',
    [103, lambda ids: torch.full_like(ids, 103)],
    ids=['one id', 'a tensor of ids'],
)
def test_integrated_gradients_of_ids_are_captums(both, baseline):
    b = baseline(both.ids) if callable(baseline) else baseline
    theirs = both.captum.LayerIntegratedGradients(
        both.f, input_embeddings(both.model)
    ).attribute(
        both.ids, baselines=torch.full_like(both.ids, 103), n_steps=11, **both.theirs
    )
    ours = IntegratedGradients(both.model).attribute(
        both.ids, baselines=b, n_steps=11, **both.ours
    )
    assert close(ours, theirs.sum(-1), 1e-4)


def test_integrated_gradients_of_pixels_are_captums(both, digits):
    vit, X, y = digits
    how = dict(target=y, n_steps=5)
    theirs = both.captum.IntegratedGradients(TensorModel(vit)).attribute(
        X.clone().requires_grad_(), baselines=-1.0, **how
    )
    ours = IntegratedGradients(vit).attribute(X, baselines=-1, **how)
    assert close(ours, theirs.float(), 1e-4)


def test_gradient_x_input_is_captums(both):
    theirs = both.captum.InputXGradient(both.f).attribute(both.x, **both.theirs)
    ours = GradientXInput(both.model).attribute(both.E, **both.ours)
    assert close(ours, theirs)


@pytest.mark.parametrize('at_once', [None, 1, 4])
def test_leave_one_out_is_captums_ablation_of_the_mask(both, at_once):
    ablated = both.captum.FeatureAblation(lambda m, i: both.f(i, m))
    theirs = ablated.attribute(
        both.mask,
        baselines=0,
        target=both.ours['target'],
        additional_forward_args=(both.ids,),
    )
    ours = LeaveOneOut(both.model).attribute(
        both.ids, perturbations_per_eval=at_once, **both.ours
    )
    assert close(ours, theirs, 1e-4)


def test_one_id_in_a_tokens_place_is_captums_ablation_of_ids(both):
    theirs = both.captum.FeatureAblation(both.f).attribute(
        both.ids, baselines=1012, **both.theirs
    )
    ours = LeaveOneOut(both.model).attribute(both.ids, 1012, **both.ours)
    assert close(ours, theirs * both.mask, 1e-4)


# Captum's tools, given our classes

CAPTUM_LIKE = (
    LRP,
    LeaveOneOut,
    IntegratedGradients,
    AttentionRollout,
    RemovalEstimate,
    GradientXInput,
)
captum_like = pytest.mark.parametrize(
    'kind', CAPTUM_LIKE, ids=lambda kind: kind.__name__
)


@captum_like
def test_captums_tools_take_our_classes(both, kind):
    metrics = pytest.importorskip('captum.metrics')
    ours = kind(both.model)
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


@captum_like
def test_our_classes_say_of_themselves_what_captums_say(demo, kind):
    ours = kind(demo[0])
    assert ours.get_name().replace(' ', '') == kind.__name__
    assert isinstance(ours.multiplies_by_inputs, bool)
    assert isinstance(ours.forward_func, TensorModel)
    assert ours.has_convergence_delta() is (kind in (LRP, IntegratedGradients))


@pytest.mark.parametrize('method', METHODS)
def test_where_gradients_are_off_a_method_turns_them_on(demo, method):
    (a,) = explain(*demo, TEXTS[1], method=method)
    with torch.no_grad():
        (b,) = explain(*demo, TEXTS[1], method=method)
    assert torch.equal(a.scores, b.scores)
    assert not b.scores.requires_grad


# Quantus


OF_QUANTUS = {
    'a name': (dict(method='cp_lrp'), {}, lambda m: LRP(m, 'cp_lrp')),
    'a class': (dict(method=LRP, composite='cp_lrp'), {}, lambda m: LRP(m, 'cp_lrp')),
    'a function': (
        dict(method=partial(ig_scores, n_steps=4)),
        {},
        lambda m: SimpleNamespace(
            attribute=partial(IntegratedGradients(m).attribute, n_steps=4)
        ),
    ),
    'options of a call': (
        dict(method=IntegratedGradients),
        dict(n_steps=3, baselines=-1, device='cpu'),
        lambda m: SimpleNamespace(
            attribute=partial(IntegratedGradients(m).attribute, n_steps=3, baselines=-1)
        ),
    ),
}


@pytest.mark.parametrize('way', OF_QUANTUS)
def test_explain_func(digits, way):
    vit, X, y = digits
    made_of, options, ours = OF_QUANTUS[way]
    a = quantus_explain(**made_of)(TensorModel(vit), X.numpy(), y.numpy(), **options)
    assert isinstance(a, np.ndarray)
    assert np.allclose(a, ours(vit).attribute(X, target=y))


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
    """For Quantus: model, ids as numbers, the class; and its AttnLRP. Of all
    layers, which rank several words above [CLS].
    """
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, TEXTS[0])
    (a,) = explain(model, tokenizer, TEXTS[0], method='attn_lrp')
    x = enc['input_ids'].numpy()[:, None].astype('float32')
    return (TokenModel(model), x, np.array([a.target])), enc, a


def test_quantus_morf_curve_is_ours_until_cls_goes(quantus, one_text):
    given, enc, a = one_text
    flipping = quantus.PixelFlipping(
        perturb_baseline=0.0, disable_warnings=True, normalise=False
    )
    theirs = np.array(measured(flipping, *given, 'attn_lrp'))[0]
    every = torch.arange(len(a))
    model = given[0].model
    curves = perturbation_curves(model, enc, {'a': a.scores}, every, a.target)
    ours, _ = curves['a']
    order = torch.argsort(a.scores, descending=True, stable=True).tolist()
    cls = order.index(0)
    assert cls > 2
    assert np.allclose(theirs[:cls], ours[1 : cls + 1], atol=1e-4)


def test_leave_one_out_is_faithful_where_quantus_removes_alike(quantus, one_text):
    "With one pixel set at a time faithfulness is a correlation."
    given, _, _ = one_text
    np.random.seed(0)
    faithfulness = quantus.FaithfulnessCorrelation(
        nr_runs=40,
        subset_size=1,
        perturb_baseline=0.0,
        return_aggregate=False,
        disable_warnings=True,
    )
    (r,) = measured(faithfulness, *given, 'loo')
    assert r > 0.95


QUANTUS_METRICS = [
    (
        'FaithfulnessCorrelation',
        dict(nr_runs=5, subset_size=196, perturb_baseline=-1.0, return_aggregate=False),
        -1,
        1,
    ),
    ('MaxSensitivity', dict(nr_samples=1), 0, 10),
]


@pytest.mark.parametrize('name, options, low, high', QUANTUS_METRICS)
def test_a_metric_of_quantus_takes_images(quantus, digits, name, options, low, high):
    vit, X, y = digits
    metric = getattr(quantus, name)(disable_warnings=True, **options)
    found = measured(metric, TensorModel(vit), X.numpy(), y.numpy(), 'attn_lrp')
    assert len(found) == 3
    assert all(low <= v <= high for v in found)


# pipelines


class Digits:
    "An image processor for pictures of digits."

    def __call__(self, images, return_tensors='pt', **_):
        images = images if isinstance(images, list) else [images]
        grey = [np.array(image.convert('L')) for image in images]
        x = torch.stack([torch.from_numpy(g).float() / 255 for g in grey])
        return transformers.BatchFeature({'pixel_values': vit_pixels(x)})


@pytest.fixture(scope='module')
def pipe(demo):
    "A pipeline that classifies texts."
    model, tokenizer = demo
    return transformers.pipeline('sentiment-analysis', model=model, tokenizer=tokenizer)


def test_a_pipeline_is_its_model(demo, pipe, batch, tmp_path):
    ids, mask, _ = batch
    for ours, of_model in (
        (explain(pipe, None, TEXTS), explain(*demo, TEXTS)),
        (explain(pipe, None, TEXTS, method='loo'), explain(*demo, TEXTS, method='loo')),
    ):
        for a, b in zip(ours, of_model, strict=True):
            assert torch.equal(a.scores, b.scores)
            assert (a.tokens, a.label) == (b.tokens, b.label)
    assert [a.label for a in ours] == [answer['label'] for answer in pipe(TEXTS)]
    how = dict(methods=['attn_lrp'], progress=False)
    of_model = audit(*demo, TEXTS[:2], **how)
    assert audit(pipe, None, TEXTS[:2], **how).equals(of_model)
    enc = encode(*demo, TEXTS[1])
    assert torch.equal(leave_one_out(pipe, enc)[0], leave_one_out(demo[0], enc)[0])
    of_pipe, of_model = (
        explain_dataset(
            TEXTS[:2], tmp_path / name, methods=['cp_lrp'], model=model, progress=False
        )
        for name, model in (('a', pipe), ('b', (*demo, 'demo')))
    )
    assert of_pipe.equals(of_model)
    of_pipe = RemovalEstimate(pipe, n_groups=1)
    of_model = RemovalEstimate(demo[0], tokenizer=demo[1], n_groups=1)
    assert torch.equal(*(c.attribute(ids, None, mask) for c in (of_pipe, of_model)))


def test_a_pipeline_is_no_model_for_workers(pipe, tmp_path):
    with pytest.raises(ValueError, match='each worker loads the model'):
        explain_dataset(TEXTS, tmp_path / 'c', model=pipe, engine='ray')


def test_a_tokenizer_that_is_given_wins_over_the_pipelines(demo, pipe):
    _, other = load_demo('reviews')
    assert unwrap(pipe, other) == (demo[0], other)
    (a,) = explain(pipe, other, 'old')
    assert len(a) == len(other('old')['input_ids'])


def test_a_pipeline_that_writes_is_its_model():
    demo = load_demo('reviews')
    pipe = transformers.pipeline('text-generation', model=demo[0], tokenizer=demo[1])
    context = dict(
        context='The film is dull. We left.',
        answer='bad',
        template='{context} The music is ',
        method='attn_lrp',
    )
    (a,), (b,) = (
        explain(*m, 'I really', target=' liked') for m in ((pipe, None), demo)
    )
    assert torch.equal(a.scores, b.scores)
    a, b = (attribute_context(*m, **context) for m in ((pipe, None), demo))
    assert torch.equal(a.scores, b.scores)


def test_a_pipeline_of_images_is_its_model(digits):
    from PIL import Image

    vit, _, _ = digits
    x = load_digit_images('embedded')[0][0]
    picture = Image.fromarray((x * 255).round().byte().numpy())
    pipe = transformers.pipeline(
        'image-classification', model=vit, image_processor=Digits()
    )
    (a,) = explain(pipe, None, picture, method='loo')
    (b,) = explain(vit, Digits(), picture, method='loo')
    assert torch.equal(a.scores, b.scores)
    assert a.label == pipe(picture)[0]['label']


CALLS_OF_A_PIPELINE = {
    'explain': lambda p: explain(p, None, TEXTS),
    'audit': lambda p: audit(p, None, TEXTS),
    'leave_one_out': lambda p: leave_one_out(p, {}),
    'LRP': lambda p: LRP(p),
    'explain_dataset': lambda p: explain_dataset(TEXTS, 'nowhere', model=p),
}


@pytest.mark.parametrize('call', CALLS_OF_A_PIPELINE)
def test_a_pipeline_without_an_answer_is_refused(demo, call):
    model, tokenizer = demo
    p = transformers.pipeline(
        'feature-extraction', model=model.base_model, tokenizer=tokenizer
    )
    with pytest.raises(
        ValueError,
        match=(
            "'feature-extraction' cannot be explained as it is; take one for"
            " text-classification"
        ),
    ):
        CALLS_OF_A_PIPELINE[call](p)


@pytest.mark.parametrize(
    'call', [lambda tok: explain('bert', tok, TEXTS), lambda tok: LRP('bert')]
)
def test_a_name_is_neither_a_model_nor_a_pipeline(tokenizer, call):
    with pytest.raises(TypeError, match='or a pipeline'):
        call(tokenizer)


# what is refused


@pytest.fixture(scope='module')
def given(demo, batch, digits):
    "What a call that is refused is made of."
    ids, mask, E = batch
    vit, X, _ = digits
    hole, no_text = mask.clone(), mask.clone()
    hole[0, 2] = no_text[2] = 0
    model = demo[0]
    return SimpleNamespace(
        ids=ids,
        mask=mask,
        E=E,
        X=X,
        model=model,
        vit=vit,
        lrp=LRP(model),
        ig=IntegratedGradients(model),
        loo=LeaveOneOut(model),
        of_pixels=LRP(vit),
        nan=torch.where(E > 0, E, torch.nan),
        hole=hole,
        no_text=no_text,
    )


TARGETS = [
    (ValueError, 'not a class of this model; take 0 to 1', 2),
    (ValueError, 'not a class of this model; take 0 to 1', -1),
    (ValueError, 'not a class of this model; take 0 to 1', [0, 1, 5]),
    *[(ValueError, 'target=', t) for t in (1.5, True, 'one', {})],
    (ValueError, 'target has 2 entries for 3 examples', [0, 1]),
    (ValueError, 'has 4 entries for 3', torch.tensor([0, 1, 1, 0])),
    (TypeError, 'whole numbers', torch.tensor([0.5, 1.0, 0.0])),
    (ValueError, 'one per example', torch.zeros(3, 1).long()),
]
BASELINES = [
    (ValueError, 'baselines have shape', lambda g: (g.E, g.E[:, :3])),
    (ValueError, 'baselines have shape', lambda g: (g.E, g.E[:2])),
    (ValueError, 'baselines have shape', lambda g: (g.E, torch.zeros(384))),
    (ValueError, 'baselines have shape', lambda g: (g.ids, g.ids[:, :2])),
    (TypeError, 'token id', lambda g: (g.ids, 0.5)),
    (TypeError, 'a number', lambda g: (g.E, 'pad')),
    (ValueError, 'NaN', lambda g: (g.E, g.E * torch.nan)),
    (ValueError, 'needs the tokenizer', lambda g: (g.ids, 'pad')),
    (ValueError, 'has 30522 tokens', lambda g: (g.ids, 40000)),
]
INPUTS = [
    (ValueError, 'token ids go from', lambda g: g.ids + 30000),
    (ValueError, 'NaN or infinite', lambda g: g.nan),
    (TypeError, 'have no gradient', lambda g: g.E.long()),
    (TypeError, 'whole numbers', lambda g: g.ids.float()),
    (TypeError, 'must be a tensor, got list', lambda g: g.ids.tolist()),
    (ValueError, r'shape \(12,\)', lambda g: torch.arange(12)),
    (ValueError, 'inputs are 2 tensors', lambda g: (g.ids, g.mask)),
    (ValueError, 'does not take pixel_values', lambda g: g.X),
]
PIXELS = [
    (ValueError, 'NaN or infinite', lambda g: g.X / 0.0),
    (TypeError, 'have no gradient', lambda g: (g.X * 9).long()),
    (ValueError, 'does not take input_ids', lambda g: g.ids),
]
MORE = [
    (ValueError, 'takes 5 after input_ids', lambda g: (g.mask,) * 6),
    (ValueError, 'name masks', lambda g: dict(masks=g.mask)),
    (ValueError, 'inputs_embeds cannot be given', lambda g: (None, None, None, g.E)),
    (TypeError, 'a tensor, a tuple or a dict', lambda g: 3),
    (ValueError, 'attention_mask must be a tensor of shape', lambda g: g.mask[:2]),
    (ValueError, 'of 0 and 1', lambda g: g.mask * 2),
    (ValueError, 'unbroken stretch of tokens.*row 0', lambda g: g.hole),
    (ValueError, 'not in row 2', lambda g: g.no_text),
]
OTHERS = [
    (ValueError, '2 entries for 3', lambda g: g.loo.attribute(g.ids, target=[0, 1])),
    (ValueError, 'NaN or infinite', lambda g: g.loo.attribute(g.nan)),
    (ValueError, 'NaN or infinite', lambda g: g.ig.attribute(g.nan)),
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
    (
        ValueError,
        "take 'gausslegendre'",
        lambda g: g.ig.attribute(g.E, method='riemann_left'),
    ),
    (ValueError, 'one id for token ids', lambda g: g.loo.attribute(g.E, baselines=3)),
    (
        ValueError,
        'not both',
        lambda g: LeaveOneOut(g.model, 'delete').attribute(g.ids, baselines=0),
    ),
    (
        ValueError,
        'needs token ids',
        lambda g: LeaveOneOut(g.model, 'mask_token').attribute(g.E),
    ),
    (ValueError, "composite='lrp0' is not known", lambda g: LRP(g.model, 'lrp0')),
    (
        ValueError,
        "method 'shap' is not known",
        lambda g: Attributor(g.model, 'shap').attribute(g.ids),
    ),
    (TypeError, 'unexpected keyword', lambda g: LRP(g.model, gamma=3).attribute(g.ids)),
    (ValueError, 'knows no padding token', lambda g: TokenModel(g.vit)),
    (ValueError, 'must be whole numbers', lambda g: TokenModel(g.model)(g.ids + 0.25)),
]


WAYS = [
    ('target', TARGETS, lambda g, t: g.lrp.attribute(g.ids, target=t)),
    ('baselines', BASELINES, lambda g, c: g.ig.attribute(c(g)[0], baselines=c(g)[1])),
    ('inputs', INPUTS, lambda g, c: g.lrp.attribute(c(g))),
    ('pixels', PIXELS, lambda g, c: g.of_pixels.attribute(c(g))),
    ('more', MORE, lambda g, c: g.lrp.attribute(g.ids, additional_forward_args=c(g))),
    ('others', OTHERS, lambda g, c: c(g)),
]
REFUSED = [
    pytest.param(kind, said, call, one, id=f'{way}-{said[:30]}')
    for way, cases, call in WAYS
    for kind, said, one in cases
]


@pytest.mark.parametrize('kind,said,call,one', REFUSED)
def test_what_cannot_be_right(given, kind, said, call, one):
    with pytest.raises(kind, match=said):
        call(given, one)


@pytest.mark.parametrize('n', [0, -3])
@pytest.mark.parametrize('name', ['n_steps', 'internal_batch_size'])
def test_counts_that_cannot_be_right(given, n, name):
    with pytest.raises(ValueError, match=f'{name} must be a whole number, at least 1'):
        given.ig.attribute(given.E, **{name: n})
    with pytest.raises(ValueError, match='perturbations_per_eval must be'):
        given.loo.attribute(given.ids, perturbations_per_eval=n)


@pytest.mark.parametrize('name', ['lrp', 'loo', 'ig'])
def test_a_model_in_training_mode_is_refused(given, name):
    given.model.train()
    try:
        with pytest.raises(ValueError, match='training mode'):
            getattr(given, name).attribute(given.ids)
    finally:
        given.model.eval()


def test_arguments_in_the_models_order():
    """DistilBERT has no token types: the second argument after the ids is
    another one there.
    """
    bert = random_model('BERT')
    distil = random_model('DistilBERT')
    ids = random_inputs(bert)['input_ids']
    ones = torch.ones_like(ids)
    assert list(named_inputs(bert, ids, (ones, ones, None))) == [
        'input_ids',
        'attention_mask',
        'token_type_ids',
    ]
    with pytest.raises(ValueError, match='inputs_embeds cannot be given'):
        named_inputs(distil, ids, (ones, ones))
    with pytest.raises(
        ValueError, match='(cache|past_key_values) cannot be given.*None leaves one out'
    ):
        LRP(random_model('GPT-2')).attribute(ids, 0, ones)
    assert list(named_inputs(random_model('GPT-2'), ids, (None, ones))) == [
        'input_ids',
        'attention_mask',
    ]
    types = torch.zeros_like(ids)
    types[:, 6:] = 1
    assert not close(
        LRP(bert).attribute(ids, 0, (ones, types)), LRP(bert).attribute(ids, 0, ones)
    )
    assert close(
        LRP(bert).attribute(ids, 0, (ones, types)),
        LRP(bert).attribute(ids, 0, dict(token_type_ids=types)),
    )


def imported_anew_without_captum_and_quantus():
    "What LRP gives where this package is imported again beside neither."
    ours = ('lrp_loo', 'captum', 'quantus')
    for name in list(sys.modules):
        if name.split('.')[0] in ours:
            del sys.modules[name]
    sys.modules.update(captum=None, quantus=None)
    from lrp_loo import LRP, load_demo

    model, tokenizer = load_demo('sst2')
    ids = tokenizer('old jokes', return_tensors='pt')['input_ids']
    assert sys.modules['captum'] is None
    assert LRP is not globals()['LRP']
    return list(LRP(model).attribute(ids).shape)


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
def test_without_captum_and_quantus():
    "In a child, which need not import everything else again."
    assert in_a_child(imported_anew_without_captum_and_quantus) == [1, 4]


def test_a_padded_batch_of_one_is_unpadded():
    (one,) = unpad_batch(
        dict(
            input_ids=torch.tensor([[5, 6, 7, 0, 0]]),
            attention_mask=torch.tensor([[1, 0, 1, 0, 0]]),
        )
    )
    assert one['input_ids'].tolist() == [[5, 6, 7]]
    assert one['attention_mask'].tolist() == [[1, 0, 1]]
