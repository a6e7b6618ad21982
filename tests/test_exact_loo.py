"Exact LOO is one masked pass at a time: by stored states where they agree, else masked."

import pytest
import torch
import transformers
from close import masked_one_at_a_time
from conftest import CountTokens
from families import random_inputs, random_model
from torch import nn

from lrp_loo import explain
from lrp_loo.estimate import removal_scores
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units
from lrp_loo.inputs.scores import GeneratedReadout
from lrp_loo.inputs.targets import output_field
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.loo.engines import read_subsets
from lrp_loo.loo.states import why_no_states
from lrp_loo.methods import explain_batch
from lrp_loo.methods.baselines import loo_scores
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import forward

N_TOKENS = 12
WIDTH = dict(vocab_size=200, hidden_size=32, pad_token_id=0)
HEADED = dict(num_attention_heads=4, intermediate_size=64)
SIZES = WIDTH | HEADED | dict(num_hidden_layers=2, max_position_embeddings=64)
SIZES |= dict(bos_token_id=1, eos_token_id=2)
NEO = dict(window_size=4, attention_types=[[['global', 'local'], 1]])
SHORT = dict(vocab_size=200, d_model=32, pad_token_id=0)  # names of its own
LAYERS = dict(n_layer=2, n_head=4)
GRIFFIN = dict(num_hidden_layers=3, lru_width=32, num_key_value_heads=2, head_dim=8)
GRIFFIN |= dict(attention_window_size=4)
CLASS, NEXT = 'ForSequenceClassification', 'ForCausalLM'

# families whose states are not stored: class → configuration
UNLISTED = {
    'GPTNeo' + NEXT: SIZES | NEO | dict(num_layers=2, num_heads=4),
    'MPNet' + CLASS: SIZES,  # relative positions
    'XLNet' + CLASS: SHORT | LAYERS | dict(d_inner=64),  # relative
    'Bloom' + NEXT: WIDTH | LAYERS,  # ALiBi
    # positions from the mask
    'OPT' + NEXT: SIZES | dict(ffn_dim=64, word_embed_proj_dim=32),
    'Mamba' + NEXT: SIZES | dict(state_size=8, time_step_rank=4),
}
# what hands a hidden token on to its neighbours, beside attention
MIXING = {
    'ConvBert' + CLASS: SIZES,
    'Nystromformer' + CLASS: SIZES | dict(segment_means_seq_len=64),
    'RecurrentGemma' + NEXT: SIZES | GRIFFIN,
}
LISTED = [
    *[(f, 'class') for f in ('BERT', 'RoBERTa', 'ELECTRA', 'DistilBERT', 'ALBERT')],
    *[(f, 'class') for f in ('GPT-2', 'Llama', 'Qwen2', 'Gemma 3', 'ModernBERT')],
    *[(f, 'class') for f in ('Mistral', 'Phi-3', 'Qwen3')],  # Mistral: a short window
    *[(f, 'next token') for f in ('GPT-2', 'Llama', 'Qwen3', 'Phi-3', 'Mistral')],
    ('BERT', 'answer'),
]


def unlisted_model(name, std=None):
    "Small, random; std of every matrix, None: as transformers makes it."
    cls = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cls(cls.config_class(**(UNLISTED | MIXING)[name])).eval()
        spread_weights(model, std)
    return model


@torch.no_grad()
def spread_weights(model, std):
    for p in model.parameters():
        if std is not None and p.ndim > 1:
            p.normal_(0, std)


def text(n=N_TOKENS, seed=1):
    ids = torch.randint(5, 190, (1, n), generator=torch.Generator().manual_seed(seed))
    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}


def one_masked_pass_at_a_time(model, enc, target):
    "LOO (T,) and the logit's size, by the definition, at the last row where each has one."

    def f(inputs):
        out = output_field(forward(model, inputs))[0]
        return (out[-1] if out.ndim == 2 else out)[target]

    mask = dict(attention_mask=torch.ones_like(enc['input_ids']))
    whole, loo = masked_one_at_a_time(mask | enc, f)
    return loo, whole.abs()


