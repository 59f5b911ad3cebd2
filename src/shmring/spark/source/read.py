"""Batch reads of the Python data source: a task a ring."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmring.choices import KIND_END
from shmring.errors import Empty, EndOfStream, RingNotFound, SecondMember, ShmringError
from shmring.spark.source.columns import Columns, Taken
from shmring.spark.source.first_read import Read, first_of, key_of, open_notes
from shmring.spark.source.options import ReadOptions, attach_ring
from shmring.spark.source.ring_place import RingPlace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shmring._shmring import Batch
    from shmring.ring import Consumer, Ring

__all__ = ["RingReader", "check_file", "own_branch", "taken_of", "task_name"]

_SLICE = 0.5  # seconds between looks at whether there is still something to wait for
_PAUSE = 0.05  # seconds between looks at whether another attempt has ended
_UNTIL_SPARK_KILLS = 10.0  # seconds; a cancelled worker that is blocked has four


@dataclass(frozen=True)
class RingPartition(InputPartition):
    """A ring to be read by one task.

    Parameters
    ----------
    place : of the ring
    read : names this read among others of the branch
    notes : says which read of the branch was first
    """

    place: RingPlace
    read: Read
    notes: str


class RingReader(DataSourceReader):
    """Takes messages from a branch until it is empty, or the end marker comes.

    Spark does not tell a Python worker how its task has ended. So messages of a named branch are
    released when the last row was handed over; what ends the read before that, LIMIT too, hands
    them all back. An attempt that comes later, as a speculative one may while the first is still
    busy with its rows, fails and says that rows would be missing.
    """

    def __init__(self, options: ReadOptions, schema: StructType, frame: str) -> None:
        self._options = options
        self._schema = schema
        self._frame = frame

    def partitions(self) -> list[InputPartition]:
        """A partition a ring; their branches hold messages from now on."""
        return [self._plan(ring) for ring in self._options.rings]

    def _plan(self, name: str) -> RingPartition:
        branch = self._options.branch
        with attach_ring(name, read_only=not branch) as ring:
            place = RingPlace.of(name, ring)
            if not branch:
                return RingPartition(place, Read("", -1, -1), "")
            ring.subscribe(branch, start=self._options.start)
            read = Read(uuid.uuid4().hex[:12], *_progress(ring, branch))
            return RingPartition(place, read, open_notes(ring))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What the task of a partition does."""
        assert isinstance(partition, RingPartition)
        with partition.place.attach(self._options.host_wait) as ring:
            columns = Columns(partition.place.ring, ring.schema, self._schema)
            shared = bool(self._options.branch)
            read = self._first(partition) if shared else partition.read
            with self._seat(ring, partition, read) if shared else nullcontext():
                consumer = self._join(ring, read)
                held: list[Batch] = []
                try:
                    yield from self._read(ring, consumer, columns, held)
                except BaseException:
                    # LIMIT, a failure, the end of the job: what was not handed over in full goes
                    # back.
                    consumer.abandon()
                    raise
                for lease in held:
                    lease.release()
                consumer.close()

    def _join(self, ring: Ring, read: Read) -> Consumer:
        options = self._options
        if options.branch:
            name = f"spark read {read.name}"
            consumer = ring.consumer(options.branch, start=options.start, name=name)
            if read.ends >= 0:  # what another member has come to since is this read's end, too
                consumer.hear_ends(read.ends)
        else:
            consumer = ring.consumer(
                own_branch(),
                start=options.start,
                exclusive=True,
                ephemeral=True,
                name=task_name(),
            )
        consumer.end_markers = True
        return consumer

    def _seat(self, ring: Ring, partition: RingPartition, read: Read) -> Consumer:
        """What one attempt of a read has at a time.

        Two that share the branch's messages would each miss the other's: a speculative one, or one
        that was started while a cancelled one still runs. It is the only member's place in a branch
        that nobody reads, which goes to the next one when its process dies.
        """
        waited = False
        while True:
            try:
                seat = ring.consumer(
                    f"spark-read-{read.name}",
                    start="latest",
                    exclusive=True,
                    ephemeral=True,
                    lapse=True,
                    name=task_name(),
                )
                break
            except SecondMember:  # Spark ends this wait when the other attempt has succeeded
                waited = True
                time.sleep(_PAUSE)
        try:
            self._check_whole(ring, partition, read, waited)
        except BaseException:
            seat.close()
            raise
        return seat

    def _first(self, partition: RingPartition) -> Read:
        """The first read of this DataFrame, or of this branch in the same plan."""
        branch = self._options.branch
        keys = [key_of(self._frame, branch)]
        context = TaskContext.get()
        plan = context and context.getLocalProperty("spark.sql.execution.id")
        if plan:
            keys.append(key_of("plan", plan, branch))
        return first_of(partition.notes, keys, partition.read)

    def _check_whole(self, ring: Ring, partition: RingPartition, read: Read, waited: bool) -> None:
        """What an attempt before this one has released cannot be taken back.

        Spark may run the task again as the first attempt of another stage, so that none can be sure
        to be the first.
        """
        released, _ = _progress(ring, self._options.branch)
        if read.released < 0 or released <= read.released:
            return
        context = TaskContext.get()
        own = read.name == partition.read.name
        if own and (waited or (context is not None and context.attemptNumber() > 0)):
            # The other one has succeeded, or is about to: it may still hand on what it has read.
            time.sleep(_UNTIL_SPARK_KILLS)
        task = "" if self._options.release_at_end else ', or use .option("release", "task")'
        raise ShmringError(
            f'ring "{partition.place.ring}": branch "{self._options.branch}" has moved on from '
            f"{read.released} to {released} since this DataFrame, or this plan, first read it: "
            f"rows would be missing from its result. Use .cache() or .localCheckpoint() before a "
            f"DataFrame is used more than once, load another one for the messages that have come "
            f"since, or give each use a branch of its own{task}"
        )

    def _read(
        self, ring: Ring, consumer: Consumer, columns: Columns, held: list[Batch]
    ) -> Iterator[pa.RecordBatch]:
        options = self._options
        end = ring.claimed
        left = options.max_messages
        while left > 0:
            lease = self._take(ring, consumer, min(columns.messages_per_batch, left))
            if lease is None:
                return
            held.append(lease)
            messages = taken_of(lease)
            ended = not messages  # an end marker comes alone
            left -= len(messages)
            yield from columns.batches(messages, ring)
            if not (options.branch and options.release_at_end):
                held.pop().release()
            if ended if options.until_end else lease.end >= end:
                return

    def _take(self, ring: Ring, consumer: Consumer, count: int) -> Batch | None:
        """The next messages; None if there are none and this read does not wait for more."""
        options = self._options
        deadline = None if options.timeout is None else time.monotonic() + options.timeout
        why = ""
        while True:
            left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
            try:
                return consumer.lease_many(count, timeout=max(left, 0) if options.until_end else 0)
            except EndOfStream:  # another member of the branch has come to the marker
                if options.until_end:
                    return None
            except Empty as error:
                if not options.until_end:
                    return None
                check_file(ring)
                why = str(error).partition(" s: ")[2] or why  # a poll asks for no reasons
                if deadline is not None and time.monotonic() >= deadline:
                    raise Empty(
                        f'ring "{ring.name or ring.path}": no message and no end marker in '
                        f"{options.timeout:g} s: {why or error}"
                    ) from None


