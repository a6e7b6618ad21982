"""Small random models of eighteen families: the stock class, a small
configuration, weights large enough that every rule matters, no network.

A family is a row of ENCODERS, DECODERS or VISION; `random_model`,
`family_tasks` and `family_row` read nothing else.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import transformers

from lrp_loo.inputs.targets import Readout
from lrp_loo.lrp import lrp_rules
from lrp_loo.paper.conservation import conservation
from lrp_loo.lrp.composite import attn_lrp, cp_lrp
from lrp_loo.methods.baselines import sum_over_features
from lrp_loo.models.call import forward, watch_embeddings

HEADS = {
    'class': 'ForSequenceClassification',
    'next token': 'ForCausalLM',
    'answer': 'ForQuestionAnswering',
    'image': 'ForImageClassification',
}


@dataclass(frozen=True)
class Family:
    "A row of the table: stock classes, and a small configuration."

    prefix: str  # of the classes' names
    config: dict  # what the configuration class takes
    tasks: tuple = ('class',)  # what is checked, of HEADS
    # task → class, where it is not the prefix and the head
    classes: dict = field(default_factory=dict)
    config_class: str = ''  # where it is not the model class's own
    fused: bool = True  # does it offer fused attention?

    def model_class(self, task):
        "The stock class for a task."
        name = self.classes.get(task, self.prefix + HEADS[task])
        return getattr(transformers, name)

    def configuration(self, task, **changes):
        "A small configuration, some of its fields changed."
        if self.config_class:
            make = getattr(transformers, self.config_class)
        else:
            make = self.model_class(task).config_class
        return make(**(self.config | changes))


HEADED = dict(hidden_size=32, num_attention_heads=4, intermediate_size=64)
SIZES = dict(HEADED, vocab_size=200, num_hidden_layers=3, max_position_embeddings=64)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
DECODER = dict(SIZES, num_key_value_heads=2, **SPECIAL)
PATCHES = dict(HEADED, num_hidden_layers=3, image_size=28, patch_size=7)

GENERATES = ('next token', 'class')
SEES = ('image',)

DISTILBERT = dict(vocab_size=200, dim=32, n_layers=3, n_heads=4, hidden_dim=64)
DISTILBERT |= dict(max_position_embeddings=64)
DEBERTA = dict(SIZES, relative_attention=True, pos_att_type=['p2c', 'c2p'])
DEBERTA |= dict(position_buckets=8, norm_rel_ebd='layer_norm', share_att_key=True)
DEBERTA |= dict(type_vocab_size=0, position_biased_input=False)
MODERN = dict(SIZES, **SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=8)
MODERN |= dict(global_attn_every_n_layers=2)
GPT2 = dict(vocab_size=200, n_embd=32, n_layer=3, n_head=4, n_positions=64, **SPECIAL)
GEMMA = dict(DECODER, head_dim=8, sliding_window=6, query_pre_attn_scalar=8)
CAPPED = dict(GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=10.0)
CLIP = dict(vision_config=PATCHES, text_config=dict(HEADED, num_hidden_layers=1))

ENCODERS = {
    'BERT': Family('Bert', SIZES, ('class', 'answer')),
    'RoBERTa': Family('Roberta', SIZES),
    'DistilBERT': Family('DistilBert', DISTILBERT),
    'ALBERT': Family('Albert', dict(SIZES, embedding_size=16)),
    'ELECTRA': Family('Electra', dict(SIZES, embedding_size=16)),
    'DeBERTa-v2': Family('DebertaV2', DEBERTA, fused=False),
    'ModernBERT': Family('ModernBert', MODERN),
}
DECODERS = {
    'GPT-2': Family('GPT2', GPT2, GENERATES, {'next token': 'GPT2LMHeadModel'}),
    'Llama': Family('Llama', DECODER, GENERATES),
    'Mistral': Family(
        'Mistral', dict(DECODER, sliding_window=6, head_dim=8), GENERATES
    ),
    'Qwen2': Family('Qwen2', DECODER, GENERATES),
    'Qwen3': Family('Qwen3', dict(DECODER, head_dim=8), GENERATES),
    'Gemma 2': Family('Gemma2', CAPPED, GENERATES, fused=False),
    'Gemma 3': Family(
        'Gemma3',
        GEMMA,
        GENERATES,
        {'class': 'Gemma3TextForSequenceClassification'},
        'Gemma3TextConfig',
    ),
    'Phi-3': Family('Phi3', DECODER, GENERATES),
}
VISION = {
    'ViT': Family('ViT', dict(PATCHES, num_channels=1, num_labels=10), SEES),
    'DeiT': Family('DeiT', dict(PATCHES, num_channels=3), SEES),
    'CLIP vision': Family('CLIP', CLIP, SEES),
}
FAMILIES = ENCODERS | DECODERS | VISION


def family_tasks() -> list:  # (family, task) pairs
    """What is checked: encoders classify (BERT also answers questions),
    decoders predict the next token and classify, vision models classify.
    """
    return [(f, task) for f, family in FAMILIES.items() for task in family.tasks]


@torch.no_grad()
def randomize(
    model,  # changed in place
    bias: bool = True,  # random biases; False: all zero
):
    "Weights large enough that every rule matters."
    for name, p in model.named_parameters():
        if p.ndim > 1:
            p.normal_(0, 0.3)
        elif 'bias' not in name:
            p.add_(torch.randn_like(p) * 0.1)  # norm weights
        elif bias:
            p.normal_(0, 0.1)
        else:
            p.zero_()


def random_model(
    family: str,  # one of FAMILIES
    task: str = 'class',  # one of HEADS
    attention: str = 'eager',  # attention implementation: 'eager' or 'sdpa'
    bias: bool = True,  # random biases; False: all zero
    seed: int = 0,
    dtype=torch.float64,
    **config,  # changes to the configuration
):  # a stock transformers model with random weights, in eval mode
    "A small random model of a family."
    row = FAMILIES[family]
    settings = row.configuration(task, **config)
    build = row.model_class(task)._from_config
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(settings, attn_implementation=attention)
        model = model.eval().to(dtype)
        randomize(model, bias)
    return model


def random_inputs(
    model,  # of `random_model`
    n: int = 12,  # tokens
    seed: int = 1,
) -> dict:  # input_ids and attention_mask, or pixel_values
    "A random text, or image, for a random model."
    g = torch.Generator().manual_seed(seed)
    config = getattr(model.config, 'vision_config', model.config)
    if hasattr(config, 'patch_size'):
        shape = (1, config.num_channels, config.image_size, config.image_size)
        pixels = torch.rand(*shape, generator=g, dtype=model.dtype)
        return {'pixel_values': pixels}
    ids = torch.randint(3, 200, (1, n), generator=g)
    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}


class Relevance(NamedTuple):
    "What `relevance_of` gives."

    R: torch.Tensor  # (T,), per token or patch
    out: object  # the model's output
    rules: object  # the rules that were active


def relevance_of(
    model,
    inputs: dict,
    composite,
    target=None,  # as in `conservation`
    **kwargs,  # of `lrp_rules`
) -> Relevance:  # relevance per token or patch (T,), output, rules
    "Relevance of one input's embeddings, in the model's own precision."
    with (
        torch.enable_grad(),
        watch_embeddings(model) as seen,
        lrp_rules(model, composite, **kwargs) as rules,
    ):
        out = forward(model, inputs)
    with torch.enable_grad():
        value = Readout(target, out, inputs)(out)
    R = seen[0].detach() * torch.autograd.grad(value.sum(), seen[0])[0]
    return Relevance(sum_over_features(R)[0], out, rules)


def family_row(
    family: str,  # one of FAMILIES
    task: str,  # of `family_tasks`
    # family, task, operations, logits, uncovered, conservation (AttnLRP,
    # CP-LRP), eager against sdpa (AttnLRP, CP-LRP)
) -> dict:
    "What is checked of one family and task."
    model = random_model(family, task)
    unbiased = random_model(family, task, bias=False)
    has_fused = FAMILIES[family].fused
    fused = random_model(family, task, 'sdpa') if has_fused else None
    inputs = random_inputs(model)
    with torch.no_grad():
        plain = forward(model, inputs)[0]
    row = dict(family=family, task=task, operations=0, logits=0.0, uncovered=0)
    for name, c in (('attn', attn_lrp()), ('cp', cp_lrp())):
        # raises where an operation has no rule
        R, out, rules = relevance_of(model, inputs, c, strict=True)
        # the largest difference of the logits inside the rules and outside
        moved = float((out[0].detach() - plain).abs().max())
        shares = conservation(unbiased, inputs, c)
        apart = float('nan')
        if has_fused:
            other = relevance_of(fused, inputs, c).R
            apart = float((other - R).abs().max() / R.abs().max())
        row |= {
            'operations': rules.report().operation.nunique(),
            'logits': max(row['logits'], moved),
            'uncovered': row['uncovered'] + len(rules.without_rule()),
            # how far the shares of the logit are from adding up
            f'{name} conserved to': abs(shares['remainder'])
            / max(map(abs, shares.values())),
            f'{name} eager = sdpa to': apart,
        }
    return row


def drawn(
    name: str,  # of one of transformers' classes
    config,  # what its configuration class takes, or one
    std: float = 0.3,
    dtype=torch.float32,
    attention: str | None = None,
):  # in eval mode
    "A small model of a class that is no family's, its matrices random."
    cls = getattr(transformers, name)
    if isinstance(config, dict):
        config = cls.config_class(**config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = cls._from_config(config, attn_implementation=attention)
        for p in model.eval().to(dtype).parameters():
            if p.ndim > 1:
                p.normal_(0, std)
    return model
