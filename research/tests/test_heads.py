"""The softmax of single heads bypassed: against a second derivation, against
whole layers, in sweeps; what is refused; and the study of section 3.2's
mechanisms head by head.
"""

import json

import naive_bert
import numpy as np
import pytest
import torch
from conftest import TEXTS, random_bert
from families import random_inputs, random_model
from torch import nn

from lrp_lab import heads
from lrp_loo import attn_lrp, explain, lrp_rules
from lrp_loo.cli import main
from lrp_loo.cli.options import parse_layers
from lrp_loo.lrp.composite import Composite
from lrp_loo.lrp.conservation import conservation
from lrp_loo.lrp.checkpoint import checkpointed_gradient
from lrp_loo.methods.baselines import lrp_scores
from lrp_loo.models.encoding import encode
from lrp_loo.paper.experiments import row_flatness
from lrp_loo.evaluate.results import read_results

# norms are computed in float32 in some families, whatever the weights are
CLOSE = 1e-5


class ByHead(naive_bert.Attention):
    "The oracle's attention, with the weights of some heads held constant."

    held = {}  # layer → heads

    def __init__(self, sd, name, heads):
        super().__init__(sd, name, heads)
        self.layer = int(name.split('.')[3])

    def back(self, R, eps, bypass):
        by_head = self.split(R)
        RA, RV = self.product_back(by_head, eps)
        RQ, RK = self.logits_back(self.softmax_back(RA), eps)
        constant = self.constant_weights_back(by_head, eps)
        for h in self.held.get(self.layer, ()):
            RV[h] = constant[h]
            RQ[h] = RK[h] = 0
        parts = (self.q, RQ), (self.k, RK), (self.v, RV)
        return sum(f.back(naive_bert.merge(r), eps) for f, r in parts)


def naive_by_head(monkeypatch, model, ids, held):
    monkeypatch.setattr(naive_bert, 'Attention', ByHead)
    monkeypatch.setattr(ByHead, 'held', held)
    c = model.config
    return naive_bert.explain(
        model.state_dict(),
        ids,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        ln_eps=c.layer_norm_eps,
    )[1]


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('held', [{1: [2]}, {0: [0, 3], 2: [1]}, {2: range(4)}])
def test_a_head_is_the_naive_one(tokenizer, monkeypatch, attention, held):
    model = random_bert(dtype=torch.float64)
    model.set_attn_implementation(attention)
    enc = encode(model, tokenizer, TEXTS[2])
    expected = naive_by_head(monkeypatch, model, enc['input_ids'][0], held)
    (found,) = lrp_scores(model, tokenizer, [enc], composite=attn_lrp(held)).scores
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    plain = lrp_scores(model, tokenizer, [enc]).scores[0]
    assert (found - plain).abs().max() > 1e-3 * plain.abs().max()


def relevance_under(model, inputs, composite):
    return lrp_scores(model, None, [inputs], composite=composite).scores


def alike(a, b):
    return (a - b).abs().max() <= CLOSE * b.abs().max()


FAMILIES = {
    **dict.fromkeys(['BERT', 'Llama', 'GPT-2', 'Qwen3'], 'class'),
    'ViT': 'image',
}
RULE_SETS = {
    'AttnLRP': {},
    'ε': dict(eps=1e-3),
    'canonized': dict(product='canonized'),
    'plain gradient': dict(product='gradient', activation='gradient'),
}


@pytest.mark.parametrize('rules', RULE_SETS)
@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('family', FAMILIES)
def test_all_heads_of_a_layer_are_the_layer(family, attention, rules):
    model = random_model(family, FAMILIES[family], attention)
    inputs = random_inputs(model)
    n = model.config.num_attention_heads
    under = RULE_SETS[rules]

    def relevance(bypass):
        return relevance_under(model, inputs, Composite('x', bypass, **under))

    whole, none = relevance([1]), relevance([])
    assert alike(relevance({1: range(n)}), whole)
    assert alike(relevance({1: []}), none)
    if rules != 'canonized':  # there a head's chain counts for the others
        single = [relevance([(1, h)]) - none for h in range(n)]
        assert alike(none + sum(single), whole)


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
def test_grouped_keys_have_a_softmax_for_every_query_head(attention):
    model = random_model(
        'Llama', attention=attention, num_attention_heads=4, num_key_value_heads=2
    )
    inputs = random_inputs(model)
    none = relevance_under(model, inputs, attn_lrp())
    maps = [relevance_under(model, inputs, attn_lrp([(0, h)])) for h in range(4)]
    assert all((m - none).abs().max() > 1e-6 for m in maps)
    assert (maps[0] - maps[1]).abs().max() > 1e-6  # of one key
    with pytest.raises(ValueError, match='has heads 0 to 3'):
        relevance_under(model, inputs, attn_lrp([(0, 4)]))


