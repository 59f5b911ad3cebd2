"""Answers that wait, so that several are converted together."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

# Number of values after which the waiting answers are converted: half a megabyte of numbers.
MOST_VALUES = 1 << 16
_PATIENCE = 0.05  # longest time that an answer waits, in seconds


class Waiting(ABC):
    """Answers that wait.

    If the conversion of several answers raises an error, they are converted one by one, so that the
    error belongs to the right answer.
    """

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._values = 0  # number of values in the answers that wait
        self._since = 0.0  # time at which the first of the waiting answers came

    def hold(self, answer: Any, values: int) -> list[Any]:
        """Let an answer wait; return the batches to send now."""
        now = time.monotonic()
        if not self._held:
            self._since = now
        self._held.append(answer)
        self._values += values
        is_full = self._values > MOST_VALUES or now - self._since > _PATIENCE
        return self.flush() if is_full else []

    def flush(self) -> list[Any]:
        """Return the batches of all answers that wait."""
        held, self._held, self._values = self._held, [], 0
        if len(held) > 1:
            with suppress(Exception):  # one answer may be wrong: convert each answer alone below
                return self._together(held)
        return [batch for answer in held for batch in self._alone(answer)]

    @abstractmethod
    def _together(self, answers: list[Any]) -> list[Any]:
        """Convert several answers; raise an error if they cannot be converted together."""

    @abstractmethod
    def _alone(self, answer: Any) -> list[Any]:
        """Convert one answer, as Spark does."""
