"""Descriptors of files that nobody else is to write to."""

from __future__ import annotations

import fcntl
import os

__all__ = ["open_above_standard"]


def open_above_standard(path: str, flags: int, mode: int) -> int:
    """Return a new descriptor, never 0 to 2.

    Where a standard stream is closed, as daemons have it, its number is the next to be given, and
    what a library then logs would be written into the file.
    """
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
