"Exact pairs equal four masked passes a pair; estimates are symmetric, and come near."

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig
from transformers import LlamaForSequenceClassification

from lrp_loo import explain_pairs
from lrp_loo.inputs.units import Units
from lrp_loo.records import Attribution, Pairs
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode
from lrp_loo.stats import pearson
from lrp_loo.tasks.pairs import affordable_pairs, exact_pairs
from lrp_loo.tasks.pairs import largest_pairs, removal_pairs
from lrp_loo.records.display import terminal_pairs

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
def test_exact_pairs_are_four_masked_passes(family, inside):
    model, enc = tiny(family), random_text()
    pairs = exact_pairs(model, None, [enc], 1).info[0]['pairs']
    for i in inside:
        for j in inside:
            if i < j:
                naive = four_passes(model, enc, i, j, 1)
                torch.testing.assert_close(pairs[i, j], naive, rtol=1e-7, atol=1e-9)


@pytest.fixture(scope='module')
def exact(demo):
    return explain_pairs(*demo, TEXT, 'exact', target=1)[0]


@pytest.fixture(scope='module')
def estimated(demo):
    return explain_pairs(*demo, TEXT, target=1)[0]


@pytest.mark.parametrize('family', ['bert', 'llama'])
@pytest.mark.parametrize('n_tokens', [None, 'sqrt', 1])
def test_an_estimate_is_symmetric(family, n_tokens):
    model, enc = tiny(family), random_text()
    found = removal_pairs(model, None, [enc], 1, n_tokens=n_tokens, n_exact=0).info[0]
    pairs = found['pairs']
    assert pairs.equal(pairs.T) and not pairs.diagonal().any()
    k = {None: 9, 'sqrt': 3, 1: 1}[n_tokens]
    assert (found['passes'], found['forwards']) == (1 + k, 0)
    rows = int((pairs != 0).any(1).sum())
    assert rows <= 9 and int((pairs != 0).sum()) <= 2 * k * 8


def test_every_pair_exact_is_the_exact_matrix(demo, exact):
    every = explain_pairs(*demo, TEXT, target=1, n_exact=1000)[0]
    content = ~exact.is_special
    torch.testing.assert_close(
        every.scores[content][:, content],
        exact.scores[content][:, content],
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_estimate_follows_the_exact_pairs(exact, estimated):
    i, j = torch.combinations(torch.where(exact.is_content)[0]).T
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
    (words,) = explain_pairs(
        model, tokenizer, 'an unconvincing film', method, units='word'
    )
    assert words.tokens[2] == 'unconvincing'


def test_tokens_in_no_unit_stay():
    model, enc = tiny('bert'), random_text()
    number = torch.tensor([-1, 0, 0, 1, -1, -1, 2, -1, -1])
    units = Units(number, ['a', 'b', 'c'], torch.zeros(3, dtype=torch.bool))
    pairs = exact_pairs(model, None, [enc], 1, units=[units]).info[0]['pairs']
    naive = four_passes(model, enc, [1, 2], [6], 1)
    torch.testing.assert_close(pairs[0, 2], naive, rtol=1e-7, atol=1e-9)


def hostile():
    "Two tokens that would be markup, or steer a terminal."
    tokens = ['<script>alert(1)</script>', 'a\x1b[31mb', 'c']
    none = torch.zeros(3, dtype=torch.bool)
    main = Attribution(tokens, torch.tensor([1.0, -1.0, 0.0]), none, 0, 0.5)
    scores = torch.zeros(3, 3)
    scores[0, 1] = scores[1, 0] = -2.0
    return Pairs(main, scores)


def test_views_take_a_text_as_text():
    p = hostile()
    page = p._repr_html_()
    assert '<script' not in page and '&lt;script' in page
    assert page.count('<path') == 1 and 'stroke-dasharray' in page
    assert '\x1b[31m' not in terminal_pairs(p)
    assert p.strongest() == [(0, 1, -2.0)]
    p.plot()
    nothing = Pairs(p.main, torch.zeros(3, 3))
    assert '<path' not in nothing._repr_html_()
    assert terminal_pairs(nothing).count('\n') == 0
    nothing.plot()


def test_ties_and_few_pairs():
    scores = torch.zeros(4, 4)
    counts = torch.tensor([True, True, False, True])
    assert len(largest_pairs(scores, counts, 10)) == 3
    assert not (largest_pairs(scores, counts, 10) == 2).any()
    assert len(largest_pairs(scores, counts, 0)) == 0
    one = torch.tensor([False, True, False, False])  # no pair to read
    assert affordable_pairs(scores, one, ~one, 9).shape == (0, 2)


def naively_affordable(scores, counts, read, forwards):
    own = [i for i in range(len(read)) if counts[i]]
    pairs = [(i, j) for i in own for j in own if i < j]
    pairs.sort(key=lambda p: -abs(float(scores[p])))
    known, found = {i for i in own if read[i]}, []
    for p in pairs:
        forwards -= 1 + len(set(p) - known)
        if forwards < 0:
            break
        known |= set(p)
        found.append(list(p))
    return found


@pytest.mark.parametrize('forwards', [0, 2, 7, 99])
def test_pairs_that_so_many_passes_can_read(forwards):
    g = torch.Generator().manual_seed(forwards)
    scores = torch.randn(8, 8, generator=g)
    scores += scores.T.clone()
    counts = torch.rand(8, generator=g) < 0.8
    read = torch.rand(8, generator=g) < 0.4
    found = affordable_pairs(scores, counts, read, forwards)
    naive = naively_affordable(scores, counts, read, forwards)
    assert found.tolist() == naive


def test_half_the_passes_and_pairs_for_the_rest_cost_no_more(demo):
    whole = explain_pairs(*demo, TEXT, target=1, n_exact=0)[0]
    half = explain_pairs(*demo, TEXT, target=1, n_tokens='half', n_exact='rest')[0]
    n = int((~whole.is_special).sum())
    assert half.info['passes'] == 1 + -(-n // 2)
    budget = 3 * (1 + n)
    cost = 3 * half.info['passes'] + half.info['forwards']
    assert budget - 3 < cost <= budget


def test_a_method_of_ones_own_must_give_pairs(demo):
    with pytest.raises(TypeError, match="info\\['pairs'\\]"):
        explain_pairs(*demo, TEXT, METHODS['removal'].run)
