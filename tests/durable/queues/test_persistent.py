"""Promises of the persistent queue, on the real file system."""

from __future__ import annotations

import array
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import flip
from fixture_types import RunThread, Until
from queue_items import contents, put

from shmring._shmring import runs_of
from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import Disk, File, LockFile, process_start
from shmring.durable.queues import recovery, transaction_log
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.transaction_log import Body, TransactionLog
from shmring.errors import Closed, Damaged, ForkedHandle, Locked, NotARing


def test_dropped_session_returns_its_items(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, b"0", b"1")
        s = q.session()
        assert s.dequeue() == b"0"
        del s
        assert contents(q) == [b"0", b"1"]


def test_whatever_has_the_buffer_protocol_is_an_item(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        view = memoryview(b"abcdef")
        put(q, bytearray(b"a"), view[::2], array.array("H", [1, 2]))  # type: ignore[arg-type]
        assert contents(q) == [b"a", b"ace", b"\1\0\2\0"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_reset_waits_for_an_item_that_is_being_read(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch, thread: RunThread
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    read = File.read

    def slowly(*args: Any) -> bytes:
        reading.set()
        assert go_on.wait(120)
        return read(*args)

    with PersistentQueue(tmp_path) as q:
        put(q, b"0" * size)
        monkeypatch.setattr(File, "read", slowly)
        with q.session() as s:
            taking = thread(s.dequeue)
            assert reading.wait(120)
            resetting = thread(q.reset)
            go_on.set()
            assert taking.outcome() == b"0" * size
            resetting.outcome()
            assert q.recovered is None
            with pytest.raises(Closed, match="reset"):
                s.flush()


def test_reset_deletes_what_waits_and_what_is_taken_and_their_files(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, *[b"%d" % i * 100_000 for i in range(4)])
        with q.session() as holds:
            dropped = q.session()
            assert [s.dequeue_many(1)[0][:1] for s in (holds, dropped)] == [b"0", b"1"]
            dropped.enqueue_many([bytes(2_000_000)])
            dropped.enqueue(b"for which that is written")
            del dropped
            q.reset()
            assert len(q) == 0
            assert not list(tmp_path.glob("data.*"))
            holds.enqueue(b"follows from what was taken")
            with pytest.raises(Closed, match="nothing was committed"):
                holds.flush()
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == []


def test_reset_of_a_closed_queue_is_refused(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, b"0")
    with pytest.raises(Closed):
        q.reset()
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [b"0"]


def test_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "q"):
        with pytest.raises(NotARing, match="file is a file"):
            PersistentQueue(path)


def test_data_files_roll_at_the_maximum_and_go_when_drained(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, file_size=100_000) as q:
        for _ in range(10):
            put(q, b"x" * 60_000)
        names = sorted(p.name for p in tmp_path.glob("data.*"))
        assert len(names) == 5
        assert (tmp_path / names[0]).stat().st_size == 120_000
        with q.session() as s:
            for _ in range(5):
                s.dequeue()
            assert sorted(p.name for p in tmp_path.glob("data.*")) == names
            s.flush()
        assert sorted(p.name for p in tmp_path.glob("data.*")) == names[2:]
    with PersistentQueue(tmp_path) as q, q.session() as s:
        while s.dequeue() is not None:
            pass
        s.flush()
    assert not list(tmp_path.glob("data.*"))


def test_log_is_trimmed_when_too_long_and_on_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "_CHUNK", 1000)
    log = tmp_path / "transaction.log"
    with PersistentQueue(tmp_path, log_size=20_000, log_reserve=1000) as q:
        put(q, b"first")
        for _ in range(500):
            put(q, b"x" * 300)
            with q.session() as s:
                s.dequeue()
                s.flush()
            assert log.stat().st_size < 30_000
    assert log.stat().st_size < 3_000
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [b"x" * 300]


def test_log_that_would_not_get_shorter_is_not_rewritten(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path / "many", log_size=1000) as q:
        put(q, *[b"x" * 7] * 5000)
        for _ in range(20):
            put(q, b"x")
        assert q.transactions == 21
    with PersistentQueue(tmp_path / "holes", log_size=1000) as q, q.session() as s:
        put(q, *[b"x" * 7] * 600)
        with q.session() as other:
            for _ in range(300):
                s.dequeue()
                other.dequeue()
            s.flush()
        q._rewrite_log()
        for _ in range(4):
            put(q, b"x")
        assert q.transactions == 5


def test_item_that_is_taken_while_the_log_is_rewritten_stays_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_one(*run: Any) -> list[tuple[int, int, bytes]]:
        s.dequeue()
        return runs_of(*run)

    with PersistentQueue(tmp_path) as q, q.session() as s:
        put(q, b"0", b"1", b"2", b"3")
        s.dequeue()
        monkeypatch.setattr(recovery, "runs_of", take_one)
        q._rewrite_log()
        monkeypatch.undo()
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("begins", [DataFile, DataFiles])
@pytest.mark.parametrize("kept", [[], [b"kept" * 10_000]])
def test_write_that_outlasts_the_queue_hurts_nothing_of_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: Any, kept: list[bytes]
) -> None:
    write, others = begins.write, b"other" * 10_000

    def write_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        q.close()
        with PersistentQueue(tmp_path) as owner:
            put(owner, others)
        return write(*arguments)

    q = PersistentQueue(tmp_path)
    if kept:
        put(q, *kept)
    with q.session() as s:
        s.enqueue(b"late" * 10_000)
        monkeypatch.setattr(begins, "write", write_late)
        with pytest.raises(Closed):
            s.flush()
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [*kept, others]


