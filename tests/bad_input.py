"""What a user may get wrong, as data: a call, and what must come of it. `python tests/bad_input.py --write` makes every call and writes the answers to results/bad-input.json and .md.

A case is (name, call, answer, rest). The call is Python in the names of this file and of `MAKE`. The answer is an exception, and the rest are the words that must be in its message;
or 'works', and the rest is a condition on `out`, what the call gave; or 'exit 1', the command line's, and the rest are words of its one line on stderr.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('MPLBACKEND', 'agg')
os.environ.setdefault('TQDM_DISABLE', '1')

import datasets
import huggingface_hub
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

from lrp_loo import explain, explain_dataset, load_demo
from lrp_loo.cli import main
from lrp_loo.core import versions, write_text_atomic
from lrp_loo.models import encode

RESULTS = Path(__file__).parents[1] / 'results'


class Said(Exception):
    "What the command line said before it left with a code."


def cli(*argv):
    """The command `lrp_loo` in this process: what it printed, or `Said` with
    its code and stderr.
    """
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(a) for a in argv])
    if code:
        raise Said(
            code,
            '\n'.join(l for l in err.getvalue().splitlines() if '%|' not in l),
        )  # without progress bars
    return out.getvalue()


def bert(**kw):
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30522,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            **kw,
        )
    ).eval()


def filled(model, value):
    "One weight of the model."
    with torch.no_grad():
        model.classifier.weight.fill_(value)
    return model


def mixed(model):
    model.classifier.double()
    return model


class Bag(torch.nn.Module):  # words without attention
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(30522, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        return self.out(
            (self.words(input_ids) * attention_mask[..., None]).sum(1)
        )


class Maskless(Bag):
    def forward(self, input_ids):
        return self.out(self.words(input_ids).mean(1))


def saved(folder, model=None, tokenizer=None, **files):
    "a model's folder; files: name → text or bytes, None: taken away."
    folder.mkdir()
    for part in (model, tokenizer):
        if part is not None:
            part.save_pretrained(folder)
    for name, content in files.items():
        p = (
            folder
            / {
                'config': 'config.json',
                'weights': 'model.safetensors',
                'pickle': 'pytorch_model.bin',
            }[name]
        )
        if content is None:
            p.unlink()
        elif isinstance(content, bytes):
            p.write_bytes(content)
        else:
            p.write_text(content)
    return folder


def pickled(folder, model, tokenizer):
    "Weights that only pickle reads."
    saved(folder, model, tokenizer, weights=None)
    torch.save(model.state_dict(), folder / 'pytorch_model.bin')
    return folder


def remote(folder, model, tokenizer):
    "a config that asks for code of its own."
    saved(folder, model, tokenizer)
    c = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(
        json.dumps(
            c
            | dict(
                model_type='mine',
                auto_map={
                    'AutoConfig': 'mine.Config',
                    'AutoModelForSequenceClassification': 'mine.Model',
                },
            )
        )
    )
    (folder / 'mine.py').write_text('raise SystemExit("remote code ran")\n')
    return folder


def table(folder, split='validation', **columns):
    "Sst2 in the hub's layout, below `folder`."
    (folder / 'sst2').mkdir(parents=True)
    datasets.Dataset.from_dict(columns).to_parquet(
        str(folder / 'sst2' / f'{split}-00000-of-00001.parquet')
    )
    return folder


def written(path, content):
    "a file."
    path.parent.mkdir(parents=True, exist_ok=True)
    (
        path.write_bytes(content)
        if isinstance(content, bytes)
        else path.write_text(content, encoding='utf-8')
    )
    return path


def made(folder):
    folder.mkdir()
    return folder


def unreachable(call):
    "What comes of `call` where the hub gives no answer."

    def no_answer(*args, **kwargs):
        raise ConnectionError('no route')

    with (
        mock.patch.object(huggingface_hub.constants, 'HF_HUB_OFFLINE', False),
        mock.patch.object(huggingface_hub.HfApi, 'repo_info', no_answer),
    ):
        return call()


def interrupted(*argv):
    "a command line that Ctrl-C meets where its first text is computed."

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with mock.patch(
        'lrp_loo.methods._explain_batch', stop
    ):  # what every batch goes through
        return cli(*argv)


def without_a_model(*argv):
    "a command line that must not load one."

    def refuse(*args, **kwargs):
        raise AssertionError('a model was loaded')

    with (
        mock.patch('lrp_loo.models.load_model', refuse),
        mock.patch('lrp_loo.dataset.load_model', refuse),
    ):
        return cli(*argv)


def swept(folder, w):
    "a small finished sweep."
    explain_dataset(
        ['a fine film', 'the jokes are old'],
        folder,
        ['attn_lrp'],
        model=(w['m'], w['tok'], 'demo'),
        progress=False,
    )
    return folder


def forked(job):
    """Run `job()` in a child process and raise here what it raised; for what
    must not happen to this process.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)  # the parent's threads are not there
        try:
            job()
            said = None
        except BaseException as e:
            said = [type(e).__name__, str(e)]
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        said = json.loads(f.read())
    os.waitpid(pid, 0)
    if said:
        raise {
            'PermissionError': PermissionError,
            'OSError': OSError,
            'ValueError': ValueError,
            'FileNotFoundError': FileNotFoundError,
        }[said[0]](said[1])


def as_nobody(folder, job):
    "Root may write anywhere, so the call is made by somebody who may not."
    for p in (folder, *folder.parents[:3]):
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
    """The file may grow to 2,000 bytes: the kernel refuses the rest, as it
    does where no space is left.
    """

    def small():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        job()

    return forked(small)


def finite(out, n=1):
    return len(out) == n and all(
        torch.isfinite(a.scores).all() and len(a.tokens) == len(a.scores)
        for a in out
    )


def same(out, other, tol=1e-4):
    return len(out) == len(other) and all(
        a.tokens == b.tokens and torch.allclose(a.scores, b.scores, atol=tol)
        for a, b in zip(out, other)
    )


class World(dict):
    "Names that a call may use, made when they are first asked for."

    def __init__(self, tmp):
        super().__init__(tmp=Path(tmp), w=self)

    def __missing__(self, name):
        if name not in MAKE:
            raise KeyError(name)
        self[name] = MAKE[name](self)
        return self[name]


MAKE = dict(
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
    multi_label=lambda w: bert(
        num_labels=3, problem_type='multi_label_classification'
    ),
    few_words=lambda w: BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    ).eval(),
    t5=lambda w: T5ForSequenceClassification(
        T5Config(
            vocab_size=30522,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
            eos_token_id=102,
        )
    ).eval(),
    bag=lambda w: Bag().eval(),
    maskless=lambda w: Maskless().eval(),
    plain=lambda w: explain(w['m'], w['tok'], 'a fine film'),
)

T = TypeError
V = ValueError
F = FileNotFoundError
P = PermissionError
O = OSError
EMOJI, FAMILY, HEBREW = '🎬 what a film 😀', '👩‍👩‍👧‍👦 laughed', 'סרט נהדר'

