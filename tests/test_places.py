"Which place of a text, which target and which embeddings are explained; padding changes nothing."

import copy

from conftest import TEXTS
from families import SIZES, drawn
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig
from peft import get_peft_model
import pytest
from close import assert_close, masked_one_at_a_time
from test_lrp import close
import torch

from lrp_loo import explain
from lrp_loo.inputs.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.methods.table import METHODS
from lrp_loo.models.encoding import encode
from lrp_loo.evaluate.audit import faithfulness_rows

MASKED = ['The [MASK] is slow.', 'Not one scene of this quiet film feels [MASK].']
SMALL = dict(SIZES, vocab_size=30522, num_hidden_layers=2)


def small(name, **config):
    "A small random model of transformers."
    config = {k: v for k, v in (SMALL | config).items() if v is not None}
    return drawn(name, config)


@torch.no_grad()
def output_of(model, enc):
    "The logits of one text."
    return model(**enc).logits[0]


def loo_of(model, enc, *where):
    "LOO of an entry of the logits."
    return masked_one_at_a_time(enc, lambda x: output_of(model, x)[where])[1]


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
        assert_close(a.logit, float(row.max()))
        assert a.info['position'] == place
        assert f'at token {place} ([MASK])' in a.explained
        if method == 'loo':
            close(a.scores, loo_of(mlm, enc, place, a.target), 1e-4)


def test_no_mask_or_several_ask_for_a_position(mlm, tokenizer):
    for text, said in ((TEXTS[0], 'none'), ('The [MASK] is [MASK].', '2')):
        for method in ('attn_lrp', 'loo'):
            with pytest.raises(ValueError, match='MASK.*position='):
                explain(mlm, tokenizer, text, method)
        with pytest.raises(ValueError, match=f'this text has {said}'):
            explain(mlm, tokenizer, [MASKED[0], text])
    (a,) = explain(mlm, tokenizer, MASKED[0], target=Target(position=1))
    assert a.info['position'] == 1 and 'at token 1 (the)' in a.explained
    with pytest.raises(ValueError, match='position='):  # without a tokenizer
        leave_one_out(mlm, encode(mlm, tokenizer, MASKED[0]))


def test_a_row_of_tokens_is_read_at_its_position(tokenizer):
    model, text = small('BertForTokenClassification', num_labels=3), TEXTS[0]
    for method in ('attn_lrp', 'loo'):
        with pytest.raises(ValueError, match='position='):
            explain(model, tokenizer, text, method)
    (a,) = explain(model, tokenizer, text, 'loo', target=Target(position=2))
    assert a.explained.startswith('target')
    assert a.explained.endswith('at token 2 (jokes)')
    enc = encode(model, tokenizer, text)
    close(a.scores, loo_of(model, enc, 2, a.target), 1e-4)
    decoder = small('LlamaForCausalLM', pad_token_id=0)
    for a in explain(decoder, tokenizer, TEXTS[:2]):
        assert a.explained.endswith(f'at token {len(a) - 1} ([SEP])')
    place = Target(position=3)
    (a,) = explain(decoder, tokenizer, text, units='word', target=place)
    assert 'at token 3 (are)' in a.explained


@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal'])
def test_question_answering_says_start_or_end(tokenizer, method):
    model = small('BertForQuestionAnswering')
    pair = ('Who sang?', 'The lead sang every song.')
    for output in ('start_logits', 'end_logits'):
        (a,) = explain(model, tokenizer, [pair], method, target=Target(output=output))
        place = f'{a.target} ({a.tokens[a.target]})'
        assert a.explained == f'{output[:-7]} at token {place}'


ASKED = {
    Target((3, 1), output='pooler_output'): (
        lambda out: out.pooler_output[:, 3] - out.pooler_output[:, 1]
    ),
    Target(3, output='pooler_output'): lambda out: out.pooler_output[:, 3],
    Target(1, 0, 'last_hidden_state'): lambda o: o.last_hidden_state[:, 0, 1],
}


@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal'])
def test_a_feature_that_is_named_is_explained(tokenizer, method):
    "And has no class's name, whatever labels the config has."
    model = small('BertModel')
    for target, by_hand in ASKED.items():
        found = explain(model, tokenizer, TEXTS[:2], method, target)
        wanted = explain(model, tokenizer, TEXTS[:2], method, by_hand)
        for a, b in zip(found, wanted, strict=True):
            close(a.scores, b.scores, 1e-4)
            assert 'LABEL' not in a.label + a.explained


PROMPTS = dict(
    prompt=PromptTuningConfig, prefix=PrefixTuningConfig, ptuning=PromptEncoderConfig
)


def prompted(model, kind):
    more = dict(encoder_hidden_size=16) if kind == 'ptuning' else {}
    config = PROMPTS[kind](task_type='CAUSAL_LM', num_virtual_tokens=4, **more)
    torch.manual_seed(1)
    model = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if 'prompt_encoder' in name and p.ndim > 1:
                p.normal_(0, 0.5)
    return model


