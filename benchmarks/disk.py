"""Where the durable queues are measured, and how to be fair to them on a disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Bytes that a plain writer writes at once. Smaller pieces cost the page cache more effort; larger
# ones cost far more if it looks for huge pages for them (ext4 of Linux 6.16 and later).
PIECE = 1 << 20

# Beside the sources, because /tmp is memory on many machines.
_ROOT = Path(os.environ.get("SHMRING_BENCH_DIR", Path(__file__).resolve().parent.parent / "out"))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk that goes afterwards; what went before has reached the disk."""
    _ROOT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=_ROOT) as path:
        os.sync()
        yield Path(path)


def warm(nbytes: int) -> None:
    """Touch and give back as much memory as what follows will use, just before its clock starts.

    A virtual machine gets the memory that it has not used for a moment from its host again, page by
    page, and that costs more than what is measured; whoever writes right behind another is spared.
    """
    nbytes = min(nbytes, os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2)
    if nbytes:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, nbytes, flags=flags).close()
