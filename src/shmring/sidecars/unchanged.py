"""Columns that a function passes on: a client that keeps its requests does not get them again."""

from __future__ import annotations

import json

import pyarrow as pa

from shmring._shmring import same_columns

_UNCHANGED = b"shmring.unchanged"

# Bytes of a request from which on a copy of its columns costs more than to look for them.
WORTH = 65_536


class Unchanged:
    """What a function passes on, as the last of a client's requests has shown."""

    def __init__(self) -> None:
        none = pa.schema([])
        self._seen: tuple[pa.Schema, pa.Schema, list[int]] = none, none, []
        self._own: list[int] | None = None  # columns of the answer; None: all are
        self._metadata: dict[bytes, bytes] = {}

    def without(self, request: pa.RecordBatch, answer: pa.RecordBatch) -> pa.RecordBatch | None:
        """The answer without the columns that were passed on, with a list of them; or None."""
        seen = request.schema, answer.schema, same_columns(answer, request)
        if seen != self._seen:
            self._learn(*seen)
            self._seen = seen
        if self._own is None:
            return None
        return answer.select(self._own).replace_schema_metadata(self._metadata)

    def _learn(self, request: pa.Schema, answer: pa.Schema, places: list[int]) -> None:
        types = request.types
        listed = [
            (name, place) if place >= 0 and kind == types[place] else None
            for name, kind, place in zip(answer.names, answer.types, places, strict=True)
        ]
        own = [place for place, column in enumerate(listed) if column is None]
        self._own = own if len(own) < len(listed) else None
        self._metadata = {_UNCHANGED: json.dumps(listed).encode()}
