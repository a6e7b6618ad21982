"""What people have and want: columns of tables, encodings, a target per text, several labels,
tables out; masked words, taggers, quantized models; what `help` says.
"""

import copy
import html
import inspect
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from datasets import Dataset
from fastcore.docments import docments

import lrp_loo
from lrp_loo import Attributions, Target, audit, explain, explain_labels, load
from lrp_loo.reports.page import page_data
from lrp_loo.views import Comparison
from lrp_loo.views.html import in_thousandths, shown_places

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


# ------------------------------------------------------------ texts

AS_TEXTS = {
    'a list': list,
    'a tuple of more than two': lambda t: iter(tuple(t)),
    'a pandas column': pd.Series,
    'a column with an index of its own': lambda t: pd.Series(t, index=[7, 5, 5]),
    'a numpy array': np.array,
    'a column of a data set': lambda t: Dataset.from_dict(dict(x=t))['x'],
}


@pytest.mark.parametrize('given', AS_TEXTS.values(), ids=AS_TEXTS)
def test_texts_come_as_a_list_or_a_column(demo, maps, given):
    same(explain(*demo, given(TEXTS)), maps)


def test_one_text_is_a_list_of_one(demo, maps):
    same(explain(*demo, TEXTS[0]), maps[:1])
    assert audit(*demo, TEXTS[0], 'loo', **QUIET).n['loo'] == 1


TABLES = {'pandas': pd.DataFrame, 'datasets': Dataset.from_dict}


@pytest.mark.parametrize('make', TABLES.values(), ids=TABLES)
@pytest.mark.parametrize('call', [explain, audit])
def test_a_table_is_refused_with_its_columns(demo, call, make):
    table = make(dict(review=TEXTS, stars=[5, 1, 3]))
    with pytest.raises(TypeError, match="columns review, stars.*'review'"):
        call(*demo, table)


def test_an_error_names_its_text(demo):
    with pytest.raises(ValueError, match=r'texts\[1\]: the text is empty'):
        explain(*demo, ['fine', ' ', 'fine'])
    with pytest.raises(TypeError, match=r'texts\[2\].*float'):
        audit(*demo, pd.Series(['fine', 'dull', float('nan')]), 'loo', **QUIET)


CHAT = [
    dict(role='system', content='Answer in one word.'),
    dict(role='user', content='Which river runs through Lyon?'),
]


@pytest.mark.parametrize(
    'texts', [[CHAT], [CHAT, CHAT], CHAT, [tuple(CHAT)], ['fine', CHAT]]
)
@pytest.mark.parametrize('call', [explain, audit])
def test_a_chat_is_sent_to_explain_generation(demo, call, texts):
    with pytest.raises(TypeError, match='explain_generation'):
        call(*demo, texts)


@pytest.mark.parametrize('text', [[], ['fine'], [dict(content='fine')], 7])
def test_what_is_no_chat_is_not_sent_there(demo, text):
    with pytest.raises(TypeError, match='a text must be a str') as e:
        explain(*demo, [text])
    assert 'explain_generation' not in str(e.value)


# ------------------------------------------------------------ encodings

HOW = {
    'lists': {},
    'padded tensors': dict(padding=True, return_tensors='pt'),
    'padded on the left': dict(padding=True, return_tensors='np', padding_side='left'),
    'padded far': dict(padding='max_length', max_length=64),
}


@pytest.mark.parametrize('how', HOW.values(), ids=HOW)
@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
def test_an_encoding_is_its_texts(demo, how, method):
    _, tokenizer = demo
    encoded = tokenizer(TEXTS, **how)
    wanted = explain(*demo, TEXTS, method)
    same(explain(*demo, encoded, method), wanted)


def test_encodings_come_one_by_one_too(demo, maps):
    _, tokenizer = demo
    same(explain(*demo, [tokenizer(t) for t in TEXTS]), maps)
    same(explain(*demo, tokenizer(TEXTS[0], return_tensors='pt')), maps[:1])
    rows = Dataset.from_dict(dict(text=TEXTS, label=[1, 0, 0]))
    rows = rows.map(lambda r: tokenizer(r['text']))
    same(explain(*demo, list(rows)), maps)


