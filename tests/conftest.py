"What several test files need: small random BERTs in the hub's layout, and offline loading."

import os

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('MPLBACKEND', 'agg')

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from lrp_loo.models import demo_base, load_demo

TEXTS = [
    "The jokes are old, and the pace is slow.",
    "Fine.",
    (
        "Not one scene of this quiet, generous film feels borrowed, and its"
        " ending stays with you."
    ),
]


def random_bert(
    layers=3, bias=True, seed=0, std=0.3, dtype=torch.float32, **kw
):
    "A BERT with random weights, large enough that rules and softmax matter."
    torch.manual_seed(seed)
    cfg = BertConfig(
        vocab_size=30522,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        **kw,
    )
    m = BertForSequenceClassification(cfg).eval().to(dtype)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.ndim > 1:
                p.normal_(0, std)
            elif name.endswith('bias') and bias:
                p.normal_(0, 0.1)
            elif name.endswith('bias'):
                p.zero_()
    return m


class CountTokens(TorchDispatchMode):
    "How many rows went through the table of words."

    def __init__(self, model):
        super().__init__()
        self.table = model.get_input_embeddings().weight
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        looked_up = func is torch.ops.aten.embedding.default
        if looked_up and args[0].shape == self.table.shape:
            self.n += args[1].numel()
        return func(*args, **(kwargs or {}))


def pytest_terminal_summary(terminalreporter):
    "What was skipped, and what it would need, each reason once."
    skipped = terminalreporter.stats.get('skipped', [])
    reasons = {}
    for report in skipped:
        reason = str(report.longrepr[2]).removeprefix('Skipped: ')
        reasons.setdefault(reason, []).append(report.nodeid)
    if not reasons:
        return
    terminalreporter.section('skipped, and what it would need')
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f'{len(tests):3d} × {reason}')
        for test in tests:
            terminalreporter.write_line(f'        {test}')


def demo_or_skip(name, **options):
    "A demo model, or a skip that says what would install it."
    try:
        return load_demo(name, **options)
    except ModuleNotFoundError as e:
        pytest.skip(str(e))


@pytest.fixture(scope='session')
def demo():
    return load_demo('sst2')


@pytest.fixture(scope='session')
def tokenizer():
    return AutoTokenizer.from_pretrained(demo_base())
