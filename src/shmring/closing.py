"""Objects that leaving their ``with`` block closes; errors that let go of what they hold."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self, cast


class Closing(ABC):
    """A context manager that close() ends."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that this object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error, and each error behind or within it, once."""
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
    """Free the leases that the frames of an error's tracebacks hold; drop the `tracebacks`, too."""
    for each in _chain_of(error):
        traceback.clear_frames(each.__traceback__)
        if tracebacks:  # a frame that still runs may hold the error: a cycle
            each.__traceback__ = None
