"""Inputs that come in other forms: ids without a tokenizer, several numbers, texts that an
object cuts; the names of byte-level tokens. By hand: one pass with a token masked.
"""

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification

from lrp_loo import explain, explain_choices, explain_windows, load_demo

TEXT = 'A dull but funny film.'


def tiny(**options):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    config = BertConfig(**sizes, num_attention_heads=4, **options)
    model = BertForSequenceClassification(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model


@torch.no_grad()
def without(model, ids, place, target):
    mask = torch.ones_like(ids)
    mask[0, place] = 0
    return float(model(input_ids=ids, attention_mask=mask).logits[0, target])


@pytest.mark.parametrize('units', ['token', [(0, 2), (4, 5)]])
def test_ids_need_no_tokenizer(units):
    model, ids = tiny(vocab_size=50), torch.tensor([[3, 8, 21, 9, 40]])
    (a,) = explain(model, None, dict(input_ids=ids), 'loo', units=units)
    parts = [[i] for i in range(5)] if units == 'token' else [[0, 1], [4]]
    assert a.tokens == [' '.join(str(int(ids[0, i])) for i in p) for p in parts]
    for score, part in zip(a.scores.tolist(), parts, strict=True):
        rest = without(model, ids, part, a.target)
        assert score == pytest.approx(a.logit - rest, abs=1e-5)
    assert not a.is_special.any() and a.is_content.all()
    with pytest.raises(ValueError, match='units'):  # which a text has, not its ids
        explain(model, None, dict(input_ids=ids), units='word')
    with pytest.raises(TypeError, match='tokenizer'):
        explain(model, None, TEXT)


def test_of_several_regressions_one_is_named():
    tokenizer = load_demo('sst2')[1]
    model = tiny(num_labels=3, problem_type='regression')
    with pytest.raises(ValueError, match='3 numbers.*target=0 to 2'):
        explain(model, tokenizer, TEXT)
    (a,) = explain(model, tokenizer, TEXT, 'loo', target=2)
    ids = tokenizer(TEXT, return_tensors='pt')['input_ids']
    rest = without(model, ids, 2, 2)
    assert float(a.scores[2]) == pytest.approx(a.logit - rest, abs=1e-5)
    assert a.target == 2
    one = tiny(num_labels=1, problem_type='regression')
    assert explain(one, tokenizer, TEXT)[0].target == 0


def test_what_an_object_cuts_off_stands_in_the_record(tmp_path):
    tiny(num_labels=1).save_pretrained(tmp_path)
    load_demo('sst2')[1].save_pretrained(tmp_path)
    ranker = CrossEncoder(str(tmp_path), max_length=10, device='cpu')
    pair = ('Is it fine?', 'A dull story, with two actors.')
    (a,) = explain(ranker, None, [pair], 'loo')
    read = {part: end for part, _, end in filter(None, a.info['spans'])}
    n = sum(len(text[read[i] :]) for i, text in enumerate(pair))
    assert a.info['cut'] == n > 10
    assert f'{n} characters were cut off' in a._repr_html_()
    (whole,) = explain(ranker, None, [('Is it?', 'Fine.')], 'loo')
    assert 'cut' not in whole.info and 'cut off' not in whole._repr_html_()
    model, tokenizer = load_demo('sst2')
    (b,) = explain(model, tokenizer, TEXT, truncation=True, max_length=5)
    assert b.info['cut'] == len(' funny film.')


def test_byte_level_tokens_are_readable_as_on_the_page():
    model, tokenizer = load_demo('reviews')
    (a,) = explain(model, tokenizer, 'A naïve café.', 'grad_x_input')
    assert any('Ġ' in token for token in a.tokens)  # as the vocabulary has them
    assert 'Ġ' not in repr(a).partition('): ')[2]
    names = a.to_frame().token.tolist()
    assert not any('Ġ' in name or 'Ã' in name for name in names)
    top = a.top(len(a), special=True)
    assert {(t.place, t.token) for t in top} == set(enumerate(names))
    shown = ''.join(names)
    assert 'na' in shown and shown.startswith('<s>A')


@torch.no_grad()
def pair_logit(model, tokenizer, pair, part=None, word=''):
    "Return a pair's number, with the tokens of one word of a part masked."
    enc = tokenizer(*pair, return_tensors='pt')
    for i, (token, k) in enumerate(zip(enc.tokens(), enc.sequence_ids())):
        if part is not None and k == part and token == word:
            enc['attention_mask'][0, i] = 0
    return float(model(**enc).logits[0, 0])


def test_why_one_choice_stands_above_another():
    model, tokenizer = tiny(num_labels=1), load_demo('sst2')[1]
    question, choices = (
        'Is it fine?',
        ['A dull story.', 'Nobody laughed.', 'A fine film.'],
    )
    maps = explain_choices(model, tokenizer, question, choices, 'loo')
    pairs = [(question, choice) for choice in choices]
    logits = [pair_logit(model, tokenizer, pair) for pair in pairs]
    assert [a.logit for a in maps] == pytest.approx(logits, abs=1e-5)
    assert maps[0].info['choice']['chosen'] == logits.index(max(logits))
    a = explain_choices(model, tokenizer, question, choices, 'loo', contrast=(2, 0))
    assert a.logit == pytest.approx(logits[2] - logits[0], abs=1e-5)
    assert a.tokens == tokenizer.tokenize(' '.join([question, choices[2], choices[0]]))

    def by_hand(part, word, changed):
        values = list(logits)
        for k in changed:
            values[k] = pair_logit(model, tokenizer, pairs[k], part, word)
        return (logits[2] - logits[0]) - (values[2] - values[0])

    wanted = [
        by_hand(0, 'fine', (2, 0)),
        by_hand(1, 'film', (2,)),
        by_hand(1, 'dull', (0,)),
    ]
    places = [2, a.tokens.index('film'), a.tokens.index('dull')]
    assert a.scores[places].tolist() == pytest.approx(wanted, abs=1e-5)
    assert a.exact and a.label == 'A fine film. − A dull story.'
    assert a.to_frame().part.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert 'dull' in a._repr_html_()
    with pytest.raises(ValueError, match='two of the 3 choices'):
        explain_choices(model, tokenizer, question, choices, contrast=(0, 3))


def test_windows_of_a_pair_are_over_its_second_text():
    model, tokenizer = tiny(), load_demo('sst2')[1]
    first, second = 'Is it fine?', 'A dull story with a funny cast and two slow hours.'
    n = len(tokenizer.tokenize(first))
    (a,) = explain_windows(
        model, tokenizer, (first, second), 'loo', overlap=2, max_length=n + 3 + 6
    )
    words = tokenizer.tokenize(second)
    windows = [words[0:6], words[4:10], words[8:14]]
    front, ids = tokenizer(first)['input_ids'], tokenizer.convert_tokens_to_ids
    rows = [[*front, *ids(window), tokenizer.sep_token_id] for window in windows]

    @torch.no_grad()
    def logit(row, masked=None):
        types = [0] * len(front) + [1] * (len(row) - len(front))
        mask = torch.tensor([[int(i != masked) for i in range(len(row))]])
        inputs = dict(
            input_ids=torch.tensor([row]), token_type_ids=torch.tensor([types])
        )
        return float(model(**inputs, attention_mask=mask).logits[0, a.target])

    assert a.tokens == tokenizer.convert_ids_to_tokens(
        tokenizer(first, second)['input_ids']
    )
    numbers = [logit(row) for row in rows]
    assert a.logit == pytest.approx(sum(numbers) / 3, abs=1e-5)
    # a word of the first text stands in each window, 'cast' in the second alone
    third = sum(f - logit(row, 3) for f, row in zip(numbers, rows)) / 3
    assert float(a.scores[3]) == pytest.approx(third, abs=1e-5)
    place = len(front) + windows[1].index('cast')
    cast = numbers[1] - logit(rows[1], place)
    assert float(a.scores[a.tokens.index('cast')]) == pytest.approx(cast, abs=1e-5)
