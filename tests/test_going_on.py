"""Going on with stored rows: whatever changes an output, alone, is computed anew or
refused, and never mixed with rows that were there. The cases are generated.
"""

import copy
from dataclasses import dataclass, field
from functools import partial
import json
import shutil
from typing import Any

from conftest import random_bert
import numpy as np
import pytest
from tokenizers import Tokenizer
import torch
from transformers import BertTokenizerFast

from lrp_loo import audit, sweep
from lrp_loo.records.results import Results, read_results
from lrp_loo.evaluate.sweep import read_sweep
from lrp_loo.loo.removals import REMOVALS
from lrp_loo.methods.table import METHODS

WORDS = 'a the film is not bad good dull fun ending and it stays with you sad ! , .'
PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS.split(), '##s', '##ly']
PIECES += ['Good', 'é', 'e', 'x', '##x']
TEXTS = [
    'a good film, not bad!',
    'The ending is dull and sad.',
    'Good fun stays with you.',
]
TEXTS += ['it is é xx filmsly']
QUIET = dict(progress=False)
FACTOR = 1.0  # of `scaled`


def scaled(model, tokenizer, encs, target=None):
    "A method of the caller, which reads a number outside of itself."
    scores = METHODS['attn_lrp'](model, tokenizer, encs, target)
    scores.scores[:, ::2] *= FACTOR
    return scores


def changed(model, tokenizer, encs, target=None):
    scores = METHODS['attn_lrp'](model, tokenizer, encs, target)
    scores.scores[:, ::2] *= -2
    return scores


def small_model(**config):
    sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=24)
    options = sizes | dict(vocab_size=64, max_position_embeddings=32) | config
    return random_bert(layers=options.pop('num_hidden_layers', 1), **options)


def small_tokenizer(folder, settings=None, **options):
    path = folder / 'vocab.txt'
    path.write_text('\n'.join(PIECES))
    tokenizer = BertTokenizerFast(str(path), **options)
    if settings is not None:
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(settings))
    return tokenizer


@dataclass
class Case:
    "A call; each case has one argument, weight or field unlike the first call's."

    name: str
    model: Any
    tokenizer: Any
    texts: list = field(default_factory=lambda: TEXTS)
    method: Any = None
    options: dict = field(default_factory=dict)

    def audit(self, results=None):
        method = self.method or ['attn_lrp']
        call = (self.model, self.tokenizer, self.texts, method)
        table = audit(*call, results=results, **QUIET, **self.options)
        return table.drop(columns='seconds').select_dtypes('number')

    def sweep(self, folder):
        method = self.method or ['attn_lrp']
        call = (self.model, self.tokenizer, self.texts, folder, method)
        return sweep(*call, name='m', **QUIET, **self.options)


def with_weights(model, change):
    model = copy.deepcopy(model)
    with torch.no_grad():
        change(model)
    return model


def argument_cases(model, tokenizer):
    "Return cases with another argument of `audit` or `sweep`."

    def case(name, texts=TEXTS, method=None, **options):
        return Case(name, model, tokenizer, texts, method, options)

    pairs = [(text, 'the end is good') for text in TEXTS]
    yield case('other texts', [t.replace('good', 'dull') for t in TEXTS])
    yield case('fewer texts', TEXTS[2:])
    yield case('fewer texts, the first', TEXTS[:3])
    yield case('another order', TEXTS[::-1])
    yield case('pairs', pairs)
    yield case('another method', method=['removal'])
    yield case('more methods', method=['attn_lrp', 'removal'])
    for name, value in dict(bypass_softmax=[0], eps=0.5, precision='bfloat16').items():
        yield case(f'option {name}', method={'attn_lrp': ('attn_lrp', {name: value})})
    yield case('another method, same name', method={'attn_lrp': ('cp_lrp', {})})
    yield case('a function, same name', method={'attn_lrp': (changed, {})})
    yield case('target', target=1)
    yield case('target of each', target=[1, 0, 1, 0])
    yield case('a function as target', target=lambda out: out.logits[:, 1] * 2)
    for chunk in (2, 3):
        yield case(f'chunk={chunk}', chunk=chunk)
    for name in REMOVALS:
        yield case(f'removal={name}', removal=name)
    for n in (5, 6):
        yield case(f'max_length={n}', truncation=True, max_length=n)
    yield case('template', template='the film: {text}')
    yield case('another template', template='{text} it is')
    yield case('among', among=[(0, 6)] * len(TEXTS))


