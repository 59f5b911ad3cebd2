"""What ``shmring produce`` takes messages and batches from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from shmring.extras import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Batches",
    "chunks",
    "csv_batches",
    "generated",
    "opened",
    "parquet_batches",
    "separated",
]

_READ = 1 << 16


def opened(file: str) -> IO[bytes]:
    """The file; - is stdin."""
    return sys.stdin.buffer if file == "-" else open(file, "rb")


def _reads(file: Any) -> Iterator[bytes]:
    """What is there, as soon as it is there."""
    return iter(lambda: file.read1(_READ), b"")


def separated(file: IO[bytes], separator: bytes) -> Iterator[list[bytes]]:
    """Messages that end with a separator, which the last one may lack."""
    begun: list[bytes] = []
    for read in _reads(file):
        whole, found, rest = read.rpartition(separator)
        if found:
            yield b"".join((*begun, whole)).split(separator)
            begun = [rest]
        else:
            begun.append(rest)
    last = b"".join(begun)
    if last:
        yield [last]


def chunks(file: IO[bytes], nbytes: int) -> Iterator[list[bytes]]:
    """Messages of a fixed size; the last one may be shorter."""
    pending = bytearray()
    for read in _reads(file):
        pending += read
        whole = len(pending) // nbytes * nbytes
        if whole:
            yield [bytes(pending[i : i + nbytes]) for i in range(0, whole, nbytes)]
            del pending[:whole]
    if pending:
        yield [bytes(pending)]


def generated(messages: int, nbytes: int) -> Iterator[list[bytes]]:
    """Messages of a fixed size: their number, and dots."""
    for first in range(0, messages, 1024):
        numbers = range(first, min(first + 1024, messages))
        yield [(b"%d" % number).ljust(nbytes, b".")[:nbytes] for number in numbers]


class Batches(NamedTuple):
    """Record batches of one schema."""

    schema: pa.Schema
    rows: int | None  # where that is known
    batches: Iterator[pa.RecordBatch]


def parquet_batches(file: str, batch_rows: int | None) -> Batches:
    source: Any = pyarrow("parquet", "Parquet").ParquetFile(file)
    batches = source.iter_batches(batch_size=batch_rows or 65_536)
    return Batches(source.schema_arrow, source.metadata.num_rows, batches)


def csv_batches(file: IO[bytes], batch_rows: int | None) -> Batches:
    """The batches of a CSV file, its types as its first block suggests."""
    source: Any = pyarrow("csv", "CSV").open_csv(file)
    return Batches(source.schema, None, _sliced(source, batch_rows))


def _sliced(batches: Iterator[pa.RecordBatch], rows: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, batch.num_rows, rows or max(batch.num_rows, 1)):
            yield batch.slice(first, rows)
