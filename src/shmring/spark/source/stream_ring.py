"""A stream's place in one ring, kept by the driver."""

from __future__ import annotations

import logging
import uuid
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shmring._shmring import JOURNAL_BRANCH
from shmring.durable.base.files import OsDisk
from shmring.durable.journal.reader import replay
from shmring.durable.journal.segments import open_segment, segment_names, segment_path, walk
from shmring.errors import Contended, Damaged, Empty, Lapsed, MessageTooLarge, ShmringError
from shmring.spark.source.options import ReadOptions, attach_ring
from shmring.spark.source.read import check_file, own_branch

if TYPE_CHECKING:
    from shmring.ring import Consumer, Ring

__all__ = ["Position", "StreamRing", "uuid_of"]

_log = logging.getLogger(__name__)

# Spark commits a batch when it plans the next one: a batch must leave room for the messages that
# make it plan one.
_PART_OF_RING = 4
_LOOK = 16_384  # messages at a time


class Position(NamedTuple):
    """Everything below `sequence` of the ring with this uuid has been read."""

    uuid: str
    sequence: int

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Position:
        """Read it from an offset."""
        return cls(str(offset["uuid"]), int(offset["sequence"]))

    def as_offset(self) -> dict[str, Any]:
        """As it stands in a checkpoint."""
        return self._asdict()