def assert_exact(loo, expected, logit):
    """To 1e-4 of the largest effect, and what two orders of summation differ
    by: some 32 units in the last place of the logit.
    """
    same_type = loo.dtype == expected.dtype
    eps = torch.finfo(expected.dtype if same_type else loo.dtype).eps
    allowed = 1e-4 * float(expected.abs().max()) + 32 * eps * float(logit)
    assert float((loo - expected).abs().max()) <= allowed


def assert_loo_is_exact(model, enc):
    loo, _, target = leave_one_out(model, enc)
    assert_exact(loo, *one_masked_pass_at_a_time(model, enc, target))


@pytest.mark.parametrize('name', UNLISTED)
def test_unlisted_families_are_masked(name):
    for std in (None, 0.05, 0.1):
        model = unlisted_model(name, std)
        # such weights give effects near 1e-5: rounding would be what is compared
        model = model.double() if std is None else model
        assert why_no_states(model) or name.startswith('MPNet')
        assert_loo_is_exact(model, text())


@pytest.mark.parametrize('name', MIXING)
def test_what_a_mask_does_not_hide_is_refused(name):
    model = unlisted_model(name, 0.1)
    with pytest.raises(ValueError, match="mixes tokens before it.*removal='delete'"):
        leave_one_out(model, text())


@pytest.mark.parametrize('std', [0.02, 0.1])
@pytest.mark.parametrize('family,task', LISTED)
def test_listed_families_are_exact(family, task, std):
    # with every text in a batch of its own, and with all in a few
    budget = 30 if std == 0.1 else 8192
    # at 0.02 the hidden states are near 1 and LOO near 1e-4: single precision's
    # rounding would be what is compared
    dtype = torch.float64 if std == 0.02 else torch.float32
    model = random_model(family, task, 'sdpa', dtype=dtype)
    spread_weights(model, std)
    encs = [random_inputs(model, n) for n in (N_TOKENS, 3, 11, 40, 2)]
    encs.append({k: v.clone() for k, v in encs[2].items()})  # a copy of a text
    encs += [{'input_ids': e['input_ids']} for e in encs[1:3]]  # without a mask
    for enc, one in zip(encs, many_loo(model, encs, token_budget=budget), strict=True):
        expected = one_masked_pass_at_a_time(model, enc, one.readout.chosen(0))
        assert_exact(one.scores, *expected)


FEWER_ROWS = [(f, t) for f, t in LISTED if f in ('BERT', 'RoBERTa', 'Llama', 'Qwen3')]


@pytest.mark.parametrize('family,task', FEWER_ROWS)
def test_fewer_rows_are_computed_than_all_variants_have(family, task):
    "Except of an answer, which may be read at any row."
    model = random_model(family, task, 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, 40)
    keep = torch.ones(16, 40, dtype=torch.bool)
    for i in range(16):
        keep[i, 2 + i : 22 + i] = False
    read_subsets(model, [enc], [keep], [0])  # what is shown once a model
    with CountTokens(model) as count:
        (found,) = read_subsets(model, [enc], [keep], [0])
    assert (count.n < 0.9 * 17 * 40) == (task != 'answer')
    with torch.no_grad():
        masked = [model(**enc | dict(attention_mask=k[None].long())) for k in keep]
    expected = torch.stack([found.readout(out)[0] for out in masked])
    assert_exact(found.values, expected, expected.abs().max())


# ---- models that somebody changed


def bert():
    return random_model('BERT', 'class', 'sdpa', dtype=torch.float32)


def at_row_1(module, args, out):
    "A row-wise edit: it means another token once one in front of it was dropped."
    out = out[0] if isinstance(out, tuple) else out
    changed = out.clone()
    if out.ndim == 3 and out.shape[1] > 1:
        changed[:, 1] *= 0
    return changed


def place(model):
    "A module of the first layer, and the name of its linear part."
    if hasattr(model, 'bert'):
        return model.bert.encoder.layer[0].output, 'dense'
    return model.model.layers[0].mlp, 'down_proj'


def hooked(module, name, part):
    part.register_forward_hook(at_row_1)


class AtRow1(nn.Linear):
    def forward(self, x):
        return at_row_1(None, None, super().forward(x))