def test_a_checkpointed_pass_bypasses_heads(tokenizer):
    model = random_bert(dtype=torch.float64)
    enc = encode(model, tokenizer, TEXTS[0])
    rules = attn_lrp([(1, 2), (2, 0)])
    found = checkpointed_gradient(model, enc, rules)
    R = (found.embeddings * found.gradient).sum(-1)
    assert alike(R, relevance_under(model, enc, rules))


def test_multi_head_attention_of_torch_bypasses_heads():
    torch.manual_seed(0)

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.layers = nn.ModuleList([layer])

        def forward(self, x):
            return self.layers[0](x)

    mine = Mine().double().eval()
    given = torch.randn(1, 5, 8, dtype=torch.float64)

    def gradient(bypass):
        x = given.clone().requires_grad_()
        with lrp_rules(mine, attn_lrp(bypass)):
            out = mine(x)
        return torch.autograd.grad(out.sum(2).sum(), x)[0]

    none, whole = gradient([]), gradient([0])
    one, other = gradient([(0, 0)]), gradient([(0, 1)])
    assert alike(one + other - none, whole)
    assert alike(gradient([(0, 0), (0, 1)]), whole)


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
def test_relevance_is_conserved_and_covered(tokenizer, attention):
    model = random_bert(dtype=torch.float64)
    model.set_attn_implementation(attention)
    enc = encode(model, tokenizer, TEXTS[0])
    s = conservation(model, enc, attn_lrp([(0, 1), (2, 0), (2, 3)]))
    assert abs(s['remainder']) <= 1e-6 * abs(s['logit'])
    with lrp_rules(model, attn_lrp([(1, 0)]), strict=True) as rules:
        model(**enc)
    names = rules.report().rule
    assert names.str.contains('constant weights in some heads').any()


def test_logits_are_the_same_bits(demo):
    model, tokenizer = demo
    enc = encode(model, tokenizer, TEXTS[0])
    plain = model(**enc).logits
    for attention in ('eager', 'sdpa'):
        model.set_attn_implementation(attention)
        expected = model(**enc).logits
        with lrp_rules(model, attn_lrp([(1, 0), (4, 7)])):
            assert torch.equal(model(**enc).logits, expected)
    assert torch.equal(model(**enc).logits, plain)


# what is refused


class OwnAttention(nn.Module):
    "Attention by hand, in some shape."

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(1, 5, 2, 4).transpose(1, 2) for f in self.parts())
        if self.shape == 'three dimensions':
            A = (q @ k.mT).flatten(0, 1).softmax(-1)
            return x + (A @ v.flatten(0, 1)).transpose(0, 1).reshape(1, 5, 8)
        A = (q @ k.mT).softmax(-1)  # loses its heads afterwards
        out = torch.bmm(A.flatten(0, 1), v.flatten(0, 1))
        return x + out.transpose(0, 1).reshape(1, 5, 8)

    def parts(self):
        return self.q, self.k, self.v


