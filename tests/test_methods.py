"Adding a method is one record; functions of one's own; lists of texts; padding."

import json
from functools import partial

import pytest
import torch
from conftest import TEXTS, random_bert, shallow_demo
from transformers import BertForTokenClassification, Phi3Config, Phi3ForCausalLM

from lrp_loo import audit, explain, explain_labels
from lrp_loo.asked.rows import Scores, text_by_text
from lrp_loo.asked.targets import Readout, Target
from lrp_loo.cli.commands import explain as command
from lrp_loo.core.files import pad_batch
from lrp_loo.interop.tensors import Attributor
from lrp_loo.methods import (
    METHODS,
    Method,
    PaddingCheck,
    as_method,
    check_call,
    explain_batch,
    method_name,
)
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.methods.record import loo_scores
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.removal import removal_loo_scores
from lrp_loo.reports.page import page_data


def embedding_norm(model, tokenizer, encs, target=None, scale=1.0):
    "A method of one's own: how long each token's embedding is."
    batch = pad_batch(tokenizer, encs)
    with torch.no_grad(), watch_embeddings(model) as seen:
        out = forward(model, batch)
    readout = Readout(target, out, batch)
    scores = scale * seen[0].detach().norm(dim=-1)
    return Scores(scores, readout(out).detach(), readout, dict(scale=scale))


NORM = Method(embedding_norm, 'norm', 'C8', '1 forward', in_threads=True)


@pytest.fixture
def norm(monkeypatch):
    "One entry: all that a new method needs."
    monkeypatch.setitem(METHODS, 'norm', NORM)
    return 'norm'


# a new method


def test_a_new_entry_is_explained(demo, norm):
    (a,) = explain(*demo, TEXTS[0], method=norm, scale=2.0)
    assert a.method == 'norm'
    assert a.info['scale'] == 2.0
    assert len(a.scores) == len(a.tokens) > 5
    assert (a.scores > 0).all()


def test_a_new_entry_is_audited(demo, norm):
    table = audit(*demo, TEXTS, methods=['loo', norm], progress=False)
    assert list(table.index) == ['loo', 'norm']
    assert -1 <= table.loo_r['norm'] <= 1


def test_a_new_entry_is_a_class_for_captum(demo, norm):
    model, tokenizer = demo
    enc = encode(model, tokenizer, TEXTS[0])
    found = Attributor(model, norm).attribute(enc['input_ids'])
    (a,) = explain(model, tokenizer, TEXTS[0], method=norm)
    assert torch.allclose(found[0], a.scores, atol=1e-6)


def test_a_new_entry_is_on_a_page(demo, norm):
    data = page_data(*demo, TEXTS[1], methods=['loo', norm])
    assert list(data['methods']) == ['loo', 'norm']


def test_a_new_entry_is_on_the_command_line(norm, capsys):
    command('a fine film', method=norm, json=True)
    (said,) = json.loads(capsys.readouterr().out)
    assert said['method'] == 'norm'


def test_a_record_needs_no_entry(demo):
    (a,) = explain(*demo, TEXTS[0], method=NORM)
    (b,) = explain(*demo, TEXTS[0], method=embedding_norm)
    assert (a.method, b.method) == ('norm', 'embedding_norm')
    assert torch.equal(a.scores, b.scores)


# what a method may be


def test_every_record_says_how_it_is_shown():
    labels = [m.label for m in METHODS.values()]
    colours = [m.colour for m in METHODS.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)
    assert len(set(colours)) == len(colours)
    assert all(m.passes for m in METHODS.values())


def test_a_function_says_by_attributes_what_a_record_says_by_fields():
    assert as_method(loo_scores).by_unit
    assert as_method(partial(lrp_scores, strict=True)).per_feature
    assert not as_method(embedding_norm).by_unit


@pytest.mark.parametrize('wrong', ['attnlrp', 3, None])
def test_what_is_no_method_is_refused(wrong):
    with pytest.raises(ValueError, match='is not known; take one of loo, ig'):
        as_method(wrong)


