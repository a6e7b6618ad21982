"The classes against Captum and against `explain`, on many families; explanation functions in Quantus; pipelines; what is refused."

import subprocess, sys
from functools import partial

import numpy as np
import pytest
import torch
import transformers

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
    ReadsGiven,
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
    a = a.detach()
    b = b.detach()
    return a.shape == b.shape and float((a - b).abs().max()) <= tol * max(
        1e-3, float(b.abs().max())
    )


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


@pytest.mark.parametrize('name', CLASSES)
def test_as_explain(demo, batch, name):
    """Three texts of unlike length in one batch, padded on either side: each
    as if alone, padding 0.
    """
    model, tokenizer = demo
    ids, mask, _ = batch
    c = CLASSES[name](model, tokenizer=tokenizer)
    kw = OPTIONS.get(name, {})
    alone = [
        explain(
            model,
            tokenizer,
            t,
            method=name,
            **({'n_exact': 2} if name == 'removal+loo' else {}),
        )[0].scores
        for t in TEXTS
    ]
    scores = c.attribute(ids, additional_forward_args=mask, **kw)
    assert (
        scores.shape == ids.shape
        and scores.dtype == torch.float32
        and not scores.requires_grad
    )
    shift = [ids.shape[1] - int(m.sum()) for m in mask]

    def roll(v):
        return torch.stack([r.roll(s) for r, s in zip(v, shift)])

    left = c.attribute(roll(ids), additional_forward_args=roll(mask), **kw)
    for s, l, m, a in zip(scores, left, mask, alone):
        n = int(m.sum())
        assert (
            close(s[:n], a, 2e-5)
            and close(l[-n:], a, 2e-5)
            and (s[n:] == 0).all()
            and (l[: len(l) - n] == 0).all()
        )


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


def test_targets(demo, batch):
    model, tokenizer = demo
    ids, mask, E = batch
    lrp = LRP(model)
    loo = LeaveOneOut(model)
    more = dict(additional_forward_args=mask)
    one = [lrp.attribute(ids, target=c, **more) for c in (0, 1)]
    for t in ([1, 0, 1], torch.tensor([1, 0, 1]), np.array([1, 0, 1])):
        assert close(
            lrp.attribute(ids, target=t, **more),
            torch.stack([one[1][0], one[0][1], one[1][2]]),
        )
    for t in (torch.tensor(1), torch.tensor([1]), [1], 'positive', Target(1)):
        assert close(lrp.attribute(ids, target=t, **more), one[1])
    assert close(
        lrp.attribute(ids, target=(1, 0), **more), one[1] - one[0], 1e-4
    ) and close(
        lrp.attribute(ids, target=lambda out: out.logits[:, 1], **more), one[1]
    )
    predicted = TensorModel(model)(ids, mask).argmax(1)
    assert close(
        loo.attribute(ids, **more), loo.attribute(ids, target=predicted, **more)
    )
    assert isinstance(lrp.attribute((ids,), **more), tuple)
    inside = LRP(
        model,
        gradient().with_rule(
            'linear',
            lambda f, *a, **kw: epsilon_rule(f(*a, **kw), 1.0),
            modules='*.encoder.layer.5.output.dense',
        ),
    )
    base = GradientXInput(model)
    assert not close(
        inside.attribute(ids, target=1, **more),
        base.attribute(ids, target=1, **more),
    ) and close(
        inside.attribute(E, target=1, **more).sum(-1),
        inside.attribute(ids, target=1, **more),
    )  # a rule by module path holds in embeddings, too


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
    mask = torch.ones_like(ids)
    with torch.no_grad():
        E = input_embeddings(model)(ids)
        given = ReadsGiven(model, E, mask)
    # by name: in GPT-2 the cache comes first
    f = TensorModel(model)
    more = dict(attention_mask=mask)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask).logits
        assert close(
            f(E, more), out if out.ndim == 2 else out[:, -1], 1e-9
        ) and torch.equal(f(ids, more), out if out.ndim == 2 else out[:, -1])
    for composite in (attn_lrp(), gradient()):
        R, delta = LRP(model, composite).attribute(
            E, None, more, return_convergence_delta=True
        )
        found = lrp_scores(
            model,
            None,
            unpad_batch(dict(input_ids=ids) | more),
            composite=composite,
        )
        assert close(R.sum(-1), found.scores, 1e-7) and close(
            delta, found.values - found.scores.sum(1), 1e-6
        )
    model = model.float()
    E = E.float()
    assert close(
        LeaveOneOut(model).attribute(E, target=1).sum(-1),
        LeaveOneOut(model).attribute(ids, target=1),
        1e-4,
    )


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