def test_a_pair_that_was_encoded_keeps_its_parts(demo):
    _, tokenizer = demo
    pair = ('a fine film', 'or so they say')
    found = explain(*demo, tokenizer(*pair))
    same(found, explain(*demo, [pair]))


def test_an_encoding_is_audited(demo):
    _, tokenizer = demo
    table = audit(*demo, tokenizer(TEXTS), 'cp_lrp', **QUIET)
    wanted = audit(*demo, TEXTS, 'cp_lrp', **QUIET)
    assert table.loo_r['cp_lrp'] == pytest.approx(wanted.loo_r['cp_lrp'], abs=1e-4)


def test_a_sweep_takes_texts_alone_and_pairs_encodings_too(demo, tmp_path):
    encoded = [demo[1](TEXTS[0])]
    with pytest.raises(TypeError, match='got an encoding'):
        lrp_loo.explain_dataset(encoded, tmp_path, **QUIET)
    (a,), (b,) = (lrp_loo.explain_pairs(*demo, t) for t in (encoded, TEXTS[:1]))
    assert torch.equal(a.scores, b.scores)


ENCODED_WRONGLY = {
    'units': (lambda t: t(TEXTS), dict(units='word'), 'found in the text.*encoding'),
    'too long': (lambda t: t('word ' * 600), {}, '602 tokens.*takes 512'),
    'nothing in it': (lambda t: t('[CLS]'), {}, 'no token besides'),
    "another model's": (
        lambda t: dict(input_ids=[101, 99999, 102]),
        {},
        "another model's",
    ),
    'all masked': (
        lambda t: dict(input_ids=[101, 2307, 102], attention_mask=[0, 0, 0]),
        {},
        'hides every token',
    ),
}


@pytest.mark.parametrize(
    'encode, options, said', ENCODED_WRONGLY.values(), ids=ENCODED_WRONGLY
)
def test_an_encoding_that_cannot_be_right(demo, encode, options, said):
    with pytest.raises(ValueError, match=said):
        explain(*demo, encode(demo[1]), **options)


# ------------------------------------------------------------ targets

AS_TARGETS = {
    'a list': list,
    'an array': np.array,
    'a tensor': torch.tensor,
    'a column': pd.Series,
}


@pytest.mark.parametrize('given', AS_TARGETS.values(), ids=AS_TARGETS)
def test_a_target_per_text(demo, given):
    found = explain(*demo, TEXTS, target=given([1, 0, 1]))
    assert [a.target for a in found] == [1, 0, 1]
    for a, text in zip(found, TEXTS):
        same([a], explain(*demo, text, target=a.target))


@pytest.mark.parametrize('method', ['loo', 'ig', 'removal', 'rollout'])
def test_targets_of_every_kind_in_one_list(demo, method):
    def share(out):
        return out.logits.softmax(-1)[:, 1]

    targets = ['negative', None, Target('positive'), (1, 0), share]
    texts = TEXTS + TEXTS[:2]
    found = explain(*demo, texts, method, target=targets)
    for a, text, target in zip(found, texts, targets):
        same([a], explain(*demo, text, method, target=target))
    assert [a.target for a in found][0::2] == [0, 1, 'share']


def test_a_pair_of_labels_is_a_difference(demo):
    (a,) = explain(*demo, TEXTS[0], target=('positive', 'negative'))
    assert (a.target, a.label) == ((1, 0), 'positive − negative')


def test_as_many_targets_as_texts(demo):
    for call in (explain, audit):
        with pytest.raises(ValueError, match='2 entries for 3 texts'):
            call(*demo, TEXTS, target=[0, 1])


def test_a_wrong_one_among_them_is_named(demo):
    with pytest.raises(ValueError, match='splendid.*negative, positive'):
        explain(*demo, TEXTS, target=[0, 1, 'splendid'])
    with pytest.raises(ValueError, match='target=0.5 is not a target'):
        explain(*demo, TEXTS, target=pd.Series([0.5, 1, 0]))


