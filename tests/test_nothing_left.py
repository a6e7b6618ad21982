"""Nothing stays behind: no call leaves an autograd node, a tensor with a history, or memory, also
where it raises in the middle.

    python tests/test_nothing_left.py            # every call, what it leaves
    python tests/test_nothing_left.py --write    # and results/memory_left.json; some minutes
"""

import contextlib
import ctypes
import gc
import json
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

import lrp_loo
from conftest import random_bert
from lrp_loo import explain, lrp_rules
from lrp_loo.conservation import conservation
from lrp_loo.core import versions, write_text_atomic
from lrp_loo.layers import bypass_gradients
from lrp_loo.lrp import attn_lrp
from lrp_loo.methods import METHODS, explain_methods
from lrp_loo.models import demo_base, demo_folder, encode, watch_embeddings

RESULTS = Path(__file__).parents[1] / 'results'
RECORD = RESULTS / 'memory_left.json'
MOST = 1.0  # MiB a call

WORDS = (
    'the harbour was quiet and a tired crew mended old nets while gulls cried'
    ' over the slow grey water'
).split()
LONG = ' '.join(WORDS * 11)  # 200 tokens and some
SHORT = ' '.join(WORDS[:12])
SIZES = dict(hidden_size=256, num_attention_heads=4, intermediate_size=256)

# ------------------------------------------------------------ what is counted


@dataclass(eq=False)
class _Saved:
    "A tensor that a graph keeps for its way back."

    tensor: torch.Tensor


def _of_a_graph(x):
    "A node, what a node keeps, or a tensor with a history?"
    if issubclass(type(x), torch.Tensor):
        return x.grad_fn is not None
    return issubclass(type(x), (torch.autograd.graph.Node, _Saved))


def nodes():
    """What is alive of autograd's graphs: nodes that Python has met, what any
    node keeps, tensors with a history.
    """
    gc.collect()
    return sum(map(_of_a_graph, gc.get_objects()))


def resident():
    "MiB of this process; what is free goes back to the system first."
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    pages = Path('/proc/self/statm').read_text(encoding='ascii').split()[1]
    return int(pages) * 4096 / 2**20


def nodes_left(call):
    "Before a call, and after it."
    quietly(call)  # whatever is made once
    before = nodes()
    with torch.autograd.graph.saved_tensors_hooks(_Saved, lambda x: x.tensor):
        quietly(call)
    return before, nodes()


def mib_left(call, n, warm=10):
    "A call leaves so many MiB, on the mean of n."
    for _ in range(warm):
        quietly(call)
    before = resident()
    for _ in range(n):
        quietly(call)
    return (resident() - before) / n


def quietly(call):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        call()


# ------------------------------------------------------------ the models


@cache
def classifier(attention):
    tokenizer = AutoTokenizer.from_pretrained(demo_base())
    model = random_bert(
        layers=4, std=0.05, max_position_embeddings=256, **SIZES
    )
    model.set_attn_implementation(attention)
    return model, tokenizer


@cache
def decoder(attention, kind=LlamaForCausalLM):
    tokenizer = AutoTokenizer.from_pretrained(
        demo_folder('reviews'), model_max_length=512
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=4,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=attention,
        **SIZES,
    )
    torch.manual_seed(0)
    return kind(config).eval(), tokenizer


def decoder_classifier(attention):
    return decoder(attention, LlamaForSequenceClassification)


# ------------------------------------------------------------ the calls


@dataclass(frozen=True)
class Case:
    "An entry of the package, called with a method."

    entry: str
    method: str
    models: tuple  # functions of the attention
    call: object  # of the model and its tokenizer
    tokens: str = LONG

    def on(self, model, attention):
        "The call without arguments."
        found = model(attention)
        return lambda: self.call(*found)


# IG with fewer steps: a graph of every step would show as well
OPTIONS = {'ig': dict(n_steps=2)}
OF_CLASSES = (classifier, decoder_classifier)


def explained(text, method, **options):
    options = OPTIONS.get(method, {}) | options
    return lambda m, t: explain(m, t, text, method, **options)


