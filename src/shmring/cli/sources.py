"""What ``shmring produce`` takes messages and batches from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from shmring.extras import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batches", "generated", "lines", "parquet_batches"]

_READ = 1 << 16


def lines(file: Any) -> Iterator[list[bytes]]:
    """Messages that end with a newline, which the last one may lack; as soon as they are there."""
    begun: list[bytes] = []
    for read in iter(lambda: file.read1(_READ), b""):
        whole, found, rest = read.rpartition(b"\n")
        if found:
            yield b"".join((*begun, whole)).split(b"\n")
            begun = [rest]
        else:
            begun.append(rest)
    last = b"".join(begun)
    if last:
        yield [last]


def generated(messages: int, nbytes: int) -> Iterator[list[bytes]]:
    """Messages of a fixed size: their number, and dots."""
    for first in range(0, messages, 1024):
        numbers = range(first, min(first + 1024, messages))
        yield [(b"%d" % number).ljust(nbytes, b".")[:nbytes] for number in numbers]


class Batches(NamedTuple):
    """Record batches of one schema."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def parquet_batches(file: str) -> Batches:
    source: Any = pyarrow("parquet", "Parquet").ParquetFile(file)
    return Batches(source.schema_arrow, source.iter_batches(batch_size=65_536))
