"""Items many at a time, into both durable queues and out of them."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from queue_items import put
from simulated_disk import SimulatedDisk

from shmring import _shmring
from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base import items as items_module
from shmring.durable.queues import session
from shmring.durable.queues.append_only_file import AppendOnlyFile
from shmring.durable.queues.data_files import DataFile
from shmring.errors import Closed, Damaged, MessageTooLarge, NoSpace

ITEMS = [b"first", b"", b"x" * 300, b"y" * 70_000, b"last"]


class Ends:
    """Both ends of a queue of either kind: a session's, or the queue itself."""

    def __init__(self, kind: str, path: Path) -> None:
        self.queue: Any = (PersistentQueue if kind == "persistent" else AppendOnlyQueue)(path)
        self.ends: Any = self.queue.session() if kind == "persistent" else self.queue


@pytest.fixture(params=["persistent", "append_only"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    ends = Ends(request.param, tmp_path / "q")
    yield ends.ends
    ends.queue.close()


def rows_of_three() -> np.ndarray[Any, Any]:
    return np.frombuffer(b"aaabbbcccddd", np.uint8).reshape(4, 3)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (ITEMS, ITEMS),
        (tuple(ITEMS), ITEMS),
        (dict.fromkeys(ITEMS), ITEMS),
        ([bytearray(b"a"), memoryview(b"abcdef")[::2]], [b"a", b"ace"]),
        ([b"l" * 20_000, b"m" * 20_000], [b"l" * 20_000, b"m" * 20_000]),
        (rows_of_three(), [b"aaa", b"bbb", b"ccc", b"ddd"]),
        ([], []),
    ],
)
def test_each_form_of_a_batch_is_its_items_in_order(queue: Any, items: Any, expected: Any) -> None:
    queue.enqueue(b"before")
    assert queue.enqueue_many(items) == len(expected)
    put(queue, b"behind")
    assert queue.dequeue_many(1000) == [b"before", *expected, b"behind"]
    assert queue.dequeue_many(1) == []


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([b"a", "text"], "item 1 is <class 'str'>"),
        ([b"a", None], "item 1 is"),
        ("text", "item 0 is <class 'str'>"),
        (7, "not iterable"),
        (b"bytes", "item 0 is <class 'int'>"),
    ],
)
def test_what_is_no_batch_of_items_is_refused_and_stores_nothing(
    queue: Any, items: Any, words: str
) -> None:
    queue.enqueue(b"before")
    with pytest.raises((TypeError, ValueError), match=words):
        queue.enqueue_many(items)
    queue.flush()
    assert queue.dequeue_many(10) == [b"before"]


@pytest.mark.parametrize("data", [7, [1, 2, 3], "text", None, True])
def test_an_item_that_is_no_bytes_is_refused_and_stores_nothing(queue: Any, data: object) -> None:
    with pytest.raises(TypeError, match="an item is bytes"):
        queue.enqueue(data)
    queue.flush()
    assert queue.dequeue() is None


@pytest.mark.parametrize("use", ["flush", "dequeue", "enqueue", "rollback"])
def test_items_from_a_generator_that_uses_the_queue_are_all_there(queue: Any, use: str) -> None:
    put(queue, b"0")
    queue.enqueue(b"1")

    def items() -> Iterator[bytes]:
        yield b"2"
        getattr(queue, use)(*([b"3"] if use == "enqueue" else []))
        yield b"4"

    assert queue.enqueue_many(items()) == 2
    queue.flush()
    before = {"dequeue": [b"1"], "rollback": [b"0"], "enqueue": [b"0", b"1", b"3"]}
    assert queue.dequeue_many(10) == [*before.get(use, [b"0", b"1"]), b"2", b"4"]


@pytest.mark.parametrize("kind", ["persistent", "append_only"])
def test_items_from_a_generator_that_closes_the_queue_are_refused(
    kind: str, tmp_path: Path
) -> None:
    both = Ends(kind, tmp_path / "q")

    def items() -> Iterator[bytes]:
        yield b"never"
        both.queue.close()

    with pytest.raises(Closed):
        both.ends.enqueue_many(items())


def test_items_from_a_generator_that_waits_for_another_thread_which_uses_the_queue(
    queue: Any,
) -> None:
    def items() -> Iterator[bytes]:
        other = threading.Thread(target=queue.enqueue, args=(b"other",), daemon=True)
        other.start()
        other.join(120)
        yield b"own"

    assert queue.enqueue_many(items()) == 1
    queue.flush()
    assert queue.dequeue_many(10) == [b"other", b"own"]


def test_an_item_of_4_gib_is_refused_before_it_is_touched(queue: Any) -> None:
    with mmap.mmap(-1, 1 << 32, prot=mmap.PROT_READ) as memory:
        rows = np.frombuffer(memory, np.uint8).reshape(1, 1 << 32)
        for use in (queue.enqueue_many, lambda rows: queue.enqueue(rows[0])):
            with pytest.raises(MessageTooLarge, match="4294967296 bytes"):
                use(rows)
        del rows
    queue.flush()
    assert queue.dequeue_many(1) == []


