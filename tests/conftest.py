"What several test files need: small random BERTs in the hub's layout, and offline loading."

import gc
import logging
import os
import sys
import warnings
from functools import cache

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('MPLBACKEND', 'agg')
for name in ('LRP_LOO_DATA', 'LRP_LOO_TRACEBACK'):  # a user's own
    os.environ.pop(name, None)

import chromium
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tracked import ROOT, known_to_git
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

sys.path.append(str(ROOT / 'research' / 'benchmarks'))  # every_family's models

from lrp_loo.models.loading import demo_base, load_demo
from lrp_loo.models.structure import layers_of
from lrp_loo.models.loading import load_model

TEXTS = [
    "The jokes are old, and the pace is slow.",
    "Fine.",
    (
        "Not one scene of this quiet, generous film feels borrowed, and its"
        " ending stays with you."
    ),
]


needs_git = pytest.mark.skipif(
    not known_to_git(),
    reason="needs a clone: git tells the package's files from a user's own",
)
needs_browser = pytest.mark.skipif(chromium.may_be_left_out(), reason=chromium.MISSING)

# more of them, for what is fitted or counted
OPINIONS = [
    'A quiet film with a loud heart.',
    'Nobody in this comedy is having any fun.',
    'It drags, then it soars, then it drags again.',
    'The best thing here is the train station.',
    'I laughed twice, and once by mistake.',
    'The director forgot to hire a writer.',
]


def random_bert(layers=3, bias=True, seed=0, std=0.3, dtype=torch.float32, **kw):
    "A BERT with random weights, large enough that rules and softmax matter."
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=30522,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    cfg = BertConfig(**sizes | kw)
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


def shallow_demo(name='sst2', layers=2, device='cpu'):
    "A demo model's first layers, for what a shorter model shows as well."
    model, tokenizer = load_demo(name, device=device)
    stack = layers_of(model).modules
    (found,) = [
        m
        for m in model.modules()
        if isinstance(m, torch.nn.ModuleList) and list(m) == stack
    ]
    del found[layers:]
    model.config.num_hidden_layers = layers
    return model, tokenizer


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


class LoggedDeprecations(logging.Handler):
    "Turn each deprecation that transformers logs into a warning, which is an error."

    def emit(self, record):
        if 'deprecat' in (message := record.getMessage()):
            warnings.warn(message, FutureWarning, stacklevel=2)


logging.getLogger('transformers').addHandler(LoggedDeprecations())

# files whose tests `make test` leaves to `make test-all`
SLOW = ('test_every_family', 'test_families', 'test_fuzz', 'test_nodes', 'test_types')


def pytest_collection_modifyitems(items):
    "Mark the tests of slow files, and those that kill processes."
    for item in items:
        if item.path.stem in SLOW or 'kill' in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope='module')
def loaded_once():
    "Whoever asks for a model that this file loaded before gets the same."
    load_again = cache(load_model)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            'lrp_loo.models.loading.load_model',
            'lrp_loo.evaluate.sweep.load_model',
        ):
            patch.setattr(name, load_again)
        yield


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


@pytest.fixture(scope='module')
def browser():
    with chromium.Chromium() as c:
        yield c


@pytest.fixture(scope='module')
def one_thread():
    "Where tensors are small more threads only wait for each other."
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


@pytest.fixture(scope='module')
def without_the_rest():
    "What was there before is not counted: other tests' graphs may end in between."
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
