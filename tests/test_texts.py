"Entities, choices and long texts: each number against one computed by hand."

import pytest
import torch
from transformers import BertConfig, BertForMultipleChoice
from transformers import BertForSequenceClassification, BertForTokenClassification
from transformers import RobertaConfig, RobertaForMultipleChoice

from lrp_loo import explain, explain_choices, explain_entities, explain_windows
from lrp_loo import load_demo
from lrp_loo.tasks.classifiers import tagged_entities, window_spans

SIZES = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)
TAGS = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
TEXT = 'Ada met Grace near Lake Como , and nobody else was there'


def random(kind, config=BertConfig, **more):
    torch.manual_seed(0)
    model = kind(config(**SIZES, **more)).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model


@pytest.fixture(scope='module')
def tokenizer():
    return load_demo('sst2')[1]


@pytest.fixture(scope='module')
def tagger():
    model = random(BertForTokenClassification, id2label=dict(enumerate(TAGS)))
    model.classifier.bias.data[0] -= 1
    return model


@torch.no_grad()
def loo(model, batch, number):
    "One forward pass without each token."
    n = batch['input_ids'].shape[-1]
    found = []
    for i in range(n):
        less = dict(batch, attention_mask=batch['attention_mask'].clone())
        less['attention_mask'][..., i] = 0
        found.append(number(model(**less).logits))
    return number(model(**batch).logits) - torch.stack(found)


@pytest.mark.parametrize('text', [TEXT, TEXT.split()], ids=['str', 'words'])
def test_every_entity_is_explained_at_its_first_token(tagger, tokenizer, text):
    (maps,) = explain_entities(tagger, tokenizer, [text], 'loo')
    batch = dict(tokenizer(TEXT, return_tensors='pt'))
    best = tagger(**batch).logits[0].argmax(-1).tolist()
    ids = tokenizer(TEXT).word_ids()
    firsts = [ids.index(k) for k in range(len(TEXT.split()))]
    wanted = tagged_entities([TAGS[best[p]] for p in firsts])
    assert len(wanted) > 1 and len(maps) == len(wanted)
    for a, (kind, start, end) in zip(maps, wanted):
        place = firsts[start]
        assert a.info['entity']['kind'] == kind == TAGS[a.target][2:]
        assert a.info['entity']['text'] == ' '.join(TEXT.split()[start:end])
        assert a.info['entity']['words'] == [start, end]
        first, last = a.info['entity']['tokens']
        assert [ids[i] for i in (first, last - 1)] == [start, end - 1]
        assert ids[last] != end - 1 and a.info['position'] == first == place
        exact = loo(tagger, batch, lambda x, p=place, c=a.target: x[0, p, c])
        assert (a.scores - exact).abs().max() < 1e-4


def test_words_that_were_split_are_units(tagger, tokenizer):
    words = ['New', 'York-based', 'UNFORGETTABLE']
    (maps,) = explain_entities(tagger, tokenizer, [words], 'loo', units='word')
    enc = tokenizer(words, is_split_into_words=True, return_tensors='pt')
    ids = enc.word_ids()
    assert len(ids) > 5 and maps
    for a in maps:
        assert a.tokens == ['[CLS]', *words, '[SEP]']
        place = a.info['position']
        with torch.no_grad():
            whole = tagger(**enc).logits[0, place, a.target]
            for k in range(3):
                seen = torch.tensor([[int(w != k) for w in ids]])
                less = tagger(**dict(enc) | dict(attention_mask=seen))
                without = less.logits[0, place, a.target]
                assert abs(a.scores[1 + k] - (whole - without)) < 1e-4


def test_a_text_without_an_entity(tagger, tokenizer):
    model = random(BertForTokenClassification, id2label=dict(enumerate(TAGS)))
    model.classifier.bias.data[0] += 99
    assert explain_entities(model, tokenizer, [TEXT, 'no']) == [[], []]


@pytest.mark.parametrize(
    'kind, config',
    [(BertForMultipleChoice, BertConfig), (RobertaForMultipleChoice, RobertaConfig)],
)
def test_a_choice_is_read_as_among_the_others(tokenizer, kind, config):
    model = random(kind, config, vocab_size=30522, type_vocab_size=2)
    question, choices = 'The cup fell.', ['It broke.', 'It sang a long song.']
    maps = explain_choices(model, tokenizer, question, choices, 'loo')
    batch = tokenizer([question] * 2, choices, padding=True, return_tensors='pt')
    batch = {k: v[None] for k, v in batch.items()}
    with torch.no_grad():
        logits = model(**batch).logits[0]
    for i, a in enumerate(maps):
        assert (a.target, a.label) == (i, choices[i])
        assert a.logit == pytest.approx(float(logits[i]), abs=1e-4)
        assert a.info['choice']['chosen'] == int(logits.argmax())
        assert a.probability == pytest.approx(float(logits.softmax(0)[i]), abs=1e-5)
        exact = loo(model, batch, lambda x, i=i: x[0, i])
        assert (a.scores - exact[: len(a)]).abs().max() < 1e-4
    assert len(explain_choices(model, tokenizer, question, choices)) == 2


