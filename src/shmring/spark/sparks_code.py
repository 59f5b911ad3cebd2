"""Handles Spark's code: digests of functions, and copies that call other functions."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import re
from collections.abc import Mapping
from itertools import takewhile
from types import CellType, CodeType, FunctionType
from typing import Any

# Class of the jar that checks which members of Spark's classes this version of Spark lacks.
LINKS = "io.shmring.spark.LinkCheck"


def digest(*parts: Any, scope: Mapping[str, Any] | None = None) -> str:
    """Return the digest of the sources of functions, classes and code objects, without white space.

    `scope` has the globals of the module that has the code objects.
    """
    text = "".join([_source(part, scope or {}) for part in parts])
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()[:16]


def _source(part: Any, scope: Mapping[str, Any]) -> str:
    """Return the source of a part.

    Functions do not go through inspect.getsource(), because it parses the source, which takes a
    millisecond.
    """
    if isinstance(part, type):
        return inspect.getsource(part)
    if not isinstance(part, CodeType):
        function: Any = inspect.unwrap(part)
        part, scope = function.__code__, function.__globals__
    lines = linecache.getlines(part.co_filename, dict(scope))[part.co_firstlineno - 1 :]
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    inner = re.compile(rf"\s*$|\s{{{margin + 1}}}")
    head = list(takewhile(lambda line: not inner.match(line), lines))  # decorators, and "def"
    body = takewhile(lambda line: inner.match(line) or line.lstrip()[:1] == ")", lines[len(head) :])
    return "".join((*head, *body))


def free_variables(function: FunctionType) -> dict[str, Any]:
    """Return the values of a function's free variables, by name, without unset variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    none = CellType()  # equal only to cells of unset variables
    return {name: cell.cell_contents for name, cell in cells if cell != none}


def copied(
    function: FunctionType,
    names: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> FunctionType:
    """Return a copy of a function that sees other values of some globals and free variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    given = variables or {}
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **(names or {})},
        function.__name__,
        function.__defaults__,
        tuple([CellType(given[name]) if name in given else cell for name, cell in cells]),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
