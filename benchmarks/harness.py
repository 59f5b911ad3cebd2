"""Questions, rows and rounds: what every benchmark is made of.

A question is one comparison; each of its rows is one contestant. The rows of a
question run in turn (A B C, A B C, ...), so that a slow moment of the machine
hits all of them, and every ratio is taken within a round. A sample beside which
foreign processes were busy, or during which the virtual cores moved, is taken again.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

from benchmarks import company

# How often a sample is taken again, and the seconds that a question spends on that and on
# waiting for a quiet moment.
REPEATS = 2
PATIENCE = 20.0
# Two samples are of one placement of the cores if a cache line's ways differ by less.
SAME_PLACEMENT = 1.5


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
    """

    rounds: int
    seconds: float
    quick: bool


@dataclass(frozen=True)
class Sample:
    """One measurement: the row's figure, and others that came with it, by name.

    Parameters
    ----------
    line : nanoseconds of a cache line there and back, before it and after it
    """

    value: float
    also: dict[str, float] = field(default_factory=dict)
    line: tuple[float, float] | None = None

    @property
    def move(self) -> float:
        """By which factor the cores came closer or went apart meanwhile."""
        return max(self.line) / min(self.line) if self.line else 1.0

    def is_placed_as(self, other: Sample) -> bool:
        """Whether a line's way was about as long."""
        if self.line is None or other.line is None:
            return True
        mine, theirs = sum(self.line), sum(other.line)
        return max(mine, theirs) <= SAME_PLACEMENT * min(mine, theirs)


@dataclass(frozen=True)
class Target:
    """The value that a row should reach.

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
    repeated : samples that were thrown away and taken again
    disturbed : samples that were kept although they should have been
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
    repeated: int = 0
    disturbed: int = 0
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
        found = {
            name: statistics.median(s.also[name] for s in self.samples if name in s.also)
            for name in names
        }
        if lines := [way for sample in self.samples if sample.line for way in sample.line]:
            found["ns a line"] = statistics.median(lines)
        return found

    def is_behind(self, ratio: float) -> bool:
        """Whether this row has the worse figure, at this ratio of it to another's."""
        return ratio > 1 if self.lower_is_better else ratio < 1

    def ratio_to(self, other: Row) -> float:
        """Median over the rounds of this row's figure by the other's of the same round.

        Of rounds in which the cores lay alike for both, if there are any.
        """
        pairs = list(zip(self.samples, other.samples, strict=False))
        alike = [(mine, theirs) for mine, theirs in pairs if mine.is_placed_as(theirs)]
        return statistics.median(mine.value / theirs.value for mine, theirs in alike or pairs)


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
    line : measures the way of a cache line, around each sample; None where it does not matter.
        Where it fails, the samples go without
    """

    name: str
    title: str
    rows: list[Row]
    setup: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    warm_up: bool = True
    least_rounds: int = 1
    line: Callable[[], float] | None = None

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def keep(self, pattern: str) -> None:
        """Keep the rows whose names match the regular expression, and those they compare with."""
        chosen = [row for row in self.rows if re.search(pattern, row.name)]
        names = {row.name for row in chosen}
        for row in chosen:
            names.update(
                row.compare, row.rivals, (target.of for target in row.targets if target.of)
            )
        self.rows = [row for row in self.rows if row.name in names]


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


class _Watch:
    """Takes samples of one question, and takes those again that do not count."""

    def __init__(self, question: Question) -> None:
        self._line = question.line
        self._patience = PATIENCE

    def _way(self) -> float | None:
        """A cache line's way now; once it could not be measured, it is not asked for again."""
        if self._line is not None:
            try:
                return self._line()
            except Unavailable:
                self._line = None
            except Exception:
                traceback.print_exc()
                self._line = None
        return None

    def _once(self, row: Row, seconds: float) -> tuple[float, Sample] | None:
        """How much a sample was disturbed, and the sample; up to 1 it counts."""
        before = self._way() if row.problem is None else None
        begun = company.mark()
        sample = _attempt(row, seconds)
        if sample is None:
            return None
        foreign = begun.foreign()
        if before and (after := self._way()):
            sample = replace(sample, line=(before, after))
        return max(foreign / company.LIMIT, sample.move / SAME_PLACEMENT), sample

    def sample(self, row: Row, seconds: float) -> Sample | None:
        """Measure until it counts, or patience is at its end: then the least disturbed one."""
        best = self._once(row, seconds)
        if best is None:
            return None
        for _ in range(REPEATS):
            if best[0] <= 1 or row.problem is not None or self._patience <= 0:
                break
            begun = time.monotonic()
            company.wait_until_alone(self._patience)
            row.repeated += 1
            if again := self._once(row, seconds):
                best = min(best, again, key=itemgetter(0))
            self._patience -= time.monotonic() - begun
        row.disturbed += best[0] > 1
        return best[1]


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
        watch = _Watch(question)
        for done, (number, row) in enumerate(steps):
            when = f"round {number} of {rounds}" if number else "warming up"
            yield f"{row.name} ({when})", done / len(steps)
            if number == 0:
                _attempt(row, settings.seconds / 5)
            elif (sample := watch.sample(row, settings.seconds)) is not None:
                row.samples.append(sample)
        yield "ending", 1.0