CASES = [
    # texts
    ('empty text', "explain(m, tok, '')", V, ['the text is empty']),
    (
        'empty text, command line',
        "cli('explain', '')",
        'exit 1',
        ['the text is empty'],
    ),
    (
        'white space alone',
        "explain(m, tok, ' \\t\\n ')",
        V,
        ['the text is empty'],
    ),
    ('no texts', "explain(m, tok, [])", V, ['texts is empty', 'at least one']),
    (
        'no texts to audit',
        "audit(m, tok, [])",
        V,
        ['texts is empty', 'at least one'],
    ),
    (
        'one word',
        "explain(m, tok, 'fine')",
        'works',
        "finite(out) and out[0].tokens == ['[CLS]', 'fine', '[SEP]']",
    ),
    (
        'one word, all of audit',
        "audit(m, tok, ['fine'], progress=False)",
        'works',
        "out.n_undefined.eq(1).all() and out.delta.notna().all()",
    ),
    (
        'special tokens written out',
        "explain(m, tok, '[CLS] [SEP]')",
        V,
        ["'[CLS] [SEP]'", 'no token besides the special ones'],
    ),
    (
        'padding written out',
        "explain(m, tok, '[PAD]')",
        V,
        ["'[PAD]'", 'no token besides the special ones'],
    ),
    (
        'special tokens written out, audit',
        "audit(m, tok, ['fine', '[CLS] [SEP]'], progress=False)",
        V,
        ["'[CLS] [SEP]'"],
    ),
    (
        'a special token among words',
        "explain(m, tok, 'fine [SEP] film', method='loo')",
        'works',
        (
            "finite(out) and out[0].is_special.tolist() == [True, False, True,"
            " False, True]"
        ),
    ),
    ('emoji', "explain(m, tok, EMOJI)", 'works', "finite(out)"),
    (
        'emoji joined to one',
        "explain(m, tok, FAMILY, method='loo')",
        'works',
        "finite(out)",
    ),
    (
        'emoji, bytes as tokens',
        "explain(lm, lm_tok, FAMILY)",
        'works',
        "finite(out)",
    ),
    (
        'right to left',
        "explain(m, tok, HEBREW, units='word', method='loo')",
        'works',
        "finite(out) and out[0].tokens == ['[CLS]', *HEBREW.split(), '[SEP]']",
    ),
    (
        'combining marks',
        "explain(m, tok, 'cafe\\u0301 z\\u0351\\u036b\\u0343')",
        'works',
        "finite(out)",
    ),
    (
        'zero-width characters alone',
        "explain(m, tok, '\\u200b\\u200d')",
        V,
        ["'\\u200b\\u200d'", 'no token besides the special ones'],
    ),
    (
        'zero-width characters inside',
        "explain(m, tok, 'a fi\\u200bne film')",
        'works',
        "same(out, plain)",
    ),
    (
        'control characters',
        "explain(m, tok, 'a\\x07 fine\\x1b film')",
        'works',
        "same(out, plain)",
    ),
    (
        'NUL alone',
        "explain(m, tok, '\\x00')",
        V,
        ["'\\x00'", 'no token besides the special ones'],
    ),
    (
        'NUL inside',
        "explain(m, tok, 'a\\x00 fine film')",
        'works',
        "same(out, plain)",
    ),
    (
        'lone surrogate',
        "explain(m, tok, 'a fine \\ud83d film')",
        V,
        ['lone surrogate', 'character 7'],
    ),
    (
        'lone surrogate, decoder',
        "explain(lm, lm_tok, '\\udc00')",
        V,
        ['lone surrogate'],
    ),
    (
        'lone surrogate in a context',
        "attribute_context(lm, lm_tok, 'a fine \\ud83d film.', 'good')",
        V,
        ['lone surrogate'],
    ),
    (
        'new lines',
        "explain(m, tok, 'a\\r\\nfine\\n\\n\\nfilm\\n')",
        'works',
        "same(out, plain)",
    ),
    (
        '100,000 characters',
        "explain(m, tok, 'word '*20_000)",
        V,
        ['20002 tokens', 'takes 512', 'truncation=True'],
    ),
    (
        '100,000 characters, cut',
        "explain(m, tok, 'word '*20_000, truncation=True)",
        'works',
        "finite(out) and len(out[0]) == 512",
    ),
    (
        '100,000 characters without a space',
        "explain(m, tok, 'a'*100_000)",
        'works',
        "out[0].tokens == ['[CLS]', '[UNK]', '[SEP]']",
    ),
    (
        '100,000 characters of nothing',
        "explain(m, tok, '\\u200b'*100_000)",
        V,
        ['no token besides the special ones'],
    ),
    (
        '100,000 characters, sweep',
        (
            "explain_dataset(['fine', 'word '*20_000], tmp/'long', model=(m,"
            " tok, 'demo'), progress=False)"
        ),
        V,
        ['text 1', '20002 tokens'],
    ),
    (
        'the same text twice',
        "explain(m, tok, ['a fine film', 'no', 'a fine film'])",
        'works',
        "same(out[:1], out[2:]) and same(out[:1], plain)",
    ),
    ('bytes', "explain(m, tok, b'a fine film')", T, ['bytes', 'str']),
    (
        'bytes in a list',
        "explain(m, tok, [b'a fine film'])",
        T,
        ['a text must be a str', 'bytes'],
    ),
    ('None', "explain(m, tok, None)", T, ['texts', 'NoneType']),
    (
        'None in a list',
        "explain(m, tok, ['fine', None])",
        T,
        ['a text must be a str', 'NoneType'],
    ),
    ('a number', "explain(m, tok, 3)", T, ['texts', 'int']),
    (
        'NaN, as pandas has for a missing text',
        "explain(m, tok, ['fine', float('nan')])",
        T,
        ['a text must be a str', 'float'],
    ),
    (
        'a list in a list',
        "explain(m, tok, [['a fine', 'film']])",
        T,
        ['a text must be a str', 'list'],
    ),
    (
        'a dict',
        "explain(m, tok, {'text': 'a fine film'})",
        T,
        ['texts', 'dict'],
    ),
    ('a set', "explain(m, tok, {'a fine film'})", T, ['texts', 'set']),
    (
        'a pandas Series',
        "explain(m, tok, pd.Series(['a fine film', 'no'], index=[7, 9]))",
        'works',
        "finite(out, 2) and same(out[:1], plain)",
    ),
    (
        'a pandas Series, audit',
        (
            "audit(m, tok, pd.Series(['a fine film', 'no'], index=[7, 9]),"
            " ['cp_lrp'], progress=False)"
        ),
        'works',
        "out.n['cp_lrp'] == 2",
    ),
    (
        'a pandas Series, sweep',
        (
            "explain_dataset(pd.Series(['a fine film', 'no'], index=[7, 9]),"
            " tmp/'series', ['cp_lrp'], model=(m, tok, 'demo'), progress=False)"
        ),
        'works',
        "out.n['cp_lrp'] == 2",
    ),
    (
        'a pandas DataFrame',
        "explain(m, tok, pd.DataFrame(dict(text=['a fine film'])))",
        T,
        ['texts', 'DataFrame'],
    ),
    (
        'a numpy array of str',
        "explain(m, tok, np.array(['a fine film', 'no']))",
        'works',
        "finite(out, 2) and same(out[:1], plain)",
    ),
    (
        'a numpy str',
        "explain(m, tok, np.array('a fine film'))",
        T,
        ['texts', 'ndarray'],
    ),
    (
        'a generator',
        "explain(m, tok, (t for t in ['a fine film', 'no']))",
        'works',
        "finite(out, 2) and same(out[:1], plain)",
    ),
    (
        'a generator, audit',
        (
            "audit(m, tok, (t for t in ['a fine film', 'no']), ['cp_lrp',"
            " 'attn_lrp'], progress=False)"
        ),
        'works',
        "out.n['cp_lrp'] == 2",
    ),
    (
        'a generator, sweep',
        (
            "explain_dataset((t for t in ['a fine film', 'no']),"
            " tmp/'generator', ['cp_lrp'], model=(m, tok, 'demo'),"
            " progress=False)"
        ),
        'works',
        "out.n['cp_lrp'] == 2",
    ),
    (
        'an empty generator',
        "explain(m, tok, (t for t in []))",
        V,
        ['texts is empty'],
    ),
    (
        'a tuple of three',
        "explain(m, tok, ('a', 'fine', 'film'))",
        V,
        ['pair', '3'],
    ),
    ('a tuple of one', "explain(m, tok, ('a fine film',))", V, ['pair', '1']),
    ('half a pair', "explain(m, tok, ('a fine film', ''))", V, ['empty']),
    (
        'a pair',
        "explain(m, tok, ('a fine film', 'indeed'), method='loo')",
        'works',
        "finite(out)",
    ),
    (
        'one str to audit',
        "audit(m, tok, 'a fine film')",
        T,
        ['texts', 'one str'],
    ),
    (
        'one str to a sweep',
        "explain_dataset('a fine film', tmp/'one')",
        T,
        ['texts', 'one str'],
    ),
    (
        'an image for a text model',
        "explain(m, tok, torch.zeros(1, 28, 28))",
        T,
        ['a text must be a str', 'Tensor'],
    ),
    (
        'a text for an image model',
        "explain(vit, None, 'a fine film')",
        T,
        ['takes images', 'str'],
    ),
    (
        'an image with NaN',
        "explain(vit, None, torch.full((1, 28, 28), float('nan')))",
        V,
        ['NaN'],
    ),
    (
        'an image of another size',
        "explain(vit, None, torch.zeros(1, 5, 5))",
        V,
        ['5', '28'],
    ),
    (
        'an empty context',
        "attribute_context(lm, lm_tok, ' ', 'good')",
        V,
        ['the context is empty'],
    ),
    (
        'a context that is no str',
        "attribute_context(lm, lm_tok, None, 'good')",
        T,
        ['the context must be a str', 'NoneType'],
    ),
    (
        'an empty answer',
        "attribute_context(lm, lm_tok, 'The acting is bad.', '')",
        V,
        ['the answer is empty'],
    ),
    (
        'a question that is no str',
        "attribute_context(lm, lm_tok, 'The acting is bad.', 'good', 3)",
        T,
        ['the question must be a str', 'int'],
    ),
    (
        'a context of 100,000 characters',
        "attribute_context(lm, lm_tok, 'The acting is bad. '*5_000, 'good')",
        V,
        ['tokens and the model takes 256'],
    ),
    (
        'a template without the context',
        (
            "attribute_context(lm, lm_tok, 'The acting is bad.', 'good',"
            " template='so: ')"
        ),
        V,
        ["'so: '", '{context}'],
    ),
    (
        'a template with an unknown name',
        (
            "attribute_context(lm, lm_tok, 'The acting is bad.', 'good',"
            " template='{context} {docs}')"
        ),
        V,
        ['template', 'docs'],
    ),
    (
        'a context for a classifier',
        "attribute_context(m, tok, 'The acting is bad.', 'good')",
        V,
        ['next token'],
    ),
    # arguments
    (
        'unknown method',
        "explain(m, tok, 'fine', method='lime')",
        V,
        ["'lime'", 'take one of loo'],
    ),
    (
        'unknown method, command line',
        "cli('explain', 'fine', '--method', 'lime')",
        'exit 2',
        ["'lime'", 'take some of loo'],
    ),
    (
        'method None',
        "explain(m, tok, 'fine', method=None)",
        V,
        ['None', 'take one of loo'],
    ),
    (
        'a list of methods to explain',
        "explain(m, tok, 'fine', method=['loo'])",
        V,
        ["['loo']", 'take one of loo'],
    ),
    (
        'no methods',
        "audit(m, tok, ['fine'], methods=[])",
        V,
        ['methods is empty'],
    ),
    (
        'methods as one str',
        "audit(m, tok, ['fine'], methods='loo')",
        T,
        ['methods', 'one str'],
    ),
    (
        'methods as one str, sweep',
        "explain_dataset(['fine'], tmp/'str', methods='loo')",
        T,
        ['methods', 'one str'],
    ),
    (
        'methods as None',
        "audit(m, tok, ['fine'], methods=None)",
        T,
        ['methods', 'NoneType'],
    ),
    (
        'methods without options',
        "audit(m, tok, ['fine'], methods={'a': 'loo'})",
        T,
        ["'a'", '(method, options)'],
    ),
    (
        'target out of range',
        "explain(m, tok, 'fine', target=2)",
        V,
        ['target=2', '0 to 1'],
    ),
    (
        'target out of range, LOO',
        "leave_one_out(m, enc, target=9)",
        V,
        ['target=9', '0 to 1'],
    ),
    (
        'target out of range, command line',
        "cli('explain', 'fine', '--target', '7')",
        'exit 1',
        ['target=7', '0 to 1'],
    ),
    (
        'negative target',
        "explain(m, tok, 'fine', target=-1)",
        V,
        ['target=-1', '0 to 1'],
    ),
    (
        'target as float',
        "explain(m, tok, 'fine', target=1.0)",
        V,
        ['target=1.0'],
    ),
    (
        'target as bool',
        "explain(m, tok, 'fine', target=True)",
        V,
        ['target=True'],
    ),
    (
        'target as tensor',
        "explain(m, tok, 'fine', target=torch.tensor(1))",
        V,
        ['target=tensor(1)'],
    ),
    (
        'target as an unknown label',
        "explain(m, tok, 'fine', target='splendid')",
        V,
        ["'splendid'", 'negative, positive'],
    ),
    (
        'target as label',
        "explain(m, tok, 'fine', target='negative')",
        'works',
        "out[0].target == 0",
    ),
    (
        'a list of targets',
        "explain(m, tok, ['fine', 'no'], target=[1, 0, 1])",
        V,
        ['target=[1, 0, 1]', 'pair'],
    ),
    (
        'three targets',
        "explain(m, tok, 'fine', target=(0, 1, 0))",
        V,
        ['target=(0, 1, 0)', 'pair'],
    ),
    (
        'a target of two tokens',
        "explain(lm, lm_tok, 'The acting is', target=' unbelievably')",
        V,
        ["' unbelievably'", 'one token'],
    ),
    (
        'a position that is not there',
        "explain(lm, lm_tok, 'The acting is', target=Target(position=40))",
        V,
        ['position=40', '4 tokens'],
    ),
    (
        'a position in a classifier',
        "explain(m, tok, 'fine', target=Target(1, position=0))",
        V,
        ['position=0', 'one row per text'],
    ),
    (
        'a position as float',
        "explain(lm, lm_tok, 'The acting is', target=Target(position=1.5))",
        V,
        ['position=1.5'],
    ),
    (
        'an output that is not there',
        "explain(m, tok, 'fine', target=Target(output='scores'))",
        V,
        ['scores', 'logits'],
    ),
    (
        'a target function of the wrong shape',
        "explain(m, tok, 'fine', target=lambda out: out.logits)",
        V,
        ['one number per text', '(1, 2)'],
    ),
    (
        'n_steps 0',
        "explain(m, tok, 'fine', method='ig', n_steps=0)",
        V,
        ['n_steps', '0'],
    ),
    (
        'n_steps negative',
        "explain(m, tok, 'fine', method='ig', n_steps=-3)",
        V,
        ['n_steps', '-3'],
    ),
    (
        'n_steps as float',
        "explain(m, tok, 'fine', method='ig', n_steps=2.5)",
        V,
        ['n_steps', '2.5'],
    ),
    (
        'internal_batch_size 0',
        "explain(m, tok, 'fine', method='ig', internal_batch_size=0)",
        V,
        ['internal_batch_size', '0'],
    ),
    (
        'token_budget 0',
        "explain(m, tok, 'fine', method='loo', token_budget=0)",
        V,
        ['token_budget', '0'],
    ),
    (
        'rollout row that is not there',
        "explain(m, tok, 'fine', method='rollout', row=3)",
        V,
        ['row=3', '3 tokens'],
    ),
    ('eps negative', "explain(m, tok, 'fine', eps=-1.)", V, ['eps', '-1.0']),
    ('eps NaN', "explain(m, tok, 'fine', eps=float('nan'))", V, ['eps', 'nan']),
    ('eps infinite', "attn_lrp(eps=float('inf'))", V, ['eps', 'inf']),
    ('eps as str', "cp_lrp(eps='small')", V, ['eps', "'small'"]),
    (
        'bypass_softmax out of range',
        "explain(m, tok, 'fine', bypass_softmax=[6])",
        V,
        ['[6]', '0 to 5'],
    ),
    (
        'bypass_softmax negative',
        "explain(m, tok, 'fine', bypass_softmax=[-1])",
        V,
        ['[-1]', '0 to 5'],
    ),
    (
        'bypass_softmax as str',
        "attn_lrp('upper')",
        V,
        ['bypass_softmax', "'upper'"],
    ),
    ('bypass_softmax as number', "attn_lrp(3)", V, ['bypass_softmax', '3']),
    (
        'bypass_softmax as floats',
        "attn_lrp([1.5])",
        V,
        ['bypass_softmax', '1.5'],
    ),
    (
        'unknown product rule',
        "Composite('mine', product='third')",
        V,
        ["product='third'", 'half'],
    ),
    (
        'rules that are none',
        "lrp_rules(m, 'attn_lrp')",
        T,
        ['Composite', 'str'],
    ),
    ('rules for a name', "lrp_rules('demo', attn_lrp())", T, ['model', 'str']),
    (
        'batch_size 0',
        "explain(m, tok, 'fine', batch_size=0)",
        V,
        ['batch_size', '0'],
    ),
    (
        'batch_size negative',
        "explain(m, tok, 'fine', batch_size=-1)",
        V,
        ['batch_size', '-1'],
    ),
    (
        'batch_size as float',
        "explain(m, tok, 'fine', batch_size=1.5)",
        V,
        ['batch_size', '1.5'],
    ),
    (
        'batch_size as str',
        "explain(m, tok, 'fine', batch_size='16')",
        V,
        ['batch_size', "'16'"],
    ),
    (
        'batch_size 0, sweep',
        "cli('sweep', '--limit', '2', '--batch_size', '0', '--out', tmp/'b')",
        'exit 2',
        ['batch_size', '0'],
    ),
    (
        'max_length 0',
        "explain(m, tok, 'fine', max_length=0)",
        V,
        ['max_length', '0'],
    ),
    (
        'max_length negative',
        "explain(m, tok, 'fine', max_length=-5)",
        V,
        ['max_length', '-5'],
    ),
    (
        'max_length that leaves no word',
        "explain(m, tok, 'a fine film', max_length=2, truncation=True)",
        V,
        ['max_length', '2'],
    ),
    (
        'max_length 1',
        "explain(m, tok, 'a fine film', max_length=1, truncation=True)",
        V,
        ['max_length', '1'],
    ),
    (
        'truncation to three words',
        "explain(m, tok, 'a fine film indeed', max_length=5, truncation=True)",
        'works',
        "out[0].tokens == ['[CLS]', 'a', 'fine', 'film', '[SEP]']",
    ),
    (
        'unknown units',
        "explain(m, tok, 'fine', units='paragraph')",
        V,
        ["'paragraph'", 'word'],
    ),
    (
        'units None',
        "explain(m, tok, 'fine', units=None)",
        V,
        ['units=None', 'word'],
    ),
    (
        'spans that overlap',
        "explain(m, tok, 'a fine film', units=[(0, 6), (2, 11)])",
        V,
        ['overlap', '(0, 6)'],
    ),
    (
        'a span out of range',
        "explain(m, tok, 'a fine film', units=[(2, 60)])",
        V,
        ['(2, 60)', '11 characters'],
    ),
    (
        'an empty span',
        "explain(m, tok, 'a fine film', units=[(2, 2)])",
        V,
        ['(2, 2)', 'start < end'],
    ),
    (
        'a span of three numbers',
        "explain(m, tok, 'a fine film', units=[(0, 1, 2)])",
        V,
        ['(0, 1, 2)'],
    ),
    (
        'a span of white space',
        "explain(m, tok, 'a fine film', units=[(1, 2)])",
        V,
        ['no token begins', '(1, 2)'],
    ),
    (
        'no spans',
        "explain(m, tok, 'a fine film', units=[])",
        V,
        ['units is an empty list'],
    ),
    (
        'spans that are numbers',
        "explain(m, tok, 'a fine film', units=[0, 6])",
        V,
        ['span', '0'],
    ),
    (
        'units for too few texts',
        "explain(m, tok, ['fine', 'no'], units=['word'])",
        V,
        ['1 entries for 2 texts'],
    ),
    (
        'unknown removal',
        "explain(m, tok, 'fine', method='loo', removal='burn')",
        V,
        ["'burn'", 'attention_mask'],
    ),
    (
        'unknown removal, audit',
        "audit(m, tok, ['fine'], removal='burn', progress=False)",
        V,
        ["'burn'", 'attention_mask'],
    ),
    (
        'removal as a number',
        "leave_one_out(m, enc, removal=3)",
        V,
        ['removal=3', 'attention_mask'],
    ),
    (
        'mask token without its id',
        "leave_one_out(m, enc, removal='mask_token')",
        V,
        ["'mask_token'", 'fill_id'],
    ),
    (
        'mask token where there is none',
        (
            "explain(lm, lm_tok, 'The acting is', method='loo',"
            " removal='mask_token')"
        ),
        V,
        ["'mask_token'", 'no token'],
    ),
    ('resampling without a pool', "Removal('resample')", V, ['pool']),
    (
        'a pool that is empty',
        (
            "explain(m, tok, 'fine', method='loo', removal=Removal('resample',"
            " pool=[]))"
        ),
        V,
        ['pool', 'at least one'],
    ),
    (
        'a pool of numbers',
        (
            "explain(m, tok, 'fine', method='loo', removal=Removal('resample',"
            " pool=[1.5]))"
        ),
        T,
        ['pool', 'float'],
    ),
    (
        'a pool outside the vocabulary',
        (
            "explain(m, tok, 'fine', method='loo', removal=Removal('resample',"
            " pool=[999_999]))"
        ),
        V,
        ['pool', '999999'],
    ),
    (
        'n_draws 0',
        "Removal('resample', pool=['a film'], n_draws=0)",
        V,
        ['n_draws', '0'],
    ),
    (
        'n_draws as float',
        "Removal('resample', pool=['a film'], n_draws=1.5)",
        V,
        ['n_draws', '1.5'],
    ),
    (
        'a negative seed of draws',
        "Removal('resample', pool=['a film'], seed=-1)",
        V,
        ['seed', '-1'],
    ),
    (
        'chunk 0',
        "audit(m, tok, ['fine'], chunk=0, progress=False)",
        V,
        ['chunk', '0'],
    ),
    (
        'chunk as float',
        "audit(m, tok, ['a fine film'], chunk=1.5, progress=False)",
        V,
        ['chunk', '1.5'],
    ),
    (
        'chunk 0, command line',
        "cli('audit', '--limit', '2', '--chunk', '0')",
        'exit 2',
        ['chunk', '0'],
    ),
    (
        'a chunk longer than the text',
        "audit(m, tok, ['a fine film'], ['cp_lrp'], chunk=99, progress=False)",
        'works',
        "abs(out.delta['cp_lrp']) < 1e-6",
    ),
    (
        'unknown area',
        "audit(m, tok, ['fine'], area='auc', progress=False)",
        V,
        ["'auc'", 'aopc'],
    ),
    (
        'n_exact negative',
        "explain(m, tok, 'fine', method='removal+loo', n_exact=-1)",
        V,
        ['n_exact', '-1'],
    ),
    (
        'n_exact as float',
        "explain(m, tok, 'fine', method='removal+loo', n_exact=1.5)",
        V,
        ['n_exact', '1.5'],
    ),
    (
        'n_groups 0',
        "explain(m, tok, 'a fine film', method='removal', n_groups=0)",
        'works',
        "same(out, explain(m, tok, 'a fine film', method='removal'))",
    ),
    (
        'n_groups negative',
        "explain(m, tok, 'fine', method='removal', n_groups=-2)",
        V,
        ['n_groups', '-2'],
    ),
    (
        'weight 0',
        "explain(m, tok, 'fine', method='removal', weight=0.)",
        V,
        ['weight', '0.0'],
    ),
    (
        'weight as str',
        "explain(m, tok, 'fine', method='removal', weight='low')",
        V,
        ['weight', "'low'"],
    ),
    (
        'a negative seed of contexts',
        "explain(m, tok, 'fine', method='removal', n_contexts=1, seed='x')",
        V,
        ['seed', "'x'"],
    ),
    (
        'unknown baseline',
        "explain(m, tok, 'fine', method='ig', baseline='noise')",
        V,
        ["'noise'", "'pad'"],
    ),
    (
        'unknown embeddings',
        "explain(m, tok, 'fine', embeddings='position')",
        V,
        ["'position'", "'word'"],
    ),
    (
        'unknown option',
        "explain(m, tok, 'fine', colour='red')",
        T,
        ['colour', 'attn_lrp'],
    ),
    (
        'another method\'s option',
        "explain(m, tok, 'fine', method='loo', n_steps=8)",
        T,
        ['n_steps', 'loo'],
    ),
    (
        'unknown option, command line',
        "cli('explain', 'fine', '--colour', 'red')",
        'exit 2',
        ['--colour'],
    ),
    ('no command', "cli()", 'exit 2', ['usage: lrp_loo']),
    ('unknown command', "cli('explode')", 'exit 2', ["'explode'"]),
    (
        'a number that is none, command line',
        "cli('audit', '--limit', 'many')",
        'exit 2',
        ["'many'"],
    ),
    (
        'unknown dtype',
        "explain_dataset(['fine'], tmp/'d', dtype='float16')",
        V,
        ["'float16'", 'bfloat16'],
    ),
    (
        'unknown dtype, command line',
        "cli('sweep', '--limit', '2', '--dtype', 'int8', '--out', tmp/'d')",
        'exit 2',
        ["'int8'", 'bfloat16'],
    ),
    (
        'unknown engine',
        "explain_dataset(['fine'], tmp/'e', engine='dask')",
        V,
        ["'dask'", 'ray'],
    ),
    ('unknown device', "load_model(device='warp')", V, ["'warp'", "'cpu'"]),
    (
        'a device that is not there',
        "load_demo('sst2', device='cuda:99')",
        V,
        ["'cuda:99'", "'cpu'"],
    ),
    ('device None', "load_demo('sst2', device=None)", V, ['None', "'cpu'"]),
    (
        'unknown device, command line',
        (
            "cli('reproduce', '--only', 'sst2', '--limit', '2', '--device',"
            " 'warp', '--out', tmp/'w')"
        ),
        'exit 1',
        ["'warp'"],
    ),
    (
        'a negative seed',
        "load_texts('sst2', 'embedded', seed=-1)",
        V,
        ['seed', '-1'],
    ),
    (
        'a negative seed, command line',
        (
            "cli('reproduce', '--data', 'embedded', '--only', 'sst2', '--seed',"
            " '-1', '--limit', '2', '--out', tmp/'s')"
        ),
        'exit 2',
        ['seed', '-1'],
    ),
    ('limit 0', "load_texts('sst2', 'embedded', limit=0)", V, ['limit', '0']),
    (
        'limit negative',
        "load_texts('sst2', 'embedded', limit=-4)",
        V,
        ['limit', '-4'],
    ),
    (
        'limit as float',
        "load_texts('sst2', 'embedded', limit=2.5)",
        V,
        ['limit', '2.5'],
    ),
    (
        'limit negative, command line',
        "cli('audit', '--limit', '-4')",
        'exit 2',
        ['limit', '-4'],
    ),
    (
        'limit above what there is',
        "load_texts('sst2', 'embedded', limit=10**6)",
        'works',
        "len(out) == out.info['n_split'] >= 200",
    ),
    (
        'unknown part',
        "cli('reproduce', '--only', 'sst3', '--out', tmp/'p')",
        'exit 2',
        ["'sst3'", 'take some of'],
    ),
    # models and tokenizers
    ('a name as model', "explain('demo', tok, 'fine')", T, ['model', 'str']),
    ('model None', "explain(None, tok, 'fine')", T, ['model', 'NoneType']),
    ('model None, LOO', "leave_one_out(None, enc)", T, ['model', 'NoneType']),
    ('model and tokenizer exchanged', "explain(tok, m, 'fine')", T, ['model']),
    ('load_model of None', "load_model(None)", T, ['NoneType', "'demo'"]),
    ('unknown demo model', "load_demo('yelp')", V, ["'yelp'", 'sst2']),
    (
        'a list of demo models',
        "load_demo(['sst2'])",
        V,
        ["['sst2']", 'sst2, imdb'],
    ),
    (
        'unknown task',
        "load_model('demo', task='regression')",
        V,
        ["'regression'", 'class'],
    ),
    (
        'paper model of other data',
        "load_model('paper', 'mnist')",
        V,
        ["'mnist'"],
    ),
    ('no model folder', "load_model(tmp/'none')", F, ['no model folder']),
    (
        'no model folder, command line',
        "cli('explain', 'fine', '--model', tmp/'none')",
        'exit 1',
        ['no model folder'],
    ),
    (
        'a file as model folder',
        "load_model(written(tmp/'model.bin', 'x'))",
        F,
        ['no model folder'],
    ),
    (
        'an empty model folder',
        "load_model(made(tmp/'empty-model'))",
        F,
        ['empty-model', 'config.json'],
    ),
    (
        'a folder without config.json',
        "load_model(saved(tmp/'no-config', bert(), tok, config=None))",
        F,
        ['no-config', 'config.json'],
    ),
    (
        'a config.json that is no JSON',
        "load_model(saved(tmp/'bad-config', bert(), tok, config='{'))",
        V,
        ['bad-config', 'config.json'],
    ),
    (
        'a folder without weights',
        "load_model(saved(tmp/'no-weights', bert(), tok, weights=None))",
        V,
        ['no-weights', 'safetensors'],
    ),
    (
        'a folder without a tokenizer',
        "load_model(saved(tmp/'no-tokenizer', bert()))",
        V,
        ['no-tokenizer', 'tokenizer'],
    ),
    (
        'corrupt safetensors',
        (
            "load_model(saved(tmp/'corrupt', bert(), tok, weights=b'no weights"
            " at all'))"
        ),
        V,
        ['corrupt', 'safetensors'],
    ),
    (
        'safetensors cut short',
        (
            "load_model(saved(tmp/'short', bert(), tok,"
            " weights=(saved(tmp/'whole',"
            " bert())/'model.safetensors').read_bytes()[:-100]))"
        ),
        V,
        ['short', 'safetensors'],
    ),
    (
        'corrupt safetensors, command line',
        (
            "cli('explain', 'fine', '--model', saved(tmp/'corrupt-cli', bert(),"
            " tok, weights=b'no weights at all'))"
        ),
        'exit 1',
        ['corrupt-cli', 'safetensors'],
    ),
    (
        'weights of another shape',
        (
            "load_model(saved(tmp/'shapes', bert(), tok,"
            " config=json.dumps(bert(num_labels=3).config.to_dict())))"
        ),
        V,
        ['shapes'],
    ),
    (
        'weights that only pickle reads',
        "load_model(pickled(tmp/'pickle', bert(), tok))",
        V,
        ['pickle', 'safetensors'],
    ),
    (
        'a config that asks for remote code',
        "load_model(remote(tmp/'remote', bert(), tok))",
        V,
        ['remote', 'code'],
    ),
    (
        'a hub name without a network',
        "load_model('nobody/no-such-model')",
        V,
        ["'nobody/no-such-model'"],
    ),
    (
        'a hub name without a network, command line',
        "cli('explain', 'fine', '--model', 'nobody/no-such-model')",
        'exit 1',
        ["'nobody/no-such-model'"],
    ),
    (
        'an adapter folder that is missing',
        "load_demo('sst2', folder=tmp/'no-adapter')",
        F,
        ['no-adapter'],
    ),
    (
        'an adapter folder that is empty',
        "load_demo('sst2', folder=made(tmp/'empty-adapter'))",
        F,
        ['empty-adapter', 'adapter_config.json'],
    ),
    (
        'a model without embeddings',
        "explain(torch.nn.Linear(2, 2).eval(), tok, 'fine')",
        V,
        ['Linear', 'no input embeddings'],
    ),
    (
        'an encoder-decoder',
        "explain(t5, tok, 'a fine film', method='loo')",
        V,
        ['T5ForSequenceClassification', 'encoder-decoder'],
    ),
    (
        'training mode',
        "explain(training, tok, 'fine')",
        V,
        ['training mode', 'eval()'],
    ),
    (
        'training mode, LOO',
        "leave_one_out(training, enc)",
        V,
        ['training mode', 'eval()'],
    ),
    (
        'training mode, context',
        "attribute_context(training, tok, 'The acting is bad.', 'good')",
        V,
        ['training mode', 'eval()'],
    ),
    (
        'NaN weights',
        "explain(nan, tok, 'fine', target=0)",
        V,
        ['not finite', 'NaN'],
    ),
    (
        'NaN weights, LOO',
        "explain(nan, tok, 'fine', method='loo')",
        V,
        ['not finite', 'NaN'],
    ),
    (
        'NaN weights, leave_one_out',
        "leave_one_out(nan, enc)",
        V,
        ['not finite', 'NaN'],
    ),
    (
        'NaN weights, audit',
        "audit(nan, tok, ['fine', 'no'], progress=False)",
        V,
        ['not finite', 'NaN'],
    ),
    (
        'infinite weights',
        "explain(inf, tok, 'fine', target=0)",
        V,
        ['not finite'],
    ),
    (
        'float16 weights',
        "explain(half, tok, 'a fine film', target=0)",
        'works',
        "same(out, explain(small, tok, 'a fine film', target=0), .01)",
    ),
    (
        'float16 weights, LOO',
        "explain(half, tok, 'a fine film', method='loo', target=0)",
        'works',
        (
            "same(out, explain(small, tok, 'a fine film', method='loo',"
            " target=0), .01)"
        ),
    ),
    (
        'bfloat16 weights',
        "explain(bf16, tok, 'a fine film', target=0)",
        'works',
        "same(out, explain(small, tok, 'a fine film', target=0), .05)",
    ),
    (
        'bfloat16 weights, audit',
        "audit(bf16, tok, ['a fine film'], progress=False)",
        'works',
        "out.delta.notna().all()",
    ),
    (
        'float64 weights',
        "explain(double, tok, 'a fine film', target=0)",
        'works',
        "same(out, explain(small, tok, 'a fine film', target=0), 1e-5)",
    ),
    (
        'float64 weights, audit',
        "audit(double, tok, ['a fine film'], progress=False)",
        'works',
        "out.delta.notna().all()",
    ),
    ('mixed weights', "explain(mixed, tok, 'fine')", V, ['float32', 'float64']),
    (
        'mixed weights, LOO',
        "leave_one_out(mixed, enc)",
        V,
        ['float32', 'float64'],
    ),
    ('meta device', "explain(meta, tok, 'fine')", V, ['meta device']),
    (
        'tokenizer None',
        "explain(m, None, 'fine')",
        T,
        ['tokenizer', 'NoneType'],
    ),
    (
        'tokenizer as name',
        "explain(m, 'bert-base-uncased', 'fine')",
        T,
        ['tokenizer', 'str'],
    ),
    (
        'a tokenizer of another model',
        "explain(few_words, tok, 'a fine film')",
        V,
        ['token ids up to', '100'],
    ),
    (
        'ids outside the vocabulary, LOO',
        "leave_one_out(few_words, enc)",
        V,
        ['token ids up to', '100'],
    ),
    (
        'inputs that are no dict',
        "leave_one_out(m, 'a fine film')",
        T,
        ['encode', 'str'],
    ),
    (
        'one class',
        "explain(one_class, tok, 'a fine film', method='loo')",
        'works',
        "finite(out) and out[0].target == 0",
    ),
    (
        'one class, target 1',
        "explain(one_class, tok, 'a fine film', target=1)",
        V,
        ['target=1', 'take 0'],
    ),
    (
        'regression',
        "audit(regression, tok, ['a fine film', 'no'], progress=False)",
        'works',
        "out.loo_r['loo'] > .999",
    ),
    (
        'multi-label',
        "explain(multi_label, tok, 'a fine film', target=2)",
        'works',
        "finite(out) and out[0].target == 2",
    ),
    (
        'removal without attention',
        "explain(bag, tok, 'a fine film', method='removal')",
        V,
        ['Bag', 'no attention call'],
    ),
    (
        'rollout without attention',
        "explain(bag, tok, 'a fine film', method='rollout')",
        V,
        ['Bag', 'no attention call'],
    ),
    (
        'LOO without attention',
        "explain(bag, tok, 'a fine film', method='loo')",
        'works',
        "same(out, explain(bag, tok, 'a fine film', method='grad_x_input'))",
    ),
    (
        'LOO of a model that takes no mask',
        "explain(maskless, tok, 'a fine film', method='loo')",
        V,
        ['Maskless', 'attention_mask'],
    ),
    # files and folders
    (
        'no data folder',
        "load_texts('sst2', tmp/'no-data')",
        F,
        ['no data folder', "'embedded'"],
    ),
    (
        'no data folder, command line',
        "cli('audit', '--data', tmp/'no-data')",
        'exit 1',
        ['no data folder'],
    ),
    (
        'an empty data folder',
        "load_texts('sst2', made(tmp/'empty-data'))",
        F,
        ["'sst2'", 'it holds []'],
    ),
    (
        'a file as data folder',
        "load_texts('sst2', written(tmp/'data.txt', 'x'))",
        F,
        ['no data folder'],
    ),
    (
        'a data set folder that is a file',
        "load_texts('sst2', written(tmp/'a-file'/'sst2', 'x').parent)",
        F,
        ["'sst2'"],
    ),
    (
        'a data set folder that is empty',
        "load_texts('sst2', made(made(tmp/'hollow')/'sst2').parent)",
        V,
        ["'sst2'", 'cannot be read'],
    ),
    (
        'corrupt parquet',
        (
            "load_texts('sst2',"
            " written(tmp/'corrupt-data'/'sst2'/'validation-00000-of-00001.parquet',"
            " b'PAR1 no more').parents[1])"
        ),
        V,
        ["'sst2'", 'cannot be read'],
    ),
    (
        'corrupt parquet, command line',
        (
            "cli('audit', '--data',"
            " written(tmp/'corrupt-data-2'/'sst2'/'validation-00000-of-00001.parquet',"
            " b'PAR1 no more').parents[1])"
        ),
        'exit 1',
        ["'sst2'", 'cannot be read'],
    ),
    (
        'parquet without the columns',
        "load_texts('sst2', table(tmp/'columns', words=['fine'], label=[1]))",
        V,
        ["['words', 'label']", "['label', 'sentence']"],
    ),
    (
        'labels out of range',
        (
            "load_texts('sst2', table(tmp/'labels', sentence=['fine', 'no'],"
            " label=[1, 7]))"
        ),
        V,
        ['labels [1, 7]', '0 and 1'],
    ),
    (
        'labels that are str',
        (
            "load_texts('sst2', table(tmp/'words', sentence=['fine'],"
            " label=['positive']))"
        ),
        V,
        ["labels ['positive']"],
    ),
    (
        'labels that are missing',
        (
            "load_texts('sst2', table(tmp/'missing', sentence=['fine', 'no'],"
            " label=[1, None]))"
        ),
        V,
        ['labels', 'None'],
    ),
    (
        'a text that is missing',
        (
            "load_texts('sst2', table(tmp/'no-text', sentence=['fine', None],"
            " label=[1, 0]))"
        ),
        V,
        ['sentence', 'row 1'],
    ),
    (
        'texts that are numbers',
        (
            "load_texts('sst2', table(tmp/'numbers', sentence=[1, 2], label=[1,"
            " 0]))"
        ),
        V,
        ['sentence', 'row 0', 'int'],
    ),
    (
        'an empty split',
        "load_texts('sst2', table(tmp/'no-rows', sentence=[], label=[]))",
        V,
        ["'sst2'", '"validation" corresponds to no data'],
    ),
    (
        'a split that is not there',
        (
            "load_texts('sst2', table(tmp/'splits', split='train',"
            " sentence=['fine'], label=[1]))"
        ),
        V,
        ["'validation'", "['train']"],
    ),
    ('unknown data set', "load_texts('news')", V, ["'news'", 'sst2']),
    ('data as a number', "load_texts('sst2', 5)", F, ["'5'", 'embedded']),
    (
        'a results file that is no JSON',
        "Results(written(tmp/'r1.json', '{\"config\": '), {})",
        V,
        ['r1.json', 'not a results file'],
    ),
    (
        'a results file of bytes',
        "Results(written(tmp/'r2.json', b'\\xff\\xfe\\x00'), {})",
        V,
        ['r2.json', 'not a results file'],
    ),
    (
        'a results file that is a number',
        "read_results(written(tmp/'r3.json', '5'))",
        V,
        ['r3.json', 'config, versions or rows'],
    ),
    (
        'a results file that is empty',
        "read_results(written(tmp/'r4.json', ''))",
        V,
        ['r4.json', 'not a results file'],
    ),
    (
        'a results file whose rows are a number',
        (
            "Results(written(tmp/'r5.json', json.dumps(dict(config={},"
            " versions=versions(), rows=5))), {})"
        ),
        V,
        ['r5.json', 'rows'],
    ),
    (
        'a results file whose rows have no number',
        (
            "Results(written(tmp/'r6.json', json.dumps(dict(config={},"
            " versions=versions(), rows=[{'r': 1}]))), {})"
        ),
        V,
        ['r6.json', 'rows'],
    ),
    (
        'a results file with a row twice',
        (
            "Results(written(tmp/'r7.json', json.dumps(dict(config={},"
            " versions=versions(), rows=[{'i': 1}, {'i': 1}]))), {})"
        ),
        V,
        ['r7.json', 'row 1', 'twice'],
    ),
    (
        'results of another config',
        (
            "(Results(tmp/'r8.json', dict(seed=0)).save(),"
            " Results(tmp/'r8.json', dict(seed=1)))"
        ),
        V,
        ['r8.json', 'seed (0 there, 1 now)', '--fresh'],
    ),
    (
        'results of another version',
        (
            "Results(written(tmp/'r9.json', json.dumps(dict(config={},"
            " versions=versions() | dict(torch='1.0'), rows=[]))), {})"
        ),
        V,
        ['r9.json', 'torch', '1.0'],
    ),
    (
        'no results file',
        "read_results(tmp/'none.json')",
        F,
        ['no results', 'lrp_loo reproduce'],
    ),
    (
        'a folder as results file',
        "Results(made(tmp/'r10.json'), {})",
        V,
        ['r10.json', 'folder'],
    ),
    (
        'a row without its number',
        "Results(tmp/'r11.json', {}).add(dict(r=1))",
        V,
        ["'i'", "['r']"],
    ),
    (
        'a row that is there',
        (
            "(r := Results(tmp/'r12.json', {}), r.add(dict(i=0)),"
            " r.add(dict(i=0)))"
        ),
        V,
        ['row 0', 'already there'],
    ),
    (
        'a config that is no JSON',
        "Results(tmp/'r13.json', dict(f=print))",
        T,
        ['builtin_function_or_method', 'JSON'],
    ),
    (
        'results below a file',
        "Results(written(tmp/'a-file-2', 'x')/'r.json', {}).save()",
        O,
        ['r.json', 'could not be written'],
    ),
    (
        'a file as output folder, command line',
        (
            "cli('reproduce', '--data', 'embedded', '--only', 'scalar',"
            " '--out', written(tmp/'a-file-3', 'x'))"
        ),
        'exit 1',
        ['scalar.json', 'could not be written'],
    ),
    (
        'a folder that may not be written',
        (
            "as_nobody(made(tmp/'mine'), lambda: Results(tmp/'mine'/'r.json',"
            " {}).save())"
        ),
        P,
        ['r.json', 'could not be written', 'Permission denied'],
    ),
    (
        'a file that may not be read',
        (
            "(p := written(tmp/'mine-2'/'r.json', '{}'), p.chmod(0),"
            " as_nobody(p.parent, lambda: read_results(p)))"
        ),
        P,
        ['r.json', 'could not be read', 'Permission denied'],
    ),
    (
        'a full disk',
        (
            "on_a_full_disk(lambda: write_text_atomic(tmp/'full.txt',"
            " 'x'*100_000))"
        ),
        O,
        ['full.txt', 'could not be written'],
    ),
    (
        'a full disk, sweep',
        (
            "on_a_full_disk(lambda: explain_dataset(['fine']*2,"
            " tmp/'full-sweep', ['attn_lrp'], model=(small, tok, 'small'),"
            " progress=False))"
        ),
        O,
        ['.parquet could not be written'],
    ),
    (
        'a file as a sweep\'s folder',
        (
            "explain_dataset(['fine'], written(tmp/'a-file-4', 'x'), model=(m,"
            " tok, 'demo'))"
        ),
        O,
        ['sweep.json could not be written', 'a-file-4'],
    ),
    (
        'parquet files of somebody else',
        (
            "explain_dataset(['fine'], table(tmp/'theirs', a=[1])/'sst2',"
            " model=(m, tok, 'demo'))"
        ),
        V,
        ['sst2', 'sweep.json'],
    ),
    (
        'a sweep of other texts',
        (
            "explain_dataset(['fine', 'no'], swept(tmp/'s1', w), ['attn_lrp'],"
            " model=(m, tok, 'demo'), progress=False)"
        ),
        V,
        ['s1', 'other texts', '--fresh'],
    ),
    (
        'a sweep whose record is corrupt',
        (
            "explain_dataset(['fine'], written(swept(tmp/'s2', w)/'sweep.json',"
            " '{').parent, ['attn_lrp'], model=(m, tok, 'demo'),"
            " progress=False)"
        ),
        V,
        ['sweep.json', 'not a results file'],
    ),
    (
        'a sweep with a corrupt part',
        (
            "explain_dataset(['a fine film', 'the jokes are old'],"
            " written(swept(tmp/'s3', w)/'0.parquet', b'PAR1').parent,"
            " ['attn_lrp'], model=(m, tok, 'demo'), progress=False)"
        ),
        'works',
        "out.n['attn_lrp'] == 2",
    ),
    ('no sweep', "read_sweep(made(tmp/'s4'))", F, ['s4', 'lrp_loo sweep']),
    (
        'an audit\'s table in a folder, command line',
        (
            "cli('audit', '--data', 'embedded', '--limit', '1', '--methods',"
            " 'cp_lrp', '--out', made(tmp/'out.json'))"
        ),
        'exit 1',
        ['out.json', 'it is a folder'],
    ),
    # a reader's own texts
    ('no such CSV', "read_texts(tmp/'none.csv')", F, ["no file 'none.csv'"]),
    (
        'a CSV without rows',
        "read_texts(written(tmp/'e.csv', 'text\\n'))",
        V,
        ['e.csv has no rows'],
    ),
    (
        'an empty CSV',
        "read_texts(written(tmp/'e2.csv', ''))",
        V,
        ['e2.csv cannot be read'],
    ),
    (
        'a CSV with an empty row',
        "read_texts(written(tmp/'e3.csv', 'text,label\\nfine,1\\n  ,0\\n'))",
        V,
        ['1 rows without a text', 'row 1'],
    ),
    (
        'a CSV with two columns that could be meant',
        "read_texts(written(tmp/'e4.csv', 'text,review\\na,b\\n'))",
        V,
        ['text, review', 'name one'],
    ),
    (
        'a column that is not there',
        "read_texts(written(tmp/'e5.csv', 'text\\na\\n'), column='body')",
        V,
        ["no column 'body'", 'it has text'],
    ),
    (
        'JSON lines that are none',
        "read_texts(written(tmp/'e6.jsonl', '{'))",
        V,
        ['e6.jsonl cannot be read'],
    ),
    (
        'JSON lines with a number for a text',
        "read_texts(written(tmp/'e7.jsonl', '{\"text\": 7}\\n'))",
        V,
        ['row 0', 'int'],
    ),
    (
        'parquet that is none',
        "read_texts(written(tmp/'e8.parquet', b'PAR1'))",
        V,
        ['e8.parquet cannot be read'],
    ),
    (
        'a file of another kind',
        "read_texts(written(tmp/'e9.docx', 'x'))",
        V,
        ['e9.docx', '.csv', '.parquet'],
    ),
    (
        'a CSV in another encoding',
        "read_texts(written(tmp/'e10.csv', 'text\\ncafé'.encode('latin-1')))",
        V,
        ['e10.csv cannot be read'],
    ),
    (
        'a split of a file',
        "read_texts(written(tmp/'e11.csv', 'text\\na\\n'), split='test')",
        V,
        ["no split 'test'"],
    ),
    (
        'NA in a CSV is a text',
        "read_texts(written(tmp/'e12.csv', 'text\\nNA\\n'))",
        'works',
        "out.texts == ['NA']",
    ),
    (
        'own texts too long, command line',
        (
            "cli('audit', '--data', written(tmp/'long.csv', 'text\\n' + 'word"
            " '*900))"
        ),
        'exit 1',
        ['902 tokens', '512'],
    ),
    (
        'a CSV with an empty row, the option',
        "read_texts(written(tmp/'f1.csv', 'text,label\\nfine,1\\n  ,0\\n'))",
        V,
        ['skip_missing=True', '--skip-missing'],
    ),
    (
        'a CSV with an empty row, skipped',
        (
            "read_texts(written(tmp/'f2.csv', 'text,label\\nfine,1\\n  ,0\\n'),"
            " skip_missing=True)"
        ),
        'works',
        "out.texts == ['fine'] and out.info['missing'] == dict(n=1, rows=[1])",
    ),
    (
        'a CSV with an empty row, skipped, command line',
        (
            "cli('audit', '--data', written(tmp/'f3.csv', 'text\\na fine"
            " film\\n\\nthe jokes are old\\n'), '--methods', 'cp_lrp',"
            " '--skip-missing')"
        ),
        'works',
        "'1 rows without a text left out (counted from 0: 1)' in out",
    ),
    (
        'a CSV of empty rows',
        (
            "read_texts(written(tmp/'f4.csv', 'text,label\\n,1\\n,0\\n'),"
            " skip_missing=True)"
        ),
        V,
        ['f4.csv', 'no row with a text'],
    ),
    (
        'a blank line in a CSV',
        "read_texts(written(tmp/'f5.csv', 'text\\nfine\\n\\nno\\n'))",
        V,
        ['1 rows without a text', 'row 1'],
    ),
    (
        'semicolons between columns',
        "read_texts(written(tmp/'f6.csv', 'text;label\\nslow, but fine;1\\n'))",
        'works',
        "out.texts == ['slow, but fine']",
    ),
    (
        'bars between columns',
        "read_texts(written(tmp/'f7.csv', 'label|text\\n1|slow, but fine\\n'))",
        'works',
        "out.texts == ['slow, but fine']",
    ),
    (
        'an unquoted comma in a CSV of one column',
        "read_texts(written(tmp/'f8.csv', 'text\\nslow, but fine\\n'))",
        V,
        ['f8.csv cannot be read', 'line 2', 'must stand in quotes'],
    ),
    (
        'two columns of one name',
        "read_texts(written(tmp/'f9.csv', 'text,text\\na,b\\n'))",
        V,
        ['f9.csv', "two columns named 'text'"],
    ),
    (
        'a CSV in another encoding, the option',
        "read_texts(written(tmp/'f10.csv', 'text\\ncafé'.encode('latin-1')))",
        V,
        ['--encoding'],
    ),
    (
        'a CSV in another encoding, named',
        (
            "read_texts(written(tmp/'f11.csv',"
            " 'text\\ncafé'.encode('latin-1')), encoding='latin-1')"
        ),
        'works',
        "out.texts == ['café']",
    ),
    (
        'unknown encoding',
        "read_texts(written(tmp/'f12.csv', 'text\\nfine'), encoding='utf-88')",
        V,
        ["'utf-88'", 'utf-8'],
    ),
    (
        'a byte-order mark',
        (
            "read_texts(written(tmp/'f13.csv', '\\ufefftext\\nfine'),"
            " column='text')"
        ),
        'works',
        "out.texts == ['fine']",
    ),
    (
        'a pair of one column',
        "read_texts(written(tmp/'f14.csv', 'a,b\\nx,y\\n'), columns=('a',))",
        V,
        ["('a',)", 'two different names'],
    ),
    (
        'a pair and a column',
        (
            "read_texts(written(tmp/'f15.csv', 'a,b\\nx,y\\n'), column='a',"
            " columns=('a', 'b'))"
        ),
        V,
        ["column='a'", 'cannot both be meant'],
    ),
    (
        'a pair whose column is not there',
        (
            "read_texts(written(tmp/'f16.csv', 'a,b\\nx,y\\n'), columns=('a',"
            " 'c'))"
        ),
        V,
        ["no column 'c'", 'a, b'],
    ),
    (
        'pairs, audit',
        (
            "cli('audit', '--data', written(tmp/'f17.csv', 'a,b\\na fine"
            " film,indeed it is\\n'), '--columns', 'a,b', '--methods',"
            " 'cp_lrp')"
        ),
        'works',
        "'1 of 1 texts' in out",
    ),
    (
        'pairs, sweep',
        (
            "cli('sweep', '--data', written(tmp/'f18.csv', 'a,b\\na fine"
            " film,indeed it is\\n'), '--columns', 'a,b', '--methods',"
            " 'cp_lrp', '--out', tmp/'f18')"
        ),
        'works',
        "'1 texts of f18.csv' in out",
    ),
    (
        'one column for a pair, command line',
        "cli('audit', '--columns', 'premise')",
        'exit 2',
        ["'premise'", 'two names'],
    ),
    # before a model is loaded
    (
        'a file of another kind to write, command line',
        "without_a_model('explain', 'fine', '--out', tmp/'map.txt')",
        'exit 2',
        ["'map.txt'", '.html or .json or .parquet'],
    ),
    (
        'a page of another kind, command line',
        "without_a_model('explain', 'fine', '--html', tmp/'map.pdf')",
        'exit 2',
        ["'map.pdf'", '.html'],
    ),
    (
        'an audit of another kind of file, command line',
        "without_a_model('audit', '--out', tmp/'rows.csv')",
        'exit 2',
        ["'rows.csv'", '.json'],
    ),
    (
        'a file below a file, command line',
        (
            "without_a_model('explain', 'fine', '--out',"
            " written(tmp/'a-file-5', 'x')/'map.json')"
        ),
        'exit 1',
        ["'a-file-5' is a file"],
    ),
    (
        'a folder as a file, command line',
        "without_a_model('explain', 'fine', '--out', made(tmp/'g1.json'))",
        'exit 1',
        ["'g1.json'", 'it is a folder'],
    ),
    (
        'another run\'s audit, command line',
        (
            "without_a_model('audit', '--data', 'embedded', '--limit', '1',"
            " '--out', written(tmp/'g2.json',"
            " json.dumps(dict(config=dict(experiment='precision'),"
            " versions=versions(), rows=[]))))"
        ),
        'exit 1',
        ['g2.json holds rows of another run', 'precision', '--fresh'],
    ),
    (
        'a sweep below a file, command line',
        (
            "without_a_model('sweep', '--data', 'embedded', '--limit', '1',"
            " '--out', written(tmp/'a-file-6', 'x'))"
        ),
        'exit 1',
        ["'a-file-6' is a file"],
    ),
    (
        'another sweep\'s folder, command line',
        (
            "without_a_model('sweep', '--data', 'embedded', '--limit', '1',"
            " '--methods', 'ig', '--out', swept(tmp/'g3', w))"
        ),
        'exit 1',
        ['sweep.json holds rows of another run', 'methods'],
    ),
    (
        'unknown device, audit',
        "without_a_model('audit', '--device', 'warp')",
        'exit 1',
        ["'warp'", "'cpu'"],
    ),
    (
        'an empty target, command line',
        "without_a_model('explain', 'fine', '--target', ' ')",
        'exit 2',
        ['--target is empty'],
    ),
    (
        'a negative target, command line',
        "without_a_model('explain', 'fine', '--target', '-1')",
        'exit 2',
        ["'-1'", 'from 0'],
    ),
    (
        'three targets, command line',
        "without_a_model('explain', 'fine', '--target', '0,1,0')",
        'exit 2',
        ["'0,1,0'", 'A,B'],
    ),
    (
        'a position that is none, command line',
        "without_a_model('explain', 'fine', '--position', 'last')",
        'exit 2',
        ["'last'"],
    ),
    (
        'a position in a classifier, command line',
        "cli('explain', 'fine', '--position', '0')",
        'exit 1',
        ['position=0', 'one row per text'],
    ),
    (
        'a page of a pair, command line',
        (
            "without_a_model('explain', 'fine', '--pair', 'no', '--html',"
            " tmp/'g4.html')"
        ),
        'exit 2',
        ['--html', '--pair'],
    ),
    # an interruption
    (
        'Ctrl-C, explain',
        "interrupted('explain', 'a fine film')",
        'exit 130',
        ['nothing is kept'],
    ),
    (
        'Ctrl-C, audit without a file',
        (
            "interrupted('audit', '--data', 'embedded', '--limit', '1',"
            " '--methods', 'cp_lrp')"
        ),
        'exit 130',
        ['nothing is kept', '--out'],
    ),
    (
        'Ctrl-C, audit to a file before a row',
        (
            "interrupted('audit', '--data', 'embedded', '--limit', '1',"
            " '--methods', 'cp_lrp', '--out', tmp/'h1.json')"
        ),
        'exit 130',
        ['no row was finished'],
    ),
    (
        'Ctrl-C, sweep before a row',
        (
            "interrupted('sweep', '--data', 'embedded', '--limit', '1',"
            " '--methods', 'cp_lrp', '--out', tmp/'h2')"
        ),
        'exit 130',
        ['no row was finished'],
    ),
    # a hub that gives no answer
    (
        'a hub that cannot be reached',
        "unreachable(lambda: load_model('nobody/no-such-model'))",
        V,
        ["'nobody/no-such-model'", 'the hub cannot be reached'],
    ),
    (
        'a hub that cannot be reached, data',
        "unreachable(lambda: read_texts('hub:nobody/no-such-data'))",
        ConnectionError,
        ["'nobody/no-such-data'", 'the hub cannot be reached'],
    ),
    (
        'a hub that cannot be reached, command line',
        (
            "unreachable(lambda: cli('explain', 'fine', '--model',"
            " 'nobody/no-such-model'))"
        ),
        'exit 1',
        ["'nobody/no-such-model'", 'the hub cannot be reached'],
    ),
    (
        'a config.json with a word for a number',
        (
            "load_model(saved(tmp/'wide', bert(), tok,"
            " config=json.dumps(bert().config.to_dict() |"
            " dict(hidden_size='wide'))))"
        ),
        V,
        ["'wide' cannot be loaded"],
    ),
    (
        'a config.json of an unknown kind',
        (
            "load_model(saved(tmp/'kind', bert(), tok,"
            " config=json.dumps(bert().config.to_dict() |"
            " dict(model_type='no-such-kind'))))"
        ),
        V,
        ["'kind' cannot be loaded", 'no-such-kind'],
    ),
    (
        'own texts, none short enough, command line',
        (
            "cli('audit', '--set_aside', '--data', written(tmp/'long2.csv',"
            " 'text\\n' + 'word '*900))"
        ),
        'exit 1',
        ['none of the 1 texts', '--truncation'],
    ),
    (
        'layers that are none, command line',
        "cli('explain', 'fine', '--bypass_softmax', 'upper')",
        'exit 2',
        ['layers from 0'],
    ),
    (
        'an encoder without a trained head',
        "load_model(str(demo_base()))",
        V,
        ['no trained weights', 'classifier.weight'],
    ),
    # explanations in files, under one another, on a page
    (
        'a file that holds no explanation',
        "load(written(tmp/'x.json', '{}'))",
        V,
        ['x.json holds no'],
    ),
    (
        'a page that holds no explanation',
        "load(written(tmp/'x.html', '<p>fine'))",
        V,
        ['x.html holds no'],
    ),
    (
        'an explanation that is not there',
        "load(tmp/'none.json')",
        F,
        ['none.json'],
    ),
    (
        'an explanation into a pickle',
        "explain(m, tok, 'fine')[0].save(tmp/'x.pkl')",
        V,
        ['x.pkl', '.parquet'],
    ),
    (
        'explanations of two texts compared',
        (
            "compare(explain(m, tok, 'a fine film')[0], explain(m, tok, 'a dull"
            " one , too')[0])"
        ),
        V,
        ['one text'],
    ),
    ('nothing compared', "compare([])", V, ['nothing to compare']),
    (
        'markup in a text',
        "explain(m, tok, '<script>alert(1)</script>')[0]._repr_html_()",
        'works',
        "'<script' not in out",
    ),
    (
        'a page without methods',
        "explain_page(m, tok, 'fine', methods=[])",
        V,
        ['methods is empty'],
    ),
    (
        'a page of two texts',
        "explain_page(m, tok, ['fine', 'dull'])",
        T,
        ['list'],
    ),
]


