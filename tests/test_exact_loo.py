"Exact LOO is one masked pass at a time: dropped where that is known to be exact, else masked."

import pytest
import torch
import transformers
from conftest import CountTokens
from families import random_inputs, random_model
from torch import nn
from tqdm.auto import tqdm

from lrp_loo import explain
from lrp_loo.asked.rows import read_row_only
from lrp_loo.asked.targets import Readout, Target, output_field
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.loo.checked import fast_encoder
from lrp_loo.loo.droppable import DROP_DECODERS, DROP_ENCODERS, survives_gaps
from lrp_loo.loo.duration import in_words, loo_seconds
from lrp_loo.loo.engines import read_whole, subset_logits
from lrp_loo.models import forward
from lrp_loo.models.encoding import encode
from lrp_loo.trust.curves import perturbation_curves, removal_units

N_TOKENS = 12
WIDTH = dict(vocab_size=200, hidden_size=32, pad_token_id=0)
SIZES = WIDTH | dict(
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
)
NEO = dict(window_size=4, attention_types=[[['global', 'local'], 1]])
SHORT = dict(vocab_size=200, d_model=32, pad_token_id=0)  # names of its own
LAYERS = dict(n_layer=2, n_head=4)
FUNNEL = dict(d_head=8, block_sizes=[1, 1], num_decoder_layers=1)
GRIFFIN = dict(num_hidden_layers=3, lru_width=32, num_key_value_heads=2, head_dim=8)

# what may not be dropped, or only by luck: name → class, configuration
UNLISTED = {
    'ConvBERT (convolution)': ('ConvBertForSequenceClassification', SIZES),
    'GPT-Neo (window_size)': (
        'GPTNeoForCausalLM',
        SIZES | NEO | dict(num_layers=2, num_heads=4),
    ),
    'MPNet (relative positions)': ('MPNetForSequenceClassification', SIZES),
    'DeBERTa (relative positions)': (
        'DebertaForSequenceClassification',
        SIZES | dict(relative_attention=True, pos_att_type=['p2c', 'c2p']),
    ),
    'XLNet (relative positions)': (
        'XLNetForSequenceClassification',
        SHORT | LAYERS | dict(d_inner=64),
    ),
    'BLOOM (ALiBi)': ('BloomForCausalLM', WIDTH | LAYERS),
    'MPT (ALiBi)': ('MptForCausalLM', SHORT | dict(n_layers=2, n_heads=4)),
    'Funnel (pooling)': (
        'FunnelForSequenceClassification',
        SHORT | FUNNEL | dict(n_head=4, d_inner=64),
    ),
    'SqueezeBERT': (
        'SqueezeBertForSequenceClassification',
        SIZES | dict(embedding_size=32),
    ),
    'Nyströmformer (convolution)': (
        'NystromformerForSequenceClassification',
        SIZES | dict(segment_means_seq_len=64),
    ),
    'RoFormer': ('RoFormerForSequenceClassification', SIZES),
    'OPT (positions from the mask)': (
        'OPTForCausalLM',
        SIZES | dict(ffn_dim=64, word_embed_proj_dim=32),
    ),
    'Mamba (state space)': (
        'MambaForCausalLM',
        SIZES | dict(state_size=8, time_step_rank=4),
    ),
    'RecurrentGemma (recurrence)': (
        'RecurrentGemmaForCausalLM',
        SIZES | GRIFFIN | dict(attention_window_size=4),
    ),
}
LISTED = [
    (family, task)
    for family, tasks in {
        'BERT': ('class', 'answer'),
        'RoBERTa': ('class',),
        'ELECTRA': ('class',),
        'DistilBERT': ('class',),
        'ALBERT': ('class',),
        'GPT-2': ('class', 'next token'),
        'Llama': ('class', 'next token'),
        'Qwen2': ('class',),
        'Qwen3': ('next token',),
        'Phi-3': ('next token',),
        'Mistral': ('next token',),
        'Gemma 3': ('class',),
        'ModernBERT': ('class',),
    }.items()
    for task in tasks
]


