"""Small models of transformers with random weights, what they read, and what their own
forward makes of it, without the library.
"""

import inspect
import zlib

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto import modeling_auto
from with_images import BESIDE, IN_TEXT, WITH_IMAGES

from lrp_loo.inputs.targets import Target
from lrp_loo.models.encoding import encode
from lrp_loo.models.media import ImageAndText, ImageInText
from lrp_loo.models.multipart import (
    EncoderDecoder,
    ReadTwice,
    MultiPartModel,
    TwoTowers,
    two_towers,
)
from lrp_loo.models.objects import as_multi_part

# -------------------------------------------------- what is built

# Standard deviation of every matrix and bias; None: as transformers makes the
# model.
SETTINGS = {'default': None, '0.05': 0.05, '0.1': 0.1}
# the setting that every family is checked at first, and its second task alone
WIDEST = '0.1'

TASKS = {  # task → the mapping of transformers that names each family's class
    'class': 'SEQUENCE_CLASSIFICATION',
    'next token': 'CAUSAL_LM',
    'masked token': 'MASKED_LM',
    'token class': 'TOKEN_CLASSIFICATION',
    'answer': 'QUESTION_ANSWERING',
    'image': 'IMAGE_CLASSIFICATION',
    'source': 'SEQ_TO_SEQ_CAUSAL_LM',  # and what the decoder has said to it
    'two texts': '',  # the bare encoder, as two towers
    'image in text': '',  # of `with_images`
    'image beside text': '',
}
WITH_AN_IMAGE = {'image in text': IN_TEXT, 'image beside text': BESIDE}
# what an encoder that is trained for it makes of a text; of the rest the mean
POOLED = dict(mistral='last', qwen2='last', qwen3='last', gemma3_text='mean')
POOLED |= dict(llama='last', bert='cls', xlm_roberta='cls')

# Chosen before anybody had tried them, and run for the first time when the rest
# held no *wrong*: a check that the rest was not only mended where it was looked
# at. They are the table's last rows.
HELD_BACK = ('yoso', 'jetmoe')

VISION = (
    'vit deit beit dinov2 dinov2_with_registers ijepa vit_msn data2vec-vision '
    'swin swinv2 convnext poolformer resnet siglip clip levit hiera'
).split()

# models of sounds, some of them too large to be built at their own sizes
OF_SOUND = (
    'audioflamingo3 glmasr granite_speech granite_speech_plus '
    'moss_transcribe_diarize musicflamingo nemo_speechlm qwen2_audio qwen3_asr '
    'vibevoice_asr voxtral voxtral_realtime'
).split()

NOT_TEXT_ALONE = (
    'made of several models; where one of them reads text, it is a family of its own'
)