def test_closing_leaves_a_queue_alone_that_was_made_at_its_path(tmp_path: Path) -> None:
    q = PersistentQueue(tmp_path / "q")
    put(q, b"long" * 20_000)
    (file,) = q.files.existing()
    file.close()  # the queue closes a file not used for long
    (tmp_path / "q").rename(tmp_path / "old")
    with PersistentQueue(tmp_path / "q") as other:
        put(other, b"short" * 10_000)
        size = os.path.getsize(file.path)
        q.close()
        assert os.path.getsize(file.path) == size


def test_items_that_look_like_the_log_itself_are_only_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "_CHUNK", 500)
    log = tmp_path / "transaction.log"
    with PersistentQueue(tmp_path / "a", log_reserve=500) as q:
        for _ in range(4):
            put(q, (tmp_path / "a" / "transaction.log").read_bytes())
        copy = (tmp_path / "a" / "transaction.log").read_bytes()
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "transaction.log").write_bytes(copy)
        expected = contents(q)
    with PersistentQueue(tmp_path / "b") as q:
        assert contents(q) == expected
    assert not log.exists()


def test_small_and_large_flushes_of_one_transaction_keep_together(
    tmp_path: Path, thread: RunThread, until: Until
) -> None:
    flushes = [
        [b"%d %d" % (who, n) + bytes(40_000 if who in (3, 4) else n) for n in range(3)]
        for who in range(8)
    ]
    with PersistentQueue(tmp_path / "q") as q:
        put(q, b"first")
        with q._commit_lock:
            threads = [thread(put, q, *flushes[0])]
            until(lambda: q._group._leader is not None and not q._group._waiting)
            threads += [thread(put, q, *items) for items in flushes[1:]]
            until(lambda: len(q._group._waiting) == len(flushes) - 1)
        for each in threads:
            each.outcome()
        assert q.transactions == 3
        there = contents(q)
    with PersistentQueue(tmp_path / "q") as q:
        assert contents(q) == there
    found = [there[n : n + 3] for n in range(1, len(there), 3)]
    assert sorted(found) == sorted(flushes)


def test_delayed_flush_is_synced_in_time(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, durability="delayed", delay=0.01) as q:
        put(q, b"a")
        deadline = time.monotonic() + 120
        while q.unsynced and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not q.unsynced
        put(q, b"b" * 100_000)
        q.sync()
        assert not q.unsynced
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [b"a", b"b" * 100_000]


def test_damage_after_a_delayed_queue_was_closed_drops_no_transaction(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, durability="delayed", delay=3600) as q:
        put(q, b"a" * 50_000)
        put(q, b"b")
    (data,) = tmp_path.glob("data.*")
    data.write_bytes(b"b" + data.read_bytes()[1:])
    with PersistentQueue(tmp_path, damage="cut") as q:
        assert q.recovered is None
        assert contents(q) == [b"b"]


def test_second_opening_is_refused_with_the_owners_pid(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path), pytest.raises(Locked, match=str(os.getpid())) as error:
        PersistentQueue(tmp_path)
    assert error.value.pid == os.getpid()
    PersistentQueue(tmp_path).close()


