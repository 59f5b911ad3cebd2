"""A list of messages as PostgreSQL's binary bytea[], in one join instead of a call a message.

dimensions, nulls, element type, count, lower bound; then of each message its length and bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from shmring.durable.table_ring.schema import MESSAGE_BYTES

__all__ = ["Rows", "register"]

BYTEA, BYTEA_ARRAY = 17, 1001
_HEADER = struct.Struct(">5i")
_LENGTHS = [struct.pack(">i", length) for length in range(MESSAGE_BYTES + 1)]


class Rows:
    """Messages of at most 300 bytes, for a parameter of type bytea[]."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = messages


class _RowsDumper(Dumper):
    format = Format.BINARY
    oid = BYTEA_ARRAY

    def dump(self, obj: Rows) -> bytes:
        parts = [_HEADER.pack(1, 0, BYTEA, len(obj.messages), 1)]
        for message in obj.messages:
            parts += (_LENGTHS[len(message)], message)
        return b"".join(parts)


def register(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take :class:`Rows`."""
    connection.adapters.register_dumper(Rows, _RowsDumper)
