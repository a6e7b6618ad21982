"What people have and want: tables, encodings, targets, labels, quantized models; `help`."

from close import assert_close
from datasets import Dataset
from families import HEADED
import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import lrp_loo
from lrp_loo import Target, audit, explain, explain_labels
from lrp_loo.records.attributions import Comparison
from lrp_loo.records.display import display_text

TEXTS = [
    'A gripping, UNFORGETTABLE film.',
    'Slow, and never funny.',
    'The cast was fine; I left early.',
]
QUIET = dict(progress=False)


@pytest.fixture(scope='module')
def maps(demo):
    return explain(*demo, TEXTS)


def same(found, wanted):
    "The same tokens and, up to batches of another make, the same scores."
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.tokens == b.tokens
        top = float(b.scores.abs().max())
        assert torch.allclose(a.scores, b.scores, atol=1e-4 * top)
        assert a.target == b.target


def test_one_text_is_a_list_of_one_and_a_data_sets_column_a_list(demo, maps):
    same(explain(*demo, TEXTS[0]), maps[:1])
    assert audit(*demo, TEXTS[0], 'loo', **QUIET).n['loo'] == 1
    table = Dataset.from_dict(dict(x=TEXTS))
    same(explain(*demo, table['x']), maps)
    with pytest.raises(TypeError, match="columns, such as texts.'x'."):
        explain(*demo, table)


def test_an_error_names_its_text(demo):
    with pytest.raises(ValueError, match=r'texts\[1\]: the text is empty'):
        explain(*demo, ['fine', ' ', 'fine'])
    with pytest.raises(TypeError, match=r'texts\[2\].*float'):
        audit(*demo, pd.Series(['fine', 'dull', float('nan')]), 'loo', **QUIET)


@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
def test_an_encoding_is_its_texts(demo, method):
    how = dict(padding='max_length', max_length=64, return_tensors='pt')
    encs = [demo[1]([t], **how) for t in TEXTS]
    same(explain(*demo, encs, method), explain(*demo, TEXTS, method))
    # padding in front shifts BERT's positions, and its first row is the one read
    enc = demo[1](TEXTS[0], **how, padding_side='left')
    (a,) = explain(*demo, enc, method, target=1)
    with torch.no_grad():
        assert_close(a.logit, float(demo[0](**enc).logits[0, 1]), scale=1.0)
    pair = ('a fine film', 'or so they say')
    enc = demo[1](*pair, return_tensors='pt')
    same(explain(*demo, enc, method), explain(*demo, [pair], method))


def test_an_encoding_that_cannot_be_right(demo):
    for encoded, said in (
        (dict(input_ids=[[101, 102]]), 'no token besides'),
        (dict(input_ids=[[101, 99999, 102]]), "another model's"),
        (dict(input_ids=[[101, 7, 102]], attention_mask=[[0] * 3]), 'and hold 1 for'),
        (dict(input_ids=[101, 7, 102]), 'got shape .3,.; give several'),
        (demo[1](TEXTS, padding=True), 'got shape .3, 11.; give several'),
    ):
        with pytest.raises(ValueError, match=said):
            explain(*demo, encoded)


@pytest.mark.parametrize('method', ['loo', 'rollout'])
def test_targets_of_every_kind_in_one_list(demo, method):
    def share(out):
        return out.logits.softmax(-1)[:, 1]

    targets = ['negative', None, Target('positive'), (1, 0), share]
    texts = TEXTS + TEXTS[:2]
    found = explain(*demo, texts, method, target=targets)
    for a, text, target in zip(found, texts, targets):
        same([a], explain(*demo, text, method, target=target))
    assert [a.target for a in found][0::2] == [0, 1, 'share']
    wanted = explain(*demo, TEXTS, method, target=[1, 0, 1])
    for given in (np.array, torch.tensor, pd.Series):
        same(explain(*demo, TEXTS, method, target=given([1, 0, 1])), wanted)


def test_a_map_per_label(demo):
    found = explain_labels(*demo, TEXTS, method='cp_lrp')
    assert [type(c) for c in found] == [Comparison] * 3
    for of_text, text in zip(found, TEXTS):
        assert [a.label for a in of_text] == ['negative', 'positive']
        for a in of_text:
            same([a], explain(*demo, text, 'cp_lrp', target=a.target))
    (found,) = explain_labels(*demo, TEXTS[0], ['positive', 0], method='loo')
    assert [a.target for a in found] == [1, 0]
    for other in (dict(target=1), dict(units=['word'] * 3)):
        with pytest.raises(ValueError, match='cannot be combined with explain_labels'):
            explain_labels(*demo, TEXTS, **other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_the_model_is_moved_and_stays(tokenizer):
    model = tiny(transformers.BertForSequenceClassification, tokenizer)
    explain(model, tokenizer, TEXTS, device='cuda')
    assert next(model.parameters()).device.type == 'cuda'
    explain(model, tokenizer, TEXTS)
    assert next(model.parameters()).device.type == 'cuda'


class Wrapper(torch.nn.Module):
    "As one writes it, without a thought of modes."

    def __init__(self, model, dropout=0.0):
        super().__init__()
        self.model = model
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, input_ids, attention_mask=None):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return self.dropout(out.logits)


