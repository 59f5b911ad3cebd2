"""Queues on a disk one call of which fails: what a flush has returned is there afterwards."""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import RunThread
from queue_items import contents, put

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import Disk, File
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.errors import Closed, NoSpace

Fail = Callable[[], None]


class FailingFile(File):
    """A file that asks before each call whether it fails."""

    fail: Fail

    def write(self, *call: Any) -> int:
        self.fail()
        return super().write(*call)

    def sync(self) -> None:
        self.fail()
        super().sync()

    def truncate(self, nbytes: int) -> None:
        self.fail()
        super().truncate(nbytes)


class FailingDisk(Disk):
    """A real disk whose call number `at` fails; the others do what they do."""

    def __init__(self, at: int, number: int) -> None:
        super().__init__()
        self._number = number
        self._left = at

    def fail(self) -> None:
        self._left -= 1
        if self._left == 0:
            if self._number == errno.EIO:
                raise OSError(self._number, "the disk fails")
            raise NoSpace(self._number, "the disk is full")

    @property
    def has_failed(self) -> bool:
        return self._left <= 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        self.fail()
        file = super().open(path, create=create, write=write)
        file.__class__ = FailingFile
        file.fail = self.fail  # type: ignore[attr-defined]
        return file

    def rename(self, source: str, target: str) -> None:
        self.fail()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.fail()
        super().sync_directory(path)


def persistent(path: Path, disk: Disk, flushed: list[int]) -> None:
    """Flush ten items, take some of them; the log is written anew several times."""
    sizes = {"log_size": 1000, "file_size": 4096, "log_reserve": 0}
    with PersistentQueue(path, disk=disk, **sizes) as q, q.session() as s:
        for number in range(10):
            put(s, number.to_bytes(150, "little"))
            flushed.append(number)
            if number % 3 == 2:
                s.dequeue()
                s.flush()
                flushed.remove(min(flushed))


def append_only(path: Path, disk: Disk, flushed: list[int]) -> None:
    """Flush ten items, take some of them, and compact the file in between."""
    with AppendOnlyQueue(path, disk=disk) as q:
        for number in range(10):
            put(q, number.to_bytes(150, "little"))
            flushed.append(number)
            if number % 3 == 2:
                q.compact()


def items_of(path: Path) -> list[int]:
    kind = PersistentQueue if path.is_dir() else AppendOnlyQueue
    with kind(path) as q:
        return [int.from_bytes(item, "little") for item in contents(q)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("work", [persistent, append_only])
def test_what_was_flushed_survives_a_failing_call(
    tmp_path: Path, work: Callable[[Path, Disk, list[int]], None], number: int
) -> None:
    for at in itertools.count(1):
        path = tmp_path / str(at)
        disk = FailingDisk(at, number)
        flushed: list[int] = []
        with contextlib.suppress(OSError, Closed):
            work(path, disk, flushed)
        if not disk.has_failed:
            break
        if path.exists():
            found = items_of(path)
            # The flush that failed may be there, and so may what it took.
            assert found[: len(flushed)] == flushed or found == flushed[1:], at
            assert len(found) <= len(flushed) + 1, at
        else:
            assert flushed == [], at
    assert at > 40
    left = {name.name for name in tmp_path.rglob("*.tmp*")}
    assert all(not name.endswith(".tmp.tmp") for name in left)


def test_a_write_that_fails_takes_nothing_back_of_one_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DataFiles(Disk(), str(tmp_path), maximum=1000)
    behind: list[tuple[DataFile, int]] = []

    def fail(*_: object) -> None:
        monkeypatch.undo()
        behind.append(files.write([b"behind"], 1))
        raise NoSpace(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(DataFile, "write", fail)
    with pytest.raises(NoSpace):
        files.write([b"first"], 1)
    ((file, offset),) = behind
    assert file.read(6, offset) == b"behind"
    files.close(None)


def test_a_file_that_was_removed_is_closed_without_a_sync(tmp_path: Path) -> None:
    file = DataFile(Disk(), str(tmp_path), 1, lambda _: None)
    file.create()
    file.write(file.open(), [b"rolled back"], 0)
    file.discard()
    file.close()  # another thread has meanwhile closed the file used least recently


def test_a_sync_that_fails_fails_another_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: RunThread
) -> None:
    """The kernel tells only one of them."""
    file = DataFile(Disk(), str(tmp_path), 1, lambda _: None)
    file.create()
    file.write(file.open(), [b"x"], 0)
    told, go_on = threading.Event(), threading.Event()

    def fail_once(_: File) -> None:
        if not told.is_set():
            told.set()
            assert go_on.wait(120)
            raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(File, "sync", fail_once)
    first = thread(file.sync)
    assert told.wait(120)
    second = thread(file.sync)
    go_on.set()
    for each in first, second:
        with pytest.raises(OSError, match="the disk fails"):
            each.outcome()


class FullBehindRenames(Disk):
    """A disk that opens nothing once a file has been renamed."""

    renames = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if self.renames:
            raise NoSpace(errno.ENOSPC, "the disk is full", path)
        return super().open(path, create=create, write=write)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.renames += 1


class UnsyncedRenames(FullBehindRenames):
    """A disk that is full when it is to have a new name for good."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        return Disk.open(self, path, create=create, write=write)

    def sync_directory(self, path: str) -> None:
        if self.renames:
            raise NoSpace(errno.ENOSPC, "the disk is full", path)


@pytest.mark.parametrize("kind", [FullBehindRenames, UnsyncedRenames])
def test_flushes_behind_a_rewritten_log_are_there_though_the_disk_is_full_then(
    tmp_path: Path, kind: type[FullBehindRenames]
) -> None:
    PersistentQueue(tmp_path / "q").close()
    disk = kind()
    flushed: list[bytes] = []
    with (
        contextlib.suppress(OSError, Closed),
        PersistentQueue(tmp_path / "q", disk=disk) as q,
        q.session() as s,
    ):
        for number in range(6):
            put(s, b"%d" % number)
            flushed.append(b"%d" % number)
            if not number:
                q._rewrite_log()
    assert disk.renames
    with PersistentQueue(tmp_path / "q") as q, q.session() as s:
        assert list(iter(s.dequeue, None)) == flushed