class Own(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layers = nn.ModuleList([OwnAttention(shape)])

    def forward(self, x):
        return self.layers[0](x)


@pytest.mark.parametrize(
    'shape,says',
    [
        ('three dimensions', 'shows no dimension of heads'),
        ('flattened', 'lose their dimension of heads'),
    ],
)
def test_heads_that_cannot_be_told_apart_are_refused(shape, says):
    own = Own(shape)
    x = torch.randn(1, 5, 8, requires_grad=True)
    with lrp_rules(own, attn_lrp([0])):  # the layer can be bypassed
        own(x)
    with pytest.raises(ValueError, match=says):
        with lrp_rules(own, attn_lrp([(0, 1)])):
            own(x)


@pytest.mark.parametrize(
    'bypass,says',
    [
        ([(6, 0)], r'names? layers \[6\]; this model has layers 0 to 5'),
        ([(0, 12)], r'heads \[12\] of layer 0; this layer has heads 0 to 11'),
        ([(0, -1)], r'heads \[-1\] of layer 0'),
    ],
)
def test_a_head_that_the_model_lacks_is_refused(demo, bypass, says):
    with pytest.raises(ValueError, match=says):
        explain(*demo, 'a fine film', method='attn_lrp', bypass_softmax=bypass)


def test_a_head_on_the_command_line(capsys):
    assert parse_layers('3,4.1,0.10') == (3, (4, 1), (0, 10))
    words = ['explain', 'a fine film', '--method', 'attn_lrp']
    assert main([*words, '--bypass_softmax', '2.1,3.0']) == 0
    with_heads = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out != with_heads
    assert main([*words, '--bypass_softmax', '2.1.3']) == 2
    assert 'layers from 0' in capsys.readouterr().err


# the study


def test_flatness_size_and_spread_of_known_attention():
    n = 6
    level = torch.tensor([0.0, -4.0, 4.0])
    uniform = level[:, None, None].expand(3, n, n)
    A = uniform.softmax(-1)
    assert torch.allclose(row_flatness(A), torch.ones(3, n).double())
    assert torch.allclose(
        heads.logit_size(uniform, A), torch.tensor([0.0, 4, 4]).double()
    )
    assert not heads.logit_spread(uniform, A).any()
    one_key = 50 * torch.eye(n)[None]
    B = one_key.softmax(-1)
    assert row_flatness(B).abs().max() < 1e-9
    assert torch.allclose(heads.logit_size(one_key, B), level.new_tensor(50.0).double())


def test_what_a_row_cannot_see_does_not_count():
    Z = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    hidden = ~torch.ones(5, 5).tril().bool()
    A = Z.masked_fill(hidden, -torch.inf).softmax(-1)
    other = Z.masked_fill(hidden, 99.0)
    for number in (heads.logit_size, heads.logit_spread):
        assert torch.equal(number(Z, A), number(other, A))
    rows = [torch.special.entr(A[:, j, : j + 1].double()) for j in range(1, 5)]
    expected = sum(r.sum(-1) / np.log(r.shape[-1]) for r in rows) / 4
    assert torch.allclose(row_flatness(A).mean(-1), expected)


def naive_partial(x, y, z):
    "The textbook's formula, from three rank correlations."
    r = heads.partial_spearman
    xy, xz, yz = r(x, y), r(x, z), r(y, z)
    return (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))


def test_a_partial_correlation_is_the_textbooks():
    rng = np.random.default_rng(1)
    x, y, z = rng.normal(size=(3, 40))
    y = y + x - z
    expected = naive_partial(x, y, z)
    assert heads.partial_spearman(x, y, [z]) == pytest.approx(expected)


def test_with_kinds_held_fixed_every_kind_is_centred():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 30))
    kind = np.repeat([0, 1, 2], 10)
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y)]
    a, b = ([r - r[kind == k].mean() for k in kind] for r in ranks)
    for v, r in zip((a, b), ranks):
        v[:] = r - np.array([r[kind == k].mean() for k in kind])
    expected = np.corrcoef(a, b)[0, 1]
    found = heads.partial_spearman(x, y, categories=[kind])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize('x,y', [([1, 1, 1], [1, 2, 3]), ([1, np.nan, 2], [1, 2, 3])])
def test_a_correlation_that_is_not_defined_is_nan(x, y):
    assert np.isnan(heads.partial_spearman(x, y))


def made_up_row(seed, gain):
    rng = np.random.default_rng(seed)
    numbers = dict(zip(('flat', 'size', 'spread', 'share'), rng.random((4, 30))))
    halves = dict(flat=[0.2, 0.1], size=[0.1, 0.2])
    return numbers | dict(gain=gain(**numbers), halves=halves)