def of_another_class(module, name, part):
    new = AtRow1(part.in_features, part.out_features, bias=part.bias is not None)
    new.load_state_dict(part.state_dict())
    setattr(module, name, new)


class Convolved(nn.Module):
    "Neighbouring tokens meet outside attention."

    def __init__(self, d_in, d_out):
        super().__init__()
        self.conv = nn.Conv1d(d_in, d_out, 3, padding=1)

    def forward(self, x):
        return self.conv(x.mT).mT


def convolved(module, name, part):
    torch.manual_seed(0)
    setattr(module, name, Convolved(part.in_features, part.out_features))


@pytest.mark.parametrize('family', ['Llama', 'BERT'])
@pytest.mark.parametrize('change', [hooked, of_another_class, convolved])
def test_no_states_of_a_changed_model_are_stored(change, family):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    module, name = place(model)
    change(module, name, getattr(module, name))
    assert why_no_states(model)
    enc = random_inputs(model, N_TOKENS)
    if change is not convolved:
        return assert_loo_is_exact(model, enc)
    with pytest.raises(ValueError, match='mixes tokens before it'):
        leave_one_out(model, enc)


@pytest.mark.parametrize('task', ['class', 'next token'])
def test_a_text_that_ends_in_the_padding_token(task):
    "A classifier reads the row before it; a language model that row."
    model = random_model('Llama', task, 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    enc['input_ids'][0, -1] = model.config.pad_token_id
    assert_loo_is_exact(model, enc)


# ---- an attention mask with zeros


def padded(enc, left=0, right=0, hole=None):
    wider = {k: nn.functional.pad(v, (left, right)) for k, v in enc.items()}
    if hole is not None:
        wider['attention_mask'][0, hole] = 0
    return {k: wider[k] for k in ('input_ids', 'attention_mask')}


PADDINGS = {'right': dict(right=3), 'left': dict(left=3), 'hole': dict(hole=5)}
PADDINGS['both'] = dict(left=2, right=2)


WITH_MASKS = ('BERT', 'DistilBERT', 'RoBERTa', 'GPT-2', 'Llama', 'DeBERTa-v2')


@pytest.mark.parametrize('how', PADDINGS)
@pytest.mark.parametrize('family', WITH_MASKS)
def test_hidden_tokens_stay_hidden(family, how):
    """LOO of the rest is that of masked passes of the same input; what was
    hidden has 0.
    """
    model = random_model(family, 'class', 'eager', dtype=torch.float32)
    spread_weights(model, 0.1)
    enc = padded(random_inputs(model, N_TOKENS), **PADDINGS[how])
    seen = enc['attention_mask'][0] == 1
    if family == 'RoBERTa':
        enc['input_ids'][0, ~seen] = model.config.pad_token_id
    loo, logits, target = leave_one_out(model, enc)
    expected, logit = one_masked_pass_at_a_time(model, enc, target)
    assert_exact(loo, expected, logit)
    assert (loo[~seen] == 0).all()
    assert (loo[seen] != 0).any()
    with torch.no_grad():
        assert_exact(logits, forward(model, enc).logits[0], logit)


@pytest.mark.parametrize('removal', ['zero_embedding', 'mask_token'])
def test_padding_stays_as_it_is_under_other_removals(removal):
    model = random_model('BERT', 'class', 'eager', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    alone, *_ = leave_one_out(model, enc, 0, removal, 103)
    with_padding, *_ = leave_one_out(model, padded(enc, right=3), 0, removal, 103)
    assert_exact(with_padding[:N_TOKENS], alone, alone.abs().max())
    assert (with_padding[N_TOKENS:] == 0).all()


@pytest.mark.parametrize('how', PADDINGS)
def test_subsets_and_curves_keep_to_the_mask(how):
    model = bert()
    enc = padded(random_inputs(model, N_TOKENS), **PADDINGS[how])
    mask = enc['attention_mask'][0].bool()
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(20, len(mask), generator=generator) < 0.6
    keep[:, mask.nonzero()[0]] = True
    with torch.no_grad():
        whole = model(**enc).logits[0, 0]
        masks = [(k & mask)[None].long() for k in keep]
        own = [model(**enc | dict(attention_mask=m)).logits[0] for m in masks]
    own = torch.stack(own)
    (found,) = read_subsets(model, [enc], [keep], [0])
    assert_exact(found.values, own[:, 0], own.abs().max())
    scores = [{'m': torch.arange(len(mask)).float()}]
    (curves,) = perturbation_curves(model, [enc], scores, [removal_units(~mask)], [0])
    morf, _ = curves['m']
    assert len(morf) == int(mask.sum()) + 1
    assert_exact(morf[:1], whole[None], whole.abs())


MASKS = [
    (torch.zeros(1, N_TOKENS), 'hold 1 for tokens'),
    (torch.ones(1, N_TOKENS + 1), 'of shape'),
    (torch.full((1, N_TOKENS), 0.5), 'hold 1 for tokens'),
]


@pytest.mark.parametrize('mask,said', MASKS)
def test_a_mask_that_makes_no_sense_is_refused(mask, said):
    model = bert()
    enc = random_inputs(model, N_TOKENS) | dict(attention_mask=mask)
    with pytest.raises(ValueError, match=said):
        leave_one_out(model, enc)


# ---- models that ignore the mask, or answer by chance


class BagOfWords(nn.Module):
    "A model of one's own that takes no mask."

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(200, 8), nn.Linear(8, 2)

    def forward(self, input_ids):
        return self.head(self.table(input_ids).mean(1))


class Deaf(BagOfWords):
    "The same, and it takes whatever it is given."

    def forward(self, input_ids, **kwargs):
        return super().forward(input_ids)


def fnet():
    sizes = {k: v for k, v in SIZES.items() if k != 'num_attention_heads'}
    return transformers.FNetForSequenceClassification(transformers.FNetConfig(**sizes))


def rwkv():
    sizes = dict(num_hidden_layers=2, attention_hidden_size=32, context_length=64)
    config = transformers.RwkvConfig(vocab_size=200, hidden_size=32, **sizes)
    return transformers.RwkvForCausalLM(config)


MASK_TO_NOBODY = [
    (fnet, 'attention_mask'),
    (rwkv, 'ignores the attention mask or'),
    (BagOfWords, 'takes no attention_mask'),
    (Deaf, 'ignores the attention mask or'),
]


@pytest.mark.parametrize('make,said', MASK_TO_NOBODY)
def test_a_model_that_ignores_the_mask_is_refused(make, said):
    torch.manual_seed(0)
    model = make().eval()
    enc = text() if make is rwkv else {'input_ids': text()['input_ids']}
    for target in (None, lambda out: output_field(out).flatten(1)[:, -1]):
        with pytest.raises(ValueError, match=said) as error:
            leave_one_out(model, enc, target)
        assert type(model).__name__ in str(error.value)
        assert 'zero_embedding' in str(error.value)
    loo, _, _ = leave_one_out(model, enc, removal='zero_embedding')
    assert loo.abs().max() > 0


class Dice(BagOfWords):
    def forward(self, input_ids, attention_mask):
        x = self.table(input_ids) * attention_mask[..., None]
        return self.head(x.mean(1) + torch.randn_like(x[:, 0]))


def test_a_model_that_answers_by_chance_is_refused():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match='another output each time'):
        leave_one_out(Dice().eval(), text())


class Crowded(BagOfWords):
    "Numbers depend on the rest of the batch, as in layers quantized on the fly."

    def forward(self, input_ids, attention_mask):
        x = (self.table(input_ids) * attention_mask[..., None]).mean(1)
        step = x.abs().max() / 8
        return self.head((x / step).round() * step)


def test_what_depends_on_the_batch_is_computed_alone():
    torch.manual_seed(0)
    assert_loo_is_exact(Crowded().eval(), text())


QUANTIZED = [('ModernBERT', 'class'), ('Llama', 'next token'), ('GPT-2', 'next token')]


@torch.no_grad()
@pytest.mark.parametrize('family,task', QUANTIZED)
def test_a_dynamically_quantized_model_reads_each_variant_alone(
    family, task, tokenizer
):
    "Ranges of activations are taken over the pass: in a batch a text has other numbers."
    model = random_model(family, task, 'sdpa', dtype=torch.float32)
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    encs = [text(16, seed=3), text(9), text(16)]
    for enc, one in zip(encs, many_loo(model, encs, 1, 'delete'), strict=True):
        kept = ~torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)
        kept = [enc, *({name: x[:, k] for name, x in enc.items()} for k in kept)]
        f = torch.stack([model(**e).logits.flatten(0, -2)[-1, 1] for e in kept])
        assert torch.equal(one.scores, f[0] - f[1:])
    ids = encs[0]['input_ids']
    if task == 'class':
        maps = explain_batch(model, tokenizer, encs, 'rollout', 1)
        for a, enc in zip(maps, encs, strict=True):
            assert a.logit == float(model(**enc).logits[0, 1])
    else:
        readout = GeneratedReadout(ids[0], 12)
        found = loo_scores(model, tokenizer, encs[:1], readout).scores
        masks = torch.cat([torch.ones(1, 16), 1 - torch.eye(16)])[:, None]
        rows = [model(ids, attention_mask=m).logits[0, 11:15] for m in masks]
        f = torch.stack([row.gather(1, ids[0, 12:, None])[:, 0] for row in rows], 1)
        assert torch.equal(found, f[:, :1] - f[:, 1:])


