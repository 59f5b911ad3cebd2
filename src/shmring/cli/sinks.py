"""Where ``shmring consume`` puts messages and batches."""

from __future__ import annotations

import io
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Self

from shmring.cli.errors import complain, give_up_stdout
from shmring.cli.output import message_fields, to_json
from shmring.durable.base.files import is_full
from shmring.extras import need_pyarrow, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring import Lease

_ROWS = 65_536  # messages of one row group
# Messages, or bytes, that wait for each other to be written at once: a consumer can keep 48 leases.
_LINES, _LINE_BYTES = 32, 1 << 16
_RETRY = 0.25  # seconds until the next try on a full disk


class Sink:
    """Takes what comes out of a ring, a context manager; this one for what is only counted."""

    def message(self, message: Lease) -> None:
        """Take a message; its data is gone afterwards."""

    def batch(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch; its data is gone afterwards."""

    @property
    def waiting(self) -> bool:
        """Whether something that was taken waits for flush()."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether enough waits."""
        return False

    def flush(self) -> None:
        """Write out what waits; whatever comes of that, it waits no more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What was not written out by flush() is not written."""


def _stdout() -> IO[bytes]:
    out: Any = sys.stdout.buffer
    if isinstance(out, io.RawIOBase):  # with PYTHONUNBUFFERED each write is a call, maybe in part
        return open(out.fileno(), "wb", closefd=False)
    return out


class Lines(Sink):
    """stdout: each message as a line, of JSON if wanted; a line of JSON for each row."""

    def __init__(self, *, as_json: bool) -> None:
        self._out = _stdout()
        self._as_json = as_json
        self._waits: list[bytes] = []  # of each message; in Python's own buffer it would stay

    def message(self, message: Lease) -> None:
        if self._as_json:
            fields = {"message_id": message.message_id, "time_ns": message.time or None}
            self._waits.append(_line({**fields, **message_fields(bytes(message.data))}))
        else:
            self._waits.append(bytes(message.data) + b"\n")

    def batch(self, batch: pa.RecordBatch) -> None:
        rows: list[dict[str, Any]] = batch.to_pylist()
        self._waits.append(b"".join(map(_line, rows)))

    @property
    def waiting(self) -> bool:
        return bool(self._waits)

    @property
    def is_full(self) -> bool:
        return len(self._waits) >= _LINES or sum(map(len, self._waits)) >= _LINE_BYTES

    def flush(self) -> None:
        written, self._waits = b"".join(self._waits), []
        try:
            self._out.write(written)
            self._out.flush()
        except BaseException:
            give_up_stdout()
            raise


def _line(document: object) -> bytes:
    return to_json(document).encode(errors="surrogateescape") + b"\n"


class _Patient(io.FileIO):
    """A file whose writes wait while the disk is full: no ring has what they have any more."""

    _waits = True

    def write(self, data: Any) -> int:
        """Write some of it; after an error, or a signal that ended a wait, none waits again."""
        told = False
        try:
            while True:
                try:
                    return super().write(data)
                except OSError as error:
                    if not (self._waits and is_full(error)):
                        raise
                    if not told:
                        complain(f"{self.name}: {error.strerror}: waiting until it can be written")
                    told = True
                    time.sleep(_RETRY)
        except BaseException:
            self._waits = False
            raise


class Parquet(Sink):
    """A Parquet file: the rows of the batches, or a row a message.

    Parameters
    ----------
    file : its path
    schema : of the file if nothing comes; None: that of messages
    """

    def __init__(self, file: str, schema: pa.Schema | None) -> None:
        need_pyarrow("Parquet")
        import pyarrow as pa

        self._file = file
        self._out: Any = None
        self._messages = pa.schema(
            {"message_id": pa.int64(), "time": pa.timestamp("ns", "UTC"), "message": pa.binary()}
        )
        self._schema = schema or self._messages
        self._writer: Any = None
        self._rows: list[tuple[int, int | None, bytes]] = []

    def __enter__(self) -> Self:
        # Before a message is taken that could not be written.
        self._out = io.BufferedWriter(_Patient(self._file, "wb"))
        return self

    def message(self, message: Lease) -> None:
        self._rows.append((message.message_id, message.time or None, bytes(message.data)))
        if len(self._rows) == _ROWS:
            self._write_rows()

    def batch(self, batch: pa.RecordBatch) -> None:
        self._write_rows()
        self._write(batch)

    def _write_rows(self) -> None:
        import pyarrow as pa

        if self._rows:
            rows, self._rows = self._rows, []
            names = self._messages.names
            dicts = [dict(zip(names, row, strict=True)) for row in rows]
            self._write(pa.RecordBatch.from_pylist(dicts, schema=self._messages))

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._open(batch.schema)
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"{self._file} is for {', '.join(self._schema.names)}, but now comes "
                f"{', '.join(batch.schema.names)}: a file holds batches of one schema, or messages"
            )
        self._writer.write_batch(batch)

    def _open(self, schema: pa.Schema) -> Any:
        self._schema = schema
        return pyarrow("parquet", "Parquet").ParquetWriter(self._out, schema)

    def __exit__(self, *_: object) -> None:
        try:
            with self._out:
                try:
                    self._write_rows()
                finally:
                    if self._writer is None:
                        self._writer = self._open(self._schema)
                    self._writer.close()
        except OSError as error:
            lost = f"{error.strerror}: the file has no end, so all that was put into it is lost"
            raise OSError(error.errno, lost, self._file) from error
