"What is given reaches the model, or is refused by name; against the model called by hand."

from close import masked_one_at_a_time
from conftest import random_bert
from every_family import Words
from families import HEADED, SIZES, drawn, random_inputs, random_model
from peft import LoraConfig, get_peft_model
import pytest
import torch
from torch import nn
import transformers

from lrp_loo import Removal, explain, explain_generation
from lrp_loo.methods import explain_batch

PAIR = ('The jokes are old.', 'Nobody laughed at them, not even once.')
PAIRS = [PAIR, ('Fine.', 'Or so they say.')]
# float32 kernels of other shapes differ by up to 1e-5 of the largest logit
TOLERANCE = dict(rtol=1e-4, atol=1e-4)


SOME = ('loo', 'auto', 'attn_lrp', 'removal')
TINY = dict(SIZES, vocab_size=99, num_hidden_layers=2)


def logits_of(out):
    "The last row's, of a text."
    logits = out if torch.is_tensor(out) else out.logits
    return logits[0, -1] if logits.ndim == 3 else logits[0]


def check(a, model, enc):
    "Logit and LOO as by hand."
    logit, loo = masked_one_at_a_time(enc, lambda x: logits_of(model(**x))[a.target])
    assert a.logit == pytest.approx(float(logit), rel=1e-4, abs=1e-4)
    if a.method == 'loo' or a.info.get('exact') is True:
        torch.testing.assert_close(a.scores, loo, **TOLERANCE)


class OfItsOwn(nn.Module):
    "As one writes it around a model."

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)


LORA = LoraConfig(task_type='SEQ_CLS', target_modules=['query'])
WRAPPERS = {'peft': lambda model: get_peft_model(model, LORA), 'a module': OfItsOwn}


@pytest.mark.parametrize('wrap', WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize('method', SOME)
def test_a_wrapper_gets_the_parts_of_a_pair(tokenizer, wrap, method):
    model = random_bert()
    # rows are computed anew in transformers' own classes alone
    how = dict(passes=None) if method == 'auto' else {}
    wanted = [explain(model, tokenizer, p, method, **how)[0] for p in PAIRS]
    for a, pair in zip(wanted, PAIRS):
        check(a, model, dict(tokenizer(*pair, return_tensors='pt')))
    wrapped = wrap(model).eval()
    for a, b in zip(explain(wrapped, tokenizer, PAIRS, method, **how), wanted):
        assert a.logit == pytest.approx(b.logit, rel=1e-4)
        torch.testing.assert_close(a.scores, b.scores, **TOLERANCE)


def test_a_wrapper_hides_no_encoder_decoder_and_no_limit(tokenizer):
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=99)
    both = drawn('BartForSequenceClassification', sizes)
    with pytest.raises(ValueError, match='contains an encoder-decoder'):
        explain(nn.DataParallel(both).eval(), tokenizer, PAIRS, 'loo')
    model = nn.DataParallel(random_bert()).eval()
    with pytest.raises(ValueError, match='102 tokens and the model takes 64'):
        explain(model, tokenizer, 'word ' * 100)
    with pytest.raises(ValueError, match='generates nothing here'):
        explain_generation(model, tokenizer, 'fine')


class OnlyIds(nn.Module):
    "A model without an option of its own."

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30522, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask, **others):
        self.seen = set(others)
        x = self.table(input_ids) * attention_mask[..., None]
        if 'token_type_ids' in others:
            x = x * (1 + others['token_type_ids'][..., None])
        return self.out(x.mean(1))


def test_a_model_that_takes_any_name_gets_what_says_something(tokenizer):
    torch.manual_seed(0)
    model = OnlyIds().eval()
    (a,) = explain(model, tokenizer, [PAIR], 'loo')
    check(a, model, dict(tokenizer(*PAIR, return_tensors='pt')))
    explain(model, tokenizer, PAIR[0], 'loo')
    assert model.seen == set()  # all zeros say nothing


IMAGE = 90  # the token that stands for a patch


