"Words and sentences of any script, by Unicode's own rules."

import unicodedata

import pytest
import torch

from lrp_loo import attribute_context, explain, load_demo
from lrp_loo.inputs.units import text_spans


def cut(text, units):
    return [text[a:b] for a, b in text_spans(text, units)]


WORDS = {
    'Hindi': ('यह फ़िल्म बहुत अच्छी है।', ['यह', 'फ़िल्म', 'बहुत', 'अच्छी', 'है', '।']),
    'Bengali': ('ছবিটি ভালো।', ['ছবিটি', 'ভালো', '।']),
    'Tamil': ('படம் நன்று', ['படம்', 'நன்று']),
    'Arabic, with vowels': ('فِيلْمٌ جَمِيل', ['فِيلْمٌ', 'جَمِيل']),
    'Persian, with a joiner': ('می‌خواهم', ['می‌خواهم']),
    'Hebrew': ('סרט טוב מאוד', ['סרט', 'טוב', 'מאוד']),
    'Korean': ('영화가 좋다.', ['영화가', '좋다', '.']),
    'Greek': ('Ωραία ταινία;', ['Ωραία', 'ταινία', ';']),
    'Chinese': ('片子很慢。', ['片', '子', '很', '慢', '。']),
    'Japanese': ('このカメラは', ['こ', 'の', 'カメラ', 'は']),
    'Thai': ('หนังดี', ['ห', 'นั', 'ง', 'ดี']),
    'two scripts': ('2024年iPhone片', ['2024', '年', 'iPhone', '片']),
    'English': (
        "It isn't well-made: 3.5 stars, a_b x² — fine…",
        "It isn't well-made : 3 . 5 stars , a_b x² — fine …".split(),
    ),
    'pictures': ('fine 👩‍👩‍👧❤️!', ['fine', '👩‍👩‍👧', '❤️', '!']),
}


@pytest.mark.parametrize('form', ['NFC', 'NFD'])
def test_an_accent_written_apart_cuts_no_word(form):
    said = "L’été très-bon n'était déjà qu’un café."
    words = ["L’été", 'très-bon', "n'était", 'déjà', "qu’un", 'café', '.']
    found = cut(unicodedata.normalize(form, said), 'word')
    assert [unicodedata.normalize('NFC', w) for w in found] == words


SENTENCES = {
    'Chinese': (
        '片子很慢。“你看了吗？”他走了！',
        ['片子很慢。', '“你看了吗？”', '他走了！'],
    ),
    'Japanese': (
        '映画は長い。「でも好き。」うん',
        ['映画は長い。', '「でも好き。」', 'うん'],
    ),
    'wide full stops': ('１．５点です．次です｡', ['１．５点です．', '次です｡']),
    'Arabic': ('هل هو جيد؟ نعم. ربما', ['هل هو جيد؟', 'نعم.', 'ربما']),
    'Urdu': ('فلم اچھی ہے۔ سب خوش ہیں۔', ['فلم اچھی ہے۔', 'سب خوش ہیں۔']),
    'Hindi': ('फ़िल्म लंबी है। पर अच्छी है॥', ['फ़िल्म लंबी है।', 'पर अच्छी है॥']),
    'Ethiopic': ('ፊልሙ ጥሩ ነው። አዎ።', ['ፊልሙ ጥሩ ነው።', 'አዎ።']),
    'Armenian': ('Լավ է։ Այո։', ['Լավ է։', 'Այո։']),
    'English': (
        'Slow. Then "it works!" (Why?) Costs 3.5 dollars.\nNo end',
        ['Slow.', 'Then "it works!"', '(Why?)', 'Costs 3.5 dollars.', 'No end'],
    ),
}


CUT = [('word', *x) for x in WORDS.values()]
CUT += [('sentence', *x) for x in SENTENCES.values()]


@pytest.mark.parametrize('units, text, parts', CUT, ids=[*WORDS, *SENTENCES])
def test_words_and_sentences(units, text, parts):
    assert cut(text, units) == parts


def test_tokens_go_with_their_word():
    "A Hindi word's tokens are summed, marks and all; a Chinese context has sentences."
    text = 'अच्छी फ़िल्म'
    demo = load_demo('reviews')  # of bytes: no sign is unknown
    (words,) = explain(*demo, text, 'attn_lrp', units='word')
    (tokens,) = explain(*demo, text, 'attn_lrp')
    # a space that has a token of its own is a unit
    own = [t for t in words.tokens if t not in ('<s>', 'Ġ')]
    assert own == text.split()
    total = float(tokens.scores.sum())
    assert float(words.scores.sum()) == pytest.approx(total, rel=1e-4)
    a = attribute_context(*demo, '片子很慢。演员都很好。没有人笑！', ' good')
    assert a.tokens == ['片子很慢。', '演员都很好。', '没有人笑！']


def test_words_that_share_a_token_are_one_unit():
    "The decoder's tokenizer makes one token of a quotation mark and a comma."
    demo = load_demo('reviews')
    context = 'He called it "fine", then left (early). Nobody laughed.'
    a = attribute_context(*demo, context, ' good', units='word')
    assert ''.join(a.tokens) == context.replace(' ', '')
    assert '",' in a.tokens


def test_a_span_holds_the_tokens_of_its_characters_alone():
    "White space before it only if the span holds it, or if one token holds both."
    model, tokenizer = load_demo('reviews')
    text = 'A slow start.\nBut the\tending is good'
    spans = {(22, 28): ['e', 'nding'], (21, 28): ['ĉ', 'e', 'nding']}
    spans |= {(14, 17): ['B', 'ut'], (32, 36): ['Ġgood'], (31, 36): ['Ġgood']}
    ids = tokenizer(text, return_tensors='pt').input_ids
    names = tokenizer.convert_ids_to_tokens(ids[0])
    for span, tokens in spans.items():
        (a,) = explain(model, tokenizer, text, 'loo', units=[span])
        mask = torch.tensor([[int(name not in tokens) for name in names]])
        assert int((1 - mask).sum()) == len(tokens)
        with torch.no_grad():
            without = model(ids, attention_mask=mask).logits[0, -1, a.target]
        assert a.scores.item() == pytest.approx(a.logit - float(without), abs=1e-4)


def test_words_and_spans_of_an_encoding_and_one_text_of_a_pair(demo):
    pair = ('a long, dull film', 'an unpretentious one')
    enc = demo[1](*pair, return_tensors='pt')
    start, stop = enc.word_to_tokens(1, sequence_index=1)
    mask = enc['attention_mask'].clone().index_fill(1, torch.arange(start, stop), 0)
    without = demo[0](**{**enc, 'attention_mask': mask}).logits[0, 1].item()
    for units in ('word', [(start, stop)]):
        (a,) = explain(*demo, enc, 'loo', 1, units=units)
        score = a.scores[a.tokens.index('unpretentious')].item()
        assert stop - start > 1 and score == pytest.approx(a.logit - without, abs=1e-4)
    (a,) = explain(*demo, pair, passes=9, among='hypothesis')
    assert a.is_content.tolist() == [k == 1 for k in enc.sequence_ids()]
    assert a.content_is_exact and not a.exact
