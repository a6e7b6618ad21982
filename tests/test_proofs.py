"""Shortcuts are tried on the model at hand and not believed by the name of a class:
each model here carries a known name and computes otherwise. Every number is the
model's own forward's on the text alone, or the model is refused.
"""

import functools
import gc
import weakref

import pytest
import torch
import transformers
from conftest import CountTokens
from families import random_model
from torch import nn
from torch.nn.utils import parametrizations

from lrp_loo import METHODS
from lrp_loo.inputs.scores import read_row_only, reads_first_row
from lrp_loo.inputs.targets import output_field
from lrp_loo.loo import many_loo
from lrp_loo.loo.engines import read_subsets
from lrp_loo.loo.states import StoredText, is_causal, why_no_states
from lrp_loo.methods import explain_batch
from lrp_loo.models.call import forward, plain_forward
from lrp_loo.models.structure import layers_of, proofs_of

# rules that are missing for torch's pools and for changed classes
pytestmark = pytest.mark.filterwarnings('ignore:no rule for')

LENGTHS = (12, 20, 7, 40)
GRADIENTS = ('attn_lrp', 'cp_lrp', 'grad_x_input', 'removal', 'auto')


def text(n=12, seed=1):
    ids = torch.randint(5, 190, (1, n), generator=torch.Generator().manual_seed(seed))
    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}


class Tokenizer:
    "Names of ids, for records."

    all_special_ids, unk_token_id, pad_token_id = (), None, 0
    all_special_tokens, model_max_length = (), 512

    def convert_ids_to_tokens(self, ids):
        return [str(i) for i in ids] if isinstance(ids, list) else str(ids)

    def __call__(self, *args, **kwargs):
        raise AssertionError


@torch.no_grad()
def own_number(model, enc, target):
    out = output_field(model(**enc))[0]
    return float((out[-1] if out.ndim == 2 else out)[target])


def own_loo(model, enc, target):
    "LOO by one masked forward for each token."
    whole, loo = own_number(model, enc, target), []
    for i in range(enc['input_ids'].shape[1]):
        mask = enc['attention_mask'].clone()
        mask[0, i] = 0
        loo.append(whole - own_number(model, enc | dict(attention_mask=mask), target))
    return torch.tensor(loo)


def close(found, expected):
    "To 1e-4 of the largest number: float32 kernels of other shapes."
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    return bool((found - expected).abs().max() <= 1e-4 * max(1, expected.abs().max()))


def assert_right_or_refused(model, lengths=LENGTHS, methods=GRADIENTS, refused=''):
    "Of several texts in a call, twice, and of one text."
    encs = [text(n, seed) for seed, n in enumerate(lengths)]
    for some in (encs, encs, encs[:1]):
        try:
            loos = many_loo(model, some, 1)
        except ValueError as e:
            assert refused and refused in str(e), e
        else:
            assert not refused
            for enc, loo in zip(some, loos):
                assert close(loo.value, own_number(model, enc, 1))
                assert close(loo.scores, own_loo(model, enc, 1))
        for method in methods:
            try:
                maps = explain_batch(model, Tokenizer(), some, method, 1)
            except ValueError:
                assert refused
                continue
            for enc, a in zip(some, maps):
                assert close(a.logit, own_number(model, enc, 1)), method


# ---- heads that read all rows


class PooledBy(nn.Module):
    "A pooler made of torch's modules, of a function over all rows."

    def __init__(self, pool, like):
        super().__init__()
        self.dense, self.pool = like.dense, pool

    def forward(self, hidden):
        return self.dense(self.pool(hidden)).tanh()


POOLS = {
    'adaptive': lambda x: nn.AdaptiveAvgPool1d(1)(x.mT)[..., 0],
    'largest': lambda x: nn.AdaptiveMaxPool1d(1)(x.mT)[..., 0],
    'first and last': lambda x: x[:, 0] + x[:, -1],
}


class HeadOfAllRows(nn.Module):
    def __init__(self, pool, head):
        super().__init__()
        self.pool, self.head = pool, head

    def forward(self, hidden, **kwargs):
        return self.head(self.pool(hidden)[:, None])


@pytest.mark.parametrize('pool', POOLS)
@pytest.mark.parametrize('family', ['BERT', 'RoBERTa', 'ELECTRA'])
def test_a_head_that_reads_all_rows(family, pool):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    assert reads_first_row(model)
    if family == 'BERT':
        model.bert.pooler = PooledBy(POOLS[pool], model.bert.pooler)
    else:
        model.classifier = HeadOfAllRows(POOLS[pool], model.classifier)
    assert not reads_first_row(model)
    assert_right_or_refused(model)