def test_second_opening_can_wait(tmp_path: Path) -> None:
    q = PersistentQueue(tmp_path)
    timer = threading.Timer(0.1, q.close)
    timer.start()
    PersistentQueue(tmp_path, timeout=120).close()
    timer.join()
    with PersistentQueue(tmp_path), pytest.raises(Locked):
        PersistentQueue(tmp_path, timeout=0.05)


def test_pid_reuse_does_not_look_like_an_owner(tmp_path: Path) -> None:
    # The text a dead owner left names a living process: this one, but with another start.
    start = process_start(os.getpid())
    assert start is not None
    (tmp_path / "lock").write_text(f"{os.getpid()} {start - 1}\n")
    PersistentQueue(tmp_path).close()
    holder = LockFile(str(tmp_path / "lock"), "it", 0)
    (tmp_path / "lock").write_text(f"{os.getpid()} {start - 1}\n")
    with pytest.raises(Locked) as error:
        PersistentQueue(tmp_path)
    assert error.value.pid is None
    holder.release()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_no_reader_of_the_items_can_hold_the_lock(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        PersistentQueue(tmp_path / "q").close()
        AppendOnlyQueue(tmp_path / "file").close()
    finally:
        os.umask(before)
    locks = [tmp_path / "q" / "lock", tmp_path / "file.lock"]
    assert [stat.S_IMODE(lock.stat().st_mode) for lock in locks] == [0o600, 0o600]
    for mode, kept in ((0o644, 0o600), (0o664, 0o660), (0o660, 0o660)):
        locks[0].chmod(mode)  # the mode of an earlier version, or set for a group
        PersistentQueue(tmp_path / "q").close()
        assert stat.S_IMODE(locks[0].stat().st_mode) == kept


def test_forked_child_can_neither_use_the_queue_nor_keep_its_lock(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    q = PersistentQueue(tmp_path)
    put(q, b"a")
    s = q.session()
    s.dequeue()

    def child() -> None:
        for use in (q.session, s.dequeue, s.flush, q.sync, lambda: s.enqueue(b"x")):
            with pytest.raises(ForkedHandle):
                use()
        s.rollback()
        q.close()

    in_child(child)
    sleeper = os.fork()
    while sleeper == 0:
        signal.pause()
    try:
        s.rollback()
        q.close()
        with PersistentQueue(tmp_path) as again:
            assert contents(again) == [b"a"]
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)


def test_closed_queue_says_so(tmp_path: Path) -> None:
    q = PersistentQueue(tmp_path)
    s = q.session()
    s.enqueue(b"a")
    q.close()
    q.close()
    for use in (s.flush, s.dequeue, q.session):
        with pytest.raises(Closed):
            use()
    s.rollback()


def damaged_log(tmp_path: Path) -> Path:
    q = PersistentQueue(tmp_path)
    for i in range(5):
        put(q, b"item %d" % i)
    log = tmp_path / "transaction.log"
    copy = log.read_bytes()
    q.close()
    log.write_bytes(copy)
    flip(log, copy.index(b"item 2"))
    for data in tmp_path.glob("data.*"):
        data.unlink()
    return log


def test_damage_in_the_middle_of_the_log_is_refused_and_says_where(tmp_path: Path) -> None:
    log = damaged_log(tmp_path)
    before = log.read_bytes()
    with pytest.raises(Damaged, match=r"transaction 3 at byte \d+ is damaged"):
        PersistentQueue(tmp_path)
    assert log.read_bytes() == before


def test_damage_can_be_cut_off_and_a_copy_is_kept(tmp_path: Path) -> None:
    log = damaged_log(tmp_path)
    before = log.read_bytes()
    with PersistentQueue(tmp_path, damage="cut") as q:
        assert q.recovered is not None
        assert "transaction 3" in q.recovered
        assert contents(q) == [b"item 0", b"item 1"]
        put(q, b"more")
    assert (tmp_path / "transaction.log.broken").read_bytes() == before
    with PersistentQueue(tmp_path) as q:
        assert contents(q) == [b"item 0", b"item 1", b"more"]


def test_damaged_item_is_refused_or_passed_over_and_set_aside(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, b"a" * 50_000, b"b" * 50_000)
    (data,) = tmp_path.glob("data.*")
    raw = flip(data, 100)
    with PersistentQueue(tmp_path) as q, q.session() as s:
        with pytest.raises(Damaged, match="50000 bytes at 0"):
            s.dequeue()
        assert len(q) == 2
    with PersistentQueue(tmp_path, damage="cut") as q, q.session() as s:
        assert s.dequeue() == b"b" * 50_000
        s.flush()
    assert data.with_name(data.name + ".broken").read_bytes() == raw


def test_files_of_others_stay(tmp_path: Path) -> None:
    for name in ("notes.tmp", "data.²", "data.new"):
        (tmp_path / name).write_text(name)
    (tmp_path / "transaction.log.tmp").write_text("an interrupted rewrite")
    PersistentQueue(tmp_path).close()
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"notes.tmp", "data.²", "data.new", "transaction.log", "lock"}


