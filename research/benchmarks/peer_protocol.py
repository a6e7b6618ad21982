"""What the runners of the peers share: a question in, its answer out, as JSON.

A runner stands in an environment of its own, where this package is not
installed; this file needs torch and transformers alone.

    python benchmarks/peer_NAME.py [QUESTIONS]   # a file, or standard input

Each line of the input is one question:

    {"model": FOLDER, "task": "generation", "method": NAME, "options": {},
     "items": [{"prompt": TEXT, "continuation": TEXT,
                "prompt_ids": [...], "continuation_ids": [...]}]}
    {..., "task": "context",
     "items": [{"before": TEXT, "context": TEXT, "after": TEXT,
                "sentences": [[start, end], ...], "answer": TEXT,
                "prompt_ids": [...], "continuation_ids": [...]}]}

and each line of the output is its answer: the peer's versions, the number it
explains ('logit', 'log-prob', ...), and for each item `scores` (a row per
generated token over all tokens before it, null where the peer says nothing; or
a number per sentence of the context), `seconds` of the attribution alone,
`forward` and `backward` calls of the model, `tokens` that went through it, and
`same_tokens`: did the peer read the ids that were given? What cannot be run
gives {"error": why}. `peak_mib` is of the whole process.
"""

import json
import math
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

TASKS = {
    'generation': ('prompt', 'continuation'),
    'context': ('before', 'context', 'after', 'sentences', 'answer'),
}
IDS = ('prompt_ids', 'continuation_ids')


def read_question(
    line,  # one JSON object
):
    "A question, or a ValueError that says what it lacks."
    question = json.loads(line)
    task = question.get('task')
    if task not in TASKS:
        raise ValueError(f"task={task!r} is not known; take {tuple(TASKS)}")
    missing = {'model', 'method', 'items'} - set(question)
    if missing:
        raise ValueError(f"the question lacks {sorted(missing)}")
    for i, item in enumerate(question['items']):
        missing = {*TASKS[task], *IDS} - set(item)
        if missing:
            raise ValueError(f"item {i} lacks {sorted(missing)}")
    return {'options': {}} | question


def prompt_of(
    item,  # of either task
):
    "The text in front of the continuation or answer."
    if 'prompt' in item:
        return item['prompt']
    return item['before'] + item['context'] + item['after']


def continuation_of(item):
    "What the model said."
    return item['continuation'] if 'prompt' in item else item['answer']


class Passes:
    "Counts what goes through a model while the context is open."

    def __init__(self, model):
        self.model = model
        self.forward = self.backward = self.tokens = 0

    def __enter__(self):
        self.forward = self.backward = self.tokens = 0
        self.own = self.model.forward
        self.autograd = (torch.autograd.grad, torch.autograd.backward)
        self.model.forward = self._counted
        torch.autograd.grad, torch.autograd.backward = map(
            self._counted_backward, self.autograd
        )
        return self

    def __exit__(self, *error):
        del self.model.forward
        torch.autograd.grad, torch.autograd.backward = self.autograd

    def _counted(self, *args, **kwargs):
        given = [*args, kwargs.get('input_ids'), kwargs.get('inputs_embeds')]
        x = next(t for t in given if torch.is_tensor(t))
        self.forward += 1
        self.tokens += x.shape[0] * x.shape[1]
        return self.own(*args, **kwargs)

    def _counted_backward(self, function):
        def counted(*args, **kwargs):
            self.backward += 1
            return function(*args, **kwargs)

        return counted


class Uncounted:
    "For what takes its short ways only with a model's own forward."

    forward = backward = tokens = None

    def __init__(self, model):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def load(folder, **options):
    "Model and tokenizer of a folder, in float32 on one thread."
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def log_probs(
    model,
    item,  # its token ids
):
    "Of each token of the continuation: is it the same model?"
    n = len(item['continuation_ids'])
    ids = torch.tensor([item['prompt_ids'] + item['continuation_ids']])
    with torch.no_grad():
        rows = model(input_ids=ids).logits[0, -n - 1 : -1].log_softmax(-1)
    return rows.gather(-1, ids[0, -n:, None])[:, 0].tolist()


