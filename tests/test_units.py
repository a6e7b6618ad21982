"Words and sentences of any script, by Unicode's own rules."

import sys
import unicodedata

import pytest
import torch
from conftest import demo_or_skip
from small_tokenizers import decoder_for, of_sentencepiece
from tokenizers import AddedToken, normalizers

from lrp_loo import attribute_context, explain, load_demo, refine
from lrp_loo.inputs.units import Units, text_spans, text_units, token_spans


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
    a = refine(explain(*demo, pair, passes=3, among='hypothesis')[0], 8)
    assert a.is_content.tolist() == [k == 1 for k in enc.sequence_ids()]
    assert a.content_is_exact and not a.exact


# ---- a unit is named by the text of its tokens, and no word is lost

CHINESE, THAI = '我爱这部电影', 'สวัสดีชาวโลก'
JOINED = {
    'Chinese': (CHINESE, ['▁我爱', '这部', '电影'], ['我爱', '这部', '电影']),
    'across words': (
        CHINESE,
        ['▁我', '爱这', '部电', '影'],
        ['我', '爱这', '部电', '影'],
    ),
    'Thai': (THAI, ['▁สวัสดี', 'ชาวโลก'], ['สวัสดี', 'ชาวโลก']),
    'Japanese, part of a word': ('この映画', ['▁この映', '画'], ['この映', '画']),
    'a word that goes on': ('のカメラ.', ['▁のカ', 'メラ'], ['のカメラ', '.']),
    'punctuation': ('fine",ok', ['▁fine",', 'ok'], ['fine",', 'ok']),
}


@pytest.mark.parametrize('text, pieces, units', JOINED.values(), ids=JOINED)
def test_words_in_one_token_are_one_unit_by_their_text(text, pieces, units):
    tokenizer = of_sentencepiece(pieces)
    (a,) = explain(decoder_for(tokenizer), tokenizer, text, 'loo', units='word')
    assert a.tokens == units
    assert [text[start:end] for _, start, end in a.info['spans']] == units


def test_an_added_token_over_two_words_is_one_unit():
    tokenizer = of_sentencepiece(['▁The', '▁fox'])
    tokenizer.add_tokens([AddedToken('quick brown', normalized=False)])
    call = decoder_for(tokenizer), tokenizer, 'The quick brown fox', 'loo'
    (a,) = explain(*call, units='word')
    assert a.tokens == ['The', 'quick brown', 'fox']
    (a,) = explain(*call, units=[(4, 9)])  # a span that ends inside of the token
    assert a.tokens == ['quick brown']
    (a,) = explain(*call, units=[(4, 9), (10, 19)])
    assert a.tokens == ['quick brown', ' fox']
    with pytest.raises(ValueError, match='no token begins in the span .10, 15.'):
        explain(*call, units=[(4, 9), (10, 15)])


def test_a_special_token_in_a_text_is_in_no_word():
    tokenizer = of_sentencepiece(['▁The', '▁fox'])
    text = 'The fox<s>The.'
    (a,) = explain(decoder_for(tokenizer), tokenizer, text, 'loo', units='word')
    assert [t.token for t in a if t.is_special] == ['<s>']
    assert [
        t.token for t in a if t.is_content and t.token != '▁'
    ] == 'The fox The .'.split()


WITHOUT_ACCENTS = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
MARKED = {
    'stripped': ('cafe\u0301 noir', ['▁cafe', '▁noir'], WITHOUT_ACCENTS),
    'composed': ('cafe\u0301 noir', ['▁café', '▁noir'], normalizers.NFC()),
    'two marks': ('o\u0323\u0302 noir', ['▁ộ', '▁noir'], normalizers.NFC()),
    'Korean letters': (
        unicodedata.normalize('NFD', '한국 noir'),
        ['▁한국', '▁noir'],
        normalizers.NFC(),
    ),
    'a mark of compatibility': ('ﬁ\u0301 noir', ['▁fí', '▁noir'], normalizers.NFKC()),
}


@pytest.mark.parametrize('units', ['word', 'token'])
@pytest.mark.parametrize('text, pieces, normalizer', MARKED.values(), ids=MARKED)
def test_a_mark_belongs_to_the_span(text, pieces, normalizer, units):
    tokenizer = of_sentencepiece(pieces, normalizer)
    (a,) = explain(decoder_for(tokenizer), tokenizer, text, 'loo', units=units)
    first, second = (text[start:end] for _, start, end in a.info['spans'])
    assert [first, second.strip()] == text.split()


def test_an_accent_that_berts_tokenizer_strips_belongs_to_the_span(demo):
    text = 'un cafe\u0301, de\u0301ja\u0300 vu'
    (a,) = explain(*demo, text, passes=3, target=0)
    spans = [text[s[1] : s[2]] for s in a.info['spans'] if s]
    assert ''.join(spans) == text.replace(' ', '')