# Sizes by the name that configurations give them; a name that one does not have
# is left out.
WINDOW = 4
EXPERTS = 4
SMALL = {
    name: size
    for size, names in (
        (200, 'vocab_size vocab_size_per_layer_input src_vocab_size tgt_vocab_size'),
        (
            2,
            'type_vocab_size num_labels eos_token_id sep_token_id decoder_start_token_id '
            'num_hidden_layers n_layer n_layers num_layers num_blocks decoder_layers '
            'encoder_layers num_decoder_layers num_encoder_layers num_key_value_heads '
            'swa_num_key_value_heads index_n_heads num_experts_per_tok '
            'num_experts_per_token moe_topk moe_k linear_num_key_heads n_mamba_heads',
        ),
        (0, 'pad_token_id num_nextn_predict_layers'),
        (
            1,
            'bos_token_id cls_token_id n_group topk_group num_expert_group '
            'n_shared_experts first_k_dense_replace num_dense_layers mamba_n_groups '
            'n_groups',
        ),
        (3, 'mask_token_id'),
        (
            32,
            'hidden_size d_model n_embd dim emb_dim embedding_size embedding_dim '
            'word_embed_proj_dim backbone_hidden_size lru_width moe_intermediate_size '
            'shared_expert_intermediate_size shared_intermediate_size '
            'moe_shared_expert_intermediate_size expert_ffn_hidden_size',
        ),
        (
            8,
            'hidden_size_per_layer_input head_dim d_kv d_head attention_head_dim '
            'kv_channels swa_head_dim query_pre_attn_scalar qk_head_dim v_head_dim '
            'index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim '
            'mamba_d_state mamba_chunk_size state_size ssm_state_size chunk_size',
        ),
        (
            4,
            'num_attention_heads n_head n_heads num_heads decoder_attention_heads '
            'encoder_attention_heads num_decoder_attention_heads '
            'num_encoder_attention_heads swa_num_attention_heads rotary_dim '
            'qk_rope_head_dim qk_nope_head_dim linear_num_value_heads linear_num_heads '
            'mamba_n_heads mamba_dt_rank mamba_num_heads time_step_rank',
        ),
        (16, 'kv_lora_rank q_lora_rank mamba_d_head mamba_head_dim'),
        (
            64,
            'index_topk intermediate_size ffn_dim d_ff hidden_dim ffn_hidden_size d_inner '
            'n_inner decoder_ffn_dim encoder_ffn_dim dff intermediate_size_mlp '
            'mlp_hidden_size dense_intermediate_size max_position_embeddings n_positions '
            'n_ctx max_seq_len context_length',
        ),
        (
            WINDOW,
            'sliding_window attention_window window_size sliding_window_size '
            'attention_window_size attention_chunk_size',
        ),
        (2 * WINDOW, 'local_attention'),
        (EXPERTS, 'num_experts num_local_experts n_routed_experts moe_num_experts'),
    )
    for name in names.split()
}
IMAGE = dict(
    image_size=28,
    patch_size=7,
    num_channels=3,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_labels=3,
)

# latent attention: head_dim is what rotates
LATENT = dict(num_key_value_heads=4, head_dim=4)
HYBRID = dict(layer_types=['linear_attention', 'full_attention'])
STAGES = dict(
    image_size=32,
    patch_size=4,
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 2],
    num_attention_heads=[2, 2],
    num_hidden_layers=2,
    window_size=4,
)