@pytest.mark.parametrize('n', [1, 7, 8, 23, 39])
def test_windows_cover_a_text(n):
    spans = window_spans(n, 7, 3)
    assert spans[0][0] == 0 and spans[-1][1] == n
    for (a, b), (c, d) in zip(spans, spans[1:]):
        assert b - c == 3 and d > b


def farthest_from_edges(spans):
    "For each token the window in which it is farther from an edge; text ends are none."
    n, found = spans[-1][1], []
    for token in range(n):
        room = []
        for start, end in spans:
            left = token - start if start else n
            right = end - 1 - token if end < n else n
            room.append(min(left, right) if start <= token < end else -1)
        found.append(room.index(max(room)))
    return found


@pytest.mark.parametrize('method', ['loo', 'attn_lrp', 'removal'])
def test_each_window_is_explained_by_itself(tokenizer, method):
    model = random(BertForSequenceClassification, max_position_embeddings=16)
    text = ' '.join(f'{w} film' for w in TEXT.split() * 2)
    (a,) = explain_windows(model, tokenizer, text, method, overlap=6)
    ids = tokenizer(text)['input_ids']
    n = len(ids) - 2
    spans = window_spans(n, 14, 6)
    assert len(spans) > 3 and a.input_ids.tolist() == ids
    cut = [[ids[0], *ids[1 + s : 1 + e], ids[-1]] for s, e in spans]
    with torch.no_grad():
        logits = torch.cat([model(torch.tensor([row])).logits for row in cut])
    assert a.target == int(logits.mean(0).argmax())
    assert a.logit == pytest.approx(float(logits[:, a.target].mean()), abs=1e-5)
    scores = []
    for row, window, logit, (s, e) in zip(cut, a.info['windows'], logits, spans):
        assert (window['start'], window['end']) == (1 + s, 1 + e)
        assert window['logit'] == pytest.approx(float(logit[a.target]), abs=1e-5)
        enc = dict(input_ids=torch.tensor([row]))
        scores.append(explain(model, tokenizer, enc, method, a.target)[0].scores)
    for i, w in enumerate(farthest_from_edges(spans)):
        assert abs(a.scores[1 + i] - scores[w][1 + i - spans[w][0]]) < 1e-5
    assert a.scores[0] == pytest.approx(float(scores[0][0]), abs=1e-5)
    assert a.scores[-1] == pytest.approx(float(scores[-1][-1]), abs=1e-5)
    assert not a.exact


def test_what_is_refused(tokenizer, tagger):
    unnamed = random(BertForTokenClassification, num_labels=3)
    chooser, training = random(BertForMultipleChoice), random(BertForMultipleChoice)
    training.train()
    classifier = load_demo('sst2')[0]
    texts = [('a', 'b')]
    for run, model, message, arguments, options in [
        (explain_entities, tagger, 'word 1, .* has no token', [[['a', '\u200b']]], {}),
        (explain_entities, tagger, 'the word is empty', [[['a', ' ']]], {}),
        (explain_entities, tagger, 'the word must be a str, got int', [[['a', 1]]], {}),
        (explain_entities, tagger, 'must be a str, got tuple', [texts], {}),
        (explain_entities, tagger, "'token' or 'word'", ['a'], dict(units='sentence')),
        (
            explain_entities,
            unnamed,
            "no tag 'O', for words outside of entities, but LABEL_0",
            ['a'],
            {},
        ),
        (explain_entities, classifier, 'got BertForSequenceClass', ['a'], {}),
        (explain_choices, chooser, 'two texts or more, got 1', ['a', ['b']], {}),
        (explain_choices, chooser, 'the choice is empty', ['a', ['b', ' ']], {}),
        (explain_choices, chooser, 'question must be a str', [*texts, ['b', 'c']], {}),
        (explain_choices, chooser, 'target', ['a', ['b', 'c']], dict(target=1)),
        (explain_choices, chooser, 'of images, got str', ['a', 'bc'], {}),
        (explain_choices, training, 'call model.eval', ['a', ['b', 'c']], {}),
        (explain, chooser, 'take explain_choices', ['a'], {}),
        (explain_windows, classifier, 'at least 0', ['a'], dict(overlap=-1)),
        (explain_windows, classifier, 'has 510 tokens', ['a'], dict(overlap=510)),
        (explain_windows, classifier, 'at least 3', ['a'], dict(max_length=2)),
        (explain_windows, classifier, 'units= is for', ['a'], dict(units='word')),
        (explain_windows, classifier, 'one for all texts', ['a'], dict(target=[1])),
        (explain_windows, classifier, 'tokens around it alone', ['a [SEP] b'], {}),
        (explain_windows, tagger, 'a row per token', ['a'], {}),
        (explain_windows, classifier, 'a str, got list', [[['a']]], {}),
        (explain, classifier, 'explain_windows', ['dull ' * 600], {}),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            run(model, tokenizer, *arguments, **options)
