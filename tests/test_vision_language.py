"""An image in a text, and an image beside one: every method, against direct calls."""

import inspect
import math

import pytest
import torch
import transformers as t

from lrp_loo import explain
from lrp_loo.asked.targets import Readout
from lrp_loo.loo.removals import key_weights
from lrp_loo.lrp import gradient, lrp_rules
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.models.encoding import encode
from lrp_loo.models.towers import unwrap
from lrp_loo.removal import removal_scores

IMAGE = 49  # the token that stands for an image
SMALL = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4)
TEXT = dict(**SMALL, num_hidden_layers=2, num_key_value_heads=2, vocab_size=50)
TEXT |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
VISION = dict(**SMALL, num_hidden_layers=1, image_size=16, patch_size=8)


def tokenizer_of(names=50):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {f'w{i}': i for i in range(names)} | {'<image>': IMAGE}
    vocab = {k: v for k, v in vocab.items() if k != f'w{IMAGE}'}
    inside = Tokenizer(models.WordLevel(vocab, unk_token='w3'))
    inside.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t.PreTrainedTokenizerFast(
        tokenizer_object=inside,
        unk_token='w3',
        pad_token='w0',
        bos_token='w1',
        eos_token='w2',
        additional_special_tokens=['<image>'],
    )


def row(n_image, **others):
    ids = [1, 7, *[IMAGE] * n_image, 8, 9, 10, 11]
    ids = torch.tensor([ids])
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids), **others)


def llava():
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**VISION),
        text_config=t.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
    )
    model = t.LlavaForConditionalGeneration(config)
    return model, row(4, pixel_values=torch.randn(1, 3, 16, 16))


def paligemma():
    text = t.GemmaConfig(**TEXT, head_dim=8)
    vision = t.SiglipVisionConfig(**VISION)
    config = t.PaliGemmaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        projection_dim=32,
    )
    enc = row(4, pixel_values=torch.randn(1, 3, 16, 16))
    enc['token_type_ids'] = torch.zeros_like(enc['input_ids'])
    return t.PaliGemmaForConditionalGeneration(config), enc


def gemma3():
    text = t.Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=16)
    config = t.Gemma3Config(
        text_config=text,
        vision_config=t.SiglipVisionConfig(**VISION),
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
    )
    enc = row(4, pixel_values=torch.randn(1, 3, 16, 16))
    enc['token_type_ids'] = (enc['input_ids'] == IMAGE).long()
    model = t.Gemma3ForConditionalGeneration(config)
    weight = model.model.multi_modal_projector.mm_input_projection_weight
    torch.nn.init.normal_(weight, std=0.1)  # zeros where it is not trained
    return model, enc


def smolvlm():
    config = t.SmolVLMConfig(
        vision_config=dict(VISION, image_size=16, patch_size=4),
        text_config=dict(TEXT, model_type='llama'),
        image_token_id=IMAGE,
        scale_factor=2,
    )
    pixels = torch.randn(1, 1, 3, 16, 16)
    return t.SmolVLMForConditionalGeneration(config), row(4, pixel_values=pixels)


def idefics3():
    config = t.Idefics3Config(
        vision_config=dict(VISION, image_size=16, patch_size=4),
        text_config=dict(TEXT, model_type='llama'),
        image_token_id=IMAGE,
        scale_factor=2,
    )
    pixels = torch.randn(1, 1, 3, 16, 16)
    return t.Idefics3ForConditionalGeneration(config), row(4, pixel_values=pixels)


def internvl():
    config = t.InternVLConfig(
        vision_config=dict(
            VISION, image_size=[16, 16], patch_size=[4, 4], model_type='internvl_vision'
        ),
        text_config=dict(TEXT, model_type='qwen2'),
        image_token_id=IMAGE,
        downsample_ratio=0.5,
    )
    pixels = torch.randn(1, 3, 16, 16)
    return t.InternVLForConditionalGeneration(config), row(4, pixel_values=pixels)


QWEN = dict(image_token_id=IMAGE, vision_start_token_id=47, vision_end_token_id=46)
QWEN |= dict(video_token_id=48)


def qwen_row():
    "An image of 4 × 6 patches, merged to 2 × 3."
    enc = row(6, image_grid_thw=torch.tensor([[1, 4, 6]]))
    enc['input_ids'][0, 1] = 47
    enc['mm_token_type_ids'] = (enc['input_ids'] == IMAGE).long()
    return enc | dict(pixel_values=torch.randn(24, 3 * 2 * 4 * 4))


