"""Pops tell the sessions that wait for a slot."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

import pytest
from fixture_types import Until
from postgres import Postgres, connect

from shmring.table_ring import TableRing, postgres_ring
from shmring.table_ring.backend import Peek, Which
from shmring.table_ring.postgresql import PostgresBackend

if TYPE_CHECKING:
    from psycopg import Connection

SLOTS = 3


def pop_one(ring: TableRing) -> bytes:
    return ring.pop(timeout=0)


def pop_run(ring: TableRing) -> bytes:
    return ring.pop_many(1, timeout=0)[0]


def pop_claim(ring: TableRing) -> bytes:
    with ring.claim(1, timeout=0) as claim:
        return claim[0]


POPS = [pop_one, pop_run, pop_claim]


@pytest.fixture
def ring(server: Postgres) -> Generator[TableRing]:
    with TableRing.create(server.url, slots=SLOTS) as made:
        yield made
    TableRing.drop(server.url)


@pytest.fixture
def filled(ring: TableRing) -> TableRing:
    """A full ring."""
    ring.push_many([b"0", b"1", b"2"])
    return ring


@pytest.fixture
def waiting(
    server: Postgres, ring: TableRing, patience: float
) -> Generator[Callable[[], list[str]]]:
    """Wait for a slot as a handle does; what is returned waits to be told, and says by whom."""
    with connect(server) as session:
        session.execute("LISTEN shmring")
        key = postgres_ring.lock_key("public.shmring")
        session.execute(b"SELECT pg_advisory_lock(%d, %d)" % (key, postgres_ring.AWAIT_SLOT))

        def told() -> list[str]:
            return [n.channel for n in session.notifies(timeout=patience, stop_after=1)]

        yield told


@pytest.mark.parametrize("take", POPS)
def test_pop_tells_a_session_that_waits(
    filled: TableRing, waiting: Callable[[], list[str]], take: Callable[[TableRing], bytes]
) -> None:
    for data in (b"0", b"1", b"2"):
        assert take(filled) == data
        assert waiting() == ["shmring"]


def test_each_subscriber_s_pop_tells_a_session_that_waits(
    filled: TableRing, waiting: Callable[[], list[str]]
) -> None:
    filled.subscribe("audit")
    assert filled.pop(timeout=0) == b"0"
    assert waiting() == ["shmring"]
    filled.push(b"3")
    with TableRing.attach(filled.url, subscriber="audit") as audit:
        assert audit.pop(timeout=0) == b"3"
        assert waiting() == ["shmring"]


def test_notification_during_a_look_is_not_lost(
    filled: TableRing, monkeypatch: pytest.MonkeyPatch, until: Until, patience: float
) -> None:
    """The answer of a look may bring the notification of a pop that the look did not see."""
    told: list[str] = []
    look = PostgresBackend.peek
    looks = 0

    def peek(self: PostgresBackend, which: Which, ahead: int = 0, whole: bool = False) -> Peek:
        nonlocal looks
        found = look(self, which, ahead, whole)
        looks += 1
        if looks == 2:  # the handle listens by now
            assert popping.pop(timeout=0) == b"0"
            driver = cast("Connection[Any]", self.connection.connection.driver_connection)
            driver.add_notify_handler(lambda notify: told.append(notify.channel))
            until(lambda: driver.execute("SELECT 1") and told, "the notification")
        return found

    with TableRing.attach(filled.url) as popping:
        monkeypatch.setattr(PostgresBackend, "peek", peek)
        monkeypatch.setattr("select.poll", None)
        assert filled.push(b"3", timeout=patience) == 3
    assert told == ["shmring"]
