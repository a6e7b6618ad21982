"""A notebook as Markdown for the site.

The directives of nbdev are obeyed and do not show; figures become files.
"""

import ast
import base64
import re

LONG = 30  # a cell of more lines is folded
DRAWING = 8  # and one that makes a figure, of more than so many
FENCE = '`````'
# code blocks, headings, links: no place for another link
PASSED_OVER = r'^(`{3,}|~{3,}).*?^\1\s*?$|^#.*?$|\[[^\]\n]*\]\([^)\n]*\)'
# pages of the repository that the site has not: their words stay, without a link
APART = re.compile(
    r'\[([^\[\]]*)\]\((?:\.\./)+(?:research|docs)/[^)]*\.(?:ipynb|md)[^)]*\)'
)
NAME = r'(?<!`)`(?P<name>[A-Za-z]\w*)(?:\([^`\n]*\))?`(?!`)'


def title_of(nb):
    return next(
        line[2:] for line in nb.cells[0].source.splitlines() if line.startswith('# ')
    )


def number_of(name):
    "'06_loo' → '6'; None where a name has no number."
    m = re.match(r'0*(\d+[a-z]?)_', name)
    return m and m[1]


def module_of(nb):
    "The module of a notebook; of a package's head the package."
    return next(
        (
            d.split()[1].removesuffix('.__init__')
            for c in nb.cells
            for d in directives(c)
            if d.startswith('default_exp')
        ),
        None,
    )


def export_of(cell, module):
    "The module that a cell goes to, its notebook's or another; None: to none."
    for directive in directives(cell):
        words = directive.split()
        if words[0] in ('export', 'exporti', 'exports'):
            return words[1] if len(words) > 1 else module
    return None


def said_by(statement, lines):
    "The first sentence of a docstring, or the comment behind a variable."
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        doc = ast.get_docstring(statement) or ''
        said = re.split(r"(?<=\.)\s(?=[A-Z`'])|\n\n", doc)[0]
    else:
        said = lines[statement.end_lineno - 1].partition('  # ')[2]
    return ' '.join(said.split())


def definitions(nb):
    """The public names that the notebook's cells export: module, name, what it
    says of itself.
    """
    module = module_of(nb)
    for cell in nb.cells:
        home = export_of(cell, module) if cell.cell_type == 'code' else None
        source = source_of(cell)
        for statement in ast.parse(source).body if home else ():
            for name in bound(statement):
                if name[0] != '_':
                    yield home, name, said_by(statement, source.splitlines())


def identifier(module, name):
    "What the reference calls a name."
    return f'lrp_loo.{module}.{name}'


