"Many bypasses from one forward pass, against one run each, on every family."

import pytest
import torch
from families import family_tasks, random_inputs, random_model

from lrp_loo import explain
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.lrp.layerwise import bypass_gradients
from lrp_loo.methods import explain_batch, explain_methods
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.encoding import encode
from lrp_loo.models.layers import n_layers
from lrp_loo.paper.layerwise import sweep_methods

CUT = {
    'BERT',
    'RoBERTa',
    'DistilBERT',
    'ELECTRA',
    'GPT-2',
    'Llama',
    'Mistral',
    'Qwen2',
    'Qwen3',
    'Phi-3',
    'ViT',
    'DeiT',
    'CLIP vision',
}
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


@pytest.fixture(scope='module')
def encs(demo):
    "Two texts of different lengths."
    return [encode(*demo, text) for text in (LONGER, SENTENCE)]


@pytest.mark.parametrize('family,task', family_tasks())
def test_many_bypasses_equal_separate_runs_or_say_why_not(family, task):
    model = random_model(family, task)
    inputs = random_inputs(model)
    sets = a_few_sets(n_layers(model))
    if family not in CUT:
        try:
            found = bypass_gradients(model, inputs, sets)
        except NotImplementedError as e:
            assert 'a sweep' in str(e)
            return
    else:
        found = bypass_gradients(model, inputs, sets)
    for s, g in zip(sets, found.gradients, strict=True):
        alone = lrp_scores(model, None, [inputs], composite=attn_lrp(s))
        assert close(scores(g, found.embeddings), alone.scores), s
        assert torch.equal(alone.values, found.values)


def test_all_methods_of_the_layer_wise_study_share_a_pass(demo, encs):
    methods = sweep_methods(6) | {
        'cp': ('cp_lrp', {}),
        'eps': ('attn_lrp', dict(eps=1e-3)),
        'loo': ('loo', {}),
    }
    together = explain_methods(*demo, encs, methods)
    assert list(together) == list(methods)
    for name, (method, options) in methods.items():
        alone = explain_batch(*demo, encs, method, **options)
        for a, b in zip(together[name], alone, strict=True):
            assert close(a.scores, b.scores), name
            for field in ('target', 'method', 'tokens', 'info', 'logit'):
                assert getattr(a, field) == getattr(b, field), (name, field)


def test_a_layer_that_the_model_lacks_is_refused_among_many(demo, encs):
    with pytest.raises(ValueError, match='layers 0 to 5'):
        bypass_gradients(demo[0], encs[1], [(), (6,)])


def test_a_layer_that_the_model_lacks_is_refused_by_explain(demo):
    with pytest.raises(ValueError, match='layers 0 to 5'):
        explain(*demo, SENTENCE, method='attn_lrp', bypass_softmax=(6,))


def test_layers_that_share_weights_are_refused():
    model = random_model('ALBERT')
    with pytest.raises(NotImplementedError, match='a sweep needs'):
        bypass_gradients(model, random_inputs(model), [(0,)])
