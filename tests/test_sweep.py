"Many bypasses from one forward pass: the same numbers as one run each, on every family whose layers can be cut apart."

import pytest
import torch

from lrp_loo import explain, load_demo
from lrp_loo.methods import explain_batch, explain_methods, lrp_scores
from lrp_loo.lrp import attn_lrp, n_layers
from lrp_loo.studies.families import family_tasks, random_inputs, random_model
from lrp_loo.studies.layerwise import sweep_methods
from lrp_loo.models import encode
from lrp_loo.layers import bypass_sweep

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
}  # the others must say why not, or be right


@pytest.mark.parametrize('family,task', family_tasks())
def test_equal_to_separate_runs(family, task):
    model = random_model(family, task)
    inputs = random_inputs(model)
    L = n_layers(model)
    sets = [
        (),
        (0,),
        (L - 1,),
        tuple(range(L)),
        tuple(range(L // 2, L)),
        (0, L - 1),
    ]
    try:
        grads, x, value, readout = bypass_sweep(model, inputs, sets)
    except NotImplementedError as e:
        assert family not in CUT and 'a sweep' in str(e), e
        return

    def over(t):
        return t.sum(-1) if t.ndim == 3 else t.sum(1).flatten(1)

    for s, g in zip(sets, grads):
        found = lrp_scores(model, None, [inputs], composite=attn_lrp(s))
        alone = found.scores
        assert (
            over(x * g) - alone
        ).abs().max() <= 1e-5 * alone.abs().max() and torch.equal(
            found.values, value
        )


def test_a_row_shares_the_sweep():
    "All methods of Table A3 on two padded texts."
    model, tokenizer = load_demo('sst2')
    encs = [
        encode(model, tokenizer, t)
        for t in (
            "a slow start , but the last act is a quiet triumph",
            "the jokes are old",
        )
    ]
    methods = sweep_methods(6) | {
        'cp': ('cp_lrp', {}),
        'eps': ('attn_lrp', dict(eps=1e-3)),
        'loo': ('loo', {}),
    }
    together = explain_methods(model, tokenizer, encs, methods)
    assert list(together) == list(methods)
    for n, (m, kw) in methods.items():
        for a, b in zip(
            together[n], explain_batch(model, tokenizer, encs, m, **kw)
        ):
            assert (
                (a.scores - b.scores).abs().max() <= 1e-5 * b.scores.abs().max()
                and (a.target, a.method, a.tokens, a.info)
                == (b.target, b.method, b.tokens, b.info)
                and a.logit == b.logit
            )


def test_bad_sets():
    model, tokenizer = load_demo('sst2')
    enc = encode(model, tokenizer, 'the jokes are old')
    with pytest.raises(ValueError, match='layers 0 to 5'):
        bypass_sweep(model, enc, [(), (6,)])
    with pytest.raises(NotImplementedError, match='a sweep needs'):
        bypass_sweep(
            random_model('ALBERT'),
            random_inputs(random_model('ALBERT')),
            [(0,)],
        )
    with pytest.raises(ValueError, match='layers 0 to 5'):
        explain(
            model,
            tokenizer,
            'the jokes are old',
            method='attn_lrp',
            bypass_softmax=(6,),
        )
