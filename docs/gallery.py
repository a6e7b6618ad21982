"""Every picture of figures/ on one page, with what it shows and the chapter
that it belongs to.

A picture has the name that a study gives it, and is drawn by a function: its
chapter is the first that calls this function, its caption what a chapter says
where it shows the picture, or else what the function says of itself.
"""

import inspect
import json
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from lrp_loo.paper.reproduce import MODULES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))

from tracked import tracked  # noqa: E402

DATA = ('sst2', 'imdb')  # whose results name a folder's model
MAIN = 'minilm'
TITLE = """# Figures

> Every picture of `figures/`, what it shows, and the chapter that it belongs to.

All are drawn from the rows in `results/` alone, by `lrp_loo reproduce`."""


@dataclass
class Picture:
    "A file of figures/ as the page has it."

    path: Path  # of the file
    caption: str
    home: str  # the chapter's name

    @property
    def markdown(self):
        where = self.path.relative_to(ROOT).as_posix()
        alt = self.caption.replace('[', '(').replace(']', ')')
        return f'![{alt}]({where}){{ loading=lazy }}'


def files():
    "All pictures that are kept, by path."
    return tracked('figures/**/*.png')


def function_of(draw):
    "The function that draws; of a lambda, the one that it calls."
    if draw.__name__ != '<lambda>':
        return draw
    known = (draw.__globals__.get(name) for name in draw.__code__.co_names)
    calls = [f for f in known if inspect.isfunction(f)]
    return next(f for f in calls if re.match('plot|draw', f.__name__))


def drawn():
    "Name of a picture → the study's module, the function that draws it."
    found = {}
    for module in MODULES:
        for study in import_module(module).STUDIES:
            for name, draw in study.figures.items():
                home = module.removeprefix('lrp_loo.')
                found[name] = home, function_of(draw)
    return found


def sources(nb, kind):
    return '\n'.join(c.source for c in nb.cells if c.cell_type == kind)


def callers(function, books):
    "Chapters that call a function, those of the library last."
    call = re.compile(rf'\b{function.__name__}\(')
    names = [n for n in books if call.search(sources(books[n], 'code'))]
    return sorted(names, key=lambda name: not name[0].isdigit())


def home_of(path, module, function, books, homes):
    """The chapter of a picture: its study's own, where that borrows the
    function; else one that calls it, and reads this folder's rows if any does.
    """
    if not function.__module__.endswith(f'.{module}'):
        return homes[module]
    names = callers(function, books)
    folder = path.parent.name
    read = re.compile(rf'{folder}[/\'"]')
    reads = [n for n in names if read.search(sources(books[n], 'code'))]
    return (reads or names or [homes[module]])[0]


def alt_of(path, books):
    "What the chapters say of a picture that they show, or None."
    where = re.escape(path.relative_to(ROOT).as_posix())
    for nb in books.values():
        text = sources(nb, 'markdown')
        shown = re.search(rf'!\[([^\]]+)\]\((?:\.\./)+{where}\)', text)
        if shown:
            return shown[1]
    return None


def pictures(books, homes):
    """In the order of the chapters. `books`: the notebooks in reading order;
    `homes`: module → its notebook. A picture that no study draws is an error.
    """
    by_name = drawn()
    found = []
    for path in files():
        if path.stem not in by_name:
            raise ValueError(
                f"{path.relative_to(ROOT)} is of no study; take the file away,"
                " or name it in a study's `figures`"
            )
        module, function = by_name[path.stem]
        said = ' '.join((inspect.getdoc(function) or '').split())
        caption = alt_of(path, books) or said
        home = home_of(path, module, function, books, homes)
        found.append(Picture(path, caption, home))
    order = list(books)
    return sorted(found, key=lambda p: order.index(p.home))


def models_of(folder):
    "What a folder's rows were measured on."
    paths = (ROOT / 'results' / folder / f'{name}.json' for name in DATA)
    configs = [json.loads(p.read_text(encoding='utf-8'))['config'] for p in paths]
    names = dict.fromkeys(c['model']['name'] for c in configs)
    prompt = configs[0].get('prompt')
    if prompt is None:
        asked = ''
    else:
        asked = ', of two answers' if prompt['answers'] else ', its own answer'
    return ' and '.join(names) + asked


def heading(folder):
    "Of the first folder, which has every study, and of one more model."
    models = models_of(folder)
    if folder == MAIN:
        return f'## The studies\n\nWhere it is not said: {models}.'
    return f'## The paper\'s figures on another model: {models}'


def as_page(books, homes, label):
    "The Markdown; `label(name)`: what a chapter is called."
    parts = [TITLE]
    shown = pictures(books, homes)
    for folder in sorted({p.path.parent.name for p in shown}):
        parts.append(heading(folder))
        for p in (p for p in shown if p.path.parent.name == folder):
            chapter = f'[{label(p.home)}]({p.home}.md)'
            said = f'{chapter}: {p.caption.rstrip(".")}.'
            parts += [f'### {p.path.stem}', p.markdown, said]
    return '\n\n'.join(parts) + '\n'