HELD = [(text, pieces, None) for text, pieces, _ in JOINED.values()]
HELD += MARKED.values()
HELD += [('The fox<s>The quick, quick fox.', ['▁The', '▁fox', '▁quick,'], None)]
KINDS = ['word', 'sentence', str.split, [(0, 2), (4, 7)], [[(0, 2), (5, 6)]]]


@pytest.mark.parametrize('kind', KINDS, ids=str)
@pytest.mark.parametrize(('text', 'pieces', 'normalizer'), HELD)
def test_a_unit_holds_its_tokens_and_no_other(text, pieces, normalizer, kind):
    "Its name is the text from its first token's to its last token's characters."
    tokenizer = of_sentencepiece(pieces, normalizer)
    enc = tokenizer(text, return_tensors='pt')
    try:
        units = text_units(tokenizer, enc, text, kind)
    except ValueError as e:  # a span in which no token begins, or outside
        assert not callable(kind) and 'span' in str(e)
        return
    spans = token_spans(tokenizer, (text,), enc['input_ids'][0])
    places = {k: [] for k in range(-1, len(units))}  # visible characters
    for k, span in zip(units.number.tolist(), spans):
        is_special = k >= 0 and units.is_special[k]  # one in the middle of a sentence
        characters = range(*span[1:]) if span and not is_special else ()
        places[k] += [c for c in characters if not text[c].isspace()]
    assert sum(map(len, places.values())) > 0
    for k, name in enumerate(units.names):
        if not places[k]:  # named by its token
            continue
        inside = range(min(places[k]), max(places[k]) + 1)
        if kind is not KINDS[-1]:  # of one span
            assert text[inside[0] : inside[-1] + 1] == name.strip()
            assert not any(c in inside for i in places if i != k for c in places[i])
        else:
            assert all(part.strip() in text for part in name.split(' … '))
    with pytest.raises(ValueError, match='do not hold a token'):
        Units(torch.tensor([0, 0]), ['a', 'b'], torch.zeros(2, dtype=torch.bool))


# ---- white space around a passage is the template's

AROUND = [
    'Docs:\n{context}\nQ: {question}\nA:',
    'Docs:\n\n{context}\n\nQ: {question}\nA:',
    '\t{context}\t{question}',
    'Read this.  \n {context} \n\n{question}',
]


@pytest.mark.parametrize('template', AROUND)
def test_a_sentence_has_no_white_space_of_the_template(template):
    model, tokenizer = load_demo('reviews')
    passages = ['The plot is thin.', 'The cast is fine.']
    call = model, tokenizer, passages, ' good', 'Is it good?', 'loo'
    by_sentence, by_passage = (
        attribute_context(*call, units, template) for units in ('sentence', 'passage')
    )
    assert by_sentence.tokens == passages
    assert by_sentence.scores.tolist() == by_passage.scores.tolist()
    text = by_sentence.info['template'].replace('{question}', 'Is it good?')
    for i, passage in enumerate(passages, 1):
        text = text.replace(f'{{passage {i}}}', passage)
    enc = tokenizer(text + ' good', return_offsets_mapping=True)
    ids, offsets = torch.tensor([enc['input_ids']]), enc['offset_mapping']
    n = len(tokenizer(text)['input_ids'])

    def log_prob(passage):
        "Without the tokens that hold a visible character of the passage."
        start = text.index(passage) if passage else len(text) + 9
        inside = range(start, start + len(passage))
        mask = [
            not any(c in inside and not text[c].isspace() for c in range(*span))
            for span in offsets
        ]
        with torch.no_grad():
            out = model(ids, attention_mask=torch.tensor([mask]).long())
        rows = out.logits[0, n - 1 : -1].log_softmax(-1)
        return float(rows.gather(1, ids[0, n:, None]).sum())

    whole = log_prob('')
    for score, passage in zip(by_sentence.scores.tolist(), passages):
        assert score == pytest.approx(whole - log_prob(passage), abs=1e-4)


@pytest.mark.parametrize('units', ['sentence', 'word'])
def test_a_chats_white_space_is_in_no_unit_of_the_context(units):
    model, tokenizer = load_demo('reviews')
    tokenizer.chat_template = "{% for m in messages %}Q:\n{{ m.content }}\n{% endfor %}"
    call = model, tokenizer, 'It is dull.', 'good'
    a, passage = (
        attribute_context(*call, method='loo', units=u) for u in (units, 'passage')
    )
    spaces = tokenizer('\n')['input_ids'][-1]
    of_units = [
        n for i, n in zip(a.input_ids.tolist(), a.info['unit_of_token']) if i == spaces
    ]
    assert set(of_units) == {-1}
    if units == 'sentence':
        assert a.scores.tolist() == passage.scores.tolist()


