"""The one column that a client may ask for: what a UDF of Spark's is declared with."""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa

__all__ = ["Result"]

_ANSWER = b"shmring.answer"


@dataclass(frozen=True, slots=True)
class Result:
    """Of which type that column is to be."""

    type: pa.DataType

    @classmethod
    def asked_for(cls, batch: pa.RecordBatch) -> tuple[Self | None, pa.RecordBatch]:
        """What a request wants, and the batch as the function is to see it."""
        metadata = dict(batch.schema.metadata or {})
        text = metadata.pop(_ANSWER, None)
        if text is None:
            return None, batch
        return cls(_type_of(text)), batch.replace_schema_metadata(metadata or None)

    def of(self, batch: pa.RecordBatch, target: str) -> pa.RecordBatch:
        """The first column of an answer, cast as Spark casts what its own UDFs return.

        Raises
        ------
        TypeError : values would be lost
        """
        if not batch.num_columns:
            return batch  # the client knows better what to say
        column = cast("Any", batch).column(0)
        if column.type != self.type:
            try:
                column = column.cast(self.type, safe=True)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                raise TypeError(
                    f"{target} returned a column of {column.type}, which cannot become the "
                    f"{self.type} that the UDF was declared with: {error}"
                ) from None
        return pa.record_batch([column], names=[batch.schema.names[0]])


@functools.lru_cache(maxsize=64)
def _type_of(text: bytes) -> pa.DataType:
    schema: Any = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    return schema.field(0).type
