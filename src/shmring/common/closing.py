"""A base class for objects that a ``with`` block closes; let_go() frees an error's leases."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self, cast


class Closing(ABC):
    """A context manager that calls close() at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that this object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the errors of groups; each error once."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", each).exceptions
        yield each


def let_go(error: BaseException, *, tracebacks: bool = False) -> None:
    """Free the leases held by the frames of an error's tracebacks.

    With `tracebacks` the tracebacks themselves are dropped, too.
    """
    for each in _chain_of(error):
        traceback.clear_frames(each.__traceback__)
        # Break the cycle of the error, its traceback, and a frame that still runs and holds the
        # error: such a frame cannot be cleared.
        if tracebacks:
            each.__traceback__ = None