def qwen2_vl():
    rope = dict(rope_type='default', type='default', mrope_section=[1, 1, 2])
    rope |= dict(rope_theta=10000.0)
    config = t.Qwen2VLConfig(
        text_config=dict(TEXT, rope_scaling=rope, rope_parameters=rope),
        vision_config=dict(
            depth=1,
            embed_dim=32,
            hidden_size=32,
            num_heads=4,
            mlp_ratio=2,
            patch_size=4,
        ),
        **QWEN,
    )
    return t.Qwen2VLForConditionalGeneration(config), qwen_row()


def qwen3_vl():
    rope = dict(rope_type='default', mrope_section=[2, 1, 1], rope_theta=10000.0)
    rope |= dict(mrope_interleaved=True)
    config = t.Qwen3VLConfig(
        text_config=dict(TEXT, head_dim=8, rope_scaling=rope, rope_parameters=rope),
        vision_config=dict(
            depth=2,
            hidden_size=32,
            intermediate_size=48,
            num_heads=4,
            patch_size=4,
            out_hidden_size=32,
            num_position_embeddings=16,
            deepstack_visual_indexes=[0],
        ),
        **QWEN,
    )
    return t.Qwen3VLForConditionalGeneration(config), qwen_row()


IN_TEXT = dict(
    llava=llava,
    paligemma=paligemma,
    gemma3=gemma3,
    smolvlm=smolvlm,
    idefics3=idefics3,
    internvl=internvl,
    qwen2_vl=qwen2_vl,
    qwen3_vl=qwen3_vl,
)


@pytest.fixture(scope='module')
def made():
    "Models, made once: name → model, encoding, tokenizer."
    known = {}

    def make(name):
        if name not in known:
            torch.manual_seed(0)
            model, enc = ALL[name]()
            known[name] = model.eval(), enc, tokenizer_of()
        return known[name]

    return make


def clip():
    text = dict(**SMALL, num_hidden_layers=2, vocab_size=50, eos_token_id=2)
    vision = dict(VISION, hidden_size=48, num_hidden_layers=2)
    config = t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return t.CLIPModel(config), beside()


def siglip():
    text = dict(**SMALL, num_hidden_layers=2, vocab_size=50)
    vision = dict(VISION, num_hidden_layers=2)
    config = t.SiglipConfig(text_config=text, vision_config=vision)
    return t.SiglipModel(config), beside()


def beside():
    ids = torch.tensor([[1, 7, 8, 9, 10, 11]])
    return dict(input_ids=ids, pixel_values=torch.randn(1, 3, 16, 16))


BESIDE = dict(clip=clip, siglip=siglip)
ALL = IN_TEXT | BESIDE


@torch.no_grad()
def called(model, enc, target):
    return float(model(**enc).logits[0, -1, target])


@pytest.mark.parametrize('name', IN_TEXT)
def test_loo_is_that_of_direct_calls(made, name):
    model, enc, tokenizer = made(name)
    a = explain(model, tokenizer, [enc], 'loo', target=5)[0]
    assert a.logit == pytest.approx(called(model, enc, 5), abs=1e-5)
    assert len(a) == enc['input_ids'].shape[1]
    fixed = dict(enc)
    if hasattr(model.model, 'get_rope_index'):
        takes = inspect.signature(model.model.get_rope_index).parameters
        given = {k: v for k, v in enc.items() if k in takes}
        fixed['position_ids'] = model.model.get_rope_index(**given)[0]
    for i in (1, 3, len(a) - 3):
        mask = enc['attention_mask'].clone()
        mask[0, i] = 0
        without = called(model, fixed | dict(attention_mask=mask), 5)
        assert float(a.scores[i]) == pytest.approx(a.logit - without, abs=1e-5), i


@pytest.mark.parametrize('name', IN_TEXT)
def test_every_place_is_scored_by_rules(made, name):
    model, enc, tokenizer = made(name)
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        a = explain(model, tokenizer, [enc], method, target=5)[0]
        assert a.logit == pytest.approx(called(model, enc, 5), abs=1e-5), method
        image = enc['input_ids'][0] == IMAGE
        assert (a.scores[image] != 0).all(), method
        assert not a.is_special[image].any(), method


