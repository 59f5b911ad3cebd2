"""Writes of the Python data source.

A task stages its rows beside the ring; the commit of the job, on the driver, brings them in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from shmring.arrow.batches import fields_of
from shmring.spark.source import staging
from shmring.spark.source.options import WriteOptions, attach_ring
from shmring.spark.source.publication import Publication
from shmring.spark.source.ring_place import RingPlace
from shmring.spark.source.sink_record import SinkRecord

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RingStreamWriter", "RingWriter"]

_pa: Any = pa
# Spark 4.0 has none.
_StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", object)
_Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged, and for which streaming query."""

    path: str
    query: str


class _Tasks:
    """What both kinds of writers do in the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        with attach_ring(options.ring, read_only=True) as ring:
            self._place = RingPlace.of(options.ring, ring)
            self._schema = _target(options.ring, ring.schema, schema)
            self.folder = staging.new_folder(ring)

    def stage(self, query: str, batches: Iterable[pa.RecordBatch]) -> Staged:
        self._place.attach(self.options.host_wait, read_only=True).close()
        context = TaskContext.get()
        attempt = os.getpid() if context is None else context.taskAttemptId()
        fitting = (_fit(batch, self._schema) for batch in batches)
        path = staging.stage(self.folder, f"{attempt}.arrow", self._schema, fitting)
        return Staged(path, query)

    def discard(self, messages: _Messages) -> None:
        """Forget what was staged. Spark may have made this writer anew since it planned the job."""
        staged = {os.path.dirname(m.path) for m in messages if isinstance(m, Staged)}
        for folder in {self.folder, *staged}:
            staging.discard(folder)


class RingWriter(DataSourceArrowWriter):
    """``df.write``: rows become readable when the job commits.

    By one store where they take at most half of the ring, otherwise message by message.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._tasks = _Tasks(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """What a task does."""
        return self._tasks.stage("", iterator)

    def commit(self, messages: _Messages) -> None:
        """Make the rows of all tasks readable."""
        options = self._tasks.options
        try:
            with attach_ring(options.ring) as ring:
                job = Publication(ring, options, _rows_of(messages))
                if options.atomic or job.fits_at_once:
                    job.publish_at_once()
                else:
                    job.publish_in_pieces()
                if options.end_marker:
                    job.publish_end()
        finally:
            self._tasks.discard(messages)

    def abort(self, messages: _Messages) -> None:
        """Forget what was staged."""
        self._tasks.discard(messages)


class RingStreamWriter(_StreamArrowWriter):
    """``df.writeStream``: an epoch becomes readable by one store, and once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if _StreamArrowWriter is object:
            raise ValueError("streams are written by a Python data source in Spark 4.1 and later")
        self._tasks = _Tasks(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """What a task does."""
        context: Any = TaskContext.get()
        # The driver's side hears of the query by this way only.
        return self._tasks.stage(context.getLocalProperty("sql.streaming.queryId"), iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:
        """Make the epoch readable, unless it is."""
        staged = [message for message in messages if isinstance(message, Staged)]
        options = self._tasks.options
        try:
            if staged:
                with attach_ring(options.ring) as ring:
                    record = SinkRecord(ring, staged[0].query)
                    if not record.is_published(batchId, options):
                        job = Publication(ring, options, _rows_of(messages))
                        job.publish_at_once(lambda claimed: record.begin(batchId, claimed))
                        record.finish(batchId)
        finally:
            self._tasks.discard(messages)

    def abort(self, messages: _Messages, batchId: int) -> None:
        """Forget what was staged."""
        self._tasks.discard(messages)


def _rows_of(messages: _Messages) -> Callable[[], Iterator[pa.RecordBatch]]:
    paths = [message.path for message in messages if isinstance(message, Staged)]
    return lambda: (batch for path in paths for batch in staging.staged(path))


def _target(name: str, stored: pa.Schema | None, schema: StructType) -> pa.Schema:
    """The schema to stage rows with: the ring's; one column for a ring of bytes."""
    if stored is None:
        kinds = [field.dataType.simpleString() for field in schema.fields]
        if kinds not in (["binary"], ["string"]):
            raise ValueError(
                f'ring "{name}" holds bytes: write one column of type binary or string, not '
                f"{schema.simpleString()}"
            )
        return pa.schema([pa.field(schema.names[0], pa.binary(), nullable=False)])
    if sorted(schema.names) != sorted(stored.names):
        raise ValueError(
            f'ring "{name}" has the columns {", ".join(stored.names)}, and these rows have '
            f"{', '.join(schema.names)}; select and name them so that they agree"
        )
    return stored


def _fit(batch: Any, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = []
    for field in fields_of(schema):
        column: Any = batch.column(field.name)
        if column.type != field.type:
            column = column.cast(field.type)
        if not field.nullable and column.null_count:
            raise ValueError(f'the ring takes no nulls in column "{field.name}"')
        columns.append(column)
    return _pa.RecordBatch.from_arrays(columns, schema=schema)