def of_method(name, method=None, **options):
    "`explain` of one text, long where that takes no pass a token."
    method = method or name
    text = SHORT if method == 'loo' else LONG
    return Case(
        'explain', name, OF_CLASSES, explained(text, method, **options), text
    )


def _methods():
    yield from (of_method(name) for name in METHODS)
    yield of_method('weighed_removal', lrp_loo.weighed_removal)
    for name, options in {
        'removal, n_groups=2': dict(n_groups=2),
        'removal, n_contexts=1': dict(n_contexts=1),
        'removal, checkpoint': dict(checkpoint=True),
        'removal, rules': dict(composite=attn_lrp()),
        'removal, exact_special': dict(exact_special=True),
        'attn_lrp, checkpoint': dict(checkpoint=True),
        'attn_lrp, a head': dict(bypass_softmax=[(1, 0), 2]),
        'attn_lrp, eps': dict(eps=1e-6),
    }.items():
        yield of_method(name, name.split(',')[0], **options)


def _in_a_batch(model, tokenizer):
    "Batches of like length, in threads where the method allows it."
    explain(model, tokenizer, [LONG, SHORT, LONG], 'removal', batch_size=2)


def _page(model, tokenizer):
    methods = [m for m in METHODS if METHODS[m].on_page]
    lrp_loo.explain_page(model, tokenizer, SHORT, methods)


def _dataset(model, tokenizer):
    with tempfile.TemporaryDirectory() as out:
        lrp_loo.explain_dataset(
            [SHORT, SHORT + ' again'],
            out,
            ['attn_lrp', 'removal', 'removal+loo', 'rollout'],
            (model, tokenizer, 'small'),
            progress=False,
        )


def _calibrated(model, tokenizer):
    text = [SHORT, SHORT + ' again']
    c = lrp_loo.calibrate(model, tokenizer, text, progress=False)
    lrp_loo.top_tokens(model, tokenizer, SHORT, 2, c, 0.5, most=1)


def _labels(model, tokenizer):
    for method in ('attn_lrp', 'removal'):
        lrp_loo.explain_labels(model, tokenizer, LONG, 'all', method)


def _pairs(method):
    return lambda m, t: lrp_loo.explain_pairs(m, t, SHORT, method)


def _fitted(model, tokenizer):
    texts = [' '.join(WORDS[i:]) for i in range(6)]
    lrp_loo.fit_layers(model, tokenizer, texts, progress=False)


def _layer_sets(model, tokenizer):
    sets = {str(l): ('attn_lrp', dict(bypass_softmax=[l])) for l in range(4)}
    enc = encode(model, tokenizer, LONG)
    explain_methods(model, tokenizer, [enc], sets)
    bypass_gradients(model, enc, [(), (0, 1), [(2, 1)]])


def _rules(model, tokenizer):
    "The context by hand; what it recorded goes with it."
    enc = encode(model, tokenizer, LONG)
    with watch_embeddings(model) as seen:
        with lrp_rules(model, attn_lrp(), record=True) as rules:
            value = model(**enc).logits[0, 1]
    torch.autograd.grad(value, seen[0])
    rules.report()


def _conserved(model, tokenizer):
    conservation(model, encode(model, tokenizer, LONG), attn_lrp())


def _class(name, **options):
    "One of Captum's kind, on ids and on embeddings."

    def call(model, tokenizer):
        ids = encode(model, tokenizer, SHORT)['input_ids']
        explainer = getattr(lrp_loo, name)(model, **options)
        explainer.attribute(ids, target=1)
        e = model.get_input_embeddings()(ids)  # with a history of its own
        explainer.attribute(e, target=1)

    return call


def _context(method):
    first, second = SHORT + '.', LONG + '.'

    def call(model, tokenizer):
        lrp_loo.attribute_context(
            model, tokenizer, f'{first} {second}', 'nets', 'What?', method
        )

    return call


def _generation(method):
    def call(model, tokenizer):
        lrp_loo.explain_generation(
            model, tokenizer, SHORT, method=method, max_new_tokens=3
        )

    return call