# What a family's configuration needs beyond that.
OVERRIDES = {
    'axk1': LATENT,
    'axk2': LATENT,
    'bailing_hybrid': dict(LATENT, **HYBRID),
    'bamba': dict(attn_layer_indices=[1]),
    # blocks that a text is longer than: else all attention is full
    'big_bird': dict(attention_type='block_sparse', block_size=1, num_random_blocks=1),
    'clip': dict(vision_config=IMAGE),
    'convnext': dict(
        image_size=32, patch_size=4, num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]
    ),
    'cpmant': dict(
        dim_head=8,
        dim_ff=64,
        position_bias_num_buckets=8,
        position_bias_max_distance=32,
    ),
    'deepseek_v2': LATENT,
    'deepseek_v3': LATENT,
    'deepseek_v32': LATENT,
    'dots3_note_text': dict(num_key_value_heads=4),
    'esm': dict(is_folding_model=False),
    'esmc': dict(num_key_value_heads=4),
    'falcon_h1': dict(mamba_d_ssm=64),
    'gemma3n_text': dict(
        num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.0, 0.0],
        layer_types=['sliding_attention', 'full_attention'],
    ),
    'glm4_moe_lite': LATENT,
    'glm_moe_dsa': LATENT,
    'gpt_neo': dict(attention_types=[[['global', 'local'], 1]]),
    'granitemoehybrid': dict(layer_types=['mamba', 'attention']),
    'hiera': dict(
        image_size=[32, 32],
        patch_size=[7, 7],
        embed_dim=16,
        num_heads=[1, 2],
        depths=[1, 1],
        query_stride=[2, 2],
        num_query_pool=1,
        masked_unit_size=[4, 4],
    ),
    'jamba': dict(attn_layer_period=2, attn_layer_offset=1),
    'kimi_linear': dict(LATENT, **HYBRID),
    'layoutlmv3': dict(coordinate_size=6, shape_size=4, visual_embed=False),
    'levit': dict(
        hidden_sizes=[16, 16, 16],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        image_size=64,
        patch_size=16,
    ),
    'lfm2_moe': dict(layer_types=['conv', 'full_attention']),
    'lfm3': dict(layer_types=['conv', 'full_attention']),
    'lilt': dict(hidden_size=48),
    'longcat_flash': LATENT,
    'luke': dict(entity_vocab_size=50, entity_emb_size=16),
    'mamba2': dict(num_heads=4, head_dim=16),
    'markuplm': dict(
        max_xpath_tag_unit_embeddings=32,
        max_xpath_subs_unit_embeddings=32,
        tag_pad_id=31,
        subs_pad_id=31,
        xpath_unit_hidden_size=8,
        max_depth=4,
    ),
    'minicpm3': LATENT,
    'mistral4': LATENT,
    'mpt': dict(attn_config=dict(attn_impl='torch')),
    'mt5': dict(decoder_start_token_id=0),
    'neomme': dict(head_dim=16),
    'perceiver': dict(
        num_latents=8,
        d_latents=32,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
    ),
    'poolformer': dict(patch_size=16, image_size=32),
    'qwen3_5_moe_text': HYBRID,
    'qwen3_5_text': HYBRID,
    'qwen3_next': HYBRID,
    'recurrent_gemma': dict(num_hidden_layers=3),  # the third is attention
    'reformer': dict(
        axial_pos_embds_dim=[16, 16],
        axial_pos_shape=[8, 8],
        attention_head_size=8,
        feed_forward_size=64,
        attn_layers=['local', 'lsh'],
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        num_buckets=2,
        num_hashes=1,
        hash_seed=0,
    ),
    'resnet': dict(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type='basic'
    ),
    'roc_bert': dict(
        pronunciation_embed_dim=16,
        pronunciation_vocab_size=200,
        shape_embed_dim=16,
        shape_vocab_size=200,
    ),
    'siglip': dict(vision_config=IMAGE),
    'swin': STAGES,
    'swinv2': STAGES,
    't5': dict(decoder_start_token_id=0),
    'umt5': dict(decoder_start_token_id=0),
    'xmod': dict(default_language='en_XX', languages=['en_XX', 'de_DE']),
    'youtu': LATENT,
    'zamba': dict(
        num_hidden_layers=3,
        layer_types=['mamba', 'hybrid', 'hybrid'],
        layers_block_type=['mamba', 'hybrid', 'hybrid'],
    ),
    'zamba2': dict(
        layer_types=['mamba', 'hybrid'],
        layers_block_type=['mamba', 'hybrid'],
        num_mem_blocks=1,
    ),
    'zaya': dict(num_experts_per_tok=1),
}

# ------------------------------------------------------------------ building


def mapping(task):
    "Family → class name, for one task."
    of = {name: getattr(modeling_auto, name) for name in dir(modeling_auto)}
    if task == 'two texts':
        has = {*mapping('masked token'), *POOLED} - {*mapping('source')}
        return {f: c for f, c in of['MODEL_MAPPING_NAMES'].items() if f in has}
    return of[f'MODEL_FOR_{TASKS[task]}_MAPPING_NAMES'] if TASKS[task] else {}


def class_name(family, task):
    """The class of a family for a task, the first where there are several;
    None where there is none.
    """
    name = mapping(task).get(family)
    return name[0] if isinstance(name, (list, tuple)) else name


def text_families():
    "Every family that some text task of transformers names."
    found = {f for t in TASKS if t != 'image' for f in mapping(t)}
    return sorted(found - {*OF_SOUND})


def small_config(family):
    "The configuration of a family with its sizes made small."
    config_class = CONFIG_MAPPING[family]
    if getattr(config_class, 'sub_configs', None) and family not in OVERRIDES:
        raise NotImplementedError(NOT_TEXT_ALONE)
    default = config_class()
    has = {*vars(default), *(getattr(default, 'attribute_map', None) or {})}
    sizes = IMAGE if family in VISION else SMALL
    fitting = {k: v for k, v in sizes.items() if k in has}
    if getattr(default, 'is_encoder_decoder', False):
        fitting['decoder_start_token_id'] = SMALL['decoder_start_token_id']
    return config_class(**fitting | OVERRIDES.get(family, {}))


def seed_of(*names):
    "The same seed for the same names, in every process."
    return zlib.crc32('/'.join(names).encode())


