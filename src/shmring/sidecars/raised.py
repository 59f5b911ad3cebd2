"""What a user's function has raised, as its user reads it: from the first line of his own on."""

from __future__ import annotations

import importlib
import os
from traceback import FrameSummary, StackSummary, TracebackException
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import shmring

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def _folder(module: ModuleType) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(str(module.__file__))), "")


# What lies between the worker's main and the user's code: pyarrow takes batches from his iterators.
_NOBODYS = (
    _folder(shmring),
    _folder(pa),
    _folder(importlib),
    f"pyarrow{os.sep}",  # as what is compiled calls itself
    "<frozen importlib.",
    "<frozen runpy>",
)


def raised(error: BaseException) -> str:
    """The traceback without the frames above the user's first one, also of what it came from.

    Where no frame is the user's, all of them stay: the error is shmring's then.
    """
    whole = TracebackException.from_exception(error)
    left: list[Any] = [whole]
    while left:
        each = left.pop()
        if each is not None:
            each.stack = _cut(each)
            left += (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
    return "".join(whole.format())


def _cut(error: Any) -> StackSummary | None:
    stack: Sequence[FrameSummary] = error.stack or ()
    for i, frame in enumerate(stack):
        if not frame.filename.startswith(_NOBODYS):
            return StackSummary.from_list(list(stack[i:]))
    # Of a module that cannot be compiled nothing ran yet: the error itself says where.
    filename = getattr(error, "filename", None)
    if filename is not None and not str(filename).startswith(_NOBODYS):
        return None
    return error.stack
