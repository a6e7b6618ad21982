"""Which place of a text, and which target, is explained; a batch's padding does
not change it.
"""

from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
import transformers
from conftest import TEXTS, random_bert
from peft import (
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)

from lrp_loo import explain
from lrp_loo.asked.targets import Readout, Target
from lrp_loo.core.files import pad_batch
from lrp_loo.loo import leave_one_out
from lrp_loo.methods import METHODS
from lrp_loo.models.encoding import encode
from lrp_loo.trust.audit import agreement_rows, faithfulness_rows
from lrp_loo.trust.sweep import BatchWorker

MASKED = ['The [MASK] is slow.', 'Not one scene of this quiet film feels [MASK].']
SMALL = dict(
    vocab_size=30522,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.3,
)


def small(name, **config):
    "A small random model of transformers."
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    config = {k: v for k, v in (SMALL | config).items() if v is not None}
    return cls._from_config(cls.config_class(**config)).eval()


@torch.no_grad()
def output_of(model, enc):
    "The logits of one text."
    return model(**enc).logits[0]


def masked_one_at_a_time(model, enc, *where):
    "LOO of an entry of the logits by one forward pass per token."
    whole = output_of(model, enc)[where]
    scores = []
    for i in range(enc['input_ids'].shape[1]):
        mask = enc['attention_mask'].clone()
        mask[0, i] = 0
        rest = output_of(model, enc | dict(attention_mask=mask))[where]
        scores.append(whole - rest)
    return torch.stack(scores)


def same(a, b):
    """Equal but for float32's rounding, which grows with the largest number
    (two layers, a few hundred terms a sum).
    """
    assert (a - b).abs().max() < 1e-4 * b.abs().max()


# --- masked language models and token classifiers


@pytest.fixture(scope='module')
def mlm():
    return small('BertForMaskedLM')


@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'rollout', 'ig', 'loo'])
def test_a_masked_language_model_is_explained_at_its_mask(mlm, tokenizer, method):
    maps = explain(mlm, tokenizer, MASKED, method)
    for a, text in zip(maps, MASKED, strict=True):
        enc = encode(mlm, tokenizer, text)
        place = enc['input_ids'][0].tolist().index(tokenizer.mask_token_id)
        row = output_of(mlm, enc)[place]
        assert a.target == int(row.argmax())
        assert a.logit == pytest.approx(float(row.max()), rel=1e-4)
        assert a.info['position'] == place
        assert f'at token {place} ([MASK])' in a.explained


def test_loo_of_a_masked_language_model_is_read_at_its_mask(mlm, tokenizer):
    maps = explain(mlm, tokenizer, MASKED, 'loo')
    for a, text in zip(maps, MASKED, strict=True):
        enc = encode(mlm, tokenizer, text)
        place = a.info['position']
        same(a.scores, masked_one_at_a_time(mlm, enc, place, a.target))


TWO_MASKS = 'The [MASK] is [MASK].'


@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
@pytest.mark.parametrize('text', [TEXTS[0], TWO_MASKS])
def test_no_mask_or_several_ask_for_a_position(mlm, tokenizer, text, method):
    with pytest.raises(ValueError, match='MASK.*position='):
        explain(mlm, tokenizer, text, method)


def test_a_given_position_wins_over_the_mask(mlm, tokenizer):
    (a,) = explain(mlm, tokenizer, MASKED[0], target=Target(position=1))
    assert a.info['position'] == 1
    assert 'at token 1 (the)' in a.explained


def test_without_a_tokenizer_a_masked_language_model_asks_for_a_position(
    mlm, tokenizer
):
    enc = encode(mlm, tokenizer, MASKED[0])
    with pytest.raises(ValueError, match='position='):
        leave_one_out(mlm, enc)
    loo, *_ = leave_one_out(mlm, enc, Target(position=2))
    assert len(loo) == enc['input_ids'].shape[1]


