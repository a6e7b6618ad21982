"Many bypasses from one forward pass, against one run each, on every family."

import pytest
import torch
from families import family_tasks, random_inputs, random_model

from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.lrp.layerwise import bypass_gradients
from lrp_loo.methods import explain_batch, explain_methods
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.encoding import encode
from lrp_loo.models.layers import n_layers
from lrp_loo.paper.layerwise import sweep_methods

CUT = {'BERT', 'RoBERTa', 'DistilBERT', 'ELECTRA', 'GPT-2', 'Llama', 'Mistral'}
CUT |= {'Qwen2', 'Qwen3', 'Phi-3', 'ViT', 'DeiT', 'CLIP vision'}
SENTENCE = 'the jokes are old'
LONGER = 'a slow start , but the last act is a quiet triumph'


def a_few_sets(L):
    return [(), (0,), (L - 1,), tuple(range(L)), tuple(range(L // 2, L)), (0, L - 1)]


def scores(gradient, x):
    "Relevance per token (sequence) or per input number (image)."
    r = x * gradient
    return r.sum(-1) if r.ndim == 3 else r.sum(1).flatten(1)


def close(a, b):
    "Equal to float32's rounding over a few layers."
    return (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_layers_that_are_not_there_or_share_weights_are_refused(demo):
    with pytest.raises(ValueError, match='layers 0 to 5'):
        bypass_gradients(demo[0], encode(*demo, SENTENCE), [(), (6,)])
    model = random_model('ALBERT')
    with pytest.raises(NotImplementedError, match='a sweep needs'):
        bypass_gradients(model, random_inputs(model), [(0,)])


@pytest.mark.parametrize('family,task', family_tasks())
def test_many_bypasses_equal_separate_runs_or_say_why_not(family, task):
    model = random_model(family, task)
    inputs = random_inputs(model)
    sets = a_few_sets(n_layers(model))
    try:
        found = bypass_gradients(model, inputs, sets)
    except NotImplementedError as e:
        assert family not in CUT and 'a sweep' in str(e)
        return
    for s, g in zip(sets, found.gradients, strict=True):
        alone = lrp_scores(model, None, [inputs], composite=attn_lrp(s))
        assert close(scores(g, found.embeddings), alone.scores), s
        assert torch.equal(alone.values, found.values)


def test_all_methods_of_the_layer_wise_study_share_a_pass(demo):
    encs = [encode(*demo, text) for text in (LONGER, SENTENCE)]
    more = {'cp': ('cp_lrp', {}), 'eps': ('attn_lrp', dict(eps=1e-3))}
    methods = sweep_methods(6) | more | {'loo': ('loo', {})}
    together = explain_methods(*demo, encs, methods)
    assert list(together) == list(methods)
    for name, (method, options) in methods.items():
        alone = explain_batch(*demo, encs, method, **options)
        for a, b in zip(together[name], alone, strict=True):
            assert close(a.scores, b.scores), name
            for field in ('target', 'method', 'tokens', 'info', 'logit'):
                assert getattr(a, field) == getattr(b, field), (name, field)