def unlisted_model(name, std=None):
    "Small, random; std of every matrix, None: as transformers makes it."
    class_name, sizes = UNLISTED[name]
    cls = getattr(transformers, class_name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cls(cls.config_class(**sizes)).eval()
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


@torch.no_grad()
def one_masked_pass_at_a_time(model, enc, target, at=-1):
    """LOO (T,) and the largest logit, by the definition; at: the row of an
    output with a row per token.
    """

    def f(mask):
        out = output_field(forward(model, enc | dict(attention_mask=mask)))[0]
        row = out[at] if out.ndim == 2 else out
        return row[target]

    whole = f(enc['attention_mask'])
    gone = []
    for i in range(enc['input_ids'].shape[1]):
        mask = enc['attention_mask'].clone()
        mask[0, i] = 0
        gone.append(f(mask))
    return whole - torch.stack(gone), whole.abs()


def assert_exact(loo, expected, logit):
    """To 1e-4 of the largest effect, and what two orders of summation differ
    by: some 32 units in the last place of the logit.
    """
    same_type = loo.dtype == expected.dtype
    eps = torch.finfo(expected.dtype if same_type else loo.dtype).eps
    largest = float(expected.abs().max())
    allowed = 1e-4 * largest + 32 * eps * float(logit)
    assert float((loo - expected).abs().max()) <= allowed


def assert_loo_is_exact(model, enc):
    loo, _, target = leave_one_out(model, enc)
    assert_exact(loo, *one_masked_pass_at_a_time(model, enc, target))


@pytest.mark.parametrize('std', [None, 0.05, 0.1])
@pytest.mark.parametrize('name', UNLISTED)
def test_what_may_not_be_dropped_is_masked(name, std):
    model = unlisted_model(name, std)
    enc = text()
    assert not survives_gaps(model)
    assert_loo_is_exact(model, enc)


@pytest.mark.parametrize('std', [0.02, 0.1])
@pytest.mark.parametrize('family,task', LISTED)
def test_what_may_be_dropped_is_exact(family, task, std):
    # at 0.02 the hidden states are near 1 and LOO near 1e-4: single precision's
    # rounding would be what is compared
    dtype = torch.float64 if std == 0.02 else torch.float32
    model = random_model(family, task, 'sdpa', dtype=dtype)
    spread_weights(model, std)
    enc = random_inputs(model, N_TOKENS)
    assert survives_gaps(model)
    assert_loo_is_exact(model, enc)


WINDOWED = ('Mistral', 'Gemma 3', 'ModernBERT')  # shorter than 40 tokens
SHORTENED = [
    (family, task)
    for family, task in LISTED
    # an answer's row would move
    if family not in WINDOWED and task != 'answer'
]


@pytest.mark.parametrize('family,task', SHORTENED)
def test_the_short_way_is_still_taken(family, task):
    """Where removed tokens are dropped, fewer rows are computed than all
    variants have.
    """
    model = random_model(family, task, 'sdpa', dtype=torch.float32)
    n = 40
    enc = random_inputs(model, n)
    readout = Readout(0, forward(model, enc), enc)
    rows = {}
    for drop in (None, False):
        with torch.no_grad(), CountTokens(model) as count:
            subset_logits(model, enc, spans_removed(n), drop=drop, readout=readout)
        rows[drop] = count.n
    assert rows[None] < 0.8 * rows[False]


def spans_removed(n):
    "Half of the text each."
    keep = torch.ones(16, n, dtype=torch.bool)
    for i in range(16):
        keep[i, 2 + i : 2 + i + n // 2] = False
    return keep


@pytest.mark.parametrize('package', DROP_ENCODERS + DROP_DECODERS)
def test_every_family_on_the_list_is_one_of_transformers(package):
    assert hasattr(transformers.models, package)


# ---- models that somebody changed


def bert():
    return random_model('BERT', 'class', 'sdpa', dtype=torch.float32)


def at_row_1(module, args, out):
    """What a row-wise edit does: it means another token once one in front of
    it was dropped.
    """
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


def change_by(change, model):
    module, name = place(model)
    change(module, name, getattr(module, name))


@pytest.mark.parametrize('family', ['Llama', 'BERT'])
@pytest.mark.parametrize('change', [hooked, replaced, of_another_class, convolved])
def test_a_changed_model_is_not_dropped_from(change, family):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    change_by(change, model)
    enc = random_inputs(model, N_TOKENS)
    assert not survives_gaps(model)
    assert_loo_is_exact(model, enc)


def test_a_replaced_forward_keeps_an_encoder_from_the_fast_path():
    model = bert()
    enc = random_inputs(model, N_TOKENS)
    assert fast_encoder(model, enc) is not None
    change_by(replaced, model)
    assert fast_encoder(model, enc) is None


def test_a_replaced_forward_in_the_last_layer_sees_every_row():
    model = bert()
    enc = random_inputs(model, N_TOKENS)
    part = model.bert.encoder.layer[-1].output.dense
    rows = []
    own = part.forward

    def listening(x):
        rows.append(x.shape[1])
        return own(x)

    part.forward = listening
    with torch.no_grad(), read_row_only(model):
        forward(model, enc)
    assert rows == [N_TOKENS]


def test_output_attentions_leaves_the_short_way():
    """transformers' own hooks, which a call with output_attentions leaves
    behind, change nothing.
    """
    model = random_model('Llama', 'class', 'eager')
    enc = random_inputs(model, N_TOKENS)
    with torch.no_grad():
        model(**enc, output_attentions=True)
    assert survives_gaps(model)


def test_a_text_that_ends_in_the_padding_token():
    """The classifier reads the row before it; when that token goes, a dropped
    text would be read elsewhere.
    """
    model = random_model('Llama', 'class', 'sdpa', dtype=torch.float32)
    enc = random_inputs(model, N_TOKENS)
    enc['input_ids'][0, -1] = model.config.pad_token_id
    assert_loo_is_exact(model, enc)


def test_dropping_is_not_forced_where_it_is_wrong():
    with pytest.raises(ValueError, match='may not be dropped'):
        leave_one_out(unlisted_model('DeBERTa (relative positions)'), text(), drop=True)


# ---- an attention mask with zeros


def padded(enc, left=0, right=0, hole=None):
    wider = {k: nn.functional.pad(v, (left, right)) for k, v in enc.items()}
    if hole is not None:
        wider['attention_mask'][0, hole] = 0
    return {k: wider[k] for k in ('input_ids', 'attention_mask')}


PADDINGS = {
    'right': dict(right=3),
    'left': dict(left=3),
    'both': dict(left=2, right=2),
    'hole': dict(hole=5),
}


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
    wider = padded(enc, right=3)
    alone, _, _ = leave_one_out(model, enc, 0, removal, 103)
    with_padding, _, _ = leave_one_out(model, wider, 0, removal, 103)
    assert_exact(with_padding[:N_TOKENS], alone, alone.abs().max())
    assert (with_padding[N_TOKENS:] == 0).all()


@pytest.fixture(params=PADDINGS)
def padded_text(request):
    "A BERT, a padded text, and which of its tokens are its own."
    model = bert()
    enc = padded(random_inputs(model, N_TOKENS), **PADDINGS[request.param])
    return model, enc, enc['attention_mask'][0].bool()


def test_subsets_keep_to_the_mask(padded_text):
    model, enc, mask = padded_text
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(20, len(mask), generator=generator) < 0.6
    keep[:, mask.nonzero()[0]] = True
    own = []
    for k in keep:
        both = (k & mask)[None].long()
        with torch.no_grad():
            own.append(model(**enc | dict(attention_mask=both)).logits[0])
    own = torch.stack(own)
    assert_exact(subset_logits(model, enc, keep), own, own.abs().max())


def test_curves_keep_to_the_mask(padded_text):
    model, enc, mask = padded_text
    units = removal_units(~mask)
    scores = {'m': torch.arange(len(mask)).float()}
    morf, _ = perturbation_curves(model, enc, scores, units, 0)['m']
    with torch.no_grad():
        whole = model(**enc).logits[0, 0]
    assert len(morf) == int(mask.sum()) + 1
    assert_exact(morf[:1], whole[None], whole.abs())


def test_units_of_hidden_tokens_are_refused(padded_text):
    model, enc, mask = padded_text
    every = torch.arange(len(mask))
    with pytest.raises(ValueError, match='give them'):
        perturbation_curves(model, enc, {'m': every.float()}, every, 0)


@pytest.mark.parametrize(
    'mask,said',
    [
        (torch.zeros(1, N_TOKENS), 'hides every token'),
        (torch.ones(1, N_TOKENS + 1), 'of shape'),
        (torch.full((1, N_TOKENS), 0.5), '0 and 1'),
    ],
)
def test_a_mask_that_makes_no_sense_is_refused(mask, said):
    model = bert()
    keep = torch.ones(2, N_TOKENS, dtype=torch.bool)
    with pytest.raises(ValueError, match=said):
        subset_logits(
            model, random_inputs(model, N_TOKENS) | dict(attention_mask=mask), keep
        )


def test_padding_behind_a_text_is_cut_before_deletion():
    model = bert()
    enc = random_inputs(model, N_TOKENS)
    alone, _, _ = leave_one_out(model, enc, 0, 'delete')
    right, _, _ = leave_one_out(model, padded(enc, right=3), 0, 'delete')
    assert_exact(right[:N_TOKENS], alone, alone.abs().max())


def test_deletion_from_behind_padding_is_refused():
    model = bert()
    enc = padded(random_inputs(model, N_TOKENS), left=3)
    with pytest.raises(ValueError, match='without padding'):
        leave_one_out(model, enc, 0, 'delete')


# ---- models that ignore the mask, or answer by chance


class BagOfWords(nn.Module):
    "A model of one's own that takes no mask."

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids):
        return self.head(self.table(input_ids).mean(1))


class Deaf(BagOfWords):
    "The same, and it takes whatever it is given."

    def forward(self, input_ids, **kwargs):
        return super().forward(input_ids)


def fnet():
    sizes = {k: v for k, v in SIZES.items() if k != 'num_attention_heads'}
    config = transformers.FNetConfig(**sizes)
    return transformers.FNetForSequenceClassification(config)


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


def without_mask(make):
    "A model to which a mask means nothing, and a text as it takes it."
    torch.manual_seed(0)
    model = make().eval()
    enc = text()
    if make in (fnet, BagOfWords, Deaf):
        enc = {'input_ids': enc['input_ids']}
    return model, enc


def subsets(model, enc):
    subset_logits(model, enc, ~torch.eye(N_TOKENS, dtype=torch.bool))


@pytest.mark.parametrize('ask', [leave_one_out, subsets])
@pytest.mark.parametrize('make,said', MASK_TO_NOBODY)
def test_a_model_that_ignores_the_mask_is_refused(make, said, ask):
    model, enc = without_mask(make)
    with pytest.raises(ValueError, match=said) as error:
        ask(model, enc)
    assert type(model).__name__ in str(error.value)
    assert 'zero_embedding' in str(error.value)
    loo, _, _ = leave_one_out(model, enc, removal='zero_embedding')
    assert loo.abs().max() > 0


def test_a_token_that_matters_to_nobody_is_no_error():
    """A causal model explained at its second token: what stands behind it
    changes nothing, by mask or by embedding.
    """
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
    with pytest.raises(ValueError, match='another answer each time'):
        leave_one_out(Dice().eval(), text())


class Crowded(BagOfWords):
    """Numbers that depend on the rest of the batch, as those of layers
    quantized on the fly do.
    """

    def forward(self, input_ids, attention_mask):
        x = (self.table(input_ids) * attention_mask[..., None]).mean(1)
        step = x.abs().max() / 8
        return self.head((x / step).round() * step)


def test_what_depends_on_the_batch_is_computed_alone():
    torch.manual_seed(0)
    model = Crowded().eval()
    enc = text()
    assert_loo_is_exact(model, enc)


# ---- several texts without a padding token

SEVERAL = ["The jokes are old.", "Fine."]


@pytest.fixture(params=['GPT-2', 'Llama'])
def without_padding_token(request):
    return random_model(
        request.param,
        'class',
        'eager',
        dtype=torch.float32,
        vocab_size=30522,
        pad_token_id=None,
    )


@pytest.mark.parametrize('method,n', [('loo', 2), ('ig', 1)])
def test_a_batch_without_a_padding_token_is_refused_in_our_words(
    tokenizer, without_padding_token, method, n
):
    with pytest.raises(ValueError, match='set model.config.pad_token_id'):
        explain(without_padding_token, tokenizer, SEVERAL[:n], method=method)


@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'rollout'])
def test_without_a_padding_token_texts_are_explained_one_by_one(
    tokenizer, without_padding_token, method
):
    model = without_padding_token
    together = explain(model, tokenizer, SEVERAL, method=method)
    for one_text, found in zip(SEVERAL, together):
        (alone,) = explain(model, tokenizer, one_text, method=method)
        assert torch.equal(found.scores, alone.scores)