def directives(cell):
    return [
        line[2:].strip() for line in cell.source.splitlines() if line.startswith('#|')
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
    targets = getattr(statement, 'targets', [getattr(statement, 'target', None)])
    return [t.id for t in targets if isinstance(t, ast.Name)]


def fenced(source, language='python'):
    return f'{FENCE}{language}\n{source}\n{FENCE}'


def folded(summary, source):
    "Source that is opened by a click; the search passes it over."
    opened = '<details class="source" markdown="1" data-search-exclude>'
    return f'{opened}<summary>{summary}</summary>\n\n{fenced(source)}\n\n</details>'


def code(source, module, names, draws=False):
    """The source of a cell, folded where it is long or draws. `names`: what the
    package takes from it, linked with the reference.
    """
    n = len(source.splitlines())
    said, most = ('Drawing', DRAWING) if draws else ('Source', LONG)
    text = folded(f'{said}, {n} lines', source) if n > most else fenced(source)
    links = ' '.join(f'[`{n}`][{identifier(module, n)}]' for n in names)
    here = ''.join(f'[](){{ #source-{identifier(module, n)} }}' for n in names)
    return f'{here}{links}\n{{ .defs }}\n\n{text}' if links else text


def html_output(html):
    "As it is; a table of pandas is styled as any other."
    html = re.sub(r'<style scoped>.*?</style>', '', html, flags=re.S)
    html = html.replace(' border="1" class="dataframe"', '').strip()
    html = re.sub(r'\n\s*\n', '\n', html)
    return f'<div class="output">\n{html}\n</div>'


def markdown_output(text):
    "A number and its error stay on one line."
    pattern = r' (?=±)|(?<=±) |(?<=\d,) (?=[+-]\d)'
    return re.sub(pattern, '\N{NO-BREAK SPACE}', text)


def text_output(text):
    "What was printed, as it is."
    block = f'{FENCE}text\n{text.rstrip()}\n{FENCE}'
    return f'<div class="output" markdown="1">\n\n{block}\n\n</div>'


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
    if 'text/html' in data:
        return html_output(data['text/html'])
    if 'text/markdown' in data:
        return markdown_output(data['text/markdown'])
    return text_output(o.get('text') or data.get('text/plain', ''))


def homes_of(public):
    """The module that a name is meant of where nothing else says it: the only
    one that has it, commands of the shell aside.
    """
    found = {}
    for module, names in public.items():
        for name in names if not module.startswith('cli.') else ():
            found.setdefault(name, []).append(module)
    return {name: m[0] for name, m in found.items() if len(m) == 1}


def linked(text, own, homes):
    """Names of the package in backticks, outside code blocks, headings and
    links, become links to the reference. `own`: names of the page's module.
    A plain word without brackets (`product`) may mean something else, and is
    linked only where it is defined.
    """

    def link(m):
        name = m['name']
        home = own.get(name) or homes.get(name)
        word = name and name.isalpha() and name.islower() and name not in own
        if home is None or (word and '(' not in m[0]):
            return m[0]
        return f'[{m[0]}][{identifier(home, name)}]'

    return re.sub(f'{PASSED_OVER}|{NAME}', link, text, flags=re.S | re.M)


def last_heading(source):
    "What a figure below a text shows, if the text says so."
    for line in reversed(source.splitlines()):
        if line.startswith('#'):
            return line.lstrip('# ')
    return None


def only_imports(body):
    "Is there nothing but imports in a cell?"
    kinds = (ast.Import, ast.ImportFrom)
    return bool(body) and all(isinstance(s, kinds) for s in body)


class Chapter:
    "A page in the making."

    def __init__(self, nb, name, public, homes):
        self.module = module_of(nb)
        self.public = public
        self.homes = homes
        self.own = dict.fromkeys(public.get(self.module, ()), self.module)
        self.figures = {'page': name}
        self.told = set()  # names that have had their cell
        self.alt = title_of(nb)  # of the next figure
        self.parts = []
        self.imports = []  # sources of cells that follow one another

    def add(self, cell):
        "One cell; what is hidden is passed over."
        source = source_of(cell)
        flags = directives(cell)
        if not source or 'hide' in flags:
            return
        if cell.cell_type != 'code':
            self.add_text(source)
            return
        if source.startswith('!'):
            self.add_shell(cell, source)
            return
        body = ast.parse(source).body
        if only_imports(body):
            self.imports.append(source)
        else:
            self.add_code(cell, source, flags, body)

    def add_imports(self):
        "Neighbouring cells of imports, folded together."
        if self.imports:
            source = '\n'.join(self.imports)
            self.parts.append(folded('Imports', source))
        self.imports = []

    def add_text(self, source):
        self.add_imports()
        self.parts.append(linked(source, self.own, self.homes))
        self.alt = last_heading(source) or self.alt

    def add_shell(self, cell, source):
        "Commands of a shell, as they are typed there."
        self.add_imports()
        typed = re.sub(r'^!', '', source, flags=re.M)
        self.parts.append(fenced(typed, 'sh'))
        self.parts += [output(o, self.figures, self.alt) for o in cell.outputs]

    def add_code(self, cell, source, flags, body):
        self.add_imports()
        home = export_of(cell, self.module)
        known = self.public.get(home, ())
        made = dict.fromkeys(n for s in body for n in bound(s))
        names = [n for n in made if n in known and n not in self.told]
        self.told.update(names)
        if 'echo: false' not in flags:
            given = (o.get('data', {}) for o in cell.outputs)
            draws = home is None and any('image/png' in data for data in given)
            self.parts.append(code(source, home, names, draws))
        self.parts += [output(o, self.figures, self.alt) for o in cell.outputs]


def as_page(nb, name, public):
    """The Markdown of a notebook, and its figures by path. `name`: the notebook's
    path in nbs/; `public`: the exported names of each module.
    """
    depth = name.count('/')
    chapter = Chapter(nb, name.split('/')[-1], public, homes_of(public))
    for cell in nb.cells:
        chapter.add(cell)
    text = '\n\n'.join(chapter.parts)
    text = re.sub(r'(\]\([./\w]+)\.ipynb', r'\1.md', APART.sub(r'\1', text))
    # what lies beside nbs/ lies in the site's own folder
    out, inside = '../' * (depth + 1), '../' * depth
    text = text.replace(f']({out}', f']({inside}')
    del chapter.figures['page']
    return text, chapter.figures
