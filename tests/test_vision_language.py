"""An image in a text, and an image beside one: every method, against direct calls."""

from functools import cache

import pytest
from close import assert_close, masked_one_at_a_time
import torch
import transformers as t
from encoder_decoders import encoder_decoder
from with_images import BESIDE, IMAGE, IN_TEXT, VISION, WITH_IMAGES, qwen2_vl

from lrp_loo import attn_lrp, cp_lrp, explain
from lrp_loo.loo.removals import key_weights
from lrp_loo.paper.conservation import conservation
from lrp_loo.methods.table import METHODS
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
    "A function that makes each model once: name → model, encoding, tokenizer."

    @cache
    def make(name):
        torch.manual_seed(0)
        model, enc = WITH_IMAGES[name]()
        return model.eval(), enc, tokenizer_of()

    return make


@torch.no_grad()
def called(model, enc, target):
    return float(model(**enc).logits[0, -1, target])


@pytest.mark.parametrize('name', IN_TEXT)
def test_scores_are_those_of_direct_calls(made, name):
    model, enc, tokenizer = made(name)
    a = explain(model, tokenizer, [enc], 'loo', target=5)[0]
    assert_close(a.logit, called(model, enc, 5))
    _, loo = masked_one_at_a_time(enc, lambda x: model(**x).logits[0, -1, 5])
    assert_close(a.scores, loo, scale=abs(a.logit))
    image = enc['input_ids'][0] == IMAGE
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        b = explain(model, tokenizer, [enc], method, target=5)[0]
        assert_close(b.logit, a.logit)
        assert (b.scores[image] != 0).all(), method
        assert not b.is_special[image].any(), method


@torch.no_grad()
def without(model, enc, i):
    "The score of a pair when its i-th place is no key, by hooks on the towers."
    n = enc['input_ids'].shape[1]
    if i < n:
        mask = torch.ones_like(enc['input_ids'])
        mask[0, i] = 0
        return float(model(**enc, attention_mask=mask).logits_per_image)
    if 'spatial_shapes' in enc:  # its image takes a mask, and has no patches 6 and 7
        mask = (torch.arange(8)[None] != i - n).long() * enc['pixel_attention_mask']
        return float(model(**enc | dict(pixel_attention_mask=mask)).logits_per_image)
    text = enc['input_ids']
    features = model.get_text_features(text)
    features = getattr(features, 'pooler_output', features)
    with key_weights((torch.arange(4) != i - n).float()[None]):
        image = model.get_image_features(enc['pixel_values'])
    image = getattr(image, 'pooler_output', image)
    image, features = (x / x.norm(dim=-1, keepdim=True) for x in (image, features))
    scale, bias = model.logit_scale.exp(), getattr(model, 'logit_bias', 0.0)
    return float(image @ features.T * scale + bias)


@pytest.mark.filterwarnings('ignore:no rule for div')
@pytest.mark.parametrize('name', BESIDE)
def test_loo_of_a_pair_is_that_of_direct_calls(made, name):
    model, enc, tokenizer = made(name)
    a = explain(model, tokenizer, [enc], 'loo')[0]
    with torch.no_grad():
        assert_close(a.logit, float(model(**enc).logits_per_image))
    grid = (2, 3) if name == 'siglip2' else (2, 2)
    assert a.tokens[6:] == [f'{i},{j}' for i in range(2) for j in range(grid[1])]
    (image,) = a.info['images']
    assert (image['start'], image['n'], image['grid']) == (6, len(a) - 6, grid)
    assert not a.is_special[6:].any()
    for i in range(len(a)):
        expected = a.logit - without(model, enc, i)
        assert_close(a.scores[i], expected, scale=abs(a.logit))
    for method in ('grad_x_input', 'attn_lrp', 'removal', 'auto', 'ig'):
        b = explain(model, tokenizer, [enc], method)[0]
        assert_close(b.logit, a.logit)
        content = b.scores[~b.is_special]
        assert (content != 0).all() and b.label == 'logits_per_image', method


@pytest.mark.parametrize('name', BESIDE)
@pytest.mark.parametrize('rules', [attn_lrp, cp_lrp])
def test_rules_lose_nothing_of_a_pair(made, name, rules):
    # SigLIP's image is pooled by a query that is a parameter
    torch.manual_seed(0)
    double = BESIDE[name]()[0].eval().double()
    model, tokenizer = unwrap(double, tokenizer_of())
    enc = encode(model, tokenizer, made(name)[1])
    enc = {k: v.double() if v.is_floating_point() else v for k, v in enc.items()}
    parts = conservation(model, enc, rules())
    assert abs(parts['remainder']) < 1e-9 * max(map(abs, parts.values()))


# --- a sound that stays, and what was said of it


