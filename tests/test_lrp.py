"The rule sets on a stock BERT against a second derivation of the whole model (naive_bert.py), conservation, and leaving no trace."

import threading

import pytest
import torch
from conftest import TEXTS, random_bert
from naive_bert import explain as naive

from lrp_loo import attn_lrp, cp_lrp, explain, lrp_rules
from lrp_loo.lrp import Composite, transformer_layers
from lrp_loo.conservation import conservation
from lrp_loo.models import encode
from lrp_loo.loo import leave_one_out


def close(a, b, rel):
    "Relative to the largest score."
    assert (a - b).abs().max() <= rel * b.abs().max(), (
        (a - b).abs().max() / b.abs().max()
    ).item()


def naive_of(model, ids, **kw):
    c = model.config
    return naive(
        model.state_dict(),
        ids,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        ln_eps=c.layer_norm_eps,
        **kw,
    )


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('bypass', [(), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize(
    'dtype,rel', [(torch.float64, 1e-6), (torch.float32, 2e-4)]
)
def test_relevance_is_the_naive_one(tokenizer, attention, bypass, dtype, rel):
    model = random_bert(dtype=dtype)
    model.set_attn_implementation(attention)
    for text in TEXTS:
        ids = encode(model, tokenizer, text)['input_ids'][0]
        logits, R, total = naive_of(model, ids, bypass=bypass)
        word, both = (
            explain(
                model, tokenizer, text, bypass_softmax=bypass, embeddings=e
            )[0]
            for e in ('word', 'sum')
        )
        assert abs(word.logit - logits.max()) < 1e-3
        close(word.scores.double(), R, rel)
        close(both.scores.double(), total, rel)


@pytest.mark.parametrize('bypass', [(), tuple(range(6))])
def test_relevance_of_the_demo_model_is_the_naive_one(demo, bypass):
    model, tokenizer = demo
    double = load_double(model)
    for text in TEXTS[:2]:
        ids = encode(model, tokenizer, text)['input_ids'][0]
        R = naive_of(model, ids, bypass=bypass)[1]
        close(
            explain(double, tokenizer, text, bypass_softmax=bypass)[
                0
            ].scores.double(),
            R,
            1e-5,
        )
        close(
            explain(model, tokenizer, text, bypass_softmax=bypass)[
                0
            ].scores.double(),
            R,
            1e-3,
        )  # what float32 costs


def load_double(model):
    import copy

    return copy.deepcopy(model).double()


def test_an_explicit_eps_is_the_naive_one(tokenizer):
    """ε at linear layers and products; LayerNorm and additions stay at ε → 0,
    so a model where they absorb nothing: no eps there in the oracle either.
    """
    import naive_bert

    model = random_bert(layers=1, dtype=torch.float64)
    ids = encode(model, tokenizer, TEXTS[0])['input_ids'][0]
    R0 = naive_of(model, ids)[1]
    for eps in (1e-3, 1e-1):
        R = explain(model, tokenizer, TEXTS[0], eps=eps)[0].scores.double()
        keep = naive_bert.LayerNorm.back, naive_bert.add_back
        try:
            naive_bert.LayerNorm.back = lambda self, R, e, f=keep[0]: f(
                self, R, 1e-12
            )
            naive_bert.add_back = lambda a, b, R, e, f=keep[1]: f(
                a, b, R, 1e-12
            )
            close(R, naive_of(model, ids, eps=eps)[1], 1e-6)
        finally:
            naive_bert.LayerNorm.back, naive_bert.add_back = keep
    assert (R - R0).abs().max() > 1e-4 * R0.abs().max()


def test_any_target(tokenizer):
    model = random_bert(dtype=torch.float64, num_labels=4)
    ids = encode(model, tokenizer, TEXTS[2])['input_ids'][0]
    for t in range(4):
        close(
            explain(model, tokenizer, TEXTS[2], target=t)[0].scores.double(),
            naive_of(model, ids, target=t)[1],
            1e-6,
        )


def test_conservation_without_biases(tokenizer):
    """No bias, no position: CP-LRP hands the whole logit to the words; AttnLRP
    all but what its softmax rule absorbs.
    """
    model = random_bert(bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.zero_()
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    for text in TEXTS:
        enc = encode(model, tokenizer, text)
        cp = conservation(model, enc, cp_lrp())
        attn = conservation(model, enc, attn_lrp())
        assert cp['biases'] == cp['constants'] == cp['softmax'] == 0
        assert abs(cp['words'] - cp['logit']) < 1e-4 * abs(cp['logit'])
        assert (
            attn['biases'] == attn['constants'] == 0
            and abs(attn['softmax']) > 1e-3
        )
        assert abs(
            attn['words'] + attn['softmax'] - attn['logit']
        ) < 1e-4 * abs(attn['logit'])
        assert abs(
            explain(model, tokenizer, text, method='cp_lrp')[0].scores.sum()
            - cp['logit']
        ) < 1e-4 * abs(cp['logit'])


def test_shares_with_biases_add_up(demo):
    model, tokenizer = demo
    for text in TEXTS:
        for c in (attn_lrp(), cp_lrp(), attn_lrp([2, 3])):
            s = conservation(model, encode(model, tokenizer, text), c)
            assert abs(s['remainder']) < 1e-3 * max(
                1, abs(s['softmax']), abs(s['logit'])
            ), s


def snapshot():
    "What a patch would have to change."
    import transformers.models.bert.modeling_bert as mb
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    owners = (
        torch,
        torch.nn.functional,
        torch.Tensor,
        torch.nn.Module,
        torch.nn.LayerNorm,
        torch.nn.Linear,
        torch.autograd,
        mb,
        mb.BertSelfAttention,
        mb.BertLayer,
        mb.BertForSequenceClassification,
    )
    return [
        {k: id(v) for k, v in vars(o).items() if callable(v)} for o in owners
    ] + [
        {
            k: id(ALL_ATTENTION_FUNCTIONS[k])
            for k in sorted(ALL_ATTENTION_FUNCTIONS.keys())
        }
    ]


@pytest.mark.parametrize(
    'method',
    [
        'loo',
        'ig',
        'rollout',
        'rollout_residual',
        'attn_lrp',
        'cp_lrp',
        'grad_x_input',
    ],
)
def test_a_call_leaves_no_trace(demo, method):
    model, tokenizer = demo
    enc = encode(model, tokenizer, TEXTS[2])

    def state():
        with torch.no_grad():
            logits = model(**enc).logits
        hooks = [
            (
                n,
                len(m._forward_hooks),
                len(m._forward_pre_hooks),
                len(m._backward_hooks),
            )
            for n, m in model.named_modules()
        ]
        return (
            logits,
            hooks,
            [
                (n, p.requires_grad, p.grad is None, p.data_ptr())
                for n, p in model.named_parameters()
            ],
            model.config.to_dict(),
            model.training,
        )

    before = state()
    world = snapshot()
    explain(model, tokenizer, TEXTS, method=method)
    after = state()
    assert (
        torch.equal(before[0], after[0])
        and before[1:] == after[1:]
        and world == snapshot()
    )


def test_an_exception_leaves_no_trace(demo):
    model, tokenizer = demo
    world = snapshot()
    enc = encode(model, tokenizer, TEXTS[0])
    handle = model.bert.encoder.layer[3].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), lrp_rules(model, attn_lrp()):
        model(**enc)
    handle.remove()
    assert world == snapshot() and not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )
    with lrp_rules(model, attn_lrp()) as rules:
        model(**enc)
    assert rules.layer is None


def test_two_threads_two_rule_sets(demo):
    model, tokenizer = demo
    serial = {
        m: explain(model, tokenizer, TEXTS, method=m)
        for m in ('attn_lrp', 'cp_lrp')
    }
    wrong = []

    def work(method):
        for _ in range(10):
            if not all(
                torch.equal(a.scores, b.scores)
                for a, b in zip(
                    explain(model, tokenizer, TEXTS, method=method),
                    serial[method],
                )
            ):
                wrong.append(method)

    threads = [threading.Thread(target=work, args=(m,)) for m in serial]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_report_and_choices(demo):
    model, tokenizer = demo
    enc = encode(model, tokenizer, TEXTS[0])
    with lrp_rules(
        model, attn_lrp(bypass_softmax=range(3, 6)), strict=True
    ) as rules:
        model(**enc)
    r = rules.report()
    assert 'none' not in set(r.rule)
    att = (
        r[r.operation == 'scaled_dot_product_attention'].set_index('layer').rule
    )
    assert [att[l] for l in range(6)] == ['half, softmax'] * 3 + [
        'constant weights'
    ] * 3
    assert len(transformer_layers(model)) == 6
    with pytest.raises(ValueError, match='layer_norm'):
        Composite('x', layer_norm='none')
    plain = explain(model, tokenizer, TEXTS[0], method='grad_x_input')[0].scores
    x = model.get_input_embeddings()(enc['input_ids']).detach().requires_grad_()
    (g,) = torch.autograd.grad(
        model(
            inputs_embeds=x, attention_mask=enc['attention_mask']
        ).logits.max(),
        x,
    )
    assert torch.allclose(plain, (x * g).sum(-1)[0], atol=1e-5)


@pytest.mark.parametrize('drop', [None, False])
def test_loo_is_one_masked_pass_at_a_time(demo, drop):
    model, tokenizer = demo
    for text in TEXTS:
        enc = encode(model, tokenizer, text)
        loo, logits, t = leave_one_out(model, enc, drop=drop)
        with torch.no_grad():
            for i in range(len(loo)):
                mask = torch.ones(1, len(loo), dtype=torch.long)
                mask[0, i] = 0
                assert (
                    abs(
                        loo[i]
                        - (
                            logits[t]
                            - model(
                                input_ids=enc['input_ids'], attention_mask=mask
                            ).logits[0, t]
                        )
                    )
                    < 1e-4
                )
