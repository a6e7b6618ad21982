"The classes against Captum and `explain`; pipelines; what is refused."

from types import SimpleNamespace

from conftest import shallow_demo
from families import random_inputs, random_model
import numpy as np
import pytest
import torch
import transformers

from lrp_loo import Target, explain, leave_one_out, sweep
from lrp_loo.core.tensors import unpad_batch
from lrp_loo.interop import LRP, AttentionRollout, GradientXInput, IntegratedGradients
from lrp_loo.interop import LeaveOneOut, RemovalEstimate, TensorModel
from lrp_loo.lrp.composite import attn_lrp, gradient
from lrp_loo.loo.removals import Removal
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import input_embeddings

TEXTS = ["a quiet film that says little and means it", "the jokes are old", "slow"]
CASES = {  # method → class, options
    'attn_lrp': (LRP, {}),
    'cp_lrp': (LRP, {}),
    'grad_x_input': (GradientXInput, {}),
    'ig': (IntegratedGradients, dict(n_steps=16)),
    'loo': (LeaveOneOut, {}),
    'rollout': (AttentionRollout, {}),
    'removal': (RemovalEstimate, {}),
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
def both(demo):
    "What both libraries are asked of the demo model."
    captum = pytest.importorskip('captum.attr')
    enc = demo[1](TEXTS, padding=True, return_tensors='pt')
    ids, mask = enc['input_ids'], enc['attention_mask']
    E = input_embeddings(demo[0])(ids).detach()
    return SimpleNamespace(
        captum=captum,
        model=demo[0],
        f=TensorModel(demo[0]),  # logits of ids or embeddings
        ids=ids,
        mask=mask,
        E=E,
        x=E.clone().requires_grad_(),  # as Captum wants them
        how=dict(target=[1, 0, 1], additional_forward_args=(mask,)),
    )


@pytest.mark.parametrize('in_front', [False, True])
@pytest.mark.parametrize('name', CASES)
def test_as_explain(demo, both, name, in_front):
    "Three texts of unlike length in one batch: each as if alone, padding 0."
    shifts = [int((m == 0).sum()) if in_front else 0 for m in both.mask]
    ids, mask = (
        torch.stack([r.roll(n) for r, n in zip(rows, shifts)])
        for rows in (both.ids, both.mask)
    )
    kind, options = CASES[name]
    c = kind(demo[0], name, tokenizer=demo[1])
    found = c.attribute(ids, additional_forward_args=mask, **options)
    assert (found.shape, found.dtype) == (ids.shape, torch.float32)
    assert not found.requires_grad
    assert kind is LRP or name.endswith('+loo') or kind.default_method == name
    for scores, own, text in zip(found, mask > 0, TEXTS):
        (alone,) = explain(*demo, text, method=name, **options)
        assert close(scores[own], alone.scores, 2e-5)
        assert (scores[~own] == 0).all()


def test_a_target_for_each_text_or_one_for_all(both):
    lrp, loo = LRP(both.model), LeaveOneOut(both.model)

    def found(target, by=lrp):
        more = dict(additional_forward_args=both.mask)
        return by.attribute(both.ids, target=target, **more)

    zero, one = found(0), found(1)
    assert close(found((1, 0)), one - zero, 1e-4)
    own = torch.stack([one[0], zero[1], one[2]])
    for each in ([1, 0, 1], ['positive', 0, 'positive']):
        assert close(found(each), own, 1e-4)
    for number in (torch.tensor, np.array):
        assert close(found(number([1, 0, 1])), own, 1e-4)
    for target in ('positive', Target(1), lambda out: out.logits[:, 1]):
        assert close(found(target), one, 1e-4)
    predicted = both.f(both.ids, both.mask).argmax(1)
    assert close(found(None, loo), found(predicted, loo))


@pytest.mark.parametrize(
    'family,task', [('BERT', 'class'), ('ALBERT', 'class'), ('GPT-2', 'next token')]
)
def test_embeddings_of_families(family, task):
    "The same logits as of ids, and per dimension what sums to the token's score."
    model = random_model(family, task)
    ids = random_inputs(model)['input_ids'].repeat(2, 1)
    ids[1] = ids[1].flip(0)
    mask = torch.ones_like(ids)
    more = (None, mask) if family == 'GPT-2' else (mask,)  # its cache comes first
    E = input_embeddings(model)(ids).detach()
    with torch.no_grad():
        f, out = TensorModel(model), model(input_ids=ids, attention_mask=mask).logits
        out = out if out.ndim == 2 else out[:, -1]
        assert torch.equal(f(ids, *more), out)
        assert close(f(E, *more), out, 1e-9)
    texts = unpad_batch(dict(input_ids=ids, attention_mask=mask))
    for composite in (attn_lrp(), gradient()):
        lrp = LRP(model, 'lrp', composite=composite)
        R = lrp.attribute(E, additional_forward_args=more)
        found = lrp_scores(model, None, texts, composite=composite)
        assert close(R.sum(-1), found.scores, 1e-7)
    model = model.float()
    loo = LeaveOneOut(model)
    of_embeddings = loo.attribute(E.float(), target=1)
    assert close(of_embeddings.sum(-1), loo.attribute(ids, target=1), 1e-4)


def test_integrated_gradients_are_captums(both):
    how = dict(n_steps=11, **both.how)
    theirs_of = both.captum.IntegratedGradients(both.f)
    theirs = theirs_of.attribute(both.x, method='gausslegendre', **how)
    ours = IntegratedGradients(both.model, internal_batch_size=7)
    assert close(ours.attribute(both.E, **how), theirs, 1e-4)


def test_leave_one_out_is_captums_ablation_and_gradients_too(both):
    loo = LeaveOneOut(both.model)
    how = both.how | dict(additional_forward_args=(both.ids,))
    ablation = both.captum.FeatureAblation
    by_mask = ablation(lambda m, i: both.f(i, m))
    theirs = by_mask.attribute(both.mask, baselines=0, **how)
    assert close(loo.attribute(both.ids, **both.how), theirs, 1e-4)
    # one id in a token's place
    theirs = ablation(both.f).attribute(both.ids, baselines=1012, **both.how)
    one_id = Removal('resample', pool=[1012], n_draws=1)
    ours = loo.attribute(both.ids, removal=one_id, **both.how)
    assert close(ours, theirs * both.mask, 1e-4)
    theirs = both.captum.InputXGradient(both.f).attribute(both.x, **both.how)
    assert close(GradientXInput(both.model).attribute(both.E, **both.how), theirs)


@pytest.mark.parametrize(
    ('kind', 'more'),
    [
        (LRP, {}),
        (IntegratedGradients, dict(n_steps=3)),
        (LeaveOneOut, dict(removal='zero_embedding')),
    ],
)
def test_captums_noise_tunnel_without_noise_changes_nothing(both, kind, more):
    c, how = kind(both.model), both.how | more | dict(target=1)
    tunnel = both.captum.NoiseTunnel(c)
    found = tunnel.attribute(both.E, nt_samples=2, stdevs=0.0, **how)
    assert close(found, c.attribute(both.E, **how))


def test_a_pipeline_is_its_model(demo, both, tmp_path):
    model, tokenizer = demo
    pipe = transformers.pipeline('sentiment-analysis', model=model, tokenizer=tokenizer)
    enc = encode(*demo, TEXTS[1])
    assert torch.equal(leave_one_out(pipe, enc)[0], leave_one_out(demo[0], enc)[0])
    of_pipe = RemovalEstimate(pipe)
    of_model = RemovalEstimate(demo[0], tokenizer=demo[1])
    a, b = (c.attribute(both.ids, **both.how) for c in (of_pipe, of_model))
    assert torch.equal(a, b)
    with pytest.raises(ValueError, match='each worker loads the model'):
        sweep(pipe, None, TEXTS, tmp_path / 'c', engine='ray')


# what advice.toml and bad_input.toml have no row for
REFUSED = [
    ('not a target', lambda g: g.lrp(g.ids, target=torch.zeros(3, 1).long())),
    ('entries for 3', lambda g: g.lrp(g.ids, target=[0, 1])),
    ('explain for a tensor', lambda g: g.ig(g.E, baseline=g.E)),
    ('must be one tensor of finite', lambda g: g.lrp(g.nan)),
    ('got .* of torch.float32', lambda g: g.lrp(g.ids.float())),
    ('pixels to explain', lambda g: g.lrp(torch.rand(1, 3, 8, 8))),
    ('after input_ids', lambda g: g.more((g.mask,) * 99)),
    ('an entry for each token', lambda g: g.more(g.mask[:2])),
    ('consecutive tokens', lambda g: g.more(g.hole)),
    ('consecutive tokens', lambda g: g.more(g.no_text)),
    ('is no option of method', lambda g: g.lrp(g.ids, gamma=3)),
]


def test_what_cannot_be_right(both):
    hole, no_text = both.mask.clone(), both.mask.clone()
    hole[0, 2] = no_text[2] = 0
    lrp = LRP(both.model).attribute
    g = SimpleNamespace(
        **dict(ids=both.ids, mask=both.mask, E=both.E, hole=hole, no_text=no_text),
        lrp=lrp,
        ig=IntegratedGradients(both.model).attribute,
        nan=torch.where(both.E > 0, both.E, torch.nan),
        more=lambda args: lrp(both.ids, additional_forward_args=args),
    )
    for message, call in REFUSED:
        with pytest.raises((TypeError, ValueError), match=message):
            call(g)