def test_an_audit_with_a_target_per_text(demo):
    per_text = [
        audit(*demo, [text], 'cp_lrp', target=target, **QUIET)
        for text, target in zip(TEXTS, (0, 1, 0))
    ]
    named = ['negative', 'positive', 0]
    table = audit(*demo, TEXTS, 'cp_lrp', target=named, **QUIET)
    for column in ('loo_r', 'lerf', 'morf'):
        mean = np.mean([t.loc['cp_lrp', column] for t in per_text])
        assert table.loc['cp_lrp', column] == pytest.approx(mean, abs=1e-3)


# ------------------------------------------------------------ labels


def test_a_map_per_label(demo):
    found = explain_labels(*demo, TEXTS, method='cp_lrp')
    assert [type(c) for c in found] == [Comparison] * 3
    for of_text, text in zip(found, TEXTS):
        assert [a.label for a in of_text] == ['negative', 'positive']
        for a in of_text:
            same([a], explain(*demo, text, 'cp_lrp', target=a.target))


def test_labels_that_are_named(demo):
    (found,) = explain_labels(*demo, TEXTS[0], ['positive', 0], units='word')
    assert [a.target for a in found] == [1, 0]
    assert 'gripping' in found[0].tokens


def test_labels_with_units_of_each_text(demo):
    units = ['word', 'sentence', 'token']
    found = explain_labels(*demo, TEXTS, [1], units=units)
    same([c[0] for c in found], explain(*demo, TEXTS, target=1, units=units))
    (found,) = explain_labels(*demo, TEXTS[0], units=[(2, 10), (12, 25)])
    assert found[1].tokens == ['gripping', 'UNFORGETTABLE']


def test_loo_of_another_label_is_no_reference(demo):
    (found,) = explain_labels(*demo, TEXTS[0], method='loo')
    assert 'r with loo' not in found._repr_html_()


# ------------------------------------------------------------ methods, device


@pytest.mark.parametrize('said', ['loo, attn_lrp', 'loo,attn_lrp', ' loo ,attn_lrp'])
def test_several_methods_as_one_string(demo, said):
    one = audit(*demo, TEXTS[:1], said, **QUIET)
    listed = audit(*demo, TEXTS[:1], ['loo', 'attn_lrp'], **QUIET)
    columns = ['loo_r', 'delta']
    pd.testing.assert_frame_equal(one[columns], listed[columns])


@pytest.mark.parametrize('said', ['loo, attn_lrp', ['loo'], ('loo', 'ig')])
def test_explain_says_that_it_takes_one(demo, said):
    with pytest.raises(ValueError, match='take one of loo.*one a call.*compare'):
        explain(*demo, TEXTS[:1], said)


@pytest.mark.parametrize('device', ['cpu', torch.device('cpu')])
def test_a_device_that_is_there(demo, maps, device):
    same(explain(*demo, TEXTS, device=device), maps)
    assert audit(*demo, TEXTS[:1], 'loo', device=device, **QUIET).n['loo'] == 1


@pytest.mark.parametrize('call', [explain, audit])
def test_a_device_that_is_not_there(demo, call):
    with pytest.raises(ValueError, match="'cuda:99' is not to be had here"):
        call(*demo, TEXTS, device='cuda:99')
    with pytest.raises(ValueError, match='meta device holds no weights'):
        call(*demo, TEXTS, device='meta')
    assert next(demo[0].parameters()).device.type == 'cpu'


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_the_model_is_moved_and_stays(tokenizer):
    model = tiny(transformers.BertForSequenceClassification, tokenizer)
    explain(model, tokenizer, TEXTS, device='cuda')
    assert next(model.parameters()).device.type == 'cuda'
    explain(model, tokenizer, TEXTS)
    assert next(model.parameters()).device.type == 'cuda'


# ------------------------------------------------------------ models


class Wrapper(torch.nn.Module):
    "As one writes it, without a thought of modes."

    def __init__(self, model, dropout=0.0):
        super().__init__()
        self.model = model
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, input_ids, attention_mask=None):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return self.dropout(out.logits)


