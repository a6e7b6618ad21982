"""Ctrl-C at every line of a pass leaves the model, hooks, torch and answers as they were.

A trace function raises at the lines of the package that a method goes through while
something is changed, each once, and those with a `with` also where it is left.
"""

import ast
import contextlib
import linecache
import os
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import random_bert, shallow_demo
from torch.nn.modules import module as every_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import lrp_loo
from lrp_loo import explain, explain_generation, explain_pairs, leave_one_out
from lrp_loo.interop import LRP, TensorModel
from lrp_loo.models.loading import load_demo
from lrp_loo.models.encoding import encode

PACKAGE = str(Path(lrp_loo.__file__).parent) + os.sep

TEXT = "The jokes are old, and the pace is slow."
PROMPT = "The jokes are"
AHEAD = ('_forward_hooks', '_forward_pre_hooks')
HOOKS = (*AHEAD, *(f'{name}_with_kwargs' for name in AHEAD))
HOOKS += ('_forward_hooks_always_called', '_backward_hooks', '_backward_pre_hooks')


@cache
def classifier():
    _, tokenizer = load_demo('sst2')
    return random_bert(layers=2), tokenizer


@cache
def decoder():
    return shallow_demo('reviews')


def explained(method, **options):
    "A call of `explain`."
    return lambda *demo: explain(*demo, [TEXT], method, **options)[0].scores


def generated(*demo):
    found = explain_generation(*demo, PROMPT, method='loo', max_new_tokens=3)
    return torch.cat([a.scores for a in found])


def as_in_captum(model, tokenizer):
    enc = encode(model, tokenizer, TEXT)
    how = dict(target=0, additional_forward_args=enc['attention_mask'])
    return LRP(model).attribute(enc['input_ids'], **how)


CASES = {  # name → model, and the scores that are computed with it
    'attn_lrp': (classifier, explained('attn_lrp')),
    'grad_x_input': (classifier, explained('grad_x_input')),
    'ig': (classifier, explained('ig', n_steps=2)),
    'rollout': (classifier, explained('rollout')),
    'removal': (classifier, explained('removal')),
    'rows': (classifier, explained('auto', passes=4)),
    'loo, fast': (classifier, lambda m, t: leave_one_out(m, encode(m, t, TEXT))[0]),
    'loo by zero': (classifier, explained('loo', removal='zero_embedding')),
    'attn_lrp of a decoder': (decoder, explained('attn_lrp')),
    'loo of a decoder': (decoder, explained('loo')),
    'rows of a decoder': (decoder, explained('auto', passes=4)),
    'loo of a generation': (decoder, generated),
    'pairs': (classifier, lambda *demo: explain_pairs(*demo, [PROMPT])[0].scores),
    'as in Captum': (classifier, as_in_captum),
}


def case(name):
    "Return a function that loads the model, and one that computes the scores."
    load, scores = CASES[name]

    def call():
        torch.manual_seed(0)
        return scores(*load())

    return load, call


@cache
def lines_with_a_context(path):
    "Their numbers: a context is left there, too."
    tree = ast.parse(Path(path).read_text(encoding='utf-8'))
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        for line in (node.lineno, item.context_expr.lineno)
    }


class Lines:
    """A trace function that counts the package's lines as they are reached, and
    interrupts at one of them.
    """

    def __init__(self, at=None, nth=1, model=None):
        self.at, self.nth, self.model = at, nth, model
        self.reached = Counter()
        self.before = model and watched(model)
        self.changed = set()  # lines at which something is otherwise

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def line(self, frame, event, arg):
        if event == 'line':
            here = frame.f_code.co_filename, frame.f_lineno
            self.reached[here] += 1
            first = self.model and self.reached[here] == 1
            if first and watched(self.model) != self.before:
                self.changed.add(here)
            if here == self.at and self.reached[here] == self.nth:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line

    def run(self, call):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                call()
        finally:
            sys.settrace(before)


