"""Pages of the reference, from `__all__`, docstrings and docments.

A docment is the comment behind a parameter.
"""

import ast
import html
import inspect
import re
import textwrap
from importlib import import_module

from chapter import anchor, bound, fenced, linked
from fastcore.docments import docments

EMPTY = inspect.Parameter.empty


def escaped(text):
    "Prose of a comment as Markdown; what stands in backticks is code already."
    parts = re.split(r'(`[^`]+`)', ' '.join((text or '').split()))
    special = r'([\\*_|\[\]$#])'
    for i in range(0, len(parts), 2):
        plain = html.escape(parts[i], quote=False)
        parts[i] = re.sub(special, r'\\\1', plain)
    return ''.join(parts)


def code(text):
    return f'`` {text} ``' if '`' in text else f'`{text}`'


def type_name(anno):
    """NoneType is what docments concludes from a default of None: no type was
    given.
    """
    none = anno in (EMPTY, None, type(None))
    if none or isinstance(anno, inspect._ParameterKind):
        return ''
    if hasattr(anno, '__name__') and not hasattr(anno, '__origin__'):
        return code(anno.__name__)
    return code(re.sub(r'\b(\w+\.)+', '', str(anno)))


def default_of(p):
    "… is made anew in each call."
    if '<factory>' in repr(p.default):
        return '…'
    return getattr(p.default, '__name__', None) or repr(p.default)


def starred(p):
    return {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '') + p.name


def argument(p):
    "A parameter as it is written in a call."
    if p.default is EMPTY:
        return starred(p)
    return f'{p.name}={default_of(p)}'


def call(name, signature):
    "The call as one writes it: names and defaults, wrapped."
    text = ', '.join(map(argument, signature.parameters.values()))
    wrapped = textwrap.wrap(
        f'{name}({text})',
        80,
        subsequent_indent=' ' * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return '\n'.join(wrapped)


def comments(f):
    """Of a NamedTuple's fields, which docments passes over, as it would give
    them.
    """
    if not hasattr(f, '_fields'):
        return docments(f, full=True)
    source = inspect.getsource(f)
    found = {}
    for name in f._fields:
        comment = re.search(rf'^\s+{name}\s*:[^#\n]*#(.*)$', source, re.M)
        anno = f.__annotations__[name]
        found[name] = {'anno': anno, 'docment': comment and comment[1]}
    return found


def table(f, signature):
    "A row for each parameter: type, default, comment; and what is returned."
    docs = comments(f)
    rows = []
    for name, p in signature.parameters.items():
        d = docs.get(name, {})
        kind = type_name(d.get('anno', EMPTY))
        default = '' if p.default is EMPTY else code(default_of(p))
        said = escaped(d.get('docment'))
        rows.append(f'| <code>{starred(p)}</code> | {kind} | {default} | {said} |')
    back = docs.get('return') or {}
    kind = type_name(back.get('anno', EMPTY))
    if back.get('docment') or kind:
        rows.append(f"| *returns* | {kind} | | {escaped(back.get('docment'))} |")
    head = ['| parameter | type | default | what it is |', '|---|---|---|---|']
    return '\n'.join(head + rows) if rows else ''


def signature_of(f):
    "A class that is made as a str or a number is made takes what these take."
    try:
        return inspect.signature(f)
    except ValueError:
        value = inspect.Parameter('value', inspect.Parameter.POSITIONAL_ONLY)
        return inspect.Signature([value])


def about(f, name):
    "The call, the docstring, the parameters."
    signature = signature_of(f)
    asked = [p for p in signature.parameters.values() if p.name != 'self']
    signature = signature.replace(parameters=asked)
    # without the parameters that `lrp_loo` puts into it for `help`
    own = vars(f).get('__undocumented__')
    doc = inspect.cleandoc(own or inspect.getdoc(f) or '')
    if doc.startswith(f'{f.__name__}('):
        doc = ''  # what `dataclass` writes for want of a docstring
    return [fenced(call(name, signature)), escaped(doc), table(f, signature)]


def says_something(f):
    "Has a function a docstring or a comment behind a parameter?"
    said = docments(f, full=True).values()
    return bool(f.__doc__) or any(d['docment'] for d in said)


def members(cls):
    """The public methods and properties of a class that say something of
    themselves.
    """
    parts = []
    for name, m in vars(cls).items():
        f = m.fget if isinstance(m, property) else getattr(m, '__func__', m)
        if name.startswith('_') or not inspect.isfunction(f):
            continue
        if not says_something(f):
            continue
        full = f'{cls.__name__}.{name}'
        parts.append(f'### {full} {{ #{full} }}')
        if isinstance(m, property):
            parts.append(escaped(f.__doc__))
        else:
            parts += about(f, full)
    return parts


def statement(module, name):
    "a constant as it stands in the source, its comment with it."
    lines = inspect.getsource(module).splitlines()
    s = next(s for s in ast.parse('\n'.join(lines)).body if name in bound(s))
    return '\n'.join(lines[s.lineno - 1 : s.end_lineno])


def entry(module, name, chapter):
    o = getattr(module, name)
    parts = [
        f'## {name} {{ #{name} }}',
        f'[in the chapter](../{chapter}.md#{anchor(name)}){{ .chapter }}',
    ]
    if inspect.isclass(o):
        parts += about(o, name) + members(o)
    elif inspect.isfunction(o):
        parts += about(o, name)
    else:
        parts += [fenced(statement(module, name))]
    return parts


def home_of(name, thing, public):
    "The module that a name of the package comes from; None: the package."
    for module, names in public.items():
        if name in names:
            there = getattr(import_module(f'lrp_loo.{module}'), name)
            if there is thing:
                return module
    return None


def name_row(name, api, public):
    "A row of the table of names."
    thing = getattr(api, name)
    home = home_of(name, thing, public)
    if home is None:
        said = escaped(inspect.getdoc(thing))
        return f'| `{name}` | `lrp_loo` itself: {said} |'
    return f'| [`{name}`]({home}.md#{name}) | [`lrp_loo.{home}`]({home}.md) |'


def module_row(name):
    "A row of the table of modules."
    said = escaped(inspect.getdoc(import_module(f'lrp_loo.{name}')))
    return f'| [`lrp_loo.{name}`]({name}.md) | {said} |'


def package(public):
    "`import lrp_loo`: the names and where they are."
    api = import_module('lrp_loo')
    rows = '\n'.join(name_row(n, api, public) for n in api.__all__)
    modules = '\n'.join(map(module_row, public))
    return f"""# Public names

What `import lrp_loo` gives ([chapter](../package.md)), and the modules that \
hold it.

| name | module |
|---|---|
{rows}

## Modules

| module | what it is |
|---|---|
{modules}"""


def as_page(name, chapter, title, public, chapters):
    """The Markdown of a module's page. `chapter`: the notebook of its name,
    and its title; `chapters`: the notebook that defines each public name.
    """
    module = import_module('lrp_loo.' + name)
    parts = [
        f'# lrp_loo.{name}',
        escaped(inspect.getdoc(module)),
        f'Defined in [{title}](../{chapter}.md).',
    ]
    for n in module.__all__:
        parts += entry(module, n, chapters[n])
    text = '\n\n'.join(p for p in parts if p)
    return linked(text, name, public).replace('](reference/', '](')
