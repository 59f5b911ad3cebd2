"""Docstrings as this package writes them, for autodoc.

Sections are NumPy's, and their entries are `name : what it is`, because types stand in the
signature. Code is indented, without a marker before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sphinx.application import Sphinx

FIELDS = {"Parameters": "param", "Attributes": "var", "Raises": "raises"}
ENTRY = r"([\w.`*]+(?:, [\w.`*]+)*) : (.*)"


def converted(lines: list[str]) -> list[str]:
    """The docstring as reStructuredText."""
    found: list[str] = []
    for title, body in _sections(lines):
        if title in FIELDS:
            found += ["", *_entries(FIELDS[title], body), ""]
        elif title == "Returns":
            text = " ".join(line.strip() for line in body if line.strip())
            found += ["", f":returns: {text}", ""]
        else:
            found += _with_code(body)
    return found


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    title, body = "", list[str]()
    for line in lines:
        if re.fullmatch(r"-{3,}", line) and body and re.fullmatch(r"[A-Z]\w+", body[-1]):
            following = body.pop()
            yield title, body
            title, body = following, []
        else:
            body.append(line)
    yield title, body


def _entries(field: str, body: list[str]) -> Iterator[str]:
    """`a, b : text` with what is indented under it; then prose, if any."""
    lines = [line for line in body if line.strip()]
    while lines and (lines[0].startswith(" ") or re.match(ENTRY, lines[0])):
        line = lines.pop(0)
        if found := re.match(ENTRY, line):
            # Sphinx takes what stands before a blank for the type.
            names = found.group(1).replace(", ", "/" if field != "raises" else ", ")
            yield f":{field} {names}: {found.group(2)}"
        else:
            yield f"    {line.strip()}"
    yield from ("", *lines)


def _with_code(body: list[str]) -> Iterator[str]:
    """Prose; what is indented after an empty line is code."""
    empty, inside = True, False
    for line in body:
        if line.startswith("    ") and empty and not inside:
            yield from (".. code-block:: text", "")
            inside = True
        elif line.strip() and not line.startswith(" "):
            inside = False
        # The directive would be the literal block of the two colons, and the code a quotation.
        yield line.removesuffix(":") if line.endswith("::") else line
        empty = not line.strip()


def _process(
    app: Sphinx, what: str, name: str, given: object, options: object, lines: list[str]
) -> None:
    marked = [line.replace("  # doctest: +SKIP", "") for line in lines]
    # A leading dot: wherever that is. Rooms above the ring name its methods.
    linked = [line.replace(":meth:`Ring.", ":meth:`.Ring.") for line in marked]
    lines[:] = converted(linked)


def _escape(app: Sphinx, command: object, lines: list[str]) -> None:
    """A command's help has no markup but `code`."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("sphinx-click-process-description", _escape)
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