HALF = [('BERT', 'class'), ('DistilBERT', 'class'), ('GPT-2', 'class')]
HALF += [('Llama', 'next token'), ('ModernBERT', 'class')]
EXACT = dict(loo={}, auto=dict(passes=9))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('family,task', HALF)
def test_half_precision_explains_the_number_that_the_model_returns(
    family, task, dtype, tokenizer
):
    "Also of the variants: exact scores of all methods have no common error."
    model = random_model(family, task, 'sdpa', dtype=dtype)
    enc = text(24)
    expected, number = one_masked_pass_at_a_time(model, enc, 1)
    for name in ('removal', 'attn_lrp', 'cp_lrp', 'grad_x_input'):
        options = [{}, dict(eps=1e-3)] if 'lrp' in name else [{}]
        for option in options:
            value = METHODS[name](model, tokenizer, [enc], 1, **option).values[0]
            assert float(value.abs()) == float(number), name
    for name, options in EXACT.items():
        scores = METHODS[name](model, tokenizer, [enc], 1, **options)
        assert float(scores.values[0].abs()) == float(number)
        exact = scores.info[0]['exact']
        error = scores.scores[0] - expected
        error = error if exact is True else error[exact]
        assert float(error.mean().abs()) < 1e-2


# ---- several texts without a padding token


