"""The items of a persistent queue, in memory, as runs of consecutive numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from shmring.durable.base.items import EXTENT
from shmring.durable.queues.data_files import DataFile
from shmring.durable.queues.transaction_log import TransactionLog

Source = DataFile | TransactionLog
# append() joins new items to the last run until that run has this number of items; then it begins a
# new run. A run's extents stay in memory until all of its items have left the queue.
_LONG_RUN = 4096
# Sort key of spans.
by_number = attrgetter("number")


@dataclass(slots=True, eq=False)
class Run:
    """Committed items of consecutive numbers in one file; base/items.py explains `extents`."""

    first: int
    source: Source
    extents: bytearray

    def __len__(self) -> int:
        return len(self.extents) // EXTENT.size


@dataclass(slots=True, eq=False)
class Span:
    """Items ``begin`` to ``end`` of a run, all in the queue or all taken by one session."""

    run: Run
    begin: int
    end: int

    @property
    def number(self) -> int:
        """Number of the first item."""
        return self.run.first + self.begin

    def __len__(self) -> int:
        return self.end - self.begin


class Line:
    """The spans of a queue in the order of their numbers, and those that sessions have taken."""

    def __init__(self) -> None:
        self.spans: list[Span] = []  # the spans that wait
        self.count = 0  # number of items in `spans`
        self.taken: set[Span] = set()

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def append(self, run: Run) -> None:
        count = len(run)
        self.count += count
        last = self.spans[-1] if self.spans else None
        if (
            last is not None
            and last.end < _LONG_RUN
            and last.end * EXTENT.size == len(last.run.extents)
            and last.run.source is run.source
            and last.run.first + last.end == run.first
        ):
            last.run.extents += run.extents
            last.end += count
        else:
            self.spans.append(Span(run, 0, count))

    def hand_over(self, count: int, taken: list[Span]) -> None:
        """Move `count` items of the first span to the end of `taken`, the spans of a session."""
        first = self.spans[0]
        begin = first.begin
        last = taken[-1] if taken else None
        if last is not None and last.run is first.run and last.end == begin:
            last.end += count
        else:
            span = Span(first.run, begin, begin + count)
            # Make no call between the changes here: a signal handler may raise after any call, and
            # would leave the spans and their counts half changed.
            taken += [span]
            self.taken |= {span}
        first.begin += count
        self.count -= count
        if first.begin == first.end:
            del self.spans[0]

    def put_back(self, spans: list[Span]) -> None:
        """Put taken spans back to where they were, except spans that clear() has removed."""
        for span in spans:
            if span in self.taken:
                at, count = bisect_right(self.spans, span.number, key=by_number), len(span)
                # Make no call between these changes: a signal handler may raise after any call, and
                # would leave only some of them.
                self.taken -= {span}
                self.spans[at:at] = [span]
                self.count += count

    def remove(self, first: int, count: int) -> int | None:
        """Remove items by their numbers; return the first number that is missing, or None."""
        while count:
            at = bisect_right(self.spans, first, key=by_number) - 1
            span = self.spans[at] if at >= 0 else None
            if span is None or first >= span.number + len(span):
                return first
            begin = first - span.run.first
            end = min(span.end, begin + count)
            self._cut(at, begin, end)
            self.count -= end - begin
            first += end - begin
            count -= end - begin
        return None

    def _cut(self, at: int, begin: int, end: int) -> None:
        span = self.spans[at]
        behind = Span(span.run, end, span.end)
        if span.begin == begin:
            self.spans[at : at + 1] = [behind] if behind else []
        else:
            span.end = begin
            if behind:
                self.spans.insert(at + 1, behind)

    def clear(self) -> None:
        """Forget all spans, also the taken spans."""
        self.spans.clear()
        self.taken.clear()
        self.count = 0