def test_a_negative_number_of_items_is_refused(queue: Any) -> None:
    with pytest.raises(ValueError, match=r"max_items must be from 0 to .*, not -1"):
        queue.dequeue_many(-1)
    with pytest.raises(TypeError, match=r"max_items must be an int, not 1\.5"):
        queue.dequeue_many(1.5)
    assert queue.dequeue_many(0) == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_item_ends_the_batch_before_it(tmp_path: Path, cut: bool) -> None:
    items = [b"%d" % i * 300 for i in range(9)]
    with PersistentQueue(tmp_path) as q, q.session() as s:
        s.enqueue_many([*items, bytes(40_000)])
        s.flush()
    (data,) = tmp_path.glob("data.*")
    flip(data, 5 * 300)
    with PersistentQueue(tmp_path, damage="cut" if cut else "refuse") as q, q.session() as s:
        assert s.dequeue_many(100) == items[:5]
        if cut:
            assert s.dequeue_many(3) == items[6:]
            assert q.recovered is not None
            assert "item 6, 300 bytes at 1500" in q.recovered
        else:
            with pytest.raises(Damaged, match="item 6, 300 bytes at 1500"):
                s.dequeue_many(100)
            assert len(q) == 5


def test_a_damaged_item_of_the_append_only_queue_ends_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "q"
    items = [b"%d" % i * 300 for i in range(9)]
    with AppendOnlyQueue(path) as q:
        q.enqueue_many([*items, bytes(2_000_000)])
        q.flush()
    flip(path, 64 + 5 * 300)
    with AppendOnlyQueue(path) as q:
        assert q.dequeue_many(100) == items[:5]
        for _ in range(2):
            with pytest.raises(Damaged, match=f"300 bytes of the item at position {64 + 1500}"):
                q.dequeue_many(100)
        with pytest.raises(Damaged):
            q.compact()


@pytest.mark.parametrize("kind", ["persistent", "append_only"])
def test_an_error_of_the_disk_loses_nothing_that_was_read_before_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [b"%02d" % i * 35_000 for i in range(30)]
    ends = Ends(kind, tmp_path / "q")
    for some in (items[:10], items[10:]):
        ends.ends.enqueue_many(some)
        ends.ends.flush()
    left = 17

    def read(*args: Any) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, "the disk failed to read")
        data: bytes = really(*args)
        return data

    file: Any = DataFile if kind == "persistent" else AppendOnlyFile
    really = file.read
    monkeypatch.setattr(file, "read", read)
    assert ends.ends.dequeue_many(100) == items[:17]
    with pytest.raises(OSError, match="failed to read"):
        ends.ends.dequeue_many(100)
    ends.ends.flush()
    left = 100
    assert ends.ends.dequeue_many(100) == items[17:]
    ends.queue.close()


@pytest.mark.parametrize("ahead", [16, 300, 1 << 20])
def test_what_was_read_ahead_does_not_hide_what_is_written_since(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_module, "_AHEAD_BYTES", ahead)
    with PersistentQueue(tmp_path, log_size=20_000) as q, q.session() as s, q.session() as other:
        expected: list[bytes] = []
        for i in range(300):
            s.enqueue(b"%d" % i * (1 + i % 40))
            expected.append(b"%d" % i * (1 + i % 40))
            s.flush()
            if i % 3 == 2:
                assert other.dequeue() == expected.pop(0)
                if i % 2:
                    other.flush()
        assert other.dequeue_many(1000) == expected


def test_a_full_disk_refuses_a_batch_and_keeps_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "BUFFER_BYTES", 1000)
    disk = SimulatedDisk()
    with PersistentQueue("/q", disk=disk) as q, q.session() as s:
        s.enqueue_many([b"a" * 600, b"b" * 600])
        disk.capacity = 0
        with pytest.raises(NoSpace):
            s.enqueue_many([b"c"])
        disk.capacity = 1 << 30
        s.enqueue_many([b"d"])
        s.flush()
        assert s.dequeue_many(10) == [b"a" * 600, b"b" * 600, b"d"]


def test_a_short_life_costs_the_sync_of_its_flush_and_two_for_opening() -> None:
    disk = SimulatedDisk()
    PersistentQueue("/q", disk=disk).close()
    for count in range(20):
        steps: list[str] = []
        step = disk.step
        disk.step = lambda what, steps=steps, step=step: (steps.append(what), step(what))[1]  # type: ignore[method-assign]
        with PersistentQueue("/q", disk=disk) as q, q.session() as s:
            put(s, b"x" * 300)
            assert len(q) == count + 1
        disk.step = step  # type: ignore[method-assign]
        assert steps == ["sync_directory", "sync", "write", "sync"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: _shmring.unpack([], b"", 0, bytes(16), 0, 2),
        lambda: _shmring.unpack([], b"", 0, bytes(16), 1, 0),
        lambda: _shmring.unpack_one(b"", 0, bytes(31), 1),
        lambda: _shmring.runs_of(bytes(16), 0, 2),
    ],
)
def test_places_that_are_not_there_are_an_error(call: Callable[[], object]) -> None:
    with pytest.raises(IndexError, match="extents"):
        call()
