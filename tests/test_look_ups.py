"""Which embeddings are explained: every look-up of the table, whichever module makes it. A model of
two towers looks it up for each text of a pair, T5's encoder through another module.
"""

import copy

import pytest
import torch
from conftest import random_bert
from transformers import (
    AutoTokenizer,
    MT5Config,
    MT5ForTokenClassification,
    T5Config,
    T5EncoderModel,
    T5ForTokenClassification,
    UMT5Config,
    UMT5EncoderModel,
    UMT5ForTokenClassification,
)

from lrp_loo import explain
from lrp_loo.asked.targets import Target
from lrp_loo.methods import METHODS
from lrp_loo.models.demos import demo_base
from lrp_loo.models.encoding import encode

PAIR = ('the crew mended old nets', 'gulls cried over grey water today')
GRADIENTS = ('grad_x_input', 'attn_lrp', 'cp_lrp', 'ig')
OPTIONS = {
    'ig': dict(n_steps=3, baseline='zero'),
    'loo': dict(removal='zero_embedding'),
}


@pytest.fixture(scope='module')
def tokenizer():
    return AutoTokenizer.from_pretrained(demo_base())


# ---- towers

# how a tower gets its text: which ids, and their mask
WAYS = {
    'masked': lambda ids, own: (ids, own),
    'blanked': lambda ids, own: (torch.where(own == 1, ids, 0), own),
    'cut': lambda ids, own: (_stretch(ids, own), _stretch(own, own)),
    'copied': lambda ids, own: (_stretch(ids, own).clone(), _stretch(own, own)),
}


def _stretch(x, own):
    at = own[0].nonzero()[:, 0]
    return x[:, int(at[0]) : int(at[-1]) + 1]


def towers_of(enc):
    "The masks of the two texts."
    second = enc['token_type_ids'] * enc['attention_mask']
    return enc['attention_mask'] - second, second


class TwoTowers(torch.nn.Module):
    "One BERT, called for each text of a pair; the logits are added."

    def __init__(self, way):
        super().__init__()
        self.bert = random_bert(layers=2)
        self.way = WAYS[way]

    def get_input_embeddings(self):
        return self.bert.get_input_embeddings()

    def forward(self, input_ids, attention_mask, token_type_ids):
        enc = dict(attention_mask=attention_mask, token_type_ids=token_type_ids)
        calls = [self.way(input_ids, own) for own in towers_of(enc)]
        first, second = (
            self.bert(input_ids=ids, attention_mask=mask).logits for ids, mask in calls
        )
        return first + second


def each_tower_alone(model, tokenizer, enc, method):
    "What the two towers' own explanations add up to, token by token."
    whole = torch.zeros(enc['input_ids'].shape[1])
    for own in towers_of(enc):
        ids, mask = model.way(enc['input_ids'], own)
        one = dict(input_ids=ids, attention_mask=mask)
        found = METHODS[method](
            model.bert, tokenizer, [one], 1, **OPTIONS.get(method, {})
        )
        start = int(own[0].nonzero()[0]) if len(ids[0]) < len(own[0]) else 0
        at = slice(start, start + len(ids[0]))
        of_the_text = ids[0] == enc['input_ids'][0, at]  # no blank
        whole[at] += found.scores[0].detach() * of_the_text
    return whole


def together(model, tokenizer, text, method):
    options = OPTIONS.get(method, {})
    return explain(model, tokenizer, [text], method, 1, **options)[0].scores


def assert_close(found, expected):
    "Float32: sums in another order differ by rounding."
    size = float(expected.abs().max())
    assert torch.allclose(found, expected, atol=1e-4 * size)


@pytest.mark.parametrize(
    ('method', 'way'),
    [
        *((m, way) for m in GRADIENTS for way in WAYS),
        # by a zero embedding, which is put in the same place
        *(('loo', way) for way in ('cut', 'copied')),
    ],
)
def test_each_tower_gets_its_own_scores(tokenizer, method, way):
    model = TwoTowers(way).eval()
    enc = encode(model, tokenizer, PAIR)
    expected = each_tower_alone(model, tokenizer, enc, method)
    second = enc['token_type_ids'][0] == 1
    assert float(expected[second].abs().max()) > 1e-3
    assert_close(together(model, tokenizer, PAIR, method), expected)


def test_removal_adds_up_both_towers(tokenizer):
    model = TwoTowers('masked').eval()
    enc = encode(model, tokenizer, PAIR)
    expected = each_tower_alone(model, tokenizer, enc, 'removal')
    assert_close(together(model, tokenizer, PAIR, 'removal'), expected)


@pytest.mark.parametrize('method', GRADIENTS)
def test_a_text_against_itself_is_told_apart_by_its_memory(tokenizer, method):
    model = TwoTowers('cut').eval()
    twice = (PAIR[0], PAIR[0])
    enc = encode(model, tokenizer, twice)
    expected = each_tower_alone(model, tokenizer, enc, method)
    assert_close(together(model, tokenizer, twice, method), expected)


