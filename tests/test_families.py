"Every family: coverage, conservation, eager = sdpa, Llama and ViT derived again, every method."

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

from conftest import TEXTS
from families import FAMILIES
from families import family_row, family_tasks, random_inputs, random_model, relevance_of
import naive_llama
import naive_vit
import pytest
from test_lrp import close
import torch
from torch import nn

from lrp_loo import attn_lrp, cp_lrp, explain
from lrp_loo.inputs.targets import Target
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.methods.table import METHODS

shared_model = cache(random_model)
FOUR = [*dict(BERT='class', Llama='next token', ViT='image', ALBERT='class').items()]


@pytest.mark.parametrize('family, task', family_tasks())
def test_a_family_is_covered_conserved_and_the_same_under_both_attentions(family, task):
    row = family_row(family, task)
    assert row['uncovered'] == 0
    assert row['operations'] > 8
    assert row['logits'] < 1e-9
    assert max(row['attn conserved to'], row['cp conserved to']) < 1e-5
    differences = [row['attn eager = sdpa to'], row['cp eager = sdpa to']]
    if FAMILIES[family].fused:
        assert max(differences) < 1e-5
    else:
        assert all(map(math.isnan, differences))


@pytest.mark.parametrize('gates', ['half', 'constant'])
@pytest.mark.parametrize('bypass', [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize('task,head', [('next token', 'lm'), ('class', 'score')])
def test_llama_is_the_naive_one(task, head, bypass, gates):
    composite = replace(attn_lrp(bypass), gate=gates)
    at = dict(target=7, position=5) if head == 'lm' and bypass == (1,) else {}
    # transformers computes RMSNorm in float32 whatever the model's precision
    for dtype, rel in ((torch.float64, 1e-4), (torch.float32, 5e-3)):
        biased = dict(attention_bias=True, mlp_bias=True)
        model = shared_model('Llama', task, 'sdpa', dtype=dtype, **biased)
        inputs = random_inputs(model)
        target = Target(7, position=5) if at else None
        R, out, _ = relevance_of(model, inputs, composite, target, strict=True)
        logits, naive = naive_llama.explain(
            {k: v.double() for k, v in model.state_dict().items()},
            inputs['input_ids'][0],
            layers=3,
            heads=4,
            kv_heads=2,
            rms_eps=model.config.rms_norm_eps,
            **dict(bypass=bypass, gates=gates, head=head) | at,
        )
        got = out.logits[0, at.get('position', -1)] if head == 'lm' else out.logits[0]
        assert (got - logits).abs().max() < 1e-4 * logits.abs().max()
        close(R.double(), naive, rel)
        assert not at or R[6:].abs().max() == 0


@pytest.mark.parametrize('bypass', [(), (0, 2), (0, 1, 2)])
def test_vit_is_the_naive_one(bypass):
    for dtype, rel in ((torch.float64, 1e-6), (torch.float32, 2e-3)):
        model = shared_model('ViT', 'image', 'sdpa', dtype=dtype)
        inputs = random_inputs(model)
        R, out, _ = relevance_of(model, inputs, attn_lrp(bypass), strict=True)
        logits, naive = naive_vit.explain(
            {k: v.double() for k, v in model.state_dict().items()},
            inputs['pixel_values'][0].double(),
            layers=3,
            heads=4,
            ln_eps=model.config.layer_norm_eps,
            patch=7,
            bypass=bypass,
        )
        assert (out.logits[0] - logits).abs().max() < 1e-4 * logits.abs().max()
        close(R.double(), naive, rel)


class Fault(nn.Module):
    "Something around a module."

    def __init__(self, inner):
        super().__init__()
        self.inner = inner


class Twist(Fault):
    "An unlisted nonlinearity."

    def forward(self, *args, **kw):
        return torch.sin(self.inner(*args, **kw))


class Hidden(torch.autograd.Function):
    "Two activations multiplied out of torch's sight."

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Secret(Fault):
    def forward(self, x):
        y = self.inner(x)
        return Hidden.apply(y, y)


@torch.jit.script
def scripted(a, b):
    return a * b


class Scripted(Fault):
    def forward(self, x):
        y = self.inner(x)
        return scripted(y, y)


FAULTS = {Twist: 'sin', Secret: 'HiddenBackward', Scripted: 'Backward'}
PLACES = {
    'BERT': ('bert.encoder.layer.1.intermediate', 'dense', 'classifier'),
    'Llama': ('model.layers.1.mlp', 'up_proj', 'lm_head'),
    'ViT': ('vit.layers.1.mlp', 'fc1', 'classifier'),
}


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.parametrize('family, task', FOUR[:3])
def test_planted_faults_are_found(family, task, fault):
    parent, child, head = PLACES[family]
    model = random_model(family, task, dtype=torch.float32)
    around = model.get_submodule(parent)
    setattr(around, child, fault(getattr(around, child)))
    inputs = random_inputs(model)
    said = FAULTS[fault]
    with pytest.raises(NotImplementedError, match=said):
        relevance_of(model, inputs, attn_lrp(), strict=True)
    with pytest.warns(UserWarning, match=said):
        rules = relevance_of(model, inputs, attn_lrp()).rules
    found = rules.report().query("rule == 'none'")
    assert set(found.layer) == {1}
    assert found.module.str.startswith(parent).all()
    model = random_model(family, task)
    setattr(model, head, fault(getattr(model, head)))
    with pytest.raises(NotImplementedError, match=said):
        relevance_of(model, random_inputs(model), attn_lrp(), strict=True)


def test_two_threads_with_two_rule_sets_give_the_serial_maps():
    sizes = dict(dtype=torch.float32, num_hidden_layers=2)
    model = random_model('Llama', 'class', 'sdpa', **sizes)
    inputs = random_inputs(model)
    serial = {c: relevance_of(model, inputs, c).R for c in (attn_lrp([1]), cp_lrp())}
    barrier = threading.Barrier(2)

    def work(c):
        same = []
        for _ in range(25):
            barrier.wait()
            same.append(torch.equal(relevance_of(model, inputs, c).R, serial[c]))
        return same

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, serial)) == [[True] * 25] * 2
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    assert not any(map(any, hooks))


