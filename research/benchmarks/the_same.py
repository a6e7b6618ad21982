"""Compare the values and the counts of two trees of this project.

    python research/benchmarks/the_same.py --write FILE     # before: compute, store
    python research/benchmarks/the_same.py FILE             # after: compute, compare
    python research/benchmarks/the_same.py FILE --only explain audit    # some parts
    python research/benchmarks/the_same.py FILE --tolerance 1e-4   # not bit for bit

Every method, target, unit, option and task on the demo models, MPNet and SmolLM2
among them (`make models`), what is refused, the command line, and the paper's rows on
three examples. Public names alone are used, so the modules behind them may be moved.
The code is that which Python finds (PYTHONPATH). Numbers depend on the processor: FILE
is for one machine, and is not committed.

A case is a key and a value, or a call without arguments; parts of several steps are functions.
"""

import argparse
import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pandas as pd
import torch
import transformers

import lrp_loo
from lrp_loo import METHODS, Removal, Target
from lrp_loo.interop import Attributor
from lrp_loo.loo.removals import REMOVALS
from lrp_loo.models.loading import demo_base

sys.path.append(str(Path(__file__).parents[2] / 'tests'))
from encoder_decoders import encoder_decoder, widened  # noqa: E402

HOME = Path(lrp_loo.__file__).resolve().parent
TEXT = 'The plot is thin, but both leads are a joy. See it twice!'
TEXTS = [TEXT, 'nothing in it is new , and none of it is true']
OWN = list(lrp_loo.load_texts('sst2', 'embedded', limit=10, seed=1).texts)
PAIR = ('Where did Ada meet Grace?', 'Ada met Grace in Paris.')
QUIET = dict(progress=False)


# different in each run; worker: the process
LEFT_OUT = {'seconds', 'versions', 'minutes', 'worker'}


def plain(x):
    "Return what JSON does not know in its types; every float exactly."
    if is_dataclass(x):
        return {f.name: getattr(x, f.name) for f in fields(x)}
    if isinstance(x, pd.DataFrame):
        return x.reset_index().to_dict('list')
    return None if x is pd.NA else x.tolist()


def answer(call):
    "Return a value, or what a call gives, or why it is refused."
    torch.manual_seed(0)
    try:
        found = call() if callable(call) else call
    except (TypeError, ValueError, NotImplementedError) as e:
        found = f'refused, {type(e).__name__}: {e}'
    return json.loads(json.dumps(found, default=plain))


BERT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
BERT |= dict(num_attention_heads=4)
VISION = BERT | dict(image_size=24, patch_size=8)
RANDOM = {  # models with random weights: class, sizes, labels
    'tagger': ('BertForTokenClassification', BERT, 'OAB'),
    'answers': ('BertForQuestionAnswering', BERT, 'ab'),
    'masked': ('BertForMaskedLM', BERT, 'ab'),
    'topics': ('BertForSequenceClassification', BERT, 'ABC'),
    'rating': ('BertForSequenceClassification', BERT, 'r'),
    'vision': ('ViTForImageClassification', VISION, 'abc'),
}


@cache
def model(name):
    "Return a demo model, or one with random weights, and its tokenizer."
    if name == 'sentences':
        import sentence_transformers as library

        folder = str(demo_base('minilm'))
        return library.SentenceTransformer(folder, device='cpu').eval(), None
    if name.startswith(('T5', 'Bart')):
        return encoder_decoder(name), model('sst2')[1]
    if name not in RANDOM:
        return lrp_loo.load_demo(name)
    kind, sizes, labels = RANDOM[name]
    kind = getattr(transformers, kind)
    ids = {label: i for i, label in enumerate(labels)}
    named = dict(id2label=dict(enumerate(labels)), label2id=ids)
    torch.manual_seed(0)
    made = widened(kind(kind.config_class(**sizes, **named)), 0.2)
    return made, None if name == 'vision' else model('sst2')[1]


def called(function, name, /, *args, **options):
    "Return a call of a function with the model of a name."
    return partial(function, *model(name), *args, **options)


explained = partial(called, lrp_loo.explain)