def build(family, task, setting):
    "A small random model in eval mode, in float32."
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(family, task, setting))
        if task in WITH_AN_IMAGE:
            model, _ = WITH_IMAGES[family]()
        else:
            kind = getattr(transformers, class_name(family, task))
            model = kind(small_config(family))
        model = model.eval().float()
        if SETTINGS[setting] is not None:
            randomize(model, SETTINGS[setting])
    if task == 'two texts':
        return two_towers(model, POOLED.get(family, 'mean'))
    return as_multi_part(model)


@torch.no_grad()
def randomize(model, std):
    "Draw every matrix and every bias anew; the weights of norms stay."
    for name, p in model.named_parameters():
        if p.ndim > 1 or name.endswith('bias'):
            p.normal_(0, std)


# -------------------------------------------------- what is read

# tokens of the two texts: the second is padded; the first is no multiple of WINDOW
LENGTHS = (13, 8)
# the place that is explained where the output has a row for each token
INSIDE = 3


class Words:
    "What `explain_batch` asks of a tokenizer, without a vocabulary."

    all_special_ids = [0, 1, 2]
    pad_token_id = 0
    bos_token_id = cls_token_id = 1
    eos_token_id = sep_token_id = 2
    mask_token_id = 3
    unk_token_id = None
    mask_token = '[MASK]'
    model_max_length = 64

    def convert_ids_to_tokens(self, ids):
        if isinstance(ids, int):
            return f'w{ids}'
        return [f'w{int(i)}' for i in ids]


def random_text(n, seed):
    "A text of n tokens, the first and the last one special."
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 200, (1, n), generator=g)
    ids[0, 0] = Words.cls_token_id
    ids[0, -1] = Words.sep_token_id
    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}