def test_deleting_tokens_would_move_the_mask(mlm, tokenizer):
    with pytest.raises(ValueError, match='moves the tokens'):
        explain(mlm, tokenizer, MASKED[0], 'loo', removal='delete')


@pytest.fixture(scope='module')
def token_classifier():
    return small('BertForTokenClassification', num_labels=3)


@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
def test_a_token_classifier_asks_for_a_position(token_classifier, tokenizer, method):
    with pytest.raises(ValueError, match='position='):
        explain(token_classifier, tokenizer, TEXTS[0], method)


def test_a_token_classifier_is_read_at_its_position(token_classifier, tokenizer):
    (a,) = explain(
        token_classifier, tokenizer, TEXTS[0], 'loo', target=Target(position=2)
    )
    assert a.explained.startswith('target')
    assert a.explained.endswith('at token 2 (jokes)')
    enc = encode(token_classifier, tokenizer, TEXTS[0])
    same(a.scores, masked_one_at_a_time(token_classifier, enc, 2, a.target))


class OwnRows(torch.nn.Module):
    """A model of one's own with a row of logits per token; nothing says which
    row matters.
    """

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30522, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.embed(input_ids).cumsum(1))


def test_a_model_of_ones_own_with_rows_asks_for_a_position(tokenizer):
    model = OwnRows().eval()
    with pytest.raises(ValueError, match='which token'):
        explain(model, tokenizer, TEXTS[0], 'grad_x_input')
    (a,) = explain(
        model, tokenizer, TEXTS[0], 'grad_x_input', target=Target(position=-1)
    )
    assert a.info['position'] == len(a) - 1


def test_a_decoder_says_which_token_it_goes_on_from(tokenizer):
    model = small('LlamaForCausalLM', pad_token_id=0)
    for a in explain(model, tokenizer, TEXTS[:2]):
        assert a.explained.endswith(f'at token {len(a) - 1} ([SEP])')


def test_a_place_is_a_token_beside_words(tokenizer):
    model = small('LlamaForCausalLM', pad_token_id=0)
    (a,) = explain(model, tokenizer, TEXTS[0], units='word', target=Target(position=3))
    assert 'at token 3 (are)' in a.explained


@pytest.mark.parametrize(
    'target, numbers',
    [(2, [11.0, 23.0]), (Target(0, position=0), [0.0, 18.0])],
    ids=['last', 'first'],
)
def test_padding_on_the_left_moves_no_token(target, numbers):
    CausalLMOutput = type('CausalLMOutput', (SimpleNamespace,), {})
    out = CausalLMOutput(logits=torch.arange(24.0).view(2, 4, 3))
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    readout = Readout(target, out, dict(attention_mask=mask))
    assert readout(out).tolist() == numbers


@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
@pytest.mark.parametrize('output', ['start_logits', 'end_logits'])
def test_question_answering_says_start_or_end(tokenizer, output, method):
    model = small('BertForQuestionAnswering')
    pair = ('Who sang?', 'The lead sang every song.')
    (a,) = explain(model, tokenizer, [pair], method, target=Target(output=output))
    place = f'{a.target} ({a.tokens[a.target]})'
    assert a.explained == f'{output[:-7]} at token {place}'


@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal'])
@pytest.mark.parametrize(
    'target',
    [
        'Paris',
        'LABEL_0',  # by its config every model has two labels
        ('Paris', 'Rome'),
        Target('Paris', output='end_logits'),
    ],
)
def test_an_answer_is_no_target_but_its_place_is(tokenizer, target, method):
    model = small('BertForQuestionAnswering')
    pair = ('Who sang?', 'The lead sang every song.')
    with pytest.raises(ValueError, match='BertForQuestionAnswering') as e:
        explain(model, tokenizer, pair, method, target)
    said = str(e.value)
    assert "token's place" in said and "output='end_logits'" in said
    assert 'class of this model' not in said


