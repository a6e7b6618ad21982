"No call leaves an autograd node, or a tensor with a history, also if it raises."

import contextlib
import ctypes
import gc
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import random_bert
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import LlamaForSequenceClassification

import lrp_loo
from lrp_loo import attribute_context, audit_generation, explain, explain_generation
from lrp_loo import lrp_rules
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.methods import explain_batch
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import watch_embeddings
from lrp_loo.models.loading import demo_base, demo_folder
from lrp_loo.paper.conservation import conservation
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import layers_of


WORDS = (
    'the harbour was quiet and a tired crew mended old nets while gulls cried'
    ' over the slow grey water'
).split()
SHORT = ' '.join(WORDS[:6])
LONG = ' '.join(WORDS * 9)  # 190 tokens of BERT's, 250 of the decoder's
MAX_LEFT = 1.0  # MiB per call


@dataclass(eq=False)
class _Saved:
    "A tensor that a graph keeps for its way back."

    tensor: torch.Tensor


def nodes():
    "What is alive of graphs: nodes, what any node keeps, tensors with a history."
    kinds = (torch.autograd.graph.Node, _Saved)
    return sum(
        x.grad_fn is not None
        if issubclass(type(x), torch.Tensor)
        else issubclass(type(x), kinds)
        for x in gc.get_objects()
    )


def nodes_left(call):
    "Before a call, and right after it: nothing waits for `gc` to find it."
    quietly(call)  # whatever is made once
    gc.collect()
    before = nodes()
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: _Saved(x.detach()), lambda saved: saved.tensor
        ):
            quietly(call)
        return before, nodes()
    finally:
        gc.enable()


def quietly(call):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        call()


@cache
def encoder(attention, width):
    tokenizer = AutoTokenizer.from_pretrained(demo_base())
    sizes = dict(hidden_size=width, intermediate_size=width)
    sizes |= dict(num_attention_heads=4, max_position_embeddings=512)
    model = random_bert(layers=2, std=0.05, **sizes)
    model.set_attn_implementation(attention)
    return model, tokenizer


@cache
def decoder(attention, width, kind=LlamaForCausalLM):
    folder = demo_folder('reviews')
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=512)
    sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=2)
    sizes |= dict(hidden_size=width, intermediate_size=width, num_attention_heads=4)
    how = dict(pad_token_id=tokenizer.pad_token_id, attn_implementation=attention)
    torch.manual_seed(0)
    return kind(LlamaConfig(**sizes, **how)).eval(), tokenizer


def decoder_classifier(attention, width):
    return decoder(attention, width, LlamaForSequenceClassification)


# a call takes a model, its tokenizer and a text


def explained(method, *target, **options):
    if method == 'ig':  # one step leaves what sixteen leave
        options['n_steps'] = 2
    if method == 'auto':  # an estimate of a short text as well
        options['passes'] = 7
    return lambda m, t, x: explain(m, t, x, method, *target, **options)


SEVERAL = ('attn_lrp', 'removal', 'rollout')
QUIET = dict(progress=False)


def refined(m, t, x):
    "Once, and until it is exact."
    (a,) = explain(m, t, x, passes=4)
    lrp_loo.refine(lrp_loo.refine(a, 2), 20)


def labels(m, t, x):
    for method in ('attn_lrp', 'removal'):
        lrp_loo.explain_labels(m, t, x, 'all', method)


def calibrated(m, t, x):
    c = lrp_loo.calibrate(m, t, [x, x + ' again'], 'removal', **QUIET)
    lrp_loo.top_tokens(m, t, x, 2, c, 0.5)


def dataset(m, t, x):
    with tempfile.TemporaryDirectory() as out:
        lrp_loo.sweep(m, t, [x, x + ' again'], out, SEVERAL, **QUIET)


def layer_sets(m, t, x):
    for layer in range(2):
        explain_batch(m, t, [encode(m, t, x)], 'attn_lrp', bypass_softmax=[layer])


def rules_by_hand(m, t, x):
    "The context; what it recorded goes with it."
    with watch_embeddings(m) as seen:
        with lrp_rules(m, attn_lrp(), record=True) as rules:
            value = m(**encode(m, t, x)).logits[0, 1]
    torch.autograd.grad(value, seen[0])
    rules.report()


def of_class(name, **options):
    "One of Captum's kind, on ids and on embeddings that have a history."

    def call(model, tokenizer, text):
        ids = encode(model, tokenizer, text)['input_ids']
        explainer = getattr(lrp_loo, name)(model, **options)
        for inputs in (ids, model.get_input_embeddings()(ids)):
            explainer.attribute(inputs, target=1)

    return call


class _NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError('no way back')


def no_way_back(out):
    return _NoWayBack.apply(out.logits[:, 1])


def no_number(out):
    raise RuntimeError('no number')


ENDS = {'no number': no_number, 'no way back': no_way_back, 'Ctrl-C': None}