@pytest.mark.parametrize('method', [*GRADIENTS, 'removal'])
def test_a_stretch_that_could_be_either_text_is_refused(tokenizer, method):
    model = TwoTowers('copied').eval()
    with pytest.raises(ValueError, match=r"other ids than the text's.*'loo'"):
        explain(model, tokenizer, [(PAIR[0], PAIR[0])], method, 1)


class Stacked(TwoTowers):
    "Both texts in one call, as two rows."

    def forward(self, input_ids, attention_mask, token_type_ids):
        enc = dict(attention_mask=attention_mask, token_type_ids=token_type_ids)
        parts = [_stretch(input_ids, own)[:, :6] for own in towers_of(enc)]
        rows = self.bert(input_ids=torch.cat(parts)).logits
        return sum(rows.chunk(2))


@pytest.mark.parametrize('method', [*GRADIENTS, 'removal', 'rollout'])
def test_texts_stacked_as_rows_are_refused(tokenizer, method):
    model = Stacked('cut').eval()
    with pytest.raises(ValueError, match=r"other ids than the text's.*'loo'"):
        explain(model, tokenizer, [PAIR], method, 1)
    assert explain(model, tokenizer, [PAIR], 'loo', 1)


def test_rollout_is_refused_where_layers_are_no_one_stack(tokenizer):
    with pytest.raises(ValueError, match=r"2 times.*take 'loo'"):
        explain(TwoTowers('masked').eval(), tokenizer, [PAIR], 'rollout', 1)


# ---- a table that another module has as well


def random_weights(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3)
    return model.eval()


SIZES = dict(
    vocab_size=30522,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    num_labels=3,
)


class Pooled(torch.nn.Module):
    "An encoder with a head of one's own."

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config
        self.head = torch.nn.Linear(32, 3)

    def forward(self, input_ids, attention_mask=None):
        out = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return self.head(out.last_hidden_state[:, 0])


ENCODERS = {
    'T5, own head': lambda: Pooled(T5EncoderModel(T5Config(**SIZES))),
    'UMT5, own head': lambda: Pooled(UMT5EncoderModel(UMT5Config(**SIZES))),
    'T5': lambda: T5ForTokenClassification(T5Config(**SIZES)),
    'MT5': lambda: MT5ForTokenClassification(MT5Config(**SIZES)),
    'UMT5': lambda: UMT5ForTokenClassification(UMT5Config(**SIZES)),
}


def with_the_called_table(model):
    "The same model, which says itself where it looks its ids up."
    named = copy.deepcopy(model)
    (called,) = [
        m for path, m in named.named_modules() if path.endswith('embed_tokens')
    ]
    named.get_input_embeddings = lambda: called
    for m in named.modules():
        if hasattr(m, 'shared'):
            m.get_input_embeddings = lambda: called
    return named


@pytest.mark.parametrize('name', ENCODERS)
@pytest.mark.parametrize('method', [*GRADIENTS, 'removal', 'loo', 'rollout'])
def test_encoders_of_t5s_kind(tokenizer, method, name):
    model = random_weights(ENCODERS[name]())
    text = ' '.join(PAIR)
    target = Target(1) if 'head' in name else Target(1, position=2)
    options = {} if method == 'loo' else OPTIONS.get(method, {})
    (found,) = explain(model, tokenizer, [text], method, target, **options)
    enc = encode(model, tokenizer, text)
    by_name = METHODS[method](
        with_the_called_table(model), tokenizer, [enc], target, **options
    )
    assert float(found.scores.abs().max()) > 1e-4
    assert_close(found.scores, by_name.scores[0].detach())


class Adapted(torch.nn.Module):
    "A table with something added, as adapters have it: its weights are inside."

    def __init__(self, table):
        super().__init__()
        self.base_layer = table
        self.more = torch.nn.Embedding.from_pretrained(table.weight.detach())

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, ids):
        return self.base_layer(ids) + self.more(ids)


class Sums(torch.nn.Module):
    "A linear model, whose logit is the sum of its scores."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = Adapted(torch.nn.Embedding(30522, 8))
        self.head = torch.nn.Linear(8, 2, bias=False)

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.table(input_ids).sum(1))


@pytest.mark.parametrize('method', ['grad_x_input', 'attn_lrp', 'cp_lrp'])
def test_a_table_inside_the_table_is_not_looked_up_by_itself(tokenizer, method):
    "What an adapter adds counts."
    model = Sums().eval()
    with torch.no_grad():
        logit = float(model(**encode(model, tokenizer, PAIR[0]))[0, 1])
    (a,) = explain(model, tokenizer, [PAIR[0]], method, 1)
    assert float(a.scores.sum()) == pytest.approx(logit, rel=1e-4)


class Kinds(Sums):
    "It looks up kinds of tokens as well, as GPT-2 does."

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        kinds = self.table(token_type_ids).sum(1)
        return self.head(self.table(input_ids).sum(1) + kinds)


def test_kinds_of_tokens_in_the_table_are_no_text(tokenizer):
    "The first look-up is theirs."
    (a,) = explain(Kinds().eval(), tokenizer, [PAIR], 'grad_x_input', 1)
    (alone,) = explain(Sums().eval(), tokenizer, [PAIR], 'grad_x_input', 1)
    assert_close(a.scores, alone.scores)