# ---- quantized on the fly


class GruClassifier(nn.Module):
    "Rows meet in a recurrent layer, whatever the mask says."

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 16)
        self.gru, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.gru(self.table(input_ids))[0][:, -1])


def rwkv():
    sizes = dict(num_hidden_layers=2, attention_hidden_size=32, context_length=64)
    sizes |= dict(rescale_every=0)  # it would divide weights, which are no tensors
    config = transformers.RwkvConfig(vocab_size=200, hidden_size=32, **sizes)
    return transformers.RwkvForCausalLM(config)


def canine():
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.CanineConfig(intermediate_size=64, **sizes)
    return transformers.CanineForSequenceClassification(config)


def in_a_module_named_quant():
    return type('GruClassifier', (GruClassifier,), {'__module__': 'quant_desk'})()


def lstm_named_bitsandbytes():
    class Lstm(GruClassifier):
        def __init__(self):
            super().__init__()
            self.gru = nn.LSTM(16, 16, batch_first=True)

    Lstm.__module__ = 'bitsandbytes.nn'
    return Lstm()


def quantized(make):
    return torch.ao.quantization.quantize_dynamic(make().eval(), {nn.Linear})


IGNORES_MASK = {
    'rwkv': lambda: quantized(rwkv),
    'canine': lambda: quantized(canine),
    'rwkv, unquantized': rwkv,
    'gru in a file of that name': in_a_module_named_quant,
    'gru, quantized': lambda: quantized(GruClassifier),
    'lstm in a file of that name': lstm_named_bitsandbytes,
}


@pytest.mark.filterwarnings('ignore')  # torch's quantization is deprecated
@pytest.mark.parametrize('name', IGNORES_MASK)
def test_a_model_whose_mask_hides_nothing_is_refused(name):
    torch.manual_seed(0)
    model = IGNORES_MASK[name]().eval()
    enc = text(24)
    for _ in range(2):
        with pytest.raises(ValueError, match='mask hides still changes'):
            many_loo(model, [enc], 1)


# ---- positions that depend on the number of tokens


def long_rope(family):
    short, long = [1.0] * 4, [4.0] * 4
    scaling = dict(rope_type='longrope', short_factor=short, long_factor=long)
    scaling |= dict(rope_theta=10000.0, original_max_position_embeddings=16)
    sizes = dict(rope_parameters=scaling, original_max_position_embeddings=16)
    return random_model(family, 'class', 'sdpa', dtype=torch.float32, **sizes)


