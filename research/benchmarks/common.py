"What the benchmarks share: the machine, texts of a length, memory, files of rows."

import ctypes
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

from lrp_loo import load_texts
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.core.tensors import pad_batch

LAB = Path(__file__).parents[1] / 'results'
PRODUCT = Path(__file__).parents[2] / 'results'
BATCH = 32  # texts of a gradient pass


def processor():
    "Return the name of the processor and, on Linux, its generation."
    cpuinfo = Path('/proc/cpuinfo')
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = cpuinfo.read_text(encoding='utf-8').split('\n\n')[0].splitlines()
    pairs = (line.split(':', 1) for line in lines if ':' in line)
    fields = {name.strip(): value.strip() for name, value in pairs}
    # processors of several generations are sold under one name
    parts = [fields.get(k, '?') for k in ('model name', 'cpu family', 'model')]
    return '{} (family {}, model {})'.format(*parts)


def machine():
    "Return what seconds depend on, for a file of rows."
    threads = torch.get_num_threads()
    about = dict(processor=processor(), cpus=os.cpu_count(), threads=threads)
    return about | dict(versions=versions())


def replace_row(path, row, keys, about):
    """Write a row in place of the stored one that has the same values of the keys, one a
    line, below what rows have in common.
    """
    rows = json.loads(path.read_text())['rows'] if path.exists() else []
    own = [row[k] for k in keys]
    rows = [r for r in rows if [r.get(k) for k in keys] != own] + [row]
    head = ''.join(f'"{k}": {json.dumps(v)},\n' for k, v in about.items())
    lines = ',\n'.join(json.dumps(r) for r in rows)
    write_text_atomic(path, f'{{{head}"rows": [\n{lines}\n]}}\n')


def texts_of_length(tokenizer, shortest, longest, n):
    "Return n texts of so many tokens: sentences, or beginnings of reviews."
    sentences = load_texts('sst2', 'embedded', seed=1).texts
    words = [text.split() for text in load_texts('imdb', 'embedded', seed=1).texts]
    n_words = (shortest + longest) * 3 // 8
    texts = [*sentences, *(' '.join(w[:n_words]) for w in words if len(w) >= n_words)]
    sizes = [len(tokenizer(text)['input_ids']) for text in texts]
    fitting = [t for t, size in zip(texts, sizes) if shortest <= size <= longest]
    return fitting[:n]


def last_row(model):
    "Return the argument by which a language model computes one row of logits."
    is_causal_lm = 'ForCausalLM' in type(model).__name__
    return dict(logits_to_keep=1) if is_causal_lm else {}


def gradient_times_input(model, tokenizer, texts, is_sorted=True):
    "Compute gradient × input by hand; sorted texts have little padding in a batch."
    embeddings = model.get_input_embeddings()
    table = embeddings.weight
    encoded = tokenizer(texts)
    rows = [dict(zip(encoded, entries)) for entries in zip(*encoded.values())]
    if is_sorted:
        rows.sort(key=lambda row: len(row['input_ids']))
    encs = [{k: torch.tensor([v]) for k, v in row.items()} for row in rows]
    for start in range(0, len(encs), BATCH):
        batch = pad_batch(tokenizer, encs[start : start + BATCH])
        batch = {k: v.to(table.device) for k, v in batch.items()}
        x = table[batch['input_ids']].detach().requires_grad_()
        hook = embeddings.register_forward_hook(lambda *args, x=x: x)
        logits = model(**batch, **last_row(model)).logits
        (g,) = torch.autograd.grad(logits.flatten(1).amax(1).sum(), x)
        hook.remove()
        (x * g).sum(-1)


def peak():
    "Return the process's largest memory since the last `forget_peak`, in MiB."
    lines = Path('/proc/self/status').read_text().splitlines()
    high_water = next(line for line in lines if line.startswith('VmHWM'))
    return int(high_water.split()[1]) / 1024


def forget_peak():
    """Give free memory back and lower Linux's high-water mark to what is in use: what
    loading the model took would hide a short text.
    """
    ctypes.CDLL('libc.so.6').malloc_trim(0)
    Path('/proc/self/clear_refs').write_text('5')


def measure(run, rounds=1):
    "Return the median seconds of a call, and its MiB beyond what was held before."
    forget_peak()
    before, seconds = peak(), []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return dict(
        seconds=round(statistics.median(seconds), 5), mib=round(peak() - before, 1)
    )