IMAGE = torch.linspace(0, 40, 784).sin().view(1, 28, 28)  # in the size of a digit
PIXELS = torch.linspace(0, 40, 3 * 24 * 24).sin().view(3, 24, 24)
UNITS = ('token', 'word', 'sentence', [(0, 8), (12, 23)])
TARGETS = {  # of classes and of tokens; some are refused
    'sst2': (
        *(0, 'negative', (1, 0), 2, 'purple'),
        *(Target(1, output='logits'), Target(0, log_prob=True)),
        *(Target(among=(0, 1)), Target(1, position=3)),
        lambda out: out.logits[:, 1] - out.logits[:, 0] ** 2,
    ),
    'reviews': (
        *(' liked', (506, 601), ' liked it so', Target(506, log_prob=True)),
        *(Target(position=2), Target(601, position=-2)),
        Target(among=(506, 601, 1663)),
    ),
}
OPTIONS = {
    'attn_lrp': [
        *(dict(bypass_softmax=(3, 4)), dict(bypass_softmax='all', eps=1e-3)),
        *(dict(bypass_softmax=(6,)), dict(embeddings='sum'), dict(n_steps=3)),
    ],
    'cp_lrp': [dict(eps=1e-3), dict(embeddings='sum')],
    'grad_x_input': [dict(embeddings='sum')],
    'ig': [
        *(dict(n_steps=5), dict(baseline='mask'), dict(n_steps=0)),
        dict(baseline='zero', internal_batch_size=3),
    ],
    'rollout': [dict(residual=True)],
    'loo': [dict(token_budget=32), dict(removal='none such')],
}
RULES = (  # of `Composite`
    *(dict(product='gradient'), dict(gate='constant'), dict(layer_norm='gradient')),
    *(dict(activation='gradient'), dict(eps=1e-3, bypass_softmax=(1,))),
)
ENCODER_DECODERS = ('T5ForConditionalGeneration', 'BartForConditionalGeneration')
COMPOSITES = [dict(composite=lrp_loo.Composite('own', **rules)) for rules in RULES]
POOLED = ('resample',)
POOLS = {name: dict(pool=OWN) if name in POOLED else {} for name in REMOVALS if name}
REMOVED = [dict(removal=Removal(name, **pool)) for name, pool in POOLS.items()]
OTHERS = ('imdb', 'reviews', 'reviews-sst2', 'mpnet-sst2', 'smollm2')
BOTH = ('sst2', 'reviews')
DECODERS = ('reviews', 'smollm2')
HEADS = [dict(units=units) for units in ('head', 'feed_forward', 'layer')]
OF_HEADS = ('loo', 'removal', 'auto', 'grad_x_input')
LIST = [dict(units=['word', [(0, 7)]], batch_size=1), dict(max_length=6)]
ENDS = [dict(target=12), dict(target=Target(12, output='end_logits'))]
WORD = dict(units='word', target=1)
CONTEXT = dict(question='Was it good?', answer=' boring')
CONTEXT |= dict(template='{context} {question}')
DELETED = dict(removal='delete', chunk=2, target=1, **QUIET)
SHORT = dict(max_new_tokens=4, log_prob=False, units='word')
ONE, AUTO = [{}], ['auto']
EACH = ('loo', 'attn_lrp', 'auto')
CASES = {  # part → rows of: function, models, arguments, methods, options
    'explain': (
        ('explain', ['sst2'], (TEXT,), METHODS, [dict(units=u) for u in UNITS]),
        ('explain', ['sst2'], (OWN[:2],), METHODS, [dict(target=[0, 'positive'])]),
        ('explain', ['sst2'], (TEXTS,), AUTO, LIST),
        ('explain', ['sst2'], ('word ' * 600,), AUTO, ONE),
        ('explain_labels', ('sst2', 'topics'), (TEXTS, 'all'), EACH[:2], ONE),
    ),
    'targets': [
        ('explain', [name], (OWN[4],), METHODS, [dict(target=t) for t in several])
        for name, several in TARGETS.items()
    ],
    'options': [
        *(('explain', ['sst2'], (OWN[2],), [m], own) for m, own in OPTIONS.items()),
        ('explain', BOTH, (OWN[2],), ['loo'], REMOVED),
        ('explain', BOTH, (OWN[2],), ['lrp'], COMPOSITES),
    ],
    'models': (
        ('explain', OTHERS, (OWN[2],), METHODS, ONE),
        ('explain', OTHERS, (OWN[6],), EACH, [dict(units='word')]),
        ('explain', ['mnist'], (IMAGE,), METHODS, ONE),
        ('explain', ('sst2', 'reviews-sst2'), (OWN[2],), OF_HEADS, HEADS),
    ),
    'tasks': (
        ('explain', ['tagger'], (PAIR[1],), METHODS, [dict(target=Target(2, 5)), {}]),
        ('explain', ['answers'], (PAIR,), METHODS, ENDS),
        ('explain', ['masked'], ('a [MASK] film',), METHODS, [dict(target='funny')]),
        ('explain', ['topics'], (PAIR,), METHODS, [dict(target='C')]),
        ('explain', ['rating'], (TEXT,), METHODS, ONE),
        ('explain', ENCODER_DECODERS, (PAIR,), METHODS, ONE),
        (
            'explain',
            (*ENCODER_DECODERS, 'BartForSequenceClassification'),
            ([PAIR[0]],),
            METHODS,
            [WORD],
        ),
        ('explain', ['sentences'], ([PAIR],), METHODS, ONE),
        ('explain', ['vision'], ([PIXELS, -PIXELS],), METHODS, ONE),
    ),
    'audit': (
        ('audit', ['sst2'], (OWN[:4],), [list(METHODS)], [QUIET]),
        ('audit', ['sst2'], (OWN[:4],), [['attn_lrp', 'ig']], [DELETED]),
        ('audit', ('reviews', 'mpnet-sst2'), (OWN[2:5],), EACH, [QUIET]),
        ('audit', ['mnist'], ([IMAGE, IMAGE.flip(1), -IMAGE],), EACH[1:2], [QUIET]),
        ('audit_generation', ['reviews'], (['It is', 'What a'],), [EACH], [QUIET]),
    ),
    'pairs': [('explain_pairs', BOTH, (OWN[8],), ('exact', 'removal'), [{}, WORD])],
    'context': [('attribute_context', DECODERS, (TEXT,), METHODS, [CONTEXT])],
    'generation': (
        ('explain_generation', DECODERS, ('It is', ' bad and'), METHODS, ONE),
        ('explain_generation', ('reviews', 'sst2'), ('It was',), AUTO, [SHORT]),
        ('explain_generation', ENCODER_DECODERS, (PAIR[0], ' bad and'), AUTO, ONE),
    ),
}