class ScaledPositions(nn.Module):
    "Positions are shares of the number of tokens, padding included."

    def __init__(self, family):
        super().__init__()
        self.inside = random_model(family, 'class', 'sdpa', dtype=torch.float32)
        self.config = self.inside.config

    def get_input_embeddings(self):
        return self.inside.get_input_embeddings()

    def forward(self, input_ids, attention_mask=None):
        n = input_ids.shape[1]
        positions = (torch.arange(n) * 40 // n)[None].expand_as(input_ids)
        return self.inside(input_ids, attention_mask, position_ids=positions)


@pytest.mark.parametrize('make', [long_rope, ScaledPositions])
@pytest.mark.parametrize('family', ['Llama', 'Phi-3', 'Qwen2'])
def test_a_text_beside_longer_ones_has_its_own_number(family, make):
    model = make(family).eval()
    ends = text(9), text(30)
    padded = {k: nn.functional.pad(v, (0, 21)) for k, v in ends[0].items()}
    assert not close(own_number(model, padded, 1), own_number(model, ends[0], 1))
    # texts below, across and above the length at which positions change
    for lengths in ((9, 30), (12, 15, 9), (18, 30, 25), (9, 12, 25, 30, 14, 28)):
        assert_right_or_refused(model, lengths, ('attn_lrp', 'removal'))


# ---- modules that are shared, parametrized or patched


def shared_layer(model):
    layers = model.base_model.encoder.layer
    model.base_model.encoder.layer = nn.ModuleList([layers[0]] * len(layers))


def shared_last_layers(model):
    layers = model.base_model.encoder.layer
    model.base_model.encoder.layer = nn.ModuleList([layers[0], layers[1], layers[1]])


def shared_attention(model):
    first, *_, last = model.base_model.encoder.layer
    last.attention = first.attention


def weight_norm(model):
    for layer in model.base_model.encoder.layer:
        for name in ('query', 'key'):
            parametrizations.weight_norm(getattr(layer.attention.self, name))


def spectral_norm(model):
    for layer in model.base_model.encoder.layer:
        parametrizations.spectral_norm(layer.attention.self.value)


def orthogonal(model):
    parametrizations.orthogonal(model.base_model.encoder.layer[0].attention.self.query)


CHANGES = (shared_layer, shared_last_layers, shared_attention)
CHANGES += (weight_norm, spectral_norm, orthogonal)


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('family', ['BERT', 'RoBERTa'])
def test_modules_shared_or_parametrized(family, change):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    change(model.eval())
    model.eval()
    for _ in range(4):  # by chance once in nine before
        assert_right_or_refused(model, methods=('attn_lrp', 'removal'))


def wrapped(original, change):
    @functools.wraps(original)
    def patched(self, *args, **kwargs):
        return change(original(self, *args, **kwargs))

    return patched


def reversed_rows(out):
    x = out[0] if isinstance(out, tuple) else out
    x = x + 0.5 * x.flip(1)
    return (x, *out[1:]) if isinstance(out, tuple) else x


def second_row_doubled(out):
    x = (out[0] if isinstance(out, tuple) else out).clone()
    x[:, 1] *= 2
    return (x, *out[1:]) if isinstance(out, tuple) else x


@pytest.mark.parametrize('change', [reversed_rows, second_row_doubled])
@pytest.mark.parametrize('family', ['BERT', 'Llama', 'GPT-2'])
def test_a_layers_class_patched_with_wraps(family, change, monkeypatch):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    encs = [text(n) for n in (12, 12)]
    many_loo(model, encs, 1)  # what is shown of it before does not hold afterwards
    kind = type(layers_of(model).modules[1])
    monkeypatch.setattr(kind, 'forward', wrapped(kind.forward, change))
    mixes = change is reversed_rows
    refused = 'mask hides still changes' if mixes else ''
    assert_right_or_refused(model, (12, 12), ('attn_lrp',), refused)


# ---- configurations that change what is read


def test_a_bert_decoder_depends_on_its_first_token_alone():
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32, is_decoder=True)
    assert is_causal(model)
    assert_right_or_refused(model, (12, 7), ('attn_lrp', 'grad_x_input'))
    (loo,) = many_loo(model, [text(12)], 1)
    assert (loo.scores[1:] == 0).all() or loo.scores[1:].abs().max() < 1e-6


@pytest.mark.parametrize('family', ['RoBERTa', 'ELECTRA'])
def test_other_encoders_as_decoders(family):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32, is_decoder=True)
    assert_right_or_refused(model, (12, 7), ('attn_lrp', 'grad_x_input'))


@pytest.mark.parametrize('buckets', [6, 8, 16])
def test_a_model_whose_own_forward_fails_is_refused_by_name(buckets):
    "transformers' MPNet takes 32 buckets, whatever its configuration says."
    sizes = dict(vocab_size=200, hidden_size=32, num_hidden_layers=2)
    sizes |= dict(num_attention_heads=4, intermediate_size=64)
    config = transformers.MPNetConfig(**sizes, relative_attention_num_buckets=buckets)
    model = transformers.MPNetForSequenceClassification(config).eval()
    with pytest.raises(IndexError):
        model(**text())
    for call in (
        lambda: many_loo(model, [text()], 1),
        lambda: explain_batch(model, Tokenizer(), [text()], 'attn_lrp', 1),
    ):
        with pytest.raises(ValueError, match='MPNetForSequenceClassification.*own'):
            call()


def test_chunked_feed_forward_layers():
    for family in ('BERT', 'RoBERTa', 'ELECTRA'):
        sizes = dict(chunk_size_feed_forward=4)
        model = random_model(family, 'class', 'sdpa', dtype=torch.float32, **sizes)
        assert_right_or_refused(model, (12, 8), ('grad_x_input',))


@pytest.mark.filterwarnings('ignore:no rule')
@pytest.mark.parametrize('block_size', [1, 2, 4])
def test_trials_leave_a_model_as_it_was(block_size):
    "BigBird ends sparse attention for good once it has read a text of a few blocks."
    sizes = dict(num_random_blocks=1, attention_type='block_sparse', vocab_size=200)
    sizes |= dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    sizes |= dict(max_position_embeddings=64, intermediate_size=64)
    config = transformers.BigBirdConfig(block_size=block_size, **sizes)
    torch.manual_seed(0)
    model = transformers.BigBirdForSequenceClassification(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.1)
    enc = text(31)
    own, loo = own_number(model, enc, 1), own_loo(model, enc, 1)
    for method in ('loo', 'attn_lrp', 'ig'):
        (a,) = explain_batch(model, Tokenizer(), [enc], method, 1)
        assert close(a.logit, own), method
        assert model.bert.attention_type == 'block_sparse'
        assert method != 'loo' or close(a.scores, loo)
    for method in ('loo', 'grad_x_input'):  # beside a short text
        maps = explain_batch(model, Tokenizer(), [enc, text(6), text(31)], method, 1)
        assert [close(a.logit, own) for a in maps] == [True, False, True]
        assert model.bert.attention_type == 'block_sparse'