@pytest.fixture(scope='module')
def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **HEADED, num_hidden_layers=2, image_size=8, patch_size=4
        ),
        text_config=transformers.LlamaConfig(**TINY, pad_token_id=0),
        image_token_id=IMAGE,
        vision_feature_layer=-1,
    )
    return drawn('LlavaForConditionalGeneration', config, 0.2)


class Numbers(Words):
    "As much of a tokenizer as encodings ask for."

    is_fast = False
    all_special_tokens = ['<pad>']

    def __call__(self, *texts, **options):
        raise AssertionError('nothing is to be read here')

    def num_special_tokens_to_add(self, pair=False):
        return 0


def seen(n_images=1, words=(5, 6, 7)):
    "Words behind images of four patches each."
    torch.manual_seed(n_images)
    ids = torch.tensor([[2, *[IMAGE] * 4 * n_images, *words]])
    return dict(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.randn(n_images, 3, 8, 8),
    )


def test_several_texts_with_an_image_each(llava):
    encs = [seen(1), seen(1, (9, 8, 7)), seen(2), seen(1, (4, 4))]
    for a, enc in zip(explain(llava, Numbers(), encs, 'loo'), encs):
        check(a, llava, enc)


def test_removals_that_an_image_stands_in_the_way_of(llava):
    for removal, said in (
        ('delete', 'holds pixel_values'),
        (Removal('resample', pool=[5, 6]), 'mage'),
    ):
        with pytest.raises(ValueError, match=said):
            explain(llava, Numbers(), seen(), 'loo', removal=removal)


@pytest.fixture(scope='module')
def layout():
    config = dict(TINY, max_2d_position_embeddings=128)
    return drawn('LayoutLMForSequenceClassification', config)


def on_page(n, seed=0):
    "Words with boxes."
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 99, (1, n), generator=g)
    corner = torch.randint(0, 60, (1, n, 2), generator=g)
    return dict(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        bbox=torch.cat([corner, corner + 9], -1),
    )


@pytest.mark.parametrize('method', SOME)
def test_boxes_reach_the_model(layout, method):
    encs = [on_page(6, 1), on_page(8, 2), on_page(2, 3)]
    found = explain(layout, Numbers(), encs, method)
    for a, enc in zip(found, encs, strict=True):
        check(a, layout, enc)
        (alone,) = explain(layout, Numbers(), enc, method)
        torch.testing.assert_close(a.scores, alone.scores, **TOLERANCE)


@torch.no_grad()
def test_boxes_are_deleted_with_their_words(layout):
    enc = on_page(5)
    (a,) = explain(layout, Numbers(), enc, 'loo', removal='delete')
    for i in range(5):
        keep = [j for j in range(5) if j != i]
        without = layout(**{k: v[:, keep] for k, v in enc.items()}).logits[0, a.target]
        torch.testing.assert_close(a.scores[i], a.logit - without, **TOLERANCE)


def test_positions_that_are_given_reach_the_model(tokenizer):
    model = random_bert()
    enc = dict(tokenizer(PAIR[1], return_tensors='pt'))
    enc['position_ids'] = torch.arange(enc['input_ids'].shape[1])[None] * 3
    for method in ('loo', 'attn_lrp', 'removal'):
        (a,) = explain(model, tokenizer, enc, method)
        check(a, model, enc)
    with pytest.raises(ValueError, match="'delete'.*position_ids"):
        explain(model, tokenizer, enc, 'loo', removal='delete')


def test_encodings_with_and_without_parts_or_a_mask_in_one_list(tokenizer):
    "What the first of a batch lacks is not dropped from the others."
    model = random_bert()
    parted = [
        tokenizer(PAIR[0], return_token_type_ids=False, return_tensors='pt'),
        tokenizer(*PAIR, return_tensors='pt'),
    ]
    bare = [
        tokenizer(t, return_attention_mask=False, return_tensors='pt') for t in PAIR
    ]
    for encs in (parted, bare):
        for method in ('loo', 'attn_lrp', 'ig'):
            if encs is parted or method == 'attn_lrp':
                for a, enc in zip(explain(model, tokenizer, encs, method), encs):
                    check(a, model, dict(enc))


