"Which place of a text, and which target, is explained; and that a batch's padding does not change it."

from types import SimpleNamespace

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
from lrp_loo.methods import METHODS
from lrp_loo.dataset import BatchWorker
from lrp_loo.faithfulness import agreement_rows, faithfulness_rows
from lrp_loo.models import encode, pad_batch
from lrp_loo.loo import leave_one_out
from lrp_loo import targets
from lrp_loo.targets import Readout, Target, settled

MASKED = [
    'The [MASK] is slow.',
    'Not one scene of this quiet film feels [MASK].',
]
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


def masked_one_at_a_time(model, enc, read):
    """LOO by one forward pass per token; `read` takes the number from the
    output.
    """
    with torch.no_grad():
        whole = read(model(**enc))
        scores = []
        for i in range(enc['input_ids'].shape[1]):
            mask = enc['attention_mask'].clone()
            mask[0, i] = 0
            scores.append(
                whole - read(model(**enc | dict(attention_mask=mask)))
            )
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


@pytest.mark.parametrize(
    'method', ['attn_lrp', 'removal', 'rollout', 'ig', 'loo']
)
def test_a_masked_language_model_is_explained_at_its_mask(
    mlm, tokenizer, method
):
    for a, text in zip(explain(mlm, tokenizer, MASKED, method), MASKED):
        enc = encode(mlm, tokenizer, text)
        place = enc['input_ids'][0].tolist().index(tokenizer.mask_token_id)
        with torch.no_grad():
            row = mlm(**enc).logits[0, place]
        assert a.target == int(row.argmax()) and a.logit == pytest.approx(
            float(row.max()), rel=1e-4
        )
        assert (
            a.info['position'] == place
            and f'at token {place} ([MASK])' in a.explained
        )


def test_loo_of_a_masked_language_model_is_read_at_its_mask(mlm, tokenizer):
    for a, text in zip(explain(mlm, tokenizer, MASKED, 'loo'), MASKED):

        def read(out):
            return out.logits[0, a.info['position'], a.target]

        same(
            a.scores,
            masked_one_at_a_time(mlm, encode(mlm, tokenizer, text), read),
        )


@pytest.mark.parametrize(
    'text, said', [(TEXTS[0], 'none'), ('The [MASK] is [MASK].', '2')]
)
def test_no_mask_or_several_ask_for_a_position(mlm, tokenizer, text, said):
    for method in ('attn_lrp', 'loo'):
        with pytest.raises(ValueError, match=r'position=') as e:
            explain(mlm, tokenizer, text, method)
        assert 'MASK' in str(e.value)
    with pytest.raises(ValueError, match=f'this text has {said}'):
        explain(
            mlm,
            tokenizer,
            (
                [MASKED[0], 'The [MASK] is [MASK].']
                if said == '2'
                else [MASKED[0], text]
            ),
        )


def test_a_given_position_wins_over_the_mask(mlm, tokenizer):
    (a,) = explain(mlm, tokenizer, MASKED[0], target=Target(position=1))
    assert a.info['position'] == 1 and 'at token 1 (the)' in a.explained


def test_without_a_tokenizer_a_masked_language_model_asks_for_a_position(
    mlm, tokenizer
):
    enc = encode(mlm, tokenizer, MASKED[0])
    with pytest.raises(ValueError, match='position='):
        leave_one_out(mlm, enc)
    assert (
        len(leave_one_out(mlm, enc, Target(position=2))[0])
        == enc['input_ids'].shape[1]
    )


def test_deleting_tokens_would_move_the_mask(mlm, tokenizer):
    with pytest.raises(ValueError, match='moves the tokens'):
        explain(mlm, tokenizer, MASKED[0], 'loo', removal='delete')


def test_a_token_classifier_asks_for_a_position(tokenizer):
    model = small('BertForTokenClassification', num_labels=3)
    for method in ('attn_lrp', 'loo'):
        with pytest.raises(ValueError, match='position='):
            explain(model, tokenizer, TEXTS[0], method)
    (a,) = explain(model, tokenizer, TEXTS[0], 'loo', target=Target(position=2))
    assert a.explained.startswith('target') and a.explained.endswith(
        'at token 2 (jokes)'
    )
    same(
        a.scores,
        masked_one_at_a_time(
            model,
            encode(model, tokenizer, TEXTS[0]),
            lambda out: out.logits[0, 2, a.target],
        ),
    )


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
    assert (
        'at token 3 (are)'
        in explain(
            model, tokenizer, TEXTS[0], units='word', target=Target(position=3)
        )[0].explained
    )


