"""The guide. A page is a user's question, twelve lines on a model that ships, and
what they print. Other kinds of models have recipes, which the notebook step runs: each
is short, and its check can fail.
"""

import dataclasses
import re
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch
from tracked import tracked

NBS = Path(__file__).resolve().parent.parent / 'nbs'
CELLS = nbformat.read(NBS / 'guide' / 'tasks.ipynb', 4).cells
SHARED = ('What the recipes share', 'Limits')  # headings of no recipe
LONGEST = (10, 6)  # code lines of a recipe, and of the cell that checks it
# words of the recipes' headings, one a task
TASKS = (
    'Multi-label, Regression, Pairs, NER, entity, Multiple choice, longer,'
    ' Question answering, Masked, encoder-decoder, Images, An image and a text,'
    ' sentence-transformers, torch module, peft, compiled, quantized, four bits,'
    ' Half precision'
).split(', ')
PAGES = (
    'explain trust showing templates data_sets command_line generation summaries leaks sets pairs'
    ' functions parts other_tools stability'
).split()
MOST_LINES = 12  # of a page's own code
MOST_WORDS = 400  # of its text
# models that ship, or come with a package of the index: their answers mean something
SHIPPED = r"load_demo\('(sst2|imdb|reviews-sst2|smollm2)'\)|^!lrp_loo "


def sections():
    "Heading → its cells; what stands above the first one under ''."
    found, heading = {'': []}, ''
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
    return [c for c in SECTIONS[heading] if c.cell_type == 'code']


def run(heading, names):
    "Execute a section's code in the order it stands."
    for cell in code_of(heading):
        exec(compile(cell.source, f'<{heading}>', 'exec'), names)


def code_lines(source):
    "Return the lines without comments and blank ones."
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith('#')]


@pytest.fixture(scope='module')
def shared():
    "What a reader has run before a recipe."
    names = {}
    for heading in ('', SHARED[0]):
        run(heading, names)
    return names


# peft 0.18 warns of the second adapter that the recipe puts into one model
@pytest.mark.filterwarnings('ignore:Already found a `peft_config`:UserWarning')
@pytest.mark.slow
@pytest.mark.parametrize('heading', RECIPES)
def test_its_check_fails_on_a_wrong_answer(heading, shared):
    "The same recipe with numbers drawn at random in place of the scores."
    draw = torch.Generator().manual_seed(0)

    def wrong(a):
        scores = torch.randn(a.scores.shape, generator=draw)
        return dataclasses.replace(a, scores=scores * a.scores.abs().max())

    def of_maps(name, *args, **options):
        return list(map(wrong, shared[name](*args, **options)))

    def of_lists(name, *args, **options):
        return [list(map(wrong, maps)) for maps in shared[name](*args, **options)]

    flat = ('explain', 'explain_choices', 'explain_windows')
    fakes = {name: partial(of_maps, name) for name in flat}
    fakes |= dict(
        explain_entities=partial(of_lists, 'explain_entities'),
        which_methods=lambda *_: None,
    )
    with pytest.raises(AssertionError):
        run(heading, shared | fakes)


def test_every_task_has_one_recipe():
    of_task = {word: [h for h in RECIPES if word in h] for word in TASKS}
    assert {word: h for word, h in of_task.items() if len(h) != 1} == {}
    assert len(RECIPES) == len(TASKS)
    links = re.findall(r'\]\(#([^)]*)\)', CELLS[0].source)
    assert links == [h.replace(' ', '-') for h in RECIPES]


@pytest.mark.parametrize('heading', RECIPES)
def test_a_recipe_is_short_and_whole(heading):
    recipe, check = (c.source for c in code_of(heading))
    assert len(code_lines(recipe)) <= LONGEST[0]
    assert len(code_lines(check)) <= LONGEST[1]
    assert check.count('assert ') == check.count('refused(lambda: ') == 1
    outputs = [o for c in code_of(heading) for o in c.outputs]
    assert any('text/html' in o.get('data', {}) for o in outputs)
    assert any('refused: ' in o.get('text', '') for o in outputs)


class Page:
    "A page of the guide: its cells, its text, and its answer's code cells."

    def __init__(self, name):
        self.cells = nbformat.read(NBS / 'guide' / f'{name}.ipynb', 4).cells
        texts = (cell.source for cell in self.cells if cell.cell_type == 'markdown')
        self.text = '\n\n'.join(texts)
        heading = next(c for c in self.cells if re.search('^## ', c.source, re.M))
        above = self.cells[: self.cells.index(heading)]
        code = (cell for cell in above if cell.cell_type == 'code')
        self.answer = [cell for cell in code if not cell.source.startswith('#| hide')]


@pytest.fixture(params=PAGES)
def page(request):
    return Page(request.param)


def test_a_page_asks_a_question_and_answers_it_in_twelve_lines(page):
    title, blank, claim = page.cells[0].source.splitlines()[:3]
    assert re.fullmatch(r'# [A-Z].*\?', title)
    assert blank == '' and re.fullmatch(r'> [A-Z`].*\.', claim)
    sources = [cell.source for cell in page.answer]
    assert len(sources) in (1, 2)
    assert 1 <= sum(len(code_lines(source)) for source in sources) <= MOST_LINES
    assert re.search(SHIPPED, '\n'.join(sources), re.M)
    assert page.answer[-1].outputs
    outputs = [o for cell in page.cells for o in cell.get('outputs', ())]
    assert all(o.get('name') != 'stderr' for o in outputs)
    assert all(o.output_type != 'error' for o in outputs)
    assert len(page.text.split()) <= MOST_WORDS
    assert re.findall(r'^## (.*)', page.text, re.M)[-1] == 'Limits'
    limits = page.text[page.text.index('## Limits') :]
    assert re.search(r'\]\(\.\./(\.\./)?(lib|research)/', limits)


def test_the_front_page_leads_to_every_page_of_the_guide():
    front = (NBS / 'index.ipynb').read_text(encoding='utf-8')
    (row,) = re.findall(r'\| your own work \| (.*) \|', front)
    names = re.findall(r'\[(\w+)\]\(guide/\w+\.ipynb\)', row)
    assert names == [*PAGES, 'tasks', 'words']
    assert {path.stem for path in tracked('nbs/guide/*.ipynb')} == set(names)
