"""Messages that are popped for good only if the block that works on them ends without an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from shmring.table_ring.backend import Message

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Claim"]


class Claim:
    """A sequence of messages, made by :meth:`shmring.table_ring.TableRing.claim`.

    Attributes
    ----------
    connection : the transaction that pops the messages. Everything else that is written through it
        is committed with the pop, or undone with it
    message_ids : the messages' numbers
    """

    def __init__(self, connection: sa.Connection, messages: Sequence[Message]) -> None:
        self.connection = connection
        self.message_ids = [number for number, _, _ in messages]
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[bytes]:
        return (data for _, _, data in self._messages)

    def __getitem__(self, index: int) -> bytes:
        return self._messages[index][2]

    def batch(self) -> pa.RecordBatch:
        """Return the messages as an Arrow batch: message_id, time, message."""
        from shmring.table_ring.arrow import to_batch

        return to_batch(self._messages)
