"""Finds a sidecar's function by its name, and formats its errors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from traceback import format_exception
from types import ModuleType
from typing import Any, TypeAlias, cast

import shmring
from shmring.common.closing import let_go

Function: TypeAlias = Callable[..., Any]


class WrongRows(ValueError):
    """Raised if the function has not returned one row for each row of its batch."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Says how a worker joins requests.

    `rows` is the most rows of a joint batch; a single request may have more. `wait` is the most
    seconds that the first request of a joint batch waits for others.
    """

    rows: int
    wait: float


def parts_of(target: str) -> tuple[str, str]:
    """Return the module and the function of ``module:function``; ValueError if one is missing."""
    module, _, function = target.partition(":")
    if not (module and function):
        raise ValueError(f"a sidecar is named as module:function, not {target!r}")
    if module == "__main__":
        raise ValueError(
            "a sidecar's workers import its function, so it must be in a module, not in the "
            "script that is run"
        )
    return module, function


def find_function(target: str) -> Function | type:
    """Import the function or class that ``module:function`` names; ValueError if there is none."""
    module_name, attribute = parts_of(target)
    module = importlib.import_module(module_name)
    function: Any = module
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise ValueError(f"module {module_name} has no {attribute}{_defined_in(module)}")
        function = getattr(function, part)
    return function


def _defined_in(module: ModuleType) -> str:
    """Return words that name the first public functions and classes that a module defines."""
    own = [
        name
        for name, found in vars(module).items()
        if not name.startswith("_")
        and callable(found)
        and getattr(found, "__module__", None) == module.__name__
    ]
    return f"; it defines {', '.join(own[:8])}" if own else ""


def instantiated(function: Any, target: str) -> Function:
    """Return an instance of a class, which may load a model in its constructor, or the function."""
    if isinstance(function, type):
        function = cast("Any", function)()
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    return function


def warm_up(function: Function) -> None:
    """Call a model's method warm_up(), if it has one, so that its first calls are not slow."""
    method: object = getattr(function, "warm_up", None)
    if callable(method):
        method()


def readiness_of(function: Function) -> Callable[[], object] | None:
    """Return a model's method ready(), which tells if it can be called; None if it has none."""
    method: object = getattr(function, "ready", None)
    return method if callable(method) else None


def _folder(module: Any) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(module.__file__)), "")


# Beginnings of file names: a traceback's lines in these files are not the user's code. pyarrow's
# files are listed because pyarrow calls the iterators that users' functions return.
_NOBODYS = (
    _folder(shmring),
    _folder(importlib),
    f"pyarrow{os.sep}",  # not an absolute path: pyarrow's compiled frames have relative file names
    "<frozen importlib.",
    "<frozen runpy>",
)


def raised(error: BaseException) -> str:
    """Return the traceback from the user's first line on, or all of it if no line is the user's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOBODYS):
        frames = frames.tb_next
    return "".join(format_exception(type(error), error, frames or error.__traceback__))


def told(error: BaseException) -> str:
    """Return the text of raised(), and clear the error's frames, which hold the request."""
    text = raised(error)
    let_go(error, tracebacks=True)
    return text
