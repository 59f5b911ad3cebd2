"""A list of messages as PostgreSQL's binary bytea[], made by one join and not by a call a message.

Format: dimensions, nulls, element type, count, lower bound; then length and bytes of each message
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
