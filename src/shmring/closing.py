"""Objects that leaving their ``with`` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that close() ends."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that this object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
