"""TableRing: what it promises, refuses and says, on SQLite and on a PostgreSQL of our own."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from programs import python
from statements import execute, refused

from shmring.errors import (
    Closed,
    Contended,
    Damaged,
    Empty,
    ForkedHandle,
    Full,
    LimitReached,
    MessageTooLarge,
    NotARing,
    RingExists,
    RingNotFound,
    VersionMismatch,
)
from shmring.table_ring import SubscriberNotFound, TableRing, TableRingStats
from shmring.table_ring.schema import MAX_SLOTS, Layout, stride_for
from shmring.table_ring.sqlite import SqliteBackend


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
        for call in ring.subscribe, ring.unsubscribe, lambda name: TableRing.drop(url, name=name):
            for wrong in (b"main", True, 1, None):
                with pytest.raises(TypeError, match="name must be a str"):
                    call(wrong)  # pyright: ignore[reportArgumentType]
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


def without(package: str, code: str) -> str:
    """Return the stderr of a program, in an interpreter that lacks a package."""
    return python(f"import sys; sys.modules[{package!r}] = None\n{code}").stderr


@pytest.mark.parametrize(
    "code", ["import shmring.table_ring", "from shmring.table_ring import TableRing"]
)
def test_without_sqlalchemy_the_error_names_the_extra(code: str) -> None:
    error = without("sqlalchemy", code)
    assert "shmring.errors.MissingExtra: TableRing needs sqlalchemy" in error
    assert "pip install 'shmring[sql]'" in error


def test_without_a_driver_the_error_names_the_extra() -> None:
    code = "from shmring.table_ring import TableRing; TableRing('postgresql://nobody@localhost/x')"
    error = without("psycopg", code)
    assert "shmring.errors.MissingExtra: a table ring on PostgreSQL needs psycopg 3" in error
    assert "pip install 'shmring[postgresql]'" in error


def test_create_attach_drop(url: str) -> None:
    with pytest.raises(RingNotFound, match="no table ring 'orders'"):
        TableRing.attach(url, name="orders")
    with TableRing.create(url, name="orders", slots=4) as ring:
        ring.push(b"kept")
    with pytest.raises(RingExists):
        TableRing.create(url, name="orders", slots=4)
    with TableRing(url, name="orders", slots=4) as ring:
        assert ring.pop() == b"kept"
    with pytest.raises(ValueError, match="has 4 slots, not 5"):
        TableRing(url, name="orders", slots=5)
    TableRing.drop(url, name="orders")
    with pytest.raises(RingNotFound):
        TableRing.drop(url, name="orders")
    with pytest.raises(RingNotFound):
        TableRing(url, name="orders")


def test_tables_of_another_program_are_neither_dropped_nor_used(either: str) -> None:
    execute(
        either,
        "CREATE TABLE boxing (weight int)",
        "CREATE TABLE boxing_ring (id int, place text)",
        "CREATE TABLE boxing_subscribers (name text, email text)",
        "INSERT INTO boxing_ring VALUES (1, 'hall')",
        "CREATE TABLE bells (tone int)",
    )
    uses: list[Callable[[], object]] = [
        lambda: TableRing.drop(either, name="boxing"),
        lambda: TableRing.create(either, name="boxing", slots=4),
        lambda: TableRing.attach(either, name="boxing"),
        lambda: TableRing.create(either, name="bells", slots=4),
    ]
    if either.startswith("postgresql"):
        uses.append(lambda: TableRing.renew(either, name="boxing"))
    for use in uses:
        with pytest.raises(NotARing, match="use another name"):
            use()
    assert execute(either, "SELECT place FROM boxing_ring") == ["hall"]
    for table in ("boxing", "boxing_subscribers", "bells"):
        assert execute(either, f"SELECT count(*) FROM {table}") == [0]


@pytest.mark.parametrize("suffix", ["ring", "subscribers", "leases", "push", "pop_0"])
def test_no_ring_has_the_name_of_another_one_s_part(either: str, suffix: str) -> None:
    with pytest.raises(ValueError, match="ends in"):
        TableRing.create(either, name=f"orders_{suffix}", slots=4)


def test_a_ring_whose_name_ends_so_already_is_not_dropped_for_another(
    either: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmring.table_ring.inputs.check_new_name", lambda _: None)
    with TableRing.create(either, name="orders_ring", slots=4) as ring:
        monkeypatch.undo()
        ring.push(b"kept")
        for use in (TableRing.drop, partial(TableRing.create, slots=4)):
            with pytest.raises(NotARing):
                use(either, name="orders")
        assert ring.pop() == b"kept"
    TableRing.drop(either, name="orders_ring")


def test_rings_of_one_database_are_apart(url: str) -> None:
    with TableRing(url, name="a", slots=2) as a, TableRing(url, name="b", slots=3) as b:
        a.push(b"to a")
        with pytest.raises(Empty):
            b.pop(timeout=0)
        assert (a.slots, b.slots) == (2, 3)


@pytest.mark.parametrize("name", ["order", "table", "user", "_0"])
def test_ring_may_be_called_what_sql_is_written_with(url: str, name: str) -> None:
    with TableRing.create(url, name=name, slots=4) as ring:
        assert ring.push(b"0") == 0
        assert ring.push_many([b"1", b"2", b"3"]) == 1
        assert (ring.pop(), ring.pop_many(2)) == (b"0", [b"1", b"2"])
        with ring.lease() as lease:
            assert list(lease) == [b"3"]
        ring.subscribe("late")
        ring.unsubscribe("late")
        assert ring.positions() == (4, {"main": 4})
    TableRing.renew(url, name=name)
    TableRing.drop(url, name=name)


def test_failed_attach_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RingNotFound):
        TableRing.attach(f"sqlite:///{tmp_path}/none.db")
    assert not list(tmp_path.iterdir())


def test_many_may_create_at_once(url: str, thread: RunThread) -> None:
    creating = [thread(lambda: TableRing(url, slots=50)) for _ in range(6)]
    rings = [each.outcome() for each in creating]
    numbers = [ring.push(b"x") for ring in rings]
    for ring in rings:
        ring.close()
    assert numbers == list(range(6))


def test_a_new_sqlite_file_that_another_locks_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ring.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(SqliteBackend, "sleep", lambda *_: other.rollback())
        with TableRing(f"sqlite:///{path}", slots=50) as ring:
            assert ring.push(b"x") == 0


@pytest.mark.parametrize(
    "names", [(), ("",), ("a", ""), ("a", "a"), "main", b"main", None, 5, (5,), (b"a",), ("x\0",)]
)
def test_collections_that_name_no_subscribers_are_refused(tmp_path: Path, names: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="subscriber"):
        TableRing(f"sqlite:///{tmp_path}/ring.db", slots=3, subscribers=names)


@pytest.mark.parametrize("start", [-1, 4, 2**62, 1.5, "1", None])
def test_head_start_that_can_never_wait_is_refused(tmp_path: Path, start: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="head_start must be"):
        TableRing(f"sqlite:///{tmp_path}/ring.db", slots=3, head_start=start)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "no database URL"),
        ("mysql://host/db", "mysql"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
    ],
)
def test_urls_that_cannot_be(address: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TableRing(address, slots=3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"slots": 0}, ValueError),
        ({"slots": 2**31}, ValueError),
        ({"slots": True}, TypeError),
        ({"slots": 2.0}, TypeError),
        ({"name": "x; drop table y"}, ValueError),
        ({"name": "Upper"}, ValueError),
        ({"subscribers": "main"}, TypeError),
        ({"subscribers": []}, ValueError),
        ({"subscribers": ["a", "a"]}, ValueError),
        ({"subscribers": [""]}, ValueError),
        ({"durability": "fast"}, ValueError),
        ({"head_start": 4}, ValueError),
        ({"head_start": -1}, ValueError),
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TableRing(f"sqlite:///{tmp_path}/x.db", **{"slots": 3, **options})


def test_input_that_cannot_be(tmp_path: Path) -> None:
    anything: Any = TableRing(f"sqlite:///{tmp_path}/x.db", slots=3)
    with anything as ring:
        for wrong in ("text", 1, None, [b"x"]):
            with pytest.raises(TypeError, match="a message is bytes"):
                ring.push(wrong)
        for wrong in ("text", b"x", np.zeros(3, np.uint8), np.zeros((2, 2), np.int64), ["a"]):
            with pytest.raises(TypeError):
                ring.push_many(wrong)
        with pytest.raises(MessageTooLarge, match="301 bytes"):
            ring.push(b"x" * 301)
        with pytest.raises(MessageTooLarge, match="4 rows can never fit"):
            ring.push_many([b"x"] * 4)
        with pytest.raises(ValueError, match="at least one"):
            ring.push_many([])
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                ring.push(b"x", timeout=timeout)
        with pytest.raises(ValueError, match="limit"):
            ring.pop_many(0)
        assert ring.positions() == (0, {"main": 0})


def test_closed_handle_says_so(url: str) -> None:
    ring = TableRing(url, slots=2)
    ring.close()
    ring.close()
    refused(ring, "push pop table positions", Closed)
    assert "closed" in repr(ring)


def test_counters_of_a_forked_child_wait_for_no_lock(
    url: str, thread: RunThread, in_child: Callable[..., None]
) -> None:
    held, done = threading.Event(), threading.Event()
    with TableRing(url, slots=5) as ring:

        def use() -> None:
            with ring._use():
                held.set()
                assert done.wait(120)

        using = thread(use)
        assert held.wait(120)

        def child() -> None:
            signal.alarm(60)
            with pytest.raises(ForkedHandle):
                ring.stats()

        in_child(child)
        done.set()
        using.outcome()


def test_forked_child_is_told_to_attach_again(url: str, in_child: Callable[..., None]) -> None:
    with TableRing(url, slots=2) as ring:

        def child() -> None:
            ring.close()
            with pytest.raises(ForkedHandle):
                ring.push(b"from the child")

        in_child(child)
        assert ring.push(b"x") == 0
        assert ring.pop() == b"x"


@pytest.mark.parametrize("scattered", [False, True])
def test_place_is_a_bijection_for_every_size(scattered: bool) -> None:
    for slots in itertools.chain(range(1, 400), (1000, 1024, 4095, 4096, 9973, 30030)):
        layout = Layout(slots, stride_for(slots, scattered=scattered))
        assert sorted(map(layout.slot_of, range(slots))) == list(range(slots)), slots


def test_place_repeats_after_a_lap_however_far() -> None:
    layout = Layout(1000, stride_for(1000, scattered=True))
    assert [layout.slot_of(n) for n in range(1000)] == [
        layout.slot_of(n + 10**15) for n in range(1000)
    ]


def test_scattered_neighbours_lie_far_apart() -> None:
    layout = Layout(100_000, stride_for(100_000, scattered=True))
    for run in range(0, 100_000, 9973):
        ten = sorted(layout.slot_of(run + k) for k in range(10))
        assert min(b - a for a, b in itertools.pairwise(ten)) > 5000


def test_largest_ring_does_not_overflow_a_bigint() -> None:
    stride = stride_for(MAX_SLOTS, scattered=True)
    assert (MAX_SLOTS - 1) * stride < 2**63


@pytest.mark.parametrize("slots", [1, 2, 3, 10, 997, 1000, MAX_SLOTS])
def test_database_and_python_agree_on_the_place(url: str, slots: int) -> None:
    layout = Layout(slots, stride_for(slots, scattered=True))
    numbers = [0, 1, 2, slots - 1, slots, slots + 1, 10**15 + 7, 2**62]
    queries = [f"SELECT {layout.slot_sql(f'(CAST({n} AS BIGINT) + 0)')}" for n in numbers]
    found = [execute(url, query)[0] for query in queries]
    assert found == [layout.slot_of(n) for n in numbers]


def test_scattered_ring_keeps_its_mapping_for_everybody(url: str) -> None:
    with TableRing(url, slots=100, scattered=True) as ring:
        ring.push_many([b"%d" % n for n in range(30)])
        with TableRing.attach(url) as other:
            assert other.layout == ring.layout == Layout(100, 11)
            shown = zip(
                other.table()["slot"].to_pylist(),
                other.table()["message_id"].to_pylist(),
                strict=True,
            )
            assert {n: slot for slot, n in shown if n is not None} == {
                n: ring.layout.slot_of(n) for n in range(30)
            }


def test_lost_rows_are_damage_not_a_full_ring(url: str) -> None:
    with TableRing(url, slots=2) as ring:
        ring.push(b"x")
        execute(url, "DELETE FROM shmring WHERE slot = 1")
        with pytest.raises(Damaged, match="lost a row"):
            ring.push(b"y")
        execute(url, "UPDATE shmring SET message_id = 5")
        with pytest.raises(Damaged, match="message 0 should be in slot 0, which holds 5"):
            ring.pop()


def test_meddled_layout_is_refused(url: str) -> None:
    TableRing(url, slots=10).close()
    execute(url, "UPDATE shmring_ring SET stride = 5")
    with pytest.raises(Damaged, match="stride 5"):
        TableRing.attach(url)
    execute(url, "UPDATE shmring_ring SET layout = 9")
    with pytest.raises(VersionMismatch, match="layout 9"):
        TableRing.attach(url)


def test_ring_of_an_earlier_version_is_refused_before_its_columns_are_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ring.db"
    TableRing(url, slots=10).close()
    execute(url, "ALTER TABLE shmring_subscribers DROP COLUMN epoch")
    execute(url, "UPDATE shmring_ring SET layout = 1")
    for ring in (TableRing.attach, TableRing):
        with pytest.raises(VersionMismatch, match="has layout 1, this version knows 2; empty"):
            ring(url)
    TableRing.drop(url)
    TableRing(url, slots=10).close()


def test_foreign_reference_count_is_refused_and_publishes_nothing(url: str) -> None:
    # The last slot of the run is free, one before it says that it is not.
    with TableRing(url, name="meddled", slots=4) as ring:
        execute(url, "UPDATE meddled SET reference_count = 1 WHERE slot = 1")
        with pytest.raises(Damaged, match="1 subscribers hold the message, and names 0"):
            ring.push_many([b"0", b"1", b"2"], timeout=0)
        assert ring.positions() == (0, {"main": 0})
        assert ring.push(b"0") == 0
        with pytest.raises(Damaged, match="slot of number 1"):
            ring.push(b"1")
        execute(url, "UPDATE meddled SET reference_count = 3 WHERE slot = 0")
        assert ring.pop() == b"0"
        execute(url, "UPDATE meddled SET reference_count = 0, holders = 4 WHERE slot = 1")
        with pytest.raises(Damaged, match="holders 0x4, the ring's are 0x1"):
            ring.push(b"1")


def test_lock_that_somebody_keeps_is_contended(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmring.table_ring.backend.Backend.lock_seconds", 0.05)
    with TableRing(url, slots=2) as ring:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.begin() as stranger:
            postgresql = url.startswith("postgresql")
            locked = "LOCK TABLE shmring" if postgresql else "UPDATE shmring SET time = time"
            stranger.execute(sa.text(locked))
            with pytest.raises(Contended, match="nothing was pushed"):
                ring.push(b"x", timeout=0)
        assert ring.push(b"x", timeout=0) == 0
