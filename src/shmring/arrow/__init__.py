"""Arrow record batches through a ring: one copy in, none out."""

from shmring.arrow.reader import ArrowReader
from shmring.arrow.writer import ArrowWriter

__all__ = ["ArrowReader", "ArrowWriter"]
