"""Peak memory of explaining one answer by a long context, against a plain
backward pass over the same text, each in a process of its own.

python research/benchmarks/memory_context.py [--out results/memory-context.json]
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from itertools import cycle
from pathlib import Path

import torch

from lrp_loo import attribute_context, load_demo
from lrp_loo.data import load_texts
from lrp_loo.models import forward, watch_embeddings
from lrp_loo.tasks.context import (
    TEMPLATE,
    answer_log_prob,
    continuation_ids,
    encoded_ids,
    prompt_ids,
)
from lrp_loo.trust.results import Results

MODEL = 'smollm2'
TOKENS = (500, 1000, 2000)
QUESTION = 'What do the critics say?'
ANSWER = ' They liked it.'
SAVING = dict(checkpoint=True)
WAYS = {  # name → method, options; None: the model alone
    'forward': None,
    'backward': None,
    'attn_lrp': ('attn_lrp', {}),
    'attn_lrp, checkpoint': ('attn_lrp', SAVING),
    'cp_lrp, checkpoint': ('cp_lrp', SAVING),
    'removal': ('removal', {}),
    'removal, checkpoint': ('removal', SAVING),
    'removal+rows, no rest': ('removal+rows', dict(rest=False)),
    'removal+rows': ('removal+rows', {}),
    'removal+rows, checkpoint': ('removal+rows', SAVING),
}


def context_of(tokenizer, n):
    "Our own sentences, again and again, for about n tokens."
    sentences = []
    length = 0
    for text in cycle(load_texts('sst2', 'embedded').texts):
        sentence = text.strip(' .').capitalize() + '.'
        length += len(tokenizer(' ' + sentence)['input_ids'])
        if length > n:
            return ' '.join(sentences)
        sentences.append(sentence)


def model_alone(model, tokenizer, context, gradient):
    "A forward pass; a backward pass from the answer to the embeddings."
    prompt = TEMPLATE.format(context=context, question=QUESTION)
    own = continuation_ids(tokenizer, prompt, ANSWER)
    enc = encoded_ids(model, tokenizer, prompt_ids(tokenizer, prompt) + own)
    answer = torch.tensor(own)
    with torch.set_grad_enabled(gradient), watch_embeddings(model) as seen:
        value = answer_log_prob(answer)(forward(model, enc))
    if gradient:
        torch.autograd.grad(value.sum(), seen[0])
    return dict(tokens=enc['input_ids'].shape[1])


def explained(model, tokenizer, context, method, options):
    "An explanation by sentences."
    warnings.simplefilter('ignore')
    a = attribute_context(
        model, tokenizer, context, ANSWER, QUESTION, method=method, **options
    )
    return dict(tokens=len(a.input_ids), units=len(a.scores))


def run_once(model, tokenizer, context, way):
    "What was explained."
    if WAYS[way] is None:
        return model_alone(model, tokenizer, context, way == 'backward')
    return explained(model, tokenizer, context, *WAYS[way])


def in_memory(field):
    "MiB of this process: what it takes (VmRSS), the most it took (VmHWM)."
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024


def measure(way, n):
    "MiB above what the loaded model takes, and seconds."
    torch.set_num_threads(1)
    model, tokenizer = load_demo(MODEL)
    model.requires_grad_(False)

    long = context_of(tokenizer, n)
    run_once(model, tokenizer, context_of(tokenizer, 40), way)
    # everything is imported and allocated once; the peak begins anew (Linux)
    Path('/proc/self/clear_refs').write_text('5')
    before = in_memory('VmRSS')
    start = time.perf_counter()
    found = run_once(model, tokenizer, long, way)
    seconds = time.perf_counter() - start
    return dict(mib=in_memory('VmHWM') - before, seconds=seconds, **found)


def in_a_process(way, n):
    "The measurement."
    out = subprocess.run(
        [sys.executable, __file__, '--one', way, str(n)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(out)


def row_of(way, n, found, plain):
    "A row of the results."
    row = dict(i=f'{way}, {n}', way=way, context=n)
    return row | found | dict(to_backward=found['mib'] / plain['mib'])


def line_of(row):
    "What is printed."
    name = f"{row['context']:7d} {row['way']:26}"
    ratio = row['to_backward']
    return f"{name} {row['mib']:8.0f} {ratio:10.2f} {row['seconds']:8.1f}"


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    results = Path(__file__).parent.parent / 'results'
    ap.add_argument('--out', default=str(results / 'memory-context.json'))
    ap.add_argument('--tokens', nargs='+', type=int, default=TOKENS)
    ap.add_argument('--one', nargs=2)
    a = ap.parse_args()
    if a.one:
        way, n = a.one
        return print(json.dumps(measure(way, int(n))))
    config = dict(
        experiment='memory-context',
        model=MODEL,
        tokens=list(TOKENS),
        question=QUESTION,
        answer=ANSWER,
        units='sentence',
        dtype='float32',
        threads=1,
        data=dict(name='sst2', source='embedded'),
    )
    r = Results(a.out, config, fresh=True)
    print('context way                             MiB  ×backward  seconds')
    for n in a.tokens:
        plain = in_a_process('backward', n)
        for way in WAYS:
            found = plain if way == 'backward' else in_a_process(way, n)
            row = row_of(way, n, found, plain)
            r.add(row)
            print(line_of(row), flush=True)


if __name__ == '__main__':
    main()
