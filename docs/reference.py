"""The pages of the reference: what stands in front, a page for each module.

What is said of a module's names mkdocstrings reads from the source.
"""

import chapter

import lrp_loo

FRONT = """# API

What `import lrp_loo` gives, and the rooms behind it. How a module works is told \
in its page under *How it is built*.

| name | what it is |
|---|---|
{names}

## Rooms

| room | what it is | modules |
|---|---|---|
{rooms}
"""


def said_of(nb):
    "What a notebook says of its module, in a line."
    lines = nb.cells[0].source.splitlines()
    return ' '.join(line[2:] for line in lines if line.startswith('> '))


def row(*cells):
    "Of a table."
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def path_of(module, modules):
    "The page of a module; of a room that has more modules, its first page."
    room, _, rest = module.partition('.')
    alone = not any(m.startswith(f'{room}.') for m in modules)
    return f'{room}.md' if alone else f"{room}/{rest or 'index'}.md"


def names_page(books, public, modules):
    "The names in front with a line each, the rooms."
    homes = chapter.homes_of(public)
    names = []
    for name in lrp_loo.__all__:
        home = homes[name]
        link = f'[`{name}`][{chapter.identifier(home, name)}]'
        names.append(row(f'`{name}`' if home[0] == '_' else link, public[home][name]))
    rooms = []
    for room in sorted({m.split('.')[0] for m in modules}):
        inside = sorted(m for m in modules if m.startswith(f'{room}.'))
        links = (f"[{m.partition('.')[2]}]({path_of(m, modules)})" for m in inside)
        said = said_of(books[modules[room]]) if room in modules else ''
        first = f'[`{room}`]({path_of(room, modules)})' if said else f'`{room}`'
        rooms.append(row(first, said, ', '.join(links)))
    return FRONT.format(names='\n'.join(names), rooms='\n'.join(rooms))


def module_page(module, path, book, title):
    up = '../' * (path.count('/') + 1)
    return f"""---
title: {module}
search: {{boost: 0.2}}
---

# lrp_loo.{module}

How it is built: [{title}]({up}{book}.md).

::: lrp_loo.{module}
"""


def pages(books, public):
    "Path → Markdown. `public`: module → its names → what they say of themselves."
    homes = {chapter.module_of(nb): name for name, nb in books.items()}
    modules = {m: name for m, name in homes.items() if m and m[0] != '_'}
    found = {'reference/index.md': names_page(books, public, modules)}
    for m, name in modules.items():
        path = path_of(m, modules)
        title = chapter.title_of(books[name])
        found[f'reference/{path}'] = module_page(m, path, name, title)
    return found
