"""Opens files in shared folders, where another user may have put a file of the same name."""

from __future__ import annotations

import errno
import os
import stat

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_own(path: str, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file that only this user can have made or changed.

    The call never waits (opening a FIFO would), and follows no link. Raise PermissionError if the
    file is another user's, or other users may write to it, or it has a second name (hard link), or
    it is no regular file.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise PermissionError(errno.EPERM, "it is not a regular file", path) from None
    reason = _why_not_own(os.fstat(fd))
    if reason is not None:
        os.close(fd)
        raise PermissionError(errno.EPERM, reason, path)
    return fd


def _why_not_own(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_nlink > 1:
        return "it has a second name (hard link), so that it may be another file of this user"
    if found.st_mode & _OTHERS_WRITE:
        return f"other users may write it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None