def test_a_wrapper_around_an_eval_model_is_understood(demo, maps):
    model, tokenizer = demo
    wrapped = Wrapper(model)
    assert wrapped.training
    same(explain(wrapped, tokenizer, TEXTS), maps)


def test_a_wrapper_that_drops_something_is_refused(demo):
    model, tokenizer = demo
    with pytest.raises(ValueError, match='training mode'):
        explain(Wrapper(model, 0.1), tokenizer, TEXTS)


def tiny(kind, tokenizer, **config):
    "A small random model of BERT's family."
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return kind(transformers.BertConfig(**sizes | config)).eval()


MASKED = 'The [MASK] was slow, and never funny.'


def masked_model(tokenizer):
    return tiny(transformers.BertForMaskedLM, tokenizer)


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'removal', 'ig'])
def test_a_masked_word(tokenizer, method):
    model = masked_model(tokenizer)
    (a,) = explain(model, tokenizer, MASKED, method, target='film')
    assert a.label == 'film'
    assert a.info['token_at_position'] == '[MASK]'
    with torch.no_grad():
        out = model(**tokenizer(MASKED, return_tensors='pt')).logits[0, 2]
    wanted = tokenizer.convert_tokens_to_ids('film')
    assert a.logit == pytest.approx(float(out[wanted]), abs=1e-5)
    share = float(out.softmax(-1)[wanted])
    assert a.probability == pytest.approx(share, rel=1e-3)


def test_masked_words_are_audited_and_come_as_a_pipeline(tokenizer):
    model = masked_model(tokenizer)
    table = audit(model, tokenizer, [MASKED, MASKED], 'cp_lrp', target='film', **QUIET)
    assert table.n['cp_lrp'] == 1  # one is a copy
    pipe = transformers.pipeline(
        'fill-mask', model=model, tokenizer=tokenizer, device='cpu'
    )
    same(explain(pipe, None, MASKED), explain(model, tokenizer, MASKED))


NAMES = {0: 'O', 1: 'PER', 2: 'LOC'}


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'removal', 'rollout'])
def test_a_tagger(tokenizer, method):
    kind = transformers.BertForTokenClassification
    model = tiny(
        kind, tokenizer, id2label=NAMES, label2id={v: k for k, v in NAMES.items()}
    )
    text = 'Anna left Rome.'
    with pytest.raises(ValueError, match=r'Target\(position=...\)'):
        explain(model, tokenizer, text)
    asked = Target('LOC', position=3)
    (a,) = explain(model, tokenizer, text, method, target=asked)
    assert (a.target, a.label) == (2, 'LOC')
    assert a.info['token_at_position'] == 'rome'
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors='pt')).logits[0, 3]
    assert a.probability == pytest.approx(float(out.softmax(-1)[2]), rel=1e-4)
    pipe = transformers.pipeline(
        'token-classification', model=model, tokenizer=tokenizer, device='cpu'
    )
    same(explain(pipe, None, text, method, target=asked), [a])


@pytest.fixture(scope='module')
def quantized(demo):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # where quantization will live
        return torch.ao.quantization.quantize_dynamic(
            demo[0], {torch.nn.Linear}, dtype=torch.qint8
        )


def test_loo_of_an_int8_model_is_exact(demo, quantized):
    "Its numbers are rounded by what shares a batch, so each variant is alone."
    _, tokenizer = demo
    (a,) = explain(quantized, tokenizer, TEXTS[1], 'loo')
    enc = tokenizer(TEXTS[1], return_tensors='pt')
    with torch.no_grad():
        whole = float(quantized(**enc).logits[0, a.target])
        for i, score in enumerate(a.scores.tolist()):
            mask = enc['attention_mask'].clone()
            mask[0, i] = 0
            out = quantized(**enc | dict(attention_mask=mask)).logits
            assert score == pytest.approx(
                whole - float(out[0, a.target]), abs=1e-4 * abs(whole)
            )


