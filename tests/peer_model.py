"""The small models that lxt and lrp_loo both explain: weights from a seed, by a generator whose
numbers never change (numpy's RandomState), in float64. It needs nothing of lrp_loo, so that an
environment with lxt can run it and say what lxt computes:

    python peer_model.py FAMILY RULES    # prints one pair of PAIRS
    python peer_model.py --write         # fixtures/lxt.json, every pair

(In an environment of its own: pip install torchvision transformers==4.52.4 lxt==2.1; lxt
changes classes of transformers for
good, so each pair has a process of its own.)
"""

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
import zlib

import numpy as np
import torch
import transformers

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


@torch.no_grad()
def seeded(model):
    """Normal numbers that depend on a parameter's name and shape alone, large enough
    that rules and softmax matter; scales of norms near 1.
    """
    for name, p in model.named_parameters():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        x = torch.from_numpy(random.standard_normal(tuple(p.shape)))
        if p.ndim > 1:
            p.copy_(0.3 * x)
        else:
            p.copy_(0.1 * x + (not name.endswith('bias')))
    return model


def build(family):
    "One of the two, in float64 and eval mode."
    if family == 'bert':
        model = transformers.BertForSequenceClassification(
            transformers.BertConfig(**SIZES)
        )
    else:
        config = transformers.LlamaConfig(
            **SIZES, num_key_value_heads=2, pad_token_id=0
        )
        model = transformers.LlamaForSequenceClassification(config)
    model = seeded(model.double()).eval()
    return model.requires_grad_(False)


def checksum(model):
    "A number that another initialisation would not give."
    return float(sum(p.double().abs().sum() for p in model.parameters()))


def lxt_row(family, rules):
    "What lxt says of every text: gradient × input of the largest logit."
    from lxt.efficient import monkey_patch

    module = import_module(f'transformers.models.{family}.modeling_{family}')
    name = dict(attn_lrp='attnLRP', cp_lrp='cp_LRP')[rules]
    monkey_patch(module, getattr(import_module(f'lxt.efficient.models.{family}'), name))
    model, texts = build(family), []
    for ids in IDS:
        x = model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
        if family == 'llama':
            # without ids this class cannot find its last token: the row is read here
            hidden = model.model(inputs_embeds=x).last_hidden_state
            logits = model.score(hidden)[:, -1]
        else:
            logits = model(inputs_embeds=x).logits
        logits.max().backward()
        scores = (x * x.grad).sum(-1)[0].tolist()
        texts.append(dict(logit=float(logits.max()), scores=scores))
    return dict(family=family, rules=rules, weights=checksum(model), texts=texts)


def write():
    "The fixture, a process for each pair."
    pairs = []
    for pair in PAIRS:
        command = [sys.executable, __file__, *pair]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        pairs.append(json.loads(done.stdout.splitlines()[-1]))
    packages = ('lxt', 'torch', 'transformers', 'numpy')
    made_by = 'python tests/peer_model.py --write'
    versions = {name: version(name) for name in packages}
    made = dict(made_by=made_by, versions=versions, ids=IDS, pairs=pairs)
    path = Path(__file__).parent / 'fixtures' / 'lxt.json'
    path.write_text(json.dumps(made, indent=1) + '\n')


if __name__ == '__main__':
    if '--write' in sys.argv:
        write()
    else:
        print(json.dumps(lxt_row(*sys.argv[1:])))
