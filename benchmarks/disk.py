"""Where the durable queues are measured, and how to be fair to them on a disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder"]

# Beside the sources, because /tmp is memory on many machines.
_ROOT = Path(os.environ.get("SHMRING_BENCH_DIR", Path(__file__).resolve().parent.parent / "out"))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk that goes afterwards; what went before has reached the disk."""
    _ROOT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=_ROOT) as path:
        os.sync()
        yield Path(path)
