"""Where the durable queues are measured, and how to be fair to them on a disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder", "warm"]

# Beside the sources, because /tmp is memory on many machines.
_ROOT = Path(os.environ.get("SHMRING_BENCH_DIR", Path(__file__).resolve().parent.parent / "out"))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk that goes afterwards; what went before has reached the disk."""
    _ROOT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=_ROOT) as path:
        os.sync()
        yield Path(path)


def warm(path: Path, nbytes: int) -> None:
    """Write and remove a file just before the clock starts.

    A virtual machine gets the memory that it has not used for a moment from its host again, page by
    page, and that costs more than what is measured; whoever writes right behind another is spared.
    """
    block = bytes(1 << 20)
    scratch = path / "scratch"
    with open(scratch, "wb", buffering=0) as file:
        for _ in range(nbytes >> 20):
            file.write(block)
    scratch.unlink()