@pytest.mark.parametrize('method', ['attn_lrp', 'ig', 'removal', 'grad_x_input'])
def test_gradients_of_an_int8_model_are_refused(demo, quantized, method):
    with pytest.raises(ValueError, match='no gradient comes.*[Qq]uantized'):
        explain(quantized, demo[1], TEXTS[1], method)


# ------------------------------------------------------------ probability


def test_of_one_of_several_classes(demo, maps):
    model, tokenizer = demo
    for a, text in zip(maps, TEXTS):
        with torch.no_grad():
            out = model(**tokenizer(text, return_tensors='pt')).logits[0]
        share = float(out.softmax(-1)[a.target])
        assert a.probability == pytest.approx(share, abs=1e-5)


def of_problem(tokenizer, problem, n=3, **options):
    model = tiny(
        transformers.BertForSequenceClassification,
        tokenizer,
        num_labels=n,
        problem_type=problem,
    )
    return explain(model, tokenizer, TEXTS[0], **options)[0]


def test_a_plain_module_has_none(demo):
    model, tokenizer = demo
    (a,) = explain(Wrapper(model), tokenizer, TEXTS[0])
    assert a.probability is None
    assert 'probability' not in a._repr_html_()


def test_it_stands_beside_the_logit(maps):
    for a in maps:
        said = f'· probability {html.escape(in_thousandths(a.probability))}'
        assert said in a._repr_html_()


# ------------------------------------------------------------ what comes out


def test_an_explanation_is_a_sequence(maps):
    a = maps[0]
    assert [t.token for t in a] == a.tokens
    assert [t.score for t in a] == a.scores.tolist()
    assert a[3] == a[3 - len(a)]
    assert a[3].place == 3
    assert a[1:3] == [a[1], a[2]]
    with pytest.raises(IndexError, match=f'place {len(a)} of {len(a)} tokens'):
        a[len(a)]
    with pytest.raises(TypeError, match=r"a place, or a slice, got 'film'"):
        a['film']


def test_the_top_tokens(maps):
    a = maps[0]
    content = a.scores[~a.is_special].abs().sort(descending=True).values
    assert [abs(t.score) for t in a.top(4)] == content[:4].tolist()
    assert len(a.top(99, special=True)) == len(a)
    assert len(a.top(99)) == len(a) - 2


def test_a_frame_of_one(maps):
    frame = maps[0].to_frame()
    assert list(frame.columns) == ['token', 'score', 'is_special', 'start', 'end']
    assert len(frame) == len(maps[0])
    content = frame[~frame.is_special]
    written = [TEXTS[0][s:e] for s, e in zip(content.start, content.end)]
    assert ''.join(written) == TEXTS[0].replace(' ', '')
    assert frame.start.isna().tolist() == frame.is_special.tolist()


def test_a_frame_of_a_pair_says_which_part(demo):
    pair = ('A fine film.', 'Or so they say.')
    frame = explain(*demo, [pair])[0].to_frame()
    for row in frame[~frame.is_special].itertuples():
        assert pair[row.part][row.start : row.end].lower() == row.token


def test_a_frame_with_intervals(demo):
    nine = [f"{n} {text}" for text in TEXTS for n in ("one", "two", "three")]
    calibration = lrp_loo.calibrate(*demo, nine, **QUIET)
    (a,) = explain(*demo, TEXTS[0], 'removal', calibration=calibration)
    frame = a.to_frame()
    content = frame[~frame.is_special]
    assert (content.low <= content.high).all()
    assert frame.low.isna().tolist() == frame.is_special.tolist()


def test_a_frame_of_an_encoding_knows_no_characters(demo):
    (a,) = explain(*demo, demo[1](TEXTS[:1]))
    assert list(a.to_frame().columns) == ['token', 'score', 'is_special']


def test_a_list_is_a_list(demo, maps):
    assert isinstance(maps, list)
    assert type(maps) is Attributions
    assert type(maps[1:]) is Attributions
    assert maps == [*maps]
    assert maps[0] is [*maps][0]
    assert explain(*demo, TEXTS[0]) != maps