N = 7  # tokens of the first text


def with_one(tokenizer, **more):
    return dict(tokenizer(PAIR[0], return_tensors='pt')) | more


LOST = {
    'entity_ids': torch.tensor([[4, 5]]),
    'bbox': torch.ones(1, N, 4, dtype=torch.long),
    'pixel_values': torch.rand(1, 3, 8, 8),
    'global_attention_mask': torch.ones(1, N, dtype=torch.long),
    'decoder_input_ids': torch.ones(1, 3, dtype=torch.long),
    'features': torch.rand(1, 5),
    # taken, and not to be followed
    'inputs_embeds': torch.rand(1, N, 32),
    'past_key_values': transformers.DynamicCache(),
    # taken as another thing
    'attention_mask': torch.ones(1, 1, N, N),
    'token_type_ids': torch.ones(1, N + 1, dtype=torch.long),
    'position_ids': torch.ones(3, 1, N, dtype=torch.long),
}


@pytest.mark.parametrize('name', LOST)
def test_what_would_be_lost_is_refused_by_name(tokenizer, name):
    enc = with_one(tokenizer, **{name: LOST[name]})
    said = name.replace('_', '[_ ]')
    for given in (enc, [enc, with_one(tokenizer)]):
        with pytest.raises(ValueError, match=said):
            explain(random_bert(), tokenizer, given, 'loo')


@pytest.mark.parametrize('ids', [['a', 'film'], [[5, 6], [7]]])
def test_ids_that_are_no_numbers(tokenizer, ids):
    with pytest.raises(TypeError, match='input_ids must be'):
        explain(random_bert(), tokenizer, [dict(input_ids=ids)], 'loo')


LEFT_OUT = {
    'labels': torch.tensor([1]),
    'label': 1,
    'special_tokens_mask': torch.ones(1, N, dtype=torch.long),
    'length': torch.tensor([N]),
    'langs': torch.zeros(1, N, dtype=torch.long),
    'text': 'A column of the table.',
    'stars': 5,
    'pixel_values': None,
}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_what_says_nothing_to_the_model_is_left_out(tokenizer, name):
    model = random_bert()
    plain = with_one(tokenizer)
    (a,) = explain(model, tokenizer, plain | {name: LEFT_OUT[name]}, 'loo')
    check(a, model, plain)


def test_parts_of_a_pair_that_a_model_has_not(tokenizer):
    "The tokenizer's own are no loss; the caller's would be."
    model = random_model('DistilBERT', dtype=torch.float32, vocab_size=30522)
    (a,) = explain(model, tokenizer, [PAIR], 'loo')
    enc = dict(tokenizer(*PAIR, return_tensors='pt'))
    parts = enc.pop('token_type_ids')
    check(a, model, enc)
    with pytest.raises(ValueError, match='token_type_ids.*takes no such input'):
        explain(model, tokenizer, enc | dict(token_type_ids=parts), 'loo')


def check_each(name, config, encs, methods):
    "Every text, explained beside the others."
    model = drawn(name, config)
    for method in methods:
        for a, enc in zip(explain(model, Numbers(), encs, method), encs, strict=True):
            check(a, model, enc)
    return model


def test_entities_and_languages_reach_the_model():
    ids = torch.tensor([[2, 5, 6, 7, 8]])
    plain = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    enc = plain | dict(
        entity_ids=torch.tensor([[3, 4, 9, 9, 11]]),  # as many as tokens
        entity_attention_mask=torch.ones(1, 5, dtype=torch.long),
        entity_position_ids=torch.tensor([[[1, 2]] * 5]),
    )
    short = enc | {k: v[:, :3] for k, v in plain.items()}
    config = dict(TINY, entity_vocab_size=50, entity_emb_size=8)
    methods = ['loo', 'attn_lrp']
    luke = check_each('LukeForSequenceClassification', config, [enc, short], methods)
    hidden = dict(enc, attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))
    (a,) = explain(luke, Numbers(), hidden, 'loo')
    check(a, luke, short)
    with pytest.raises(ValueError, match='entity_ids'):
        explain(luke, Numbers(), enc, 'loo', removal='delete')

    enc = plain | dict(langs=torch.full_like(ids, 2))
    short = {k: v[:, :3] for k, v in enc.items()}
    config = dict(vocab_size=99, emb_dim=16, n_layers=2, n_heads=2, n_langs=3)
    check_each('XLMForSequenceClassification', config, [enc, short], methods)