def cases(part):
    "Yield the cases of a part of CASES."
    for row, (name, models, args, methods, several) in enumerate(CASES[part]):
        function = getattr(lrp_loo, name)
        for on, method, (i, own) in product(models, methods, enumerate(several)):
            case = called(function, on, *args, method=method, **own)
            yield f'{row}/{on}/{method}/{i}', case


def loo():
    "Yield Leave-One-Out by itself."
    bert, tokenizer = model('sst2')
    enc = dict(tokenizer(TEXT, return_tensors='pt'))
    units = torch.arange(enc['input_ids'].shape[1]) // 3
    deleted, mask = dict(target=0, removal='delete'), dict(removal='mask_token', fill=0)
    for i, how in enumerate(({}, deleted, mask, dict(units=units))):
        yield f'{i}', partial(lrp_loo.leave_one_out, bert, enc, **how)


def intervals():
    "Yield a calibration, its intervals, and top tokens."
    for units in ('token', 'word'):
        how = dict(method='removal', units=units)
        found = called(lrp_loo.calibrate, 'sst2', OWN, **how, **QUIET)()
        yield f'{units}/calibration', found
        (a,) = explained('sst2', TEXT, calibration=found, confidence=0.8, **how)()
        yield f'{units}/explained', [a, a.low, a.high]
        for confidence in (0.8, 0.99):
            asked = (TEXT, 2, found, confidence)
            yield f'{units}/{confidence}', called(lrp_loo.top_tokens, 'sst2', *asked)


