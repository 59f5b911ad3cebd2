"""Subscribers that leave, and rings that are dropped, beside those who attach, look and change."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_types import RunThread, Until
from postgres import Postgres, connect
from statements import execute

from shmring.errors import RingNotFound
from shmring.table_ring import SubscriberNotFound, TableRing
from shmring.table_ring.postgresql import PostgresBackend

WAITING = "SELECT pid FROM pg_locks WHERE NOT granted"
LEFT = (
    "SELECT relname FROM pg_class WHERE relname ~ '^shmring'"
    " UNION ALL SELECT proname FROM pg_proc WHERE proname ~ '^shmring'"
)


def pop(holder: int) -> bytes:
    sequence = f"'shmring_pop_{holder}'::regclass"
    return f"SELECT shmring_pop_one({holder}, {1 << holder}, {sequence}, 0)".encode()


@pytest.mark.parametrize("heir", [False, True])
def test_subscriber_that_leaves_while_a_handle_attaches(
    url: str, monkeypatch: pytest.MonkeyPatch, heir: bool
) -> None:
    serve = PostgresBackend.serve

    def late(self: PostgresBackend, subscriber: str, holder: int) -> bool:
        monkeypatch.undo()
        ring.unsubscribe(subscriber)
        if heir:
            ring.subscribe("heir")  # gets the bit
            ring.push(b"0")
        return serve(self, subscriber, holder)

    with TableRing(url, slots=5, subscribers=["main", "other"]) as ring:
        monkeypatch.setattr(PostgresBackend, "serve", late)
        with pytest.raises(SubscriberNotFound, match="has no subscriber 'other'"):
            TableRing.attach(url, subscriber="other")
        if heir:
            with TableRing.attach(url, subscriber="heir") as mine:
                assert mine.pop(timeout=0) == b"0"


def test_handle_that_names_no_subscriber_gets_one_that_stays(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = PostgresBackend.serve

    def late(self: PostgresBackend, subscriber: str, holder: int) -> bool:
        monkeypatch.undo()
        ring.unsubscribe(subscriber)
        return serve(self, subscriber, holder)

    with TableRing(url, slots=5, subscribers=["main", "other"]) as ring:
        monkeypatch.setattr(PostgresBackend, "serve", late)
        with TableRing.attach(url) as attached:
            assert attached.subscriber == "other"


def test_positions_while_a_removal_waits_keep_nobody_from_pushing(
    clean: Postgres, thread: RunThread, until: Until
) -> None:
    url = clean.url
    with (
        TableRing(url, slots=5, subscribers=["a", "b"]) as ring,
        TableRing.attach(url) as pushing,
        TableRing.attach(url) as asking,
        connect(clean) as user,
    ):
        pushing.push_many([b"0", b"1"])
        user.execute("BEGIN")
        user.execute(pop(0))
        user.execute("ROLLBACK")  # a look has to repair this cursor
        with user.transaction():
            assert user.execute(pop(1)).fetchone() == (b"0",)
            leaving = thread(ring.unsubscribe, "b")
            until(lambda: len(execute(url, WAITING)) == 1)
            asked = thread(asking.positions)
            until(lambda: len(execute(url, WAITING)) == 2)
            assert thread(pushing.push, b"2").outcome() == 2
        leaving.outcome()
        assert asked.outcome()[1] == {"a": 0}


def test_positions_while_all_subscribers_are_replaced(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = PostgresBackend._cursors

    def early(self: PostgresBackend) -> dict[tuple[str, int], int | None]:
        monkeypatch.undo()
        found = cursors(self)
        other.subscribe("new")
        other.unsubscribe("old")
        return found

    with (
        TableRing(url, slots=5, subscribers=["old"]) as ring,
        TableRing.attach(url) as other,
    ):
        ring.push(b"0")
        monkeypatch.setattr(PostgresBackend, "_cursors", early)
        assert ring.positions() == (1, {"new": 1})


def test_handle_that_attaches_after_a_crash_and_deadlocks_tries_again(
    clean: Postgres, thread: RunThread, until: Until
) -> None:
    # Of the two only the one that attaches looks for deadlocks.
    patient, hasty = (f"{clean.url}&options=-cdeadlock_timeout%3D{t}" for t in ("1h", "1ms"))
    with (
        TableRing(patient, slots=5, unlogged=True, subscribers=["a", "b"]) as ring,
        connect(clean) as session,
    ):
        ring.push(b"0")
        session.execute("TRUNCATE shmring, shmring_claims")  # as a crash does
        with session.transaction():
            session.execute("LOCK TABLE shmring IN ROW EXCLUSIVE MODE")
            attaching = thread(TableRing.attach, hasty)
            until(lambda: len(execute(clean.url, WAITING)) == 1)
            leaving = thread(ring.unsubscribe, "b")
            until(lambda: len(execute(clean.url, WAITING)) == 2)
        with attaching.outcome() as attached:
            leaving.outcome()
            assert attached.push(b"1") == 1
            assert ring.pop(timeout=0) == b"1"


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("table", ["shmring_ring", "shmring_subscribers"])
def test_ring_that_is_dropped_while_a_handle_attaches(
    clean: Postgres, thread: RunThread, until: Until, table: str, made_again: bool
) -> None:
    url = clean.url
    TableRing.create(url, slots=5).close()
    with connect(clean) as session:
        with session.transaction():
            session.execute(f"LOCK TABLE {table}".encode())
            dropping = thread(TableRing.drop, url)
            until(lambda: len(execute(url, WAITING)) == 1)
            attaching = thread(lambda: TableRing(url, slots=5 if made_again else None))
            until(lambda: len(execute(url, WAITING)) == 2)
        dropping.outcome()
    if made_again and table == "shmring_ring":
        with attaching.outcome() as ring:
            assert ring.push(b"0") == 0
    else:
        with pytest.raises(RingNotFound):
            attaching.outcome()


@pytest.mark.parametrize("change", ["subscribe", "unsubscribe"])
def test_ring_that_is_dropped_while_its_subscribers_change(
    url: str, monkeypatch: pytest.MonkeyPatch, thread: RunThread, until: Until, change: str
) -> None:
    tell = PostgresBackend._tell
    dropping: list[Any] = []

    def late(self: PostgresBackend, connection: Any) -> None:
        tell(self, connection)
        dropping.append(thread(TableRing.drop, url))
        until(lambda: execute(url, WAITING))

    with TableRing(url, slots=5, subscribers=["main", "b"]) as ring:
        monkeypatch.setattr(PostgresBackend, "_tell", late)
        getattr(ring, change)("b" if change == "unsubscribe" else "c")
        dropping[0].outcome()
    assert execute(url, LEFT) == []