def test_token_types_that_share_a_table_with_words_are_no_words():
    "GPT-2 looks both up in one table."
    model = random_model('GPT-2', 'class')
    enc = random_inputs(model)
    enc['token_type_ids'] = torch.tensor([[0] * 6 + [1] * 6])
    (found,) = explain_batch(model, Words(), [enc], 'grad_x_input', target=1)
    x = model.get_input_embeddings()(enc['input_ids'])
    x = x.detach().requires_grad_()
    others = {k: v for k, v in enc.items() if k != 'input_ids'}
    # the row to read is found by the ids, so of embeddings it is the last
    logit = model(inputs_embeds=x, **others).logits[0, 1]
    (by_x,) = torch.autograd.grad(logit, x)
    own = (by_x * x).sum(-1)[0].detach()
    assert torch.allclose(found.scores.double(), own, rtol=1e-6, atol=1e-6)


class Rearranged(nn.Module):
    "A classifier whose table reads other ids than the model is called with."

    def __init__(self, change):
        super().__init__()
        self.config = transformers.PretrainedConfig(pad_token_id=0)
        self.table, self.head = nn.Embedding(99, 8), nn.Linear(8, 2)
        self.change = change

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids):
        ids = self.change(input_ids)
        x = self.table(ids)
        x = x if len(ids) == len(input_ids) else x.transpose(0, 1)
        # places are told apart
        x = x * torch.linspace(1, 2, x.shape[1])[:, None]
        return self.head(torch.tanh(x.sum(1)))


PROMPT = torch.tensor([[90, 91, 92]])
MATCHED = {
    'turned': lambda ids: ids.T,
    'a prompt before': lambda ids: torch.cat([PROMPT.expand(len(ids), -1), ids], 1),
    'a prompt behind': lambda ids: torch.cat([ids, PROMPT.expand(len(ids), -1)], 1),
    'padding behind': lambda ids: nn.functional.pad(ids, (0, 3)),
}
NOT_MATCHED = {
    'read twice': lambda ids: torch.cat([ids, ids], 1),
    'a token twice': lambda ids: torch.cat([ids, ids[:, 1:2]], 1),
    'reversed': lambda ids: ids.flip(1),
    'hashes': lambda ids: ids * 7 % 99,
    'a half': lambda ids: ids[:, :3],
}
DISTINCT = torch.tensor([[5, 17, 8, 40, 33, 21]])


@pytest.mark.parametrize('method', ['grad_x_input', 'attn_lrp', 'ig'])
@pytest.mark.parametrize('change', MATCHED)
def test_ids_that_hold_the_texts_are_matched_with_its_tokens(change, method):
    torch.manual_seed(0)
    model = Rearranged(MATCHED[change]).eval()
    (a,) = explain_batch(model, Words(), [dict(input_ids=DISTINCT)], method, target=1)
    logit = model(DISTINCT)[0, 1]
    assert a.logit == pytest.approx(float(logit.detach()), rel=1e-5)
    if method == 'grad_x_input':  # each token has a row of its own in the table
        (g,) = torch.autograd.grad(logit, model.table.weight)
        expected = (g * model.table.weight).sum(-1)[DISTINCT[0]].detach()
        torch.testing.assert_close(a.scores, expected, rtol=1e-5, atol=1e-6)
    elif method == 'ig':
        assert a.info['arrived']


@pytest.mark.parametrize('change', NOT_MATCHED)
def test_other_ids_are_refused(change):
    model = Rearranged(NOT_MATCHED[change]).eval()
    for method in ('grad_x_input', 'ig'):
        with pytest.raises(ValueError, match='cannot be matched with its tokens'):
            explain_batch(model, Words(), [dict(input_ids=DISTINCT)], method, target=1)
