"""Stored keys and values of decoders: each variant is what the model's own masked
pass gives, and models without them are named.
"""

from functools import partial

import pytest
import torch
from conftest import CountTokens, shallow_demo
from every_family import WIDEST, build
from families import DECODERS, random_inputs, random_model
from peft import LoraConfig, get_peft_model

from lrp_loo.estimate import removal_rows_scores
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units
from lrp_loo.inputs.scores import GeneratedReadout, next_tokens
from lrp_loo.inputs.targets import Target
from lrp_loo.loo import leave_one_out, loo_seconds, many_loo
from lrp_loo.loo.checks import spread
from lrp_loo.loo.engines import read_subsets, subset_logits
from lrp_loo.loo.states import StoredText, every_row_attends, n_last_rows, why_no_states
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


def some_subsets(n_tokens, n=9, seed=0):
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
    with CountTokens(model) as count:
        read = read_subsets(model, encs, keeps, targets, **options)
    for enc, keep, of in zip(encs, keeps, read, strict=True):
        own = one_by_one(model, enc, keep, of.readout)
        assert torch.allclose(of.values, own, atol=ROUNDING)
        whole = of.readout(forward(model, enc))
        assert torch.allclose(of.value, whole, atol=ROUNDING)
    return count.n


@pytest.mark.parametrize('family,task', FUSED)
def test_stored_and_shared_batches_are_each_by_itself(family, task):
    model = wide(family, task)
    assert not why_no_states(model)
    encs = texts_of(model)
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    targets = [Target(i) for i in (0, 1, 1)]
    for drop in (True, None, False):  # stored, dropped, padded
        assert_each_by_itself(model, encs, keeps, targets, drop=drop, token_budget=40)


@pytest.mark.parametrize('family', [f for f in DECODERS if DECODERS[f].fused])
def test_every_generated_token_is_read(family):
    "The last rows of the text, each by itself."
    model = wide(family, 'next token')
    enc = random_inputs(model)
    ids = enc['input_ids'][0]
    readout = GeneratedReadout(ids, len(ids) - 4)
    keep = some_subsets(len(ids), n=12)
    keep[:, -4:] = True
    values = subset_logits(model, enc, keep, readout=readout, drop=True)
    assert values.shape == (12, 4)
    own = one_by_one(model, enc, keep, readout)
    assert torch.allclose(values, own, atol=ROUNDING)


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
    targets = [summed(next_tokens(ids)) for ids in answers]
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    for drop in (True, None):
        assert_each_by_itself(llama, encs, keeps, targets, drop=drop)


@pytest.mark.parametrize('drop', [True, None])
def test_equal_subsets_are_computed_once(llama, drop):
    encs = texts_of(llama, (12,))
    keep = some_subsets(12)
    once, often = (
        assert_each_by_itself(llama, encs, [keep.repeat(n, 1)], drop=drop)
        for n in (1, 5)
    )
    assert once == often


@pytest.mark.parametrize('drop', [True, None])
def test_progress_reports_every_variant(llama, drop):
    reported = []
    options = dict(token_budget=16, progress=reported.append, drop=drop)
    many_loo(llama, texts_of(llama), **options)
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


def test_states_that_give_other_numbers_are_found_out(llama, monkeypatch):
    "The check compares with the model's own masked passes."
    monkeypatch.setattr('lrp_loo.loo.engines.MIN_STORED', 0)
    (enc,) = texts_of(llama, (12,))
    right = StoredText.values
    calls = []

    def wrong(self, *args):
        values = right(self, *args)
        calls.append(len(values))
        return values + 0.01 * spread(values) * torch.arange(len(values))

    monkeypatch.setattr(StoredText, 'values', wrong)
    loo, _, _ = leave_one_out(llama, enc)
    assert calls == [4]
    monkeypatch.undo()
    own, _, _ = leave_one_out(llama, enc, drop=False)
    assert torch.allclose(loo, own, atol=ROUNDING)


TARGETS = [
    (None, 1),
    (3, 1),
    (Target(1, position=-1), 1),
    (Target(1, position=2), None),
    (Target(1, output='hidden_states'), None),
    (lambda outputs: outputs.logits[:, 0, 0], None),
    (summed(next_tokens(torch.tensor([4, 5]))), 3),
]


def test_which_rows_are_read():
    assert [n_last_rows(t) for t, _ in TARGETS] == [n for _, n in TARGETS]