@pytest.mark.parametrize('family', ['GPT-2', 'Llama'])
def test_without_a_padding_token_texts_are_explained_one_by_one(tokenizer, family):
    sizes = dict(dtype=torch.float32, vocab_size=30522, pad_token_id=None)
    model = random_model(family, 'class', 'eager', **sizes)
    several = ["The jokes are old.", "Fine."]
    for method, n in (('loo', 2), ('ig', 1)):
        with pytest.raises(ValueError, match='set model.config.pad_token_id'):
            explain(model, tokenizer, several[:n], method=method)
    for method in ('attn_lrp', 'removal', 'rollout'):
        together = explain(model, tokenizer, several, method=method)
        for one_text, found in zip(several, together):
            (alone,) = explain(model, tokenizer, one_text, method=method)
            assert torch.equal(found.scores, alone.scores)


@pytest.mark.parametrize('last', ['full_attention', 'conv'])
def test_removal_refuses_a_convolution_wherever_it_stands(last):
    first = {'full_attention': 'conv', 'conv': 'full_attention'}[last]
    kind = transformers.Lfm2ForCausalLM
    config = kind.config_class(
        **SIZES, num_key_value_heads=2, layer_types=[first, last]
    )
    torch.manual_seed(0)
    model = kind(config).eval()
    spread_weights(model, 0.1)
    with pytest.raises(ValueError, match='no attention sees still changes'):
        removal_scores(model, None, [text()])
