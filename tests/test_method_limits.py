"""What methods do at the edges of what they know: rows that see no key, double
precision under a single-precision softmax, other layouts, inference mode.
"""

import copy

import pytest
import torch
import transformers
from families import FAMILIES, random_inputs, random_model

from lrp_loo import explain
from lrp_loo.asked.targets import Readout
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.removals import key_weights
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import gradient
from lrp_loo.methods import METHODS, explain_batch
from lrp_loo.methods.baselines import ig_scores
from lrp_loo.methods.record import rollout_scores
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import max_tokens
from lrp_loo.removal import removal_scores

SMALL = dict(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=66,
)


class NoTokenizer:
    "What methods ask of a tokenizer, for ids that are random."

    pad_token_id, eos_token_id, mask_token_id, unk_token_id = 0, 2, 3, None
    all_special_ids = [0, 1, 2]
    model_max_length = int(1e30)

    def convert_ids_to_tokens(self, ids):
        return [str(int(i)) for i in ids]


def small(name, config, dtype=torch.float32, seed=0):
    "A small random model of one of transformers' classes, attention in steps."
    cls = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = cls._from_config(config, attn_implementation='eager')
        model = model.eval().to(dtype)
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1:
                    p.normal_(0, 0.2)
    return model


def assert_close_to_largest(ours, expected, tol):
    "tol: of the largest of them."
    assert (ours - expected).abs().max() < tol * expected.abs().max()


def xlnet(dtype=torch.float32):
    config = transformers.XLNetConfig(
        vocab_size=200, d_model=32, n_layer=2, n_head=4, d_inner=64, num_labels=2
    )
    return small('XLNetForSequenceClassification', config, dtype)


def longformer():
    config = transformers.LongformerConfig(
        **SMALL, attention_window=8, pad_token_id=1, num_labels=2
    )
    return small('LongformerForSequenceClassification', config)


def ibert():
    return small(
        'IBertForSequenceClassification',
        transformers.IBertConfig(**SMALL, quant_mode=False),
    )


WINDOWS = [
    ('ModernBERT', 'class', {}),
    ('Mistral', 'next token', {}),
    ('Mistral', 'class', {}),
    ('Phi-3', 'class', dict(sliding_window=6)),
    ('Gemma 2', 'class', {}),
    ('Gemma 3', 'class', {}),
]
EAGER = [(*window, 'eager') for window in WINDOWS]
FUSED = [(*w, 'sdpa') for w in WINDOWS if FAMILIES[w[0]].fused]


