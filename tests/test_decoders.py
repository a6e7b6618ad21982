"Decoders: many variants in one row are what each is by itself, masked."

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import CountTokens, shallow_demo
from families import DECODERS, random_inputs, random_model

from lrp_loo.asked.rows import GeneratedReadout, next_tokens
from lrp_loo.asked.targets import Target
from lrp_loo.loo import leave_one_out, many_loo
from lrp_loo.loo.checked import spread
from lrp_loo.loo.decoders import (
    FastDecoder,
    all_see_something,
    behind_gaps,
    fast_decoder,
    rows_at_the_end,
    windows,
)
from lrp_loo.loo.duration import loo_seconds
from lrp_loo.loo.engines import many_subset_logits, read_subsets
from lrp_loo.models import forward
from lrp_loo.models.encoding import encode, special_mask
from lrp_loo.trust.curves import perturbation_curves, removal_units

TEXTS = [
    "a slow start , but the last act is a quiet triumph",
    "the jokes are old",
    "a warm and funny film , and never once dull",
]
KINDS = [(f, task) for f, row in DECODERS.items() for task in row.tasks]
FUSED = [(f, task) for f, task in KINDS if DECODERS[f].fused]
# of logits near 1: Llama's kin compute norms and softmax in float32, whatever
# the model's precision
ROUNDING = 1e-5


def wide(family, task, attention='eager'):
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
    found = []
    for k in keep:
        output = forward(model, enc | dict(attention_mask=k[None].long()))
        found.append(readout(output))
    return torch.cat(found)


def is_taken(model, encs):
    return fast_decoder(model, encs[0]) is not None


@pytest.mark.parametrize('family,task', FUSED)
def test_every_listed_decoder_is_taken(family, task):
    model = wide(family, task, 'sdpa')
    assert is_taken(model, texts_of(model))


def assert_each_by_itself(model, encs, keeps, targets=None, **options):
    "Read together, and masked in a pass of its own; the tokens that it took."
    targets = targets or [None] * len(encs)
    with CountTokens(model) as count:
        read = read_subsets(model, encs, keeps, targets, **options)
    for enc, keep, of in zip(encs, keeps, read, strict=True):
        own = one_by_one(model, enc, keep, of.readout)
        assert torch.allclose(of.values, own, atol=ROUNDING)
        whole = of.readout(forward(model, enc))
        assert torch.allclose(of.value, whole, atol=ROUNDING)
    return count.n


@pytest.mark.parametrize('family,task', KINDS)
def test_many_texts_together_are_each_by_itself(family, task):
    model = wide(family, task)
    encs = texts_of(model)
    assert is_taken(model, encs)
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    targets = [Target(i) for i in (0, 1, 1)]
    for budget in (20, 8192):
        n = assert_each_by_itself(model, encs, keeps, targets, token_budget=budget)
        # with whole texts and the check
        assert n < sum(keep.numel() for keep in keeps)


@pytest.mark.parametrize('family', DECODERS)
def test_every_generated_token_is_read(family):
    "The last rows of the text, each by itself."
    model = wide(family, 'next token')
    enc = random_inputs(model)
    ids = enc['input_ids'][0]
    readout = GeneratedReadout(ids, len(ids) - 4)
    keep = some_subsets(len(ids), n=12)
    keep[:, -4:] = True
    (values,) = many_subset_logits(
        model, [enc], [keep], 'attention_mask', readouts=[readout]
    )
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


def test_answers_of_several_lengths_share_passes(llama):
    encs = texts_of(llama)
    answers = [e['input_ids'][0, -n:] for e, n in zip(encs, (1, 2, 3))]
    targets = [summed(next_tokens(ids)) for ids in answers]
    keeps = [some_subsets(e['input_ids'].shape[1]) for e in encs]
    assert_each_by_itself(llama, encs, keeps, targets)


def test_equal_subsets_are_computed_once(llama):
    encs = texts_of(llama, (12,))
    keep = some_subsets(12)
    once, often = (
        assert_each_by_itself(llama, encs, [keep.repeat(n, 1)]) for n in (1, 5)
    )
    assert once == often


def test_progress_hears_of_every_variant(llama):
    told = []
    many_loo(llama, texts_of(llama), token_budget=16, progress=told.append)
    assert sum(told) == 12 + 5 + 9
    assert len(told) > 3


