"""Works on how tokens mix, each against a second derivation: explicit parts in
float64 from the naive models, which know nothing of lrp_loo.
"""

import copy
import json

import naive_bert
import naive_llama
import pytest
import torch
from conftest import random_bert, shallow_demo
from transformers import (
    BloomConfig,
    BloomForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from lrp_lab import parts
from lrp_lab.mixing import (
    BESIDE,
    MIXED,
    MIXING,
    NOT_ON,
    alti_logit_scores,
    alti_scores,
    decompx_scores,
    flash_trace_scores,
    globenc_scores,
    mixed_layers,
    mixing_experiment,
    mixing_methods,
    mixing_table,
    mixing_tables,
    nearness,
    plot_mixing,
    position_lrp_scores,
    relp_scores,
    value_zeroing_scores,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.asked.targets import Target
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.methods import explain
from lrp_loo.trust.audit import audit
from lrp_loo.trust.results import read_results

LAYERS, HEADS, LN_EPS = 2, 4, 1e-12
IDS = torch.tensor([7, 3, 19, 4, 11, 2])
ENC = dict(input_ids=IDS[None], attention_mask=torch.ones(1, 6).long())


@pytest.fixture(scope='module')
def bert():
    return random_bert(LAYERS, dtype=torch.float64, vocab_size=40)


@pytest.fixture(scope='module')
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.5)
    return model


def naive_stack(model):
    "The naive layers of a BERT, and what enters the first."
    sd = {k: v.double() for k, v in model.state_dict().items()}
    names = [f'bert.encoder.layer.{l}' for l in range(LAYERS)]
    stack = [naive_bert.Layer(sd, n, HEADS, LN_EPS) for n in names]
    return sd, stack, naive_bert.Embeddings(sd, LN_EPS)(IDS)


def naive_llama_options():
    return dict(layers=LAYERS, heads=HEADS, kv_heads=2, rms_eps=1e-6, position=-1)


def naive_llama_stack(model):
    "The naive layers of a Llama, its last norm, and its embeddings."
    sd = {k: v.double() for k, v in model.state_dict().items()}

    def norm(name):
        return naive_llama.Norm(sd, name, 1e-6, torch.float32)

    M = naive_llama.rotation(len(IDS), 16 // HEADS, 10000.0)
    stack = [naive_llama.Layer(sd, l, HEADS, 2, M, norm) for l in range(LAYERS)]
    return sd, stack, norm('norm'), sd['model.embed_tokens.weight'][IDS]


def scores_of(method, model, **options):
    found = method(model, None, [ENC], **options)
    return found.scores[0].double(), found


# ------------------------------------------------------------ parts, by hand


def attention_part(layer, V, i, j):
    "What token j's values bring to row i through the output projection."
    at = layer.at
    heads = [at.A[h, i, j] * V[h, j] for h in range(HEADS)]
    return torch.cat(heads) @ layer.o.W


def bert_parts(layer, x):
    "y_{i←j} of a layer that was called, without biases: [i][j]."
    V = layer.at.split(x @ layer.at.v.W)
    n = len(x)
    parts = torch.stack(
        [
            torch.stack(
                [attention_part(layer, V, i, j) + (i == j) * x[i] for j in range(n)]
            )
            for i in range(n)
        ]
    )
    return through_norm(layer.ln1, parts)


def through_norm(ln, parts):
    "(i, j, d): each part through a norm whose deviation is that of the whole."
    centred = parts - parts.mean(-1, keepdim=True)
    return centred / ln.std[:, None] * ln.g


def rolled(maps):
    R = torch.eye(len(maps[0]), dtype=torch.double)
    for C in maps:
        R = C / C.sum(-1, keepdim=True) @ R
    return R


def alti_map_by_hand(y, parts):
    "A loop over rows and tokens."
    C = torch.zeros(len(y), len(y), dtype=torch.double)
    for i, row in enumerate(parts):
        for j, part in enumerate(row):
            C[i, j] = max(0, y[i].abs().sum() - (y[i] - part).abs().sum())
    return C


def test_alti_is_a_loop_over_explicit_parts(bert):
    _, stack, x = naive_stack(bert)
    maps = []
    for layer in stack:
        below, x = x, layer(x)
        maps.append(alti_map_by_hand(layer.y, bert_parts(layer, below)))
    scores, _ = scores_of(alti_scores, bert)
    assert torch.allclose(scores, rolled(maps)[0], atol=1e-6)


def test_globenc_is_the_length_of_explicit_parts(bert):
    _, stack, x = naive_stack(bert)
    maps = []
    for layer in stack:
        below, x = x, layer(x)
        parts = through_norm(layer.ln2, bert_parts(layer, below))
        maps.append(parts.norm(dim=-1))
    scores, _ = scores_of(globenc_scores, bert)
    assert torch.allclose(scores, rolled(maps)[0], atol=1e-6)


@pytest.mark.parametrize('which', ['bert', 'llama'])
def test_parts_and_rest_are_the_blocks_output(which, request):
    for s in mixed_layers(request.getfixturevalue(which), ENC).layers:
        assert torch.allclose(s.parts.sum(0) + s.rest, s.y, atol=1e-6)


def test_a_part_that_makes_the_whole_larger_counts_nothing():
    y = torch.tensor([[1.0, -1.0]])
    found = nearness(torch.stack([y, -y, 0 * y]), y)
    assert found.tolist() == [[2.0, 0.0, 0.0]]


# ------------------------------------------------------------ Value Zeroing


class WithoutValue:
    "A value projection whose token j gives zero."

    def __init__(self, v, j):
        self.v, self.j = v, j

    def __call__(self, x):
        values = self.v(x).clone()
        values[self.j] = 0
        return values


def zeroed_map(layer, x):
    "1 − cos, one value vector zeroed after the other."
    whole = layer(x)
    v, columns = layer.at.v, []
    for j in range(len(x)):
        layer.at.v = WithoutValue(v, j)
        columns.append(1 - torch.cosine_similarity(layer(x), whole, dim=-1))
    layer.at.v = v
    return torch.stack(columns, 1)


def test_value_zeroing_zeroes_one_value_after_the_other(bert):
    _, stack, x = naive_stack(bert)
    maps = []
    for layer in stack:
        maps.append(zeroed_map(layer, x))
        x = layer(x)
    scores, _ = scores_of(value_zeroing_scores, bert)
    assert torch.allclose(scores, rolled(maps)[0], atol=1e-6)


def test_value_zeroing_in_a_decoder_reads_its_last_row(llama):
    _, stack, _, x = naive_llama_stack(llama)
    maps = []
    for layer in stack:
        maps.append(zeroed_map(layer, x))
        x = layer(x)
    scores, _ = scores_of(value_zeroing_scores, llama)
    assert torch.allclose(scores, rolled(maps)[-1], atol=1e-5)


# ------------------------------------------------------------ ALTI-Logit


def stream_parts(layer, below):
    "What attention writes into row i from token j: (i, j, d)."
    n = len(below)
    V = layer.at.V
    return torch.stack(
        [
            torch.stack([attention_part(layer, V, i, j) for j in range(n)])
            for i in range(n)
        ]
    )


def own_row(parts, x):
    "The residual belongs to the row's own token."
    at = torch.arange(len(x))
    parts = parts.clone()
    parts[at, at] += x
    return parts


def test_alti_logit_traces_what_attention_writes(llama):
    sd, stack, norm, x = naive_llama_stack(llama)
    n = len(x)
    seen = []
    for layer in stack:
        below, x = x, layer(x)
        written = stream_parts(layer, below)
        C = alti_map_by_hand(layer.y, own_row(written, below))
        seen.append((written[-1], C / C.sum(-1, keepdim=True)))
    logits = sd['lm_head.weight'] @ norm(x)[-1]
    target = int(logits.argmax())
    rms = (x[-1].pow(2).mean() + 1e-6).sqrt()
    g = sd['lm_head.weight'][target] * sd['model.norm.weight'] / rms
    expected, M = torch.zeros(n).double(), torch.eye(n).double()
    for written, C in seen:
        expected += (written @ g) @ M
        M = C @ M
    scores, found = scores_of(alti_logit_scores, llama)
    assert torch.allclose(scores, expected, atol=1e-4)
    assert found.readout.chosen(0) == target
    whole = float(scores.sum()) + sum(
        found.info[0][k] for k in ('embedding', 'mlp', 'bias')
    )
    assert abs(whole - float(found.values)) < 1e-4


def test_a_difference_of_logits_is_taken_apart(llama):
    apart = [scores_of(alti_logit_scores, llama, target=t)[0] for t in (3, 5)]
    both, _ = scores_of(alti_logit_scores, llama, target=(3, 5))
    assert torch.allclose(both, apart[0] - apart[1], atol=1e-4)


def test_flash_trace_is_a_share_of_every_layer(llama):
    _, stack, _, x = naive_llama_stack(llama)
    expected = 0
    for layer in stack:
        below, x = x, layer(x)
        parts = [*stream_parts(layer, below)[-1], below[-1]]
        y = layer.y[-1]
        near = torch.stack(
            [(y.abs().sum() - (y - p).abs().sum()).clamp_min(0) for p in parts]
        )
        expected = expected + near[:-1] / near.sum()
    scores, _ = scores_of(flash_trace_scores, llama)
    assert torch.allclose(scores, expected, atol=1e-5)


# ------------------------------------------------------------ DecompX


def dealt(parts, bias):
    "(token, i, d): a bias dealt out by the size of its products."
    product = torch.einsum('sid,id->si', parts, bias.expand(parts[0].shape))
    share = product.abs() / product.abs().sum(0)
    return parts + share[..., None] * bias


def through_map(parts, linear):
    return dealt(parts @ linear.W, linear.b)


def through_layer(layer, parts):
    "All parts through one layer that was called, biases dealt out."
    at = layer.at
    V = torch.stack([at.split(p @ at.v.W) for p in parts])
    O = torch.einsum('hij,shjd->sihd', at.A, V).flatten(2)
    a = dealt(O @ layer.o.W, at.v.b @ layer.o.W + layer.o.b)
    y = normed_parts(layer.ln1, a + parts)
    u = through_map(y, layer.up)
    h = u * (naive_bert.gelu(layer.up.z) / layer.up.z)
    return normed_parts(layer.ln2, through_map(h, layer.down) + y)


def normed_parts(ln, parts):
    centred = parts - parts.mean(-1, keepdim=True)
    return dealt(centred / ln.std * ln.g, ln.b)


def test_decompx_carries_parts_by_hand(bert):
    sd, stack, x = naive_stack(bert)
    parts = torch.diag_embed(x.T).permute(1, 2, 0)  # [token, i, d]
    for layer in stack:
        x = layer(x)
        parts = through_layer(layer, parts)
    pool = naive_bert.Linear(sd, 'bert.pooler.dense')
    head = naive_bert.Linear(sd, 'classifier')
    z = pool(x[0])
    parts = through_map(parts[:, :1], pool) * (z.tanh() / z)
    by_token = through_map(parts, head)[:, 0]
    logits = head(z.tanh())
    scores, found = scores_of(decompx_scores, bert, target=1)
    assert torch.allclose(scores, by_token[:, 1], atol=1e-6)
    assert abs(float(scores.sum() - logits[1])) < 1e-6
    assert abs(found.info[0]['rest']) < 1e-9


def test_decompx_is_cp_lrp_where_there_are_no_biases(llama):
    _, expected = naive_llama.explain(
        llama.state_dict(),
        IDS,
        **naive_llama_options(),
        bypass=range(LAYERS),
        gates='constant',
    )
    scores, found = scores_of(decompx_scores, llama)
    assert torch.allclose(scores, expected, atol=1e-4)
    assert abs(float(scores.sum() - found.values)) < 1e-4


def test_biases_apart_are_the_rest(bert):
    scores, found = scores_of(decompx_scores, bert, biases='apart')
    rest = found.info[0]['rest']
    assert abs(rest) > 0.01
    assert abs(float(scores.sum()) + rest - float(found.values)) < 1e-6


# ------------------------------------------------------------ RelP


def test_relp_with_zeros_is_lrp_with_halves_at_gates(llama):
    _, expected = naive_llama.explain(
        llama.state_dict(),
        IDS,
        **naive_llama_options(),
        bypass=range(LAYERS),
        gates='half',
    )
    scores, _ = scores_of(relp_scores, llama, patch='zero')
    assert torch.allclose(scores, expected, atol=1e-4)


def without_key(at, j):
    "A head's outputs with key j masked in every row."
    e = (at.Z - at.Z.max()).exp()
    e[..., j] = 0
    return e / e.sum(-1, keepdim=True) @ at.V


@pytest.mark.parametrize('rules', ['cp', 'attn'])
def test_relp_by_mask_patches_every_attention_output(bert, rules, monkeypatch):
    heard = []
    back = naive_bert.Attention.back

    def listen(at, R, eps, bypass):
        heard.append((at, at.split(R)))
        return back(at, R, eps, bypass)

    monkeypatch.setattr(naive_bert.Attention, 'back', listen)
    naive_bert.explain(
        bert.state_dict(),
        IDS,
        layers=LAYERS,
        heads=HEADS,
        ln_eps=LN_EPS,
        bypass=range(LAYERS) if rules == 'cp' else (),
    )
    expected = torch.stack(
        [
            sum((R / at.O * (at.O - without_key(at, j))).sum() for at, R in heard)
            for j in range(len(IDS))
        ]
    )
    own = {} if rules == 'cp' else dict(composite=attn_lrp())
    scores, _ = scores_of(relp_scores, bert, **own)
    assert torch.allclose(scores, expected, atol=1e-5)


def test_a_mean_patch_leaves_what_differs(bert):
    zero, _ = scores_of(relp_scores, bert, patch='zero')
    mean, _ = scores_of(relp_scores, bert, patch='mean')
    assert not torch.allclose(zero, mean, atol=1e-3)
    same = dict(ENC, input_ids=torch.full_like(ENC['input_ids'], 5))
    found = relp_scores(bert, None, [same], patch='mean')
    assert torch.allclose(found.scores, 0 * found.scores, atol=1e-9)


# ------------------------------------------------------------ positions


def test_learned_positions_add_their_relevance(bert):
    model = copy.deepcopy(bert)
    with torch.no_grad():
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    _, words, total = naive_bert.explain(
        model.state_dict(), IDS, layers=LAYERS, heads=HEADS, ln_eps=LN_EPS
    )
    scores, found = scores_of(position_lrp_scores, model)
    assert torch.allclose(scores, total, atol=1e-5)
    assert not torch.allclose(words, total, atol=1e-3)
    assert found.info[0]['positions'] == 'learned'


def test_a_rotation_takes_half_of_what_it_rotates(llama, monkeypatch):
    absorbed = []
    back = naive_llama.Rotary.back

    def half(rotary, R, eps):
        absorbed.append(R.sum((1, 2)) / 2)
        return back(rotary, R / 2, eps)

    monkeypatch.setattr(naive_llama.Rotary, 'back', half)
    _, words = naive_llama.explain(llama.state_dict(), IDS, **naive_llama_options())
    scores, found = scores_of(position_lrp_scores, llama)
    assert len(absorbed) == 2 * LAYERS
    assert torch.allclose(scores, words + sum(absorbed), atol=1e-4)
    assert found.info[0]['positions'] == 'rotary'


def test_padded_texts_have_their_own_positions(demo):
    model, tok = demo
    texts = ['Good', 'A warm and clever film, if a little long.']
    both = explain(model, tok, texts, method=position_lrp_scores, batch_size=2)
    for text, found in zip(texts, both):
        (alone,) = explain(model, tok, [text], method=position_lrp_scores)
        assert torch.allclose(found.scores, alone.scores, atol=1e-4)


# ------------------------------------------------------------ refused by name


@pytest.mark.parametrize(
    'method, options, message',
    [
        (relp_scores, dict(patch='noise'), "patch='noise'"),
        (decompx_scores, dict(biases='norm'), "biases='norm'"),
        (decompx_scores, dict(target=Target(log_prob=True)), 'log_prob'),
        (alti_logit_scores, dict(target=Target(log_prob=True)), 'log_prob'),
        (alti_logit_scores, {}, 'BertForSequenceClassification'),
        (flash_trace_scores, {}, 'BertForSequenceClassification'),
    ],
)
def test_what_cannot_be_right_says_so(bert, method, options, message):
    with pytest.raises(ValueError, match=message):
        method(bert, None, [ENC], **options)


def test_globenc_needs_a_norm_at_the_end(llama):
    with pytest.raises(ValueError, match='LlamaForCausalLM do not end in one'):
        globenc_scores(llama, None, [ENC])


@pytest.mark.parametrize(
    'method', [relp_scores, value_zeroing_scores, alti_scores, globenc_scores]
)
def test_eager_attention_is_refused_by_name(bert, method):
    eager = copy.deepcopy(bert)
    eager.set_attn_implementation('eager')
    with pytest.raises(ValueError, match='sdpa'):
        method(eager, None, [ENC])


def test_a_decomposition_that_does_not_add_up_is_refused(bert):
    eager = copy.deepcopy(bert)
    eager.set_attn_implementation('eager')
    with pytest.raises(ValueError, match='add up'):
        decompx_scores(eager, None, [ENC])


@pytest.mark.filterwarnings("ignore:no rule")
def test_a_model_without_positions_is_refused():
    config = BloomConfig(
        vocab_size=40, hidden_size=16, n_layer=2, n_head=4, pad_token_id=0
    )
    model = BloomForSequenceClassification(config).eval()
    with pytest.raises(ValueError, match='BloomForSequenceClassification'):
        position_lrp_scores(model, None, [ENC])


def test_no_hooks_are_left(bert):
    for name in mixing_methods('mixing-minilm'):
        if name in MIXING:
            m = MIXING[name]
            m.run(bert, None, [ENC], **m.options)
    for module in bert.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


# ------------------------------------------------------------ the study


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Three sentences on the encoder, two layers deep."
    path = tmp_path_factory.mktemp('mixing') / 'mixing-minilm.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        mixing_experiment(path, 'mixing-minilm', 'embedded', limit=3)
    return read_results(path)


def test_every_method_that_applies_has_a_number(measured):
    table = mixing_table(measured)
    assert set(table.index) == set(mixing_methods('mixing-minilm'))
    assert table.r.between(-1, 1 + 1e-9).all()
    assert (table.passes > 0).all()
    assert table.r_abs['loo'] == pytest.approx(1)
    assert table.r_abs['alti'] != table.r['alti']
    ((heading, text),) = mixing_tables('mixing-minilm', measured)
    assert '3 rows' in heading and 'decompx' in text
    assert json.dumps(measured['config']['methods'])


def test_the_figure_has_a_row_a_method(measured):
    fig = plot_mixing({'mixing-minilm': measured})
    labels = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert len(labels) == len(mixing_methods('mixing-minilm')) - 1
    assert 'n = 3' in fig.axes[0].get_title()


def test_what_is_left_out_is_what_is_refused(demo):
    model, tok = demo
    for name in NOT_ON['mixing-minilm']:
        with pytest.raises(ValueError, match='BertForSequenceClassification'):
            explain(model, tok, 'Good', method=MIXING[name].run)
    for part in MIXED:
        methods = mixing_methods(part)
        assert list(methods)[: len(BESIDE)] == list(BESIDE)
        assert set(MIXING) - set(methods) == set(NOT_ON[part])


def test_they_are_audited_as_any_method(demo):
    model, tok = demo
    methods = {
        'loo': ('loo', {}),
        'relp': (relp_scores, dict(patch='mean')),
        'decompx': (decompx_scores, {}),
    }
    texts = ['A warm and clever film, if a little long.']
    assert list(audit(model, tok, texts, methods).index) == list(methods)


def test_the_study_is_found():
    assert {'mixing', 'mixing-large'} <= {s.name for s in studies()}
    assert 'mixing-large' in groups_of(studies())['scale']
    with pytest.raises(ValueError, match='mixing-smollm2'):
        mixing_methods('mixing-vit')
