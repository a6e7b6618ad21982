"The names that the calls of bad_input.toml use: models, folders, files and circumstances."

import contextlib
import io
import json
import os
import re
from pathlib import Path
from unittest import mock

os.environ.setdefault('TQDM_DISABLE', '1')

# some of these names are used only by the calls
import datasets
import huggingface_hub
import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import torch
from forked import answer_of_a_child
from transformers import BertConfig, BertForQuestionAnswering
from transformers import BertForSequenceClassification, T5Config
from transformers import T5ForConditionalGeneration

import lrp_loo
from lrp_loo import explain, load_demo, sweep
from lrp_loo.cli import main
from lrp_loo.core.files import versions, write_text_atomic  # noqa: F401
from lrp_loo.records.results import Results, read_results  # noqa: F401
from lrp_loo.evaluate.sweep import read_sweep  # noqa: F401
from lrp_loo.models.loading import demo_base  # noqa: F401
from lrp_loo.models.encoding import encode

EMOJI = '🎬 what a film 😀'
FAMILY = '👩‍👩‍👧‍👦 laughed'
HEBREW = 'סרט נהדר'

# ------------------------------------------------------------ the command line


class CommandFailed(Exception):
    "What the command line said before it left with a code."

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def without_progress_bars(text):
    return '\n'.join(line for line in text.splitlines() if '%|' not in line)


def cli(*argv):
    "Run the command in this process; return stdout, or raise its code and stderr."
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(a) for a in argv])
    if code:
        raise CommandFailed(code, without_progress_bars(err.getvalue()))
    return out.getvalue()


def interrupted(call, *argv):
    "A call, or a command line, that Ctrl-C meets where its first text is computed."

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    # what every model begins with
    with mock.patch.object(torch.nn.Embedding, 'forward', stop):
        return call() if callable(call) else cli(call, *argv)


def without_a_model(*argv):
    "A command line that must not load one."

    def refuse(*args, **kwargs):
        raise AssertionError('a model was loaded')

    with (
        mock.patch('lrp_loo.models.loading.load_model', refuse),
        mock.patch('lrp_loo.evaluate.sweep.load_model', refuse),
    ):
        return cli(*argv)


# ------------------------------------------------------------ small models

SIZES = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)


def bert(**options):
    "A small BERT with random weights."
    torch.manual_seed(0)
    options = SIZES | dict(vocab_size=30522, max_position_embeddings=64) | options
    return BertForSequenceClassification(BertConfig(**options)).eval()


def question_answering():
    "A small BERT that marks where an answer starts and ends."
    return BertForQuestionAnswering(bert().config).eval()


def t5(start=0):
    "A small encoder-decoder; start: the token by which its decoder starts."
    sizes = dict(vocab_size=30522, d_model=16, d_kv=8, d_ff=32)
    sizes |= dict(num_layers=1, num_heads=2, eos_token_id=102)
    model = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = start
    return model


def filled(model, value):
    "The model with one weight everywhere in its head."
    with torch.no_grad():
        model.classifier.weight.fill_(value)
    return model


def mixed(model):
    "The model with a head in another precision."
    model.classifier.double()
    return model


class Bag(torch.nn.Module):
    "Words without attention."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(30522, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        words = self.words(input_ids) * attention_mask[..., None]
        return self.out(words.sum(1))


class Maskless(Bag):
    "The same, and it takes no mask."

    def forward(self, input_ids):
        return self.out(self.words(input_ids).mean(1))


# ------------------------------------------------------------ folders and files

PARTS = dict(
    config='config.json', weights='model.safetensors', pickle='pytorch_model.bin'
)


def written(path, content):
    "A file with this text or these bytes."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rewritten(path, pattern, text):
    "A file in which text replaces the first match of a pattern."
    return written(path, re.sub(pattern, text, path.read_text(), count=1))


def made(folder):
    "An empty folder."
    folder.mkdir()
    return folder


def saved(folder, model=None, tokenizer=None, **files):
    "A model's folder; files: one of PARTS → text or bytes, None: deleted."
    folder.mkdir()
    for part in (model, tokenizer):
        if part is not None:
            part.save_pretrained(folder)
    for name, content in files.items():
        path = folder / PARTS[name]
        if content is None:
            path.unlink()
        else:
            written(path, content)
    return folder


def pickled(folder, model, tokenizer):
    "Weights that only pickle reads."
    saved(folder, model, tokenizer, weights=None)
    torch.save(model.state_dict(), folder / 'pytorch_model.bin')
    return folder


def remote(folder, model, tokenizer):
    "A config that asks for code of its own."
    saved(folder, model, tokenizer)
    config = json.loads((folder / 'config.json').read_text())
    config['model_type'] = 'mine'
    config['auto_map'] = {
        'AutoConfig': 'mine.Config',
        'AutoModelForSequenceClassification': 'mine.Model',
    }
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'mine.py').write_text('raise SystemExit("remote code ran")\n')
    return folder