def field_cases(model, tokenizer):
    "Return cases of the same model with a field of a kind of module changed."
    seen = set()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            kind = type(module).__name__, name
            if name[0] == '_' or kind in seen or name == 'training':
                continue
            if isinstance(value, (bool, int, float)):
                seen.add(kind)
                new = not value if isinstance(value, bool) else value * 2 + 0.125
                new = int(new) if isinstance(value, int) else new
                other = copy.deepcopy(model)
                setattr(other.get_submodule(path), name, new)
                yield Case(f'{path}.{name}', other, tokenizer)


def module_cases(model, tokenizer):
    "Return cases of the same model with a tensor or a field of a module changed."
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if not weight.is_floating_point():
            continue

        def one_entry(m, name=name):
            tensor = m.get_parameter(name)
            tensor.data.view(-1)[tensor.numel() // 2] += 1.5

        yield Case(f'an entry of {name}', with_weights(model, one_entry), tokenizer)
    yield from field_cases(model, tokenizer)
    for dtype in (torch.bfloat16, torch.float64):
        yield Case(f'{dtype}', copy.deepcopy(model).to(dtype), tokenizer)

    def activation(m):
        m.bert.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.ReLU()

    def hook(m):
        m.bert.pooler.register_forward_hook(lambda m, args, out: out * 1.5)

    def forward(m):
        pooler, plain = m.bert.pooler, type(m.bert.pooler).forward
        pooler.forward = lambda states: plain(pooler, states) * 1.5

    for change in (activation, hook, forward):
        yield Case(change.__name__, with_weights(model, change), tokenizer)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation('eager')
    yield Case('attention implementation', eager, tokenizer)


def config_cases(model, tokenizer):
    "Return cases of the same weights under another configuration, a field each."
    for name, value in sorted(model.config.to_dict().items()):
        if isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int):
            others = [value + 1, value * 2]
        elif isinstance(value, float):
            others = [value * 10 + 0.05]
        else:
            choices = dict(hidden_act=['relu', 'gelu_new'], problem_type=['regression'])
            others = choices.get(name, [])
        for other in others:
            try:
                made = small_model(**{name: other})
                made.load_state_dict(model.state_dict())
            except (RuntimeError, TypeError, ValueError, AssertionError):
                continue  # not with these weights
            yield Case(f'config.{name}={other}', made, tokenizer)


def leaves(node, path=()):
    "Yield the path and the value of each field of a tokenizer, without its words."
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if key == 'vocab':
            continue
        if isinstance(value, (dict, list)):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def tokenizer_cases(model, folder):
    "Return cases of another tokenizer, a field each."
    settings = json.loads(small_tokenizer(folder).backend_tokenizer.to_str())
    for path, value in leaves(settings):
        other = copy.deepcopy(settings)
        node = other
        for key in path[:-1]:
            node = node[key]
        if isinstance(value, bool) or value is None:
            node[path[-1]] = not value
        elif isinstance(value, int):
            node[path[-1]] = value + 1
        else:
            node[path[-1]] = 'x'
        name = '.'.join(map(str, path))
        try:
            tokenizer = small_tokenizer(folder, other)
            tokenizer(['good'])
        except BaseException as e:  # Rust's panics are no Exception
            if isinstance(e, KeyboardInterrupt):
                raise
            continue  # no tokenizer has this
        yield Case(f'tokenizer {name}', model, tokenizer)
    swapped = copy.deepcopy(settings)
    words = swapped['model']['vocab']
    words['good'], words['bad'] = words['bad'], words['good']
    yield Case('two words swapped', model, small_tokenizer(folder, swapped))
    added = small_tokenizer(folder)
    added.add_tokens(['ending is'])
    yield Case('an added token', model, added)
    for name, value in dict(
        do_lower_case=False,
        strip_accents=False,
        model_max_length=6,
        truncation_side='left',
        padding_side='left',
        mask_token='[UNK]',
        pad_token='[UNK]',
    ).items():
        other = small_tokenizer(folder, **{name: value})
        options = dict(truncation=name == 'model_max_length')
        yield Case(f'tokenizer {name}', model, other, options=options)


