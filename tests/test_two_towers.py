"""Two towers: each number against the encoder's own two calls."""

import copy

import pytest
from close import assert_close
import torch
from torch.nn import functional as F
from encoder_decoders import widened
from families import SIZES
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel

from lrp_loo import explain, explain_pairs
from lrp_loo.loo import leave_one_out
from lrp_loo.lrp import lrp_rules
from lrp_loo.paper.conservation import conservation
from lrp_loo.lrp.composite import attn_lrp, cp_lrp
from lrp_loo.models.call import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.models.multipart import POOLINGS, two_towers

PAIR = ('a quiet film about the sea', 'waves , and little talk')


def encoder():
    "A small BERT with weights large enough that every token matters."
    model = BertModel(
        BertConfig(**SIZES | dict(vocab_size=30522, num_hidden_layers=2)),
        add_pooling_layer=False,
    )
    return widened(model, 0.2)


def by_hand(towers, enc, keep):
    "The similarity, from the encoder's two calls on one pair's variants."
    n = int((enc['tower_ids'] == 0).sum())
    ends = []
    for part in (slice(0, n), slice(n, None)):
        mask = keep[:, part].long()
        ids = enc['input_ids'][:, part].expand(len(mask), -1)
        types = torch.zeros_like(ids)
        types[:, [0, -1]] = 1
        inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
        h = towers.inside(**inputs).last_hidden_state
        ends.append((h, mask))
    (a, of_a), (b, of_b) = ends
    if towers.pooling == 'cls':
        a, b = a[:, 0], b[:, 0]
    elif towers.pooling == 'last':
        a, b = (
            torch.stack([h[k][m[k].nonzero()[-1, 0]] for k in range(len(h))])
            for h, m in ends
        )
    else:
        a, b = ((h * m[..., None]).sum(1) / m.sum(1, keepdim=True) for h, m in ends)
    return F.cosine_similarity(a, b)


@pytest.fixture(scope='module')
def tokenizer(demo):
    "A tokenizer whose special tokens have a type of their own, as XLNet's have."
    typed = copy.deepcopy(demo[1])
    ids = [(name, typed.convert_tokens_to_ids(name)) for name in ('[CLS]', '[SEP]')]
    single = dict(single='[CLS]:1 $A:0 [SEP]:1', special_tokens=ids)
    typed.backend_tokenizer.post_processor = TemplateProcessing(**single)
    return typed


@pytest.fixture(params=POOLINGS)
def given(request, tokenizer):
    towers = two_towers(encoder(), request.param)
    return towers, encode(towers, tokenizer, PAIR)


@torch.no_grad()
def test_exact_loo_is_that_of_single_calls(given):
    towers, enc = given
    scores, _, _ = leave_one_out(towers, enc)
    T = enc['input_ids'].shape[1]
    whole = by_hand(towers, enc, torch.ones(1, T))
    each = torch.cat([by_hand(towers, enc, k[None]) for k in ~torch.eye(T).bool()])
    torch.testing.assert_close(scores, whole - each, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize('rules', [attn_lrp, cp_lrp])
def test_rules_leave_the_similarity_and_lose_nothing(given, rules):
    towers, enc = given
    with lrp_rules(towers, rules()) as ruled:
        out = forward(towers, enc).logits
    whole = by_hand(towers, enc, torch.ones_like(enc['input_ids']))
    torch.testing.assert_close(out[:, 0].detach(), whole.detach())
    assert ruled.without_rule() == []
    parts = conservation(towers.double(), enc, rules())
    assert abs(parts['remainder']) < 1e-9 * max(map(abs, parts.values()))


def test_gradients_are_those_of_both_texts_embeddings(given):
    towers, enc = given
    with torch.enable_grad(), watch_embeddings(towers) as seen:
        value = forward(towers, enc).logits.sum()
    (ours,) = torch.autograd.grad(value, seen[0])
    leaves = []

    def leaf(module, args, out):
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    hook = towers.inside.get_input_embeddings().register_forward_hook(leaf)
    with torch.enable_grad():
        value = by_hand(towers, enc, torch.ones_like(enc['input_ids'])).sum()
    hook.remove()
    expected = torch.cat(torch.autograd.grad(value, leaves), 1)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_pairs_across_the_texts(tokenizer):
    towers = two_towers(encoder())
    (p,) = explain_pairs(towers, tokenizer, PAIR, method='exact')
    enc = encode(towers, tokenizer, PAIR)
    T = enc['input_ids'].shape[1]
    i, j = 2, T - 3  # one of each text

    @torch.no_grad()
    def f(*gone):
        keep = torch.ones(1, T)
        keep[0, list(gone)] = 0
        return float(by_hand(towers, enc, keep))

    expected = f() - f(i) - f(j) + f(i, j)
    assert_close(p.scores[i, j], expected, scale=1.0)


def test_batches_words_and_other_removals(tokenizer):
    towers = two_towers(encoder())
    pairs = [PAIR, ('dull', 'a long and dull film'), ('the sea', 'the sea')]
    for method in ('auto', 'attn_lrp', 'removal'):
        for a, pair in zip(explain(towers, tokenizer, pairs, method), pairs):
            (alone,) = explain(towers, tokenizer, pair, method)
            torch.testing.assert_close(a.scores, alone.scores, rtol=1e-4, atol=1e-6)
    (words,) = explain(towers, tokenizer, PAIR, 'loo', units='word')
    own = [i for i, special in enumerate(words.is_special) if not special]
    assert [words.tokens[i] for i in own] == ' '.join(PAIR).split()
    enc, unit_of = encode(towers, tokenizer, PAIR), words.info['unit_of_token']
    for i in own:
        keep = torch.tensor([[unit != i for unit in unit_of]])
        left = by_hand(towers, enc, keep.float()).item()
        assert_close(words.logit - left, float(words.scores[i]), scale=1.0)
    (gone,) = explain(towers, tokenizer, PAIR, 'loo', removal='delete')
    left = (PAIR[0], PAIR[1].replace('little ', ''))
    place = gone.tokens.index('little')
    same = explain(towers, tokenizer, left, 'loo')[0].logit
    assert_close(gone.logit - same, float(gone.scores[place]), scale=1.0)