@torch.no_grad()
def without(model, enc, i):
    "The score of a pair when its i-th place is no key, by hooks on the towers."
    n = enc['input_ids'].shape[1]
    if i < n:
        mask = torch.ones_like(enc['input_ids'])
        mask[0, i] = 0
        return float(model(**enc, attention_mask=mask).logits_per_image)
    text = enc['input_ids']
    features = model.get_text_features(text)
    features = getattr(features, 'pooler_output', features)
    with key_weights((torch.arange(4) != i - n).float()[None]):
        image = model.get_image_features(enc['pixel_values'])
    image = getattr(image, 'pooler_output', image)
    image, features = (x / x.norm(dim=-1, keepdim=True) for x in (image, features))
    scale, bias = model.logit_scale.exp(), getattr(model, 'logit_bias', 0.0)
    return float(image @ features.T * scale + bias)


@pytest.mark.parametrize('name', BESIDE)
def test_loo_of_a_pair_is_that_of_direct_calls(made, name):
    model, enc, tokenizer = made(name)
    a = explain(model, tokenizer, [enc], 'loo')[0]
    with torch.no_grad():
        assert a.logit == pytest.approx(float(model(**enc).logits_per_image), abs=1e-5)
    assert a.tokens[6:] == ['0,0', '0,1', '1,0', '1,1']
    (image,) = a.info['images']
    assert (image['start'], image['n'], image['grid']) == (6, 4, (2, 2))
    assert not a.is_special[6:].any()
    for i in range(10):
        expected = a.logit - without(model, enc, i)
        assert float(a.scores[i]) == pytest.approx(expected, abs=1e-5), i


@pytest.mark.parametrize('name', BESIDE)
def test_every_place_of_a_pair_is_scored_by_rules(made, name):
    model, enc, tokenizer = made(name)
    with torch.no_grad():
        whole = float(model(**enc).logits_per_image)
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        a = explain(model, tokenizer, [enc], method)[0]
        assert a.logit == pytest.approx(whole, abs=1e-5), method
        content = a.scores[~a.is_special]
        assert (content != 0).all() and a.label == 'logits_per_image', method


# --- `removal`, and the derivative by a mask


@pytest.fixture(scope='module')
def doubled(made):
    "A model in double precision in the place of what `explain` is given."
    known = {}

    def double(name):
        if name not in known:
            torch.manual_seed(0)
            model, tokenizer = unwrap(ALL[name]()[0].eval().double(), tokenizer_of())
            enc = encode(model, tokenizer, made(name)[1])
            enc = {
                k: v.double() if v.is_floating_point() else v for k, v in enc.items()
            }
            known[name] = model, enc
        return known[name]

    return double


def recorded(model, enc):
    "The attention of a pass under plain gradients, and the explained number."
    with (
        torch.enable_grad(),
        watch_embeddings(model),
        lrp_rules(model, gradient(), record='attention') as rules,
    ):
        out = forward(model, enc)
        readout = Readout(None, out, enc)
        value = readout(out).sum()
    return rules.attention, value, readout


def places_of(w, n):
    "Of a call's rows and keys, their places."
    if w.places is None:
        return torch.arange(n), torch.arange(n)
    return w.places


SOME = ['llava', 'qwen2_vl', 'clip', 'siglip']


@pytest.mark.parametrize('name', SOME)
def test_derivative_by_the_mask_is_that_of_finite_differences(doubled, name):
    model, enc = doubled(name)
    attention, value, readout = recorded(model, enc)
    n = enc['input_ids'].shape[1]
    found = torch.zeros(n, dtype=torch.double)
    gradients = torch.autograd.grad(value, [w.Z for w in attention])
    for w, g in zip(attention, gradients):
        keys = places_of(w, n)[1]
        own = keys >= 0
        found.index_add_(0, keys[own], g.sum((0, 1, 2))[own])
    for j in (2, 4, n - 1):
        f = []
        for h in (0.0, 1e-2, 2e-2):
            m = torch.ones(1, n, dtype=torch.double)
            m[0, j] = math.exp(-h)
            with torch.no_grad(), key_weights(m):
                f.append(float(readout(forward(model, enc))))
        expected = (3 * f[0] - 4 * f[1] + f[2]) / 2e-2
        assert float(found[j]) == pytest.approx(expected, rel=1e-2, abs=1e-5)