# ---- how long it takes


@pytest.mark.parametrize('drop', [None, False])
def test_the_bar_moves_within_a_text(demo, drop):
    model, tokenizer = demo
    enc = encode(model, tokenizer, "a slow start , but the last act is a quiet triumph")
    n = enc['input_ids'].shape[1]
    done = []
    many_loo(model, [enc], drop=drop, token_budget=3 * n, progress=done.append)
    assert sum(done) == n
    assert len(done) > 2


@pytest.mark.parametrize('progress,said', [(False, ''), (True, 'exact LOO')])
def test_progress_is_silent_unless_asked_for(monkeypatch, capsys, progress, said):
    def bar_at_once(**options):
        return tqdm(**options | dict(delay=0, disable=False))

    monkeypatch.setattr('lrp_loo.loo.duration.tqdm', bar_at_once)
    model = bert()
    leave_one_out(model, random_inputs(model, N_TOKENS), progress=progress)
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(said) == bool(shown)


@pytest.fixture
def long_work(monkeypatch):
    "A text whose LOO counts as long."
    monkeypatch.setattr('lrp_loo.loo.duration.LONG', 0.0)
    monkeypatch.setattr('lrp_loo.loo.duration.TOKEN_BUDGET', 1)
    model = bert()
    return model, random_inputs(model, 40)


def test_long_work_says_beforehand_how_long_and_changes_no_number(long_work, capsys):
    told, _, _ = leave_one_out(*long_work, progress=True)
    said = capsys.readouterr().err
    assert 'exact LOO of 1 text, 40 forward passes: about' in said
    silent, _, _ = leave_one_out(*long_work)
    assert torch.equal(silent, told)


def test_how_long_it_takes_is_variants_times_tokens(monkeypatch):
    "A text of half the length: half of the variants, each half as long."
    monkeypatch.setattr(
        'lrp_loo.loo.duration.seconds_a_variant', lambda *args, **how: 0.5
    )
    model = bert()
    encs = [random_inputs(model, n) for n in (40, 20)]
    assert loo_seconds(model, encs) == pytest.approx(0.5 * (40 + 20 / 2))


def test_how_long_it_takes_is_measured():
    model = bert()
    assert loo_seconds(model, [random_inputs(model, N_TOKENS)]) > 0
    assert [in_words(s) for s in (40, 200, 9000)] == ['40 s', '3 min', '2.5 h']
