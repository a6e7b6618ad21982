"""Inputs that come in other forms: ids without a tokenizer, several numbers, texts that an
object cuts; the names of byte-level tokens. By hand: one pass with a token masked.
"""

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification

from lrp_loo import explain, load_demo

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
