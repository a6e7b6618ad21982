"""A notebook as Markdown for the site: the directives of nbdev are obeyed and do not show, figures become files."""

import ast
import base64
import re

LONG = 30  # a cell of more lines is folded
FENCE = '`````'
# code blocks, headings, links: no place for another link
PASSED_OVER = r'^(`{3,}|~{3,}).*?^\1\s*?$|^#.*?$|\[[^\]\n]*\]\([^)\n]*\)'
NAME = r'(?<!`)`(?P<name>[A-Za-z]\w*)(?:\([^`\n]*\))?`(?!`)'


def title_of(nb):
    return next(
        line[2:]
        for line in nb.cells[0].source.splitlines()
        if line.startswith('# ')
    )


def number_of(name):
    "'20_removal' → '5b'; None where a name has no number."
    m = re.match(r'0*(\d+[a-z]?)_', name)
    return m and m[1]


def module_of(nb):
    return next(
        (
            d.split()[1]
            for c in nb.cells
            for d in directives(c)
            if d.startswith('default_exp')
        ),
        None,
    )


def anchor(name):
    return 'def-' + name  # of the cell that defines a name


def directives(cell):
    return [
        line[2:].strip()
        for line in cell.source.splitlines()
        if line.startswith('#|')
    ]


def source_of(cell):
    "Without directives and magic."
    return '\n'.join(
        line
        for line in cell.source.splitlines()
        if cell.cell_type != 'code' or not line.startswith(('#|', '%'))
    ).strip('\n')


def bound(statement):
    "The names that a statement binds: a function, a class, variables."
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    return [
        t.id
        for target in getattr(statement, 'targets', [])
        for t in ast.walk(target)
        if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)
    ]


def fenced(source):
    return f'{FENCE}python\n{source}\n{FENCE}'


def folded(summary, source, attributes=''):
    return (
        '<details class="source"'
        f' markdown="1"{attributes}><summary>{summary}</summary>\n\n{fenced(source)}\n\n</details>'
    )


def code(source, module, names):
    """The source of a cell, folded where it is long. `names`: what the package
    takes from it, linked with the reference.
    """
    n = len(source.splitlines())
    text = folded(f'Source, {n} lines', source) if n > LONG else fenced(source)
    links = ' '.join(
        f'[`{n}`](reference/{module}.md#{n}){{ #{anchor(n)} }}' for n in names
    )
    return f'{links}\n{{ .defs }}\n\n{text}' if links else text


def output(o, figures, alt):
    "One output in its richest form; a picture goes to `figures`, by path."
    data = o.get('data', {})
    if o.output_type == 'error':
        raise ValueError(
            f"a cell's output is an error, {o.ename}: {o.evalue}; run the"
            " notebook again"
        )
    if 'image/png' in data:
        path = f'figures/{figures["page"]}-{len(figures)}.png'
        figures[path] = base64.b64decode(data['image/png'])
        return f'![{alt}]({path})'
    if (
        'text/html' in data
    ):  # as it is; a table of pandas is styled as any other
        html = re.sub(
            r'<style scoped>.*?</style>', '', data['text/html'], flags=re.S
        ).replace(' border="1" class="dataframe"', '')
        return (
            '<div class="output">\n'
            + re.sub(r'\n\s*\n', '\n', html.strip())
            + '\n</div>'
        )
    if 'text/markdown' in data:
        return re.sub(
            r' (?=±)|(?<=±) |(?<=\d,) (?=[+-]\d)',
            '\N{NO-BREAK SPACE}',
            data['text/markdown'],
        )  # a number and its error on one line
    return (
        '<div class="output"'
        f' markdown="1">\n\n{FENCE}text\n{(o.get("text") or data.get("text/plain", "")).rstrip()}\n{FENCE}\n\n</div>'
    )


def linked(text, own, public):
    """Names of the package in backticks, outside code blocks, headings and
    links, become links to the reference; where two modules have a name,
    that of `own` is meant. A plain word without brackets (`product`) may
    mean something else, and is linked only where it is defined.
    """
    home = {
        n: m
        for m, names in public.items()
        for n in names
        if m == own or sum(n in other for other in public.values()) == 1
    }
    plain = {n for n in home if n.isalpha() and n.islower() and home[n] != own}

    def link(m):
        return (
            f'[{m[0]}](reference/{home[m["name"]]}.md#{m["name"]})'
            if m['name'] in home and (m['name'] not in plain or '(' in m[0])
            else m[0]
        )

    return re.sub(f'{PASSED_OVER}|{NAME}', link, text, flags=re.S | re.M)


def as_page(nb, name, public):
    """The Markdown of a notebook, and its figures by path. `public`: the
    exported names of each module.
    """
    parts = []
    figures = {'page': name}
    imports = []
    alt = title_of(nb)
    module = module_of(nb)
    for c in nb.cells:
        source = source_of(c)
        flags = directives(c)
        if not source or 'hide' in flags:
            continue
        body = ast.parse(source).body if c.cell_type == 'code' else []
        if body and all(
            isinstance(s, (ast.Import, ast.ImportFrom)) for s in body
        ):
            imports.append(source)
            continue
        if imports:
            parts.append(
                folded('Imports', '\n'.join(imports), ' data-search-exclude')
            )
        imports = []
        if c.cell_type == 'markdown':
            parts.append(linked(source, module, public))
            alt = next(
                (
                    line.lstrip('# ')
                    for line in reversed(source.splitlines())
                    if line.startswith('#')
                ),
                alt,
            )
        elif c.cell_type == 'code':
            names = (
                [
                    n
                    for s in body
                    for n in bound(s)
                    if n in public.get(module, ())
                ]
                if any(d.startswith('export') for d in flags)
                else []
            )
            if 'echo: false' not in flags:
                parts.append(code(source, module, names))
            parts += [output(o, figures, alt) for o in c.outputs]
    text = re.sub(
        r'\]\((\w+)\.ipynb(#[^)]*)?\)', r'](\1.md\2)', '\n\n'.join(parts)
    ).replace('](../', '](')
    del figures['page']
    return (
        f'---\nsearch: {{boost: 3}}\n---\n\n{text}',
        figures,
    )  # a chapter before the reference