@pytest.fixture(scope='module')
def first(tmp_path_factory):
    "The first call, its file and its folder."
    folder = tmp_path_factory.mktemp('first')
    case = Case('first', small_model(), small_tokenizer(folder))
    case.folder = folder
    case.table = case.audit(Results(folder / 'r.json', {}))
    case.sweep(folder / 'sweep')
    return case


KINDS = {
    'arguments': lambda c: argument_cases(c.model, c.tokenizer),
    'modules': lambda c: module_cases(c.model, c.tokenizer),
    'config': lambda c: config_cases(c.model, c.tokenizer),
    'tokenizer': lambda c: tokenizer_cases(c.model, c.folder),
}
ALL = pytest.param(True, marks=pytest.mark.slow)  # cases; others take every third


def cases_of(kind, first, has_all):
    "Return all cases of a kind, or of modules and tokenizers a third."
    cases = [*KINDS[kind](first)]
    return cases if has_all or kind in ('arguments', 'config') else cases[::3]


def outcome(run):
    "Return what a call returns, or the kind of its error."
    try:
        return run()
    except (TypeError, ValueError, RuntimeError, IndexError) as e:
        return type(e).__name__


def differ(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return not (isinstance(a, str) and a == b)
    return a.shape != b.shape or not np.allclose(a, b, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize('has_all', [False, ALL])
@pytest.mark.parametrize('kind', KINDS)
def test_an_audit_goes_on_with_rows_of_the_same_call_alone(
    kind, has_all, first, tmp_path
):
    cases = changes = 0
    for case in cases_of(kind, first, has_all):
        alone = outcome(case.audit)
        if isinstance(alone, str):
            continue  # refused, whatever is stored
        path = shutil.copy(first.folder / 'r.json', tmp_path / 'r.json')
        results = Results(path, {})
        assert not differ(case.audit(results), alone), case.name
        assert len(results.rows) == len(case.texts), case.name
        cases += 1
        changes += differ(alone, first.table)
    print(f'audit, {kind}: {cases} cases, {changes} change a number')
    assert changes >= 3 and cases >= 5


@pytest.mark.parametrize('has_all', [False, ALL])
@pytest.mark.parametrize('kind', KINDS)
def test_a_sweep_goes_on_with_rows_of_the_same_call_alone(
    kind, has_all, first, tmp_path
):
    n_cases = changes = 0
    cases = cases_of(kind, first, has_all)
    before = outcome(partial(first.sweep, first.folder / 'sweep'))
    for n, case in enumerate(cases if has_all else cases[1::3]):
        alone = outcome(partial(case.sweep, tmp_path / f'alone-{n}'))
        if isinstance(alone, str):
            continue
        n_cases += 1
        changes += differ(alone, before)
        out = tmp_path / f'on-{n}'
        shutil.copytree(first.folder / 'sweep', out)
        assert not differ(case.sweep(out), alone), case.name
        assert set(read_sweep(out)['index']) == set(range(len(case.texts))), case.name
    print(f'sweep, {kind}: {n_cases} cases, {changes} change a number')
    assert changes >= 1


def test_a_number_that_a_method_reads_outside_of_itself(first, tmp_path, monkeypatch):
    case = Case('scaled', first.model, first.tokenizer, method={'m': (scaled, {})})
    path = tmp_path / 'r.json'
    before = case.audit(Results(path, {}))
    monkeypatch.setitem(globals(), 'FACTOR', -3.0)
    after = case.audit(Results(path, {}))
    assert not differ(after, case.audit()) and differ(after, before)


def test_the_rows_of_other_calls_stay_in_the_file_apart(first, tmp_path):
    path = shutil.copy(first.folder / 'r.json', tmp_path / 'r.json')
    few = Case('few', first.model, first.tokenizer, TEXTS[1:3])
    few.audit(Results(path, dict(data='few')))
    stored = read_results(path)
    assert [row['i'] for row in stored['rows']] == [0, 1]
    assert len(stored['others']) == len(TEXTS) - 2
    whole = Results(path, {})
    seconds = {
        row['digest']: row['methods']['loo']['seconds'] for row in stored['others']
    }
    assert not differ(first.audit(whole), first.table)
    kept = {row['digest']: row['methods']['loo']['seconds'] for row in whole.rows}
    assert seconds.items() < kept.items()  # none was computed again
    assert not read_results(path).get('others')
