"""How a TableRing is made, opened and closed, and what it refuses to be given."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import RunThread

from shmring.errors import Closed, Empty, ForkedHandle, MessageTooLarge, RingExists, RingNotFound
from shmring.table_ring import TableRing
from shmring.table_ring.sqlite import SqliteBackend


@pytest.fixture
def url(either: str) -> str:
    return either


def without(package: str, code: str) -> str:
    """What a program says, in an interpreter that lacks a package."""
    program = f"import sys; sys.modules[{package!r}] = None\n{code}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


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
        with ring.claim() as claim:
            assert list(claim) == [b"3"]
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
    for call in (lambda: ring.push(b"x"), ring.pop, ring.table, ring.positions):
        with pytest.raises(Closed):
            call()
    assert "closed" in repr(ring)


def test_forked_child_is_told_to_attach_again(url: str, in_child: Callable[..., None]) -> None:
    with TableRing(url, slots=2) as ring:

        def child() -> None:
            ring.close()
            with pytest.raises(ForkedHandle):
                ring.push(b"from the child")

        in_child(child)
        assert ring.push(b"x") == 0
        assert ring.pop() == b"x"
