"Adding a method is one record; lists and padding; what methods do at the edges of what they know."

from dataclasses import dataclass, replace

from conftest import TEXTS, CountTokens, random_bert, shallow_demo
from every_family import Words
from families import DECODER, FAMILIES, SIZES, drawn, random_inputs, random_model
import pytest
from test_lrp import close
import torch
from transformers import BertForTokenClassification

from lrp_loo import audit, explain
from lrp_loo.inputs.scores import Scores, text_by_text
from lrp_loo.inputs.targets import Readout, Target
from lrp_loo.core.tensors import pad_batch
from lrp_loo.interop import Attributor
from lrp_loo.methods import explain_batch
from lrp_loo.methods.checks import differs_from_model
from lrp_loo.methods.table import METHODS, Method
from lrp_loo.methods.baselines import ig_scores
from lrp_loo.models.call import forward, watch_embeddings
from lrp_loo.models.encoding import encode


def embedding_norm(model, tokenizer, encs, target=None, scale=1.0):
    "A method of one's own: how long each token's embedding is."
    batch = pad_batch(tokenizer, encs)
    with torch.no_grad(), watch_embeddings(model) as seen:
        out = forward(model, batch)
    readout = Readout(target, out, batch)
    scores = scale * seen[0].detach().norm(dim=-1)
    return Scores(scores, readout(out).detach(), readout, dict(scale=scale))


NORM = Method(embedding_norm, 'norm', 'C8')


def test_a_new_entry_is_everywhere(demo, monkeypatch):
    model, tokenizer = demo
    (a,) = explain(*demo, TEXTS[0], method=NORM, scale=2.0)  # which needs no entry
    assert (a.method, a.info['scale']) == ('norm', 2.0)
    (a,), (b,) = (explain(*demo, TEXTS[0], method=m) for m in (NORM, embedding_norm))
    assert b.method == 'embedding_norm' and torch.equal(a.scores, b.scores)
    monkeypatch.setitem(METHODS, 'norm', NORM)
    table = audit(*demo, TEXTS, method=['loo', 'norm'], progress=False)
    assert list(table.index) == ['loo', 'norm']
    enc = encode(model, tokenizer, TEXTS[0])
    attributed = Attributor(model, 'norm').attribute(enc['input_ids'])
    assert torch.allclose(attributed[0], a.scores, atol=1e-6)


@pytest.mark.parametrize('name', METHODS)
def test_a_list_of_texts_comes_out_as_each_alone(tokenizer, name):
    model = random_bert(layers=2)
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    together = METHODS[name](model, tokenizer, encs)
    assert len(together) == len(together.info) == len(encs)
    for i, enc in enumerate(encs):
        alone = METHODS[name](model, tokenizer, [enc])
        # float32, in batches of another shape
        close(together.scores[i, : enc['input_ids'].shape[1]], alone.scores[0], 1e-4)
        assert together.readout.chosen(i) == alone.readout.chosen(0)


def test_units_of_each_text_reach_a_method_of_one_text(tokenizer):
    given = []

    @text_by_text
    def per_unit(model, tokenizer, enc, target=None, units=None):
        given.append(len(units))
        out = forward(model, enc)
        readout = Readout(target, out, enc)
        values = readout(out).detach()
        return Scores(torch.zeros(1, len(units)), values, readout)

    model = random_bert(layers=1)
    found = explain(model, tokenizer, TEXTS[:2], per_unit, units='word')
    assert sorted(given) == sorted(len(a) for a in found)
    assert given[0] != given[1]


class Averages(torch.nn.Module):
    "It averages over all places, padding too."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(30522, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.embed(input_ids).tanh().mean(1))


def test_texts_that_padding_changes_are_explained_one_by_one(tokenizer):
    model = Averages().eval()
    for target in (None, lambda out: out[:, 1] ** 2):
        together = explain(model, tokenizer, TEXTS, 'grad_x_input', target=target)
        for a, text in zip(together, TEXTS):
            (alone,) = explain(model, tokenizer, text, 'grad_x_input', target=target)
            assert torch.equal(a.scores, alone.scores)


def test_numbers_are_compared_with_the_models_own_forward_once(tokenizer):
    reads, model = Averages().eval(), random_bert(layers=1)
    for_it, encs = ([encode(m, tokenizer, t) for t in TEXTS] for m in (reads, model))
    found = METHODS['attn_lrp'](reads, tokenizer, for_it)
    assert differs_from_model(reads, for_it, None, found, 'attn_lrp')
    found, sizes = METHODS['attn_lrp'](model, tokenizer, encs), []
    assert not differs_from_model(model, encs, None, found, 'attn_lrp')
    with CountTokens(model) as count:  # known of these lengths and of this method
        assert not differs_from_model(model, encs, None, found, 'attn_lrp')
        assert not count.n
        assert not differs_from_model(model, encs, None, found, 'cp_lrp')
        assert count.n
    with torch.no_grad():
        model.classifier.bias += 1
    assert differs_from_model(model, encs, None, found, 'attn_lrp')
    found = METHODS['attn_lrp'](model, tokenizer, encs)

    def counted(model, tokenizer, encs, target=None):
        sizes.append(len(encs))
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    explain_batch(model, tokenizer, encs, counted)
    assert sizes == [3]  # many texts are one batch