# ---- what was shown ends with the model's state

STATES = {
    'a parameter in place': lambda m: next(m.parameters()).data.mul_(1.5),
    'an optimizer': lambda m: torch.optim.SGD(m.parameters(), 0.1).step(),
    'a storage': lambda m: setattr(m.classifier.weight, 'data', torch.ones(2, 32)),
    'a buffer': lambda m: m.bert.embeddings.position_ids.add_(0),
    'training': lambda m: m.train(),
    'training of a part': lambda m: m.bert.encoder.layer[0].train(),
    'a hook': lambda m: m.bert.pooler.register_forward_hook(lambda *a: None),
    'a hook before': lambda m: m.bert.register_forward_pre_hook(lambda *a: None),
    'a forward': lambda m: setattr(m.bert.pooler, 'forward', m.bert.pooler.forward),
    'the configuration': lambda m: setattr(m.config, 'chunk_size_feed_forward', 4),
    'attention': lambda m: m.set_attn_implementation('eager'),
    'a module': lambda m: setattr(m, 'classifier', nn.Linear(32, 2)),
    'a class': lambda m: setattr(m, '__class__', type('Bert', (type(m),), {})),
}


def step(model):
    for p in model.parameters():
        p.grad = torch.ones_like(p)


@pytest.mark.parametrize('change', STATES)
def test_proofs_end_with_any_change_of_the_model(change):
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32)
    before = proofs_of(model)
    assert proofs_of(model) is before
    step(model)  # gradients change no number
    assert proofs_of(model) is before
    with torch.no_grad():
        STATES[change](model)
    after = proofs_of(model)
    assert after is not before
    assert proofs_of(model) is after


def test_proofs_end_with_a_patched_class(monkeypatch):
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32)
    before = proofs_of(model)
    kind = type(model.bert.encoder.layer[0])
    for _ in range(3):  # another function each time, perhaps at the same address
        monkeypatch.setattr(kind, 'forward', wrapped(kind.forward, lambda out: out))
        after = proofs_of(model)
        assert after is not before
        before = after


def test_proofs_hold_no_model():
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32)
    many_loo(model, [text()], 1)
    explain_batch(model, Tokenizer(), [text()], 'attn_lrp', 1)
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


# ---- proven once, and anew for what the proof did not cover


def test_a_longer_text_is_compared_and_a_shorter_one_is_not():
    model = random_model('Llama', 'class', 'sdpa', dtype=torch.float32)
    calls = []

    def n_compared(n):
        from lrp_loo.loo import engines

        original = engines.plain_forward
        engines.plain_forward = lambda *args: calls.append(1) or original(*args)
        try:
            calls.clear()
            many_loo(model, [text(n)], 1)
        finally:
            engines.plain_forward = original
        return len(calls)

    assert [n_compared(n) for n in (12, 12, 9, 20, 15, 20)] == [1, 0, 0, 1, 0, 0]


def test_the_comparison_sees_nothing_of_this_package():
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32)
    rows, enc = [], text()
    with torch.no_grad(), read_row_only(model):
        dense = model.bert.encoder.layer[-1].output.dense
        handle = dense.register_forward_hook(lambda m, a, o: rows.append(o.shape[1]))
        forward(model, enc)
        plain_forward(model, enc)
        handle.remove()
    assert rows == [1, 12]


# ---- engines that are broken on purpose


def wrong_row(monkeypatch):
    "Read the rows beside; return a list that grows with each wrong output."
    original, injected = StoredText.output, []

    def output(self, recomputed, *args, **options):
        injected.append(self)
        out = original(self, recomputed, *args, **options)
        out.logits = out.logits.roll(1, 0)
        return out

    monkeypatch.setattr(StoredText, 'output', output)
    return injected


def stale_state(monkeypatch):
    """Take keys, values and the first layer's input of the first texts of this shape;
    return a list that grows with each stale state.
    """
    original, kept, injected = StoredText.read.__func__, {}, []

    def read(cls, model, enc):
        stored, output = original(cls, model, enc)
        shape = tuple(enc['input_ids'].shape)
        if shape[1] > 8:  # not those of the trial
            first = kept.setdefault(shape, (stored.states, stored.inputs))
            if first[0] is not stored.states:
                injected.append(stored)
                stored.states, stored.inputs = first
        return stored, output

    monkeypatch.setattr(StoredText, 'read', classmethod(read))
    return injected