def test_a_frame_of_all(maps):
    frame = maps.to_frame()
    assert frame.text.tolist() == [i for i, a in enumerate(maps) for _ in range(len(a))]
    second = frame[frame.text == 1].drop(columns='text')
    pd.testing.assert_frame_equal(second.reset_index(drop=True), maps[1].to_frame())
    assert len(Attributions().to_frame()) == 0


@pytest.mark.parametrize('what', ['one', 'all', 'labels'])
def test_a_csv(demo, maps, tmp_path, what):
    of = dict(one=maps[0], all=maps)
    found = of.get(what) or explain_labels(*demo, TEXTS[0])[0]
    found.to_csv(tmp_path / 'a.csv')
    back = pd.read_csv(tmp_path / 'a.csv')
    frame = found.to_frame()
    assert list(back.columns) == list(frame.columns)
    assert back.token.tolist() == frame.token.tolist()
    assert np.allclose(back.score, frame.score, rtol=1e-12)
    with pytest.raises(ValueError, match=r'must end in .csv'):
        found.to_csv(tmp_path / 'a.txt')


@pytest.mark.parametrize('suffix', ['html', 'json', 'parquet'])
def test_a_list_to_a_file_and_back(maps, tmp_path, suffix):
    path = tmp_path / f'a.{suffix}'
    maps.save(path)
    back = load(path)
    assert type(back) is Attributions
    for a, b in zip(back, maps):
        assert a.scores.equal(b.scores)
        assert a.info == b.info
        assert a.probability == b.probability


# ------------------------------------------------------------ as it was written


def written(a):
    return ''.join(' ' * gap + text for gap, text in shown_places(a))


def test_case_and_spaces_are_the_readers(maps):
    for a, text in zip(maps, TEXTS):
        assert written(a) == f'[CLS] {text} [SEP]'


def test_a_record_without_its_text_shows_its_tokens(demo):
    (a,) = explain(*demo, demo[1](TEXTS[:1]))
    assert 'unforgettable' in written(a)


def test_a_byte_level_vocabulary_shows_letters_once():
    model, tokenizer = lrp_loo.load_demo('reviews')
    text = 'Très bien 🎬 fin.\nOver'
    (a,) = explain(model, tokenizer, text)
    shown = written(a).removeprefix('<s>').strip()
    for mark in '·␣↵':  # bytes of a letter, a space, a line's end
        shown = shown.replace(mark, '' if mark == '·' else ' ')
    assert shown.split() == text.split()


# ------------------------------------------------------------ the page


@pytest.fixture(scope='module')
def page(demo):
    return page_data(*demo, TEXTS[0], ['loo', 'cp_lrp', 'ig'], opens='ig')


def test_the_page_shows_what_was_written(page):
    shown = ''.join(' ' * t['gap'] + t['shown'] for t in page['tokens'])
    assert shown == f'[CLS] {TEXTS[0]} [SEP]'


def test_the_page_knows_the_words(page, demo):
    (words,) = explain(*demo, TEXTS[0], 'cp_lrp', units='word')
    sums = [0.0] * len(words)
    for token, score in zip(page['tokens'], page['methods']['cp_lrp']):
        sums[token['word']] += score
    assert sums == pytest.approx(words.scores.tolist(), abs=1e-4)


def test_the_page_opens_with_what_was_asked_for(page, demo):
    assert page['first'] == dict(method='ig', bypass='')
    other = page_data(*demo, 'fine', ['loo'], bypass_softmax=[4, 1])
    assert other['first'] == dict(method='attn_lrp', bypass='1,4')
    assert '1,4' in other['sets']


def test_a_set_that_a_deep_page_lacks_is_added(demo, monkeypatch):
    monkeypatch.setattr('lrp_loo.reports.page.EVERY_SET', (2, 128))
    data = page_data(*demo, 'fine', ['loo'], bypass_softmax=[1, 4])
    assert data['every_set'] is False
    (a,) = explain(*demo, 'fine', bypass_softmax=[1, 4])
    assert data['sets']['1,4'] == pytest.approx(a.scores.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(opens='rollout'), "opens='rollout' is not on the page"),
        (dict(bypass_softmax=[9]), 'from 0 to 5, got 9'),
        (dict(bypass_softmax=[(1, 2)]), 'whole layers'),
    ],
)
def test_a_page_that_cannot_open_so(demo, options, said):
    with pytest.raises(ValueError, match=said):
        page_data(*demo, 'fine', ['loo'], **options)


