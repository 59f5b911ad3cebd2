"""Messages of a ring as the Arrow columns that Spark wants."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from shmring.arrow.batches import decode_batch, fields_of
from shmring.choices import KIND_ARROW_BATCH, KIND_ARROW_STREAM
from shmring.errors import Damaged
from shmring.spark.source.options import attach_ring

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["QUEUE_TABLE", "Columns", "Taken", "schema_of"]


# The stubs leave the types of arrays open, which strict checking refuses.
_pa: Any = pa

QUEUE_TABLE = StructType(
    [
        StructField("slot", LongType(), nullable=False),
        StructField("message_id", LongType(), nullable=False),
        StructField("time", TimestampType(), nullable=True),
        StructField("message", BinaryType(), nullable=False),
        StructField("reference_count", IntegerType(), nullable=False),
    ]
)

# Timestamps are in UTC by themselves up to Spark 4.1, and by this argument from 4.2 on.
_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)

# A ring without a schema goes out in batches of so many messages at most.
_ROWS = 4096


class Taken(NamedTuple):
    """A message, copied out of its ring."""

    message_id: int
    time: int
    kind: int
    data: bytes


def schema_of(rings: Iterable[str]) -> StructType:
    """The common schema of these rings: their Arrow schema, or the queue table.

    Raises
    ------
    ValueError : they differ, or Spark has no such type
    """
    common: tuple[str, StructType] | None = None
    for name in rings:
        with attach_ring(name, read_only=True) as ring:
            schema = ring.schema
        found = QUEUE_TABLE if schema is None else _spark_schema(name, schema)
        if common is not None and common[1] != found:
            raise ValueError(
                f'the rings "{common[0]}" and "{name}" differ:\n{common[1].simpleString()}\n'
                f"{found.simpleString()}\nread them one by one"
            )
        common = (name, found)
    assert common is not None  # the options have a ring at least
    return common[1]


def _spark_schema(name: str, schema: pa.Schema) -> StructType:
    columns: list[StructField] = []
    for field in fields_of(schema):
        if field.name in (column.name for column in columns):
            raise ValueError(
                f'ring "{name}" has two columns "{field.name}"; Spark tells columns by name'
            )
        plain = field.with_type(_without_dictionary(field.type))
        try:
            converted: StructType = from_arrow_schema(pa.schema([plain]))
        except Exception as error:
            raise ValueError(
                f'ring "{name}": column "{field.name}" has the Arrow type {field.type}, which '
                f"Spark cannot read ({error}); let its producers cast it"
            ) from error
        columns.append(converted.fields[0])
    return StructType(columns)


def _without_dictionary(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class Columns:
    """Makes record batches with exactly the schema that Spark expects.

    Parameters
    ----------
    label : the ring's name or its journal's, for the text of errors
    stored : the ring's Arrow schema, or None
    schema : what Spark expects; columns are found by name
    """

    def __init__(self, label: str, stored: pa.Schema | None, schema: StructType) -> None:
        self._label = label
        self._stored = stored
        self._target: pa.Schema = to_arrow_schema(schema, **_UTC)
        there = set(QUEUE_TABLE.names if stored is None else stored.names)
        missing = [name for name in self._target.names if name not in there]
        if missing:
            raise ValueError(
                f'ring "{label}" has no column {", ".join(missing)}; it has '
                f"{', '.join(sorted(there))}"
            )
        found = QUEUE_TABLE if stored is None else _spark_schema(label, stored)
        wrong = [f for f in schema.fields if f.dataType != found[f.name].dataType]
        if wrong:
            raise ValueError(
                f'ring "{label}" has column {wrong[0].name} of type '
                f"{found[wrong[0].name].dataType.simpleString()}, not "
                f"{wrong[0].dataType.simpleString()} as the schema that was given; leave the "
                f"schema out, and cast"
            )

    @property
    def messages_per_batch(self) -> int:
        """How many messages to take at once."""
        return _ROWS if self._stored is None else 16

    def batches(self, messages: list[Taken], ring: Ring | None) -> list[pa.RecordBatch]:
        """These messages as batches; `ring` is where they are held, None for a journal's."""
        if self._stored is None:
            return [self._queue_table(messages, ring)] if messages else []
        return [self._decode(message) for message in messages]

    def _decode(self, message: Taken) -> pa.RecordBatch:
        where = f'ring "{self._label}": message {message.message_id}'
        if message.kind not in (KIND_ARROW_BATCH, KIND_ARROW_STREAM):
            raise Damaged(f"{where} is not an Arrow batch (kind {message.kind})")
        batch = decode_batch(
            pa.py_buffer(message.data),
            self._stored if message.kind == KIND_ARROW_BATCH else None,
            ring=self._label,
            message_id=message.message_id,
        )
        if batch.schema != self._stored:
            raise Damaged(
                f"{where} holds a batch of\n{batch.schema}\nbut the ring is for\n{self._stored}"
            )
        try:
            # Offsets go on to the JVM, which follows them without a look.
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Damaged(f"{where} is damaged: {error}") from error
        try:
            return batch.select(self._target.names).cast(self._target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{where} cannot be read as Spark's types: {error}") from error

    def _queue_table(self, messages: list[Taken], ring: Ring | None) -> pa.RecordBatch:
        ids = np.array([message.message_id for message in messages], np.int64)
        held = _slots_and_references(ring, ids)
        arrays: list[Any] = []
        for field in fields_of(self._target):
            array: Any
            match field.name:
                case "slot":
                    array = _pa.array([slot for slot, _ in held], field.type)
                case "message_id":
                    array = _pa.array(ids, field.type)
                case "time":
                    times = np.array([message.time for message in messages], np.int64)
                    array = _pa.array(times // 1000, field.type, mask=times == 0)
                case "message":
                    array = _pa.array([message.data for message in messages], field.type)
                case _:
                    array = _pa.array([count for _, count in held], field.type)
            arrays.append(array)
        return pa.record_batch(arrays, schema=self._target)


def _slots_and_references(ring: Ring | None, ids: Any) -> list[tuple[int, int]]:
    """Where held messages lie, and how many branches still have to release each."""
    if ring is None:  # nowhere any more
        return [(-1, 0)] * len(ids)
    first, last = (0, -1) if ring.info.scattered else (ids[0] % ring.slots, ids[-1] % ring.slots)
    if first <= last:
        rows = ring.rows(int(first), int(last) + 1, 0)
    elif ring.info.scattered:
        rows = ring.rows(capacity=0)
    else:
        rows = ring.rows(int(first), None, 0) + ring.rows(0, int(last) + 1, 0)
    found = {row[1]: (row[0], row[4]) for row in rows}
    return [found[message_id] for message_id in ids.tolist()]
