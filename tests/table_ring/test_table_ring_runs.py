"""Runs of numbers on PostgreSQL while another transaction is in the middle of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import psycopg
import pytest
from fixture_types import Until
from postgres import Postgres, connect
from statements import execute

from shmring.errors import Empty, Full
from shmring.table_ring import TableRing

POPS = "0, 'shmring_pop_0'::regclass"


@pytest.fixture(params=[False, True], ids=["in a row", "scattered"])
def ring(request: pytest.FixtureRequest, server: Postgres) -> Generator[TableRing]:
    with TableRing.create(server.url, slots=20, scattered=request.param) as made:
        yield made
    TableRing.drop(server.url)


def rows(first: int, after: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, after)]


def push(connection: psycopg.Connection[Any], messages: list[bytes]) -> int:
    found = connection.execute("SELECT shmring_push_many(%b::bytea[], 0)", [messages]).fetchone()
    assert found is not None
    return found[0]


def pop(connection: psycopg.Connection[Any], most: int) -> list[bytes]:
    query = f"SELECT message FROM shmring_pop_many({POPS}, {most}, 0) ORDER BY message_id"
    return [data for (data,) in connection.execute(query.encode())]


def pop_each(connection: psycopg.Connection[Any], count: int) -> list[bytes]:
    query = (
        b"SELECT shmring_pop_one(0, 1, 'shmring_pop_0'::regclass, 0) FROM generate_series(1, %d)"
    )
    return [data for (data,) in connection.execute(query % count)]


def test_run_that_is_popped_ends_before_a_push_that_is_not_committed(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many(rows(0, 2))
    with connect(server, autocommit=False) as other, connect(server, autocommit=False) as popper:
        other.execute("SELECT shmring_push_one('2', 0, 0)")
        ring.push(b"3")
        assert pop(popper, 10) == rows(0, 2)
        assert pop(popper, 10) == []
        popper.commit()
        other.commit()
    assert ring.pop_many(timeout=0) == rows(2, 4)


def undo_below(server: Postgres, first: int, middle: int, after: int) -> None:
    """Pop all of a ring one by one in two transactions, and undo the earlier one."""
    with connect(server, autocommit=False) as other, connect(server, autocommit=False) as popper:
        assert pop_each(other, middle - first) == rows(first, middle)
        assert pop_each(popper, after - middle) == rows(middle, after)
        popper.commit()
        other.rollback()


def test_messages_that_are_undone_below_others_come_to_who_attaches_and_does_not_wait(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many(rows(0, 20))
    undo_below(server, 0, 5, 20)
    with pytest.raises(Full):
        ring.push(b"20", timeout=0)
    with TableRing.attach(server.url) as late:
        assert [late.pop(timeout=0) for _ in range(5)] == rows(0, 5)
    assert ring.push_many(rows(20, 40), timeout=0) == 20


def test_messages_that_are_undone_below_others_come_to_who_calls_often_and_does_not_wait(
    server: Postgres, ring: TableRing, until: Until
) -> None:
    found: list[bytes] = []

    def pop_now() -> bool:
        with contextlib.suppress(Empty):
            found.extend(ring.pop_many(timeout=0))
        return len(found) == 6

    ring.push_many(rows(0, 20))
    assert ring.pop(timeout=0) == b"0"
    undo_below(server, 1, 7, 20)
    until(pop_now)
    assert found == rows(1, 7)
    assert ring.push_many(rows(20, 40), timeout=0) == 20


def test_last_run_whose_popper_is_undone_is_the_next_again(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many(rows(0, 9))
    with connect(server, autocommit=False) as other:
        assert pop(other, 3) == rows(0, 3)
        other.rollback()
    assert ring.pop_many(timeout=0) == rows(0, 9)


def test_last_run_whose_pusher_is_undone_burns_no_number(server: Postgres, ring: TableRing) -> None:
    with connect(server, autocommit=False) as other:
        assert push(other, rows(0, 3)) == 0
        other.rollback()
    assert ring.positions()[0] == 0
    assert ring.push_many(rows(0, 3)) == 0


@pytest.mark.parametrize("one_by_one", [False, True])
def test_cursor_behind_its_slots_passes_over_what_was_popped(
    server: Postgres, ring: TableRing, one_by_one: bool
) -> None:
    ring.push_many(rows(0, 6))
    assert ring.pop_many(4) == rows(0, 4)
    # Logical replication copies rows, and no sequences.
    execute(server.url, "SELECT setval('shmring_pop_0', 0)")
    popped = [ring.pop(), ring.pop()] if one_by_one else ring.pop_many()
    assert popped == rows(4, 6)
    assert set(ring.table()["reference_count"].to_pylist()) == {0}