@pytest.mark.parametrize('method', ['attn_lrp', 'loo'])
@pytest.mark.parametrize('output', [None, 'start_logits', 'end_logits'])
def test_a_place_behind_the_text_is_no_place(tokenizer, output, method):
    model = small('BertForQuestionAnswering')
    pair = ('Who sang?', 'The lead sang every song.')
    n = encode(model, tokenizer, pair)['input_ids'].shape[1]
    said = f'target={n} is not a place in this text; take 0 to {n - 1}'
    with pytest.raises(ValueError, match=said):
        explain(model, tokenizer, pair, method, Target(n, output=output))


# --- features, which predict nothing

EVERY_METHOD = [name for name in METHODS if name != 'lrp']


@pytest.mark.parametrize('method', EVERY_METHOD)
@pytest.mark.parametrize('target', [None, Target(output='pooler_output')])
def test_a_bare_encoder_asks_what_is_explained(tokenizer, target, method):
    model = small('BertModel')
    with pytest.raises(ValueError, match='predicts nothing') as e:
        explain(model, tokenizer, TEXTS[:2], method, target)
    assert "target=Target(i, output='pooler_output')" in str(e.value)
    assert '32 numbers' in str(e.value) and 'lambda out' in str(e.value)


def test_a_row_of_features_asks_which_of_them(tokenizer):
    model = small('BertModel')
    first = Target(output='last_hidden_state', position=0)
    said = "output='last_hidden_state', position=p"
    with pytest.raises(ValueError, match=said):
        explain(model, tokenizer, TEXTS[:1], target=first)


def test_an_image_encoder_asks_what_is_explained():
    model = small('ViTModel', image_size=16, patch_size=8)
    with pytest.raises(ValueError, match='predicts nothing'):
        explain(model, None, torch.zeros(3, 16, 16))


ASKED = {
    3: lambda out: out.pooler_output[:, 3],
    (3, 1): lambda out: out.pooler_output[:, 3] - out.pooler_output[:, 1],
    Target(3, output='pooler_output'): lambda out: out.pooler_output[:, 3],
    Target(1, 0, 'last_hidden_state'): lambda o: o.last_hidden_state[:, 0, 1],
}


@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal'])
@pytest.mark.parametrize('target', ASKED, ids=range(4))
def test_a_feature_that_is_named_is_explained(tokenizer, target, method):
    "And has no class's name, whatever labels the config has."
    model = small('BertModel')
    found = explain(model, tokenizer, TEXTS[:2], method, target)
    wanted = explain(model, tokenizer, TEXTS[:2], method, ASKED[target])
    for a, b in zip(found, wanted, strict=True):
        same(a.scores, b.scores)
        assert 'LABEL' not in a.label + a.explained


# --- prompts in front of the text


PROMPTS = dict(
    prompt=PromptTuningConfig, prefix=PrefixTuningConfig, ptuning=PromptEncoderConfig
)


def prompted(model, kind, task):
    more = dict(encoder_hidden_size=16) if kind == 'ptuning' else {}
    config = PROMPTS[kind](task_type=task, num_virtual_tokens=4, **more)
    torch.manual_seed(1)
    model = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if 'prompt_encoder' in name and p.ndim > 1:
                p.normal_(0, 0.5)
    return model


@pytest.fixture(params=PROMPTS)
def prompted_decoder(request):
    decoder = small('LlamaForCausalLM', pad_token_id=0)
    return prompted(decoder, request.param, 'CAUSAL_LM'), request.param


@pytest.fixture(params=PROMPTS)
def prompted_classifier(request):
    return prompted(random_bert(layers=2), request.param, 'SEQ_CLS')


def test_a_prompt_tuned_decoder_is_read_at_the_text_s_end(prompted_decoder, tokenizer):
    model, _ = prompted_decoder
    maps = explain(model, tokenizer, TEXTS[:2], 'loo')
    for a, text in zip(maps, TEXTS[:2], strict=True):
        enc = encode(model, tokenizer, text)
        assert a.target == int(output_of(model, enc)[-1].argmax())
        assert a.info['position'] == len(a) - 1
        same(a.scores, masked_one_at_a_time(model, enc, -1, a.target))


