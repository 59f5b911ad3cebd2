"""A list of messages as PostgreSQL's binary bytea[], in one join instead of a call a message.

dimensions, nulls, element type, count, lower bound; then of each message its length and bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shmring.table_ring.schema import MESSAGE_BYTES

__all__ = ["bytea_array"]

BYTEA = 17
_HEADER = struct.Struct(">5i")
_LENGTHS = [struct.pack(">i", length) for length in range(MESSAGE_BYTES + 1)]


def bytea_array(messages: Sequence[bytes]) -> bytes:
    """Return messages of at most 300 bytes as a parameter of type bytea[]."""
    parts = [_HEADER.pack(1, 0, BYTEA, len(messages), 1)]
    for message in messages:
        parts += (_LENGTHS[len(message)], message)
    return b"".join(parts)
