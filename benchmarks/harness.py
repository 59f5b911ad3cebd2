"""Questions, rows and rounds: what every benchmark is made of.

A question is one comparison; each of its rows is one contestant. The rows of a
question run in turn (A B C, A B C, ...), so that a slow moment of the machine
hits all of them, and every ratio is taken within a round.
"""

from __future__ import annotations

import contextlib
import statistics
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Question", "Row", "Sample", "Settings", "Target", "Unavailable", "measure"]


class Unavailable(Exception):
    """A contestant that cannot run here; the text says why and what would help."""


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Parameters
    ----------
    rounds : times that every row is measured
    seconds : that one measurement should take
    quick : fewer and smaller; figures to see that it works, not to quote
    full : as many items as the targets name, where the default is fewer
    """

    rounds: int
    seconds: float
    quick: bool
    full: bool = False


@dataclass(frozen=True)
class Sample:
    """One measurement: the row's figure, and others that came with it, by name."""

    value: float
    also: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What a row should reach.

    Parameters
    ----------
    limit : a factor where `of` is given, otherwise a value in the row's unit
    of : name of the row of the same question to compare with
    """

    limit: float
    of: str | None = None


@dataclass
class Row:
    """One contestant of a question.

    Parameters
    ----------
    run : measures once, for about that many seconds
    lower_is_better : for times, bytes and CPU
    compare : names of rows to show a ratio to, without a target
    rivals : likewise of others than shmring: who of them is ahead is said, too
    rounds : for rows that need no repeating; None takes the run's
    """

    name: str
    unit: str
    run: Callable[[float], Sample]
    targets: tuple[Target, ...] = ()
    lower_is_better: bool = False
    compare: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    rounds: int | None = None
    samples: list[Sample] = field(default_factory=list)
    problem: str | None = None
    failed: bool = False

    @property
    def values(self) -> list[float]:
        """The figure of each round."""
        return [sample.value for sample in self.samples]

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.values)

    def also(self) -> dict[str, float]:
        """Medians of the figures that came along."""
        names = {name: None for sample in self.samples for name in sample.also}
        return {
            name: statistics.median(s.also[name] for s in self.samples if name in s.also)
            for name in names
        }

    def is_behind(self, ratio: float) -> bool:
        """Whether this row has the worse figure, at this ratio of it to another's."""
        return ratio > 1 if self.lower_is_better else ratio < 1

    def ratio_to(self, other: Row) -> float:
        """Median over the rounds of this row's figure by the other's of the same round."""
        pairs = zip(self.values, other.values, strict=False)
        return statistics.median(mine / theirs for mine, theirs in pairs)


@dataclass
class Question:
    """One comparison.

    Parameters
    ----------
    name : for ``--only``
    title : the question, as a sentence
    setup : what all rows share (a Spark session, say); entered around the rounds
    warm_up : measure every row once, briefly, and forget it
    least_rounds : where the run's are too few (not with ``--quick``)
    """

    name: str
    title: str
    rows: list[Row]
    setup: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    warm_up: bool = True
    least_rounds: int = 1

    def row(self, name: str) -> Row | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)


def _attempt(row: Row, seconds: float) -> Sample | None:
    if row.problem is not None:
        return None
    try:
        return row.run(seconds)
    except Unavailable as reason:
        row.problem = str(reason)
    except Exception as error:
        row.problem = f"failed: {type(error).__name__}: {error}"
        row.failed = True
        traceback.print_exc()
    return None


def measure(question: Question, settings: Settings) -> Iterator[tuple[str, float]]:
    """Run all rounds; yields (what is about to run, share of the question done)."""
    rounds = settings.rounds
    if not settings.quick:
        rounds = max(rounds, question.least_rounds)
    steps = [
        (number, row)
        for number in range(0 if question.warm_up else 1, rounds + 1)
        for row in question.rows
        if number <= (row.rounds or rounds) and not (number == 0 and row.rounds == 1)
    ]
    yield "getting ready", 0.0
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(question.setup())
        except Unavailable as reason:
            for row in question.rows:
                row.problem = str(reason)
        for done, (number, row) in enumerate(steps):
            when = f"round {number} of {rounds}" if number else "warming up"
            yield f"{row.name} ({when})", done / len(steps)
            sample = _attempt(row, settings.seconds if number else settings.seconds / 5)
            if sample is not None and number:
                row.samples.append(sample)
        yield "ending", 1.0
