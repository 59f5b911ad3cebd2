"""Promises of the append-only queue, on the real file system and on a simulated one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip
from fixture_types import Until
from queue_items import contents, put
from simulated_disk import SimulatedDisk

from shmring.durable import AppendOnlyQueue
from shmring.durable.base import frames
from shmring.durable.base.files import Disk
from shmring.durable.queues import append_only_file, session
from shmring.errors import (
    Closed,
    Damaged,
    ForkedHandle,
    Locked,
    NoSpace,
    NotARing,
    PermissionRefused,
    PositionNotFound,
    RingNotFound,
)

SEEDS = int(os.environ.get("SHMRING_CRASH_SEEDS", "4"))


def test_every_flushed_position_opens_as_it_was_while_the_writer_goes_on(tmp_path: Path) -> None:
    rng = random.Random(1)
    model: list[bytes] = []
    states: dict[int, list[bytes]] = {}
    views: list[tuple[AppendOnlyQueue, list[bytes]]] = []
    with AppendOnlyQueue(tmp_path / "q") as q:
        for i in range(300):
            if rng.random() < 0.6:
                q.enqueue(item := b"%d" % i)
                model.append(item)
            else:
                assert q.dequeue() == (model.pop(0) if model else None)
            if rng.random() < 0.2:
                states[q.flush()] = list(model)
                latest = AppendOnlyQueue(tmp_path / "q", readonly=True)
                assert latest.position == q.position
                views.append((latest, list(model)))
        for position, state in states.items():
            with AppendOnlyQueue(tmp_path / "q", position=position) as view:
                assert len(view) == len(state)
                assert contents(view) == state
        q.compact()
        for view, state in views:
            assert contents(view) == state
            view.close()


def test_flush_of_nothing_new_returns_the_same_position(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        first = q.flush()
        assert q.flush() == first
        q.enqueue(b"a")
        assert q.flush() > first


def test_position_that_no_flush_returned_is_refused(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        q.enqueue(b"a")
        before = q.flush()
        for position in (0, before - 1, before + 1, before + 10_000, 1 << 70):
            with pytest.raises(PositionNotFound, match=str(position)):
                AppendOnlyQueue(tmp_path / "q", position=position)
        after = q.compact()
        assert after > before
        with pytest.raises(PositionNotFound, match="compaction"):
            AppendOnlyQueue(tmp_path / "q", position=before)
        with AppendOnlyQueue(tmp_path / "q", position=after) as view:
            assert contents(view) == [b"a"]


def test_view_takes_from_itself_alone_and_cannot_write(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        put(q, b"a")
        with AppendOnlyQueue(tmp_path / "q", readonly=True) as view:
            assert view.dequeue() == b"a"
            assert view.dequeue() is None
            for use in (view.flush, view.compact, view.reset, lambda: view.enqueue(b"x")):
                with pytest.raises(PermissionRefused):
                    use()
        assert contents(q) == [b"a"]


def test_missing_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RingNotFound):
        AppendOnlyQueue(tmp_path / "q", readonly=True)


def test_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q"):
        with pytest.raises(Locked) as error:
            AppendOnlyQueue(tmp_path / "q")
        assert error.value.pid == os.getpid()
        AppendOnlyQueue(tmp_path / "q", readonly=True).close()
    AppendOnlyQueue(tmp_path / "q").close()


@pytest.mark.parametrize("first", ["q", "link"])
def test_writer_through_a_symbolic_link_is_the_second_one(tmp_path: Path, first: str) -> None:
    (tmp_path / "link").symlink_to("q")
    with AppendOnlyQueue(tmp_path / first) as q:
        put(q, b"a")
        for name in ("q", "link", "../" + tmp_path.name + "/q"):
            with pytest.raises(Locked, match=f"process {os.getpid()}"):
                AppendOnlyQueue(tmp_path / name)
    for change in (AppendOnlyQueue.compact, AppendOnlyQueue.reset):
        with AppendOnlyQueue(tmp_path / "link") as q:
            change(q)
            put(q, b"b")
    assert (tmp_path / "link").is_symlink()
    with AppendOnlyQueue(tmp_path / "q") as q:
        assert contents(q) == [b"b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "q", "q.lock"]


def test_file_with_a_hard_link_has_no_writer(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        put(q, b"a")
        (tmp_path / "link").hardlink_to(tmp_path / "q")
        for change in (q.compact, q.reset):
            with pytest.raises(NotARing, match="2 names"):
                change()
        for name in ("q", "link"):
            with pytest.raises((Locked, NotARing)):
                AppendOnlyQueue(tmp_path / name)
            assert contents(AppendOnlyQueue(tmp_path / name, readonly=True)) == [b"a"]
        (tmp_path / "link").unlink()
        q.compact()
        assert contents(q) == [b"a"]


def test_forked_child_cannot_write(tmp_path: Path, in_child: Callable[..., None]) -> None:
    q = AppendOnlyQueue(tmp_path / "q")

    def child() -> None:
        with pytest.raises(ForkedHandle):
            q.enqueue(b"a")
        q.close()

    in_child(child)
    put(q, b"a")
    q.close()
    with pytest.raises(Closed):
        q.enqueue(b"b")


def test_compaction_leaves_only_what_is_in_the_queue(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        for i in range(100):
            q.enqueue(b"%04d" % i * 10_000)
        for _ in range(90):
            q.dequeue()
        q.flush()
        before = q.overhead()
        assert 3_000_000 < before.item_bytes <= 4_000_000
        q.compact()
        after = q.overhead()
        assert after.item_bytes == 400_000
        assert after.file_bytes == (tmp_path / "q").stat().st_size < 402_000
        put(q, b"more")
    with AppendOnlyQueue(tmp_path / "q") as q:
        assert contents(q) == [*(b"%04d" % i * 10_000 for i in range(90, 100)), b"more"]


def test_reset_deletes_every_item_and_state_but_open_views(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        q.enqueue(b"a" * 100_000)
        q.enqueue(b"b")
        before = q.flush()
        q.dequeue()
        q.enqueue(b"c" * 2_000_000)
        with AppendOnlyQueue(tmp_path / "q", position=before) as view:
            empty = q.reset()
            assert len(q) == 0
            assert q.dequeue() is None
            assert (tmp_path / "q").stat().st_size < 1000
            assert contents(view) == [b"a" * 100_000, b"b"]
        with pytest.raises(PositionNotFound, match="compaction"):
            AppendOnlyQueue(tmp_path / "q", position=before)
        q.enqueue(b"d")
        assert q.flush() > empty > before
    with AppendOnlyQueue(tmp_path / "q", position=empty) as view:
        assert contents(view) == []
    with AppendOnlyQueue(tmp_path / "q") as q:
        assert contents(q) == [b"d"]
        assert q.recovered is None


def test_directory_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    for readonly in (False, True):
        with pytest.raises(NotARing, match="is a directory"):
            AppendOnlyQueue(tmp_path, readonly=readonly)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for readonly in (False, True):
        for name in ("loop", "pipe"):
            with pytest.raises(NotARing, match="use another path"):
                AppendOnlyQueue(tmp_path / name, readonly=readonly)


def test_overhead_on_items_of_7_kb_is_below_3_percent(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        for _ in range(1000):
            q.enqueue(bytes(7000))
        q.flush()
        assert q.overhead().ratio < 0.03
        contents(q)
        q.flush()
        assert q.overhead().ratio < 0.03


def test_two_hundred_thousand_small_items(tmp_path: Path) -> None:
    with AppendOnlyQueue(tmp_path / "q") as q:
        for i in range(200_000):
            q.enqueue(b"%d" % i)
        assert q.dequeue() == b"0"
        q.flush()
        assert contents(q) == [b"%d" % i for i in range(1, 200_000)]


def test_damaged_item_and_node_are_reported_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with AppendOnlyQueue(path) as q:
        put(q, b"first" * 400_000, b"second")
    flip(path, 70)
    with AppendOnlyQueue(path) as q:
        for _ in range(2):
            with pytest.raises(Damaged, match="position 64"):
                q.dequeue()
    flip(path, 70)
    flip(path, 64 + 2_000_000 + 3)
    with AppendOnlyQueue(path) as q, pytest.raises(Damaged, match="node at position"):
        contents(q)


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"hello" * 100)
    with pytest.raises(Damaged, match="byte 0"):
        AppendOnlyQueue(tmp_path / "q")


def open_simulated(disk: Disk) -> AppendOnlyQueue:
    return AppendOnlyQueue("/d/q", disk=disk)


@pytest.mark.crash
@pytest.mark.parametrize("checked_region", [0, 300, 1 << 20])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_crash_leaves_the_state_before_or_after_a_flush(
    seed: int, checked_region: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_only_file, "_CHECKED_REGION", checked_region)
    monkeypatch.setattr(frames, "_SEARCH_BYTES", 150)
    monkeypatch.setattr(session, "BUFFER_BYTES", 400)
    rng = random.Random(seed)
    disk = SimulatedDisk()
    allowed: list[list[bytes]] = [[]]
    checked = [0]

    def check() -> None:
        for image in disk.crashes(rng, 6):
            q = open_simulated(image)
            found = contents(q)
            assert found in allowed
            checked[0] += 1
            if rng.random() < 0.2:
                q.rollback()
                q.enqueue(b"later")
                position = q.flush()
                again = image.crash(lambda: 0.0)
                assert contents(open_simulated(again)) == [*found, b"later"]
                view = AppendOnlyQueue("/d/q", position=position, disk=again)
                assert contents(view) == [*found, b"later"]

        killed = disk.kill()
        found = contents(open_simulated(killed))
        assert found in allowed
        for image in killed.crashes(rng, 2):
            assert contents(open_simulated(image)) == found
        survivor = disk.kill()
        with open_simulated(survivor) as q:
            put(q, b"later")
        for image in survivor.crashes(rng, 1):
            assert contents(open_simulated(image)) == [*found, b"later"]

    disk.on_step = check
    q = open_simulated(disk)
    model: list[bytes] = []
    for i in range(120):
        if rng.random() < 0.6:
            item = b"%d:" % i + rng.randbytes(rng.choice([0, 20, 500]))
            if rng.random() < 0.5:
                q.enqueue(item)
            else:
                q.enqueue_many([item])
            model.append(item)
        elif rng.random() < 0.5:
            assert q.dequeue() == (model.pop(0) if model else None)
        else:
            assert q.dequeue_many(2) == model[:2]
            del model[:2]
        if rng.random() < 0.2:
            allowed.append(list(model))
            if rng.random() < 0.1:
                model.clear()
                allowed.append([])
                q.reset()
            elif rng.random() < 0.2:
                q.compact()
            else:
                q.flush()
            allowed = [list(model)]
        if rng.random() < 0.03:
            q.close()
            q = open_simulated(disk)
            model = list(allowed[0])
    assert checked[0] > 300


def test_full_disk_loses_nothing_and_the_flush_can_be_repeated() -> None:
    disk = SimulatedDisk()
    q = open_simulated(disk)
    put(q, b"a")
    q.enqueue(b"b" * 1000)
    disk.capacity = 500
    for use in (q.flush, q.compact):
        with pytest.raises(NoSpace):
            use()
    disk.capacity = 0
    with pytest.raises(NoSpace):
        q.reset()
    assert contents(open_simulated(disk.crash(lambda: 1.0))) == [b"a"]
    disk.capacity = 1 << 30
    q.flush()
    assert contents(open_simulated(disk.crash(lambda: 0.0))) == [b"a", b"b" * 1000]


def test_failed_sync_stops_the_queue() -> None:
    disk = SimulatedDisk()
    q = open_simulated(disk)
    q.enqueue(b"a")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="failed to sync"):
        q.flush()
    with pytest.raises(Closed):
        q.flush()
    q.close()
    assert contents(open_simulated(disk)) == [b"a"]


def test_a_sync_that_failed_ahead_of_a_flush_fails_the_flush(
    monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(session, "BUFFER_BYTES", 100)
    monkeypatch.setattr(append_only_file, "_SYNC_BYTES", 1000)
    disk = SimulatedDisk()
    disk.parallel = True
    q = open_simulated(disk)
    put(q, b"a")
    disk.failing.add("sync")
    for _ in range(10):
        q.enqueue(b"b" * 200)
    until(lambda: not disk.failing)  # the disk tells of it once
    with pytest.raises(OSError, match="failed to sync"):
        q.flush()
    with pytest.raises(Closed):
        q.enqueue(b"c")
    q.close()
    assert contents(open_simulated(disk.crash(lambda: 0.0))) == [b"a"]
