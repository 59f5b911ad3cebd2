"""One owner a queue: a lock file that the kernel releases when its owner dies.

The lock is ``flock`` on the file, so a dead owner never keeps it and a reused pid never counts
as the owner.  The text inside, ``<pid> <start time in clock ticks since boot>``, only names the
owner in the error; it counts only while that very process lives.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref

from shmring.errors import Locked

__all__ = ["LockFile", "open_above_standard", "process_start"]

_POLL_SECONDS = 0.01


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


def process_start(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    # The command name before the last ")" may itself hold spaces and brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class LockFile:
    """Holds the lock from construction to :meth:`release`.

    Parameters
    ----------
    path : the lock file; made if missing, and never removed, because a waiter may have it open
    what : the name used in the error
    timeout : seconds to wait for the present owner; None waits for ever, 0 does not wait

    Raises
    ------
    Locked : another owner has it still; ``pid`` names the owner, if it is known
    """

    # A class attribute: __del__ needs it even if a signal handler raised inside __init__.
    _fd = -1

    def __init__(self, path: str, what: str, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        fd = open_above_standard(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            while not _try_lock(fd):
                if deadline is not None and time.monotonic() >= deadline:
                    raise _refusal(fd, what)
                time.sleep(_POLL_SECONDS)
            pid = os.getpid()
            _record(fd, b"%d %d\n" % (pid, process_start(pid) or 0))
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)

    def release(self) -> None:
        """Let the next owner in; a second call does nothing."""
        if self._fd >= 0:
            _record(self._fd, b"")
            # A child that was forked just now may still have its copy open.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._forget()

    def _forget(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._forget()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _record(fd: int, text: bytes) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # On a full disk the owner still has its lock; only its pid is missing in the next error.
        pass


def _refusal(fd: int, what: str) -> Locked:
    fields = os.pread(fd, 64, 0).split()
    pid = int(fields[0]) if len(fields) == 2 and all(map(bytes.isdigit, fields)) else None
    if pid is not None and process_start(pid) != int(fields[1]):
        pid = None
    owner = f"process {pid}" if pid is not None else "another process"
    return Locked(
        f"{what} is open in {owner}; close it there, or pass timeout= to wait for it", pid=pid
    )


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _drop_in_child() -> None:
    # flock belongs to the open file, which a fork shares: a child that kept it would hold the
    # lock after its parent's death.  Closing it here leaves the parent's lock alone.
    for lock in list(_held):
        lock._forget()  # pyright: ignore[reportPrivateUsage]
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)
