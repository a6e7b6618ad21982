"No call leaves an autograd node, or a tensor with a history, also if it raises."

import contextlib
import ctypes
import gc
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import random_bert
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import LlamaForSequenceClassification

import lrp_loo
from lrp_loo import audit_generation, explain, explain_generation, lrp_rules
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.lrp.conservation import conservation
from lrp_loo.methods import explain_methods
from lrp_loo.methods.table import METHODS
from lrp_loo.models.call import watch_embeddings
from lrp_loo.models.loading import demo_base, demo_folder
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import transformer_layers


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


ATTENTIONS = ('sdpa', 'eager')
EAGER = ('attn_lrp', 'removal', 'rollout')  # methods that are tried with both


def _sizes(width):
    return dict(hidden_size=width, num_attention_heads=4, intermediate_size=width)


@cache
def encoder(attention, width):
    tokenizer = AutoTokenizer.from_pretrained(demo_base())
    sizes = dict(max_position_embeddings=512, **_sizes(width))
    model = random_bert(layers=2, std=0.05, **sizes)
    model.set_attn_implementation(attention)
    return model, tokenizer


@cache
def decoder(attention, width, kind=LlamaForCausalLM):
    folder = demo_folder('reviews')
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=512)
    sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=2, **_sizes(width))
    how = dict(pad_token_id=tokenizer.pad_token_id, attn_implementation=attention)
    torch.manual_seed(0)
    return kind(LlamaConfig(**sizes, **how)).eval(), tokenizer


def decoder_classifier(attention, width):
    return decoder(attention, width, LlamaForSequenceClassification)


@dataclass(frozen=True)
class Case:
    "An entry of the package, called with a method."

    entry: str
    method: str
    call: Callable  # of a model, its tokenizer and a text
    models: tuple = (encoder, decoder_classifier)

    def on(self, model, attention, width, text):
        "The call without arguments."
        found = model(attention, width)
        return lambda: self.call(*found, text)


def of_method(name, method=None, **options):
    "`explain` of one text."
    if name == 'ig':  # one step leaves what sixteen leave
        options['n_steps'] = 2
    if name == 'auto':  # an estimate of a short text as well
        options['passes'] = 7

    def call(model, tokenizer, text):
        explain(model, tokenizer, text, method or name, **options)

    return Case('explain', name, call)


CHECKPOINT = dict(checkpoint=True)
METHODS_AND_OPTIONS = {
    'removal, checkpoint': CHECKPOINT,
    'removal, rules': dict(composite=attn_lrp()),
    'removal, exact_special': dict(exact_special=True),
    'attn_lrp, checkpoint': CHECKPOINT,
    'attn_lrp, a head': dict(bypass_softmax=[(1, 0), 0]),
    'attn_lrp, eps': dict(eps=1e-6),
}


def labels(model, tokenizer, text, methods):
    for method in methods.split(', '):
        lrp_loo.explain_labels(model, tokenizer, text, 'all', method)


def refined(m, t, x, _):
    "Once, and until it is exact."
    (a,) = explain(m, t, x, passes=4)
    lrp_loo.refine(lrp_loo.refine(a, 2), 20)


def generation(m, t, x, how):
    explain_generation(m, t, x, method=how, max_new_tokens=3)


def layer_sets(model, tokenizer, text, method):
    sets = {str(l): (method, dict(bypass_softmax=[l])) for l in range(2)}
    enc = encode(model, tokenizer, text)
    explain_methods(model, tokenizer, [enc], sets)


def rules_by_hand(model, tokenizer, text, _):
    "The context; what it recorded goes with it."
    enc = encode(model, tokenizer, text)
    with watch_embeddings(model) as seen:
        with lrp_rules(model, attn_lrp(), record=True) as rules:
            value = model(**enc).logits[0, 1]
    torch.autograd.grad(value, seen[0])
    rules.report()


SEVERAL = ('attn_lrp', 'removal', 'removal+loo', 'rollout')
ON_PAGE = [m for m in METHODS if METHODS[m].on_page]
QUIET, TWO = dict(progress=False), dict(max_new_tokens=2)


def calibrated(m, t, x, how):
    c = lrp_loo.calibrate(m, t, [x, x + ' again'], how, **QUIET)
    lrp_loo.top_tokens(m, t, x, 2, c, 0.5, most=1)


def dataset(m, t, x, _):
    texts = [x, x + ' again']
    with tempfile.TemporaryDirectory() as out:
        lrp_loo.sweep(m, t, texts, out, SEVERAL, **QUIET)