def test_a_call_with_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method 'attnlrp' is not known"):
        check_call(random_bert(layers=1), 'attnlrp', TEXTS)


@pytest.mark.parametrize('name', METHODS)
def test_a_record_of_ours_is_called_by_its_name(name):
    assert method_name(METHODS[name]) == method_name(name) == name


def test_an_option_that_a_method_lacks_is_named(demo):
    with pytest.raises(TypeError, match="'embedding_norm' does not take"):
        explain(*demo, TEXTS[0], method=embedding_norm, size=3)


def test_a_function_that_returns_a_tuple_is_refused(demo):
    def old(model, tokenizer, encs, target=None):
        return torch.zeros(1, 3), torch.zeros(1), None, {}

    with pytest.raises(TypeError, match="'old' must return Scores, got tuple"):
        explain(*demo, TEXTS[0], method=old)


# lists of texts


@pytest.mark.parametrize('name', METHODS)
def test_a_list_of_texts_comes_out_as_each_alone(tokenizer, name):
    model = random_bert(layers=2)
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    together = METHODS[name](model, tokenizer, encs)
    assert len(together) == len(together.info) == len(encs)
    for i, enc in enumerate(encs):
        alone = METHODS[name](model, tokenizer, [enc])
        n = enc['input_ids'].shape[1]
        # float32, in batches of another shape
        largest = float(alone.scores.abs().max())
        difference = together.scores[i, :n] - alone.scores[0, :n]
        assert float(difference.abs().max()) < 1e-4 * largest
        assert together.readout.chosen(i) == alone.readout.chosen(0)


def test_a_single_encoded_text_is_no_list(tokenizer):
    model = random_bert(layers=1)
    enc = encode(model, tokenizer, TEXTS[0])
    with pytest.raises(TypeError, match='must be a list of encoded texts'):
        lrp_scores(model, tokenizer, enc)


def test_a_batch_is_no_text(tokenizer):
    model = random_bert(layers=1)
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    batch = pad_batch(tokenizer, encs)
    with pytest.raises(ValueError, match='one text at a time.*batch of 3'):
        removal_loo_scores(model, tokenizer, [batch])


def test_units_of_each_text_reach_a_method_of_one_text(tokenizer):
    given = []

    @text_by_text
    def per_unit(model, tokenizer, enc, target=None, units=None):
        given.append(len(units))
        out = forward(model, enc)
        readout = Readout(target, out, enc)
        values = readout(out).detach()
        return Scores(torch.zeros(1, len(units)), values, readout)

    per_unit.by_unit = True
    model = random_bert(layers=1)
    found = explain(model, tokenizer, TEXTS[:2], per_unit, units='word')
    assert sorted(given) == sorted(len(a) for a in found)
    assert given[0] != given[1]


# padding


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
    together = explain(model, tokenizer, TEXTS, 'grad_x_input')
    for a, text in zip(together, TEXTS):
        (alone,) = explain(model, tokenizer, text, 'grad_x_input')
        assert torch.equal(a.scores, alone.scores)


def padding_fails(model, tokenizer, check):
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    found = METHODS['attn_lrp'](model, tokenizer, encs)
    return check.fails(model, encs, None, found)


def test_the_padding_check_fails_where_padding_is_read(tokenizer):
    assert padding_fails(Averages().eval(), tokenizer, PaddingCheck())


def test_the_padding_check_passes_where_padding_is_masked(tokenizer):
    check = PaddingCheck()
    assert not padding_fails(random_bert(layers=1), tokenizer, check)
    assert check.passed


def test_many_texts_are_one_batch(tokenizer):
    model = random_bert(layers=1)
    sizes = []

    def counted(model, tokenizer, encs, target=None):
        sizes.append(len(encs))
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    encs = [encode(model, tokenizer, t) for t in TEXTS]
    explain_batch(model, tokenizer, encs, counted)
    assert sizes == [3]


