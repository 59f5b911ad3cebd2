"""The entry point to the real disk."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from closed_streams import LOG
from damage import flip
from fixture_types import RunChild

import shmring
from shmring.durable import AppendOnlyQueue, PersistentQueue, truncate
from shmring.durable.base.files import Disk
from shmring.errors import Damaged, NoSpace, NotARing, PermissionRefused

MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [MIB, 0, 1],
        [1, MIB, MIB - 1, 2 * MIB + 1],
        [5 * MIB + 7],
        [3] * 5000,
        [700] * 3000,
        [MIB // 1024] * 2049,
    ],
)
def test_a_write_arrives_whole_however_it_is_divided(sizes: list[int], tmp_path: Path) -> None:
    parts = [random.Random(i).randbytes(size) for i, size in enumerate(sizes)]
    file = Disk().open(str(tmp_path / "file"), create=True)
    file.write(parts, 5)
    assert file.read(8 * MIB, 0) == (bytes(5) + b"".join(parts) if any(sizes) else b"")
    file.close()


LOGGING = f"""{LOG}
    from shmring.durable import AppendOnlyQueue, PersistentQueue
    os.closerange(0, 3)
    with PersistentQueue(sys.argv[1]) as queue, AppendOnlyQueue(sys.argv[2]) as stack:
        with queue.session() as session:
            session.enqueue_many([b"a", b"b" * 5000])
            session.flush()
        stack.enqueue(b"c")
        stack.flush()
        log()
    os._exit(0)
