"""Small models of images and text with random weights, and what each of them reads."""

from functools import partial

import torch
import transformers as t

IMAGE = 49  # the token that stands for an image
SMALL = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4)
TEXT = dict(**SMALL, num_hidden_layers=2, num_key_value_heads=2, vocab_size=50)
TEXT |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
VISION = dict(**SMALL, num_hidden_layers=1, image_size=16, patch_size=8)


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


def of_tiles(name):
    "SmolVLM's and Idefics3's, which differ by their names."
    config = getattr(t, f'{name}Config')(
        vision_config=dict(VISION, image_size=16, patch_size=4),
        text_config=dict(TEXT, model_type='llama'),
        image_token_id=IMAGE,
        scale_factor=2,
    )
    pixels = torch.randn(1, 1, 3, 16, 16)
    model = getattr(t, f'{name}ForConditionalGeneration')(config)
    return model, row(4, pixel_values=pixels)


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


def qwen2_vl():
    "A model that is refused."
    rope = dict(rope_type='default', mrope_section=[1, 1, 2], rope_theta=10000.0)
    config = t.Qwen2VLConfig(
        text_config=dict(TEXT, rope_scaling=rope, rope_parameters=rope),
        vision_config=dict(
            depth=1, embed_dim=32, hidden_size=32, num_heads=4, patch_size=4
        ),
        image_token_id=IMAGE,
    )
    return t.Qwen2VLForConditionalGeneration(config)


IN_TEXT = dict(
    llava=llava,
    paligemma=paligemma,
    gemma3=gemma3,
    smolvlm=partial(of_tiles, 'SmolVLM'),
    idefics3=partial(of_tiles, 'Idefics3'),
    internvl=internvl,
)


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


def siglip2():
    "Six patches, and two of padding."
    text = dict(**SMALL, num_hidden_layers=2, vocab_size=50)
    vision = dict(**SMALL, num_hidden_layers=2, num_patches=4, patch_size=8)
    config = t.Siglip2Config(text_config=text, vision_config=vision)
    enc = beside() | dict(
        pixel_values=torch.randn(1, 8, 192),
        pixel_attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]]),
        spatial_shapes=torch.tensor([[2, 3]]),
    )
    return t.Siglip2Model(config), enc


def beside():
    ids = torch.tensor([[1, 7, 8, 9, 10, 11]])
    return dict(input_ids=ids, pixel_values=torch.randn(1, 3, 16, 16))


BESIDE = dict(clip=clip, siglip=siglip, siglip2=siglip2)
WITH_IMAGES = IN_TEXT | BESIDE