def test_padding_on_the_left_does_not_move_the_last_token():
    CausalLMOutput = type('CausalLMOutput', (SimpleNamespace,), {})
    out = CausalLMOutput(logits=torch.arange(24.0).view(2, 4, 3))
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    assert Readout(2, out, dict(attention_mask=mask))(out).tolist() == [
        11.0,
        23.0,
    ]
    assert Readout(Target(0, position=0), out, dict(attention_mask=mask))(
        out
    ).tolist() == [0.0, 18.0]


def test_a_settled_target_keeps_its_place():
    enc = dict(input_ids=torch.tensor([[1, 9, 2]]))
    assert settled(
        targets.at_mask(None, SimpleNamespace(mask_token_id=9), [enc]), 5
    ) == Target(5, mask_id=9)
    assert settled('film', 5) == Target(5)


@pytest.mark.parametrize('output', ['start_logits', 'end_logits'])
def test_question_answering_says_start_or_end(tokenizer, output):
    model = small('BertForQuestionAnswering')
    pair = ('Who sang?', 'The lead sang every song.')
    for method in ('attn_lrp', 'loo'):
        (a,) = explain(
            model, tokenizer, [pair], method, target=Target(output=output)
        )
        assert (
            a.explained
            == f"{output[:-7]} at token {a.target} ({a.tokens[a.target]})"
        )


# --- prompts in front of the text


PROMPTS = dict(
    prompt=PromptTuningConfig,
    prefix=PrefixTuningConfig,
    ptuning=PromptEncoderConfig,
)


def prompted(model, kind, task):
    config = PROMPTS[kind](
        task_type=task,
        num_virtual_tokens=4,
        **(dict(encoder_hidden_size=16) if kind == 'ptuning' else {}),
    )
    torch.manual_seed(1)
    model = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if 'prompt_encoder' in name and p.ndim > 1:
                p.normal_(0, 0.5)
    return model


@pytest.mark.parametrize('kind', PROMPTS)
def test_a_prompt_tuned_decoder_is_read_at_the_text_s_tokens(tokenizer, kind):
    model = prompted(
        small('LlamaForCausalLM', pad_token_id=0), kind, 'CAUSAL_LM'
    )
    maps = explain(model, tokenizer, TEXTS[:2], 'loo')
    for a, text in zip(maps, TEXTS):
        enc = encode(model, tokenizer, text)
        with torch.no_grad():
            row = model(**enc).logits[0, -1]
        assert (
            a.target == int(row.argmax()) and a.info['position'] == len(a) - 1
        )
        same(
            a.scores,
            masked_one_at_a_time(
                model, enc, lambda out: out.logits[0, -1, a.target]
            ),
        )
    (early,) = explain(
        model, tokenizer, TEXTS[0], 'grad_x_input', target=Target(position=2)
    )
    with torch.no_grad():
        logits = model(**encode(model, tokenizer, TEXTS[0])).logits
    in_front = logits.shape[1] - len(early)
    assert in_front == (
        0 if kind == 'prefix' else 4
    ) and early.logit == pytest.approx(
        float(logits[0, in_front + 2].max()), rel=1e-4
    )
    assert (
        early.scores[3:].abs().max() < 1e-6 * early.scores.abs().max()
    )  # it does not see what follows


@pytest.mark.parametrize('kind', PROMPTS)
def test_a_prompt_tuned_classifier_scores_the_text_s_tokens(tokenizer, kind):
    model = prompted(random_bert(layers=2), kind, 'SEQ_CLS')
    enc = encode(model, tokenizer, TEXTS[0])
    (loo,) = explain(model, tokenizer, TEXTS[0], 'loo')
    same(
        loo.scores,
        masked_one_at_a_time(model, enc, lambda out: out.logits[0, loo.target]),
    )
    with pytest.raises(ValueError, match='one key per input'):
        explain(model, tokenizer, TEXTS[0], 'removal')


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

