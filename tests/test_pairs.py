"Exact pairs equal four masked passes a pair; estimates are symmetric, and come near."

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig
from transformers import LlamaForSequenceClassification

from lrp_loo import explain_pairs
from lrp_loo.core.stats import pearson
from lrp_loo.inputs.units import Units
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode
from lrp_loo.records.attribution import Attribution
from lrp_loo.records.pairs import Pairs
from lrp_loo.tasks.pairs import exact_pairs, likely_pairs, removal_pairs

TEXT = 'hardly ever stupid , and never less than warm'
SIZE = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
SIZE |= dict(intermediate_size=24, max_position_embeddings=32, initializer_range=0.5)


def tiny(family):
    "A random classifier in float64, large weights."
    torch.manual_seed(0)
    if family == 'bert':
        model = BertForSequenceClassification(BertConfig(**SIZE))
    else:
        config = LlamaConfig(**SIZE, num_labels=2, pad_token_id=0)
        model = LlamaForSequenceClassification(config)
    return model.double().eval()


def random_text(n=9):
    ids = torch.randint(3, 40, (1, n), generator=torch.Generator().manual_seed(1))
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def four_passes(model, enc, i, j, target):
    "f(x) − f(x∖i) − f(x∖j) + f(x∖ij), by the model's own mask."

    def f(*gone):
        mask = enc['attention_mask'].clone()
        for tokens in gone:
            mask[0, tokens] = 0
        with torch.no_grad():
            out = forward(model, enc | dict(attention_mask=mask))
        return out.logits[0, target]

    return f() - f(i) - f(j) + f(i, j)


# the last row of a decoder is read, and a first row that sees nothing is the
# stock model's own matter: neither of these two is removed
@pytest.mark.parametrize('family, inside', [('bert', range(9)), ('llama', range(1, 8))])
def test_exact_pairs_are_four_masked_passes_and_estimates_symmetric(
    tokenizer, family, inside
):
    model, enc = tiny(family), random_text()
    pairs = exact_pairs(model, None, [enc], 1).info[0]['pairs']
    for i in inside:
        for j in inside:
            if i < j:
                naive = four_passes(model, enc, i, j, 1)
                torch.testing.assert_close(pairs[i, j], naive, rtol=1e-7, atol=1e-9)
    found = removal_pairs(model, tokenizer, [enc], 1).info[0]
    estimates = found['pairs']
    assert estimates.equal(estimates.T) and not estimates.diagonal().any()
    assert (found['passes'], found['forwards']) == (1 + 9, 9)
    # each pair that is computed exactly counts twice
    assert int(torch.isclose(estimates, pairs, atol=1e-9).sum()) >= 9 + 2 * 9


def test_tokens_of_exact_pairs_are_replaced(demo):
    (p,) = explain_pairs(*demo, TEXT, 'exact', target=1, removal='mask_token')
    ids = demo[1](TEXT, return_tensors='pt')['input_ids'].repeat(4, 1)
    for row, gone in zip(ids, ([], [2], [5], [2, 5])):
        row[gone] = demo[1].mask_token_id
    with torch.no_grad():
        f = demo[0](ids).logits[:, 1]
    expected = float(f[0] - f[1] - f[2] + f[3])
    assert float(p.scores[2, 5]) == pytest.approx(expected, rel=1e-3, abs=1e-5)
    with pytest.raises(ValueError, match="take method='exact'"):
        explain_pairs(*demo, TEXT, removal='delete')


def test_the_estimate_follows_the_exact_pairs(demo):
    exact, estimated = (
        explain_pairs(*demo, TEXT, method, target=1)[0]
        for method in ('exact', 'removal')
    )
    i, j = torch.combinations(torch.where(exact.main.is_content)[0]).T
    assert pearson(estimated.scores[i, j], exact.scores[i, j]) > 0.9
    # a pass at x∖j reads f(x∖j)
    torch.testing.assert_close(
        estimated.main.scores, exact.main.scores, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize('method', ['exact', 'removal'])
def test_words_and_spans_are_left_out_whole(demo, method):
    model, tokenizer = demo
    spans = [(0, 11), (12, 18)]
    (p,) = explain_pairs(model, tokenizer, TEXT, method, target=1, units=spans)
    assert p.tokens == ['hardly ever', 'stupid']
    enc = encode(model, tokenizer, TEXT)
    naive = float(four_passes(model, enc, [1, 2], [3], 1))
    # the two spans' pair is among those that are read exactly
    assert float(p.scores[0, 1]) == pytest.approx(naive, abs=1e-3)
    words = explain_pairs(*demo, 'an unconvincing film', method, units='word')[0]
    assert words.tokens[2] == 'unconvincing'


def test_tokens_in_no_unit_stay():
    model, enc = tiny('bert'), random_text()
    number = torch.tensor([-1, 0, 0, 1, -1, -1, 2, -1, -1])
    units = Units(number, ['a', 'b', 'c'], torch.zeros(3, dtype=torch.bool))
    pairs = exact_pairs(model, None, [enc], 1, units=[units]).info[0]['pairs']
    naive = four_passes(model, enc, [1, 2], [6], 1)
    torch.testing.assert_close(pairs[0, 2], naive, rtol=1e-7, atol=1e-9)


def test_views_take_a_text_as_text():
    "Two tokens would be markup, or steer a terminal."
    tokens = ['<script>alert(1)</script>', 'a\x1b[31mb', 'c']
    none = torch.zeros(3, dtype=torch.bool)
    main = Attribution(tokens, torch.tensor([1.0, -1.0, 0.0]), none, 0, 0.5)
    scores = torch.zeros(3, 3)
    scores[0, 1] = scores[1, 0] = -2.0
    p = Pairs(main, scores)
    page = p._repr_html_()
    assert '<script' not in page and '&lt;script' in page
    assert page.count('class="bar"') == 1
    assert p.strongest() == [(0, 1, -2.0)]
    p.plot()
    nothing = Pairs(p.main, torch.zeros(3, 3))
    assert 'class="bar"' not in nothing._repr_html_()
    nothing.plot()


def test_likely_pairs_are_of_content():
    "By the estimate, or where it says nothing by the units' own effects."
    content = torch.tensor([True, True, False, True])
    scores, loo = torch.zeros(4, 4), torch.tensor([1.0, 2.0, 9.0, 3.0])
    assert likely_pairs(scores, loo, content).tolist() == [[1, 3], [0, 3], [0, 1]]
    scores[0, 1] = scores[1, 0] = -9
    assert likely_pairs(scores, loo, content)[0].tolist() == [0, 1]