# ------------------------------------------------------------ help

PUBLIC = sorted(name for name in lrp_loo._PUBLIC if callable(getattr(lrp_loo, name)))


def squeezed(text):
    return ' '.join((text or '').split())


@pytest.mark.parametrize('name', PUBLIC)
def test_help_says_every_parameter(name):
    thing = getattr(lrp_loo, name)
    if thing.__init__ is list.__init__:
        pytest.skip('a list is made as any list')
    doc = squeezed(thing.__doc__)
    comments = docments(thing, args_kwargs=True)
    for parameter in inspect.signature(thing).parameters:
        said = comments[parameter]
        assert said, f'{name}({parameter}) has no comment'
        assert parameter in doc
        assert squeezed(said) in doc


def test_the_log_of_a_softmax_is_refused_where_labels_go_together(demo):
    model, tokenizer = copy.deepcopy(demo[0]), demo[1]
    model.config.problem_type = 'multi_label_classification'
    target = Target('positive', log_prob=True)
    with pytest.raises(ValueError, match='logsigmoid'):
        explain(model, tokenizer, 'a fine film', target=target)


class OfFeatures(torch.nn.Module):
    "As sentence-transformers calls its models: a mapping, in one argument."

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30522, 4)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, features, **options):
        return self.embed(features['input_ids']).sum((1, 2))


def test_a_model_that_is_called_otherwise_is_refused_by_its_arguments(demo):
    model = OfFeatures().eval()
    with pytest.raises(ValueError, match='takes features.*input_ids'):
        explain(model, demo[1], 'a fine film', method='loo')


@pytest.mark.parametrize('method', ['loo', 'removal', 'removal+rows', 'rollout'])
def test_every_method_says_the_same_probability(demo, maps, method):
    (found,) = explain(*demo, TEXTS[0], method=method)
    # of two passes that share no product
    assert found.probability == pytest.approx(maps[0].probability, abs=1e-4)


def test_a_tensor_of_a_class_that_names_no_classes_has_no_probability(demo):
    class Scored(torch.nn.Module):
        "A config, but numbers that may be anything."

        def __init__(self, model):
            super().__init__()
            self.model = model
            self.config = model.config

        def get_input_embeddings(self):
            return self.model.get_input_embeddings()

        def forward(self, **inputs):
            return self.model(**inputs).logits

    model = Scored(demo[0]).eval()
    for method in ('attn_lrp', 'loo'):
        assert explain(model, demo[1], 'fine', method=method)[0].probability is None


# ------------------------------------------------------------ four bits


class Codes(torch.nn.Module):
    "A linear layer as whole numbers and scales, as weight-only quantizers do."

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        self.scale = weight.abs().amax(1, keepdim=True) / 7
        self.codes = (weight / self.scale).round().to(torch.int8)
        self.bias = linear.bias

    def weight(self):
        return self.codes * self.scale

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight(), self.bias)


class OwnKernel(torch.autograd.Function):
    "As bitsandbytes has one: a product and its way back to the input."

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0], None, None


class CodesByKernel(Codes):
    def forward(self, x):
        return OwnKernel.apply(x, self.weight(), self.bias)