@pytest.fixture(scope='module', params=['Whisper', 'Speech2Text'])
def sound_model(request):
    "A model, what its feature extractor returns, and the model's own arguments."
    model = encoder_decoder(f'{request.param}ForConditionalGeneration', std=0.2)
    torch.manual_seed(0)
    sound = torch.randn(8, 20)
    if request.param == 'Whisper':
        return model, sound, dict(input_features=sound[None])
    # the last frames are padding
    mask = torch.tensor([[1] * 10 + [0] * 10])
    padded = dict(input_features=sound.T[None], attention_mask=mask)
    return model, padded, padded


@pytest.mark.parametrize('method', ['loo', 'auto', 'attn_lrp', 'removal', 'ig'])
def test_what_was_said_of_a_sound_is_explained(sound_model, method):
    model, sound, own = sound_model
    tokenizer = tokenizer_of()
    (a,) = explain(model, tokenizer, [(sound, 'w7 w8 w9')], method, target=5)
    ids = torch.tensor([[1, 7, 8, 9]])

    def by_hand(decoder):
        given = {f'decoder_{name}': x for name, x in decoder.items()}
        return model(**own, **given).logits[0, -1, 5]

    assert a.tokens == ['w1', 'w7', 'w8', 'w9']
    whole, loo = masked_one_at_a_time(dict(input_ids=ids), by_hand)
    assert_close(a.logit, float(whole))
    assert (a.scores[1:] != 0).all()
    if method in ('loo', 'auto'):
        assert_close(a.scores, loo, scale=abs(a.logit))


def test_a_sound_is_given_as_features(sound_model):
    model, sound, own = sound_model
    tokenizer, features = tokenizer_of(), own['input_features']
    with pytest.raises(
        ValueError, match='a sound of .* n_mels.*got input_features and .2, '
    ):
        explain(model, tokenizer, [(features.repeat(2, 1, 1), 'w7')], 'loo')
    with pytest.raises(ValueError, match='got input_features, labels'):
        explain(model, tokenizer, [(dict(input_features=features, labels=1), 'w7')])
    with pytest.raises(ValueError, match='takes 12'):
        explain(model, tokenizer, [(sound, 'w7 ' * 12)], 'loo')


# --- what cannot be right


@pytest.mark.parametrize(
    'name', ['TimesformerForVideo', 'VideoMAEForVideo', 'ViTForImage']
)
@pytest.mark.parametrize('method', METHODS)
def test_a_video_and_an_option_are_refused_by_every_method(name, method):
    kind = getattr(t, f'{name}Classification')
    config = kind.config_class(**VISION, num_frames=2)
    enc = dict(pixel_values=torch.randn(1, 2, 3, 16, 16))
    message = 'frames of a video.*one by one'
    if name == 'ViTForImage':
        enc = dict(pixel_values=torch.randn(1, 3, 24, 32))
        enc, message = enc | dict(interpolate_pos_encoding=True), 'pos_encoding = True'
    for reader, image in ((None, enc), (lambda **_: enc, torch.zeros(3, 16, 16))):
        with pytest.raises(ValueError, match=message):
            explain(kind(config).eval(), reader, [image], method)


class Pair:
    "A processor, as much of it as is asked for."

    def __init__(self, enc):
        self.tokenizer, self.enc = tokenizer_of(), enc

    def __call__(self, images, text, return_tensors):
        return self.enc


@pytest.mark.parametrize('name', ['llava', 'clip'])
def test_a_pair_is_read_by_the_processor(made, name):
    model, enc, tokenizer = made(name)
    given = [(torch.rand(3, 16, 16), 'w7 w8')]
    a = explain(model, Pair(enc), given, 'attn_lrp', target=0)[0]
    b = explain(model, tokenizer, [enc], 'attn_lrp', target=0)[0]
    assert a.scores.equal(b.scores) and a.info['text'] == 'w7 w8'
    with pytest.raises(ValueError, match='an image or with one'):
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
    with pytest.raises(ValueError, match='0 of the text.s tokens .* one was given'):
        explain(model, tokenizer, [words], 'loo')
    few = words | dict(input_ids=torch.tensor([[1, IMAGE, IMAGE, 7, 8]]))
    with pytest.raises(ValueError, match='do not match'):
        explain(model, tokenizer, [few], 'loo')
    (a,) = explain(model, tokenizer, ['w7 w8 w9'], 'loo', target=5)
    assert len(a) == 3 and 'images' not in a.info
    with pytest.raises(ValueError, match='position ids that depend on the mask'):
        explain(qwen2_vl().eval(), tokenizer, [enc], 'loo')


def test_the_picture_stands_beside_its_heat_map(made):
    model, enc, tokenizer = made('llava')
    a = explain(model, tokenizer, [enc], 'attn_lrp')[0]
    (image,) = a.info['images']
    assert (image['start'], image['n'], image['grid']) == (2, 4, (2, 2))
    assert a.tokens[2:6] == ['0,0', '0,1', '1,0', '1,1']
    page = a._repr_html_()
    assert page.count('class="t patch') == 4 and page.count(image['picture']) == 1
    assert 'repeat(2,minmax(0,1fr))' in page