def test_rows_that_see_nothing_have_finite_scores():
    "Padding on the left in double precision, where −∞ would make NaN."
    model = shared_model('Llama', 'next token', dtype=torch.float64)
    model.set_attn_implementation('eager')
    (long,), (short,) = (random_inputs(model)['input_ids'] for _ in range(2))
    mask = torch.ones(2, len(long), dtype=torch.long)
    mask[1, :3] = 0
    batch = dict(input_ids=torch.stack([long, short.roll(3)]), attention_mask=mask)
    scores = lrp_scores(model, None, [batch], Target(5)).scores
    assert bool(scores.isfinite().all())


class TorchEncoder(nn.Module):
    "torch's own parts; read at the first token."

    def __init__(self, **how):
        super().__init__()
        self.words = nn.Embedding(30522, 16)
        how = dict(batch_first=True, dropout=0.0) | how
        layer = nn.TransformerEncoderLayer(16, 4, 32, **how)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)
        self.first = how['batch_first']

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        x = x if self.first else x.transpose(0, 1)
        x = self.body(x, src_key_padding_mask=attention_mask == 0)
        return self.head(x[:, 0] if self.first else x[0])


@pytest.mark.parametrize('how', [{}, dict(batch_first=False)], ids=str)
@pytest.mark.parametrize('method', sorted(METHODS))
def test_every_method_takes_torchs_own_encoder(method, how, tokenizer):
    torch.manual_seed(0)
    model = TorchEncoder(**how).eval()
    both = explain(model, tokenizer, TEXTS[:2], method)
    (alone,) = explain(model, tokenizer, TEXTS[:1], method)
    close(both[0].scores, alone.scores, 1e-3)