def with_codes(model, kind):
    "Every linear layer of the encoder replaced, and a model with those weights."
    coded, rounded = copy.deepcopy(model), copy.deepcopy(model)
    for path, layer in list(coded.base_model.encoder.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            parent, _, name = path.rpartition('.')
            new = kind(layer)
            setattr(coded.base_model.encoder.get_submodule(parent), name, new)
            dense = rounded.base_model.encoder.get_submodule(path)
            dense.weight.data = new.weight()
    return coded, rounded


@pytest.mark.parametrize('method', ['loo', 'ig', 'removal', 'attn_lrp', 'cp_lrp'])
@pytest.mark.parametrize('kind', [Codes, CodesByKernel])
def test_four_bit_weights_are_explained_as_the_rounded_ones(demo, method, kind):
    model, tokenizer = demo
    coded, rounded = with_codes(model, kind)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        found = explain(coded, tokenizer, TEXTS[1], method)
    same(found, explain(rounded, tokenizer, TEXTS[1], method))
    same_before = found[0].scores - explain(*demo, TEXTS[1], method)[0].scores
    assert same_before.abs().max() > 1e-3  # four bits are felt
    named = any('OwnKernelBackward' in str(w.message) for w in said)
    by_rules = method in ('removal', 'attn_lrp', 'cp_lrp')
    assert named == (by_rules and kind is CodesByKernel)


def test_a_bar_in_a_notebook_warns_of_nothing():
    "Where ipywidgets is missing, too."
    code = "import warnings, lrp_loo; warnings.warn('IProgress not found.')"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')


PROBABLE = {
    'of labels that stand alone': (
        dict(problem='multi_label_classification'),
        lambda a: torch.tensor(a.logit).sigmoid().item(),
    ),
    'of a logarithm': (dict(target=Target(log_prob=True)), lambda a: np.exp(a.logit)),
    'of a regression': (dict(problem='regression', n=1), None),
    'of one number': (dict(n=1), None),
    'of a difference': (dict(target=(1, 0)), None),
    'of a function': (dict(target=lambda out: out.logits[:, 0]), None),
}


@pytest.mark.parametrize('options, wanted', PROBABLE.values(), ids=PROBABLE)
def test_the_probability(tokenizer, options, wanted):
    a = of_problem(tokenizer, **dict(problem=None) | options)
    if wanted is None:
        assert a.probability is None
    else:
        assert a.probability == pytest.approx(wanted(a), abs=1e-6)


@pytest.mark.parametrize(
    'labels, options, said',
    [(x, {}, 'cannot be meant; take a list') for x in ('positive', [], 1, None)]
    + [((), dict(target=1), 'target= as well')],
)
def test_labels_that_cannot_be_meant(demo, labels, options, said):
    with pytest.raises(ValueError, match=said):
        explain_labels(*demo, TEXTS, *([] if labels == () else [labels]), **options)


def test_an_audit_of_a_label(demo):
    by_name = audit(*demo, TEXTS, 'cp_lrp', target='positive', **QUIET)
    by_number = audit(*demo, TEXTS, 'cp_lrp', target=1, **QUIET)
    pd.testing.assert_frame_equal(by_name, by_number)


@pytest.mark.parametrize('labels', ['positive', [], 1, None])
def test_labels_are_a_list(demo, labels):
    with pytest.raises(ValueError, match='cannot be meant; take a list'):
        explain_labels(*demo, TEXTS, labels)


def test_labels_and_a_target_are_too_much(demo):
    with pytest.raises(ValueError, match='target= as well'):
        explain_labels(*demo, TEXTS, target=1)


def test_a_method_as_one_string(demo):
    one = audit(*demo, TEXTS[:1], 'attn_lrp', **QUIET)
    listed = audit(*demo, TEXTS[:1], ['attn_lrp'], **QUIET)
    pd.testing.assert_frame_equal(one, listed)
    with pytest.raises(ValueError, match="'attnlrp'"):
        audit(*demo, TEXTS[:1], 'attnlrp', **QUIET)


def test_a_wrapper_around_a_model_in_training_is_refused(tokenizer):
    model = tiny(transformers.BertForSequenceClassification, tokenizer)
    with pytest.raises(ValueError, match='training mode'):
        explain(Wrapper(model.train()), tokenizer, TEXTS)


def test_of_labels_that_stand_alone(tokenizer):
    a = of_problem(tokenizer, 'multi_label_classification')
    alone = torch.tensor(a.logit).sigmoid().item()
    assert a.probability == pytest.approx(alone, abs=1e-6)
