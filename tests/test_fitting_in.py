"The classes against Captum and `explain`; Quantus; pipelines; what is refused."

import os
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from conftest import in_a_child

from lrp_loo import (
    Target,
    attribute_context,
    audit,
    explain,
    explain_dataset,
    leave_one_out,
    load_demo,
)
from lrp_loo.methods import METHODS, ig_scores, lrp_scores
from lrp_loo.interop import (
    Attributor,
    AttentionRollout,
    GradientXInput,
    IntegratedGradients,
    LeaveOneOut,
    LRP,
    RemovalEstimate,
    TensorModel,
    TokenModel,
    named_inputs,
    quantus_explain,
)
from lrp_loo.lrp import attn_lrp, gradient
from lrp_loo.data import load_digit_images, vit_pixels
from lrp_loo.studies.families import family_tasks, random_inputs, random_model
from lrp_loo.models import encode, input_embeddings, unwrap
from lrp_loo.curves import perturbation_curves
from lrp_loo.models import unpad_batch
from lrp_loo.rules import epsilon_rule

TEXTS = [
    "a quiet film that says little and means it",
    "the jokes are old",
    "slow",
]
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


@pytest.mark.parametrize('name', CLASSES)
def test_as_explain(demo, batch, name):
    "Three texts of unlike length in one batch: each as if alone, padding 0."
    model, tokenizer = demo
    ids, mask, _ = batch
    c = CLASSES[name](model, tokenizer=tokenizer)
    found = c.attribute(
        ids, additional_forward_args=mask, **OPTIONS.get(name, {})
    )
    assert found.shape == ids.shape
    assert found.dtype == torch.float32
    assert not found.requires_grad
    for scores, alone in zip(found, explained_alone(demo, name)):
        n = len(alone)
        assert close(scores[:n], alone, 2e-5)
        assert (scores[n:] == 0).all()


@pytest.mark.parametrize('name', CLASSES)
def test_as_explain_with_padding_in_front(demo, batch, name):
    model, tokenizer = demo
    ids, mask, _ = batch
    c = CLASSES[name](model, tokenizer=tokenizer)
    shifts = [int((m == 0).sum()) for m in mask]

    def moved(rows):
        return torch.stack([r.roll(n) for r, n in zip(rows, shifts)])

    found = c.attribute(
        moved(ids),
        additional_forward_args=moved(mask),
        **OPTIONS.get(name, {}),
    )
    for scores, alone in zip(found, explained_alone(demo, name)):
        n = len(alone)
        assert close(scores[-n:], alone, 2e-5)
        assert (scores[: len(scores) - n] == 0).all()


def test_one_padded_text(demo, batch):
    """A batch of one that is padded all the same: Leave-One-Out must not take
    padding for text.
    """
    model, tokenizer = demo
    ids, mask, _ = batch
    for name in ('loo', 'attn_lrp', 'removal'):
        a = explain(model, tokenizer, TEXTS[2], method=name)[0].scores
        (s,) = CLASSES[name](model).attribute(
            ids[2:], additional_forward_args=mask[2:]
        )
        assert close(s[: len(a)], a, 2e-5) and (s[len(a) :] == 0).all()


@pytest.fixture(scope='module')
def of_class(demo, batch):
    "Relevance for class 0 and for class 1, each for all texts."
    ids, mask, _ = batch
    lrp = LRP(demo[0])
    return [
        lrp.attribute(ids, target=c, additional_forward_args=mask)
        for c in (0, 1)
    ]


@pytest.mark.parametrize(
    'target', [[1, 0, 1], torch.tensor([1, 0, 1]), np.array([1, 0, 1])]
)
def test_a_target_for_each_text(demo, batch, of_class, target):
    ids, mask, _ = batch
    found = LRP(demo[0]).attribute(
        ids, target=target, additional_forward_args=mask
    )
    zero, one = of_class
    assert close(found, torch.stack([one[0], zero[1], one[2]]))


@pytest.mark.parametrize(
    'target',
    [
        torch.tensor(1),
        torch.tensor([1]),
        [1],
        'positive',
        Target(1),
        lambda out: out.logits[:, 1],
    ],
)
def test_one_target_for_all(demo, batch, of_class, target):
    ids, mask, _ = batch
    found = LRP(demo[0]).attribute(
        ids, target=target, additional_forward_args=mask
    )
    assert close(found, of_class[1])


