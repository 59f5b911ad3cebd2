"""Arrow record batches through a ring: one copy to write, no copy to read."""

from shmring.common.extras import need_pyarrow

need_pyarrow("shmring.arrow")

from shmring.arrow.reader import ArrowReader  # noqa: E402
from shmring.arrow.writer import ArrowWriter  # noqa: E402

__all__ = ["ArrowReader", "ArrowWriter"]
