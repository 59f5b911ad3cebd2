"""The one door to the disk for the durable queues.

Everything they read, write, sync, rename or lock goes through a :class:`Disk`, so that the
tests can put a simulated one in its place and replay every crash.  The rules they rely on are
those of POSIX and no more: what was written is safe after ``File.sync``, a name is safe after
``Disk.sync_directory``, a rename replaces its target in one step, and nothing else is ordered.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from shmring.durable.lockfile import LockFile
from shmring.errors import NoSpace

__all__ = [
    "DIRECT_ALIGN",
    "DIRECT_BYTES",
    "Buffer",
    "Disk",
    "File",
    "Lock",
    "OsDisk",
    "replace_file",
]

Buffer = bytes | bytearray | memoryview

# With ``OsDisk(direct=True)`` a part of this size goes from memory to the disk and not by way of
# the page cache, if its address and its place in the file are the same modulo the alignment.
DIRECT_BYTES = 1 << 20
DIRECT_ALIGN = 4096

# Linux refuses more buffers than this in one vectored write.
_IOV_MAX = 1024


class File(Protocol):
    """An open file, read and written at explicit offsets."""

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return what is there; shorter than asked only at the end of the file."""
        ...

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts one after the other, or raise with some unknown part of them written."""
        ...

    def sync(self) -> None:
        """Return when the contents and the size are on disk."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def truncate(self, nbytes: int) -> None:
        """Cut the file to this size."""
        ...

    def map(self) -> memoryview:
        """Return the contents as they are now, valid even when the file is closed and removed."""
        ...

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        ...


class Lock(Protocol):
    """Proof of being the only owner."""

    def release(self) -> None:
        """Let the next owner in; a second call does nothing."""
        ...


class Disk(Protocol):
    """Names, files and locks.

    Attributes
    ----------
    parallel : whether it gains anything to sync in another thread
    """

    parallel: bool

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a file; ``create`` makes it, or empties the one that is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Put source in target's place in one step."""
        ...

    def remove(self, path: str) -> None:
        """Remove a name; no error if it is gone already."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents where they are missing, durably."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in this directory are on disk."""
        ...

    def lock(self, path: str, what: str, timeout: float | None) -> Lock:
        """Become the only owner of ``path``, or raise ``Locked`` after ``timeout`` seconds."""
        ...


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _no_space(error: OSError, path: str) -> NoSpace:
    return NoSpace(
        error.errno, "the disk is full; nothing committed is lost: free space, then try again", path
    )


class _OsFile:
    # Of the class, so that __del__ finds it also where a signal handler raised inside __init__.
    _fd = -1

    def __init__(self, path: str, flags: int, mode: int, *, direct: bool = False) -> None:
        self._path = path
        self._direct = direct
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if _is_full(error):
                raise _no_space(error, path) from error
            raise

    def read(self, nbytes: int, offset: int) -> bytes:
        data = os.pread(self._fd, nbytes, offset)
        if len(data) == nbytes or not data:
            return data
        # The kernel returns at most 2 GiB at once, and less after a signal.
        parts = [data]
        got = len(data)
        while got < nbytes:
            more = os.pread(self._fd, nbytes - got, offset + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        try:
            if self._direct:
                parts, offset = self._write_directly(parts, offset)
            for start in range(0, len(parts), _IOV_MAX):
                offset = self._write_some(parts[start : start + _IOV_MAX], offset)
        except OSError as error:
            if _is_full(error):
                raise _no_space(error, self._path) from error
            raise

    def _write_directly(self, parts: Sequence[Buffer], offset: int) -> tuple[Sequence[Buffer], int]:
        """Write up to the last whole block of the first large part; what is left, and its place."""
        index = next((i for i, part in enumerate(parts) if len(part) >= DIRECT_BYTES), None)
        if index is None:
            return parts, offset
        large = memoryview(parts[index])
        at = offset + sum(map(len, parts[:index]))
        begin = -at % DIRECT_ALIGN
        end = len(large) - (at + len(large)) % DIRECT_ALIGN
        self._write_some([*parts[:index], large[:begin]], offset)
        done = begin + self._past_the_cache(large[begin:end], at + begin)
        return [large[done:], *parts[index + 1 :]], at + done

    def _past_the_cache(self, part: memoryview, offset: int) -> int:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            return os.pwrite(self._fd, part, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # not on this file system, or not from this memory
            return 0
        finally:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)

    def _write_some(self, parts: Sequence[Buffer], offset: int) -> int:
        nbytes = sum(map(len, parts))
        done = os.pwritev(self._fd, parts, offset)
        end = offset + nbytes
        if done < nbytes:
            rest = memoryview(b"".join(parts))[done:]
            while rest:
                n = os.pwrite(self._fd, rest, end - len(rest))
                rest = rest[n:]
        return end

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)

    def map(self) -> memoryview:
        return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsDisk:
    """The real disk.

    Parameters
    ----------
    mode : of files that it makes, before the umask
    direct : write large parts past the page cache, where they and the file system allow it
    """

    parallel = True

    def __init__(self, mode: int = 0o666, *, direct: bool = False) -> None:
        self._mode = mode
        self._direct = direct

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a file; ``create`` makes it, or empties the one that is there."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        flags |= os.O_CREAT | os.O_TRUNC if create else 0
        return _OsFile(path, flags, self._mode, direct=self._direct)

    def rename(self, source: str, target: str) -> None:
        """Put source in target's place in one step."""
        os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a name; no error if it is gone already."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents where they are missing, durably."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            return
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        """Return when the names in this directory are on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, what: str, timeout: float | None) -> Lock:
        """Become the only owner of ``path``, or raise ``Locked`` after ``timeout`` seconds."""
        return LockFile(path, what, timeout)


def replace_file(disk: Disk, path: str, parts: Sequence[Buffer]) -> None:
    """Give ``path`` new contents in one step: after a crash it has the old or the new ones.

    The new contents are synced under a name of their own before the rename, and the directory
    after it; an interrupted call leaves at most ``path + ".tmp"``, which means nothing.

    Raises
    ------
    NoSpace : the file is as it was
    OSError : from the rename or the directory sync: either contents may be found after a crash
    """
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.write(parts, 0)
        file.sync()
    except OSError:
        file.close()
        disk.remove(temporary)
        raise
    file.close()
    disk.rename(temporary, path)
    disk.sync_directory(os.path.dirname(path))