def test_a_pair_is_the_difference(demo, batch, of_class):
    ids, mask, _ = batch
    found = LRP(demo[0]).attribute(
        ids, target=(1, 0), additional_forward_args=mask
    )
    assert close(found, of_class[1] - of_class[0], 1e-4)


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
    found = LRP(demo[0]).attribute((ids,), additional_forward_args=mask)
    assert isinstance(found, tuple) and len(found) == 1


def test_a_rule_by_module_path_holds_in_embeddings(demo, batch):
    model = demo[0]
    ids, mask, E = batch
    of_one_module = gradient().with_rule(
        'linear',
        lambda f, *a, **kw: epsilon_rule(f(*a, **kw), 1.0),
        modules='*.encoder.layer.5.output.dense',
    )
    how = dict(target=1, additional_forward_args=mask)
    inside = LRP(model, of_one_module)
    of_ids = inside.attribute(ids, **how)
    assert not close(of_ids, GradientXInput(model).attribute(ids, **how))
    assert close(inside.attribute(E, **how).sum(-1), of_ids)


@pytest.mark.parametrize(
    'family,task',
    [(f, t) for f, t in family_tasks() if t in ('class', 'next token')],
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
    from captum.attr import InputXGradient

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
        per_patch = (
            s.sum(1)[0].unfold(0, 7, 7).unfold(1, 7, 7).sum((2, 3)).flatten()
        )
        assert s.shape == x.shape and close(per_patch.float(), a.scores, 1e-4)


# the numbers of Captum


def test_as_captum(demo, batch, digits):
    captum = pytest.importorskip('captum.attr')
    model = demo[0]
    ids, mask, E = batch
    f = TensorModel(model)
    t = [1, 0, 1]
    x = E.clone().requires_grad_()
    for b in (0, E.flip(0), torch.zeros_like(E[:1])):
        kw = dict(
            baselines=b,
            target=t,
            additional_forward_args=(mask,),
            n_steps=11,
            return_convergence_delta=True,
        )
        theirs, delta = captum.IntegratedGradients(f).attribute(
            x, method='gausslegendre', **kw
        )
        ours, d = IntegratedGradients(model).attribute(
            E, internal_batch_size=7, **kw
        )
        assert close(ours, theirs.detach(), 1e-4) and close(d, delta, 1e-3)
        assert close(
            IntegratedGradients(model).compute_convergence_delta(
                ours, b, E, t, mask
            ),
            captum.IntegratedGradients(f).compute_convergence_delta(
                ours, b, E, t, (mask,)
            ),
            1e-4,
        )
    b = torch.full_like(ids, 103)
    e = captum.LayerIntegratedGradients(f, input_embeddings(model)).attribute(
        ids, baselines=b, target=t, additional_forward_args=(mask,), n_steps=11
    )
    assert close(
        IntegratedGradients(model).attribute(
            ids, baselines=b, target=t, additional_forward_args=mask, n_steps=11
        ),
        e.detach().sum(-1),
        1e-4,
    ) and close(
        IntegratedGradients(model).attribute(
            ids,
            baselines=103,
            target=t,
            additional_forward_args=mask,
            n_steps=11,
        ),
        e.detach().sum(-1),
        1e-4,
    )
    assert close(
        GradientXInput(model).attribute(
            E, target=t, additional_forward_args=mask
        ),
        captum.InputXGradient(f).attribute(
            x, target=t, additional_forward_args=(mask,)
        ),
    )
    ablation = captum.FeatureAblation(lambda m, i: f(i, m)).attribute(
        mask, baselines=0, target=t, additional_forward_args=(ids,)
    )
    for k in (None, 1, 4):
        assert close(
            LeaveOneOut(model).attribute(
                ids,
                target=t,
                additional_forward_args=mask,
                perturbations_per_eval=k,
            ),
            ablation,
            1e-4,
        )
    stands = captum.FeatureAblation(f).attribute(
        ids, baselines=1012, target=t, additional_forward_args=(mask,)
    )
    assert close(
        LeaveOneOut(model).attribute(ids, 1012, t, mask), stands * mask, 1e-4
    )  # one id in a token's place
    vit, X, y = digits
    fv = TensorModel(vit)
    px = X.clone().requires_grad_()
    assert close(
        IntegratedGradients(vit).attribute(
            X, baselines=-1, target=y, n_steps=5
        ),
        captum.IntegratedGradients(fv)
        .attribute(px, baselines=-1.0, target=y, n_steps=5)
        .detach()
        .float(),
        1e-4,
    )


def test_captums_tools(demo, batch):
    captum = pytest.importorskip('captum.attr')
    metrics = pytest.importorskip('captum.metrics')
    model = demo[0]
    ids, mask, E = batch
    kw = dict(target=torch.tensor([1, 0, 1]), additional_forward_args=(mask,))
    for c in (
        LRP(model),
        LeaveOneOut(model),
        IntegratedGradients(model),
        AttentionRollout(model),
        RemovalEstimate(model),
        GradientXInput(model),
    ):
        options = dict(n_steps=3) if isinstance(c, IntegratedGradients) else {}
        s = metrics.sensitivity_max(
            c.attribute, E, n_perturb_samples=1, **kw, **options
        )
        assert s.shape == (3,) and torch.isfinite(s).all() and (s > 0).all()
        torch.manual_seed(0)
        noisy = captum.NoiseTunnel(c).attribute(
            E, nt_samples=2, stdevs=1e-6, **kw, **options
        )
        assert close(noisy, c.attribute(E, **kw, **options), 1e-2)
        for name, kind in (('has_convergence_delta', bool), ('get_name', str)):
            assert isinstance(getattr(c, name)(), kind)
        assert isinstance(c.multiplies_by_inputs, bool) and isinstance(
            c.forward_func, TensorModel
        )
    assert (
        LRP(model).has_convergence_delta()
        and not LeaveOneOut(model).has_convergence_delta()
    )


def test_gradients_off(demo):
    model, tokenizer = demo
    for method in METHODS:
        (a,) = explain(model, tokenizer, TEXTS[1], method=method)
        with torch.no_grad():
            (b,) = explain(model, tokenizer, TEXTS[1], method=method)
        assert torch.equal(a.scores, b.scores) and not b.scores.requires_grad


# Quantus


def test_explain_func(demo, digits):
    vit, X, y = digits
    f = TensorModel(vit)
    for method in (
        'attn_lrp',
        'loo',
        LRP,
        lambda *a, **kw: lrp_scores(*a, **kw),
    ):
        a = quantus_explain(method)(f, X.numpy(), y.numpy(), device='cpu')
        assert (
            isinstance(a, np.ndarray)
            and a.shape == X.shape
            and np.isfinite(a).all()
        )
    assert np.allclose(
        quantus_explain(partial(ig_scores, n_steps=4))(f, X.numpy(), y.numpy()),
        IntegratedGradients(vit).attribute(X, target=y, n_steps=4),
    )
    assert np.allclose(
        quantus_explain('cp_lrp')(vit, X.numpy(), y.numpy()),
        LRP(vit, 'cp_lrp').attribute(X, target=y),
    ) and np.allclose(
        quantus_explain(LRP, composite='cp_lrp')(f, X.numpy()),
        LRP(vit, 'cp_lrp').attribute(X),
    )
    assert np.allclose(
        quantus_explain(IntegratedGradients)(
            f, X.numpy(), y.numpy(), n_steps=3, baselines=-1
        ),
        IntegratedGradients(vit).attribute(X, -1, y, n_steps=3),
    )
    model, tokenizer = demo
    ids = tokenizer(TEXTS, padding=True, return_tensors='np')['input_ids'][
        :, None
    ]
    a = quantus_explain('loo')(TokenModel(model), ids.astype('float32'))
    assert (
        a.shape == ids.shape
        and np.allclose(
            a[1, 0, :6],
            explain(model, tokenizer, TEXTS[1], method='loo')[0].scores,
            atol=1e-5,
        )
        and (a[ids == 0] == 0).all()
    )


def test_metrics(demo, digits):
    """Quantus' MoRF curve on one text is ours until [CLS] goes; with one pixel
    set at a time its faithfulness is a correlation; Leave-One-Out reaches 1
    where both remove alike.
    """
    quantus = pytest.importorskip('quantus', exc_type=ImportError)
    model, tokenizer = demo
    f = TokenModel(model)
    enc = encode(model, tokenizer, TEXTS[0])
    a = explain(model, tokenizer, TEXTS[0], method='attn_lrp')[0]

    def call(metric, m, x, y, method):
        return metric(
            model=m,
            x_batch=x,
            y_batch=y,
            a_batch=None,
            channel_first=True,
            explain_func=quantus_explain(method),
            softmax=False,
            device='cpu',
        )

    x = enc['input_ids'].numpy()[:, None].astype('float32')
    y = np.array([a.target])
    theirs = np.array(
        call(
            quantus.PixelFlipping(
                perturb_baseline=0.0, disable_warnings=True, normalise=False
            ),
            f,
            x,
            y,
            'attn_lrp',
        )
    )[0]
    ours, _ = perturbation_curves(
        model, enc, {'a': a.scores}, torch.arange(len(a)), a.target
    )['a']
    cls = int(
        torch.argsort(a.scores, descending=True, stable=True).tolist().index(0)
    )
    assert cls > 2 and np.allclose(theirs[:cls], ours[1 : cls + 1], atol=1e-4)
    np.random.seed(0)
    (r,) = call(
        quantus.FaithfulnessCorrelation(
            nr_runs=40,
            subset_size=1,
            perturb_baseline=0.0,
            return_aggregate=False,
            disable_warnings=True,
        ),
        f,
        x,
        y,
        'loo',
    )
    assert r > 0.95
    vit, X, y = digits
    for metric, low, high in (
        (
            quantus.FaithfulnessCorrelation(
                nr_runs=5,
                subset_size=196,
                perturb_baseline=-1.0,
                return_aggregate=False,
                disable_warnings=True,
            ),
            -1,
            1,
        ),
        (quantus.MaxSensitivity(nr_samples=1, disable_warnings=True), 0, 10),
    ):
        found = call(metric, TensorModel(vit), X.numpy(), y.numpy(), 'attn_lrp')
        assert len(found) == 3 and all(low <= v <= high for v in found)


# pipelines


class _Digits:  # an image processor for pictures of digits
    def __call__(self, images, return_tensors='pt', **_):
        x = torch.stack(
            [
                torch.from_numpy(np.array(i.convert('L'))).float() / 255
                for i in (images if isinstance(images, list) else [images])
            ]
        )
        return transformers.BatchFeature({'pixel_values': vit_pixels(x)})


def test_pipelines(demo, tmp_path):
    model, tokenizer = demo
    pipe = transformers.pipeline(
        'sentiment-analysis', model=model, tokenizer=tokenizer
    )
    for method in ('attn_lrp', 'loo'):
        for a, b in zip(
            explain(pipe, None, TEXTS, method=method),
            explain(model, tokenizer, TEXTS, method=method),
        ):
            assert (
                torch.equal(a.scores, b.scores)
                and (a.tokens, a.label) == (b.tokens, b.label)
                and a.label
                == pipe(TEXTS)[
                    TEXTS.index(
                        next(
                            t
                            for t in TEXTS
                            if tokenizer.tokenize(t) == a.tokens[1:-1]
                        )
                    )
                ]['label']
            )
    assert audit(
        pipe, None, TEXTS[:2], methods=['attn_lrp'], progress=False
    ).equals(
        audit(model, tokenizer, TEXTS[:2], methods=['attn_lrp'], progress=False)
    )
    assert torch.equal(
        leave_one_out(pipe, encode(model, tokenizer, TEXTS[1]))[0],
        leave_one_out(model, encode(model, tokenizer, TEXTS[1]))[0],
    )
    assert explain_dataset(
        TEXTS[:2],
        tmp_path / 'a',
        methods=['cp_lrp'],
        model=pipe,
        progress=False,
    ).equals(
        explain_dataset(
            TEXTS[:2],
            tmp_path / 'b',
            methods=['cp_lrp'],
            model=(model, tokenizer, 'demo'),
            progress=False,
        )
    )
    with pytest.raises(ValueError, match='each worker loads the model'):
        explain_dataset(TEXTS, tmp_path / 'c', model=pipe, engine='ray')
    other = load_demo('reviews')[1]
    assert unwrap(pipe, other) == (model, other) and len(
        explain(pipe, other, 'old')[0]
    ) == len(other('old')['input_ids'])
    enc = tokenizer(TEXTS, padding=True, return_tensors='pt')
    assert torch.equal(
        RemovalEstimate(pipe, n_groups=1).attribute(
            enc['input_ids'], None, enc['attention_mask']
        ),
        RemovalEstimate(model, tokenizer=tokenizer, n_groups=1).attribute(
            enc['input_ids'], None, enc['attention_mask']
        ),
    )

    llama, tok = load_demo('reviews')
    writer = transformers.pipeline(
        'text-generation', model=llama, tokenizer=tok
    )
    assert torch.equal(
        explain(writer, None, 'I really', target=' liked')[0].scores,
        explain(llama, tok, 'I really', target=' liked')[0].scores,
    )
    context = dict(
        context='The film is dull. We left.',
        answer='bad',
        template='{context} The music is ',
        method='attn_lrp',
    )
    assert torch.equal(
        attribute_context(writer, None, **context).scores,
        attribute_context(llama, tok, **context).scores,
    )

    from PIL import Image

    vit, _ = load_demo('mnist')
    x = load_digit_images('embedded')[0][0]
    picture = Image.fromarray((x * 255).round().byte().numpy())
    looker = transformers.pipeline(
        'image-classification', model=vit, image_processor=_Digits()
    )
    (a,) = explain(looker, None, picture, method='loo')
    assert a.label == looker(picture)[0]['label'] and torch.equal(
        a.scores, explain(vit, _Digits(), picture, method='loo')[0].scores
    )


def test_other_pipelines(demo):
    model, tokenizer = demo
    p = transformers.pipeline(
        'feature-extraction', model=model.base_model, tokenizer=tokenizer
    )
    for call in (
        lambda: explain(p, None, TEXTS),
        lambda: audit(p, None, TEXTS),
        lambda: leave_one_out(p, {}),
        lambda: LRP(p),
        lambda: explain_dataset(TEXTS, 'nowhere', model=p),
    ):
        with pytest.raises(
            ValueError,
            match=(
                "'feature-extraction' cannot be explained as it is; take one"
                " for text-classification"
            ),
        ):
            call()
    with pytest.raises(TypeError, match='or a pipeline'):
        explain('bert', tokenizer, TEXTS)
    with pytest.raises(TypeError, match='or a pipeline'):
        LRP('bert')


# what is refused


@dataclass
class Given:
    "What a call that is refused is made of."

    ids: torch.Tensor
    mask: torch.Tensor
    E: torch.Tensor
    X: torch.Tensor
    model: object
    vit: object

    def __post_init__(self):
        self.lrp = LRP(self.model)
        self.ig = IntegratedGradients(self.model)
        self.loo = LeaveOneOut(self.model)
        self.of_pixels = LRP(self.vit)
        self.nan = torch.where(self.E > 0, self.E, torch.nan)
        self.hole = self.mask.clone()
        self.hole[0, 2] = 0
        self.no_text = self.mask.clone()
        self.no_text[2] = 0


@pytest.fixture(scope='module')
def given(demo, batch, digits):
    ids, mask, E = batch
    vit, X, _ = digits
    return Given(ids, mask, E, X, demo[0], vit)


def with_more(g, more):
    "LRP with additional forward arguments."
    return g.lrp.attribute(g.ids, additional_forward_args=more)


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
    (
        ValueError,
        'inputs_embeds cannot be given',
        lambda g: (None, None, None, g.E),
    ),
    (TypeError, 'a tensor, a tuple or a dict', lambda g: 3),
    (
        ValueError,
        'attention_mask must be a tensor of shape',
        lambda g: g.mask[:2],
    ),
    (ValueError, 'of 0 and 1', lambda g: g.mask * 2),
    (ValueError, 'unbroken stretch of tokens.*row 0', lambda g: g.hole),
    (ValueError, 'not in row 2', lambda g: g.no_text),
]
OTHERS = [
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
    (
        ValueError,
        'one id for token ids',
        lambda g: g.loo.attribute(g.E, baselines=3),
    ),
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
    (
        ValueError,
        "composite='lrp0' is not known",
        lambda g: LRP(g.model, 'lrp0'),
    ),
    (
        ValueError,
        "method 'shap' is not known",
        lambda g: Attributor(g.model, 'shap').attribute(g.ids),
    ),
    (
        TypeError,
        'unexpected keyword',
        lambda g: LRP(g.model, gamma=3).attribute(g.ids),
    ),
    (ValueError, 'knows no padding token', lambda g: TokenModel(g.vit)),
    (
        ValueError,
        'must be whole numbers',
        lambda g: TokenModel(g.model)(g.ids + 0.25),
    ),
]


