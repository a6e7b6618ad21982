"""Comments behind parameters and fields, as mkdocstrings shows a docstring's
sections: an extension of griffe.
"""

import re
from textwrap import dedent

import griffe

from lrp_loo.core.tools import comments_in

MANY = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


def escaped(text):
    "Prose of a comment as Markdown; what stands in backticks is code already."
    parts = re.split(r'(`[^`]+`)', text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r'([\\*_|\[\]$#<])', r'\\\1', parts[i])
    return ''.join(parts)


def asked(f, said):
    "The parameters of a function, all of them."
    return [
        griffe.DocstringParameter(
            p.name,
            annotation=p.annotation,
            value=None if p.kind in MANY else p.default,
            description=escaped(said.get(p.name, '')),
        )
        for p in f.parameters
        if p.name not in ('self', 'cls')
    ]


def is_field(attribute):
    return attribute.name[0] != '_' and 'property' not in attribute.labels


def fields(cls, said):
    "Those of a record that are annotated or described."
    return [
        griffe.DocstringAttribute(
            name, annotation=field.annotation, description=escaped(said.get(name, ''))
        )
        for name, field in cls.members.items()
        if field.is_attribute and field.annotation and is_field(field)
    ]


def sections(one):
    "What the source says of a function or class, or None."
    said = comments_in(dedent(one.source))
    parts = []
    if one.docstring:
        parts.append(griffe.DocstringSectionText(escaped(one.docstring.value)))
    if one.is_class and (listed := fields(one, said)):
        parts.append(griffe.DocstringSectionAttributes(listed))
    if one.is_function and (listed := asked(one, said)):
        parts.append(griffe.DocstringSectionParameters(listed))
    if one.is_function and (said.get('return') or one.returns):
        back = griffe.DocstringReturn(
            name='', annotation=one.returns, description=escaped(said.get('return', ''))
        )
        parts.append(griffe.DocstringSectionReturns([back]))
    return parts, bool(one.docstring or said)


def remark(one):
    "The comment behind a variable."
    found = re.search(r'[ ]{2}# (.*)$', one.source.splitlines()[-1])
    return [griffe.DocstringSectionText(escaped(found[1]))] if found else []


def source_link(one):
    "To the cell of the library's page."
    return griffe.DocstringSectionText(f'[source][source-{one.path}]{{ .source }}')


class Comments(griffe.Extension):
    def on_package(self, *, pkg, loader, **_):
        self.walk(pkg)

    def walk(self, parent):
        for name, one in list(parent.members.items()):
            if one.is_alias or (name[0] == '_' and not one.is_module):
                continue
            if one.is_module:
                self.walk(one)
            elif one.is_function or one.is_class:
                self.describe(parent, *sections(one), one)
            elif parent.is_module:
                self.describe(parent, remark(one), True, one)
            elif 'property' not in one.labels:
                del parent.members[name]  # it stands among the fields

    def describe(self, parent, parts, says, one):
        "A method that says nothing of itself is left out."
        if parent.is_class and not says:
            del parent.members[one.name]
            return
        if parent.is_module:
            parts.append(source_link(one))
        one.docstring = one.docstring or griffe.Docstring('.', parent=one)
        one.docstring.parsed = parts
        if one.is_class:
            self.walk(one)
