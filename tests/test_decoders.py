"""Stored keys and values of decoders: each variant is what the model's own masked
pass gives, and models without them are named.
"""

import pytest
import torch
from conftest import CountTokens, shallow_demo
from every_family import WIDEST, build
from families import DECODERS, random_inputs, random_model
from peft import LoraConfig, get_peft_model

from lrp_loo.estimate.auto import auto_scores, exact_passes
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units
from lrp_loo.inputs.scores import GeneratedReadout, NextTokens
from lrp_loo.inputs.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.inputs.scores import spread
from lrp_loo.loo.engines import read_subsets
from lrp_loo.loo.states import StoredText, why_no_states
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode, special_mask

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
]
FUSED = [(f, task) for f, row in DECODERS.items() if row.fused for task in row.tasks]
# of logits near 1: Llama's kin compute norms and softmax in float32, whatever
# the model's precision
ROUNDING = 1e-5


def wide(family, task, attention='sdpa'):
    "No window is shorter than the texts."
    has_window = 'sliding_window' in DECODERS[family].config
    more = dict(sliding_window=64) if has_window else {}
    return random_model(family, task, attention, **more)


def some_subsets(n_tokens, n=24, seed=0):
    "Random ones; each keeps its first token, so that every row sees a key."
    g = torch.Generator().manual_seed(seed)
    keep = torch.rand(n, n_tokens, generator=g) < 0.6
    keep[:, 0] = True
    return keep


def texts_of(model, lengths=(12, 5, 9)):
    return [random_inputs(model, n, seed=n) for n in lengths]


@torch.no_grad()
def one_by_one(model, enc, keep, readout):
    "What is read of each variant, masked, in a pass of its own."
    values = []
    for k in keep:
        output = forward(model, enc | dict(attention_mask=k[None].long()))
        values.append(readout(output))
    return torch.cat(values)


def assert_each_by_itself(model, encs, keeps, targets=None, **options):
    "Compare with a masked pass of its own; return the tokens that it took."
    targets = targets or [None] * len(encs)
    read_subsets(model, encs, keeps, targets)  # what is shown once a model
    with CountTokens(model) as count:
        read = read_subsets(model, encs, keeps, targets, **options)
    for enc, keep, of in zip(encs, keeps, read, strict=True):
        own = one_by_one(model, enc, keep, of.readout)
        assert torch.allclose(of.values, own, atol=ROUNDING)
        whole = of.readout(forward(model, enc))
        assert torch.allclose(of.value, whole, atol=ROUNDING)
    return count.n


@pytest.mark.parametrize('family,task', FUSED)
def test_stored_batches_are_each_by_itself(family, task):
    model = wide(family, task)
    assert not why_no_states(model)
    encs = texts_of(model)
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    targets = [Target(i) for i in (0, 1, 1)]
    rows = assert_each_by_itself(model, encs, keeps, targets, token_budget=40)
    assert rows < sum(k.numel() for k in keeps)


@pytest.mark.parametrize('family', [f for f in DECODERS if DECODERS[f].fused])
def test_every_generated_token_is_read(family):
    "The last rows of the text, each by itself."
    model = wide(family, 'next token')
    enc = random_inputs(model)
    ids = enc['input_ids'][0]
    readout = GeneratedReadout(ids, len(ids) - 4)
    keep = some_subsets(len(ids))
    keep[:, -4:] = True
    (found,) = read_subsets(model, [enc], [keep], [readout])
    assert found.values.shape == (24, 4)
    own = one_by_one(model, enc, keep, readout)
    assert torch.allclose(found.values, own, atol=ROUNDING)


def summed(of_each):
    "One number of some tokens' logits."

    def f(outputs):
        return of_each(outputs).sum(-1)

    f.from_end = True
    f.n_rows = of_each.n_rows
    return f


@pytest.fixture
def llama():
    return wide('Llama', 'next token')


def test_answers_of_several_lengths(llama):
    encs = texts_of(llama)
    answers = [e['input_ids'][0, -n:] for e, n in zip(encs, (1, 2, 3))]
    targets = [summed(NextTokens(ids)) for ids in answers]
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    assert_each_by_itself(llama, encs, keeps, targets)


def test_equal_subsets_are_computed_once(llama):
    encs = texts_of(llama, (12,))
    keep = some_subsets(12)
    once, often = (
        assert_each_by_itself(llama, encs, [keep.repeat(n, 1)]) for n in (1, 5)
    )
    assert once == often


def test_progress_reports_every_variant(llama):
    reported, encs = [], texts_of(llama)
    keeps = [~torch.eye(e['input_ids'].shape[1], dtype=torch.bool) for e in encs]
    options = dict(token_budget=16, progress=reported.append)
    read_subsets(llama, encs, keeps, [None] * 3, **options)
    assert sum(reported) == 12 + 5 + 9
    assert len(reported) > 3


def test_a_window_a_place_and_a_hook_go_another_way(llama):
    keep = some_subsets(12)
    windowed = random_model('Mistral', 'next token', 'sdpa')
    for model, target in ((windowed, None), (llama, Target(7, position=5))):
        assert_each_by_itself(model, texts_of(model, (12,)), [keep], [target])
    llama.model.layers[1].register_forward_hook(lambda m, a, out: out * 1.1)
    assert 'a hook' in why_no_states(llama)
    assert_each_by_itself(llama, texts_of(llama, (12,)), [keep])