@pytest.mark.parametrize('kind,said,target', TARGETS)
def test_targets_that_cannot_be_right(given, kind, said, target):
    with pytest.raises(kind, match=said):
        given.lrp.attribute(given.ids, target=target)


def test_leave_one_out_counts_targets(given):
    with pytest.raises(ValueError, match='2 entries for 3 examples'):
        given.loo.attribute(given.ids, target=[0, 1])


@pytest.mark.parametrize('kind,said,call', BASELINES)
def test_baselines_that_cannot_be_right(given, kind, said, call):
    x, baselines = call(given)
    with pytest.raises(kind, match=said):
        given.ig.attribute(x, baselines=baselines)


@pytest.mark.parametrize('kind,said,call', INPUTS)
def test_inputs_that_cannot_be_right(given, kind, said, call):
    with pytest.raises(kind, match=said):
        given.lrp.attribute(call(given))


@pytest.mark.parametrize('name', ['loo', 'ig'])
def test_nan_is_refused_by_every_class(given, name):
    with pytest.raises(ValueError, match='NaN or infinite'):
        getattr(given, name).attribute(given.nan)


@pytest.mark.parametrize('kind,said,call', PIXELS)
def test_pixels_that_cannot_be_right(given, kind, said, call):
    with pytest.raises(kind, match=said):
        given.of_pixels.attribute(call(given))