def classes():
    "Yield scores of Captum's classes, on ids and embeddings."
    bert, tokenizer = model('sst2')
    enc = tokenizer(TEXTS, padding=True, return_tensors='pt')
    more = dict(target=[1, 0], additional_forward_args=enc['attention_mask'])
    x = bert.get_input_embeddings()(enc['input_ids']).detach()
    for kind in Attributor.__subclasses__():
        name, attribute = kind.__name__, kind(bert).attribute
        yield f'{name}/ids', partial(attribute, enc['input_ids'], **more)
        found = attribute(x, **more).sum(-1)  # each dimension is too much
        yield f'{name}/embeddings', found


def rules():
    "Yield relevance as the gradient times the embeddings, and each rule's calls."
    named = dict(attn_lrp=lrp_loo.attn_lrp(), cp_lrp=lrp_loo.cp_lrp())
    on = ('sst2', 'reviews-sst2', 'mpnet-sst2')
    for name, (key, composite) in product(on, named.items()):
        stock, tokenizer = model(name)
        enc = tokenizer(TEXT, return_tensors='pt')
        table = stock.get_input_embeddings().weight
        with lrp_loo.lrp_rules(stock, composite) as held:
            (g,) = torch.autograd.grad(stock(**enc).logits[0, 1], table)
        rows = (g * table).detach()[enc['input_ids'][0]].sum(-1)
        yield f'{name}/{key}', [rows, held.report()]


def command(*words):
    "Return what the command line says: as JSON where it is, else as a text."
    words = [sys.executable, '-W', 'ignore', '-m', 'lrp_loo', *words]
    env = dict(os.environ, PYTHONPATH=str(HOME.parent), OMP_NUM_THREADS='1')
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        return f'refused, exit {done.returncode}: {done.stderr.strip()}'
    with contextlib.suppress(ValueError):
        return json.loads(done.stdout)
    return done.stdout


COMMANDS = (
    ('explain', TEXT, '--method', 'loo,removal,ig', '--json'),
    ('explain', TEXT, '--units', 'word', '--target', 'negative'),
    ('generate', 'It was', '--max-new-tokens', '3', '--json'),
    ('summarize', '--limit', '8', '--min_count', '2', '--json'),
    ('audit', '--limit', '6', '--json'),
    ('explain', TEXT, '--method', 'lime'),
)


def shell():
    "Yield what commands print, with few texts."
    for i, words in enumerate(COMMANDS):
        yield f'{i}', partial(command, *words)


def reproduce():
    "Yield the paper's rows, by file and number."
    with tempfile.TemporaryDirectory() as folder:
        few = ('--limit', '3', '--out', folder)
        said = command('reproduce', *few)
        if said.startswith('refused'):
            raise SystemExit(said)
        for path in sorted(Path(folder).glob('results/*/*.json')):
            content = json.loads(path.read_text(encoding='utf-8'))
            yield path.stem, {k: v for k, v in content.items() if k != 'config'}


def counted(call, of_model):
    "Count forward passes, tokenizations and the package's own calls during a call."
    own = str(HOME) + os.sep
    names = {
        f'{type(of_model).__name__}.forward': 'passes',
        'PreTrainedTokenizerBase.__call__': 'tokenized',
    }
    found = dict(passes=0, tokenized=0, own=0)

    def profile(frame, event, arg):
        if event == 'call':
            code = frame.f_code
            found['own'] += code.co_filename.startswith(own)
            if code.co_qualname in names:
                found[names[code.co_qualname]] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def counts():
    "Yield what one warm `explain` costs."
    for name, method, n in product(('sst2', 'reviews-sst2'), METHODS, (1, 4)):
        call = explained(name, OWN[:n], method)
        call()
        yield f'{name}/{method}/{n} texts', partial(counted, call, model(name)[0])


STEPS = [loo, intervals, classes, rules, shell]
PARTS = {part: partial(cases, part) for part in CASES}
PARTS |= {part.__name__: part for part in (*STEPS, reproduce, counts)}