@pytest.mark.parametrize('method', ['removal', 'rollout', 'attn_lrp'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('family,task,config,attention', EAGER + FUSED)
def test_a_window_on_padding(family, task, config, dtype, attention, method):
    """With a window of a few keys the padding's last rows see padding alone;
    nobody reads them, and nothing of theirs may get out.
    """
    model = random_model(family, task, attention, dtype=dtype, **config)
    run = METHODS[method]
    encs = [random_inputs(model, n, seed=n) for n in (20, 5)]
    together = run(model, NoTokenizer(), encs).scores
    for enc, both in zip(encs, together, strict=True):
        alone = run(model, NoTokenizer(), [enc]).scores[0]
        # float32 rounds by 1e-7 a step; random weights of 0.3 make the
        # steps' parts larger than their sum
        assert_close_to_largest(both[: len(alone)], alone, 1e-4)


@pytest.mark.parametrize('task', ['class', 'next token'])
def test_gemma_2_in_double_precision(task):
    """Its softmax is taken in single precision, where the double mask of a row
    that sees nothing is −∞ throughout.
    """
    model = random_model('Gemma 2', task, 'eager')
    single = copy.deepcopy(model).float()
    enc = random_inputs(model)
    loo, _, _ = leave_one_out(model, enc, 1)
    of_single, _, _ = leave_one_out(single, enc, 1)
    assert torch.isfinite(loo).all()
    # float32 against double, three layers
    assert_close_to_largest(of_single, loo, 1e-4)


@pytest.mark.parametrize(
    'method', ['attn_lrp', 'removal', 'ig', 'rollout', 'grad_x_input']
)
def test_xlnets_scores_have_the_text_first(method):
    "It looks ids up as (T, batch); scores still come as (batch, T)."
    model = xlnet(torch.float64)
    enc = random_inputs(model, 7)
    scores = METHODS[method](model, NoTokenizer(), [enc]).scores
    assert tuple(scores.shape) == (1, 7)


def test_xlnet_is_explained_token_by_token():
    model = xlnet(torch.float64)
    enc = random_inputs(model, 7)
    (a,) = explain_batch(model, NoTokenizer(), [enc], 'removal')
    assert len(a) == 7


def test_xlnets_embeddings_are_replaced_as_they_are_given():
    model = xlnet(torch.float64)
    enc = random_inputs(model, 7)
    x = torch.randn(3, 7, 32, dtype=torch.float64)
    many = {k: v.expand(3, -1) for k, v in enc.items()}
    with torch.no_grad(), watch_embeddings(model, x):
        replaced = forward(model, many).logits
    mask = many['attention_mask']
    with torch.no_grad():
        given = model(inputs_embeds=x, attention_mask=mask).logits
    assert torch.allclose(replaced, given)


def test_xlnet_attention_is_what_removal_takes_it_for():
    """∂f/∂log m_j against finite differences of the key's weight: rows and
    keys are not swapped.
    """
    model = xlnet(torch.float64)
    enc = random_inputs(model, 7)
    with (
        torch.enable_grad(),
        watch_embeddings(model),
        lrp_rules(model, gradient(), record='attention') as rules,
    ):
        out = forward(model, enc)
    readout = Readout(None, out, enc)
    with torch.enable_grad():
        value = readout(out)
    logits = [Z for _, Z, _ in rules.attention]
    gradients = torch.autograd.grad(value.sum(), logits)
    derivative = sum(g.sum((0, 1, 2)) for g in gradients)
    step = 1e-4
    for j in (1, 5):
        lowered = torch.ones(1, 7, dtype=torch.float64)
        lowered[0, j] -= step
        with torch.no_grad(), key_weights(lowered):
            change = float(value - readout(forward(model, enc)))
        # one-sided, first order in the step
        expected = pytest.approx(float(derivative[j]), rel=1e-2, abs=1e-6)
        assert change / step == expected


def test_xlnet_takes_texts_of_any_length():
    assert max_tokens(xlnet(), NoTokenizer()) == 10**9  # its config says −1


def test_rollout_reads_xlnets_last_row():
    model = xlnet()
    enc = random_inputs(model, 7)
    found = rollout_scores(model, NoTokenizer(), [enc])
    assert found.info == [dict(residual=False, row=6)]


@pytest.mark.parametrize('make', [longformer, ibert])
def test_ig_where_embeddings_are_another_shape(make):
    """Longformer pads to whole windows by itself, I-BERT's embeddings are a
    pair: the path's end differences are the scores' sum all the same.
    """
    model = make()
    encs = [random_inputs(model, n, seed=n) for n in (11, 6)]
    found = ig_scores(model, NoTokenizer(), encs, n_steps=32)
    assert tuple(found.scores.shape) == (2, 11)
    assert torch.isfinite(found.scores).all()
    # 32 nodes on a smooth path of float32 numbers
    for row, info in zip(found.scores, found.info, strict=True):
        size = row.abs().sum()
        assert size > 0
        assert abs(info['completeness_error']) < 1e-2 * size


def funnel():
    return small(
        'FunnelForSequenceClassification',
        transformers.FunnelConfig(
            vocab_size=200,
            d_model=32,
            block_sizes=[1, 1],
            n_head=4,
            d_head=8,
            d_inner=64,
            num_decoder_layers=1,
        ),
    )


def with_sinks():
    "A column beside the tokens."
    return small(
        'GptOssForCausalLM',
        transformers.GptOssConfig(
            vocab_size=200,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=32,
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=6,
            pad_token_id=0,
        ),
    )


@pytest.mark.parametrize('make', [longformer, funnel, with_sinks])
@pytest.mark.parametrize('method', ['removal', 'rollout'])
def test_other_shapes_are_refused_by_name(make, method):
    model = make()
    said = f'{type(model).__name__} shows attention of shape'
    with pytest.raises(ValueError, match=said):
        METHODS[method](model, NoTokenizer(), [random_inputs(model, 14)])


class Words(torch.nn.Module):
    "A table of nine words; a test writes what is done with them."

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)

    def get_input_embeddings(self):
        return self.embed


def three_words():
    ids = torch.tensor([[1, 2, 3]])
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


class Sink(Words):
    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)[:, None]
        sink = torch.zeros_like(x[..., :1])
        A = torch.cat([x @ x.mT, sink], -1).softmax(-1)
        return (A[..., :-1] @ x)[:, 0, 0]


def test_a_sink_is_no_class_token():
    """One key more than there are tokens stands in front of an image's
    patches; in a text it may stand anywhere.
    """
    with pytest.raises(ValueError, match='Sink shows attention of shape'):
        removal_scores(Sink().eval(), None, [three_words()])


@pytest.mark.parametrize(
    'method', ['removal', 'removal+loo', 'attn_lrp', 'ig', 'rollout', 'loo']
)
def test_inside_inference_mode(demo, method):
    text = 'the jokes are old'
    (outside,) = explain(*demo, text, method=method)
    with torch.inference_mode():
        (inside,) = explain(*demo, text, method=method)
    # the same float32 operations
    assert_close_to_largest(inside.scores, outside.scores, 1e-5)


def test_removal_itself_inside_inference_mode():
    model = random_model('BERT')
    enc = random_inputs(model)
    outside = removal_scores(model, None, [enc]).scores
    with torch.inference_mode():
        made_inside = {k: v.clone() for k, v in enc.items()}
        inside = removal_scores(model, None, [made_inside]).scores
    assert torch.allclose(inside, outside)


def test_weights_made_under_inference_mode_are_refused():
    with torch.inference_mode():
        model = random_model('BERT')
    with pytest.raises(ValueError, match='inference_mode'):
        removal_scores(model, None, [random_inputs(model)])


@pytest.mark.parametrize('method', ['removal', 'attn_lrp', 'rollout'])
def test_a_decoder_without_padding_token_says_what_to_set(method):
    config = transformers.GPT2Config(
        vocab_size=200,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = small('GPT2ForSequenceClassification', config)
    encs = [random_inputs(model, n) for n in (5, 8)]
    with pytest.raises(ValueError, match='set model.config.pad_token_id'):
        METHODS[method](model, NoTokenizer(), encs)


class Cut(Words):
    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)[:, None]
        o = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return o[:, 0, 0].detach()


def test_no_gradient_is_an_error():
    with pytest.raises(ValueError, match='no gradient'):
        removal_scores(Cut().eval(), None, [three_words()])