def answer(case, world):
    """What comes: the kind ('works', 'exit 1', an exception's name), its
    message, and what is wrong with it ('' if nothing is).
    """
    name, call, wanted, rest = case

    def look(code, **more):
        return eval(
            code,
            globals()
            | {
                n: world[n]
                for n in set(re.findall(r'\w+', code)) & {*world, *MAKE}
            }
            | more,
        )

    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter('ignore')
            out = look(call)
    except Said as e:
        came = f'exit {e.args[0]}'
        message = e.args[1]
        error = e
    except Exception as e:
        came = type(e).__name__
        message = str(e)
        error = e
    else:
        return (
            'works',
            '',
            (
                ''
                if wanted == 'works' and look(rest, out=out)
                else f'the call worked and {rest} does not hold'
            ),
        )
    message = message.replace(f'{world["tmp"]}', 'TMP').strip()
    if wanted == 'works':
        return came, message, 'an error'
    if isinstance(wanted, str):
        wrong = '' if came == wanted else f'{wanted} is wanted'
    else:
        wrong = (
            ''
            if type(error) is wanted
            or wanted is OSError
            and isinstance(error, OSError)
            else f'{wanted.__name__} is wanted'
        )
    if not wrong:
        wrong = ', '.join(f'{x!r} is missing' for x in rest if x not in message)
    if (
        not wrong
        and came != 'exit 2'
        and ('\n' in message or 'Traceback' in message)
    ):
        wrong = 'more than one line'
    return came, message, wrong


