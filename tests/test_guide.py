"""The guide. A page is a person's question, twelve lines on a model that ships,
and what they print. Other kinds of models have recipes: each runs by itself, is
short, and its check can fail.
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
# code lines of a recipe, and of the cell that checks it
LONGEST = (10, 6)
TASKS = {  # task → a word that its recipe's heading holds
    'several labels': 'Multi-label',
    'regression': 'Regression',
    'pairs of texts': 'Pairs',
    'tokens': 'NER',
    'entities': 'entity',
    'multiple choice': 'Multiple choice',
    'long texts': 'longer',
    'question answering': 'Question answering',
    'masked words': 'Masked',
    'encoder-decoders': 'encoder-decoder',
    'images': 'Images',
    'an image and a text': 'An image and a text',
    'sentence-transformers': 'sentence-transformers',
    'a plain torch module': 'torch module',
    'peft': 'peft',
    'torch.compile': 'compiled',
    'int8': 'quantized',
    'four bits': 'four bits',
    'bfloat16': 'Half precision',
}
PAGES = [
    'explain',
    'showing',
    'templates',
    'data_sets',
    'command_line',
    'generation',
    'summaries',
    'pairs',
    'parts',
    'other_tools',
    'stability',
]
MOST_LINES = 12  # of a page's own code
MOST_WORDS = 400  # of its text
# models that ship, or come with a package of the index: their answers mean something
SHIPPED = r"load_demo\('(sst2|imdb|reviews-sst2|smollm2)'\)|^!lrp_loo "


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


class Page:
    "A page of the guide, as far as it is judged."

    def __init__(self, name):
        self.cells = nbformat.read(NBS / 'guide' / f'{name}.ipynb', 4).cells
        self.text = '\n\n'.join(
            cell.source for cell in self.cells if cell.cell_type == 'markdown'
        )
        self.title = self.text.splitlines()[0]

    def shown(self):
        "The code that a reader sees; what is hidden checks what the text says."
        code = (cell for cell in self.cells if cell.cell_type == 'code')
        return [cell for cell in code if not cell.source.startswith('#| hide')]

    def main(self):
        "The code above the first heading: the page's own answer."
        heading = next(c for c in self.cells if re.search('^## ', c.source, re.M))
        before = self.cells[: self.cells.index(heading)]
        return [cell for cell in self.shown() if cell in before]


@pytest.fixture(params=PAGES)
def page(request):
    return Page(request.param)


def test_a_page_asks_a_question_and_answers_in_a_sentence(page):
    lines = page.cells[0].source.splitlines()
    assert re.fullmatch(r'# [A-Z].*\?', page.title)
    assert lines[1] == '' and re.fullmatch(r'> [A-Z`].*\.', lines[2])


def test_a_page_takes_twelve_lines_on_a_model_that_ships(page):
    main = [cell.source for cell in page.main()]
    assert len(main) in (1, 2)
    assert 1 <= sum(len(code_lines(source)) for source in main) <= MOST_LINES
    assert re.search(SHIPPED, '\n'.join(main), re.M)
    assert not any('tiny' in cell.source for cell in page.cells)


def test_what_a_page_runs_is_seen_and_looked_at(page):
    main = page.main()
    assert main[-1].outputs
    at = page.cells.index(main[-1])
    below = next(c for c in page.cells[at:] if c.cell_type == 'markdown')
    first = below.source.split('## ')[0]
    assert len(first.split()) >= 20
    outputs = [o for cell in page.cells for o in cell.get('outputs', ())]
    assert all(o.get('name') != 'stderr' for o in outputs)
    assert all(o.output_type != 'error' for o in outputs)


def test_what_a_hidden_cell_checks_is_an_assertion(page):
    hidden = [c.source for c in page.cells if c.source.startswith('#| hide')]
    quiet = [source for source in hidden if 'assert ' not in source]
    # the shell of the command line is prepared out of sight
    assert all('os.chdir(' in source for source in quiet)


def test_a_page_is_short_and_says_its_limits(page):
    assert len(page.text.split()) <= MOST_WORDS
    headings = re.findall(r'^## (.*)', page.text, re.M)
    assert headings[-1] == 'Limits'
    limits = page.text[page.text.index('## Limits') :]
    assert re.search(r'\]\(\.\./(\.\./)?(lib|research)/', limits)


def test_the_front_page_leads_to_every_page_of_the_guide():
    front = (NBS / 'index.ipynb').read_text(encoding='utf-8')
    (row,) = re.findall(r'\| your own work \| (.*) \|', front)
    rows = re.findall(r'\[(\w+)\]\(guide/(\w+)\.ipynb\)', row)
    assert rows == [(name, name) for name in [*PAGES, 'tasks', 'words']]


def test_every_page_is_judged():
    names = {path.stem for path in tracked('nbs/guide/*.ipynb')}
    assert names == {*PAGES, 'tasks', 'words'}
