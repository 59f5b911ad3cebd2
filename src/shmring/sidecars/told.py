"""What a request says of the method of Spark's that it is for, beside its rows."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from shmring.errors import Damaged

__all__ = ["WITH_THE_JAR", "Told", "told_of", "without_told"]

_SPARK = b"shmring.spark"

# What users do so that requests come from the jar: Python's workers send batches alone.
WITH_THE_JAR = (
    "start the session with shmring.spark.configure(), and leave out metrics=, resource profiles "
    "and columns of types that the jar leaves to Spark"
)


@dataclass(frozen=True, slots=True)
class Told:
    """The method, and what a function with Spark's annotations needs to know of it.

    Parameters
    ----------
    method : "mapInPandas", "applyInPandas", "applyInArrow" or "udf"; none where batches are sent
    settings : of the session, as Spark tells them its Python workers
    declared : the type of the answer's rows, for frames of pandas
    keys : for each side of a group the places of the key's columns; -1 for one that is none of them
    """

    method: str = ""
    settings: Mapping[str, str] | None = None
    declared: pa.DataType | None = None
    keys: Sequence[Sequence[int]] = ()


def told_of(request: pa.RecordBatch) -> Told:
    """What a request says.

    Raises
    ------
    Damaged : nobody can read it
    """
    text = (request.schema.metadata or {}).get(_SPARK)
    return Told() if text is None else _read(text)


def without_told(request: pa.RecordBatch) -> pa.RecordBatch:
    """The request for a function that has no annotations, and sees its own metadata alone."""
    metadata = request.schema.metadata
    if not metadata or _SPARK not in metadata:
        return request
    left = {key: value for key, value in metadata.items() if key != _SPARK}
    return request.replace_schema_metadata(left or None)


@functools.lru_cache(maxsize=64)
def _read(text: bytes) -> Told:
    try:
        said: dict[str, Any] = json.loads(text)
        if "declared" in said:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["declared"])))
            said["declared"] = pa.struct(list(cast("Any", schema)))
        return Told(**said)
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise Damaged(
            f"a request cannot tell what it is for (shmring.spark): {error}; do client and sidecar "
            f"run the same shmring?"
        ) from None
