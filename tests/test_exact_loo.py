"Exact LOO is one masked pass at a time: dropped where that is known to be exact, else masked."

from functools import partial

import pytest
import torch
import transformers
from conftest import CountTokens
from families import random_inputs, random_model
from torch import nn
from tqdm.auto import tqdm

from lrp_loo import explain
from lrp_loo.inputs.targets import Readout, Target, output_field
from lrp_loo.loo import format_duration, leave_one_out, loo_seconds, many_loo
from lrp_loo.loo.droppable import (
    DROP_DECODERS,
    DROP_ENCODERS,
    can_drop_rows,
    rows_can_be_dropped,
)
from lrp_loo.loo.engines import read_whole, subset_logits
from lrp_loo.models.call import forward
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units
from lrp_loo.estimate import removal_scores

N_TOKENS = 12
WIDTH = dict(vocab_size=200, hidden_size=32, pad_token_id=0)
HEADED = dict(num_attention_heads=4, intermediate_size=64)
SIZES = WIDTH | HEADED | dict(num_hidden_layers=2, max_position_embeddings=64)
SIZES |= dict(bos_token_id=1, eos_token_id=2)
NEO = dict(window_size=4, attention_types=[[['global', 'local'], 1]])
SHORT = dict(vocab_size=200, d_model=32, pad_token_id=0)  # names of its own
LAYERS = dict(n_layer=2, n_head=4)
FUNNEL = dict(d_head=8, block_sizes=[1, 1], num_decoder_layers=1)
GRIFFIN = dict(num_hidden_layers=3, lru_width=32, num_key_value_heads=2, head_dim=8)
GRIFFIN |= dict(attention_window_size=4)
RELATIVE = dict(relative_attention=True, pos_att_type=['p2c', 'c2p'])
CLASS, NEXT = 'ForSequenceClassification', 'ForCausalLM'

# what may not be dropped, or only by luck: class → configuration
UNLISTED = {
    'GPTNeo' + NEXT: SIZES | NEO | dict(num_layers=2, num_heads=4),
    'MPNet' + CLASS: SIZES,  # relative positions
    'Deberta' + CLASS: SIZES | RELATIVE,
    'XLNet' + CLASS: SHORT | LAYERS | dict(d_inner=64),  # relative
    'Bloom' + NEXT: WIDTH | LAYERS,  # ALiBi
    'Mpt' + NEXT: SHORT | dict(n_layers=2, n_heads=4),  # ALiBi
    'Funnel' + CLASS: SHORT | FUNNEL | dict(n_head=4, d_inner=64),  # pooling
    'SqueezeBert' + CLASS: SIZES | dict(embedding_size=32),
    'RoFormer' + CLASS: SIZES,
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


# what may not be dropped, or only by luck: name → class, configuration


@torch.no_grad()
def spread_weights(model, std):
    for p in model.parameters():
        if std is not None and p.ndim > 1:
            p.normal_(0, std)


def text(n=N_TOKENS, seed=1):
    ids = torch.randint(5, 190, (1, n), generator=torch.Generator().manual_seed(seed))
    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}


@torch.no_grad()
def one_masked_pass_at_a_time(model, enc, target):
    "LOO (T,) and the largest logit, by the definition, at the last row where each has one."

    def f(mask):
        out = output_field(forward(model, enc | dict(attention_mask=mask)))[0]
        return (out[-1] if out.ndim == 2 else out)[target]

    mask = enc['attention_mask']
    whole = f(mask)
    places = torch.eye(mask.shape[1], dtype=mask.dtype)
    gone = [f(mask * (1 - place)) for place in places]
    return whole - torch.stack(gone), whole.abs()


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
def test_what_may_not_be_dropped_is_masked(name):
    for std in (None, 0.05, 0.1):
        model = unlisted_model(name, std)
        assert not rows_can_be_dropped(model)
        assert_loo_is_exact(model, text())


@pytest.mark.parametrize('name', MIXING)
def test_what_a_mask_does_not_hide_is_refused(name):
    model = unlisted_model(name, 0.1)
    with pytest.raises(ValueError, match="mixes tokens outside.*removal='delete'"):
        leave_one_out(model, text())


@pytest.mark.parametrize('std', [0.02, 0.1])
@pytest.mark.parametrize('family,task', LISTED)
def test_what_may_be_dropped_is_exact(family, task, std):
    # at 0.02 the hidden states are near 1 and LOO near 1e-4: single precision's
    # rounding would be what is compared
    dtype = torch.float64 if std == 0.02 else torch.float32
    model = random_model(family, task, 'sdpa', dtype=dtype)
    spread_weights(model, std)
    encs = [random_inputs(model, n) for n in (N_TOKENS, 10, 11)]
    assert rows_can_be_dropped(model)
    for enc, one in zip(encs, many_loo(model, encs), strict=True):
        expected = one_masked_pass_at_a_time(model, enc, one.readout.chosen(0))
        assert_exact(one.scores, *expected)


WINDOWED = ('Mistral', 'Gemma 3', 'ModernBERT')  # shorter than 40 tokens
# an answer's row would move
SHORTENED = [(f, t) for f, t in LISTED if f not in WINDOWED and t != 'answer']


@pytest.mark.parametrize('family,task', SHORTENED)
def test_the_short_way_is_still_taken(family, task):
    "Fewer rows are computed than all variants have."
    model = random_model(family, task, 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, 40)
    readout = Readout(0, forward(model, enc), enc)
    keep = torch.ones(16, 40, dtype=torch.bool)
    for i in range(16):
        keep[i, 2 + i : 22 + i] = False
    rows = {}
    for drop in (None, False):
        with torch.no_grad(), CountTokens(model) as count:
            subset_logits(model, enc, keep, drop=drop, readout=readout)
        rows[drop] = count.n
    assert rows[None] < 0.8 * rows[False]


