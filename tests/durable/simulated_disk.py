"""A disk in memory that keeps apart what was written and what is certain to survive a crash.

A write, a truncation or a name is certain only after the matching sync.
:meth:`SimulatedDisk.crash` makes the disk that a machine might find after losing power now: of
what was not synced, any subset may have arrived; a write arrives in pieces of a sector, and a
piece may be torn.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shmring.durable.base.files import Buffer, File
from shmring.errors import Locked, NoSpace

SECTOR = 512


@dataclass(eq=False)
class Inode:
    """One file: its certain contents, and what was done to it since."""

    certain: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, bytes | None]])


@dataclass(frozen=True)
class Naming:
    """A pending change of names: source is None for a removal or a new file."""

    path: str
    inode: Inode | None
    source: str | None = None


def _apply(contents: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del contents[offset:]
        contents.extend(bytes(offset - len(contents)))
        return
    contents.extend(bytes(max(0, offset - len(contents))))
    contents[offset : offset + len(data)] = data


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, inode: Inode, path: str, *, writable: bool) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self._writable = writable
        self._open = True

    def read(self, nbytes: int, offset: int) -> bytes:
        assert self._open
        return bytes(self._inode.now[offset : offset + nbytes])

    def write(self, parts: Sequence[Buffer], offset: int) -> int:
        assert self._open
        assert self._writable
        data = b"".join(parts)
        growth = max(0, offset + len(data) - len(self._inode.now))
        room = self._disk.room()
        if growth > room:
            # Write the bytes that fit before the error, as a real disk does.
            data = data[: len(data) - growth + room]
        if data:
            _apply(self._inode.now, offset, data)
            self._inode.pending.append((offset, data))
            self._disk.step("write")
        if growth > room:
            raise NoSpace(errno.ENOSPC, "the simulated disk is full", self.path)
        return offset + len(data)

    append: Any = File.append

    def sync(self) -> None:
        assert self._open
        self._disk.fail_if_told("sync")
        self._inode.certain[:] = self._inode.now
        self._inode.pending.clear()
        self._disk.step("sync")

    def has_name(self) -> bool:
        return self._disk.names_now.get(self.path) is self._inode

    def size(self) -> int:
        return len(self._inode.now)

    def stat(self) -> os.stat_result:
        return os.stat_result((0, 0, 0, 1, *[0] * 6))  # the file has one name

    def truncate(self, nbytes: int) -> None:
        assert self._open
        assert self._writable
        _apply(self._inode.now, nbytes, None)
        self._inode.pending.append((nbytes, None))
        self._disk.step("truncate")

    def map(self) -> memoryview:
        assert self._open
        return memoryview(bytes(self._inode.now))

    def close(self) -> None:
        self._open = False


class _SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self.path = path

    def has_name(self) -> bool:
        return True

    def release(self) -> None:
        self._disk.locked.discard(self.path)


class SimulatedDisk:
    """Implements ``shmring.durable.base.files.Disk``.

    Parameters
    ----------
    capacity : bytes that all files together may have

    Attributes
    ----------
    on_step : called after each change, so at every crash point
    failing : names of operations that raise EIO when they are next tried
    """

    # The order of the steps must not depend on threads.
    parallel = False

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.names_now: dict[str, Inode] = {}
        self.names_certain: dict[str, Inode] = {}
        self.pending: list[Naming] = []
        self.locked: set[str] = set()
        self.on_step: Callable[[], None] | None = None
        self.failing: set[str] = set()
        self.steps = 0
        self.syncs = 0

    def step(self, what: str) -> None:
        self.steps += 1
        self.syncs += what == "sync"
        if self.on_step is not None:
            self.on_step()

    def fail_if_told(self, what: str) -> None:
        if what in self.failing:
            self.failing.discard(what)
            raise OSError(errno.EIO, f"the simulated disk failed to {what}")

    def room(self, path: str = "") -> int:
        return max(0, self.capacity - sum(len(i.now) for i in set(self.names_now.values())))

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        inode = self.names_now.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = self.names_now[path] = Inode()
            self.pending.append(Naming(path, inode))
            self.step("create")
        file = _SimulatedFile(self, inode, path, writable=write or create)
        if create and inode.now:
            file.truncate(0)
        return file

    def copy_mode(self, source: str, target: str) -> None:
        """No file here has one."""

    def rename(self, source: str, target: str) -> None:
        inode = self.names_now.pop(source)
        self.names_now[target] = inode
        self.pending.append(Naming(target, inode, source))
        self.step("rename")

    def remove(self, path: str) -> None:
        if self.names_now.pop(path, None) is not None:
            self.pending.append(Naming(path, None))
            self.step("remove")

    def names(self, path: str) -> list[str]:
        return [os.path.basename(p) for p in self.names_now if os.path.dirname(p) == path]

    def make_directory(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        self.fail_if_told("sync_directory")
        self.names_certain = dict(self.names_now)
        self.pending.clear()
        self.step("sync_directory")

    def lock(self, path: str, what: str, timeout: float | None) -> _SimulatedLock:
        if path in self.locked:
            raise Locked(f"{what} is locked")
        self.locked.add(path)
        return _SimulatedLock(self, path)

    def crash(self, keep: Callable[[], float]) -> SimulatedDisk:
        """Return the disk after a crash.

        Parameters
        ----------
        keep : asked for each unsynced piece: 1 it arrived, 0 it did not, between: that part did
        """
        survivor = SimulatedDisk(self.capacity)
        images: dict[int, Inode] = {}

        def image(inode: Inode) -> Inode:
            if id(inode) not in images:
                images[id(inode)] = Inode(contents := _survivor(inode, keep), bytearray(contents))
            return images[id(inode)]

        names = dict(self.names_certain)
        for change in self.pending:
            if keep() < 0.5:
                continue
            if change.inode is None:
                names.pop(change.path, None)
                continue
            if change.source is not None:
                names.pop(change.source, None)
            names[change.path] = change.inode
        survivor.names_certain = {path: image(inode) for path, inode in names.items()}
        survivor.names_now = dict(survivor.names_certain)
        return survivor

    def kill(self) -> SimulatedDisk:
        """Return the disk as the next process finds it: all is there, but no more is certain."""
        survivor = SimulatedDisk(self.capacity)
        copies = {
            id(inode): Inode(bytearray(inode.certain), bytearray(inode.now), list(inode.pending))
            for names in (self.names_now, self.names_certain)
            for inode in names.values()
        }
        for change in self.pending:
            if change.inode is not None and id(change.inode) not in copies:
                copies[id(change.inode)] = Inode()
        survivor.names_now = {path: copies[id(inode)] for path, inode in self.names_now.items()}
        survivor.names_certain = {
            path: copies[id(inode)] for path, inode in self.names_certain.items()
        }
        survivor.pending = [
            Naming(change.path, change.inode and copies[id(change.inode)], change.source)
            for change in self.pending
        ]
        return survivor

    def crashes(self, rng: random.Random, samples: int) -> Iterator[SimulatedDisk]:
        """Yield disks after a crash: nothing kept, all kept, then prefixes and random subsets."""
        yield self.crash(lambda: 0.0)
        yield self.crash(lambda: 1.0)
        for i in range(samples):
            if i % 3 == 0:
                left = [rng.randrange(1, 12)]

                def prefix(left: list[int] = left) -> float:
                    left[0] -= 1
                    return 1.0 if left[0] > 0 else rng.random() if left[0] == 0 else 0.0

                yield self.crash(prefix)
            else:
                odds = rng.choice([0.1, 0.5, 0.9])
                yield self.crash(
                    lambda odds=odds: (
                        rng.random() if rng.random() < 0.2 else float(rng.random() < odds)
                    )
                )


def _survivor(inode: Inode, keep: Callable[[], float]) -> bytearray:
    contents = bytearray(inode.certain)
    for offset, data in inode.pending:
        if data is None:
            if keep() >= 0.5:
                _apply(contents, offset, None)
            continue
        at = 0
        while at < len(data):
            piece = data[at : at + SECTOR - (offset + at) % SECTOR]
            _apply(contents, offset + at, piece[: round(len(piece) * keep())])
            at += len(piece)
    return contents
