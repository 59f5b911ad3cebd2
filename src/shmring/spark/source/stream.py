"""Streaming reads of the Python data source: micro-batches whose offsets are sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shmring.choices import KIND_END
from shmring.durable.journal.reader import replay
from shmring.errors import ShmringError
from shmring.extras import read_schema
from shmring.spark.source.columns import Columns, Taken
from shmring.spark.source.options import UNLIMITED, ReadOptions
from shmring.spark.source.read import own_branch, taken_of, task_name
from shmring.spark.source.ring_place import RingPlace
from shmring.spark.source.stream_ring import Position, StreamRing

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from shmring.ring import Ring

__all__ = ["RingStreamReader"]

_Offset = dict[str, dict[str, Any]]

try:
    _limits: Any = import_module("pyspark.sql.streaming.datasource")
    _AvailableNow: Any = _limits.SupportsTriggerAvailableNow
except ImportError:  # Spark 4.0 and 4.1 have neither limits nor this trigger for Python
    _limits = None
    _AvailableNow = object


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Messages of a ring that the driver's branch holds."""

    place: RingPlace
    first: int
    end: int


@dataclass(frozen=True)
class JournalPartition(InputPartition):
    """Messages that the ring holds no more; `schema` is its Arrow schema as an IPC message."""

    journal: str
    schema: bytes | None
    first: int
    end: int


class RingStreamReader(DataSourceStreamReader, _AvailableNow):
    """The driver's side lives in a process of its own as long as the query; read() in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if not options.branch:
            raise ValueError(
                'a stream needs .option("branch", NAME): where it stands in the ring. Spark tells '
                "Python data sources nothing of the checkpoint, after which the jar names it"
            )
        self._options = options
        self._schema = schema
        self._rings: dict[str, StreamRing] = {}
        self._planned: dict[str, Position] = {}
        self._available_now = False

    # --- offsets ------------------------------------------------------------------------------

    def initialOffset(self) -> _Offset:
        """Where a new stream begins; Spark 4.0 and 4.1 ask for a first latestOffset() before."""
        begins = {name: self._open(name).begin() for name in sorted(self._options.rings)}
        for name, begin in begins.items():
            self._planned.setdefault(name, begin)
        return {name: begin.as_offset() for name, begin in begins.items()}

    def latestOffset(self, start: _Offset | None = None, limit: Any = None) -> _Offset:
        """The end of the next batch. Spark 4.0 and 4.1 do not say where it begins."""
        unlimited = limit is not None and isinstance(limit, _limits.ReadAllAvailable)
        messages = UNLIMITED if unlimited else self._options.max_messages_per_trigger
        share = -(-messages // len(self._options.rings))
        for name in self._options.rings:
            begin = self._begin(name, start)
            ring = self._open(name, begin)
            if begin is None:
                # The branch stands where the last batch but one began, at the earliest.
                end = ring.next(ring.begin(), UNLIMITED, 2 * ring.part)
            else:
                ring.check(begin)
                end = ring.next(begin, share, None if unlimited else ring.part)
            self._planned[name] = end
        return self._offset()

    def _begin(self, name: str, start: _Offset | None) -> Position | None:
        if start is None:
            return self._planned.get(name)
        return Position.of(start[name]) if name in start else self._open(name).begin()

    def _offset(self) -> _Offset:
        return {name: self._planned[name].as_offset() for name in sorted(self._planned)}

    def getDefaultReadLimit(self) -> Any:
        """What the option says; a batch is a quarter of the ring at most in any case."""
        return _limits.ReadMaxRows(self._options.max_messages_per_trigger)

    def reportLatestOffset(self) -> _Offset:
        """What is there, for the query's progress."""
        ends = {name: Position(ring.uuid, ring.available()) for name, ring in self._rings.items()}
        return {name: ends[name].as_offset() for name in sorted(ends)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Let what is there now be all there is."""
        self._available_now = True

    def commit(self, end: _Offset) -> None:
        """Release everything below `end`."""
        for name in self._options.rings:
            if name in end:
                position = Position.of(end[name])
                self._open(name, position).commit(position)

    def stop(self) -> None:
        """Leave the rings; the branches stay where they stand."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _open(self, name: str, start: Position | None = None) -> StreamRing:
        """Attach to a ring when it is first asked for, and it is known where the stream goes on."""
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = StreamRing(name, start, self._options)
            if self._available_now:
                ring.stop_here()
        return ring

    # --- partitions ---------------------------------------------------------------------------

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """A partition a ring, and one for what only the journal has."""
        partitions: list[InputPartition] = []
        for name in self._options.rings:
            if name not in end:
                continue
            until = Position.of(end[name])
            begin = Position.of(start[name]) if name in start else None
            ring = self._open(name, begin)
            begin = begin or ring.begin()
            ring.check(begin)
            self._planned.setdefault(name, until)
            partitions += self._partitions(ring, ring.place(begin), ring.place(until))
        return partitions

    def _partitions(self, ring: StreamRing, first: int, end: int) -> Iterator[InputPartition]:
        journalled = min(end, ring.lowest)
        if first < journalled:
            schema = ring.ring.schema_bytes
            yield JournalPartition(self._options.journal, schema, first, journalled)
        if max(first, ring.lowest) < end:
            yield RangePartition(RingPlace.of(ring.name, ring.ring), max(first, ring.lowest), end)

    # --- in the tasks -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What the task of a partition does."""
        if isinstance(partition, JournalPartition):
            yield from self._read_journal(partition)
            return
        assert isinstance(partition, RangePartition)
        with partition.place.attach(self._options.host_wait) as ring:
            yield from self._read_ring(ring, partition)

    def _read_ring(self, ring: Ring, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        columns = Columns(partition.place.ring, ring.schema, self._schema)
        with ring.consumer(
            own_branch(), start=partition.first, exclusive=True, ephemeral=True, name=task_name()
        ) as consumer:
            consumer.end_markers = True
            # Only now does this task hold what it is to read.
            begin = consumer.position
            if begin > partition.first and self._options.fail_on_data_loss:
                raise ShmringError(
                    f'ring "{partition.place.ring}": the messages {partition.first} to {begin - 1} '
                    f"are gone: the stream's branch may lapse, or the same stream runs elsewhere"
                )
            while consumer.position < partition.end:
                with consumer.lease_many(columns.messages_per_batch, timeout=0) as lease:
                    taken = [m for m in taken_of(lease) if m.message_id < partition.end]
                yield from columns.batches(taken, ring)

    def _read_journal(self, partition: JournalPartition) -> Iterator[pa.RecordBatch]:
        stored = None if partition.schema is None else read_schema(partition.schema)
        columns = Columns(partition.journal, stored, self._schema)
        messages = (
            Taken(message.message_id, message.time, message.kind, bytes(message.data))
            for message in replay(partition.journal, from_=partition.first, until=partition.end)
            if message.kind != KIND_END
        )
        while taken := list(islice(messages, columns.messages_per_batch)):
            yield from columns.batches(taken, None)