def test_a_batch_known_to_differ_is_not_computed_again(tokenizer):
    model, sizes = Averages().eval(), []

    def counted(model, tokenizer, encs, target=None):
        sizes.append(len(encs))
        return METHODS['grad_x_input'](model, tokenizer, encs, target)

    encs = [encode(model, tokenizer, t) for t in TEXTS]
    for _ in range(2):
        explain_batch(model, tokenizer, encs, counted)
    assert sizes == [3, 1, 1, 1, 1, 1, 1]
    with torch.no_grad():
        model.head.bias += 1  # another model: asked anew
    explain_batch(model, tokenizer, encs, counted)
    assert sizes[7:] == [3, 1, 1, 1]


def test_what_one_function_computes_is_not_believed_of_another(tokenizer):
    model = random_bert(layers=1)
    encs = [encode(model, tokenizer, t) for t in TEXTS]

    def scores(model, tokenizer, encs, target=None):
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    right = scores

    def scores(model, tokenizer, encs, target=None):
        wrong = METHODS['attn_lrp'](model, tokenizer, encs, target)
        return replace(wrong, values=wrong.values + 1)

    assert right.__name__ == scores.__name__

    @dataclass
    class Scoring:  # it has no hash
        gap: float

        def __call__(self, model, tokenizer, encs, target=None):
            result = METHODS['attn_lrp'](model, tokenizer, encs, target)
            return replace(result, values=result.values + self.gap)

    explain_batch(model, tokenizer, encs, right)
    for wrong in (scores, Scoring(1.0)):
        with pytest.raises(ValueError, match='own forward another'):
            explain_batch(model, tokenizer, encs, wrong)
    explain_batch(model, tokenizer, encs, Scoring(0.0))


def test_no_history_comes_with_the_scores_of_ones_own_method(tokenizer):
    def with_history(model, tokenizer, encs, target=None):
        with watch_embeddings(model) as seen:
            out = forward(model, encs[0])
        readout = Readout(target, out, encs[0])
        return Scores((seen[0] * readout(out)).sum(-1), readout(out), readout)

    (a,) = explain(random_bert(layers=1), tokenizer, TEXTS[0], with_history)
    assert not a.scores.requires_grad


def assert_as_alone(model, tokenizer, texts, method, targets, **options):
    "Texts of one call get the scores that each gets by itself."
    together = explain(model, tokenizer, texts, method, targets, **options)
    for a, text, target in zip(together, texts, targets):
        (alone,) = explain(model, tokenizer, [text], method, [target])
        # float32: kernels of other shapes differ by rounding
        close(a.scores, alone.scores, 1e-4)


LIKE_WORDS = "a quiet film that is slow and then turns warm again at the end"
PADDED = ('attn_lrp', 'removal')


def random_tagger():
    like = random_bert(layers=2, num_labels=3)
    model = BertForTokenClassification(like.config).eval()
    model.bert.load_state_dict(like.bert.state_dict(), strict=False)
    return model


def of_the_last_row(out):
    "In a padded text a row of padding."
    return out.logits[:, -1, 1]


@pytest.mark.parametrize('method', PADDED)
def test_one_targets_padding_says_nothing_of_anothers(tokenizer, method):
    model, labels = random_tagger(), [Target(1, position=1), of_the_last_row]
    targets = [labels[0]] * 3 + [labels[1]] * 3
    assert_as_alone(model, tokenizer, TEXTS * 2, method, targets)


def test_a_function_is_tried_on_every_padded_text(tokenizer):
    "The shortest reads no padding; one four tokens longer does."
    model, words = random_tagger(), LIKE_WORDS.split()
    texts = [' '.join(words[:n]) for n in (3, 7, 12)]
    encs = [encode(model, tokenizer, t) for t in texts[:2]]
    with torch.no_grad():
        low, high = (model(**e).logits[0, 0, 0] for e in encs)

    def of_some(out):
        first, last = out.logits[:, 0, 0], out.logits[:, -1, 1]
        is_longer = (first - low) / (high - low) > 0.5
        return torch.where(is_longer, last, first)

    lengths = [e['input_ids'].shape[1] for e in encs]
    assert lengths[1] == lengths[0] + 4
    assert_as_alone(model, tokenizer, texts, 'attn_lrp', [of_some] * 3)


