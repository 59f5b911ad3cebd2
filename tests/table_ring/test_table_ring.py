"""TableRing: what it promises, on SQLite and on a PostgreSQL of our own."""

from __future__ import annotations

import queue

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
from fixture_types import RunThread, Until

from shmring.errors import Empty, Full, LimitReached
from shmring.table_ring import SubscriberNotFound, TableRing, TableRingStats


@pytest.fixture
def url(either: str) -> str:
    return either


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), b"x" * 300, b"\\x00'%s:n"])
def test_bytes_come_back_as_they_were(url: str, data: bytes) -> None:
    with TableRing(url, slots=2) as ring:
        ring.push(data)
        ring.push_many([bytearray(data), memoryview(data)][:1])
        assert ring.pop() == data
        assert ring.pop_many() == [data]


def test_push_many_takes_arrays(url: str) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    fixed = pa.array([b"abcd", b"efgh"], pa.binary(4))
    with TableRing(url, slots=10) as ring:
        ring.push_many(array)
        ring.push_many(fixed)
        ring.push_many(row for row in (b"1", b"2"))
        assert ring.pop_many() == [*(row.tobytes() for row in array), b"abcd", b"efgh", b"1", b"2"]


def test_full_ring_raises_full_and_burns_no_number(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push_many([b"0", b"1", b"2"])
        for _ in range(5):
            with pytest.raises(Full, match="1 of 3 slots"):
                ring.push(b"lost", timeout=0)
        with pytest.raises(queue.Full):
            ring.push_many([b"a", b"b"], timeout=0.001)
        assert ring.pop() == b"0"
        assert ring.push(b"3", timeout=0) == 3
        assert ring.pop_many() == [b"1", b"2", b"3"]


def test_empty_ring_raises_empty(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        for _ in range(3):
            with pytest.raises(Empty, match="'main'"):
                ring.pop(timeout=0)
        with pytest.raises(queue.Empty):
            ring.pop_many(timeout=0.001)
        ring.push(b"a")
        assert ring.pop(timeout=0) == b"a"


def test_waiting_push_uses_the_slot_as_soon_as_it_is_free(
    url: str, thread: RunThread, until: Until
) -> None:
    with TableRing(url, slots=1) as ring, TableRing.attach(url) as other:
        ring.push(b"0")
        pushing = thread(ring.push, b"1")
        until(lambda: ring.stats().full_waits)
        assert other.pop(timeout=0) == b"0"
        assert other.pop() == b"1"
        assert pushing.outcome() == 1


def test_one_handle_may_push_in_one_thread_and_pop_in_another(url: str, thread: RunThread) -> None:
    with TableRing(url, slots=2, durability="delayed") as ring:
        pushing = thread(lambda: [ring.push(b"%d" % n, timeout=120) for n in range(50)])
        assert [ring.pop(timeout=120) for _ in range(50)] == [b"%d" % n for n in range(50)]
        pushing.outcome()


def test_subscriber_errors(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        with pytest.raises(SubscriberNotFound, match="no subscriber 'x'"):
            TableRing.attach(url, subscriber="x")
        with pytest.raises(SubscriberNotFound):
            ring.unsubscribe("x")
        with pytest.raises(ValueError, match="already"):
            ring.subscribe("main")
        with pytest.raises(ValueError, match="none of them NUL"):
            ring.subscribe("a\0b")
        ring.subscribe('o\'brien "$1" %s')
        with TableRing.attach(url, subscriber='o\'brien "$1" %s') as quoted:
            assert quoted.positions()[1]['o\'brien "$1" %s'] == 0
        ring.unsubscribe('o\'brien "$1" %s')
        with pytest.raises(ValueError, match="last subscriber"):
            ring.unsubscribe("main")
        for n in range(63):
            ring.subscribe(f"s{n}")
        with pytest.raises(LimitReached, match="64"):
            ring.subscribe("one too many")
        ring.push(b"x")
        assert ring.table()["reference_count"].to_pylist() == [64, 0, 0]


def test_head_start_delays_only_the_beginning(url: str) -> None:
    with TableRing(url, slots=5, head_start=3) as ring:
        ring.push_many([b"0", b"1"])
        with pytest.raises(Empty, match="head_start 3"):
            ring.pop(timeout=0)
        ring.push(b"2")
        assert [ring.pop(timeout=0) for _ in range(3)] == [b"0", b"1", b"2"]
        ring.push(b"3")
        assert ring.pop(timeout=0) == b"3"


def test_table_shows_every_slot(url: str) -> None:
    with TableRing(url, slots=3, subscribers=["a", "b"]) as ring:
        ring.push_many([b"0", b"1"])
        ring.pop()
        with TableRing.attach(url, subscriber="b") as b:
            b.pop()
        table = ring.table()
    assert table.schema.names == ["slot", "message_id", "time", "message", "reference_count"]
    assert table["slot"].to_pylist() == [0, 1, 2]
    assert table["message_id"].to_pylist() == [None, 1, None]
    assert table["message"].to_pylist() == [None, b"1", None]
    assert table["reference_count"].to_pylist() == [0, 2, 0]
    assert [value is None for value in table["time"].to_pylist()] == [False, False, True]


def test_stats_count_per_connection(url: str) -> None:
    with TableRing(url, slots=2) as one, TableRing.attach(url) as two:
        one.push_many([b"abc", b"d"])
        with pytest.raises(Full):
            one.push(b"x", timeout=0)
        two.pop()
        assert one.stats() == TableRingStats(pushed=2, pushed_bytes=4, full_waits=1)
        assert two.stats() == TableRingStats(popped=1, popped_bytes=3)