@pytest.mark.parametrize('kind,said,call', MORE)
def test_arguments_that_cannot_be_right(given, kind, said, call):
    with pytest.raises(kind, match=said):
        with_more(given, call(given))


def test_leave_one_out_wants_a_text_in_every_row(given):
    with pytest.raises(ValueError, match='not in row 2'):
        given.loo.attribute(given.ids, additional_forward_args=given.no_text)


@pytest.mark.parametrize('n', [0, -3])
def test_counts_that_cannot_be_right(given, n):
    with pytest.raises(
        ValueError, match='n_steps must be a whole number, at least 1'
    ):
        given.ig.attribute(given.E, n_steps=n)
    with pytest.raises(ValueError, match='internal_batch_size must be'):
        given.ig.attribute(given.E, internal_batch_size=n)
    with pytest.raises(ValueError, match='perturbations_per_eval must be'):
        given.loo.attribute(given.ids, perturbations_per_eval=n)


@pytest.mark.parametrize('kind,said,call', OTHERS)
def test_calls_that_cannot_be_right(given, kind, said, call):
    with pytest.raises(kind, match=said):
        call(given)


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
        ValueError, match='past_key_values cannot be given.*None leaves one out'
    ):
        LRP(random_model('GPT-2')).attribute(ids, 0, ones)
    assert list(named_inputs(random_model('GPT-2'), ids, (None, ones))) == [
        'input_ids',
        'attention_mask',
    ]
    types = torch.zeros_like(ids)
    types[:, 6:] = 1
    assert not close(
        LRP(bert).attribute(ids, 0, (ones, types)),
        LRP(bert).attribute(ids, 0, ones),
    ) and close(
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
    assert one['input_ids'].tolist() == [[5, 6, 7]] and one[
        'attention_mask'
    ].tolist() == [[1, 0, 1]]
