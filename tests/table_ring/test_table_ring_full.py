"""The mark of the pushes' sequence that makes pops look for sessions that wait for a slot.

The rule: while a session waits and is told, the sequence is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

import pytest
from postgres import Postgres, connect
from statements import execute

from shmring.errors import Full
from shmring.table_ring import TableRing, functions
from shmring.table_ring.backend import Peek, Which
from shmring.table_ring.functions import pop
from shmring.table_ring.functions.parts import FULL, Parts
from shmring.table_ring.postgresql import PostgresBackend
from shmring.table_ring.schema import Layout

if TYPE_CHECKING:
    from psycopg import Connection

SLOTS = 3
MARKED = "SELECT pg_sequence_last_value('shmring_push') < 0"


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
    """A full ring, which a push has found full."""
    ring.push_many([b"0", b"1", b"2"])
    with pytest.raises(Full):
        ring.push(b"more", timeout=0)
    assert marked(ring)
    return ring


@pytest.fixture
def waiting(
    server: Postgres, ring: TableRing, patience: float
) -> Generator[Callable[[], list[str]]]:
    """Wait for a slot as a handle does; what is returned waits to be told, and says by whom."""
    with connect(server) as session:
        session.execute("LISTEN shmring")
        key = Parts("shmring", "public", Layout(SLOTS, 1)).key
        session.execute(b"SELECT pg_advisory_lock(%d, %d)" % (key, functions.AWAIT_SLOT))

        def told() -> list[str]:
            return [n.channel for n in session.notifies(timeout=patience, stop_after=1)]

        yield told


def marked(ring: TableRing) -> bool:
    return execute(ring.url, MARKED)[0]


@pytest.mark.parametrize("take", POPS)
def test_pop_tells_a_session_that_waits(
    filled: TableRing, waiting: Callable[[], list[str]], take: Callable[[TableRing], bytes]
) -> None:
    for data in (b"0", b"1", b"2"):
        assert take(filled) == data
        assert waiting() == ["shmring"]
    assert marked(filled)


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


@pytest.mark.parametrize("rows", [[b"3"], [b"3", b"4"]])
def test_mark_stays_while_a_session_waits_whoever_pushes_or_looks(
    filled: TableRing, waiting: Callable[[], list[str]], rows: list[bytes]
) -> None:
    assert filled.pop_many(2) == [b"0", b"1"]
    assert waiting() == ["shmring"]
    assert filled.push_many(rows, timeout=0) == 3
    assert marked(filled)
    assert filled.pop(timeout=0) == b"2"
    assert waiting() == ["shmring"]
    assert filled.positions() == (3 + len(rows), {"main": 3})
    assert marked(filled)
    assert filled.pop_many(timeout=0) == rows


def test_pop_ends_the_mark_when_nobody_waits(filled: TableRing) -> None:
    assert filled.pop(timeout=0) == b"0"
    assert not marked(filled)
    assert filled.pop_many(timeout=0) == [b"1", b"2"]
    assert filled.positions() == (3, {"main": 3})


@pytest.mark.parametrize("rows", [[b"3"], [b"3", b"4"]])
def test_push_ends_the_mark_when_nobody_waits(filled: TableRing, rows: list[bytes]) -> None:
    assert filled.pop_many(2) == [b"0", b"1"]
    assert marked(filled)  # a run of pops does not read it
    assert filled.push_many(rows, timeout=0) == 3
    assert not marked(filled)
    assert filled.pop_many() == [b"2", *rows]


def test_look_that_finds_room_ends_the_mark(filled: TableRing) -> None:
    assert filled.pop_many(1) == [b"0"]
    assert filled.positions() == (3, {"main": 1})
    assert not marked(filled)


def test_number_of_a_marked_sequence_fits_no_slot(ring: TableRing) -> None:
    """Slot 0 is free and has held no number, as after a push that was undone."""
    free = "UPDATE shmring SET message_id = NULL, reference_count = 0, holders = 0"
    for number in range(SLOTS):
        mark = f"SELECT setval('shmring_push', {number} | ({FULL}))"
        push = "SELECT shmring_push_one('x', 0, 0)"
        held = "SELECT message_id FROM shmring WHERE message_id IS NOT NULL"
        assert execute(ring.url, free, mark, push) == [number]
        assert execute(ring.url, held) == [number]


def test_ring_of_a_version_without_the_mark_is_renewed(ring: TableRing) -> None:
    execute(ring.url, "ALTER SEQUENCE shmring_push MINVALUE 0")
    TableRing.renew(ring.url)
    ring.push_many([b"0", b"1", b"2"])
    with pytest.raises(Full):
        ring.push(b"more", timeout=0)
    assert marked(ring)
    assert ring.pop_many() == [b"0", b"1", b"2"]


def test_pop_as_the_only_subscriber_leaves_the_message_for_others(
    server: Postgres, ring: TableRing
) -> None:
    """A session may execute the function of before, while another one subscribes."""
    ring.push(b"0")
    ring.subscribe("audit")
    ring.push(b"1")
    before = pop.pop_one(Parts("shmring", "public", Layout(SLOTS, 1)), 1)
    with connect(server) as session:
        session.execute(before.encode())
    with TableRing.attach(ring.url, subscriber="audit") as audit:
        assert [ring.pop(timeout=0) for _ in range(2)] == [b"0", b"1"]
        held = "SELECT format('%s %s', reference_count, holders) FROM shmring ORDER BY slot"
        assert execute(ring.url, held)[:2] == ["0 0", "1 2"]
        assert audit.pop(timeout=0) == b"1"
    assert ring.push_many([b"2", b"3", b"4"], timeout=0) == 2


def test_notification_during_a_look_is_not_lost(
    filled: TableRing,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., None],
    patience: float,
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
