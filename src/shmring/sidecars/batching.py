"""How many requests a worker takes together: the option of a sidecar, without what obeys it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from shmring.arguments import at_least_one

PIN = "pin"  # a word of a worker's command line

_USUAL_WAIT = 5.0  # ms


class WrongRows(ValueError):
    """The function has not answered each row with one."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How large a joint batch becomes, and how long its first request waits for others.

    Parameters
    ----------
    rows : at most, unless a single request has more
    wait : seconds
    """

    rows: int
    wait: float

    @classmethod
    def of(cls, max_batch_rows: int | None, max_wait_ms: float | None) -> Self | None:
        """What the user gave; None where each request is to be worked on alone.

        Raises
        ------
        TypeError, ValueError : a number is none, or too small, or only the second one was given
        """
        if max_batch_rows is None:
            if max_wait_ms is not None:
                raise ValueError("max_wait_ms is how long requests wait for max_batch_rows")
            return None
        rows = at_least_one("max_batch_rows", max_batch_rows)
        wait = _USUAL_WAIT if max_wait_ms is None else max_wait_ms
        if not 0 <= wait < float("inf"):
            raise ValueError(f"max_wait_ms must be a time of 0 or more, not {wait:g}")
        return cls(rows, wait / 1000)

    def as_arguments(self) -> list[str]:
        """For a worker's command line."""
        return [str(self.rows), str(self.wait * 1000)]

    @classmethod
    def from_arguments(cls, rows: str, wait: str) -> Self:
        """What as_arguments() says."""
        return cls(int(rows), float(wait) / 1000)

    def check(self, target: str, rows: int, answered: int) -> None:
        """Whether as many rows came out as went in.

        Raises
        ------
        WrongRows : they did not
        """
        if rows != answered:
            raise WrongRows(
                f"{target} answered {rows} rows with {answered}: with max_batch_rows it is given "
                f"the rows of several requests, and must return one for each, in their order"
            )


# CHANGE: a new option of a sidecar
def worker_options(batching: Batching | None, *, pin: bool) -> list[str]:
    """What stands at the end of a worker's command line."""
    return [*([PIN] if pin else []), *([] if batching is None else batching.as_arguments())]
