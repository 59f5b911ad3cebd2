"""Lets Spark's serializers read and write a task's batches over rings, if the task announces them.

Spark calls a serializer's load_stream() and dump_stream() with the worker's socket. If the task has
announced rings on the socket, the serializer gets an Exchange in place of the socket.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import IO, Any

import pyarrow as pa
import pyspark.sql.pandas.serializers as serializers

from shmring.spark.exchange import MAGIC, Exchange
from shmring.spark.parts import Part
from shmring.spark.tracebacks import leave_out_of_errors, leave_out_of_logs

# Modules, typed as Any because their stubs lack names or leave types open.
_pa: Any = pa
_spark: Any = serializers

_serializer = _spark.ArrowStreamSerializer
_load, _dump = _serializer.load_stream, _serializer.dump_stream


class TaskData(Iterator[Any]):
    """A task's data as Spark's serializer reads it, or group by group for a conversion."""

    def __init__(self, exchange: Exchange, data: Iterator[Any]) -> None:
        self._exchange, self._data = exchange, data

    def __next__(self) -> Any:
        return next(self._data)

    def group(self) -> list[list[Part]] | None:
        """Return the parts of each side of the next group, or cogroup; None after the last."""
        return self._exchange.group()

    def is_ready(self) -> bool:
        """Whether the next group, or the end, is likely to come without a wait."""
        return self._exchange.is_ready()

    def left_to_spark(self) -> None:
        """Count the last group as one that Spark's own code converts."""
        self._exchange.left_to_spark()


def _announced(load: Any) -> Any:
    """Return a load_stream that uses rings if the stream announces rings, and else calls `load`."""

    def load_stream(self: Any, stream: Any) -> Any:
        if hasattr(stream, "peek") and stream.peek(1)[:1] == MAGIC[:1]:
            exchange = Exchange(stream)
            self.dump_stream = partial(_answer, self, exchange)
            return TaskData(exchange, load(self, exchange))
        return load(self, stream)

    return load_stream


def _answer(serializer: Any, exchange: Exchange, iterator: Any, stream: IO[bytes]) -> None:
    # Delete the attribute by which Spark called this function, so that `serializer.dump_stream` is
    # the method of the class again: this method sends the answers below.
    del serializer.dump_stream
    _spark.write_int(_spark.SpecialLengths.START_ARROW_STREAM, stream)
    stream.flush()
    serializer.dump_stream(iterator, exchange)
    exchange.end()


def _load_stream(self: Any, stream: Any) -> Iterator[pa.RecordBatch]:
    return stream.batches() if isinstance(stream, Exchange) else _load(self, stream)


def _dump_stream(self: Any, iterator: Iterable[pa.RecordBatch], stream: Any) -> None:
    if not isinstance(stream, Exchange):
        _dump(self, iterator, stream)
        return
    schema: pa.Schema | None = None
    try:
        for batch in iterator:
            if schema is None:
                schema = batch.schema
            elif not batch.schema.equals(schema):
                with _pa.ipc.new_stream(pa.BufferOutputStream(), schema) as same:
                    same.write_batch(batch)  # raises the error that users know from Spark
            stream.answer(batch)
            del batch
    finally:
        stream.flush()


# CHANGE: edit this for a new version of Spark
@cache
def equip() -> None:
    """Let this process take and give batches over rings if a task announces rings."""
    if os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        leave_out_of_errors(_answer, _dump_stream)
    leave_out_of_logs()
    _serializer.load_stream = _load_stream
    _serializer.dump_stream = _dump_stream
    named: Mapping[str, Any] = vars(serializers)
    for each in named.values():
        # Wrap the load_stream of each serializer: before Spark 4.3, each kind of function has a
        # serializer of its own. Spark's load_stream is a generator, and begins to read only when
        # dump_stream() asks for an answer. But the announcement decides which dump_stream() is
        # used, so the announcement has to be read earlier.
        if _serializer in getattr(each, "__mro__", ()) and "load_stream" in vars(each):
            each.load_stream = _announced(each.load_stream)