def test_every_family_on_the_list_is_one_of_transformers():
    assert all(hasattr(transformers.models, p) for p in DROP_ENCODERS + DROP_DECODERS)


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


def replaced(module, name, part):
    own = part.forward
    part.forward = lambda x: at_row_1(None, None, own(x))


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
@pytest.mark.parametrize('change', [hooked, replaced, of_another_class, convolved])
def test_a_changed_model_is_not_dropped_from(change, family):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    module, name = place(model)
    change(module, name, getattr(module, name))
    assert not rows_can_be_dropped(model)
    assert_loo_is_exact(model, random_inputs(model, N_TOKENS))


def test_output_attentions_leaves_the_short_way():
    "transformers' own hooks, which such a call leaves behind, change nothing."
    model = random_model('Llama', 'class', 'eager')
    with torch.no_grad():
        model(**random_inputs(model, N_TOKENS), output_attentions=True)
    assert rows_can_be_dropped(model)


def test_a_text_that_ends_in_the_padding_token():
    """The classifier reads the row before it; when that token goes, a dropped
    text would be read elsewhere.
    """
    model = random_model('Llama', 'class', 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    enc['input_ids'][0, -1] = model.config.pad_token_id
    assert not can_drop_rows(model, enc)
    assert_loo_is_exact(model, enc)


def test_what_a_language_model_ended_itself_may_end_in_its_padding_token():
    model = random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    enc['input_ids'][0, -1] = model.config.pad_token_id
    assert can_drop_rows(model, enc)
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


@pytest.mark.parametrize('removal', ['zero_embedding', 'mask_token', 'delete'])
def test_padding_stays_as_it_is_under_other_removals(removal):
    "And is cut from behind a text before deletion."
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
    assert_exact(subset_logits(model, enc, keep), own, own.abs().max())
    scores = {'m': torch.arange(len(mask)).float()}
    morf, _ = perturbation_curves(model, enc, scores, removal_units(~mask), 0)['m']
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
        subset_logits(model, enc, torch.ones(2, N_TOKENS, dtype=torch.bool))


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
    (fnet, 'attention mask'),
    (rwkv, 'ignores the attention mask'),
    (BagOfWords, 'takes no attention mask'),
    (Deaf, 'ignores the attention mask'),
]


@pytest.mark.parametrize('make,said', MASK_TO_NOBODY)
def test_a_model_that_ignores_the_mask_is_refused(make, said):
    torch.manual_seed(0)
    model = make().eval()
    enc = text() if make is rwkv else {'input_ids': text()['input_ids']}
    one_gone = ~torch.eye(N_TOKENS, dtype=torch.bool)
    for ask in (leave_one_out, partial(subset_logits, keep=one_gone)):
        with pytest.raises(ValueError, match=said) as error:
            ask(model, enc)
        assert type(model).__name__ in str(error.value)
        assert 'zero_embedding' in str(error.value)
    loo, _, _ = leave_one_out(model, enc, removal='zero_embedding')
    assert loo.abs().max() > 0


def test_a_token_that_matters_to_nobody_is_no_error():
    "A causal model explained at its second token: what stands behind changes nothing."
    model = random_model('Llama', 'next token', 'eager', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    keep = ~torch.eye(N_TOKENS, dtype=torch.bool)[4:8]
    readout = read_whole(model, enc, Target(7, position=1)).readout
    values = subset_logits(model, enc, keep, drop=False, readout=readout)
    rounding = 32 * torch.finfo(torch.float32).eps * float(values.abs().max())
    assert float(values.max() - values.min()) <= rounding


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


# ---- how long it takes


@pytest.mark.parametrize('progress,said', [(False, ''), (True, 'exact LOO')])
def test_progress_is_silent_unless_asked_for(monkeypatch, capsys, progress, said):
    def bar_at_once(**options):
        return tqdm(**options | dict(delay=0, disable=False))

    monkeypatch.setattr('lrp_loo.loo.progress_bar', bar_at_once)
    model = bert()
    leave_one_out(model, random_inputs(model, N_TOKENS), progress=progress)
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(said) == bool(shown)


def test_long_work_says_beforehand_how_long_and_changes_no_number(monkeypatch, capsys):
    monkeypatch.setattr('lrp_loo.loo.ANNOUNCED_SECONDS', 0.0)
    monkeypatch.setattr('lrp_loo.loo.TOKEN_BUDGET', 1)
    model = bert()
    enc = random_inputs(model, 40)
    told, _, _ = leave_one_out(model, enc, progress=True)
    said = capsys.readouterr().err
    assert 'exact LOO of 1 text, 40 forward passes: about' in said
    assert torch.equal(leave_one_out(model, enc)[0], told)


def test_how_long_it_takes_is_variants_times_tokens(monkeypatch):
    "A text of half the length: half of the variants, each half as long."
    model = bert()
    encs = [random_inputs(model, n) for n in (40, 20)]
    assert loo_seconds(model, encs[1:]) > 0
    measured = 'lrp_loo.loo.seconds_per_variant'
    monkeypatch.setattr(measured, lambda *args, **how: 0.5)
    assert loo_seconds(model, encs) == pytest.approx(0.5 * (40 + 20 / 2))
    assert [format_duration(s) for s in (40, 200, 9000)] == ['40 s', '3 min', '2.5 h']


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