def test_what_is_no_case_for_it(llama):
    "A window of six tokens; a place in the middle of the text; a hook."
    keep = some_subsets(12)
    windowed = random_model('Mistral', 'next token')
    for model, target in ((windowed, None), (llama, Target(7, position=5))):
        encs = texts_of(model, (12,))
        assert assert_each_by_itself(model, encs, [keep], [target]) >= keep.numel()
    llama.model.layers[1].register_forward_hook(lambda m, a, out: out * 1.1)
    assert not is_taken(llama, encs)
    with pytest.raises(ValueError, match='a hook'):
        FastDecoder(llama)


def test_a_decoder_that_answers_otherwise_is_found_out(llama, monkeypatch):
    "The check compares with the model's own masked passes."
    encs = texts_of(llama, (12,))
    right = FastDecoder._run

    def wrong(self, texts, rows):
        logits, cache = right(self, texts, rows)
        moved = torch.zeros_like(logits)
        moved[1:] = 0.01 * spread(logits)
        return logits + moved, cache

    monkeypatch.setattr(FastDecoder, '_run', wrong)
    assert not is_taken(llama, encs)
    loo, _, _ = leave_one_out(llama, encs[0])
    monkeypatch.undo()
    own, _, _ = leave_one_out(llama, encs[0], drop=False)
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
    assert [rows_at_the_end(t) for t, _ in TARGETS] == [n for _, n in TARGETS]


def test_a_row_that_sees_nothing_is_left_to_the_model():
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[1, :4] = False
    # row 4 sees itself
    assert [all_see_something(keep, n) for n in (2, 3, 7)] == [True, False, False]


def test_neighbours_share_what_there_is_room_for():
    some = [(w.start, w.stop) for w in windows([3, 3, 9, 1, 1, 1], 6)]
    assert some == [(0, 2), (2, 3), (3, 6)]


def test_a_pass_holds_the_rows_of_its_variants():
    keeps = [~torch.eye(n, dtype=torch.bool) for n in (4, 3)]
    rows = behind_gaps(keeps, [1, 1])
    passes = list(rows.passes(4))
    assert torch.equal(torch.cat([p.token for p in passes]), rows.token)
    assert torch.equal(torch.cat([p.text for p in passes]), rows.text)
    assert all(len(p.token) <= 4 for p in passes)
    assert all(int(p.variant[0]) == 0 for p in passes)


def test_how_long_it_takes_is_asked_of_what_is_read(llama):
    "Of the last row, not of every token's logits."
    counts = []
    for target in (Target(3), Target(3, position=4)):
        with CountTokens(llama) as count:
            loo_seconds(llama, texts_of(llama, (12,)), target=target)
        counts.append(count.n)
    assert counts[0] < counts[1]


# ---- the demo models


def close(a, b):
    "Of logits near 10, in float32."
    return torch.allclose(a, b, atol=1e-4)


@pytest.fixture(scope='module', params=['reviews-sst2', 'reviews'])
def decoder(request):
    model, tokenizer = shallow_demo(request.param)
    enc = encode(model, tokenizer, ' '.join(TEXTS))
    return SimpleNamespace(model=model, tokenizer=tokenizer, enc=enc)


def both_ways(model, f):
    "With what is removed dropped, and masked; the share of tokens that took."
    found, n = [], []
    for drop in (None, False):
        with CountTokens(model) as count:
            found.append(f(drop=drop))
        n.append(count.n)
    assert close(*found)
    return n[0] / n[1]


def test_after_the_prefix_fewer_tokens_are_computed(decoder):
    model, enc = decoder.model, decoder.enc
    n = enc['input_ids'].shape[1]
    spans = torch.full((n,), -1)
    spans[2:4] = 0
    spans[5:9] = 1
    assert both_ways(model, lambda drop: leave_one_out(model, enc, drop=drop)[0]) < 0.8
    both_ways(model, lambda drop: leave_one_out(model, enc, units=spans, drop=drop)[0])
    # a removed last token is read and seen by no other
    keep = torch.ones(n, n, dtype=torch.bool).tril()[:-1]
    prefixes = partial(read_subsets, model, [enc], [keep], [None])
    assert both_ways(model, lambda drop: prefixes(drop=drop)[0].values) < 0.4
    # and curves
    units = removal_units(special_mask(decoder.tokenizer, enc['input_ids'][0]))
    scores = {'order': torch.arange(n).float()}
    curves = partial(perturbation_curves, model, enc, scores, units, None)
    both_ways(model, lambda drop: torch.stack([*curves(drop=drop)['order']]))
