"""Pages of the reference, from `__all__`, docstrings and docments (the comments behind parameters)."""

import ast
import html
import inspect
import re
import textwrap
from importlib import import_module

from fastcore.docments import docments

from chapter import anchor, bound, fenced, linked

EMPTY = inspect.Parameter.empty


def escaped(text):
    "Prose of a comment as Markdown; what stands in backticks is code already."
    parts = re.split(r'(`[^`]+`)', ' '.join((text or '').split()))
    return ''.join(
        (
            p
            if i % 2
            else re.sub(
                r'([\\*_|\[\]$#])', r'\\\1', html.escape(p, quote=False)
            )
        )
        for i, p in enumerate(parts)
    )


def code(text):
    return f'`` {text} ``' if '`' in text else f'`{text}`'


def type_name(anno):
    """NoneType is what docments concludes from a default of None: no type was
    given.
    """
    if anno in (EMPTY, None, type(None)) or isinstance(
        anno, inspect._ParameterKind
    ):
        return ''
    return code(
        anno.__name__
        if hasattr(anno, '__name__') and not hasattr(anno, '__origin__')
        else re.sub(r'\b(\w+\.)+', '', str(anno))
    )


def default_of(p):
    "… is made anew in each call."
    return (
        '…'
        if '<factory>' in repr(p.default)
        else getattr(p.default, '__name__', None) or repr(p.default)
    )


def starred(p):
    return {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '') + p.name


def call(name, signature):
    "The call as one writes it: names and defaults, wrapped."
    text = ', '.join(
        starred(p) if p.default is EMPTY else f'{p.name}={default_of(p)}'
        for p in signature.parameters.values()
    )
    return '\n'.join(
        textwrap.wrap(
            f'{name}({text})',
            84,
            subsequent_indent=' ' * 4,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def comments(f):
    """Of a NamedTuple's fields, which docments passes over, as it would give
    them.
    """
    if not hasattr(f, '_fields'):
        return docments(f, full=True)
    return {
        n: {'anno': f.__annotations__[n], 'docment': m and m[1]}
        for n in f._fields
        for m in [
            re.search(rf'^\s+{n}\s*:[^#\n]*#(.*)$', inspect.getsource(f), re.M)
        ]
    }


def table(f, signature):
    "A row for each parameter: type, default, comment; and what is returned."
    docs = comments(f)
    rows = []
    for name, p in signature.parameters.items():
        d = docs.get(name, {})
        default = '' if p.default is EMPTY else code(default_of(p))
        rows.append(
            f"| <code>{starred(p)}</code> | {type_name(d.get('anno', EMPTY))} |"
            f" {default} | {escaped(d.get('docment'))} |"
        )
    back = docs.get('return') or {}
    if back.get('docment') or type_name(back.get('anno', EMPTY)):
        rows.append(
            f"| *returns* | {type_name(back.get('anno', EMPTY))} | |"
            f" {escaped(back.get('docment'))} |"
        )
    return (
        '| parameter | type | default | what it is |\n|---|---|---|---|\n'
        + '\n'.join(rows)
        if rows
        else ''
    )


def about(f, name):
    signature = inspect.signature(f)
    signature = signature.replace(
        parameters=[
            p for p in signature.parameters.values() if p.name != 'self'
        ]
    )
    doc = inspect.getdoc(f) or ''
    if doc.startswith(f'{f.__name__}('):
        doc = ''  # what `dataclass` writes for want of a docstring
    return [fenced(call(name, signature)), escaped(doc), table(f, signature)]


def members(cls):
    """The public methods and properties of a class that say something of
    themselves.
    """
    parts = []
    for name, m in vars(cls).items():
        f = m.fget if isinstance(m, property) else getattr(m, '__func__', m)
        if (
            name.startswith('_')
            or not inspect.isfunction(f)
            or not (
                f.__doc__
                or any(d['docment'] for d in docments(f, full=True).values())
            )
        ):
            continue
        parts += [
            f'### {cls.__name__}.{name} {{ #{cls.__name__}.{name} }}',
            *(
                [escaped(f.__doc__)]
                if isinstance(m, property)
                else about(f, f'{cls.__name__}.{name}')
            ),
        ]
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


def package(public):
    "`import lrp_loo`: the names and where they are."
    api = import_module('lrp_loo')
    home = {
        n: m
        for n in api.__all__
        for m in public
        if n in public[m]
        and getattr(import_module(f'lrp_loo.{m}'), n) is getattr(api, n)
    }
    rows = [
        (
            f'| [`{n}`]({home[n]}.md#{n}) |'
            f' [`lrp_loo.{home[n]}`]({home[n]}.md) |'
            if n in home
            else (
                f'| `{n}` | `lrp_loo` itself:'
                f' {escaped(inspect.getdoc(getattr(api, n)))} |'
            )
        )
        for n in api.__all__
    ]
    modules = [
        f"| [`lrp_loo.{m}`]({m}.md) |"
        f" {escaped(inspect.getdoc(import_module('lrp_loo.' + m)))} |"
        for m in public
    ]
    return '\n\n'.join(
        [
            '# Public names',
            (
                'What `import lrp_loo` gives ([chapter 47](../47_api.md)), and'
                ' the modules that hold it.'
            ),
            '| name | module |\n|---|---|\n' + '\n'.join(rows),
            '## Modules',
            '| module | what it is |\n|---|---|\n' + '\n'.join(modules),
        ]
    )


def as_page(name, chapter, title, public):
    """The Markdown of a module's page. `chapter`: the notebook that defines
    it, and its title.
    """
    module = import_module('lrp_loo.' + name)
    parts = [
        f'# lrp_loo.{name}',
        escaped(inspect.getdoc(module)),
        f'Defined in [{title}](../{chapter}.md).',
    ]
    for n in module.__all__:
        parts += entry(module, n, chapter)
    return linked('\n\n'.join(p for p in parts if p), name, public).replace(
        '](reference/', ']('
    )
