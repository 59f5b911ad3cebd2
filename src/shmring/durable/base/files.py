"""The one entry point to the disk for the durable queues.

The queues read, write, sync, rename and lock through a :class:`Disk`.  Tests replace it by a
simulated disk, to replay every crash.  The queues rely only on the rules of POSIX: written bytes
are safe after ``File.sync``, a name is safe after ``Disk.sync_directory``, a rename replaces its
target in one step, and nothing else is ordered.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import stat
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from shmring.errors import Damaged, Locked, NoSpace, NotARing, PermissionRefused

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview

# Maximum number of buffers in one vectored write; Linux refuses more.
_IOV_MAX = 1024
# Maximum bytes in one write. For a larger write, ext4 of Linux 6.16 and later looks for huge pages.
# A virtual machine has to get huge pages from its host, and there a larger write took up to five
# times as long.
_WRITE_BYTES = 1 << 20
_POLL_SECONDS = 0.01  # seconds between two attempts to get a lock
_READ, _WRITE = 0o444, 0o222  # mode bits to read and to write, for owner, group and others


# CHANGE: edit this for a new error
def is_full(error: OSError) -> bool:
    """Return whether a write failed because the disk is full, or a limit on size was reached."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _no_space(error: OSError, path: str) -> NoSpace:
    if error.errno == errno.EFBIG:
        reason = "a file may not be larger (ulimit -f, or the file system's most)"
        remedy = "raise the limit"
    else:
        reason, remedy = "the disk is full", "free space"
    return NoSpace(
        error.errno, f"{reason}; nothing committed is lost: {remedy}, then try again", path
    )


@contextmanager
def _in_words(what: str) -> Generator[None]:
    """Turn errors of the system into shmring's; `what` names the file or lock in their text."""
    try:
        yield
    except IsADirectoryError as error:
        raise NotARing(
            f"{what}: {error.filename} is a directory, where a file has to be: use another path"
        ) from error
    except OSError as error:
        if is_full(error):
            raise _no_space(error, what) from error
        if error.errno == errno.ENXIO:
            raise NotARing(
                f"{what}: {error.filename} is a socket, where a file has to be: use another path"
            ) from error
        if error.errno == errno.ELOOP:
            raise NotARing(
                f"{what}: {error.filename} is a symbolic link, where a file has to be, or its "
                f"links lead to each other: use another path"
            ) from error
        if error.errno == errno.EROFS:
            reason = "the file system is mounted read-only: mount it for writing, or use"
        elif isinstance(error, PermissionError):
            reason = f"user {os.geteuid()} has no permission here: have the owner give it, or use"
        else:
            raise
        raise PermissionRefused(error.errno, f"{reason} another path", what) from error


def check_size(path: str, nbytes: int) -> None:
    """Raise NoSpace if a file of this size exceeds the process's limit (``ulimit -f``)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and nbytes > limit:
        raise _no_space(OSError(errno.EFBIG, ""), path)


def _no_directory(path: str) -> NotARing:
    return NotARing(f"{path} is a file; a journal or a queue of this kind lives in a directory")


def _in_writes(parts: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Divide the parts into lists, each for one write."""
    some: list[Buffer] = []
    room = _WRITE_BYTES
    for part in parts:
        rest = part
        while len(rest) > room:
            rest = memoryview(rest)
            yield [*some, rest[:room]]
            some, rest, room = [], rest[room:], _WRITE_BYTES
        some.append(rest)
        room -= len(rest)
        if len(some) == _IOV_MAX:
            yield some
            some, room = [], _WRITE_BYTES
    if some:
        yield some


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