def random_pair(n, seed):
    "Two texts in one row, as `EncoderDecoder` and `TwoTowers` read them."
    first, second = (
        random_text(k, seed + s) for k, s in ((n - n // 2, 0), (n // 2, 9))
    )
    both = {k: torch.cat([first[k], second[k]], 1) for k in first}
    tower = [torch.full_like(x['input_ids'], i) for i, x in enumerate((first, second))]
    return both | dict(tower_ids=torch.cat(tower, 1))


def of_image(family, model):
    "An image with two texts, as the model reads them."
    with torch.random.fork_rng():
        torch.manual_seed(1)
        _, enc = WITH_IMAGES[family]()
    other = dict(enc, input_ids=enc['input_ids'].clone())
    other['input_ids'][0, -2] = 12
    return [encode(model, Words(), e) for e in (enc, other)]


def random_image(model, seed):
    "Random pixels of the size that the model takes."
    g = torch.Generator().manual_seed(seed)
    config = getattr(model.config, 'vision_config', model.config)
    size = getattr(config, 'image_size', 32)
    side = size if isinstance(size, int) else size[0]
    return {'pixel_values': torch.rand(1, config.num_channels, side, side, generator=g)}


def inputs_for(model, task, family=None):
    "Two inputs: two texts of different lengths, two images, or an image with two texts."
    if task in WITH_AN_IMAGE:
        return of_image(family, model)
    if task == 'image':
        return [random_image(model, seed) for seed in (1, 2)]
    some = random_pair if task in ('source', 'two texts') else random_text
    return [some(n, seed) for seed, n in enumerate(LENGTHS)]


def target_for(task):
    """What is explained: class or vocabulary entry 1, or that the answer
    starts at a place.
    """
    if task == 'answer':
        return Target(INSIDE)
    if task in ('masked token', 'token class'):
        return Target(1, position=INSIDE)
    return Target(0 if task in ('two texts', 'image beside text') else 1)


def called(model, enc):
    "A forward of transformers, with what it takes."
    takes = inspect.signature(model.forward).parameters
    cache = {'use_cache': False} if 'use_cache' in takes else {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    taken = {k: v for k, v in enc.items() if takes_all or k in takes}
    return model(**taken, **cache)


def plain(model, enc):
    "The model's own forward; parts that read stretches of a row are called by hand."
    if not isinstance(model, MultiPartModel):
        return called(model, enc)
    kind = next(k for k in BY_HAND if isinstance(model, k))
    return BY_HAND[kind](model, model.inside, enc)


def parts_of(enc):
    "Ids and mask of the two stretches of a row."
    n = int((enc['tower_ids'] == 0).sum())
    mask = enc.get('attention_mask', torch.ones_like(enc['input_ids']))
    whole = enc['input_ids'], mask
    return [x[:, :n] for x in whole], [x[:, n:] for x in whole]


def of_source(model, inside, enc):
    (ids, mask), (said, of_said) = parts_of(enc)
    decoder = dict(decoder_input_ids=said, decoder_attention_mask=of_said)
    return inside(input_ids=ids, attention_mask=mask, use_cache=False, **decoder)


def read_twice(model, inside, enc):
    mask = enc['attention_mask']
    later = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)
    given = dict(enc, decoder_attention_mask=later)
    return inside(**given, use_cache=False)


def of_two_texts(model, inside, enc):
    "The cosine of what the encoder makes of each."
    ends = []
    n = int((enc['tower_ids'] == 0).sum())
    others = {k: v for k, v in enc.items() if k not in ('tower_ids', 'attention_mask')}
    for (_, mask), part in zip(parts_of(enc), (slice(n), slice(n, None))):
        own = {k: v[:, part] for k, v in others.items()}
        states = inside(**own, attention_mask=mask)[0]
        if model.pooling == 'mean':
            end = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            last = int(mask[0].nonzero().max())
            end = states[:, 0 if model.pooling == 'cls' else last]
        ends.append(end)
    cosine = torch.nn.functional.cosine_similarity(*ends)
    return CausalLMOutput(logits=cosine[:, None])


class _Hidden(TorchFunctionMode):
    "One of n places is nobody's key; a class token may stand in front of them."

    def __init__(self, i, n):
        super().__init__()
        self.i, self.n = i, n

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, '__name__', '')
        if name == 'scaled_dot_product_attention':
            n_keys = args[1].shape[-2]
            if n_keys in (self.n, self.n + 1):
                sees = torch.arange(n_keys) != self.i + n_keys - self.n
                kwargs['attn_mask'] = sees.expand(args[0].shape[-2], -1)
        elif name == 'softmax' and args[0].ndim == 4 and args[0].shape[-1] == self.n:
            hidden = torch.arange(self.n) == self.i
            least = torch.finfo(args[0].dtype).min
            args = (args[0].masked_fill(hidden, least), *args[1:])
        elif name == 'multi_head_attention_forward':
            kwargs['key_padding_mask'] = torch.arange(self.n)[None] == self.i
        return func(*args, **kwargs)


def of_image_beside(model, inside, enc):
    (ids, mask), (patches, seen) = parts_of(enc)
    given = dict(input_ids=ids, attention_mask=mask, pixel_values=enc['pixel_values'])
    if 'spatial_shapes' in enc:  # the image takes a mask
        given |= dict(spatial_shapes=enc['spatial_shapes'], pixel_attention_mask=seen)
    if seen.all() or 'spatial_shapes' in enc:
        out = inside(**given)
    else:
        with _Hidden(int((seen == 0).nonzero()[0, 1]), patches.shape[1]):
            out = inside(**given)
    return CausalLMOutput(logits=out.logits_per_image)


BY_HAND = {  # kind of `MultiPartModel` → its output from transformers' own calls
    EncoderDecoder: of_source,
    ReadTwice: read_twice,
    TwoTowers: of_two_texts,
    ImageInText: lambda model, inside, enc: called(inside, enc),
    ImageAndText: of_image_beside,
}


def logits_of(out, task):
    "The output that the explained number is an entry of."
    if isinstance(out, dict) and 'logits' in out:
        return out['logits']
    return out.start_logits if task == 'answer' else out.logits


def number(out, task):
    "The explained number of a single text, read without the library."
    logits = logits_of(out, task)[0]
    if task == 'answer':
        return logits[INSIDE]
    if task in ('class', 'image'):
        return logits[1]
    if logits.ndim == 1:  # a similarity
        return logits[0]
    return logits[INSIDE if task in ('masked token', 'token class') else -1, 1]


def masked(enc, i):
    "The text with one zero in its attention mask."
    mask = enc.get('attention_mask', torch.ones_like(enc['input_ids'])).clone()
    mask[0, i] = 0
    return enc | {'attention_mask': mask}
