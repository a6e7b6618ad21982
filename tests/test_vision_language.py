"""An image in a text, and an image beside one: every method, against direct calls."""

import inspect

import pytest
from close import assert_close
import torch
import transformers as t
from torch import nn
from torch.nn import functional as F
from with_images import BESIDE, IMAGE, IN_TEXT, WITH_IMAGES

from lrp_loo import attn_lrp, cp_lrp, explain
from lrp_loo.loo.removals import key_weights
from lrp_loo.lrp.conservation import conservation
from lrp_loo.models.encoding import encode
from lrp_loo.models.objects import unwrap


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


@pytest.fixture(scope='module')
def made():
    "Models, made once: name → model, encoding, tokenizer."
    known = {}

    def make(name):
        if name not in known:
            torch.manual_seed(0)
            model, enc = WITH_IMAGES[name]()
            known[name] = model.eval(), enc, tokenizer_of()
        return known[name]

    return make


@torch.no_grad()
def called(model, enc, target):
    return float(model(**enc).logits[0, -1, target])


@pytest.mark.parametrize('name', IN_TEXT)
def test_loo_is_that_of_direct_calls(made, name):
    model, enc, tokenizer = made(name)
    a = explain(model, tokenizer, [enc], 'loo', target=5)[0]
    assert_close(a.logit, called(model, enc, 5))
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
        assert_close(a.scores[i], a.logit - without, scale=abs(a.logit))


@pytest.mark.parametrize('name', IN_TEXT)
def test_every_place_is_scored_by_rules(made, name):
    model, enc, tokenizer = made(name)
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        a = explain(model, tokenizer, [enc], method, target=5)[0]
        assert_close(a.logit, called(model, enc, 5))
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
        assert_close(a.logit, float(model(**enc).logits_per_image))
    assert a.tokens[6:] == ['0,0', '0,1', '1,0', '1,1']
    (image,) = a.info['images']
    assert (image['start'], image['n'], image['grid']) == (6, 4, (2, 2))
    assert not a.is_special[6:].any()
    for i in range(10):
        expected = a.logit - without(model, enc, i)
        assert_close(a.scores[i], expected, scale=abs(a.logit))


@pytest.mark.parametrize('name', BESIDE)
def test_every_place_of_a_pair_is_scored_by_rules(made, name):
    model, enc, tokenizer = made(name)
    with torch.no_grad():
        whole = float(model(**enc).logits_per_image)
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        a = explain(model, tokenizer, [enc], method)[0]
        assert_close(a.logit, whole)
        content = a.scores[~a.is_special]
        assert (content != 0).all() and a.label == 'logits_per_image', method


@pytest.mark.parametrize('name', BESIDE)
@pytest.mark.parametrize('rules', [attn_lrp, cp_lrp])
def test_rules_lose_nothing_of_a_pair(doubled, name, rules):
    # SigLIP's image is pooled by a query that is a parameter
    parts = conservation(*doubled(name), rules())
    assert abs(parts['remainder']) < 1e-9 * max(map(abs, parts.values()))


# --- `removal`, and the derivative by a mask


@pytest.fixture(scope='module')
def doubled(made):
    "A model in double precision in the place of what `explain` is given."
    known = {}

    def double(name):
        if name not in known:
            torch.manual_seed(0)
            model, tokenizer = unwrap(
                WITH_IMAGES[name]()[0].eval().double(), tokenizer_of()
            )
            enc = encode(model, tokenizer, made(name)[1])
            enc = {
                k: v.double() if v.is_floating_point() else v for k, v in enc.items()
            }
            known[name] = model, enc
        return known[name]

    return double


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
    assert_close(a.logit, whole)
    assert (a.scores[1:] != 0).all()
    if method in ('loo', 'auto'):
        for j in range(4):
            mask = torch.ones_like(ids)
            mask[0, j] = 0
            assert_close(a.scores[j], whole - by_hand(mask), scale=abs(whole))


def test_a_sound_is_given_as_features(whisper):
    model, sound = whisper
    tokenizer = tokenizer_of()
    enc = dict(input_features=sound[None], decoder_input_ids=[[1, 7, 8, 9]])
    (a,) = explain(model, tokenizer, [enc], 'attn_lrp', target=5)
    (b,) = explain(model, tokenizer, [(sound, 'w7 w8 w9')], 'attn_lrp', target=5)
    assert a.scores.equal(b.scores)
    with pytest.raises(TypeError, match='reads a sound'):
        explain(model, tokenizer, ['w7 w8'], 'loo')
    with pytest.raises(ValueError, match='of one sound'):
        explain(model, tokenizer, [(sound[None].repeat(2, 1, 1), 'w7')], 'loo')
    with pytest.raises(ValueError, match='takes 12'):
        explain(model, tokenizer, [(sound, 'w7 ' * 12)], 'loo')


# --- vision transformers that call their image x


class TimmAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads)
        x = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0))
        return self.proj(x.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), TimmAttention(d, 4)
        mlp = nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)
        self.norm2, self.mlp = nn.LayerNorm(d), nn.Sequential(*mlp)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    "As in timm: patches of a convolution, a class token in front."

    def __init__(self, d=32):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, d, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, d))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, d))
        self.blocks = nn.Sequential(*(Block(d) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 3)

    def forward(self, x):
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def test_a_vision_transformer_that_calls_its_image_x():
    "LOO is that of a patch whose embedding is zero; other methods have a score."
    torch.manual_seed(0)
    model, image = ViT().eval(), torch.rand(3, 16, 16)
    a = explain(model, None, [image], 'loo')[0]
    rows, columns = a.info['grid']
    for j in (0, 3):

        def zero(module, args, out, j=j):
            out = out.clone()
            out[:, :, j // columns, j % columns] = 0
            return out

        handle = model.patch_embed.proj.register_forward_hook(zero)
        with torch.no_grad():
            without = float(model(image[None])[0, a.target])
        handle.remove()
        assert_close(a.scores[j], a.logit - without, scale=abs(a.logit))
    for method in ('attn_lrp', 'removal', 'ig', 'auto'):
        b = explain(model, None, [image], method, target=a.target)[0]
        assert_close(b.logit, a.logit)
        assert b.scores.any(), method


# --- what cannot be right


class Pair:
    "A processor, as much of it as is asked for."

    def __init__(self, enc):
        self.tokenizer, self.enc = tokenizer_of(), enc

    def __call__(self, images, text, return_tensors):
        return self.enc


@pytest.mark.parametrize('name', ['llava', 'qwen2_vl', 'clip'])
def test_a_pair_is_read_by_the_processor(made, name):
    model, enc, tokenizer = made(name)
    given = [(torch.rand(3, 16, 16), 'w7 w8')]
    a = explain(model, Pair(enc), given, 'attn_lrp', target=0)[0]
    b = explain(model, tokenizer, [enc], 'attn_lrp', target=0)[0]
    assert a.scores.equal(b.scores) and a.info['text'] == 'w7 w8'
    with pytest.raises(ValueError, match='with an image or a sound'):
        explain(model, Pair(enc), given, 'loo', units='word')
    with pytest.raises(TypeError, match='needs the model.s processor'):
        explain(model, tokenizer, given, 'loo')
    for wrong in (given[0][0], ('w7', 'w8'), given[0] + ('w9',)):
        with pytest.raises(TypeError, match='an image and a text: a pair'):
            explain(model, Pair(enc), [wrong], 'loo')


def test_images_and_their_places_go_together(made):
    model, enc, tokenizer = made('llava')
    without = {k: v for k, v in enc.items() if k != 'pixel_values'}
    with pytest.raises(ValueError, match='4 of the text.s tokens .* none was given'):
        explain(model, tokenizer, [without], 'loo')
    with pytest.raises(ValueError, match='holds no input_ids'):
        explain(model, tokenizer, [dict(pixel_values=enc['pixel_values'])], 'loo')
    ids = torch.tensor([[1, 7, 8]])
    words = dict(input_ids=ids, pixel_values=enc['pixel_values'])
    with pytest.raises(ValueError, match='no token of the text stands for it'):
        explain(model, tokenizer, [words], 'loo')
    few = words | dict(input_ids=torch.tensor([[1, IMAGE, IMAGE, 7, 8]]))
    with pytest.raises(ValueError, match='their numbers differ'):
        explain(model, tokenizer, [few], 'loo')
    (a,) = explain(model, tokenizer, ['w7 w8 w9'], 'loo', target=5)
    assert len(a) == 3 and 'images' not in a.info
    qwen, enc, _ = made('qwen2_vl')
    few = {k: v[:, 1:] if v.shape[:2] == (1, 12) else v for k, v in enc.items()}
    few['input_ids'] = enc['input_ids'][:, [0, 1, *range(3, 12)]]
    with pytest.raises(ValueError, match='image_grid_thw needs 6'):
        explain(qwen, tokenizer, [few], 'loo')
    deep, enc, _ = made('qwen3_vl')
    with pytest.raises(ValueError, match='in later layers'):
        explain(deep, tokenizer, [enc], 'loo', removal='zero_embedding')


# --- what is seen


def test_the_picture_stands_beside_its_heat_map(made):
    model, enc, tokenizer = made('qwen2_vl')
    a = explain(model, tokenizer, [enc], 'attn_lrp')[0]
    (image,) = a.info['images']
    assert (image['start'], image['n'], image['grid']) == (2, 6, (2, 3))
    assert a.tokens[2:8] == ['0,0', '0,1', '0,2', '1,0', '1,1', '1,2']
    page = a._repr_html_()
    assert page.count('class="t patch') == 6 and page.count(image['picture']) == 1
    assert 'repeat(3,minmax(0,1fr))' in page


def test_qwens_patches_are_put_together_again():
    torch.manual_seed(0)
    model, enc = IN_TEXT['qwen2_vl']()
    x = torch.rand(3, 16, 24)
    # as its processor cuts it: blocks of 2 × 2 patches, each of 4 × 4, twice in time
    cut = x.view(3, 2, 2, 4, 3, 2, 4).permute(1, 4, 2, 5, 0, 3, 6)
    patches = torch.stack([cut, cut], 5).reshape(24, -1)
    towers, _ = unwrap(model.eval(), tokenizer_of())
    (found,) = towers._pixels(patches, enc['image_grid_thw'])
    assert found.equal(x)