def test_no_history_comes_with_the_scores_of_ones_own_method(tokenizer):
    def with_history(model, tokenizer, encs, target=None):
        batch = pad_batch(tokenizer, encs)
        with watch_embeddings(model) as seen:
            out = forward(model, batch)
        readout = Readout(target, out, batch)
        values = readout(out)
        (g,) = torch.autograd.grad(values.sum(), seen[0])
        return Scores((seen[0] * g).sum(-1), values, readout)

    (a,) = explain(random_bert(layers=1), tokenizer, TEXTS[0], with_history)
    assert not a.scores.requires_grad


# ---- each batch and each target is tried by itself


def assert_as_alone(model, tokenizer, texts, method, targets, **options):
    "Texts of one call get the scores that each gets by itself."
    together = explain(model, tokenizer, texts, method, targets, **options)
    for a, text, target in zip(together, texts, targets):
        (alone,) = explain(model, tokenizer, [text], method, [target])
        size = float(alone.scores.abs().max())
        # float32: kernels of other shapes differ by rounding
        assert torch.allclose(a.scores, alone.scores, atol=1e-4 * size)


LIKE_WORDS = "a quiet film that is slow and then turns warm again at the end"
PADDED = ('attn_lrp', 'grad_x_input', 'ig', 'removal', 'loo')


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
    targets = [Target(1, position=1)] * 3 + [of_the_last_row] * 3
    assert_as_alone(random_tagger(), tokenizer, TEXTS * 2, method, targets)


@pytest.mark.parametrize('method', PADDED)
def test_several_labels_are_tried_one_by_one(tokenizer, method):
    model, labels = random_tagger(), [Target(1, position=1), of_the_last_row]
    together = explain_labels(model, tokenizer, TEXTS, labels, method)
    for found, text in zip(together, TEXTS):
        for a, label in zip(found.maps, labels):
            (alone,) = explain(model, tokenizer, [text], method, label)
            size = float(alone.scores.abs().max())
            assert torch.allclose(a.scores, alone.scores, atol=1e-4 * size)


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


def random_phi3():
    "Its angles' factors are others from the 13th token on."
    factors = [1.0 + i for i in range(4)]
    config = Phi3Config(
        vocab_size=30522,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        original_max_position_embeddings=12,
        max_position_embeddings=64,
        pad_token_id=0,
        rope_parameters=dict(
            rope_type='longrope',
            rope_theta=10000.0,
            short_factor=[1.0] * 4,
            long_factor=factors,
            factor=4.0,
            original_max_position_embeddings=12,
        ),
    )
    torch.manual_seed(0)
    model = Phi3ForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3)
    return model


@pytest.mark.parametrize('method', PADDED)
def test_both_sides_of_a_length_at_which_a_model_switches(tokenizer, method):
    words = ' '.join(TEXTS).split()
    texts = [' '.join(words[:n]) for n in range(3, 25)]
    targets = [7] * len(texts)
    how = dict(batch_size=4)
    assert_as_alone(random_phi3(), tokenizer, texts, method, targets, **how)


def test_what_passed_counts_for_other_methods_on_the_same_texts(tokenizer):
    model = random_bert(layers=1)
    check = PaddingCheck()
    encs = [encode(model, tokenizer, t) for t in TEXTS]
    found = METHODS['attn_lrp'](model, tokenizer, encs)
    calls = []
    model.register_forward_hook(lambda *args: calls.append(1))
    assert not check.fails(model, encs, None, found)
    assert len(calls) == 2  # two of the three texts are padded
    assert not check.fails(model, encs, None, found)
    assert len(calls) == 2


# the log-probability of the model's own answer


@pytest.fixture(scope='module')
def two_layers():
    "Of the small language model, and a text."
    model, tokenizer = shallow_demo('reviews')
    return model, tokenizer, encode(model, tokenizer, 'A warm and funny film')


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'grad_x_input'])
def test_the_own_answers_log_probability_is_what_is_explained(two_layers, method):
    model, tokenizer, enc = two_layers
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


def test_a_log_probability_is_of_one_entry():
    with pytest.raises(ValueError, match='for one entry'):
        Target((0, 1), log_prob=True)
    with pytest.raises(ValueError, match='for one entry'):
        Target(among=(0, 1), log_prob=True)
