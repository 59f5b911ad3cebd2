"""What stdout gets of messages and batches: lines, of text or of JSON."""

from __future__ import annotations

import io
import sys
from typing import IO, TYPE_CHECKING, Any, Protocol

from shmring.cli.errors import give_up_stdout
from shmring.cli.output import message_fields, to_json, wants_json

if TYPE_CHECKING:
    import pyarrow as pa

# Messages, or bytes, that wait for each other to be written at once: a consumer can keep 48 leases.
_LINES, _LINE_BYTES = 32, 1 << 16


class Message(Protocol):
    """What a ring's message, and a journal's, has."""

    @property
    def message_id(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def data(self) -> Any: ...


class Lines:
    """A line for each message, of JSON if wanted; a line of JSON for each row of a batch."""

    def __init__(self) -> None:
        self._out = _stdout()
        self._waits: list[bytes] = []  # of each message; in Python's own buffer it would stay

    def add(self, message: Message, batch: pa.RecordBatch | None) -> None:
        """Take a message, and the batch that it may be; its data may go afterwards."""
        if batch is not None:
            rows: list[dict[str, Any]] = batch.to_pylist()
            self._waits.append(b"".join(map(_line, rows)))
        elif wants_json():
            fields = {"message_id": message.message_id, "time_ns": message.time or None}
            self._waits.append(_line({**fields, **message_fields(bytes(message.data))}))
        else:
            self._waits.append(bytes(message.data) + b"\n")

    @property
    def waiting(self) -> bool:
        """Whether something that was taken waits for flush()."""
        return bool(self._waits)

    @property
    def is_full(self) -> bool:
        """Whether enough waits."""
        return len(self._waits) >= _LINES or sum(map(len, self._waits)) >= _LINE_BYTES

    def flush(self) -> None:
        """Write out what waits; whatever comes of that, it waits no more."""
        written, self._waits = b"".join(self._waits), []
        try:
            self._out.write(written)
            self._out.flush()
        except BaseException:
            give_up_stdout()
            raise


def _stdout() -> IO[bytes]:
    out: Any = sys.stdout.buffer
    if isinstance(out, io.RawIOBase):  # with PYTHONUNBUFFERED each write is a call, maybe in part
        return open(out.fileno(), "wb", closefd=False)
    return out


def _line(document: object) -> bytes:
    return to_json(document).encode(errors="surrogateescape") + b"\n"
