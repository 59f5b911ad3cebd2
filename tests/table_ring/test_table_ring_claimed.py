"""Claims beside pops that stall, sessions that die, and subscribers that are removed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import psycopg
import pytest
from fixture_types import RunThread, Until
from postgres import Postgres, connect
from statements import execute

from shmring.errors import Empty
from shmring.table_ring import SubscriberDropped, TableRing

GATE = 77
# A session whose path begins with `stalling` has looked for a message, and goes on to its number
# when the gate opens.
STALLING = (
    "CREATE SCHEMA stalling",
    f"""
    CREATE FUNCTION stalling.pg_try_advisory_xact_lock_shared(ring integer, which integer)
    RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_catalog.pg_advisory_lock({GATE}), pg_catalog.pg_advisory_unlock({GATE});
        RETURN pg_catalog.pg_try_advisory_xact_lock_shared(ring, which);
    END $$""",
)
STALLED = b"SELECT count(*) FROM pg_locks WHERE objid = %d AND NOT granted" % GATE
WAITING = b"SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
ME = "0, 'shmring_pop_0'::regclass"
POP = "SELECT public.shmring_pop_one(0, 1, 'public.shmring_pop_0'::regclass, 0)"
# As a handle pops that has just seen no claims.
POP_UNCLAIMED = POP.replace(", 0)", ", 0, false)")


@pytest.fixture(scope="module", autouse=True)
def _stalling(server: Postgres) -> Generator[None]:
    execute(server.url, *STALLING)
    yield
    execute(server.url, "DROP SCHEMA stalling CASCADE")


@pytest.fixture
def ring(server: Postgres) -> Generator[TableRing]:
    with TableRing.create(server.url, slots=5, subscribers=["main", "audit"]) as made:
        yield made
    TableRing.drop(server.url)


def value(session: psycopg.Connection[Any], query: str) -> Any:
    found = session.execute(query.encode()).fetchone()
    assert found is not None
    return found[0]


class GivenUp(Exception):
    """What some claims end with."""


@contextlib.contextmanager
def given_up() -> Generator[None]:
    with pytest.raises(GivenUp):
        yield


def rest(ring: TableRing) -> list[bytes]:
    """Pop one by one until a handle that has just come, and so searches everything, finds none."""
    found: list[bytes] = []
    with TableRing.attach(ring.url) as late, contextlib.suppress(Empty):
        while True:
            found.append(late.pop(timeout=0))
    return found


def test_pop_whose_subscriber_claims_before_its_number_gets_the_next_message(
    server: Postgres, ring: TableRing, thread: RunThread, until: Until
) -> None:
    ring.push_many([b"0", b"1", b"2"])
    with connect(server) as gate, connect(server) as late:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        late.execute("SET search_path = stalling, pg_catalog, public")
        popping = thread(value, late, POP_UNCLAIMED)
        until(lambda: gate.execute(STALLED).fetchone() == (1,))
        with given_up(), ring.claim(1) as claim:
            assert list(claim) == [b"0"]
            gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
            assert popping.outcome() == b"1"
            raise GivenUp
    assert rest(ring) == [b"0", b"2"]


STEPS = {
    "claimed": [f"SELECT shmring_claim({ME}, 2)"],
    "undone": ["BEGIN", f"SELECT shmring_claim({ME}, 2)"],
    "opened": [f"SELECT shmring_claim({ME}, 2)", "BEGIN", f"SELECT * FROM shmring_open({ME}, 2)"],
    "settled": [
        f"SELECT shmring_claim({ME}, 2)",
        "BEGIN",
        f"SELECT shmring_settle(0, o.claim, o.message_id) FROM shmring_open({ME}, 1) o",
    ],
    "taken over": [f"SELECT shmring_claim({ME}, 2)", "BEGIN", POP],
    "all taken over": [f"SELECT shmring_claim({ME}, 2)", "BEGIN", POP, POP, POP],
}


@pytest.mark.parametrize("step", STEPS)
def test_session_that_ends_in_a_claim_leaves_all_messages_to_others(
    server: Postgres, ring: TableRing, step: str
) -> None:
    for _ in range(2):  # the second time in the next lap
        ring.push_many([b"0", b"1", b"2"])
        with connect(server) as admin, connect(server) as dying:
            for statement in STEPS[step]:
                dying.execute(statement.encode())
            pid = dying.info.backend_pid
            assert value(admin, f"SELECT pg_terminate_backend({pid}, 60000)")
            assert sorted(rest(ring)) == [b"0", b"1", b"2"]
            assert rest(ring) == []
        with TableRing.attach(ring.url, subscriber="audit") as audit:
            assert audit.pop_many(timeout=0) == [b"0", b"1", b"2"]


def test_claims_of_a_subscriber_that_was_removed_are_not_its_successors(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many([b"0", b"1"])
    with given_up(), ring.claim(1):
        raise GivenUp
    with TableRing.attach(ring.url, subscriber="audit") as audit:
        audit.unsubscribe("main")
        audit.subscribe("main")
        assert audit.pop_many() == [b"0", b"1"]
        ring.push(b"2")
        assert rest(ring) == [b"2"]


@pytest.mark.parametrize("late", [False, True])
def test_handle_of_a_removed_subscriber_opens_no_claim_of_its_successor(
    ring: TableRing, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def replace() -> None:
        monkeypatch.undo()
        with TableRing.attach(ring.url, subscriber="audit") as audit:
            audit.unsubscribe("main")
            audit.subscribe("heir")  # gets the bit
            audit.push(b"1")
        with TableRing.attach(ring.url, subscriber="heir") as heir, given_up(), heir.claim():
            raise GivenUp

    backend = ring._turns._backend
    begin = backend._begin
    ring.push(b"0")
    if late:  # the claim is made, and is opened next
        monkeypatch.setattr(backend, "_begin", lambda: (replace(), begin()))
    else:
        replace()
    with pytest.raises(SubscriberDropped), ring.claim(timeout=0):
        pass
    with TableRing.attach(ring.url, subscriber="heir") as heir:
        assert heir.pop(timeout=0) == b"1"


def test_unsubscribing_waits_for_a_pop_that_goes_on_to_its_number(
    server: Postgres, ring: TableRing, thread: RunThread, until: Until
) -> None:
    ring.push(b"0")
    # Of the two only the pop looks for deadlocks.
    leaving = TableRing.attach(f"{server.url}&options=-cdeadlock_timeout%3D1h", subscriber="audit")
    with connect(server) as gate, connect(server) as late, leaving:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        late.execute("SET deadlock_timeout = '1ms'")
        late.execute("SET search_path = stalling, pg_catalog, public")
        popping = thread(value, late, POP_UNCLAIMED)
        until(lambda: gate.execute(STALLED).fetchone() == (1,))
        removing = thread(leaving.unsubscribe, "main")
        until(lambda: gate.execute(WAITING).fetchone() == (1,))
        gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
        assert popping.outcome() == b"0"
        removing.outcome()