def ended(method, how):
    "A call that ends in the middle: before the way back, on it, or by Ctrl-C."

    def stop(*_):
        raise KeyboardInterrupt(how)

    def call(m, t, x):
        hook, message = contextlib.nullcontext(), how
        if how == 'Ctrl-C':
            message = 'explain: interrupted; nothing is kept'
            hook = layers_of(m).modules[-1].register_forward_pre_hook(stop)
        with hook, pytest.raises((RuntimeError, KeyboardInterrupt), match=message):
            explain(m, t, x, method, ENDS[how])

    return call


ON_PAGE = [m for m in METHODS if METHODS[m].on_page]
CLASSES = 'LRP GradientXInput IntegratedGradients LeaveOneOut AttentionRollout'.split()
OF_METHODS = {
    **{name: explained(name) for name in METHODS},
    'attn_lrp with a layer': explained('attn_lrp', bypass_softmax=[0]),
    'attn_lrp with eps': explained('attn_lrp', eps=1e-6),
}
OTHERS = {
    # two batches, in threads where the method allows it
    'a batch, removal': lambda m, t, x: explain(
        m, t, [x, SHORT, x], 'removal', batch_size=2
    ),
    'refine': refined,
    'frontier': lambda m, t, x: lrp_loo.frontier(m, t, x, budgets=(3,), **QUIET),
    'explain_labels': labels,
    'audit': lambda m, t, x: lrp_loo.audit(m, t, [x], ('loo', *SEVERAL), **QUIET),
    'calibrate, removal': calibrated,
    'explain_page': lambda m, t, x: lrp_loo.explain_page(m, t, x, ON_PAGE),
    'sweep': dataset,
    'layer sets, attn_lrp': layer_sets,
    'lrp_rules, attn_lrp': rules_by_hand,
    'conservation, attn_lrp': lambda m, t, x: conservation(
        m, encode(m, t, x), attn_lrp()
    ),
    'pairs, removal': lambda m, t, x: lrp_loo.explain_pairs(m, t, x, 'removal'),
    'exact pairs': lambda m, t, x: lrp_loo.explain_pairs(m, t, x, 'exact'),
    **{name: of_class(name) for name in CLASSES},
    'RemovalEstimate': of_class('RemovalEstimate'),
}
for method in ('attn_lrp', 'cp_lrp', 'ig', 'removal', 'grad_x_input'):
    OTHERS |= {f'{method}, {how}': ended(method, how) for how in ENDS}
CONTEXTS = ('auto', 'loo', 'removal', 'attn_lrp')


TWO = dict(max_new_tokens=2)
OF_DECODERS = {
    **{
        f'attribute_context, {how}': lambda m, t, x, how=how: attribute_context(
            m, t, f'{SHORT}. {x}.', 'nets', 'What?', how
        )
        for how in CONTEXTS
    },
    **{
        f'explain_generation, {how}': lambda m, t, x, how=how: explain_generation(
            m, t, x, method=how, max_new_tokens=3
        )
        for how in (*CONTEXTS, 'ig')
    },
    'audit_generation': lambda m, t, x: audit_generation(m, t, [x], **QUIET, **TWO),
}
ATTENTIONS = ('sdpa', 'eager')
EAGER = {'attn_lrp', 'removal', 'rollout'}  # calls that are tried with both
EACH = [
    pytest.param(call, model, attention, id=f'{name}-{model.__name__}-{attention}')
    for calls, models in (
        (OF_METHODS, (encoder, decoder_classifier)),
        (OTHERS, (encoder,)),
        (OF_DECODERS, (decoder,)),
    )
    for name, call in calls.items()
    for model in models
    for attention in ATTENTIONS[: 1 + bool(EAGER & set(name.split(', ')))]
]


@pytest.mark.parametrize(('call', 'model', 'attention'), EACH)
def test_no_node_stays_behind(without_the_rest, call, model, attention):
    arguments = (*model(attention, 32), SHORT)
    before, after = nodes_left(lambda: call(*arguments))
    assert after == before


def resident():
    "Return the MiB of this process, after free memory went back to the system."
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    pages = Path('/proc/self/statm').read_text(encoding='ascii').split()[1]
    return int(pages) * 4096 / 2**20


def mib_left(call, n, warm):
    "Return the MiB that stay after a call, on the mean of n calls."
    for _ in range(warm):
        quietly(call)
    before = resident()
    for _ in range(n):
        quietly(call)
    return (resident() - before) / n


needs_proc = pytest.mark.skipif(
    not Path('/proc/self/statm').exists(),
    reason='needs /proc, which tells how much memory a process has',
)


@needs_proc
@pytest.mark.parametrize('method', ['removal', 'auto'])
@pytest.mark.parametrize('model', [encoder, decoder_classifier])
def test_no_memory_stays_behind(model, method):
    "A graph that stays would be three MiB per call here."
    arguments = (*model('sdpa', 256), LONG)
    call = partial(explained(method), *arguments)
    assert mib_left(call, n=8, warm=3) < MAX_LEFT