# of a model, its tokenizer, a text and how
CALLS = SimpleNamespace(
    # two batches, in threads where the method allows it
    batch=lambda m, t, x, how: explain(m, t, [x, SHORT, x], how, batch_size=2),
    audit=lambda m, t, x, _: lrp_loo.audit(m, t, [x], ('loo', *SEVERAL), **QUIET),
    budgets=lambda m, t, x, _: lrp_loo.frontier(m, t, x, budgets=(3,), **QUIET),
    page=lambda m, t, x, _: lrp_loo.explain_page(m, t, x, ON_PAGE),
    conserved=lambda m, t, x, _: conservation(m, encode(m, t, x), attn_lrp()),
    context=lambda m, t, x, how: lrp_loo.attribute_context(
        m, t, f'{SHORT}. {x}.', 'nets', 'What?', how
    ),
    generations=lambda m, t, x, _: audit_generation(m, t, [x], **QUIET, **TWO),
)

# entry, methods, call
ENTRIES = (
    ('explain, a batch', ['removal'], CALLS.batch),
    ('refine', ['auto'], refined),
    ('frontier', ['auto'], CALLS.budgets),
    ('explain_labels', ['attn_lrp, removal'], labels),
    ('audit', ['several'], CALLS.audit),
    ('calibrate, top_tokens', ['removal'], calibrated),
    ('explain_page', ['several'], CALLS.page),
    ('sweep', ['several'], dataset),
    ('layer sets', ['attn_lrp'], layer_sets),
    ('lrp_rules', ['attn_lrp'], rules_by_hand),
    ('conservation', ['attn_lrp'], CALLS.conserved),
    ('explain_pairs', ['removal', 'exact'], lrp_loo.explain_pairs),
)
CONTEXTS = ('auto', 'loo', 'removal', 'removal+rows', 'attn_lrp')
OF_DECODERS = (
    ('attribute_context', CONTEXTS, CALLS.context),
    ('explain_generation', (*CONTEXTS, 'ig'), generation),
    ('audit_generation', ['several'], CALLS.generations),
)
CLASSES = dict.fromkeys(
    ['LRP', 'GradientXInput', 'IntegratedGradients', 'LeaveOneOut', 'AttentionRollout'],
    {},
) | {'RemovalEstimate': dict(n_exact=2)}


def of_class(name, **options):
    "One of Captum's kind, on ids and on embeddings that have a history."

    def call(model, tokenizer, text):
        ids = encode(model, tokenizer, text)['input_ids']
        explainer = getattr(lrp_loo, name)(model, **options)
        for inputs in (ids, model.get_input_embeddings()(ids)):
            explainer.attribute(inputs, target=1)

    return Case(name, 'its own', call)


def of_entries(rows, **more):
    for entry, methods, call in rows:
        for m in methods:
            yield Case(entry, m, lambda *on, c=call, m=m: c(*on, m), **more)


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


def raising(target, model, tokenizer, text, method):
    "It ends in the middle: before the way back, or on it."
    with pytest.raises(RuntimeError, match='no number|no way back'):
        explain(model, tokenizer, text, method, target)


def interrupted(model, tokenizer, text, method):
    "Ctrl-C in the last layer."

    def stop(module, args):
        raise KeyboardInterrupt

    handle = transformer_layers(model)[-1].register_forward_pre_hook(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            explain(model, tokenizer, text, method)
    finally:
        handle.remove()


ENDS = {
    'no number': partial(raising, no_number),
    'no way back': partial(raising, no_way_back),
    'Ctrl-C': interrupted,
}
WITH_A_WAY_BACK = ('attn_lrp', 'cp_lrp', 'ig', 'removal', 'removal+loo', 'grad_x_input')
CASES = [
    *map(of_method, METHODS),
    *(of_method(n, n.split(',')[0], **o) for n, o in METHODS_AND_OPTIONS.items()),
    *of_entries(ENTRIES),
    *(of_class(name, **options) for name, options in CLASSES.items()),
    *of_entries(OF_DECODERS, models=(decoder,)),
    *of_entries(
        (f'explain, {end}', [method], call)
        for method in WITH_A_WAY_BACK
        for end, call in ENDS.items()
    ),
]
EACH = [
    (case, model, attention)
    for case in CASES
    for model in case.models[: 1 + (case.entry == 'explain')]
    for attention in ATTENTIONS[: 1 + (case.method in EAGER)]
]


def _named(x):
    if isinstance(x, Case):
        return f'{x.entry}-{x.method}'
    return getattr(x, '__name__', x)


@pytest.mark.parametrize(('case', 'model', 'attention'), EACH, ids=_named)
def test_no_node_stays_behind(without_the_rest, case, model, attention):
    before, after = nodes_left(case.on(model, attention, 32, SHORT))
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
@pytest.mark.parametrize('method', ['removal', 'removal+loo', 'removal+rows'])
@pytest.mark.parametrize('model', [encoder, decoder_classifier])
def test_no_memory_stays_behind(model, method):
    "A graph that stays would be three MiB per call here."
    call = of_method(method).on(model, 'sdpa', 256, LONG)
    assert mib_left(call, n=8, warm=3) < MAX_LEFT
