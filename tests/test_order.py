"Attention in FlashAttention's order: the same numbers, and the maps of the theorem."

import pytest
import torch
from close import assert_close
from torch.nn import functional as F

from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.paper.ledger import CLAIMS, Rows
from lrp_loo.paper.order import DIVISIONS, divided_attention, division_rules


class Row(torch.nn.Module):
    "One query of width 1 over some keys: the logits are the keys."

    def __init__(self, is_divided):
        super().__init__()
        self.is_divided = is_divided

    def forward(self, z, v):
        if not self.is_divided:
            return (z.softmax(-1) @ v[:, None]).sum()
        query = torch.ones(1, 1, 1, 1, dtype=z.dtype)
        key, value = (x.view(1, 1, -1, 1) for x in (z, v))
        return divided_attention(self, query, key, value, None, 1.0)[0].sum()


def relevance(is_divided, rules, z, v):
    z, v = (x.clone().requires_grad_() for x in (z, v))
    row = Row(is_divided)
    with lrp_rules(row, rules):
        o = row(z, v)
    gz, gv = torch.autograd.grad(o, [z, v])
    return z.detach() * gz + v.detach() * gv


@pytest.mark.parametrize('n', [2, 7, 40])
@pytest.mark.parametrize(
    ('division', 'c_n', 'c_d'),
    [('half', 0.5, 0.5), ('plain', 1, 1), ('constant', 1, 0)],
)
def test_the_map_of_a_row_is_that_of_the_theorem(division, c_n, c_d, n):
    g = torch.Generator().manual_seed(n)
    z, v = torch.randn(2, n, generator=g, dtype=torch.double)
    A = z.softmax(-1)
    o = A @ v
    found = relevance(True, division_rules(division), z, v)
    assert_close(found, z * A * (c_n / 2 * v - c_d * o) + c_n / 2 * A * v)
    usual = relevance(False, attn_lrp(), z, v)
    assert (found - usual).abs().max() > 1e-3 * usual.abs().max()


def test_the_numbers_of_the_issue():
    z, v = torch.tensor([[0.7, -0.4, 1.1], [3.0, 1.0, -1.0]]).double()
    half = relevance(True, division_rules('half'), z, v)
    assert half.tolist() == pytest.approx([0.371, 0.033, -0.467], abs=5e-4)
    usual = relevance(False, attn_lrp(), z, v)
    assert usual.tolist() == pytest.approx([0.822, 0.051, -0.744], abs=5e-4)


@pytest.mark.parametrize('n_kv', [1, 2, 4])
def test_the_output_is_that_of_fused_attention(n_kv):
    g = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 8, generator=g)
    key, value = torch.randn(2, 2, n_kv, 5, 8, generator=g)
    mask = torch.full((5, 5), torch.finfo(torch.float).min).triu(1)
    O, _ = divided_attention(None, query, key, value, mask, 0.3)
    shape = dict(attn_mask=mask, scale=0.3, enable_gqa=True)
    fused = F.scaled_dot_product_attention(query, key, value, **shape)
    assert_close(O.transpose(1, 2), fused)


def test_the_claims_take_the_nearest_and_the_best_rule():
    r = dict(zip(DIVISIONS, (0.2, 0.5, 0.9)))
    methods = {f'divided, {k}': dict(r=x / 2, r_usual=x) for k, x in r.items()}
    row = dict(methods=methods | dict(attn_lrp=dict(r=0.6)))
    rows = Rows([row] * 4, 2)
    by_key = {c.key: c for c in CLAIMS}
    assert_close(by_key['order-of-softmax'].difference(rows), [0.09] * 4)
    assert_close(by_key['order-usual-above'].difference(rows), [0.15] * 4)
    assert by_key['order-of-softmax'].difference(Rows([dict(methods={})], 2)) is None