def table(folder, split='validation', **columns):
    "SST-2 in the hub's layout, below `folder`."
    (folder / 'sst2').mkdir(parents=True)
    file = folder / 'sst2' / f'{split}-00000-of-00001.parquet'
    datasets.Dataset.from_dict(columns).to_parquet(str(file))
    return folder


def swept(folder, w):
    "A small finished sweep."
    texts = ['a fine film', 'the jokes are old']
    sweep(w['m'], w['tok'], texts, folder, 'attn_lrp', progress=False)
    return folder


# ------------------------------------------------------------ circumstances


def unreachable(call):
    "What comes of `call` where the hub gives no answer."

    def no_answer(*args, **kwargs):
        raise ConnectionError('no route')

    with (
        mock.patch.object(huggingface_hub.constants, 'HF_HUB_OFFLINE', False),
        mock.patch.object(huggingface_hub.HfApi, 'repo_info', no_answer),
    ):
        return call()


RAISED_IN_A_CHILD = {
    e.__name__: e for e in (PermissionError, OSError, ValueError, FileNotFoundError)
}


def forked(job):
    "Run `job()` in a child process, and raise here what it raised."
    answer = answer_of_a_child(job)
    if 'raised' in answer:
        error, message = answer['raised']
        raise RAISED_IN_A_CHILD[error](message)


def as_nobody(folder, job):
    "Root may write anywhere, so the call is made by somebody who may not."
    # a folder of the test, of its process and of the run, of this user
    for p in (folder, *folder.parents[:4]):
        if p.stat().st_uid == os.getuid() and p != Path('/tmp'):
            p.chmod(0o755)

    def nobody():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        else:
            folder.chmod(0o555)
        job()

    return forked(nobody)


def on_a_full_disk(job):
    "Files may grow to 2,000 bytes: the kernel refuses the rest."

    def small():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        job()

    return forked(small)


# ------------------------------------------------------------ what holds of an
# answer


def finite(out, n=1):
    "n explanations, each with a finite score per token."
    return len(out) == n and all(
        torch.isfinite(a.scores).all() and len(a.tokens) == len(a.scores) for a in out
    )


def same(out, other, tol=1e-4):
    "The same tokens and scores."
    return len(out) == len(other) and all(
        a.tokens == b.tokens and torch.allclose(a.scores, b.scores, atol=tol)
        for a, b in zip(out, other)
    )


# ------------------------------------------------------------ the names of calls


class World(dict):
    "Names that a call may use, made when they are first asked for."

    def __init__(self, tmp):
        super().__init__(tmp=Path(tmp), w=self)

    def __missing__(self, name):
        if name not in MAKE:
            raise KeyError(name)
        self[name] = MAKE[name](self)
        return self[name]

    def names_in(self, code):
        "Every name of a call that this world has, and all of NAMES."
        made = {n: self[n] for n in code if n in self or n in MAKE}
        return NAMES | made


MAKE = dict(  # name → its making, of what else the world has
    demo=lambda w: load_demo('sst2'),
    m=lambda w: w['demo'][0],
    tok=lambda w: w['demo'][1],
    enc=lambda w: encode(w['m'], w['tok'], 'a fine film'),
    lm_demo=lambda w: load_demo('reviews'),
    lm=lambda w: w['lm_demo'][0],
    lm_tok=lambda w: w['lm_demo'][1],
    vit=lambda w: load_demo('mnist')[0],
    small=lambda w: bert(),
    nan=lambda w: filled(bert(), float('nan')),
    inf=lambda w: filled(bert(), float('inf')),
    training=lambda w: bert().train(),
    meta=lambda w: bert().to('meta'),
    mixed=lambda w: mixed(bert()),
    half=lambda w: bert().half(),
    bf16=lambda w: bert().bfloat16(),
    double=lambda w: bert().double(),
    one_class=lambda w: bert(num_labels=1),
    regression=lambda w: bert(num_labels=1, problem_type='regression'),
    multi_label=lambda w: bert(num_labels=3, problem_type='multi_label_classification'),
    few_words=lambda w: bert(vocab_size=100, num_hidden_layers=1),
    qa=lambda w: question_answering(),
    headless=lambda w: bert().bert,
    t5=lambda w: t5(),
    startless=lambda w: t5(start=None),
    bag=lambda w: Bag().eval(),
    maskless=lambda w: Maskless().eval(),
    plain=lambda w: explain(w['m'], w['tok'], 'a fine film'),
)

NAMES = {name: getattr(lrp_loo, name) for name in lrp_loo.__all__}
NAMES |= {name: value for name, value in globals().items() if name[0] != '_'}