@pytest.mark.large
def test_smollm2_reads_a_passage_without_the_templates_white_space():
    model, tokenizer = demo_or_skip('smollm2')
    call = (
        model,
        tokenizer,
        ['Paris is big.', 'Rome is old.'],
        ' Paris',
        'Which is big?',
    )
    a, b = (
        attribute_context(*call, 'loo', units, AROUND[0])
        for units in ('sentence', 'passage')
    )
    assert a.scores.tolist() == b.scores.tolist()


REVIEW = 'A dull but funny film, so dull.'
DULL = [(2, 6), (26, 30)]  # both times


def logit_without(model, tokenizer, text, tokens, target):
    "Mask some tokens of a text by hand."
    enc = tokenizer(text, return_tensors='pt')
    enc['attention_mask'][0, tokens] = 0
    with torch.no_grad():
        return float(model(**enc).logits[0, target])


def test_a_unit_of_several_spans_is_removed_at_once(demo):
    model, tokenizer = demo
    (a,) = explain(model, tokenizer, REVIEW, 'loo', units=[DULL, (11, 16)])
    assert a.tokens == ['dull … dull', 'funny']
    tokens = tokenizer(REVIEW).tokens()
    places = [i for i, token in enumerate(tokens) if token == 'dull']
    assert len(places) == 2
    for score, masked in zip(a.scores, (places, [tokens.index('funny')])):
        without = logit_without(model, tokenizer, REVIEW, masked, a.target)
        assert float(score) == pytest.approx(a.logit - without, abs=1e-4)
    assert a.to_frame().start.isna().tolist() == [True, False]
    assert 'dull … dull' in a._repr_html_()
    # in a template, of an encoding, and summed by a gradient method
    template = 'Review: {text}'
    (b,) = explain(
        model, tokenizer, REVIEW, 'loo', units=[DULL, (11, 16)], template=template
    )
    whole = f'Review: {REVIEW}'
    inside = [i for i, t in enumerate(tokenizer(whole).tokens()) if t == 'dull']
    without = logit_without(model, tokenizer, whole, inside, b.target)
    assert float(b.scores[0]) == pytest.approx(b.logit - without, abs=1e-4)
    spans = [[(i, i + 1) for i in places]]
    encoding = tokenizer(REVIEW, return_tensors='pt')
    (c,) = explain(model, tokenizer, encoding, 'loo', units=spans)
    assert float(c.scores[0]) == pytest.approx(float(a.scores[0]), abs=1e-4)
    assert c.tokens == ['dull … dull']
    single, both = (
        explain(model, tokenizer, REVIEW, 'grad_x_input', units=units)[0].scores
        for units in ([*DULL], [DULL])
    )
    assert float(both[0]) == pytest.approx(float(single.sum()), rel=1e-5)
    with pytest.raises(ValueError, match='overlap'):
        explain(model, tokenizer, REVIEW, units=[DULL, (3, 8)])


def test_units_are_what_a_function_of_the_text_returns(demo):
    model, tokenizer = demo
    (a,) = explain(model, tokenizer, REVIEW, 'loo', units=str.split)
    assert a.tokens == REVIEW.split()
    place = tokenizer(REVIEW).tokens().index('film')
    without = logit_without(model, tokenizer, REVIEW, [place, place + 1], a.target)
    assert float(a.scores[4]) == pytest.approx(a.logit - without, abs=1e-4)
    # of each text; in a template it reads the text alone
    read = []

    def units(text):
        read.append(text)
        return [DULL, (11, 16)] if text == REVIEW else [(0, 4)]

    texts = [REVIEW, 'Fine film.']
    maps = explain(model, tokenizer, texts, units=units, template='It: {text}')
    assert [b.tokens for b in maps] == [['dull … dull', 'funny'], ['Fine']]
    assert read == texts
    # pieces that share a token are one unit, as words are
    (b,) = explain(model, tokenizer, 'film', units=lambda text: ['fi', 'lm'])
    assert b.tokens == ['film']
    with pytest.raises(ValueError, match="'FILM', which is not in the text"):
        explain(model, tokenizer, 'film', units=lambda text: ['FILM'])


@pytest.mark.parametrize('units', ['word', 'sentence'])
def test_the_work_grows_with_the_text_not_with_its_square(units):
    tokenizer = load_demo('reviews')[1]  # a line's end is a token of white space

    def n_calls(lines):
        text, calls = 'a dull film .\n' * lines, []
        enc = tokenizer(text, return_tensors='pt')
        sys.setprofile(lambda frame, event, arg: calls.append(event))
        try:
            text_units(tokenizer, enc, text, units, [(0, len(text))])
        finally:
            sys.setprofile(None)
        return len(calls)

    assert n_calls(120) < 1.2 * 4 * n_calls(30)