def test_a_wrapper_around_an_eval_model_is_understood(demo, maps):
    model, tokenizer = demo
    wrapped = Wrapper(model)
    assert wrapped.training
    found = explain(wrapped, tokenizer, TEXTS)
    same(found, maps)
    assert found[0].probability is None  # a plain module has none
    assert 'probability' not in found[0]._repr_html_()
    wrapped.config = model.config  # it names classes, the wrapper's numbers may be any
    assert explain(wrapped.eval(), tokenizer, TEXTS[0], 'loo')[0].probability is None
    inside = tiny(transformers.BertForSequenceClassification, tokenizer).train()
    for dropping in (Wrapper(model, 0.1), Wrapper(inside)):
        with pytest.raises(ValueError, match='training mode'):
            explain(dropping, tokenizer, TEXTS)


def tiny(kind, tokenizer, **config):
    "A small random model of BERT's family."
    torch.manual_seed(0)
    sizes = dict(HEADED, vocab_size=len(tokenizer), num_hidden_layers=2)
    return kind(transformers.BertConfig(**sizes | config)).eval()


MASKED = 'The [MASK] was slow, and never funny.'


def test_a_masked_word(tokenizer):
    model = tiny(transformers.BertForMaskedLM, tokenizer)
    with torch.no_grad():
        out = model(**tokenizer(MASKED, return_tensors='pt')).logits[0, 2]
    wanted = tokenizer.convert_tokens_to_ids('film')
    (a,) = explain(model, tokenizer, MASKED, target='film')
    assert (a.label, a.info['token_at_position']) == ('film', '[MASK]')
    assert a.logit == pytest.approx(float(out[wanted]), abs=1e-5)
    assert a.probability == pytest.approx(float(out.softmax(-1)[wanted]), rel=1e-3)
    table = audit(model, tokenizer, [MASKED, MASKED], 'cp_lrp', target='film', **QUIET)
    assert table.n['cp_lrp'] == 1  # one is a copy
    pipe = transformers.pipeline('fill-mask', model, tokenizer=tokenizer, device='cpu')
    same(explain(pipe, None, MASKED), explain(model, tokenizer, MASKED))


def test_a_tagger(tokenizer):
    kind, text = transformers.BertForTokenClassification, 'Anna left Rome.'
    names = dict(enumerate(('O', 'PER', 'LOC')))
    labels = {v: k for k, v in names.items()}
    model = tiny(kind, tokenizer, id2label=names, label2id=labels)
    with pytest.raises(ValueError, match=r'Target\(position=...\)'):
        explain(model, tokenizer, text)
    asked = Target('LOC', position=3)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors='pt')).logits[0, 3]
    how = dict(model=model, tokenizer=tokenizer, device='cpu')
    pipe = transformers.pipeline('token-classification', **how)
    for method in ('loo', 'attn_lrp', 'removal', 'rollout'):
        (a,) = explain(model, tokenizer, text, method, target=asked)
        assert (a.target, a.label) == (2, 'LOC')
        assert a.info['token_at_position'] == 'rome'
        assert a.probability == pytest.approx(float(out.softmax(-1)[2]), rel=1e-4)
        same(explain(pipe, None, text, method, target=asked), [a])


def test_frames(maps, demo):
    frame = maps[0].to_frame()
    assert list(frame.columns) == ['token', 'score', 'is_special', 'start', 'end']
    content = frame[~frame.is_special]
    written = [TEXTS[0][s:e] for s, e in zip(content.start, content.end)]
    assert ''.join(written) == TEXTS[0].replace(' ', '')
    assert frame.start.isna().tolist() == frame.is_special.tolist()
    pair = ('A fine film.', 'Or so they say.')
    frame = explain(*demo, [pair])[0].to_frame()
    for row in frame[~frame.is_special].itertuples():
        assert pair[row.part][row.start : row.end].lower() == row.token
    (a,) = explain(*demo, demo[1](TEXTS[:1]))
    assert list(a.to_frame().columns) == ['token', 'score', 'is_special']
    frame = maps.to_frame()
    assert frame.row.tolist() == [i for i, a in enumerate(maps) for _ in range(len(a))]


def shown_of(a):
    return ''.join(' ' * gap + text for gap, text in display_text(a))


def test_letters_and_spaces_are_the_readers(maps):
    for a, text in zip(maps, TEXTS):
        assert shown_of(a) == f'[CLS] {text} [SEP]'
    text = 'Très bien 🎬 fin.\nOver'
    (a,) = explain(*lrp_loo.load_demo('reviews'), text)  # a vocabulary of bytes
    shown = shown_of(a).removeprefix('<s>').strip()
    for mark in '·␣↵':  # bytes of a letter, a space, a line's end
        shown = shown.replace(mark, '' if mark == '·' else ' ')
    assert shown.split() == text.split()


ALONE = dict(problem_type='multi_label_classification')
LOG, FIRST = Target(log_prob=True), lambda out: out.logits[:, 0]
PROBABLE = [
    (ALONE, None, lambda a: torch.tensor(a.logit).sigmoid().item()),
    ({}, LOG, lambda a: np.exp(a.logit)),
    (dict(problem_type='regression', num_labels=1), None, None),
    *[(dict(num_labels=1), None, None), ({}, (1, 0), None), ({}, FIRST, None)],
]


@pytest.mark.parametrize('config, target, wanted', PROBABLE)
def test_the_probability(tokenizer, config, target, wanted):
    kind = transformers.BertForSequenceClassification
    model = tiny(kind, tokenizer, **dict(num_labels=3) | config)
    (a,) = explain(model, tokenizer, TEXTS[0], target=target)
    near = wanted and pytest.approx(wanted(a), abs=1e-6)
    assert a.probability == near