def test_a_prompt_tuned_decoder_counts_the_text_s_tokens(prompted_decoder, tokenizer):
    model, kind = prompted_decoder
    (early,) = explain(
        model, tokenizer, TEXTS[0], 'grad_x_input', target=Target(position=2)
    )
    logits = output_of(model, encode(model, tokenizer, TEXTS[0]))
    in_front = 0 if kind == 'prefix' else 4
    assert len(logits) == len(early) + in_front
    own = float(logits[in_front + 2].max())
    assert early.logit == pytest.approx(own, rel=1e-4)
    # it does not see what follows
    assert early.scores[3:].abs().max() < 1e-6 * early.scores.abs().max()


def test_a_prompt_tuned_classifier_scores_the_text_s_tokens(
    prompted_classifier, tokenizer
):
    enc = encode(prompted_classifier, tokenizer, TEXTS[0])
    (loo,) = explain(prompted_classifier, tokenizer, TEXTS[0], 'loo')
    same(loo.scores, masked_one_at_a_time(prompted_classifier, enc, loo.target))


def test_keys_that_are_no_inputs_are_refused_by_removal(prompted_classifier, tokenizer):
    with pytest.raises(ValueError, match='one key per input'):
        explain(prompted_classifier, tokenizer, TEXTS[0], 'removal')


def test_rows_that_are_no_tokens_are_refused():
    out = type('TokenClassifierOutput', (SimpleNamespace,), {})(
        logits=torch.zeros(1, 6, 3)
    )
    batch = dict(
        input_ids=torch.ones(1, 4, dtype=torch.long),
        attention_mask=torch.ones(1, 4, dtype=torch.long),
    )
    with pytest.raises(ValueError, match='6 rows for 4 tokens'):
        Readout(Target(position=1), out, batch)


# --- padding


READS_PADDING = {  # classifiers whose numbers change when a text is padded
    'ConvBertForSequenceClassification': dict(
        embedding_size=32, head_ratio=2, conv_kernel_size=9
    ),
    'FunnelForSequenceClassification': dict(
        num_hidden_layers=None,
        block_sizes=[2, 2, 2],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
        initializer_std=0.3,
    ),
    'FNetForSequenceClassification': {},
}

# 8 tokens, 11 and 21: Funnel pools by four, and feels padding where a text has
# an odd number
LENGTHS = ['The jokes are old here.', 'A warm and funny film, now then.', TEXTS[2]]


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('name', READS_PADDING)
def test_padding_that_is_read_does_not_reach_an_explanation(name, tokenizer):
    model = small(name, **READS_PADDING[name])
    maps = explain(model, tokenizer, LENGTHS)
    for a, text in zip(maps, LENGTHS, strict=True):
        (alone,) = explain(model, tokenizer, text)
        assert a.target == alone.target
        same(a.scores, alone.scores)


@pytest.mark.parametrize(
    'name', ['ConvBertForSequenceClassification', 'FunnelForSequenceClassification']
)
def test_agreement_rows_are_the_single_texts_where_padding_is_read(name, tokenizer):
    model = small(name, **READS_PADDING[name])
    encs = [encode(model, tokenizer, t) for t in LENGTHS]
    methods = {'attn_lrp': ('attn_lrp', {})}
    rows = agreement_rows(model, tokenizer, encs, methods)
    for row, enc in zip(rows, encs, strict=True):
        (alone,) = agreement_rows(model, tokenizer, [enc], methods)
        assert row['target'] == alone['target']
        own = alone['methods']['attn_lrp']['r']
        assert row['methods']['attn_lrp']['r'] == pytest.approx(own, abs=1e-3)