def taken_of(lease: Batch) -> list[Taken]:
    """Copies of the messages, without end markers."""
    ids, times, kinds = lease.message_ids.tolist(), lease.times.tolist(), lease.kinds.tolist()
    return [
        Taken(ids[i], times[i], kind, bytes(lease[i]))
        for i, kind in enumerate(kinds)
        if kind != KIND_END
    ]


def own_branch() -> str:
    """A name for a branch that one task has to itself."""
    return f"spark-{uuid.uuid4().hex}"


def task_name() -> str:
    """What a task is called among the ring's participants."""
    context = TaskContext.get()
    return f"spark task {context.taskAttemptId()}" if context else "spark task"


def check_file(ring: Ring) -> None:
    """See to it that nobody waits for a ring that was unlinked.

    Raises
    ------
    RingNotFound : it was, or another one has taken its name
    """
    try:
        with attach_ring(ring.path, read_only=True) as now:
            if now.info.uuid == ring.info.uuid:
                return
    except RingNotFound:
        pass
    raise RingNotFound(
        f'ring "{ring.name or ring.path}" was unlinked while it was read; what was in it is lost'
    )


def _progress(ring: Ring, branch: str) -> tuple[int, int]:
    """How far the branch has released, and how many ends of the stream it has come to."""
    found = ((b["released"], b["ends"]) for b in ring.branches() if b["name"] == branch)
    return next(found, (-1, -1))