"""


def test_what_is_written_to_closed_standard_streams_is_not_written_into_a_queue(
    child: RunChild, tmp_path: Path
) -> None:
    child(LOGGING, tmp_path / "queue", tmp_path / "stack").end()
    with PersistentQueue(tmp_path / "queue") as queue, queue.session() as session:
        assert session.dequeue_many(3) == [b"a", b"b" * 5000]
    with AppendOnlyQueue(tmp_path / "stack") as stack:
        assert stack.dequeue() == b"c"


LIMITED = """
    import resource, sys, threading
    import shmring
    from shmring.durable import AppendOnlyQueue, PersistentQueue, replay

    def limit(nbytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    def filled(enqueue, flush):
        for n in range(1000):
            enqueue(b"%d" % n + bytes(1000))
            try:
                flush()
            except shmring.NoSpace as error:
                assert "ulimit -f" in str(error), error
                return n

    path, size = sys.argv[1], int(sys.argv[3])
    with (
        PersistentQueue(path + "/p") as queue,
        queue.session() as session,
        AppendOnlyQueue(path + "/a") as stack,
    ):
        for ends in session, stack:
            limit(size)
            count = filled(ends.enqueue, ends.flush)
            limit(resource.RLIM_INFINITY)
            ends.flush()
            taken = ends.dequeue_many(2000)
            assert [int(item[:-1000]) for item in taken] == list(range(count + 1))
            ends.flush()
    with shmring.create(sys.argv[2], slots=1024, temporary=True) as ring, ring.producer() as out:
        limit(30_000)
        with ring.journal(path + "/j") as journal:
            for n in range(100):
                out.push(bytes(1000))
            while journal.error is None:
                assert journal.running
            assert "ulimit -f" in str(journal.error)
            limit(resource.RLIM_INFINITY)
            out.wait_durable(ring.claimed - 1)
            assert journal.error is None
        assert len(list(replay(path + "/j"))) == 100
"""


MANY_FILES = """
    import resource, sys
    from shmring.durable import PersistentQueue

    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    for _ in range(2):
        with PersistentQueue(sys.argv[1], file_size=1) as queue, queue.session() as session:
            count = len(queue)
            for n in range(count, 150):
                session.enqueue(b"%d" % n + bytes(40_000))
                session.flush()
            assert [int(item[:-40_000]) for item in session.dequeue_many(200)] == list(range(150))
"""


def test_queue_of_more_files_than_a_process_may_have_open(child: RunChild, tmp_path: Path) -> None:
    child(MANY_FILES, tmp_path / "queue").end()


UNSYNCED_FILES = """
    import os, resource, sys
    from shmring.durable import PersistentQueue

    if os.fork() == 0:
        queue = PersistentQueue(sys.argv[1], file_size=1, durability="delayed", delay=1000)
        with queue.session() as session:
            for n in range(150):
                session.enqueue(bytes(40_000))
                session.flush()
            queue.sync()
            session.dequeue_many(150)
            session.flush()
            os._exit(0)
    os.wait()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    with PersistentQueue(sys.argv[1]) as queue:
        assert len(queue) == 0
"""


def test_recovery_syncs_more_files_than_a_process_may_have_open(
    child: RunChild, tmp_path: Path
) -> None:
    child(UNSYNCED_FILES, tmp_path / "queue").end()


# A new transaction log has more than the smaller one: its limit comes where it need not grow.
@pytest.mark.parametrize("size", [50_000, 200_000])
def test_a_file_that_may_not_grow_is_a_full_disk_and_nothing_is_lost(
    child: RunChild, tmp_path: Path, name: str, size: int
) -> None:
    child(LIMITED, tmp_path, name, size).end()


def _refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have the system open and make nothing any more that is to be written."""
    opened = os.open

    def open_(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(number, os.strerror(number), path)
        return opened(path, flags, *rest, **more)

    def refuse(path: str, *rest: Any, **more: Any) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", open_)
    for call in "mkdir", "rename", "unlink", "link":
        monkeypatch.setattr(os, call, refuse)


REFUSALS = {
    errno.EACCES: (PermissionRefused, "has no permission"),
    errno.EROFS: (PermissionRefused, "mounted read-only"),
    errno.ENOSPC: (NoSpace, "the disk is full"),
}


@pytest.mark.parametrize("number", REFUSALS, ids=lambda n: errno.errorcode[n])
@pytest.mark.parametrize("there", [True, False], ids=["there", "new"])
def test_what_the_file_system_refuses_is_said_with_the_queue_and_what_to_do(
    ring: shmring.Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, there: bool
) -> None:
    kind, text = REFUSALS[number]
    uses: dict[str, Callable[[Path], Any]] = {
        "p": PersistentQueue,
        "a": AppendOnlyQueue,
        "j": ring.journal,
    }
    for folder, use in uses.items() if there else ():
        use(tmp_path / folder).close()
    if there:
        (tmp_path / "j" / f"{0:020d}.journal").touch()
    with AppendOnlyQueue(tmp_path / "open") as stack, monkeypatch.context() as patch:
        _refuse(patch, number)
        for folder, use in uses.items():
            with pytest.raises(kind, match=rf"{text}.*{tmp_path / folder}"):
                use(tmp_path / folder)
        for rewrite in stack.compact, stack.reset:
            with pytest.raises(kind, match=rf"{text}.*{tmp_path}/open"):
                rewrite()
        if there:
            with pytest.raises(kind, match=rf"{text}.*{tmp_path}/j"):
                truncate(tmp_path / "j")


@pytest.mark.parametrize("number", REFUSALS, ids=lambda n: errno.errorcode[n])
def test_queue_goes_on_where_a_new_file_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kind, text = REFUSALS[number]
    with PersistentQueue(tmp_path / "q", log_size=1000) as queue, queue.session() as session:
        with monkeypatch.context() as patch:
            _refuse(patch, number)
            for n in range(20):  # the log cannot be rewritten
                session.enqueue(b"%d" % n)
                session.flush()
            session.enqueue(bytes(100_000))
            with pytest.raises(kind, match=rf"{text}.*{tmp_path}/q"):
                session.flush()
        session.flush()
    with PersistentQueue(tmp_path / "q") as queue, queue.session() as session:
        assert [len(item) for item in session.dequeue_many(30)] == [1] * 10 + [2] * 10 + [100_000]


def test_what_stands_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "q" / "lock").mkdir(parents=True)
    (tmp_path / "a.lock").mkdir()
    for use, path in (PersistentQueue, tmp_path / "q"), (AppendOnlyQueue, tmp_path / "a"):
        with pytest.raises(NotARing, match=rf"{path}.*lock.* is a directory"):
            use(path)


def _compact(path: Path) -> Callable[[], object]:
    queue = AppendOnlyQueue(path / "file")
    queue.flush()
    return queue.compact


def _write_the_log_anew(path: Path) -> Callable[[], object]:
    return PersistentQueue(path)._rewrite_log


def _set_aside(path: Path) -> Callable[[], object]:
    PersistentQueue(path).close()
    with (path / "transaction.log").open("r+b") as log:
        log.write(b"no log")
    return lambda: PersistentQueue(path, damage="cut").close()


def _cut_a_journal(path: Path) -> Callable[[], object]:
    with (
        shmring.create(path=path.with_name("ring"), slots=1024, temporary=True) as ring,
        ring.journal(path),
        ring.producer() as out,
    ):
        out.push(b"first", durable=True)
        out.push(b"second", durable=True)
    (segment,) = path.glob("*.journal")
    segment.write_bytes(segment.read_bytes().replace(b"second", b"damage"))
    return lambda: truncate(path)


@pytest.mark.parametrize("mode", [0o600, 0o664])
@pytest.mark.parametrize("begin", [_compact, _write_the_log_anew, _set_aside, _cut_a_journal])
def test_a_file_that_is_written_anew_keeps_its_mode(
    tmp_path: Path, begin: Callable[[Path], Callable[[], object]], mode: int
) -> None:
    """Rewriting a file keeps the mode set by chmod, although this process's umask differs."""
    (path := tmp_path / "durable").mkdir()
    write_anew = begin(path)
    files = {file: file.stat().st_ino for file in path.iterdir() if "lock" not in file.name}
    for file in files:
        file.chmod(mode)
    umask = os.umask(0o022 if mode == 0o600 else 0o077)
    try:
        write_anew()
    finally:
        os.umask(umask)
    there = [file for file in path.iterdir() if "lock" not in file.name]
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in there} == {
        file.name: oct(mode) for file in there
    }
    assert any(file not in files or file.stat().st_ino != files[file] for file in there)


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (_bind, NotARing, "is a socket"),
        (os.mkfifo, NotARing, "is a pipe"),
        (Path.mkdir, NotARing, "is a directory"),
        (lambda path: path.symlink_to(path), NotARing, "is a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), (NotARing, Damaged), "link"),
    ],
)
def test_what_is_no_file_is_refused_in_our_words(
    tmp_path: Path,
    make: Callable[[Path], object],
    error: type[Exception] | tuple[type[Exception], ...],
    said: str,
) -> None:
    """At the lock, at the log, and at the file of an append-only queue."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # a socket's path is short
    try:
        for number, file in enumerate(("lock", "transaction.log", ".lock", "")):
            place = folder / str(number)
            if file in ("lock", "transaction.log"):
                place.mkdir()
                make(place / file)
                kind: Callable[[Path], object] = PersistentQueue
            else:
                if not file and make not in (_bind, os.mkfifo, Path.mkdir):
                    continue  # an append-only queue may be a link
                make(Path(f"{place}{file}"))
                kind = AppendOnlyQueue
            with pytest.raises(error, match=said):
                kind(place)
    finally:
        shutil.rmtree(folder)


def test_a_version_that_the_checksum_does_not_confirm_is_damage(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path / "q") as q, q.session() as s:
        s.enqueue(b"x")
        s.flush()
    flip(tmp_path / "q" / "transaction.log", 12)
    with pytest.raises(Damaged, match="does not match its checksum"):
        PersistentQueue(tmp_path / "q")
    with PersistentQueue(tmp_path / "q", damage="cut") as q:
        assert q.recovered is not None
        assert len(q) == 0


@pytest.mark.parametrize("kind", [PersistentQueue, AppendOnlyQueue])
def test_a_draft_that_another_user_makes_meanwhile_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], object]
) -> None:
    remove = Disk.remove

    def plant(disk: Disk, path: str) -> None:
        remove(disk, path)
        if path.endswith(".tmp"):
            Path(path).write_text("planted")

    monkeypatch.setattr(Disk, "remove", plant)
    with pytest.raises(PermissionRefused, match="another process has made this file"):
        kind(tmp_path / "q")