@pytest.mark.parametrize("name", ["transaction.log", "data"])
def test_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, b"a" * 50_000)
    (victim,) = tmp_path.glob(name + "*")
    victim.unlink()
    with pytest.raises(Damaged, match="missing"):
        PersistentQueue(tmp_path)
    with PersistentQueue(tmp_path, damage="cut") as q:
        assert q.recovered is not None
        assert contents(q) == []


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="durability"):
        PersistentQueue(tmp_path, durability="maybe")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="damage"):
        PersistentQueue(tmp_path, damage="ignore")  # pyright: ignore[reportArgumentType]
    for bad in (
        {"file_size": 0},
        {"log_size": -1},
        {"log_reserve": "1"},
        {"log_reserve": 2**50},
    ):
        with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
            PersistentQueue(tmp_path, **bad)  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_a_refused_opening_closes_the_data_files(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, file_size=1) as q:
        put(q, bytes(40_000))
        put(q, bytes(40_000))
    os.truncate(tmp_path / "data.0000000002", 10)
    with pytest.raises(Damaged, match="is 10 bytes long"):
        PersistentQueue(tmp_path)
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in opened if path.startswith(str(tmp_path))]


def test_a_transaction_that_is_missing_between_two_is_damage(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as q:
        put(q, b"a")
    log = TransactionLog(Disk(), str(tmp_path / "transaction.log"), reserve=0)
    log.next_number += 1
    log.sync()
    log.append(Body(), deferred=False, may_use_reserve=True)
    log.close()
    with pytest.raises(Damaged, match="transaction 2 at byte"):
        PersistentQueue(tmp_path)


def test_a_data_file_with_an_unsynced_write_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DataFile(Disk(), str(tmp_path), 1, lambda file: None)
    file.create()
    sync = DataFile.sync

    def sync_before_a_write(self: DataFile) -> None:
        sync(self)
        self.write(self.open(), [b"a"], 0)

    with monkeypatch.context() as patched:
        patched.setattr(DataFile, "sync", sync_before_a_write)
        file.close()
    # The kernel tells an error of the write to whoever had the file open.
    monkeypatch.setattr(Disk, "open", None)
    file.sync()


def test_reading_many_files_syncs_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PersistentQueue(tmp_path, file_size=1, durability="delayed") as q:
        for _ in range(70):
            put(q, bytes(40_000))
    synced: list[str] = []
    sync = File.sync

    def note(self: File) -> None:
        synced.append(os.path.basename(self.path))
        sync(self)

    monkeypatch.setattr(File, "sync", note)
    with PersistentQueue(tmp_path) as q:
        assert len(contents(q)) == 70
    assert set(synced) == {"transaction.log"}


def _fail(_: File) -> None:
    raise OSError(5, "failed to sync")


def _interrupt(_: File) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [_fail, _interrupt])
def test_a_queue_that_has_stopped_gives_out_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: Callable[[File], None]
) -> None:
    q = PersistentQueue(tmp_path)
    put(q, b"0", b"1", b"2")
    s, other = q.session(), q.session()
    assert s.dequeue() == b"0"
    monkeypatch.setattr(File, "sync", stop)
    with pytest.raises((Closed, KeyboardInterrupt)):
        s.flush()
    monkeypatch.undo()
    uses: list[Callable[[], object]] = [
        s.dequeue,
        other.dequeue,
        lambda: other.dequeue_many(2),
        lambda: other.enqueue(b"3"),
        other.flush,
        q.session,
        lambda: len(q),
        q.sync,
        q.reset,
    ]
    for use in uses:
        with pytest.raises(Closed, match="has stopped"):
            use()
    s.rollback()
    with pytest.raises(Closed, match="has stopped"):
        q.close()
    with PersistentQueue(tmp_path) as q:
        assert contents(q)[-2:] == [b"1", b"2"]