def test_refused(demo, batch, digits):
    model, tokenizer = demo
    ids, mask, E = batch
    vit, X, y = digits
    lrp = LRP(model)
    ig = IntegratedGradients(model)
    loo = LeaveOneOut(model)

    def no(kind, match, call):
        with pytest.raises(kind, match=match):
            call()

    for t in (2, -1, [0, 1, 5]):
        no(
            ValueError,
            'not a class of this model; take 0 to 1',
            lambda: lrp.attribute(ids, target=t),
        )
    for t in (1.5, True, 'one', {}):
        no(ValueError, 'target=', lambda: lrp.attribute(ids, target=t))
    for t in ([0, 1], torch.tensor([0, 1, 1, 0])):
        no(
            ValueError,
            f'target has {len(t)} entries for 3 examples',
            lambda: loo.attribute(ids, target=t),
        )
    no(
        TypeError,
        'whole numbers',
        lambda: lrp.attribute(ids, target=torch.tensor([0.5, 1.0, 0.0])),
    )
    no(
        ValueError,
        'one per example',
        lambda: lrp.attribute(ids, target=torch.zeros(3, 1).long()),
    )
    for b in (E[:, :3], E[:2], torch.zeros(384)):
        no(
            ValueError,
            'baselines have shape',
            lambda: ig.attribute(E, baselines=b),
        )
    no(
        ValueError,
        'baselines have shape',
        lambda: ig.attribute(ids, baselines=ids[:, :2]),
    )
    no(TypeError, 'token id', lambda: ig.attribute(ids, baselines=0.5))
    no(TypeError, 'a number', lambda: ig.attribute(E, baselines='pad'))
    no(ValueError, 'NaN', lambda: ig.attribute(E, baselines=E * torch.nan))
    no(
        ValueError,
        'needs the tokenizer',
        lambda: ig.attribute(ids, baselines='pad'),
    )
    no(
        ValueError,
        "has 30522 tokens",
        lambda: ig.attribute(ids, baselines=40000),
    )
    no(ValueError, 'token ids go from', lambda: lrp.attribute(ids + 30000))
    for c in (lrp, loo, ig):
        no(
            ValueError,
            'NaN or infinite',
            lambda: c.attribute(torch.where(E > 0, E, torch.nan)),
        )
    no(ValueError, 'NaN or infinite', lambda: LRP(vit).attribute(X / 0.0))
    no(
        TypeError,
        'have no gradient',
        lambda: LRP(vit).attribute((X * 9).long()),
    )
    no(TypeError, 'have no gradient', lambda: lrp.attribute(E.long()))
    no(TypeError, 'whole numbers', lambda: lrp.attribute(ids.float()))
    no(
        TypeError,
        'must be a tensor, got list',
        lambda: lrp.attribute(ids.tolist()),
    )
    no(ValueError, r'shape \(12,\)', lambda: lrp.attribute(torch.arange(12)))
    no(ValueError, 'inputs are 2 tensors', lambda: lrp.attribute((ids, mask)))
    no(ValueError, 'does not take pixel_values', lambda: lrp.attribute(X))
    no(ValueError, 'does not take input_ids', lambda: LRP(vit).attribute(ids))
    no(
        ValueError,
        'takes 5 after input_ids',
        lambda: lrp.attribute(ids, additional_forward_args=(mask,) * 6),
    )
    no(
        ValueError,
        'name masks',
        lambda: lrp.attribute(ids, additional_forward_args=dict(masks=mask)),
    )
    no(
        ValueError,
        'inputs_embeds cannot be given',
        lambda: lrp.attribute(
            ids, additional_forward_args=(None, None, None, E)
        ),
    )
    no(
        TypeError,
        'a tensor, a tuple or a dict',
        lambda: lrp.attribute(ids, additional_forward_args=3),
    )
    no(
        ValueError,
        'attention_mask must be a tensor of shape',
        lambda: lrp.attribute(ids, additional_forward_args=mask[:2]),
    )
    no(
        ValueError,
        'of 0 and 1',
        lambda: lrp.attribute(ids, additional_forward_args=mask * 2),
    )
    hole = mask.clone()
    hole[0, 2] = 0
    no(
        ValueError,
        'unbroken stretch of tokens.*row 0',
        lambda: lrp.attribute(ids, additional_forward_args=hole),
    )
    no(
        ValueError,
        'not in row 2',
        lambda: loo.attribute(
            ids,
            additional_forward_args=torch.where(
                torch.arange(3)[:, None] == 2, 0, mask
            ),
        ),
    )
    no(
        ValueError,
        'cannot be given beside pixel_values',
        lambda: LRP(vit).attribute(
            X, additional_forward_args=dict(attention_mask=torch.ones(3, 1))
        ),
    )
    for n in (0, -3):
        no(
            ValueError,
            'n_steps must be a whole number, at least 1',
            lambda: ig.attribute(E, n_steps=n),
        )
        no(
            ValueError,
            'internal_batch_size must be',
            lambda: ig.attribute(E, internal_batch_size=n),
        )
        no(
            ValueError,
            'perturbations_per_eval must be',
            lambda: loo.attribute(ids, perturbations_per_eval=n),
        )
    no(
        ValueError,
        "take 'gausslegendre'",
        lambda: ig.attribute(E, method='riemann_left'),
    )
    no(
        ValueError,
        'one id for token ids',
        lambda: loo.attribute(E, baselines=3),
    )
    no(
        ValueError,
        'not both',
        lambda: LeaveOneOut(model, 'delete').attribute(ids, baselines=0),
    )
    no(
        ValueError,
        'needs token ids',
        lambda: LeaveOneOut(model, 'mask_token').attribute(E),
    )
    no(ValueError, "composite='lrp0' is not known", lambda: LRP(model, 'lrp0'))
    no(
        ValueError,
        "method 'shap' is not known",
        lambda: Attributor(model, 'shap').attribute(ids),
    )
    no(
        TypeError,
        'unexpected keyword',
        lambda: LRP(model, gamma=3).attribute(ids),
    )
    no(ValueError, 'knows no padding token', lambda: TokenModel(vit))
    no(
        ValueError,
        'must be whole numbers',
        lambda: TokenModel(model)(ids + 0.25),
    )
    model.train()
    try:
        for c in (lrp, loo, ig):
            no(ValueError, 'training mode', lambda: c.attribute(ids))
    finally:
        model.eval()


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


def test_without_captum_and_quantus():
    "The package imports and works where neither library is installed."
    check = (
        "import sys; sys.modules.update(captum=None, quantus=None); from"
        " lrp_loo import LRP, load_demo; m, t = load_demo('sst2');"
        " print(tuple(LRP(m).attribute(t('old jokes',"
        " return_tensors='pt')['input_ids']).shape), 'captum' in"
        " str(sys.modules['captum']))"
    )
    out = subprocess.run(
        [sys.executable, '-c', check], capture_output=True, text=True
    )
    assert out.stdout.strip() == '(1, 4) False', out.stderr


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