@pytest.mark.parametrize('method', PADDED)
def test_both_sides_of_a_length_at_which_a_model_switches(tokenizer, method):
    "Phi-3's angles' factors are others from the 13th token on."
    rope = dict(rope_type='longrope', rope_theta=10000.0, factor=4.0)
    rope |= dict(short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 3.0, 4.0])
    switch = dict(original_max_position_embeddings=12)
    config = dict(DECODER, vocab_size=30522, num_hidden_layers=2, **switch)
    model = drawn('Phi3ForCausalLM', config | dict(rope_parameters=rope | switch))
    words = ' '.join(TEXTS).split()
    texts = [' '.join(words[:n]) for n in range(6, 16)]
    assert_as_alone(model, tokenizer, texts, method, [7] * len(texts), batch_size=4)


@pytest.mark.parametrize('method', ['loo', 'attn_lrp'])
def test_the_own_answers_log_probability_is_what_is_explained(method):
    model, tokenizer = shallow_demo('reviews')
    enc = encode(model, tokenizer, 'A warm and funny film')
    with torch.no_grad():
        answer = int(model(**enc).logits[0, -1].argmax())

    def written_apart(outputs):
        return outputs.logits[:, -1].log_softmax(-1)[:, answer]

    how = (model, tokenizer, [enc], method)
    (named,) = explain_batch(*how, Target(log_prob=True))
    (by_hand,) = explain_batch(*how, written_apart)
    assert named.target == answer
    assert named.logit == pytest.approx(by_hand.logit, abs=1e-5)
    # float32: a log-softmax of some four thousand logits near 10
    assert torch.allclose(named.scores, by_hand.scores, atol=1e-4)


SMALL = dict(SIZES, num_hidden_layers=2, max_position_embeddings=66)


class NoTokenizer(Words):
    "For ids that are random."

    model_max_length = int(1e30)


def small(name, config, dtype=torch.float32):
    return drawn(name, config, 0.2, dtype, 'eager')


def ibert():
    return small('IBertForSequenceClassification', dict(SMALL, quant_mode=False))


def funnel():
    sizes = dict(vocab_size=200, d_model=32, n_head=4, d_head=8, d_inner=64)
    sizes |= dict(block_sizes=[1, 1], num_decoder_layers=1)
    return small('FunnelForSequenceClassification', sizes)


def with_sinks():
    "A column beside the tokens."
    experts = dict(num_local_experts=2, num_experts_per_tok=1, sliding_window=6)
    experts |= dict(num_key_value_heads=2, head_dim=8, pad_token_id=0)
    return small('GptOssForCausalLM', SMALL | experts)


WINDOWS = [
    ('ModernBERT', 'class', {}),
    ('Mistral', 'next token', {}),
    ('Mistral', 'class', {}),
    ('Phi-3', 'class', dict(sliding_window=6)),
    ('Gemma 2', 'class', {}),
    ('Gemma 3', 'class', {}),
]


@pytest.mark.parametrize('family,task,config', WINDOWS)
@pytest.mark.parametrize('attention', ['eager', 'sdpa'])
def test_a_window_on_padding(family, task, config, attention):
    "Rows of padding that see padding alone: nothing of theirs may get out."
    if attention == 'sdpa' and not FAMILIES[family].fused:
        return
    model = random_model(family, task, attention, dtype=torch.float32, **config)
    encs = [random_inputs(model, n, seed=n) for n in (20, 5)]
    for method in ('removal', 'rollout', 'attn_lrp'):
        run = METHODS[method]
        together = run(model, NoTokenizer(), encs).scores
        for enc, both in zip(encs, together, strict=True):
            alone = run(model, NoTokenizer(), [enc]).scores[0]
            # float32: the steps' parts are larger than their sum
            close(both[: len(alone)], alone, 1e-4)


def test_ig_where_embeddings_are_a_pair():
    model = ibert()
    encs = [random_inputs(model, n, seed=n) for n in (11, 6)]
    found = ig_scores(model, NoTokenizer(), encs, n_steps=32)
    # 32 nodes on a smooth path of float32 numbers
    for row, info in zip(found.scores, found.info, strict=True):
        assert 0 < row.abs().sum() and torch.isfinite(row).all()
        assert abs(info['completeness_error']) < 1e-2 * row.abs().sum()


@pytest.mark.parametrize('make', [funnel, with_sinks])
@pytest.mark.parametrize('method', ['removal', 'rollout'])
def test_other_shapes_are_refused_by_name(make, method):
    model = make()
    said = f'{type(model).__name__} (shows|has) attention of shape'
    with pytest.raises(ValueError, match=said):
        METHODS[method](model, NoTokenizer(), [random_inputs(model, 14)])


@pytest.mark.parametrize('method', ['removal', 'attn_lrp', 'ig', 'rollout', 'loo'])
def test_inside_inference_mode(tokenizer, method):
    small = random_bert(layers=2), tokenizer
    (outside,) = explain(*small, TEXTS[0], method)
    with torch.inference_mode():
        (inside,) = explain(*small, TEXTS[0], method)
        enc = {k: v.clone() for k, v in encode(*small, TEXTS[0]).items()}
        (again,) = explain_batch(*small, [enc], method)
    for a in (inside, again):
        close(a.scores, outside.scores, 1e-5)  # the same float32 operations