def stops_of(lines):
    "Lines, and which time they are reached."
    for (path, number), times in lines.reached.items():
        with_context = number in lines_with_a_context(path)
        if with_context or (path, number) in lines.changed:
            yield (path, number), 1
        if with_context and times > 1:
            yield (path, number), times


@cache
def plan():
    "Case → where it is interrupted; a line belongs to the first that has it."
    seen, found = set(), {}
    for name in CASES:
        load, call = case(name)
        try:
            call()  # what is done once in a process is done
        except ValueError:
            continue  # the case itself says so
        lines = Lines(model=load()[0])
        lines.run(call)
        stops = [s for s in stops_of(lines) if s not in seen]
        found[name] = stops
        seen.update(stops)
    return found


def hooks_on(model):
    own = [len(getattr(m, d)) for m in model.modules() for d in HOOKS]
    everybodys = [
        len(hooks)
        for name, hooks in vars(every_module).items()
        if name.startswith('_global_') and hasattr(hooks, '__len__')
    ]
    return sum(own), everybodys


def watched(model):
    "What tells soon that something is changed."
    return hooks_on(model), settings_of_torch()


def settings_of_torch():
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled('cpu'),
        str(torch._C._get_torch_function_state()),
        list(_get_current_function_mode_stack()),
        list(_get_current_dispatch_mode_stack()),
        torch.get_num_threads(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.get_default_dtype(),
    ]


def state_of(model):
    return dict(
        hooks=hooks_on(model),
        torch=settings_of_torch(),
        parts=[
            (m.training, sorted(vars(m)), type(m), vars(m).get('forward'))
            for m in model.modules()
        ],
        parameters=[(p.requires_grad, p.grad) for p in model.parameters()],
        config=model.config.to_dict(),
        attention=model.config._attn_implementation,
    )


def answer_of(model, tokenizer):
    "The user's own call."
    out = model(**tokenizer(TEXT, return_tensors='pt'))
    return out.logits.detach(), out.logits.requires_grad


@pytest.mark.parametrize('name', CASES)
def test_an_interruption_leaves_everything_as_it_was(name):
    load, call = case(name)
    model, tokenizer = load()
    stops = plan().get(name, [])
    state, (logits, has_grad) = state_of(model), answer_of(model, tokenizer)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    scores = call()
    left = []
    for i, (at, nth) in enumerate(stops):
        with contextlib.suppress(KeyboardInterrupt):
            Lines(at, nth).run(call)
        now, own = state_of(model), answer_of(model, tokenizer)
        changed = [k for k in state if state[k] != now[k]]
        if not torch.equal(own[0], logits) or own[1] != has_grad:
            changed.append('answer')
        # what is left adds up: the next explanation is asked for now and then
        if i % 20 == 0 or changed or i == len(stops) - 1:
            if not torch.allclose(call(), scores, rtol=1e-4, atol=1e-6):
                changed.append('explanation')
        if changed:
            path, number = at
            code = linecache.getline(path, number).strip()
            left.append((Path(path).name, number, nth, code, changed))
            restore(model)
    assert left == []
    for k, v in model.state_dict().items():
        assert torch.equal(v, weights[k])


def restore(model):
    "So that one line's leftovers are not counted for the next."
    for m in model.modules():
        for d in HOOKS:
            getattr(m, d).clear()
    while _get_current_function_mode_stack():
        torch._C._pop_torch_function_stack()
    torch.set_grad_enabled(True)
    torch._C._set_torch_function_state(torch._C._TorchFunctionState.ENABLED)


@pytest.mark.parametrize('kind', [LRP, TensorModel])
def test_a_class_for_captum_leaves_each_part_in_its_mode(kind):
    model, tokenizer = random_bert(layers=2), classifier()[1]
    model.classifier.train()  # a new head is, and drops nothing
    modes = [m.training for m in model.modules()]
    made = kind(model)
    if kind is LRP:
        enc = encode(model, tokenizer, TEXT)
        made.attribute(model.get_input_embeddings()(enc['input_ids']), target=0)
    assert [m.training for m in model.modules()] == modes
