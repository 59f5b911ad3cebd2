"""The C API's page, from the comments of shmring.h: ``.. c-header:: path``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

MARK = re.compile(r"[ \t]*/\* CHANGE: .*? \*/\n")  # for who changes the code
COMMENT = re.compile(r"\s*/\*(.*?)\*/[ \t]*", re.DOTALL)
SECTION = re.compile(r"/\* --- (.+?) -+ \*/")


@dataclass(frozen=True)
class Item:
    """A declaration and the comment before it; a comment alone, or a heading (`#`)."""

    comment: str
    code: str


def items(source: str) -> Iterator[Item]:
    """The declarations of a header, in order."""
    source = MARK.sub("", source)
    rest = source.split('extern "C" {\n#endif\n', 1)[1].split("#ifdef __cplusplus", 1)[0]
    comment = ""
    while rest := rest.lstrip("\n"):
        if section := SECTION.match(rest):
            yield Item(section.group(1), "#")
            rest, comment = rest[section.end() :], ""
        elif found := COMMENT.match(rest):
            if comment:
                yield Item(comment, "")
            comment = plain(found.group(1))
            rest = rest[found.end() :]
        elif rest.startswith("#"):
            code, rest = _directive(rest)
            if "SHMRING_API" not in code:
                yield Item(comment, code)
            comment = ""
        else:
            code, rest = _declaration(rest)
            yield Item(comment, code)
            comment = ""


def _directive(text: str) -> tuple[str, str]:
    if text.startswith("#if"):
        code, _, rest = text.partition("#endif\n")
    else:
        code, _, rest = text.partition("\n")
    return code, rest


def _declaration(text: str) -> tuple[str, str]:
    """Up to the semicolon that is in no braces."""
    depth = 0
    for place, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == ";" and not depth:
            return text[:place], text[place + 1 :]
    raise ExtensionError(f"shmring.h: no end of {text[:60]!r}")


def plain(comment: str) -> str:
    """A comment's words."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().splitlines()]
    return "\n".join(lines).strip()


def rest(text: str) -> str:
    """Words as reStructuredText: nothing in them is markup but `code`."""
    escaped = re.sub(r"([\\*|_])", r"\\\1", text)
    return re.sub(r"`([^`]+)`", lambda code: f"``{code.group(1)}``".replace("\\", ""), escaped)


def pages(item: Item, functions: set[str]) -> Iterator[str]:
    """A declaration as directives of Sphinx's C domain.

    Structs have names of their own in C, and share them with functions in Sphinx: a struct that is
    called as a function is described without being declared.
    """
    code = " ".join(re.sub(r"/\*.*?\*/", "", item.code, flags=re.DOTALL).split())
    code = code.removeprefix("SHMRING_API ")
    if not code:
        yield from (rest(item.comment), "")
    elif define := re.match(r"#define (\w+) (\d\S*)", code):
        yield from _described(f".. c:macro:: {define.group(1)}", f"``{define.group(2)}``", item)
    elif code.startswith("#"):
        return
    elif found := re.match(r"(struct|enum) (\w+) \{", code):
        kind, name = found.groups()
        shared = name in functions
        head = f".. describe:: {kind} {name}" if shared else f".. c:{kind}:: {name}"
        yield from _described(head, "", item)
        field = {"struct": "c:member", "enum": "c:enumerator"}[kind]
        yield from _fields("describe" if shared else field, item.code)
    elif code.startswith("typedef"):
        yield from _described(f".. c:type:: {code.removeprefix('typedef ')}", "", item)
    else:
        yield from _described(f".. c:function:: {code}", "", item)


def _described(head: str, value: str, item: Item) -> Iterator[str]:
    yield from (head, "")
    words = " ".join(filter(None, (value, rest(item.comment))))
    yield from (f"   {line}" for line in words.splitlines())
    yield ""


def _fields(directive: str, code: str) -> Iterator[str]:
    body = code[code.index("{") + 1 : code.rindex("}")]
    pattern = r"([^;,/{}]+(?:\([^)]*\))?)[;,]?[ \t]*(?:/\*(.*?)\*/)?"
    for field in re.finditer(pattern, body, re.DOTALL):
        name = " ".join(field.group(1).split())
        if name:
            yield from (f"   .. {directive}:: {name}", "")
            if field.group(2):
                words = " ".join(plain(field.group(2)).split())
                yield f"      {rest(words)}"
            yield ""


class Header(SphinxDirective):
    """All of a header, a section for each of its sections."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        source = Path(path).read_text()
        declared = list(items(source))
        functions = sum("SHMRING_API" in item.code for item in declared)
        if functions != len(re.findall(r"^SHMRING_API", source, re.MULTILINE)):
            raise ExtensionError(f"{path}: a function is missing among the {functions} found")
        found: list[nodes.Node] = []
        into: nodes.Element | None = None
        for title, lines in _by_section(declared):
            if title:
                into = nodes.section(ids=[nodes.make_id(title)])
                into += nodes.title(text=title.capitalize())
                found.append(into)
            holder = nodes.Element()
            self.state.nested_parse(StringList(lines, source=path), self.content_offset, holder)
            if into is None:
                found += holder.children
            else:
                into += holder.children
        return found


def _by_section(declared: list[Item]) -> Iterator[tuple[str, list[str]]]:
    title, lines = "", list[str]()
    functions = set(re.findall(r"(\w+)\(", " ".join(item.code for item in declared)))
    for item in declared:
        if item.code == "#":
            yield title, lines
            title, lines = item.comment, []
        else:
            lines += pages(item, functions)
    yield title, lines


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("c-header", Header)
    return {"parallel_read_safe": True}
