"""The guide by task: each recipe runs by itself, is short, and its check can
fail.
"""

import dataclasses
import re
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch

GUIDE = Path(__file__).resolve().parent.parent / 'nbs' / 'guide' / 'tasks.ipynb'
CELLS = nbformat.read(GUIDE, 4).cells
SHARED = ('What the recipes share', 'Limits')  # headings of no recipe
# code lines of a recipe, and of the cell that checks it
LONGEST = (10, 6)
TASKS = {  # task → a word that its recipe's heading holds
    'a classifier of your own': 'classifier',
    'a table of texts': 'table',
    'several labels': 'Multi-label',
    'regression': 'Regression',
    'pairs of texts': 'Pairs',
    'tokens': 'NER',
    'entities': 'entity',
    'multiple choice': 'Multiple choice',
    'long texts': 'longer',
    'question answering': 'Question answering',
    'masked words': 'Masked',
    'chat models': 'Chat',
    'encoder-decoders': 'encoder-decoder',
    'an answer from a document': 'document',
    'images': 'Images',
    'parts of the model': 'Parts of the model',
    'an image and a text': 'An image and a text',
    'sentence-transformers': 'sentence-transformers',
    'a plain torch module': 'torch module',
    'peft': 'peft',
    'torch.compile': 'compiled',
    'int8': 'quantized',
    'four bits': 'four bits',
    'bfloat16': 'Half precision',
}


def sections():
    "Heading → its cells; what stands above the first one under ''."
    found = {'': []}
    heading = ''
    for cell in CELLS:
        named = re.match(r'## (.*)', cell.source)
        if cell.cell_type == 'markdown' and named:
            heading = named[1]
            found[heading] = []
        found[heading].append(cell)
    return found


SECTIONS = sections()
RECIPES = [h for h in SECTIONS if h and h not in SHARED]


def code_of(heading):
    "The code cells of a section."
    return [c for c in SECTIONS[heading] if c.cell_type == 'code']


def run(heading, names):
    "A section's code, in the order it stands."
    for cell in code_of(heading):
        exec(compile(cell.source, f'<{heading}>', 'exec'), names)


@pytest.fixture(scope='module')
def shared():
    "What a reader has run before a recipe."
    names = {}
    for heading in ('', SHARED[0]):
        run(heading, names)
    return names


def code_lines(source):
    "Without comments of their own and blank lines."
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith('#')]


@pytest.mark.parametrize('heading', RECIPES)
def test_a_recipe_runs_by_itself(heading, shared, capsys):
    run(heading, dict(shared))
    assert 'refused: ' in capsys.readouterr().out


def test_what_every_model_is_refused_for(shared, capsys):
    run('Limits', dict(shared))
    assert 'refused: the model is in training mode' in capsys.readouterr().out


@pytest.mark.parametrize('heading', RECIPES)
def test_its_check_fails_on_a_wrong_answer(heading, shared):
    "The same recipe with numbers drawn at random in place of the scores."
    draw = torch.Generator().manual_seed(0)

    def wrong(a):
        scores = torch.randn(a.scores.shape, generator=draw)
        return dataclasses.replace(a, scores=scores * a.scores.abs().max())

    def explain(*given, **options):
        return [wrong(a) for a in shared['explain'](*given, **options)]

    def attribute_context(*given, **options):
        return wrong(shared['attribute_context'](*given, **options))

    def explain_generation(*given, **options):
        said = shared['explain_generation'](*given, **options)
        steps = [wrong(a) for a in said]
        return dataclasses.replace(said, steps=steps)

    def of_lists(name, *given, **options):
        return [list(map(wrong, of)) for of in shared[name](*given, **options)]

    def of_maps(name, *given, **options):
        return list(map(wrong, shared[name](*given, **options)))

    fakes = dict(
        explain=explain,
        explain_choices=partial(of_maps, 'explain_choices'),
        explain_entities=partial(of_lists, 'explain_entities'),
        explain_windows=partial(of_maps, 'explain_windows'),
        attribute_context=attribute_context,
        explain_generation=explain_generation,
        which_methods=lambda *_: None,
    )
    with pytest.raises(AssertionError):
        run(heading, shared | fakes)


@pytest.mark.parametrize('task, word', TASKS.items(), ids=list(TASKS))
def test_a_task_has_one_recipe(task, word):
    assert len([h for h in RECIPES if word in h]) == 1, task


def test_no_recipe_is_without_a_task():
    assert len(RECIPES) == len(TASKS)


@pytest.mark.parametrize('heading', RECIPES)
def test_a_recipe_is_short_and_whole(heading):
    recipe, check = (c.source for c in code_of(heading))
    assert len(code_lines(recipe)) <= LONGEST[0]
    assert len(code_lines(check)) <= LONGEST[1]
    assert check.count('assert ') == check.count('refused(lambda: ') == 1
    outputs = [o for c in code_of(heading) for o in c.outputs]
    assert any('text/html' in o.get('data', {}) for o in outputs)
    assert any('refused: ' in o.get('text', '') for o in outputs)


def test_refused_fails_where_a_call_is_taken(shared):
    with pytest.raises(AssertionError, match='not refused'):
        shared['refused'](lambda: None, '')

    def other():
        raise ValueError('of another kind')

    with pytest.raises(AssertionError):
        shared['refused'](other, 'no gradient')


def test_the_table_leads_to_every_recipe():
    links = re.findall(r'\]\(#([^)]*)\)', CELLS[0].source)
    assert links == [h.replace(' ', '-') for h in RECIPES]
