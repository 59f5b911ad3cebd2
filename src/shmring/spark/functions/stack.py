"""What Spark knows while it calls, and tells nobody: the local variables of whoever calls."""

from __future__ import annotations

from inspect import currentframe
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["callers_locals"]


def callers_locals() -> Iterator[dict[str, Any]]:
    """The local variables of each function up the stack, the one that asks first."""
    frame = currentframe()
    assert frame is not None
    frame = frame.f_back
    while frame is not None:
        yield frame.f_locals
        frame = frame.f_back
