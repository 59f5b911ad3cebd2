"""Descriptors of files that only their owner may write to."""

from __future__ import annotations

import fcntl
import os

__all__ = ["open_above_standard"]


def open_above_standard(path: str, flags: int, mode: int) -> int:
    """Return a new descriptor, never 0 to 2.

    If a standard stream is closed, as in daemons, the next file would get its number, and a
    library's log output would go into the file.
    """
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