def row(case, world):
    "A case with its answer."
    came, message, wrong = answer(case, world)
    wanted = case[2] if isinstance(case[2], str) else case[2].__name__
    return (
        dict(
            name=case[0],
            given=case[1],
            expected=wanted,
            must=case[3],
            came=came,
            message=message,
        ),
        wrong,
    )


def as_markdown(d):
    "The answers as a page."

    def cell(x):
        return x.replace('|', '\\|').replace('\n', ' ').replace('<', '&lt;')

    def cut(x):
        return x if len(x) <= 400 else x[:400] + ' …'

    lines = [
        '# What comes of bad input',
        '',
        (
            f"{len(d['rows'])} calls that cannot be right, or look so, and what"
            " came of each. Made by `python tests/bad_input.py --write`, held"
            " by `tests/test_bad_input.py`."
        ),
        (
            "Versions:"
            f" {', '.join(f'{k} {v}' for k, v in d['versions'].items() if v)}."
            " `TMP` is a folder of the test's own; `m, tok` are the demo model"
            " for SST-2, `lm, lm_tok` the small language model."
        ),
        '',
        '| given | call | what came |',
        '|---|---|---|',
    ]

    def said(r):
        return (
            'works: ' + f"`{cell(r['must'])}`"
            if r['came'] == 'works'
            else f"{r['came']}: {cell(cut(r['message']))}"
        )

    return (
        '\n'.join(
            lines
            + [
                f"| {cell(r['name'])} | `{cell(r['given'])}` | {said(r)} |"
                for r in d['rows']
            ]
        )
        + '\n'
    )


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as d:
        world = World(d)
        found = [row(c, world) for c in CASES]
    for r, wrong in found:
        if wrong:
            print(
                f"{r['name']}: {wrong}\n    {r['given']}\n    {r['came']}:"
                f" {r['message'][:600]}"
            )
    print(len(found), 'cases,', sum(bool(w) for _, w in found), 'wrong')
    if '--write' in sys.argv and not any(w for _, w in found):
        d = dict(versions=versions(), rows=[r for r, _ in found])
        write_text_atomic(
            RESULTS / 'bad-input.json',
            json.dumps(dict(versions=d['versions']), indent=1)[:-2]
            + ',\n "rows": [\n'
            + ',\n'.join(
                '  ' + json.dumps(r, ensure_ascii=False) for r in d['rows']
            )
            + '\n ]\n}\n',
        )
        write_text_atomic(RESULTS / 'bad-input.md', as_markdown(d))
    sys.exit(any(w for _, w in found))