@pytest.mark.parametrize('name', SOME)
@pytest.mark.parametrize('own_rows', [False, True])
def test_removal_is_the_sum_of_keys_left_out(doubled, name, own_rows):
    model, enc = doubled(name)
    attention, value, _ = recorded(model, enc)
    n = enc['input_ids'].shape[1]
    gradients = torch.autograd.grad(value, [w.A for w in attention])
    # the last token of a text; SigLIP's and CLIP's, which ends a text as well
    read = {int((enc['tower_ids'] == 0).sum()) - 1 if 'tower_ids' in enc else n - 1}
    total = torch.zeros(n, dtype=torch.double)
    for w, g in zip(attention, gradients):
        rows, keys = places_of(w, n)
        for k, j in enumerate(keys.tolist()):
            if j < 0:
                continue
            A = w.A[0].detach()
            left = A.clone()
            left[..., k] = 0
            rest = left.sum(-1, keepdim=True)
            effect = (
                (g[0] * (A - left / rest)).sum(-1).masked_fill_(rest[..., 0] == 0, 0)
            )
            for i, row in enumerate(rows.tolist()):
                if row != j or row in read or own_rows:
                    total[j] += effect[:, i].sum()
    ours = removal_scores(model, None, [enc], own_rows=own_rows).scores[0]
    assert torch.allclose(ours, total, rtol=1e-6, atol=1e-9), (ours, total)


@pytest.mark.parametrize('name', ['llava', 'qwen2_vl', 'clip'])
def test_auto_is_exact_where_it_says_so(made, name):
    model, enc, tokenizer = made(name)
    loo = explain(model, tokenizer, [enc], 'loo')[0]
    a = explain(model, tokenizer, [enc], 'auto', passes=7)[0]
    exact = a.info['exact']
    assert not a.exact and exact
    assert torch.allclose(a.scores[exact], loo.scores[exact], atol=1e-5)


@pytest.mark.parametrize('name', ALL)
def test_several_at_once_are_as_alone(made, name):
    model, enc, tokenizer = made(name)
    other = dict(enc, input_ids=enc['input_ids'].clone())
    other['input_ids'][0, -2] = 12
    together = explain(model, tokenizer, [enc, other], 'attn_lrp')
    for one, a in zip([enc, other], together):
        alone = explain(model, tokenizer, [one], 'attn_lrp')[0]
        assert torch.allclose(a.scores, alone.scores, atol=1e-6)


# --- a sound that stays, and what was said of it


@pytest.fixture(scope='module')
def whisper():
    torch.manual_seed(0)
    sizes = dict(d_model=32, encoder_layers=2, decoder_layers=2, vocab_size=50)
    sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4)
    sizes |= dict(encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8)
    sizes |= dict(max_source_positions=10, max_target_positions=12, pad_token_id=0)
    special = dict(bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    config = t.WhisperConfig(**sizes, **special, init_std=0.2)
    return t.WhisperForConditionalGeneration(config).eval(), torch.randn(8, 20)


@pytest.mark.parametrize('method', ['loo', 'auto', 'attn_lrp', 'removal', 'ig'])
def test_what_was_said_of_a_sound_is_explained(whisper, method):
    model, sound = whisper
    tokenizer = tokenizer_of()
    (a,) = explain(model, tokenizer, [(sound, 'w7 w8 w9')], method, target=5)
    ids = torch.tensor([[1, 7, 8, 9]])

    @torch.no_grad()
    def by_hand(mask):
        given = dict(decoder_input_ids=ids, decoder_attention_mask=mask)
        out = model(input_features=sound[None], **given)
        return float(out.logits[0, -1, 5])

    assert a.tokens == ['w1', 'w7', 'w8', 'w9']
    whole = by_hand(torch.ones_like(ids))
    assert a.logit == pytest.approx(whole, abs=1e-5)
    assert (a.scores[1:] != 0).all()
    if method in ('loo', 'auto'):
        for j in range(4):
            mask = torch.ones_like(ids)
            mask[0, j] = 0
            assert float(a.scores[j]) == pytest.approx(whole - by_hand(mask), abs=1e-5)


def test_a_sound_is_given_as_features(whisper):
    model, sound = whisper
    tokenizer = tokenizer_of()
    enc = dict(input_features=sound[None], decoder_input_ids=[[1, 7, 8, 9]])
    (a,) = explain(model, tokenizer, [enc], 'attn_lrp', target=5)
    (b,) = explain(model, tokenizer, [(sound, 'w7 w8 w9')], 'attn_lrp', target=5)
    assert a.scores.equal(b.scores)
    with pytest.raises(TypeError, match='hears a sound'):
        explain(model, tokenizer, ['w7 w8'], 'loo')
    with pytest.raises(ValueError, match='of one sound'):
        explain(model, tokenizer, [(sound[None].repeat(2, 1, 1), 'w7')], 'loo')
    with pytest.raises(ValueError, match='takes 12'):
        explain(model, tokenizer, [(sound, 'w7 ' * 12)], 'loo')
