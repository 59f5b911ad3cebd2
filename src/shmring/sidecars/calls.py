"""Reads the calls that a request asks for: several calls for Spark's UDFs, or one for a group.

Several UDFs of one select are several calls of the sidecar's function, perhaps with the same
columns: this module takes their arguments from the request's columns, and joins their results to
one answer.

A group, or the two sides of a cogroup, is neither cut nor joined with others, and may be answered
with any number of rows. The two sides are sent as one row with two lists of rows.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa

from shmring.arrow.batches import from_struct
from shmring.errors import Damaged, SchemaMismatch
from shmring.sidecars.batches import combined, with_rows

_arrow: Any = pa

_CALLS = b"shmring.calls"
_ANSWER = b"shmring.answer"

# Maximum number of calls that a request may ask for, a limit of the format (see wire.py). For a
# select with more UDFs, UdfSteps.java plans several requests.
MOST = 256

# Maximum bytes of a request's description of its calls: far more than MOST calls with long names
# take.
_MOST_BYTES = 4 << 20

_SHOWN = 100  # maximum characters of a text that is cited in an error

_GROUP = b"shmring.group"
_ONE = b"1"


def is_group(request: pa.RecordBatch) -> bool:
    """Whether a request is a group or a cogroup."""
    return _GROUP in (request.schema.metadata or {})


def arguments(request: pa.RecordBatch) -> tuple[pa.RecordBatch, ...]:
    """Return the function's arguments: the request's batch, or the two sides of a cogroup."""
    metadata = dict(request.schema.metadata or {})
    sides = metadata.pop(_GROUP, None)
    if sides is None:
        return (request,)
    if sides == _ONE:
        return (request.replace_schema_metadata(metadata or None),)
    columns = cast("list[Any]", cast("Any", request).columns)
    batches = (from_struct(column.flatten()) for column in columns)
    return tuple(batch.replace_schema_metadata(metadata or None) for batch in batches)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the function: its columns, their names, and the type of the result."""

    names: tuple[str, ...]
    columns: tuple[int, ...]
    type: pa.DataType

    def arguments(self, request: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch of the request's columns that the function is called with."""
        given: Any = request
        fields = [
            given.schema.field(place).with_name(name)
            for place, name in zip(self.columns, self.names, strict=True)
        ]
        schema = pa.schema(fields, given.schema.metadata)
        columns = [given.column(place) for place in self.columns]
        return _arrow.RecordBatch.from_arrays(columns, schema=schema)

    # CHANGE: edit this for a new type between Spark and Arrow
    def result(self, answer: pa.RecordBatch, function: str) -> Any:
        """Return an answer's column, cast as Spark casts results of its own UDFs.

        Raises TypeError if values would be lost, SchemaMismatch unless the answer has one column.
        """
        if answer.num_columns != 1:
            raise SchemaMismatch(
                f"{function} answered with {answer.num_columns} columns "
                f"({', '.join(answer.schema.names)[:_SHOWN]}): a UDF's answer has one, the result "
                f"for each row"
            )
        column = cast("Any", answer).column(0)
        if column.type == self.type:
            return column
        try:
            return column.cast(self.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"{function} returned a column of {column.type}, which cannot become the "
                f"{self.type} that the UDF was declared with: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls of a request, in order, and the answer's schema, which has a column for each."""

    each: tuple[Call, ...]
    answer: pa.Schema

    @classmethod
    def of(cls, request: pa.RecordBatch) -> tuple[Self | None, pa.RecordBatch]:
        """Return a request's calls (None if it is not for UDFs) and the request without metadata.

        Raises Damaged if the calls cannot be read.
        """
        metadata = dict(request.schema.metadata or {})
        calls, answer = metadata.pop(_CALLS, None), metadata.pop(_ANSWER, None)
        if calls is None and answer is None:
            return None, request
        if calls is None or answer is None or is_group(request):
            raise _damaged("its schema needs both keys, and none of a group's")
        if len(calls) + len(answer) > _MOST_BYTES:
            raise _damaged(
                f"they take {len(calls) + len(answer)} bytes, of {_MOST_BYTES} at most: select "
                f"fewer UDFs at a time, or shorten the names of their arguments"
            )
        found = _read(calls, answer, request.num_columns)
        return cls(*found), request.replace_schema_metadata(metadata or None)

    @staticmethod
    def are_in(request: pa.RecordBatch) -> bool:
        """Whether a request is for UDFs."""
        metadata = request.schema.metadata or {}
        return _CALLS in metadata or _ANSWER in metadata

    def arguments(self, request: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the batch for each call of the function."""
        return [call.arguments(request) for call in self.each]

    def beside(self, results: Sequence[Sequence[Any]]) -> list[pa.RecordBatch]:
        """Join the results of all calls, which have equal numbers of rows, to one answer."""
        if all(len(parts) == 1 for parts in results):
            columns = [parts[0] for parts in results]
            return [_arrow.RecordBatch.from_arrays(columns, schema=self.answer)]
        chunked = [
            _arrow.chunked_array(list(with_rows(parts)), call.type)
            for parts, call in zip(results, self.each, strict=True)
        ]
        return combined(_arrow.Table.from_arrays(chunked, schema=self.answer)).to_batches()

    @property
    def remedy(self) -> str:
        """Advice for a user whose answer is too large."""
        return (
            f"the results of {len(self.each)} UDFs for a row go as one message: select fewer at a "
            f"time, or make their results smaller"
        )

    def describe(self, number: int) -> str:
        """Describe a call, given its number, counted from 1."""
        names = ", ".join(self.each[number - 1].names)
        return f"in call {number} of the {len(self.each)} of one request, with {names}"


@functools.lru_cache(maxsize=64)
def _read(calls: bytes, answer: bytes, columns: int) -> tuple[tuple[Call, ...], pa.Schema]:
    try:
        schema: Any = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(answer, validate=True)))
        said: Any = json.loads(calls)
        if not 0 < len(said) <= MOST:
            raise ValueError(f"{len(said)} calls, not 1 to {MOST}")
        found = [_call(one, kind, columns) for one, kind in zip(said, schema.types, strict=True)]
    except (TypeError, ValueError, OSError, RecursionError, pa.ArrowException) as error:
        raise _damaged(str(error)[:_SHOWN]) from None
    return tuple(found), schema


def _call(said: Any, kind: pa.DataType, columns: int) -> Call:
    names: list[str] = []
    places: list[int] = []
    for argument in said:
        match argument:
            case [str(name), int(place)] if type(place) is int and 0 <= place < columns:
                names.append(name)
                places.append(place)
            case _:
                raise ValueError(f"no name with one of {columns} columns: {argument!r}")
    if not names:
        raise ValueError("a call without arguments")
    return Call(tuple(names), tuple(places), kind)


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"the UDFs of a request cannot be told (shmring.calls, shmring.answer): {why}; do client "
        f"and sidecar run the same shmring?"
    )
