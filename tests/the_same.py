"""Does the code still compute the same, bit for bit?   Before and after a change:

    python tests/the_same.py --write FILE           # before: compute, and store
    python tests/the_same.py FILE                   # after: compute again, and compare
    python tests/the_same.py FILE --only explain audit    # some parts of it

Every method, target, unit, option and task on the demo models, MPNet and SmolLM2
among them (`make models`), what is refused and why, the command line, and the
paper's rows on three examples. Public names alone are used, so the modules behind
them may be moved. The code is that which Python finds (PYTHONPATH); which one is
said first. Numbers depend on the processor: FILE is for one machine, and is not
committed.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers

import lrp_loo
from lrp_loo import METHODS, Removal, Target

TEXT = 'The plot is thin, but both leads are a joy. See it twice!'
TEXTS = [TEXT, 'nothing in it is new , and none of it is true']
OWN = [
    *TEXTS,
    'A quiet film with a loud heart.',
    'Nobody in this comedy is having any fun.',
    'It drags, then it soars, then it drags again.',
    'The best thing here is the train station.',
    'I laughed twice, and once by mistake.',
    'Two hours that pass like a warm afternoon.',
    'Not great, not bad, just long.',
    'The writer forgot to come, and so did the jokes.',
]
UNITS = dict(token='token', word='word', sentence='sentence', spans=[(0, 8), (12, 23)])


# --------------------------------------------------------- what is kept of a call


# otherwise in each run; worker: the process
LEFT_OUT = {'seconds', 'versions', 'minutes', 'worker'}
FORMS = {  # of what JSON does not know
    torch.Tensor: lambda x: x.tolist(),
    np.ndarray: lambda x: x.tolist(),
    np.generic: lambda x: x.item(),
    pd.DataFrame: lambda x: x.reset_index().to_dict('list'),
    type(pd.NA): lambda x: None,
}


def named(x):
    "The entries of a record by name; None where it has no names."
    if isinstance(x, dict):
        return x
    if hasattr(x, '_asdict'):
        return x._asdict()
    if is_dataclass(x):
        return {f.name: getattr(x, f.name) for f in fields(x)}


def plain(x):
    "As JSON keeps it; every float exactly."
    if x is None or type(x) in (str, int, float, bool):
        return x
    for kind, form in FORMS.items():
        if isinstance(x, kind):
            return plain(form(x))
    entries = named(x)
    if entries is not None:
        return {str(k): plain(v) for k, v in entries.items() if k not in LEFT_OUT}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    raise TypeError(f"{type(x).__name__} cannot be kept")


def sha(text):
    "Of a text too long to be kept."
    return hashlib.sha256(text.encode()).hexdigest()


class Values(dict):
    "Key → what came of a call, or why it was refused."

    part = ''  # that is computed now
    n_refused = 0

    def add(self, key, call, *args, **options):
        "Make a call and keep what comes of it, which is handed on."
        torch.manual_seed(0)
        found = None
        try:
            found = call(*args, **options)
        except (TypeError, ValueError, NotImplementedError) as e:
            self.n_refused += 1
            self.keep(key, f'refused, {type(e).__name__}: {e}')
        else:
            self.keep(key, found)
        return found

    def keep(self, key, found):
        "Keep something that is there."
        key = f'{self.part}/{key}'
        if key in self:
            raise KeyError(f"{key} is there already")
        self[key] = json.loads(json.dumps(plain(found)))

    def explain(self, key, name, texts, **options):
        "Texts explained by the model of a name."
        return self.add(key, lrp_loo.explain, *model(name), texts, **options)


# ----------------------------------------------------------------------- models


TINY = {  # random weights and its labels, for tasks that no demo model has
    'tagger': (transformers.BertForTokenClassification, 'OAB'),
    'answers': (transformers.BertForQuestionAnswering, 'ab'),
    'masked': (transformers.BertForMaskedLM, 'ab'),
    'topics': (transformers.BertForSequenceClassification, 'ABC'),
    'rating': (transformers.BertForSequenceClassification, 'r'),
}


def tiny(kind, labels):
    "A small BERT with random weights, the same in each run."
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
    )
    made = kind(config).eval()
    for weight in made.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return made


@cache
def model(name):
    "A demo model, or a tiny one, and its tokenizer."
    if name in TINY:
        return tiny(*TINY[name]), model('sst2')[1]
    return lrp_loo.load_demo(name)


def image():
    "A pattern in the size of a digit, from −1 to 1."
    return torch.linspace(0, 40, 784).sin().view(1, 28, 28)


# ------------------------------------------------------------ parts: one function


def margin(out):
    "A number of one's own to be explained."
    return out.logits[:, 1] - out.logits[:, 0] ** 2


OF_CLASSES = {
    'number': 0,
    'label': 'negative',
    'pair': (1, 0),
    'record': Target(1, output='logits'),
    'log_prob': Target(0, log_prob=True),
    'among': Target(among=(0, 1)),
    'function': margin,
    'no number': 2,
    'no label': 'purple',
    'no place': Target(1, position=3),
}
OF_TOKENS = {
    'token': ' liked',
    'pair': (506, 601),
    'log_prob': Target(506, log_prob=True),
    'place': Target(position=2),
    'place from the end': Target(601, position=-2),
    'among': Target(among=(506, 601, 1663)),
    'no token': ' liked it so',
}
OPTIONS = {
    'attn_lrp': (
        dict(bypass_softmax=(3, 4)),
        dict(bypass_softmax=((0, 1), (5, 2))),
        dict(bypass_softmax='all', eps=1e-3),
        dict(bypass_softmax=(6,)),
        dict(embeddings='sum'),
        dict(checkpoint=True),
        dict(n_steps=3),
    ),
    'cp_lrp': (dict(eps=1e-3), dict(embeddings='sum')),
    'canonized': (dict(bypass_softmax=(2,)), dict(embeddings='sum')),
    'grad_x_input': (dict(embeddings='sum'), dict(checkpoint=True)),
    'ig': (
        dict(n_steps=5),
        dict(baseline='mask'),
        dict(baseline='zero', internal_batch_size=3),
        dict(n_steps=0),
    ),
    'rollout': (dict(residual=True), dict(row=2)),
    'loo': (dict(token_budget=32), dict(removal='none such')),
    'removal': (dict(own_rows=True), dict(checkpoint=True), dict(exact_special=True)),
    'removal+loo': (dict(n_exact=2), dict(n_exact=3)),
    'removal+rows': (
        dict(n_rows=2),
        dict(passes=6.0),
        dict(near='read', n_exact=2),
        dict(near='spread'),
        dict(rest=False, n_leading=3),
    ),
}
RULES = (  # of `Composite`
    dict(product='canonized'),
    dict(product='gradient'),
    dict(gate='constant'),
    dict(layer_norm='gradient'),
    dict(activation='gradient'),
    dict(eps=1e-3, bypass_softmax={1: (0, 3)}),
)


def explain(values):
    "Every method in every unit, and in a batch with a target for each text."
    for method in METHODS:
        for name, units in UNITS.items():
            how = dict(method=method, units=units)
            values.explain(f'sst2/{method}/{name}/predicted', 'sst2', TEXT, **how)
        how = dict(method=method, target=[0, 'positive'])
        values.explain(f'sst2/{method}/batch', 'sst2', OWN[:2], **how)
    each = dict(units=['word', [(0, 7)]], batch_size=1)
    values.explain('sst2/units of each', 'sst2', TEXTS, **each)
    values.explain('sst2/cut', 'sst2', TEXT, truncation=True, max_length=6)
    values.explain('sst2/too long', 'sst2', 'word ' * 600)


def targets(values):
    "Every method for every kind of target, of classes and of tokens."
    asked = {'sst2': OF_CLASSES, 'reviews': OF_TOKENS}
    for name, kinds in asked.items():
        for kind, target in kinds.items():
            for method in METHODS:
                how = dict(method=method, target=target)
                values.explain(f'{name}/{method}/{kind}', name, OWN[4], **how)


def ways(kind=Removal):
    "The names of all removals."
    for sub in kind.__subclasses__():
        yield from (sub.name, *ways(sub))


def options(values):
    "Every method's own options, removals and sets of rules."
    for method, several in OPTIONS.items():
        for own in several:
            key = f'{method}/{own}'
            values.explain(key, 'sst2', OWN[2], method=method, **own)
    for way in sorted(filter(None, ways())):
        pool = dict(pool=OWN) if way in ('resample', 'mean_embedding') else {}
        how = dict(method='loo', removal=Removal(way, **pool))
        values.explain(f'removed/{way}', 'sst2', OWN[2], **how)
        values.explain(f'removed by name/{way}', 'reviews', OWN[2], **how)
    for rules in RULES:
        how = dict(method='lrp', composite=lrp_loo.Composite('own', **rules))
        values.explain(f'rules/{rules}', 'sst2', OWN[2], **how)
        values.explain(f'rules of a decoder/{rules}', 'reviews', OWN[2], **how)


def models(values):
    "Every method on every other model; as `load_model` gives it."
    for name in ('imdb', 'reviews', 'reviews-sst2', 'mpnet-sst2', 'smollm2'):
        for method in METHODS:
            values.explain(f'{name}/{method}/token', name, OWN[2], method=method)
        for method in ('loo', 'removal', 'cp_lrp'):
            how = dict(method=method, units='word')
            values.explain(f'{name}/{method}/word', name, OWN[6], **how)
    for method in METHODS:
        how = dict(method=method)
        values.explain(f'mnist/{method}', 'mnist', image(), **how)
    *loaded, said = lrp_loo.load_model('demo', 'imdb')
    values.add(f'loaded as {said}', lrp_loo.explain, *loaded, TEXT, 'loo')


def tasks(values):
    "Every method on taggers, questions, masked words, pairs, regression."
    pair = ('Where did Ada meet Grace?', 'Ada met Grace in Paris.')
    asked = {
        'tagger': (pair[1], Target(2, position=5)),
        'answers': (pair, 12),
        'masked': ('a warm and [MASK] film', 'funny'),
        'topics': (pair, 'C'),
        'rating': (TEXT, None),
    }
    for name, (text, target) in asked.items():
        for method in METHODS:
            how = dict(method=method, target=target)
            values.explain(f'{name}/{method}', name, text, **how)
    end = Target(12, output='end_logits')
    values.explain('answers/end', 'answers', pair, method='loo', target=end)
    values.explain('tagger/no place', 'tagger', TEXT)


# ------------------------------------------------------- parts: all other functions


def labels(values):
    "Several labels of a text."
    for name in ('sst2', 'topics'):
        for method in ('loo', 'attn_lrp'):
            asked = (*model(name), TEXTS, 'all', method)
            values.add(f'{name}/{method}', lrp_loo.explain_labels, *asked)


def loo(values):
    "Leave-One-Out by itself."
    bert, tokenizer = model('sst2')
    enc = dict(tokenizer(TEXT, return_tensors='pt'))
    alone = torch.arange(enc['input_ids'].shape[1]) // 3
    for key, how in {
        'predicted': {},
        'deleted': dict(target=0, removal='delete'),
        'pad': dict(removal='pad_token', fill=0),
        'units': dict(units=alone),
    }.items():
        values.add(key, lrp_loo.leave_one_out, bert, enc, **how)


def audit(values):
    "All methods against Leave-One-Out, by two removals."
    still = dict(progress=False)
    audit, every = lrp_loo.audit, list(METHODS)
    values.add('sst2', audit, *model('sst2'), OWN[:4], every, **still)
    how = dict(removal='delete', chunk=2, area='aopc', target=1)
    values.add('deleted', audit, *model('sst2'), OWN[:4], **how, **still)
    for name in ('reviews', 'mpnet-sst2'):
        methods = ['loo', 'attn_lrp', 'removal+rows']
        values.add(name, audit, *model(name), OWN[2:5], methods, **still)
    images = [image(), image().flip(1), -image()]
    values.add('mnist', audit, *model('mnist'), images, ['cp_lrp'], **still)


def pairs(values):
    "What two tokens do together."
    for name in ('sst2', 'reviews'):
        for method in ('exact', 'removal'):
            asked = (*model(name), OWN[8], method)
            values.add(f'{name}/{method}', lrp_loo.explain_pairs, *asked)
    asked = (*model('sst2'), TEXT, 'removal')
    how = dict(units='word', target=0, n_exact=3)
    values.add('words', lrp_loo.explain_pairs, *asked, **how)


def context(values):
    "Which sentence of a context made an answer likely."
    how = dict(question='Was it good?', answer=' boring')
    for name in ('reviews', 'smollm2'):
        for method in METHODS:
            asked = (*model(name), 'The cast is fine. The plot is dull.')
            own = how | dict(method=method, template='{context} {question}')
            key = f'{name}/{method}'
            values.add(key, lrp_loo.attribute_context, *asked, **own)
    how |= dict(template='{context} {question}', units='word')
    asked = (*model('reviews'), TEXT)
    values.add('words', lrp_loo.attribute_context, *asked, **how)


def generation(values):
    "Every token that a model generates."
    explain = lrp_loo.explain_generation
    for name in ('reviews', 'smollm2'):
        for method in METHODS:
            asked = (*model(name), 'The acting is', ' bad and', method)
            values.add(f'{name}/{method}', explain, *asked)
        how = dict(max_new_tokens=4, log_prob=False, units='word')
        values.add(f'{name}/own', explain, *model(name), 'It was', **how)
    values.add('no decoder', explain, *model('sst2'), 'It was')
    asked = (*model('reviews'), ['The acting is', 'What a waste of'])
    how = dict(max_new_tokens=4, progress=False)
    values.add('audit', lrp_loo.audit_generation, *asked, **how)


def intervals(values):
    "A calibration, its intervals, and top tokens."
    for units in ('token', 'word'):
        how = dict(method='removal', units=units)
        asked = (*model('sst2'), OWN)
        found = lrp_loo.calibrate(*asked, progress=False, **how)
        values.keep(f'{units}/calibration', found)
        how |= dict(calibration=found, confidence=0.8)
        maps = values.explain(f'{units}/explained', 'sst2', TEXT, **how)
        values.keep(f'{units}/low', maps[0].low)
        values.keep(f'{units}/high', maps[0].high)
        asked = (*model('sst2'), TEXT, 2, found)
        values.add(f'{units}/top', lrp_loo.top_tokens, *asked, 0.8)
        values.add(f'{units}/few', lrp_loo.top_tokens, *asked, 0.99)


def summaries(values):
    "Words of many texts, and two methods beside one another."
    how = dict(min_count=1, progress=False)
    made = {}
    for method in ('attn_lrp', 'removal'):
        asked = (*model('sst2'), OWN, method)
        found = lrp_loo.summarize_texts(*asked, **how)
        made[method] = found
        values.keep(f'{method}/record', found)
        values.keep(f'{method}/words', found.to_frame())
    values.keep('top', made['attn_lrp'].top())
    both = values.add('compared', lrp_loo.compare_summaries, *made.values())
    values.keep('mean r', both.mean_r)
    maps = lrp_loo.explain(*model('sst2'), OWN, target=1)
    how = dict(units='token', by_class=False, min_count=2)
    values.keep('tokens', lrp_loo.summarize(maps, **how).to_frame())


def views(values):
    "A page, and how explanations are shown and kept."
    maps = values.explain('maps', 'sst2', TEXTS, method='cp_lrp')
    values.keep('said', [repr(a) for a in maps])
    values.keep('frame', maps.to_frame())
    values.keep('top', maps[0].top(3))
    exact = lrp_loo.explain(*model('sst2'), TEXT, method='loo')[0]
    values.keep('compared', repr(lrp_loo.compare(exact, maps[0])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'maps.json'
        maps.save(path)
        values.keep('loaded', list(lrp_loo.load(path)))
        maps.save(path.with_suffix('.html'))
        values.keep('html', sha(path.with_suffix('.html').read_text('utf-8')))
    page = lrp_loo.explain_page(*model('sst2'), TEXT)
    values.keep('page', sha(page))


def texts(values):
    "Texts as they are read."
    for name in ('sst2', 'imdb'):
        found = lrp_loo.load_texts(name, 'embedded', limit=4, seed=1)
        values.keep(f'{name}/labels', found.labels)
        values.keep(f'{name}/texts', sha(str(found.texts)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'own.csv'
        pd.DataFrame(dict(text=OWN, label=1)).to_csv(path)
        found = lrp_loo.read_texts(path)
        values.keep('read', [found.texts, found.labels])


def dataset(values):
    "Rows of a data set, and their table."
    with tempfile.TemporaryDirectory() as folder:
        how = dict(name='own', device='cpu', progress=False)
        asked = (*model('sst2'), OWN, folder, list(METHODS))
        values.add('table', lrp_loo.sweep, *asked, **how)
        files = sorted(Path(folder).glob('*.parquet'))
        rows = pd.concat(map(pd.read_parquet, files))
    rows = rows.sort_values(['index', 'method']).to_dict('records')
    for row in rows:
        values.keep(f'{row["index"]}/{row["method"]}', row)


CLASSES = (
    'LRP',
    'GradientXInput',
    'IntegratedGradients',
    'LeaveOneOut',
    'AttentionRollout',
    'RemovalEstimate',
)


def classes(values):
    "Captum's classes and Quantus' function, on ids, embeddings, pixels."
    bert, tokenizer = model('sst2')
    enc = tokenizer(TEXTS, padding=True, return_tensors='pt')
    more = dict(target=[1, 0], additional_forward_args=enc['attention_mask'])
    ids, pixels = enc['input_ids'], torch.stack([image(), -image()])
    x = bert.get_input_embeddings()(ids).detach()
    for name in CLASSES:
        attribute = getattr(lrp_loo, name)(bert).attribute
        values.add(f'{name}/ids', attribute, ids, **more)
        found = attribute(x, **more).sum(-1)  # each dimension is too much
        values.keep(f'{name}/embeddings', found)
        attribute = getattr(lrp_loo, name)(model('mnist')[0]).attribute
        values.add(f'{name}/pixels', attribute, pixels)
    tokens = lrp_loo.TokenModel(bert)
    for method in METHODS:
        call = lrp_loo.quantus_explain(method)
        values.add(f'quantus/{method}', call, tokens, ids.numpy(), [1, 0])
    values.keep('TokenModel', tokens(ids))
    values.keep('TensorModel', lrp_loo.TensorModel(bert)(ids))


def rules(values):
    "Relevance as the gradient times the embeddings, and each rule's calls."
    named = dict(attn_lrp=lrp_loo.attn_lrp(), cp_lrp=lrp_loo.cp_lrp())
    for name in ('sst2', 'reviews-sst2', 'mpnet-sst2'):
        stock, tokenizer = model(name)
        enc = tokenizer(TEXT, return_tensors='pt')
        table = stock.get_input_embeddings().weight
        for key, composite in named.items():
            with lrp_loo.lrp_rules(stock, composite) as held:
                logit = stock(**enc).logits[0, 1]
                (g,) = torch.autograd.grad(logit, table)
            rows = (g * table).detach()[enc['input_ids'][0]].sum(-1)
            values.keep(f'{name}/{key}', rows)
            values.keep(f'{name}/{key}/report', held.report())


# ------------------------------------------------------------ parts: the command


def command(*words):
    "What the command line says: as JSON where it is, else as a text."
    words = [sys.executable, '-W', 'ignore', '-m', 'lrp_loo', *words]
    env = dict(os.environ, PYTHONPATH=str(home().parent), OMP_NUM_THREADS='1')
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        return f'refused, exit {done.returncode}: {done.stderr.strip()}'
    with contextlib.suppress(ValueError):
        return json.loads(done.stdout)
    return done.stdout


def shell(values):
    "Commands with few texts; which method the audit's rows make one trust."
    cpu = ('--device', 'cpu', '--json')
    for key, words in {
        'explain': ('explain', TEXT, '--method', 'loo,removal,ig', *cpu),
        'text': ('explain', TEXT, '--units', 'word', '--target', 'negative'),
        'generate': ('generate', 'It was', '--max-new-tokens', '3', '--json'),
        'summarize': ('summarize', '--limit', '8', '--min_count', '2', *cpu),
        'wrong': ('explain', TEXT, '--method', 'lime'),
    }.items():
        values.keep(key, command(*words))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'rows.json'
        few = ('--limit', '6', '--out', str(out))
        values.keep('audit', command('audit', *few, *cpu))
        rows = json.loads(out.read_text(encoding='utf-8'))['rows']
    values.keep('audit, rows', rows)
    values.keep('verdict', lrp_loo.verdict(rows))


def reproduce(values):
    "The paper's rows, by file and number; where they lie does not matter."
    with tempfile.TemporaryDirectory() as folder:
        where = ('--out', folder, '--device', 'cpu')
        said = command('reproduce', '--limit', '3', *where)
        if said.startswith('refused'):
            raise SystemExit(said)
        for path in sorted(Path(folder).glob('results/*/*.json')):
            kept = json.loads(path.read_text(encoding='utf-8'))
            for name in sorted(set(kept) - {'config', *LEFT_OUT}):
                rows = kept[name]
                rows = rows if isinstance(rows, list) else [rows]
                for i, row in enumerate(rows):
                    values.keep(f'{path.stem}/{name}/{i}', row)


# ---------------------------------------------- parts: models of more than one part


def widened(made, std):
    "Return a model in eval mode with random weights large enough that inputs matter."
    torch.manual_seed(0)
    with torch.no_grad():
        for p in made.parameters():
            if p.ndim > 1:
                p.normal_(0, std)
    return made.eval()


@cache
def encoder_decoder(name):
    "Return a small T5 or BART with random weights."
    common = dict(vocab_size=30522, pad_token_id=0, eos_token_id=102)
    bart = dict(
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        decoder_start_token_id=102,
        bos_token_id=101,
        max_position_embeddings=64,
    )
    t5 = dict(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    kind = getattr(transformers, name)
    sizes = (t5 if name.startswith('T5') else bart) | common
    torch.manual_seed(0)
    return widened(kind(kind.config_class(**sizes)), 0.1)


def several_parts(values):
    "Encoder-decoders, their answers and generations; a sentence encoder's pairs."
    tokenizer = model('sst2')[1]
    pair = ('a quiet film about the sea', 'waves and talk')
    for name in (
        'T5ForConditionalGeneration',
        'BartForConditionalGeneration',
        'BartForSequenceClassification',
    ):
        made = encoder_decoder(name)
        text = pair if name.endswith('Generation') else pair[0]
        for method in METHODS:
            key = f'{name}/{method}'
            values.add(key, lrp_loo.explain, made, tokenizer, text, method)
            how = dict(units='word', target=1)
            call = (made, tokenizer, [pair[0]], method)
            values.add(f'{key}/source', lrp_loo.explain, *call, **how)
        if name.endswith('Generation'):
            call = (made, tokenizer, pair[0], ' bad and')
            values.add(f'{name}/generated', lrp_loo.explain_generation, *call)
    values.keep('sentences', sentence_pairs())


def sentence_pairs():
    "Explain pairs by a SentenceTransformer around a demo model's encoder, by method."
    try:
        import sentence_transformers as library
    except ImportError:
        return 'sentence-transformers is not installed'
    from sentence_transformers import models as parts

    bert, tokenizer = model('sst2')
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / 'encoder')  # its name is in the records
        transformers.BertModel(bert.config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        read = parts.Transformer(folder)
    read.auto_model.load_state_dict(bert.bert.state_dict(), strict=False)
    pool = parts.Pooling(read.get_word_embedding_dimension(), pooling_mode='mean')
    made = library.SentenceTransformer(modules=[read, pool], device='cpu').eval()
    made_of = Values()
    for method in METHODS:
        call = (made, None, [(TEXTS[0], TEXTS[1])], method)
        made_of.add(method, lrp_loo.explain, *call)
    return dict(made_of)


def sounds_and_images(values):
    "Frames of a sound, patches of an image, by every method."
    w = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=16,
        num_labels=3,
    )
    v = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=24,
        patch_size=8,
        num_labels=3,
    )
    wave = np.sin(np.arange(1600, dtype='float32') ** 1.5 / 50)
    pixels = torch.linspace(0, 40, 3 * 24 * 24).sin().view(3, 24, 24)
    torch.manual_seed(0)
    speech = widened(transformers.Wav2Vec2ForSequenceClassification(w), 0.2)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    torch.manual_seed(0)
    vision = widened(transformers.ViTForImageClassification(v), 0.2)
    for method in METHODS:
        call = (speech, extractor, [wave], method)
        values.add(f'sound/{method}', lrp_loo.explain, *call)
        call = (vision, None, [pixels, -pixels], method)
        values.add(f'image/{method}', lrp_loo.explain, *call)


def heads(values):
    "Heads, feed-forward blocks and layers in place of tokens."
    for name in ('sst2', 'reviews-sst2'):
        for method in ('loo', 'removal', 'auto', 'grad_x_input', 'attn_lrp'):
            for units in ('head', 'feed_forward', 'layer'):
                how = dict(method=method, units=units)
                values.explain(f'{name}/{method}/{units}', name, OWN[2], **how)


# -------------------------------------------------------------------------- counts


class Counter:
    """Count calls during a block, without changing what is called: forward passes of
    a model, calls of its tokenizer, and calls of the package's own functions.
    """

    def __init__(self, of_model):
        self.forward = f'{type(of_model).__name__}.forward'
        self.passes = self.tokenized = self.own = 0
        self.package = str(home()) + os.sep

    def __call__(self, frame, event, arg):
        if event != 'call':
            return
        code = frame.f_code
        self.own += code.co_filename.startswith(self.package)
        self.passes += code.co_qualname == self.forward
        self.tokenized += code.co_qualname == 'PreTrainedTokenizerBase.__call__'

    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)


def counts(values):
    "What one warm `explain` costs: forward passes, tokenizations, our own calls."
    for name in ('sst2', 'reviews-sst2'):
        made, tokenizer = model(name)
        for method in METHODS:
            for n in (1, 4):
                call = (made, tokenizer, OWN[:n], method)
                lrp_loo.explain(*call)
                with Counter(made) as counter:
                    lrp_loo.explain(*call)
                counted = {
                    k: getattr(counter, k) for k in ('passes', 'tokenized', 'own')
                }
                values.keep(f'{name}/{method}/{n} texts', counted)


PARTS = {
    name: globals()[name]
    for name in (
        'explain targets options models tasks labels loo audit pairs context generation'
        ' intervals summaries views texts dataset classes rules shell reproduce'
        ' several_parts sounds_and_images heads counts'
    ).split()
}


# ------------------------------------------------------------------- comparison


def leaves(x, at=''):
    "Each number and text in a value, by its place there."
    if isinstance(x, (dict, list)):
        entries = x.items() if isinstance(x, dict) else enumerate(x)
        for name, entry in entries:
            yield from leaves(entry, f'{at}/{name}')
        x = f'{type(x).__name__} of {len(x)}'  # an empty one is something
    yield at, x


def without_message(x):
    "Return a refusal without its message, whose words may change; else the value."
    if isinstance(x, str) and x.startswith('refused, '):
        return x.partition(':')[0]
    return x


def difference(old, new):
    "Describe how two values differ; '' if they are the same in every bit."
    old, new = without_message(old), without_message(new)
    old, new = dict(leaves(old)), dict(leaves(new))
    places = [*old, *(at for at in new if at not in old)]
    other = [at for at in places if repr(old.get(at, ...)) != repr(new.get(at, ...))]
    if not other:
        return ''
    both = [(old.get(at), new.get(at)) for at in other]
    off = [abs(a - b) for a, b in both if {type(a), type(b)} <= {int, float}]
    first = ' → '.join(str(x)[:200] for x in both[0])
    largest = f', by {max(off):.3g} at most' if off else ''
    return f'{len(other)} of {len(places)}{largest}; {other[0]}: {first}'


def compared(old, new):
    "What differs, a line for each key."
    for key in old:
        if key not in new:
            yield f'{key}: missing'
        elif key.startswith('counts/'):
            more = {k: n for k, n in new[key].items() if n > old[key][k]}
            if more:
                yield f'{key}: more than {old[key]}: {more}'
        elif said := difference(old[key], new[key]):
            yield f'{key}: {said}'
    yield from (f'{key}: new' for key in new if key not in old)


# ------------------------------------------------------------------ the command


def home():
    "The folder of the package that is looked at."
    return Path(lrp_loo.__file__).resolve().parent


def quiet():
    "Use one thread and show no warnings, which are no values."
    warnings.filterwarnings('ignore')
    logging.disable(logging.WARNING)
    for name in ('HF_HUB_OFFLINE', 'TQDM_DISABLE'):
        os.environ.setdefault(name, '1')
    torch.set_num_threads(1)


def computed(parts):
    "The values of some parts."
    values = Values()
    for name in parts:
        started = time.perf_counter()
        before = len(values)
        values.part = name
        PARTS[name](values)
        seconds = time.perf_counter() - started
        print(
            f'{name}: {len(values) - before} values, {seconds:.0f} s',
            file=sys.stderr,
            flush=True,
        )
    return values


def made_with():
    "What else numbers depend on."
    packages = ('torch', 'transformers', 'numpy', 'scipy', 'pandas')
    return {name: version(name) for name in packages} | dict(
        python=sys.version.split()[0], kernels=torch.backends.cpu.get_cpu_capability()
    )


def of_parts(values, parts):
    "Those that are asked for."
    return {k: v for k, v in values.items() if k.split('/')[0] in parts}


def arguments(argv=None):
    "What the command was given."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('file', type=Path, help='values, as JSON')
    add('--write', action='store_true', help='write it')
    add('--only', nargs='+', choices=PARTS, default=list(PARTS))
    return parser.parse_args(argv)


def main(given):
    "Write, or compare; the exit code says whether all is the same."
    quiet()
    print(f'the package in {home()}', flush=True)
    old = {} if given.write else json.loads(given.file.read_bytes())
    values = computed(given.only)
    if given.write:
        made = json.dumps(dict(versions=made_with(), values=values))
        given.file.write_text(made + '\n', encoding='utf-8')
        print(f'{len(values)} values, {values.n_refused} of them refusals')
        return 0
    if old['versions'] != made_with():
        print(f'made with {old["versions"]}, now {made_with()}')
    lines = list(compared(of_parts(old['values'], given.only), values))
    print(*lines, f'{len(values)} values, {len(lines)} differ', sep='\n')
    return int(bool(lines))


if __name__ == '__main__':
    sys.exit(main(arguments()))