def sums_over_sentences(
    tokenizer,
    item,  # of the task 'context'
    scores,  # (answer tokens, tokens of the prompt or more)
):
    """Token scores summed over each sentence and over the answer. A token
    belongs to the sentence in which its first visible character stands.
    """
    text = prompt_of(item)
    spans = tokenizer(text, return_offsets_mapping=True)['offset_mapping']
    total = torch.as_tensor(scores, dtype=torch.float64)[:, : len(spans)].sum(0)
    sums = [0.0] * len(item['sentences'])
    for (start, end), score in zip(spans, total.tolist()):
        visible = text[start:end].lstrip()
        at = end - len(visible) - len(item['before'])
        for k, (first, last) in enumerate(item['sentences']):
            if first <= at < last:
                sums[k] += score
    return sums


def before_each(
    scores,  # (generated, tokens): rows of one length
    item,
):
    "The ragged rows of an answer: the tokens before each generated one."
    n = len(item['prompt_ids'])
    return [row[: n + i] for i, row in enumerate(scores)]


def peak_mib():
    """Of this process since it was loaded. (What getrusage gives is at least
    that of the process which started this one.)
    """
    status = Path('/proc/self/status').read_text()
    (line,) = [x for x in status.splitlines() if x.startswith('VmHWM')]
    return int(line.split()[1]) / 1024


def _plain(scores):
    "Lists of numbers; what is not a number is null."
    if torch.is_tensor(scores):
        scores = scores.tolist()
    if isinstance(scores, (list, tuple)):
        return [_plain(s) for s in scores]
    if scores is None or not math.isfinite(scores):
        return None
    return float(scores)


def _one(method, model, tokenizer, item, options, counting):
    "An item's part of the answer."
    with counting(model) as passes:
        start = time.perf_counter()
        scores, same = method(model, tokenizer, item, **options)
        seconds = time.perf_counter() - start
    return dict(
        scores=_plain(scores),
        same_tokens=bool(same),
        seconds=seconds,
        forward=passes.forward,
        backward=passes.backward,
        tokens=passes.tokens,
        log_probs=log_probs(model, item),
    )


class Runner:
    "One peer, which keeps its model from question to question."

    def __init__(
        self,
        packages,  # names, for their versions
        # (task, method's name) → (function, what is explained); a function
        # gives scores and whether the ids were those that were given
        methods,
        counting=Passes,  # or `Uncounted`
        **load_options,  # of the model
    ):
        self.packages = packages
        self.methods = methods
        self.counting = counting
        self.load_options = load_options
        self.loaded = None

    def answer(self, line):
        "To one question; an error is an answer too."
        try:
            return self._answer(read_question(line))
        except Exception as error:
            self.loaded = None  # it may have left hooks behind
            return dict(error=f'{type(error).__name__}: {error}')

    def _answer(self, question):
        method, explains = self._method(question)
        model, tokenizer = self._model(question['model'])
        options = question['options']
        if 'warm_up' in question:
            method(model, tokenizer, question['warm_up'], **options)
        items = [
            _one(method, model, tokenizer, item, options, self.counting)
            for item in question['items']
        ]
        names = ('torch', 'transformers', *self.packages)
        return dict(
            versions={name: version(name) for name in names},
            explains=explains,
            items=items,
            peak_mib=peak_mib(),
        )

    def _method(self, question):
        key = question['task'], question['method']
        if key not in self.methods:
            known = [m for t, m in self.methods if t == key[0]]
            raise ValueError(
                f"no method {key[1]!r} for {key[0]!r}; take one of {known}"
            )
        return self.methods[key]

    def _model(self, folder):
        if self.loaded is None or self.loaded[0] != folder:
            self.loaded = folder, load(folder, **self.load_options)
        return self.loaded[1]

    def run(self, lines, out):
        "Every question of a file or stream."
        for line in filter(str.strip, lines):
            print(json.dumps(self.answer(line)), file=out, flush=True)


def main(*args, **options):
    "Of a runner: what a peer prints of itself goes to standard error."
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    lines = open(sys.argv[1]) if sys.argv[1:] else sys.stdin
    Runner(*args, **options).run(lines, answers)