class File:
    """An open file, read and written at explicit offsets."""

    # A class attribute: __del__ needs it even if a signal handler raised inside __init__.
    _fd = -1

    def __init__(self, path: str, flags: int, mode: int) -> None:
        self.path = path  # last known name of the file
        with _in_words(path):
            # Open without waiting: a pipe has to be refused, not waited for.
            try:
                self._fd = open_above_standard(path, flags | os.O_NONBLOCK, mode)
            except FileNotFoundError:
                if os.path.islink(path):
                    raise Damaged(f"{path}: this link leads to no file") from None
                raise
            found = os.fstat(self._fd)
            if stat.S_ISDIR(found.st_mode):  # open() lets a directory be opened for reading
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(found.st_mode):
                raise NotARing(f"{path} is a pipe or a device, and no file: use another path")
        self.inode = found.st_ino, found.st_dev

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return the bytes; fewer than asked for only at the end of the file."""
        data = os.pread(self._fd, nbytes, offset)
        if len(data) == nbytes or not data:
            return data
        # Read until all bytes are there: the kernel returns at most 2 GiB, and less after a signal.
        parts = [data]
        got = len(data)
        while got < nbytes:
            more = os.pread(self._fd, nbytes - got, offset + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def write(self, parts: Sequence[Buffer], offset: int) -> int:
        """Write all parts one after the other; return the offset after the last byte.

        After an error, any of the bytes may have been written.
        """
        nbytes = sum(map(len, parts))
        small = len(parts) <= _IOV_MAX and nbytes <= _WRITE_BYTES
        try:
            for some in (parts,) if small else _in_writes(parts):
                done = os.pwritev(self._fd, some, offset)
                end = offset + (nbytes if small else sum(map(len, some)))
                if offset + done < end:
                    rest = memoryview(b"".join(some))[done:]
                    while rest:
                        rest = rest[os.pwrite(self._fd, rest, end - len(rest)) :]
                offset = end
        except OSError as error:
            if is_full(error):
                raise _no_space(error, self.path) from error
            raise
        return offset

    def append(self, parts: Sequence[Buffer], end: int) -> int:
        """Write all parts at the end of the file, or nothing; return the new size."""
        try:
            return self.write(parts, end)
        except OSError:
            self.truncate(end)
            raise

    def sync(self) -> None:
        """Wait until the file's contents and size are on disk."""
        os.fdatasync(self._fd)

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def has_name(self) -> bool:
        """Return whether `path` still leads to this file."""
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (there.st_ino, there.st_dev) == self.inode

    def size(self) -> int:
        return self.stat().st_size

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)

    def map(self) -> memoryview:
        """Map the present contents; the mapping stays valid after the file is closed or removed."""
        return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def process_start(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # Split after the last ")": the command name before it may have spaces and brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class LockFile(File):
    """Holds the lock from construction to :meth:`release`.

    The lock is ``flock`` on the file, so a dead owner never keeps it and a reused pid never counts
    as the owner.  The file contains ``<pid> <start time in clock ticks since boot>`` of the owner,
    so that the error of another process can name the owner's pid, if the owner still lives.

    Parameters
    ----------
    path : the lock file; made if missing, and never removed: a process that still has a removed
        lock file open could own that file, while another process owns the new file
    what : name of the locked thing in the error
    timeout : seconds to wait for the present owner; None waits for ever, 0 does not wait
    mode : mode of a new lock file, before the umask

    Raises
    ------
    Locked : another owner still has the lock; ``pid`` is the owner's process id, if it is known
    """

    def __init__(self, path: str, what: str, timeout: float | None, mode: int = 0o600) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Follow no link: in a shared folder another user may put a link there, to a file of
            # this user.
            super().__init__(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
            self._keep_readers_out()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.has_name():
                    break
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise _refusal(self._fd, what) from None
                time.sleep(_POLL_SECONDS)
            self.close()
        pid = os.getpid()
        _record(self._fd, b"%d %d\n" % (pid, process_start(pid) or 0))
        _held.add(self)

    def _keep_readers_out(self) -> None:
        """Remove read permission from users who may not write.

        Any user who can open the file, even only to read it, could take the lock by flock().
        """
        found = self.stat()
        mode = stat.S_IMODE(found.st_mode)
        allowed = mode & ~_READ | (mode & _WRITE) << 1
        if mode != allowed and found.st_uid == os.geteuid():
            os.fchmod(self._fd, allowed)

    def release(self) -> None:
        """Let the next owner in; a second call does nothing."""
        if self._fd >= 0:
            _record(self._fd, b"")
            # Unlock explicitly: a child that was forked just now may still have its copy of the
            # descriptor open, so closing this descriptor would not release the lock.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.close()


def _record(fd: int, text: bytes) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # Ignore a full disk: the lock is held even without this text. The text only lets errors of
        # other processes name the owner's pid.
        pass


def _refusal(fd: int, what: str) -> Locked:
    fields = os.pread(fd, 64, 0).split()
    pid = int(fields[0]) if len(fields) == 2 and all(map(bytes.isdigit, fields)) else None
    if pid is not None and process_start(pid) != int(fields[1]):
        pid = None
    owner = f"process {pid}" if pid is not None else "this process or another one"
    return Locked(
        f"{what} is open in {owner}; close it there, or wait for it (a queue has timeout=)",
        pid=pid,
    )


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _drop_in_child() -> None:
    # Close the child's copies of lock files. A flock belongs to the open file, which a fork shares:
    # a child that kept the file open would hold the lock after its parent's death.  Closing the
    # child's copy does not unlock the parent's.
    for lock in list(_held):
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


class Disk:
    """The file system as the durable queues use it: names, files and locks.

    `mode` is the mode of new files, before the umask; None: 0666, and 0600 for locks.
    """

    parallel = True  # whether a sync in another thread saves time

    def __init__(self, mode: int | None = None) -> None:
        self._mode, self._lock_mode = (0o666, 0o600) if mode is None else (mode, mode)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a file; ``create`` makes the file, or empties it, but follows no link."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        made = os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW if create else 0
        return File(path, flags | made, self._mode)

    def copy_mode(self, source: str, target: str) -> None:
        """Make the empty file `target` with the mode of `source`.

        If `source` is missing, `target` gets the mode of new files. Raise PermissionRefused if
        another process has made `target` meanwhile.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        mode = None
        try:
            with _in_words(target):
                with suppress(FileNotFoundError):
                    mode = stat.S_IMODE(os.stat(source).st_mode)
                fd = os.open(target, flags, self._mode if mode is None else 0o600)
        except FileExistsError as error:
            raise PermissionRefused(
                error.errno, "another process has made this file; use another folder", target
            ) from error
        try:
            if mode is not None:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Put source in target's place in one step."""
        with _in_words(target):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a name; no error if it is gone already."""
        with _in_words(path), suppress(FileNotFoundError):
            os.unlink(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            with _in_words(path):
                return os.listdir(path)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise _no_directory(path) from None

    def make_directory(self, path: str) -> None:
        """Make the directory and its missing parents, durably."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        try:
            with _in_words(path):
                os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise _no_directory(path) from None
            return
        self.sync_directory(parent)

    def room(self, path: str) -> int:
        """Return the number of bytes by which the files in this directory can still grow."""
        disk = os.statvfs(path)
        # A file system without a limit (tmpfs) reports 0 blocks.
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else sys.maxsize

    def sync_directory(self, path: str) -> None:
        """Wait until the names in this directory are on disk."""
        with _in_words(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, path: str, what: str, timeout: float | None) -> LockFile:
        """Become the only owner of ``path``, or raise ``Locked`` after ``timeout`` seconds."""
        with _in_words(what):
            return LockFile(path, what, timeout, self._lock_mode)


def check_names(*files: File) -> None:
    """Raise Damaged if the name of an open file is gone, or leads to another file."""
    for file in files:
        if not file.has_name():
            raise Damaged(
                f"{file.path} was removed or replaced while it was open: put it back, or use "
                f"another path"
            )


class SyncedAhead(ABC):
    """A file that any thread may sync early, before the commit that needs the sync."""

    _sync_error: Damaged | OSError | None = None

    def __init__(self) -> None:
        self._sync_lock = threading.Lock()

    @abstractmethod
    def _sync(self) -> None:
        """Sync the file."""

    def sync(self) -> None:
        """Wait until everything written so far is on disk."""
        with self._sync_lock:
            try:
                if self._sync_error is None:
                    self._sync()
            except (Damaged, OSError) as error:
                # Keep the error: the kernel reports a failed write only once, and the next sync
                # would seem to succeed.
                self._sync_error = error
            if self._sync_error is not None:
                raise type(self._sync_error)(*self._sync_error.args)

    def sync_ahead(self) -> None:
        """Sync in the background; a failure shows at the next :meth:`sync`."""

        def work() -> None:
            with suppress(Damaged, OSError):
                self.sync()

        threading.Thread(target=work, name="shmring-sync", daemon=True).start()


def set_aside(disk: Disk, path: str, *, copy: bool = False) -> None:
    """Rename a file to ``*.broken``, or copy it there with ``copy``; make the new name durable."""
    directory, name = os.path.split(path)
    taken = disk.names(directory)
    number, broken = 1, f"{name}.broken"
    while broken in taken:
        number += 1
        broken = f"{name}.{number}.broken"
    target = os.path.join(directory, broken)
    if copy:
        file = disk.open(path, write=False)
        try:
            disk.copy_mode(path, target)
            write_file(disk, target, [file.read(file.size(), 0)]).close()
        finally:
            file.close()
    else:
        disk.rename(path, target)
    disk.sync_directory(directory)


def write_file(disk: Disk, path: str, parts: Sequence[Buffer]) -> File:
    """Make a file with these contents, synced, and return it open; its name is not synced."""
    file = disk.open(path, create=True)
    try:
        file.write(parts, 0)
        file.sync()
    except BaseException:
        file.close()
        raise
    return file


def replace_file(disk: Disk, path: str, make: Callable[[str], T]) -> T:
    """Replace the file ``path`` in one step: after a crash ``path`` is the old file or the new one.

    `make` makes and syncs the new file under a given name, and returns an object that has the file
    open.  An interrupted call leaves at most this name, ``path + ".tmp"``, which nothing reads.
    The new file gets the old file's mode.  The new file is opened before the rename: if opening it
    failed after the rename, the caller would only have the old file open, which has no name then.

    If making the new file fails, for example with NoSpace or PermissionRefused, the old file is
    unchanged. If the rename or the directory's sync fails, raise OSError: after a crash, ``path``
    is the old file or the new one.
    """
    temporary = path + ".tmp"
    # Remove a draft of an interrupted call; or, in a shared folder, another user's file or link.
    disk.remove(temporary)
    try:
        disk.copy_mode(path, temporary)
        made = make(temporary)
    except BaseException:
        with suppress(OSError):
            disk.remove(temporary)
        raise
    try:
        disk.rename(temporary, path)
        disk.sync_directory(os.path.dirname(path))
    except OSError as error:
        raise OSError(error.errno, f"replacing it failed: {error}", path) from error
    return made
