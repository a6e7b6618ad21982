"""The small models that lxt and lrp_loo both explain: weights from a seed, by a generator whose
numbers never change (numpy's RandomState), in float64. Needs nothing of lrp_loo, so that an
environment with lxt can import it.
"""

import zlib

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

SIZES = dict(
    vocab_size=30522,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    num_labels=2,
    attn_implementation='eager',
)
# token ids of the texts in conftest.py
IDS = [
    [101, 1996, 13198, 2024, 2214, 1010, 1998, 1996, 6393, 2003, 4030] + [1012, 102],
    [101, 2986, 1012, 102],
    [101, 2025, 2028, 3496, 1997, 2023, 4251, 1010, 12382, 2143, 5683]
    + [11780, 1010, 1998, 2049, 4566, 12237, 2007, 2017, 1012, 102],
]
# lxt has no CP-LRP for BERT
PAIRS = (('bert', 'attn_lrp'), ('llama', 'attn_lrp'), ('llama', 'cp_lrp'))


def numbers(name, shape):
    "Normal numbers that depend on a parameter's name and shape alone."
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return torch.from_numpy(random.standard_normal(tuple(shape)))


@torch.no_grad()
def seeded(model):
    "Large enough that rules and softmax matter; scales of norms near 1."
    for name, p in model.named_parameters():
        x = numbers(name, p.shape)
        if p.ndim > 1:
            p.copy_(0.3 * x)
        elif name.endswith('bias'):
            p.copy_(0.1 * x)
        else:
            p.copy_(1 + 0.1 * x)
    return model


def build(family):
    "One of the two, in float64 and eval mode."
    if family == 'bert':
        model = BertForSequenceClassification(BertConfig(**SIZES))
    else:
        config = LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0)
        model = LlamaForSequenceClassification(config)
    model = seeded(model.double()).eval()
    return model.requires_grad_(False)


def checksum(model):
    "A number that another initialisation would not give."
    return float(sum(p.double().abs().sum() for p in model.parameters()))