LENGTHS = [
    'The jokes are old here.',
    'A warm and funny film, now then.',
    TEXTS[2],
    # 8 tokens, 11 and 21: Funnel pools by four, and feels padding where a text
    # has an odd number
]


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('name', READS_PADDING)
def test_padding_that_is_read_does_not_reach_an_explanation(name, tokenizer):
    model = small(name, **READS_PADDING[name])
    for a, text in zip(explain(model, tokenizer, LENGTHS), LENGTHS):
        (alone,) = explain(model, tokenizer, text)
        assert a.target == alone.target
        same(a.scores, alone.scores)


@pytest.mark.parametrize(
    'name',
    ['ConvBertForSequenceClassification', 'FunnelForSequenceClassification'],
)
def test_agreement_rows_are_the_single_texts_where_padding_is_read(
    name, tokenizer
):
    model = small(name, **READS_PADDING[name])
    encs = [encode(model, tokenizer, t) for t in LENGTHS]
    methods = {'attn_lrp': ('attn_lrp', {})}
    for a, e in zip(agreement_rows(model, tokenizer, encs, methods), encs):
        (alone,) = agreement_rows(model, tokenizer, [e], methods)
        assert a['target'] == alone['target']
        assert a['methods']['attn_lrp']['r'] == pytest.approx(
            alone['methods']['attn_lrp']['r'], abs=1e-3
        )


class Averages(torch.nn.Module):
    "A classifier that averages over all places, padding among them."

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30522, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.embed(input_ids).tanh().mean(1))


@pytest.mark.parametrize('target', [None, lambda out: out[:, 1] ** 2])
def test_padding_that_is_averaged_does_not_reach_an_explanation(
    tokenizer, target
):
    torch.manual_seed(0)
    model = Averages().eval()
    for a, text in zip(
        explain(model, tokenizer, TEXTS, 'grad_x_input', target=target), TEXTS
    ):
        same(
            a.scores,
            explain(model, tokenizer, text, 'grad_x_input', target=target)[
                0
            ].scores,
        )


def test_a_decoder_classifier_without_padding_token_takes_several_texts(
    tokenizer,
):
    model = small(
        'GPT2ForSequenceClassification', n_embd=32, n_layer=2, n_head=4
    )
    assert model.config.pad_token_id is None
    for a, text in zip(explain(model, tokenizer, TEXTS, 'cp_lrp'), TEXTS):
        assert torch.equal(
            a.scores, explain(model, tokenizer, text, 'cp_lrp')[0].scores
        )


# --- held against LOO, once


def flips(model, tokenizer, encs, target=None):
    """AttnLRP; where a batch's texts choose their class themselves, it takes
    another one than LOO.
    """
    if target is None and len(encs) > 1:
        batch = pad_batch(tokenizer, encs)
        target = 1 - int(model(**batch).logits[0].argmax())
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


def test_three_callers_hold_methods_against_loo_alike(tokenizer):
    import pyarrow as pa

    model = random_bert()
    texts = [*TEXTS, 'A warm and funny film, and never once dull.']
    encs = [encode(model, tokenizer, t) for t in texts]
    methods = {
        'attn_lrp': ('attn_lrp', {}),
        'flips': (flips, {}),
        'exact': ('removal+loo', {}),
        'mask': ('loo', dict(removal='mask_token')),
        'same': ('loo', {}),
    }
    worker = BatchWorker((model, tokenizer, 'random'), methods=methods)(
        pa.table(dict(index=range(len(texts)), text=texts))
    ).to_pandas()
    rows = (
        faithfulness_rows(model, tokenizer, encs, methods),
        agreement_rows(model, tokenizer, encs, methods),
    )
    for i in range(len(texts)):
        for m in methods:
            found = [r[i]['methods'][m]['r'] for r in rows] + worker.r[
                (worker['index'] == i) & (worker.method == m)
            ].tolist()
            assert found == pytest.approx(
                [found[0]] * 3, abs=1e-4, nan_ok=True
            ), (
                i,
                m,
                # a map's rounding (1e-6 of its largest score), over r's
                # denominator
            )
        assert {r[i]['target'] for r in rows} == set(
            worker.target[worker['index'] == i]
        )


def test_the_reference_s_name_is_not_given_away(demo):
    model, tokenizer = demo
    with pytest.raises(ValueError, match="the name 'loo'"):
        faithfulness_rows(
            model,
            tokenizer,
            [encode(model, tokenizer, TEXTS[0])],
            {'loo': ('attn_lrp', {})},
        )