def _generations_audited(model, tokenizer):
    lrp_loo.audit_generation(
        model, tokenizer, [SHORT], progress=False, max_new_tokens=2
    )


def _audited(model, tokenizer):
    methods = ('loo', 'attn_lrp', 'removal', 'removal+loo', 'rollout')
    lrp_loo.audit(model, tokenizer, [SHORT], methods, progress=False)


class _NoWayBack(torch.autograd.Function):
    "A number whose gradient is refused."

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError('no way back')


def _refuses_on_the_way_back(out):
    return _NoWayBack.apply(out.logits[:, 1])


def _refuses(out):
    raise RuntimeError('no number')


def _raising(method, target):
    "A call that ends in the middle of a pass, or of the way back."

    def call(model, tokenizer):
        with pytest.raises(RuntimeError, match='no number|no way back'):
            explain(model, tokenizer, LONG, method, target)

    return call


def _interrupted(method):
    "Ctrl-C in the last layer."

    def stop(module, args):
        raise KeyboardInterrupt

    def call(model, tokenizer):
        last = lrp_loo.models.transformer_layers(model)[-1]
        handle = last.register_forward_pre_hook(stop)
        try:
            with pytest.raises(KeyboardInterrupt):
                explain(model, tokenizer, LONG, method)
        finally:
            handle.remove()

    return call


WITH_A_PASS_BACK = (
    'attn_lrp',
    'cp_lrp',
    'ig',
    'removal',
    'removal+loo',
    'grad_x_input',
)


def _that_raise():
    for m in WITH_A_PASS_BACK:
        where = {'target': _refuses, 'way back': _refuses_on_the_way_back}
        for name, target in where.items():
            call = _raising(m, target)
            yield Case(f'explain, {name} raises', m, OF_CLASSES, call)
        yield Case('explain, Ctrl-C', m, OF_CLASSES, _interrupted(m))


def _entries():
    both, lm = OF_CLASSES, (decoder,)
    yield Case('explain, a batch', 'removal', both, _in_a_batch)
    yield Case('explain_labels', 'attn_lrp, removal', both, _labels)
    yield Case('audit', 'several', both, _audited, SHORT)
    yield Case('explain_pairs', 'removal', both, _pairs('removal'), SHORT)
    yield Case('explain_pairs', 'exact', both, _pairs('exact'), SHORT)
    yield Case('calibrate, top_tokens', 'removal', both, _calibrated, SHORT)
    yield Case('fit_layers', 'weighed_removal', both, _fitted, SHORT)
    yield Case('explain_page', 'several', both, _page, SHORT)
    yield Case('explain_dataset', 'several', both, _dataset, SHORT)
    yield Case('layer sets', 'attn_lrp', both, _layer_sets)
    yield Case('lrp_rules', 'attn_lrp', both, _rules)
    yield Case('conservation', 'attn_lrp', both, _conserved)
    for name, options in {
        'LRP': {},
        'GradientXInput': {},
        'IntegratedGradients': {},
        'LeaveOneOut': {},
        'AttentionRollout': {},
        'RemovalEstimate': dict(n_exact=2),
    }.items():
        yield Case(name, name, both, _class(name, **options), SHORT)
    for m in ('loo', 'removal', 'removal+rows', 'attn_lrp'):
        yield Case('attribute_context', m, lm, _context(m))
    for m in ('loo', 'removal', 'removal+rows', 'attn_lrp', 'ig'):
        yield Case('explain_generation', m, lm, _generation(m), SHORT)
    yield Case('audit_generation', 'several', lm, _generations_audited, SHORT)


CASES = [*_methods(), *_entries(), *_that_raise()]
EACH = [
    (case, model, attention)
    for case in CASES
    for model in case.models
    for attention in ('sdpa', 'eager')
]


def _name(x):
    if isinstance(x, Case):
        return f'{x.entry}-{x.method}'
    return getattr(x, '__name__', x)


# ------------------------------------------------------------ the tests


@pytest.mark.parametrize(('case', 'model', 'attention'), EACH, ids=_name)
def test_no_node_stays_behind(case, model, attention):
    before, after = nodes_left(case.on(model, attention))
    assert after == before