def leaves(x, at=''):
    "Yield each number and text in a value, with its place there."
    if isinstance(x, str) and x.startswith('refused, '):
        x = x.partition(':')[0]  # the words of a message may change
    if isinstance(x, (dict, list)):
        for name, entry in x.items() if isinstance(x, dict) else enumerate(x):
            if name not in LEFT_OUT:
                yield from leaves(entry, f'{at}/{name}')
        x = f'{type(x).__name__} of {len(x)}'  # an empty one is something
    yield at, x


def is_number(x):
    "Return True for a finite int or float, not for a bool."
    return type(x) in (int, float) and math.isfinite(x)


def difference(old, new, tolerance):
    """Describe how two values differ; '' if they are the same. Numbers may differ by
    `tolerance` times the largest number beside them; places that one lacks are left out
    where the tolerance is not 0.
    """
    old, new = dict(leaves(old)), dict(leaves(new))
    places = [at for at in old if at in new] if tolerance else [*old, *new]
    scale = {}
    for at in filter(lambda at: is_number(old.get(at)), places):
        beside = at.rpartition('/')[0]
        scale[beside] = max(scale.get(beside, 0), abs(old[at]))
    differing = []
    for at in places:
        a, b = old.get(at, ...), new.get(at, ...)
        if is_number(a) and is_number(b):
            if abs(a - b) > tolerance * scale[at.rpartition('/')[0]]:
                differing.append(at)
        elif repr(a) != repr(b):
            differing.append(at)
    if not differing:
        return ''
    at = differing[0]
    first = f'{str(old.get(at, ...))[:200]} → {str(new.get(at, ...))[:200]}'
    return f'{len(differing)} of {len(places)}; {at}: {first}'


def compared(old, new, tolerance):
    "Yield what differs, a line for each key; counts may become less."
    for key in old:
        if key not in new:
            yield f'{key}: missing'
        elif key.startswith('counts/'):
            if any(n > old[key][k] for k, n in new[key].items()):
                yield f'{key}: more than {old[key]}: {new[key]}'
        elif text := difference(old[key], new[key], tolerance):
            yield f'{key}: {text}'
    yield from (f'{key}: new' for key in new if key not in old)


def computed(parts):
    "Return key → value for all cases of some parts."
    values = {}
    for name in parts:
        for key, call in PARTS[name]():
            if f'{name}/{key}' in values:
                raise KeyError(f"{name}/{key} is there already")
            values[f'{name}/{key}'] = answer(call)
        print(f'{name}: {len(values)} values', file=sys.stderr, flush=True)
    return values


def made_with():
    "Return what else numbers depend on."
    packages = ('torch', 'transformers', 'numpy', 'scipy', 'pandas')
    kernels = torch.backends.cpu.get_cpu_capability()
    return {name: version(name) for name in packages} | dict(kernels=kernels)


def main(argv=None):
    "Write, or compare; the exit code says whether all is the same."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('file', type=Path, help='values, as JSON')
    parser.add_argument('--write', action='store_true', help='write it')
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS))
    parser.add_argument('--tolerance', type=float, default=0.0)
    given = parser.parse_args(argv)
    warnings.filterwarnings('ignore')
    logging.disable(logging.WARNING)
    os.environ |= dict(HF_HUB_OFFLINE='1', TQDM_DISABLE='1')
    torch.set_num_threads(1)
    print(f'the package in {HOME}', flush=True)
    old = {} if given.write else json.loads(given.file.read_bytes())
    values = computed(given.only)
    n_refused = sum(str(v).startswith('refused, ') for v in values.values())
    print(f'{len(values)} values, {n_refused} of them refusals')
    if given.write:
        made = json.dumps(dict(versions=made_with(), values=values))
        given.file.write_text(made + '\n', encoding='utf-8')
        return 0
    if old['versions'] != made_with():
        print(f'made with {old["versions"]}, now {made_with()}')
    old = {k: v for k, v in old['values'].items() if k.split('/')[0] in given.only}
    lines = list(compared(old, values, given.tolerance))
    print(*lines, f'{len(lines)} differ', sep='\n')
    return int(bool(lines))


if __name__ == '__main__':
    sys.exit(main())