@pytest.mark.parametrize('kind', PROMPTS)
def test_a_prompt_tuned_decoder_counts_the_text_s_tokens(kind, tokenizer):
    model = prompted(small('LlamaForCausalLM', pad_token_id=0), kind)
    for a, text in zip(explain(model, tokenizer, TEXTS[:2], 'loo'), TEXTS):
        enc = encode(model, tokenizer, text)
        assert a.target == int(output_of(model, enc)[-1].argmax())
        assert a.info['position'] == len(a) - 1
        close(a.scores, loo_of(model, enc, -1, a.target), 1e-4)
    place = Target(position=2)
    (early,) = explain(model, tokenizer, TEXTS[0], 'grad_x_input', target=place)
    logits = output_of(model, encode(model, tokenizer, TEXTS[0]))
    in_front = 0 if kind == 'prefix' else 4
    assert len(logits) == len(early) + in_front
    assert_close(early.logit, float(logits[in_front + 2].max()))
    # it does not see what follows
    assert early.scores[3:].abs().max() < 1e-6 * early.scores.abs().max()


FUNNEL = dict(d_model=32, n_head=4, d_head=8, d_inner=64)
READS_PADDING = {  # classifiers whose numbers change when a text is padded
    'FunnelForSequenceClassification': dict(
        FUNNEL, num_hidden_layers=None, block_sizes=[2, 2, 2]
    ),
    'FNetForSequenceClassification': {},
}
# 8, 11 and 21 tokens: Funnel pools by four, and feels padding of an odd number
LENGTHS = ['The jokes are old here.', 'A warm and funny film, now then.', TEXTS[2]]


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('name', READS_PADDING)
def test_padding_that_is_read_does_not_reach_an_explanation(name, tokenizer):
    model = small(name, **READS_PADDING[name])
    # FNet takes no mask, and so has no LOO by it
    exact = [] if name.startswith('FNet') else [dict(passes=None)]
    for how in [dict(method='attn_lrp'), *exact]:
        maps = explain(model, tokenizer, LENGTHS, **how)
        for a, text in zip(maps, LENGTHS, strict=True):
            (alone,) = explain(model, tokenizer, text, **how)
            assert a.target == alone.target
            close(a.scores, alone.scores, 1e-4)
    encs = [encode(model, tokenizer, t) for t in LENGTHS if exact]
    methods = {'attn_lrp': ('attn_lrp', {})}
    rows = encs and faithfulness_rows(model, tokenizer, encs, methods, batch_size=None)
    for row, enc in zip(rows, encs, strict=True):
        (alone,) = faithfulness_rows(model, tokenizer, [enc], methods)
        assert row['target'] == alone['target']
        own = alone['methods']['attn_lrp']['r']
        assert row['methods']['attn_lrp']['r'] == pytest.approx(own, abs=1e-3)


PAIR = ('the crew mended old nets', 'gulls cried over grey water today')
OPTIONS = dict(ig=dict(n_steps=3, baseline='zero'), loo=dict(removal='zero_embedding'))
T5_SIZES = dict(vocab_size=30522, d_model=32, d_kv=8, d_ff=64)
T5_SIZES |= dict(num_layers=2, num_heads=4, num_labels=3)


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


T5S = {'T5EncoderModel': 'last_hidden_state', 'UMT5ForTokenClassification': None}


@pytest.mark.parametrize('name, output', T5S.items())
def test_encoders_of_t5s_kind(tokenizer, name, output):
    model, text = drawn(name, T5_SIZES), ' '.join(PAIR)
    target = Target(1, 2, output)
    enc, named = encode(model, tokenizer, text), with_the_called_table(model)
    for method in ('grad_x_input', 'attn_lrp', 'ig', 'removal', 'loo', 'rollout'):
        options = OPTIONS.get(method, {})
        (found,) = explain(model, tokenizer, [text], method, target, **options)
        by_name = METHODS[method](named, tokenizer, [enc], target, **options)
        assert float(found.scores.abs().max()) > 1e-4
        close(found.scores, by_name.scores[0].detach(), 1e-4)


class Adapted(torch.nn.Module):
    "A table with something added, as adapters have it: its weights are inside."

    def __init__(self, table):
        super().__init__()
        self.base_layer = table
        self.more = torch.nn.Embedding.from_pretrained(table.weight.detach())
        self.weight = table.weight

    def forward(self, ids):
        return self.base_layer(ids) + self.more(ids)


class Sums(torch.nn.Module):
    """A linear model, whose logit is the sum of its scores. It looks up kinds of
    tokens as well if it is asked to, as GPT-2 does.
    """

    def __init__(self, with_kinds=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = Adapted(torch.nn.Embedding(30522, 8))
        self.head = torch.nn.Linear(8, 2, bias=False)
        self.get_input_embeddings = lambda: self.table
        self.with_kinds = with_kinds

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        kinds = self.table(token_type_ids).sum(1) if self.with_kinds else 0
        return self.head(self.table(input_ids).sum(1) + kinds)


def test_a_table_inside_the_table_is_not_looked_up_by_itself(tokenizer):
    "What an adapter adds counts; kinds of tokens, looked up first, are no text."
    model = Sums().eval()
    with torch.no_grad():
        logit = float(model(**encode(model, tokenizer, PAIR[0]))[0, 1])
    for method in ('grad_x_input', 'attn_lrp', 'cp_lrp'):
        (a,) = explain(model, tokenizer, [PAIR[0]], method, 1)
        assert_close(float(a.scores.sum()), logit)
    (a,) = explain(Sums(with_kinds=True).eval(), tokenizer, [PAIR], 'grad_x_input', 1)
    (alone,) = explain(model, tokenizer, [PAIR], 'grad_x_input', 1)
    close(a.scores, alone.scores, 1e-4)