class StreamRing:
    """An exclusive branch that stands where the last committed batch ended.

    It holds all that comes behind, so that tasks read without taking, and a driver that dies leaves
    nothing but the branch where it stood. What there is to read is seen by a second branch, which
    releases at once and goes with this process.

    Parameters
    ----------
    start : where the stream goes on; None if it begins, or (Spark 4.0 and 4.1) if that is unknown
    """

    def __init__(self, name: str, start: Position | None, options: ReadOptions) -> None:
        self.name = name
        self._options = options
        self.ring: Ring = attach_ring(name)
        try:
            self._holder = self._join(options.branch, start)
            branch = next(b for b in self.ring.branches() if b["name"] == options.branch)
            self._may_lapse = bool(branch["lapse"])
            # Not its position: an earlier driver may have died while it moved on.
            self._lowest = int(branch["released"])
            self._ahead = self.ring.consumer(
                own_branch(),
                start=self.lowest,
                exclusive=True,
                ephemeral=True,
                lapse=self._may_lapse,
                after=self._upstream(),
                name="spark stream ahead",
            )
            self._ahead.end_markers = True
        except BaseException:
            self.ring.close()
            raise
        # Where the messages begin that are not committed, and where the last of them ends.
        self._begins: Any = np.empty(0, np.uint64)
        self._end = self.lowest
        self._target: int | None = None

    def _join(self, branch: str, start: Position | None) -> Consumer:
        begin = self._options.start
        if start is not None:
            begin = start.sequence if start.uuid == self.uuid else "earliest"
        holder = self.ring.consumer(
            branch, start=begin, exclusive=True, after=self._upstream(), name="spark stream"
        )
        holder.end_markers = True
        return holder

    def _upstream(self) -> tuple[str, ...]:
        """A stream that is to go on from the journal must not be ahead of it."""
        there = any(b["name"] == JOURNAL_BRANCH for b in self.ring.branches())
        return (JOURNAL_BRANCH,) if self._options.journal and there else ()

    @property
    def uuid(self) -> str:
        """Of the ring, as the jar writes it."""
        return uuid_of(self.ring)

    @property
    def lowest(self) -> int:
        """Everything below is released, or was lost by a branch that may lapse."""
        return max(self._lowest, self.ring.floor) if self._may_lapse else self._lowest

    @property
    def part(self) -> int:
        """The most slots that a batch may have."""
        return self.ring.slots // _PART_OF_RING

    def begin(self) -> Position:
        """Where a new stream begins."""
        return Position(self.uuid, self.lowest)

    # --- going on -----------------------------------------------------------------------------

    def check(self, start: Position) -> None:
        """See to it that nothing is missing behind `start`.

        Raises
        ------
        ShmringError : it is, and the options do not say to go on behind the gap
        """
        loss = self._loss(start)
        if loss is None:
            return
        if self._options.fail_on_data_loss:
            raise ShmringError(
                f"{loss}: the stream cannot go on without a gap. Start it with a new checkpoint, "
                f'or with .option("failOnDataLoss", "false")'
            )
        _log.warning("%s; the stream goes on behind the gap", loss)

    def _loss(self, start: Position) -> str | None:
        if not self._is_of(start):
            return (
                f'ring "{self.name}" was replaced by another one of the same name ({self.uuid}, '
                f"not {start.uuid})"
            )
        if start.sequence < self.lowest and not self._is_journalled(start.sequence):
            return (
                f'ring "{self.name}": the messages {start.sequence} to {self.lowest - 1} are gone'
            )
        return None

    def _is_of(self, start: Position) -> bool:
        """Whether sequences of `start` mean the same here: in this ring, or in one restored."""
        restored = self._options.journal and start.sequence <= self.ring.info.first_sequence
        return start.uuid == self.uuid or bool(restored)

    def _is_journalled(self, sequence: int) -> bool:
        if not self._options.journal:
            return False
        first, end = _reach(self._options.journal)
        return first <= sequence and self.lowest <= end

    def place(self, start: Position) -> int:
        """The sequence to go on at; below `lowest` it lies in the journal."""
        if self._loss(start) is None:
            return start.sequence
        return max(start.sequence, self.lowest) if self._is_of(start) else self.lowest

    # --- planning -----------------------------------------------------------------------------

    def available(self) -> int:
        """The end of what can be read, at most the target of a stream that reads what is there."""
        check_file(self.ring)
        with suppress(Contended):  # somebody else is at it
            self.ring.recover()
        with suppress(Empty):
            while True:
                with suppress(Lapsed), self._ahead.lease_many(_LOOK, timeout=0) as seen:
                    self._begins = np.concatenate((self._begins, seen.message_ids))
                    self._end = seen.end
        return self._end if self._target is None else min(self._end, self._target)

    def stop_here(self) -> None:
        """Make what is there now all there is."""
        self._target = self.available()

    def next(self, start: Position, max_messages: int, max_slots: int | None) -> Position:
        """The end of the next batch; a batch with `max_slots` leaves room for more messages."""
        limit = self.available()
        at = self.place(start)
        if at < self.lowest:
            most = self.ring.slots if max_slots is None else max_slots
            return Position(self.uuid, self._next_in_journal(at, max_messages, most))
        first = int(np.searchsorted(self._begins, np.uint64(at)))
        ends = np.append(self._begins[first + 1 :], np.uint64(self._end))
        ends = ends[ends <= limit][:max_messages]
        if first == len(self._begins) or not len(ends):
            return Position(self.uuid, at)
        if max_slots is not None:
            if not self._may_lapse:
                self._check_size(at, int(ends[0]))
            ends = ends[: max(int(np.searchsorted(ends, np.uint64(at + max_slots), "right")), 1)]
        return Position(self.uuid, int(ends[-1]))

    def _next_in_journal(self, at: int, max_messages: int, max_slots: int) -> int:
        messages = replay(self._options.journal, from_=at, until=self.lowest)
        for count, message in enumerate(messages):
            if count and (count == max_messages or message.message_id - at >= max_slots):
                return message.message_id
        return self.lowest

    def _check_size(self, first: int, end: int) -> None:
        """A message that leaves no room for the next one would end the stream for good."""
        if end - first > self.ring.slots // 2:
            raise MessageTooLarge(
                f'ring "{self.name}": message {first} takes {end - first} of {self.ring.slots} '
                f"slots, and Spark releases it only when the next one is there, for which there is "
                f"no room; create the ring with more slots"
            )

    # --- being done ---------------------------------------------------------------------------

    def commit(self, end: Position) -> None:
        """Release everything below `end`."""
        if end.uuid != self.uuid:
            return
        left = int(np.searchsorted(self._begins, np.uint64(end.sequence)))
        due, self._begins = self._begins[:left], self._begins[left:]
        while len(due):
            try:
                with self._holder.lease_many(len(due), timeout=1.0) as done:
                    due = due[len(done) :]
            except Lapsed as lost:
                due = due[due > lost.last]

    def close(self) -> None:
        """Leave; the branch stays where it stands."""
        self.ring.close()


def uuid_of(ring: Ring) -> str:
    """A ring's uuid, as the jar writes it into offsets."""
    return str(uuid.UUID(ring.info.uuid))


def _reach(journal: str) -> tuple[int, int]:
    """The sequences between which a journal has messages."""
    disk = OsDisk()
    names = segment_names(disk, journal)
    if not names:
        return 0, 0
    end = names[-1]
    path = segment_path(journal, end)
    with closing(disk.open(path, write=False)) as file, suppress(Damaged):  # it is being made
        for record in walk(file, open_segment(file, path), last=True):
            end = record.end
    return names[0], end