def shifted_values(monkeypatch):
    "Add to the values of variants; return a list that grows with each call."
    original, injected = StoredText.values, []

    def values(self, *args):
        injected.append(self)
        found = original(self, *args)
        return found + 0.05 * found.abs().max() * torch.arange(len(found))

    monkeypatch.setattr(StoredText, 'values', values)
    return injected


ENGINES = [wrong_row, shifted_values, stale_state]
FAMILIES = ['BERT', 'RoBERTa', 'ELECTRA', 'DistilBERT', 'GPT-2', 'Llama', 'Qwen2']
FAMILIES += ['Qwen3', 'Gemma 3', 'Phi-3', 'Mistral']


@pytest.mark.parametrize('broken', ENGINES)
@pytest.mark.parametrize('family', FAMILIES)
def test_a_broken_engine_is_noticed(family, broken, monkeypatch):
    sizes = {'Mistral': dict(sliding_window=None), 'Gemma 3': dict(sliding_window=64)}
    options = dict(dtype=torch.float32) | sizes.get(family, {})
    model = random_model(family, 'class', 'sdpa', **options)
    injected = broken(monkeypatch)
    calls = [[text(n, seed) for n in (12, 14, 12)] for seed in range(2)]
    for encs in calls:
        for enc, loo in zip(encs, many_loo(model, encs, 1)):
            assert close(loo.value, own_number(model, enc, 1))
            assert close(loo.scores, own_loo(model, enc, 1))
    assert injected


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'GPT-2'])
def test_an_exception_of_an_engine_is_raised(family, monkeypatch):
    "An engine that fails after its trial is not slow and silent."
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    many_loo(model, [text(12)], 1)

    def fails(*args, **options):
        raise AttributeError('no such state')

    monkeypatch.setattr(StoredText, 'output', fails)
    with pytest.raises(AttributeError, match='no such state'):
        many_loo(model, [text(40), text(40, 2)], 1)


@pytest.mark.parametrize('family', ['BERT', 'Llama'])
def test_an_engine_that_fails_in_its_trial_is_not_used(family, monkeypatch):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)

    def fails(*args, **options):
        raise AttributeError('no such state')

    monkeypatch.setattr(StoredText, 'output', fails)
    assert 'AttributeError: no such state' in why_no_states(model)
    (loo,) = many_loo(model, [text(12)], 1)
    assert loo.engine == 'attention_mask'
    assert close(loo.scores, own_loo(model, text(12), 1))


# ---- what a record says of its cost


@pytest.mark.parametrize('family', ['BERT', 'Llama'])
def test_passes_are_counted_at_the_layers(family):
    model = random_model(family, 'class', 'sdpa', dtype=torch.float32)
    encs = [text(n) for n in (12, 20, 20, 33)]
    many_loo(model, encs, 1)
    with CountTokens(model) as count:
        loos = many_loo(model, encs, 1)
    rows = sum(loo.passes * e['input_ids'].shape[1] for loo, e in zip(loos, encs))
    assert rows == pytest.approx(count.n, rel=1e-6)
    assert {loo.engine for loo in loos} == {'stored states'}


def test_methods_name_their_engine():
    model = random_model('BERT', 'class', 'sdpa', dtype=torch.float32)
    (a,) = explain_batch(model, Tokenizer(), [text()], 'loo', 1)
    assert a.info['engine'] == 'stored states'
    (a,) = explain_batch(
        model, Tokenizer(), [text()], 'loo', 1, removal='zero_embedding'
    )
    assert a.info['engine'] == 'zero_embedding'
    assert set(METHODS) >= {'loo', 'auto'}


@pytest.mark.parametrize(
    'family', ['StableLm', 'Granite', 'Starcoder2', 'SmolLM3', 'Cohere']
)
def test_a_decoder_needs_no_entry(family):
    sizes = dict(vocab_size=200, hidden_size=32, intermediate_size=64)
    sizes |= dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    sizes |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    cls = getattr(transformers, family + 'ForCausalLM')
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes, max_position_embeddings=64)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.1) if p.ndim > 1 else None
    assert not why_no_states(model)
    keep = ~torch.eye(12, dtype=torch.bool)
    (found,) = read_subsets(model, [text(12)], [keep], [1])
    assert found.engine == 'stored states'
    assert close(found.value - found.values, own_loo(model, text(12), 1))