def test_a_row_that_sees_nothing_is_left_to_the_model():
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[1, :4] = False
    # row 4 sees itself
    assert [every_row_attends(keep, n) for n in (2, 3, 7)] == [True, False, False]


def test_the_duration_is_measured_for_the_rows_that_are_read(llama):
    assert loo_seconds(llama, texts_of(llama, (12,)), target=Target(3, position=4)) > 0


# ---- the demo models


def close(a, b):
    "Of logits near 10, in float32."
    return torch.allclose(a, b, atol=1e-4)


def both_ways(model, f):
    "Stored or dropped, and masked; the share of tokens that took."
    found, n = [], []
    for drop in (None, False):
        with CountTokens(model) as count:
            found.append(f(drop=drop))
        n.append(count.n)
    assert close(*found)
    return n[0] / n[1]


@pytest.mark.parametrize('name', ['reviews-sst2', 'reviews'])
def test_after_the_prefix_fewer_tokens_are_computed(name, monkeypatch):
    monkeypatch.setattr('lrp_loo.loo.engines.MIN_STORED', 0)
    model, tokenizer = shallow_demo(name)
    enc = encode(model, tokenizer, ' '.join(TEXTS))
    n = enc['input_ids'].shape[1]
    spans = torch.full((n,), -1)
    spans[2:4] = 0
    spans[5:9] = 1
    assert both_ways(model, lambda drop: leave_one_out(model, enc, drop=drop)[0]) < 0.9
    both_ways(model, lambda drop: leave_one_out(model, enc, units=spans, drop=drop)[0])
    # a removed last token is read and seen by no other
    keep = torch.ones(n, n, dtype=torch.bool).tril()[:-1]
    prefixes = partial(read_subsets, model, [enc], [keep], [None])
    assert both_ways(model, lambda drop: prefixes(drop=drop)[0].values) < 0.4
    # and curves
    units = removal_units(special_mask(tokenizer, enc['input_ids'][0]))
    scores = {'order': torch.arange(n).float()}
    curves = partial(perturbation_curves, model, enc, scores, units, None)
    both_ways(model, lambda drop: torch.stack([*curves(drop=drop)['order']]))


# ---- models whose states cannot be stored


def small_llama():
    return random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)


def with_eager_attention():
    return random_model('Llama', 'next token', 'eager', dtype=torch.float32)


def set_sdpa(m):
    m.set_attn_implementation('sdpa')
    return m


def in_peft():
    lora = LoraConfig(target_modules=['q_proj'], task_type='CAUSAL_LM')
    return get_peft_model(small_llama(), lora).eval()


OPTIONS = {
    'model.eval()': (lambda: small_llama().train(), lambda m: m.eval()),
    'model.float()': (lambda: small_llama().bfloat16(), lambda m: m.float()),
    "set_attn_implementation('sdpa')": (with_eager_attention, set_sdpa),
    'merge_and_unload()': (in_peft, lambda m: m.merge_and_unload()),
}


@pytest.mark.parametrize('advice', OPTIONS)
def test_an_option_and_its_advice_helps(advice):
    make, follow = OPTIONS[advice]
    model = make()
    assert advice in why_no_states(model)
    assert not why_no_states(follow(model))


def refusal(model, enc, **options):
    with pytest.raises(ValueError) as e:
        removal_rows_scores(model, None, [enc], **options)
    return str(e.value)


def hooked():
    model = small_llama()
    model.model.layers[0].register_forward_hook(lambda m, a, out: out)
    return model


REFUSED = {
    'family': lambda: build('bloom', 'next token', WIDEST),
    'a hook': hooked,
    'window': lambda: random_model('Mistral', 'next token', 'sdpa'),  # six tokens
}


@pytest.mark.parametrize('reason', REFUSED)
def test_removal_rows_names_the_reason(reason):
    model = REFUSED[reason]()
    message = refusal(model, random_inputs(model, 12))
    assert reason in message and type(model).__name__ in message


def test_removal_rows_refuses_a_target_in_the_middle_and_other_encoders():
    model = small_llama()
    message = refusal(model, random_inputs(model, 12), target=Target(position=3))
    assert "the target must be read at the text's last token" in message
    model = random_model('DeBERTa-v2')
    assert 'family' in refusal(model, random_inputs(model, 12))