@pytest.mark.parametrize(
    'gain,holds',
    [
        (lambda flat, **_: flat, {'flat-heads-hurt', 'flat-heads-hurt-fixed'}),
        (lambda size, **_: size, {'large-logits-hurt', 'large-logits-hurt-fixed'}),
        (lambda share, **_: share, {'share-hurts', 'share-moves'}),
    ],
)
def test_each_sentence_is_decided_by_its_own_number(gain, holds):
    rows = [made_up_row(seed, gain) for seed in range(12)]
    found = heads.judged(rows, 5)
    assert {k for k, d in found.items() if d['mean'] > 0.9} == holds
    assert found['flat-halves-hurt']['mean'] == pytest.approx(0.1)
    assert found['large-halves-hurt']['mean'] == pytest.approx(-0.1)


def test_how_far_r_moves_is_asked_apart_from_the_direction():
    def gain(flat, share, **_):
        return share * np.where(flat > 0.5, 1, -1)

    rows = [made_up_row(seed, gain) for seed in range(12)]
    found = heads.judged(rows, 5)
    assert found['share-moves']['mean'] == pytest.approx(1)
    assert found['share-hurts']['mean'] < 0.5


def test_a_text_without_r_is_left_out():
    rows = [
        made_up_row(seed, lambda flat, share, **_: flat - share) for seed in range(5)
    ]
    rows[0] |= dict(gain=[None] * 30, halves=dict(flat=[None] * 2, size=[None] * 2))
    found = heads.judged(rows, 5)
    assert {d['n'] for d in found.values()} == {4}


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "A part on embedded sentences, on two layers of its model."
    path = tmp_path_factory.mktemp('heads') / 'heads-decoder.json'
    heads.head_experiment(path, 'decoder', 'embedded', limit=3)
    return path


def test_a_row_says_what_separate_runs_say(measured):
    row = read_results(measured)['rows'][0]
    drawn = heads.part_examples('decoder', 'embedded', 3)
    model, tokenizer = drawn.model, drawn.tokenizer
    (_, enc, label) = next(e for e in drawn.examples if e[0] == row['i'])
    assert row['label'] == label
    methods = {
        'none': ('attn_lrp', {}),
        'one': ('attn_lrp', dict(bypass_softmax=[(2, 1)])),
        'all': ('attn_lrp', dict(bypass_softmax=range(6))),
    }
    (loo,), maps = heads.compare_with_loo(model, tokenizer, [enc], methods)
    r = {
        k: heads.agreement(a.scores, loo.scores, a.is_special)
        for k, (a,) in maps.items()
    }
    assert row['r'] == pytest.approx(r['none'], abs=1e-5)
    assert row['all'] == pytest.approx(r['all'] - r['none'], abs=1e-5)
    gain = row['gain'][2 * 4 + 1]
    assert gain == pytest.approx(r['one'] - r['none'], abs=1e-5)
    assert sum(row['share']) == pytest.approx(1, abs=1e-3)


def test_the_study_goes_on_where_it_stopped(measured, tmp_path):
    whole = json.loads(measured.read_text())
    part = tmp_path / measured.name
    part.write_text(json.dumps(whole | dict(rows=whole['rows'][:1])))
    heads.head_experiment(part, 'decoder', 'embedded', limit=3)
    assert read_results(part)['rows'] == whole['rows']
    with pytest.raises(ValueError, match='another run'):
        heads.head_experiment(part, 'decoder', 'embedded', limit=2)


def test_the_figure_has_a_point_for_every_head(measured):
    results = {'decoder': read_results(measured)}
    fig = heads.plot_heads(results)
    drawn = [ax.collections[0].get_offsets() for ax in fig.axes[:2]]
    rows = results['decoder']['rows']
    for points, x in zip(drawn, ('flat', 'size')):
        assert np.allclose(points[:, 0], heads.over_texts(rows, x))
        assert np.allclose(points[:, 1], heads.over_texts(rows, 'gain'))
    assert heads.plot_heads({}) is None


def test_a_part_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match='decoder, vit, mpnet, smollm2'):
        heads.head_experiment(None, 'imdb')