class Averages(torch.nn.Module):
    "A classifier that averages over all places, padding among them."

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30522, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.embed(input_ids).tanh().mean(1))


@pytest.mark.parametrize('target', [None, lambda out: out[:, 1] ** 2])
def test_padding_that_is_averaged_does_not_reach_an_explanation(tokenizer, target):
    torch.manual_seed(0)
    model = Averages().eval()

    def explained(texts):
        return explain(model, tokenizer, texts, 'grad_x_input', target=target)

    for a, text in zip(explained(TEXTS), TEXTS, strict=True):
        same(a.scores, explained(text)[0].scores)


def test_a_decoder_classifier_without_padding_token_takes_several_texts(tokenizer):
    model = small('GPT2ForSequenceClassification', n_embd=32, n_layer=2, n_head=4)
    assert model.config.pad_token_id is None
    maps = explain(model, tokenizer, TEXTS, 'cp_lrp')
    for a, text in zip(maps, TEXTS, strict=True):
        (alone,) = explain(model, tokenizer, text, 'cp_lrp')
        assert torch.equal(a.scores, alone.scores)


# --- held against LOO, once


def flips(model, tokenizer, encs, target=None):
    """AttnLRP; where a batch's texts choose their class themselves, it takes
    another one than LOO.
    """
    if target is None and len(encs) > 1:
        batch = pad_batch(tokenizer, encs)
        target = 1 - int(model(**batch).logits[0].argmax())
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


HELD = {
    'attn_lrp': ('attn_lrp', {}),
    'flips': (flips, {}),
    'exact': ('removal+loo', {}),
    'mask': ('loo', dict(removal='mask_token')),
    'same': ('loo', {}),
}
HELD_TEXTS = [*TEXTS, 'A warm and funny film, and never once dull.']


@pytest.fixture(scope='module')
def held(tokenizer):
    "The same texts and methods by the three callers: (text, method) → r, targets."
    model = random_bert()
    encs = [encode(model, tokenizer, t) for t in HELD_TEXTS]
    worker = BatchWorker((model, tokenizer, 'random'), methods=HELD)
    table = pa.table(dict(index=range(len(encs)), text=HELD_TEXTS))
    found = worker(table).to_pandas()
    callers = [
        (
            {(r.index, r.method): r.r for r in found.itertuples(index=False)},
            dict(zip(found['index'], found.target)),
        )
    ]
    for rows_of in (faithfulness_rows, agreement_rows):
        rows = rows_of(model, tokenizer, encs, HELD)
        r = {(i, m): row['methods'][m]['r'] for i, row in enumerate(rows) for m in HELD}
        callers.append((r, {i: row['target'] for i, row in enumerate(rows)}))
    return callers


@pytest.mark.parametrize('method', HELD)
def test_three_callers_hold_methods_against_loo_alike(held, method):
    for i in range(len(HELD_TEXTS)):
        first, *others = [r[i, method] for r, _ in held]
        # a map's rounding (1e-6 of its largest score), over r's denominator
        assert others == pytest.approx([first] * 2, abs=1e-4, nan_ok=True), i


def test_three_callers_explain_the_same_targets(held):
    first, *others = [target for _, target in held]
    assert len(first) == len(HELD_TEXTS)
    assert others == [first] * 2


def test_the_reference_s_name_is_not_given_away(demo):
    model, tokenizer = demo
    with pytest.raises(ValueError, match="the name 'loo'"):
        faithfulness_rows(
            model,
            tokenizer,
            [encode(model, tokenizer, TEXTS[0])],
            {'loo': ('attn_lrp', {})},
        )


@pytest.mark.parametrize('text, said', [(TEXTS[0], 'none'), (TWO_MASKS, '2')])
def test_the_text_without_one_mask_is_told_from_others(mlm, tokenizer, text, said):
    with pytest.raises(ValueError, match=f'this text has {said}'):
        explain(mlm, tokenizer, [MASKED[0], text])
