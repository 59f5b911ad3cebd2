"""The bit of a subscriber's sequence that makes pops read the table of claims.

The rule: while a claim of the subscriber is committed, the bit is set.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from postgres import Postgres, connect, postgres

from shmring.errors import Contended, Empty
from shmring.table_ring import TableRing, functions
from shmring.table_ring.errors import SubscriberDropped
from shmring.table_ring.schema import Layout

GATE = 77
# A session whose path begins with `stalling` has looked for a message, and goes on to its number
# when the gate opens.
STALLING = f"""
    CREATE SCHEMA stalling;
    CREATE FUNCTION stalling.pg_try_advisory_xact_lock_shared(ring integer, which integer)
    RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_catalog.pg_advisory_lock({GATE}), pg_catalog.pg_advisory_unlock({GATE});
        RETURN pg_catalog.pg_try_advisory_xact_lock_shared(ring, which);
    END $$"""
STALLED = b"SELECT count(*) FROM pg_locks WHERE objid = %d AND NOT granted" % GATE
WAITING = b"SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
ME = "0, 'shmring_pop_0'::regclass"
POP = "SELECT public.shmring_pop_one(0, 1, 'public.shmring_pop_0'::regclass, 0)"
ASKED = "SELECT pg_sequence_last_value('shmring_pop_0') >> 62"


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres({"fsync": "off"}) as running, connect(running) as session:  # no crash here
        session.execute(STALLING.encode())
        yield running


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


def check_rule(session: psycopg.Connection[Any]) -> None:
    claims = value(session, "SELECT count(*) FROM shmring_claims")
    assert not claims or value(session, ASKED) == 1


def rest(ring: TableRing) -> list[bytes]:
    """Pop one by one until a handle that has just come, and so searches everything, finds none."""
    found: list[bytes] = []
    with TableRing.attach(ring.url) as late, contextlib.suppress(Empty):
        while True:
            found.append(late.pop(timeout=0))
    return found


def test_pop_whose_subscriber_claims_before_its_number_gets_the_next_message(
    server: Postgres, ring: TableRing, thread: Callable[..., Any], until: Callable[..., None]
) -> None:
    ring.push_many([b"0", b"1", b"2"])
    with connect(server) as gate, connect(server) as late:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        late.execute("SET search_path = stalling, pg_catalog, public")
        popping = thread(value, late, POP)
        until(lambda: gate.execute(STALLED).fetchone() == (1,))
        with given_up(), ring.claim(1) as claim:
            assert list(claim) == [b"0"]
            gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
            assert popping.outcome() == b"1"
            raise GivenUp
        assert value(gate, ASKED) == 1
    assert rest(ring) == [b"0", b"2"]


def test_pop_beside_a_claim_that_is_not_committed_yet_keeps_the_bit(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many([b"0", b"1"])
    with connect(server) as claiming, connect(server) as popping:
        with claiming.transaction():
            assert value(claiming, f"SELECT shmring_claim({ME}, 2)")
            assert value(popping, POP) is None
        check_rule(popping)
        assert [value(popping, POP) for _ in range(2)] == [b"0", b"1"]


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
            check_rule(admin)
            assert sorted(rest(ring)) == [b"0", b"1", b"2"]
            assert rest(ring) == []
            assert value(admin, ASKED) == 0
        with TableRing.attach(ring.url, subscriber="audit") as audit:
            assert audit.pop_many(timeout=0) == [b"0", b"1", b"2"]


def test_claims_of_a_subscriber_that_was_removed_are_not_its_successors(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many([b"0", b"1"])
    with given_up(), ring.claim(1):
        raise GivenUp
    with connect(server) as session, TableRing.attach(ring.url, subscriber="audit") as audit:
        audit.unsubscribe("main")
        audit.subscribe("main")
        assert value(session, ASKED) == 0
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
    server: Postgres, ring: TableRing, thread: Callable[..., Any], until: Callable[..., None]
) -> None:
    ring.push(b"0")
    # Of the two only the pop looks for deadlocks.
    leaving = TableRing.attach(f"{server.url}&options=-cdeadlock_timeout%3D1h", subscriber="audit")
    with connect(server) as gate, connect(server) as late, leaving:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        late.execute("SET deadlock_timeout = '1ms'")
        late.execute("SET search_path = stalling, pg_catalog, public")
        popping = thread(value, late, POP)
        until(lambda: gate.execute(STALLED).fetchone() == (1,))
        removing = thread(leaving.unsubscribe, "main")
        until(lambda: gate.execute(WAITING).fetchone() == (1,))
        gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
        assert popping.outcome() == b"0"
        removing.outcome()


def test_claims_that_functions_of_another_version_left_are_found(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many([b"0", b"1"])
    with connect(server) as session:
        value(session, f"SELECT shmring_claim({ME}, 1)")
        value(session, "SELECT setval('shmring_pop_0', 1)")  # as versions below 10 had it
        TableRing.renew(server.url)
        assert rest(ring) == [b"0", b"1"]


def test_bit_is_set_beside_every_claim_whatever_sessions_do(
    server: Postgres, ring: TableRing, thread: Callable[..., Any], patience: float
) -> None:
    """Sessions pop, claim, give up and are ended, in a ring of five slots."""
    count = 400
    popped: list[bytes] = []
    ended: list[int] = []
    done = threading.Event()
    ring.unsubscribe("audit")

    def pop(mine: TableRing, rng: random.Random) -> None:
        most = rng.choice((1, 3))
        way = rng.choice(("one", "many", "claim", "give up"))
        if way == "one":
            popped.append(mine.pop(timeout=0.02))
        elif way == "many":
            popped.extend(mine.pop_many(most, timeout=0.02))
        else:
            with mine.claim(most, timeout=0.02) as claim:
                if way == "give up":
                    raise GivenUp
            popped.extend(claim)

    def consume(seed: int) -> None:
        rng = random.Random(seed)
        while not done.is_set():
            # What the session that was ended had popped is lost, or is there again.
            with contextlib.suppress(sa.exc.DBAPIError, Contended):
                url = f"{server.url}&application_name=victim"
                with TableRing.attach(url, durability="delayed") as mine:
                    while not done.is_set():
                        with contextlib.suppress(Empty, GivenUp):
                            pop(mine, rng)

    key = functions.Parts("shmring", "public", Layout(5, 1)).key
    victim = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'victim'"
        " ORDER BY random() LIMIT 1"
    )
    consumers = [thread(consume, seed) for seed in range(4)]
    with connect(server) as session:
        for n in range(count):
            ring.push(b"%d" % n, timeout=patience)
            with session.transaction():
                for lock in (functions.RUNS, 0):
                    session.execute(b"SELECT pg_advisory_xact_lock(%d, %d)" % (key, lock))
                check_rule(session)
            if n % 20 == 19:
                ended.append(value(session, victim))
                value(session, f"SELECT pg_terminate_backend({ended[-1]}, 60000)")
        done.set()
    for consumer in consumers:
        consumer.outcome()
    popped += rest(ring)
    assert len(set(popped)) == len(popped)
    assert count - 3 * len(ended) <= len(popped) <= count
    assert set(ring.table()["reference_count"].to_pylist()) == {0}
    assert ring.positions() == (count, {"main": count})