def test_a_text_with_more_inputs_has_no_states_and_costs_a_pass_for_each_token(llama):
    (enc,) = texts_of(llama, (12,))
    members = torch.eye(12, dtype=torch.bool)
    assert exact_passes(llama, enc, None, members) < 12
    enc['position_ids'] = torch.arange(12)[None]
    assert exact_passes(llama, enc, None, members) == 1 + 12


def test_states_that_give_other_numbers_are_found_out(llama, monkeypatch):
    "The check compares with the model's own masked passes."
    (enc,) = texts_of(llama, (12,))
    right = StoredText.values
    calls = []

    def wrong(self, *args):
        values = right(self, *args)
        calls.append(len(values))
        return values + 0.01 * spread(values) * torch.arange(len(values))

    monkeypatch.setattr(StoredText, 'values', wrong)
    loo, _, _ = leave_one_out(llama, enc)
    assert calls == [12]
    monkeypatch.undo()
    keep = ~torch.eye(12, dtype=torch.bool)
    (found,) = read_subsets(llama, [enc], [keep], [None])
    own = found.value - one_by_one(llama, enc, keep, found.readout)
    assert torch.allclose(loo, own.float(), atol=ROUNDING)


def test_a_row_that_sees_nothing_is_left_to_the_model(llama):
    (enc,) = texts_of(llama, (12,))
    keep = some_subsets(12)
    keep[1] = False
    read_subsets(llama, [enc], [keep], [None])  # what is shown once a model
    with CountTokens(llama) as count:
        read_subsets(llama, [enc], [keep], [None])
    assert count.n == 12 * (1 + len(keep.unique(dim=0)))


# ---- the demo models


@pytest.mark.parametrize('name', ['reviews-sst2', 'reviews'])
def test_after_the_prefix_fewer_tokens_are_computed(name, monkeypatch):
    model, tokenizer = shallow_demo(name)
    enc = encode(model, tokenizer, ' '.join(TEXTS))
    n = enc['input_ids'].shape[1]
    # a removed last token is read and seen by no other
    prefixes = torch.ones(n, n, dtype=torch.bool).tril()[:-1]
    units = removal_units(special_mask(tokenizer, enc['input_ids'][0]))
    scores = {'order': torch.arange(n).float()}

    def numbers():
        loo = leave_one_out(model, enc)[0]
        (found,) = read_subsets(model, [enc], [prefixes], [None])
        (curves,) = perturbation_curves(model, [enc], [scores], [units], [None])
        return loo, found.values, *curves['order']

    found, n_tokens = [], []
    for stores in (True, False):  # stored, and masked
        name = 'lrp_loo.loo.engines.Variants.states_save_time'
        monkeypatch.setattr(name, lambda self, stores=stores: stores)
        with CountTokens(model) as count:
            found.append(numbers())
        n_tokens.append(count.n)
    assert n_tokens[0] < 0.7 * n_tokens[1]
    # logits near 10, in float32
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*found))


# ---- models whose states cannot be stored


def small_llama():
    return random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)


def small_gpt():
    return random_model('GPT-2', 'next token', 'sdpa', dtype=torch.float32)


def in_peft():
    lora = LoraConfig(target_modules=['q_proj'], task_type='CAUSAL_LM')
    return get_peft_model(small_llama(), lora).eval()


ADVICE = {
    'model.eval()': (lambda: small_gpt().train(), lambda m: m.eval()),
    '.float()': (lambda: small_llama().bfloat16(), lambda m: m.float()),
    "set_attn_implementation('sdpa')": (
        lambda: random_model('Llama', 'next token', 'eager', dtype=torch.float32),
        lambda m: m.set_attn_implementation('sdpa') or m,
    ),
}


def test_states_of_a_wrapped_model_are_stored():
    model = in_peft()
    assert not why_no_states(model)
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in texts_of(model)]
    rows = assert_each_by_itself(model, texts_of(model), keeps)
    assert rows < sum(k.numel() for k in keeps)


@pytest.mark.parametrize('advice', ADVICE)
def test_the_advice_helps(advice):
    make, follow = ADVICE[advice]
    model = make()
    assert advice in why_no_states(model)
    assert not why_no_states(follow(model))


def hooked():
    model = small_llama()
    model.model.layers[0].register_forward_hook(lambda m, a, out: out)
    return model


REFUSED = {
    'family': lambda: build('bloom', 'next token', WIDEST),
    'a hook': hooked,
    'window': lambda: random_model('Mistral', 'next token', 'sdpa'),  # six tokens
}


@pytest.mark.filterwarnings('ignore:no rule for GeLUFunctionBackward')
@pytest.mark.parametrize('reason', REFUSED)
def test_an_estimate_names_why_rows_are_not_recomputed(reason):
    model = REFUSED[reason]()
    enc = random_inputs(model, 12)
    (info,) = auto_scores(model, None, [enc], passes=4).info
    assert info['engine'].startswith('whole tokens: ') and reason in info['engine']
