"""TableRing: what it promises, on SQLite and on a PostgreSQL of our own."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
from fixture_types import RunThread
from statements import counts

from shmring.errors import Empty, Full, LimitReached
from shmring.table_ring import SubscriberNotFound, TableRing


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
    url: str, thread: RunThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    with TableRing(url, slots=1) as ring, TableRing(url) as other:
        backend = ring._turns._backend
        listen = backend.listen
        monkeypatch.setattr(backend, "listen", lambda which: (waits.set(), listen(which))[1])
        ring.push(b"0")
        pushing = thread(ring.push, b"1")
        assert waits.wait(120)
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
            TableRing(url, subscriber="x")
        with pytest.raises(SubscriberNotFound):
            ring.unsubscribe("x")
        with pytest.raises(ValueError, match="already"):
            ring.subscribe("main")
        with pytest.raises(ValueError, match="none of them NUL"):
            ring.subscribe("a\0b")
        ring.subscribe('o\'brien "$1" %s')
        with TableRing(url, subscriber='o\'brien "$1" %s') as quoted:
            assert quoted.positions()[1]['o\'brien "$1" %s'] == 0
        ring.unsubscribe('o\'brien "$1" %s')
        with pytest.raises(ValueError, match="last subscriber"):
            ring.unsubscribe("main")
        for n in range(63):
            ring.subscribe(f"s{n}")
        with pytest.raises(LimitReached, match="64"):
            ring.subscribe("one too many")
        ring.push(b"x")
        assert counts(ring) == [64, 0, 0]
