"""Pushes and pops of single messages on PostgreSQL that stall, are lapped, and tell who waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

import pytest
from fixture_types import RunThread, Until
from postgres import Postgres, connect
from statements import execute

from shmring.errors import Contended, Empty, Full
from shmring.table_ring import TableRing, postgres_ring
from shmring.table_ring.backend import Peek, Which
from shmring.table_ring.postgresql import PostgresBackend

if TYPE_CHECKING:
    from psycopg import Connection


SLOTS = 3
# A session whose path begins with `stalling` gets a number, and no further until the gate opens.
# One whose path begins with `comparing` stalls at a comparison, which a pop makes when its message
# was not there.
GATE, COMPARING = 77, 78
STALLING = (
    "CREATE SCHEMA stalling",
    "CREATE SCHEMA comparing",
    f"""
    CREATE FUNCTION stalling.nextval(sequence regclass) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        number bigint := pg_catalog.nextval(sequence);
    BEGIN
        PERFORM pg_catalog.pg_advisory_lock({GATE}), pg_catalog.pg_advisory_unlock({GATE});
        RETURN number;
    END $$""",
    f"""
    CREATE FUNCTION comparing.not_less(a bigint, b bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_lock({COMPARING}), pg_advisory_unlock({COMPARING});
        RETURN a OPERATOR(pg_catalog.>=) b;
    END $$""",
    """
    CREATE OPERATOR comparing.>= (
        FUNCTION = comparing.not_less, LEFTARG = bigint, RIGHTARG = bigint)""",
)
STALLED = b"SELECT count(*) FROM pg_locks WHERE objid = %d AND NOT granted"


@pytest.fixture(scope="module", autouse=True)
def _stalling(server: Postgres) -> Generator[None]:
    execute(server.url, *STALLING)
    yield
    execute(server.url, "DROP SCHEMA stalling, comparing CASCADE")


@pytest.fixture
def ring(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Generator[TableRing]:
    # A check waits for a push that stalls until the test lets it go on.
    monkeypatch.setattr("shmring.table_ring.backend.Backend.lock_seconds", 600.0)
    with TableRing.create(server.url, slots=SLOTS) as made:
        # The next message has number 0 again; and the handle has looked, which a stalled push bars.
        with pytest.raises(Empty):
            made.pop(timeout=0)
        yield made
    TableRing.drop(server.url)


@pytest.fixture
def stalled(
    server: Postgres, thread: RunThread, until: Until
) -> Generator[Callable[[int], Callable[[], int | None]]]:
    """Begin a push that stalls with its number; what is returned lets it go on and ends it."""
    with connect(server) as gate, connect(server) as session:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        session.execute("SET search_path = stalling, pg_catalog, public")

        def push(timeout: int) -> int | None:
            query = b"SELECT public.shmring_push_one('late', 0, %d)" % timeout
            found = session.execute(query).fetchone()
            assert found is not None
            return found[0]

        def begin(timeout: int) -> Callable[[], int | None]:
            running = thread(push, timeout)
            until(lambda: gate.execute(STALLED % GATE).fetchone() == (1,))

            def end() -> int | None:
                gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
                return running.outcome()

            return end

        yield begin


def pop_all(ring: TableRing) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    with contextlib.suppress(Empty):
        while True:
            batch = ring.pop_batch(timeout=0)
            found += zip(batch["message_id"].to_pylist(), batch["message"].to_pylist(), strict=True)
    return found


def test_push_whose_slot_a_later_lap_has_filled_and_emptied_takes_another_number(
    server: Postgres, ring: TableRing, stalled: Any
) -> None:
    ring.subscribe("audit")
    with TableRing.attach(server.url, subscriber="audit") as audit:
        with pytest.raises(Empty):
            audit.pop(timeout=0)
        end = stalled(0)
        for n in range(1, SLOTS + 1):
            assert ring.push(b"%d" % n, timeout=0) == n
        passed = [b"%d" % n for n in range(1, SLOTS + 1)]
        assert [ring.pop(timeout=0) for _ in passed] == passed
        assert [audit.pop(timeout=0) for _ in passed] == passed
        assert end() == SLOTS + 1
        assert ring.push(b"last", timeout=0) == SLOTS + 2
        rest = [(SLOTS + 1, b"late"), (SLOTS + 2, b"last")]
        assert pop_all(ring) == pop_all(audit) == rest
        assert ring.positions() == (SLOTS + 3, {"main": SLOTS + 3, "audit": SLOTS + 3})


def test_push_whose_slot_a_later_lap_holds_does_not_wait_for_it(
    ring: TableRing, stalled: Any
) -> None:
    end = stalled(1 << 30)
    for n in range(1, SLOTS + 1):
        assert ring.push(b"%d" % n, timeout=0) == n
    # The slots of the next two numbers come free, that of the first never does.
    assert [ring.pop(timeout=0) for _ in range(2)] == [b"1", b"2"]
    assert end() == SLOTS + 1
    assert pop_all(ring) == [(SLOTS, b"3"), (SLOTS + 1, b"late")]


def test_push_that_was_lapped_in_a_full_ring_burns_no_more_numbers(
    ring: TableRing, stalled: Any
) -> None:
    end = stalled(0)
    for n in range(1, SLOTS + 1):
        assert ring.push(b"%d" % n, timeout=0) == n
    assert end() is None
    with pytest.raises(Full):
        ring.push(b"more", timeout=0)
    assert ring.positions()[0] == SLOTS + 1


def test_pop_whose_message_is_committed_while_it_looks_gets_it(
    server: Postgres, ring: TableRing, stalled: Any, thread: RunThread, until: Until
) -> None:
    end = stalled(0)
    with connect(server) as gate, connect(server) as session:
        session.execute("SET search_path = comparing, pg_catalog, public")

        def pop() -> Any:
            query = "SELECT public.shmring_pop_one(0, 1, 'public.shmring_pop_0'::regclass, 0)"
            return session.execute(query).fetchone()

        gate.execute(b"SELECT pg_advisory_lock(%d)" % COMPARING)
        popping = thread(pop)
        until(lambda: gate.execute(STALLED % COMPARING).fetchone() == (1,))
        assert end() == 0
        assert ring.push(b"next", timeout=0) == 1
        gate.execute(b"SELECT pg_advisory_unlock(%d)" % COMPARING)
        assert popping.outcome() == (b"late",)
    assert pop_all(ring) == [(1, b"next")]


def test_pop_that_gave_up_gets_the_message_before_later_ones(
    server: Postgres, ring: TableRing, stalled: Any, thread: RunThread, until: Until
) -> None:
    ring.push(b"first", timeout=0)
    assert ring.pop(timeout=0) == b"first"
    end = stalled(0)
    assert ring.push(b"next", timeout=0) == 2
    with connect(server) as watch:
        popping = thread(lambda: [ring.pop(timeout=0) for _ in range(2)])
        # It cannot know that the push will ever end, and waits for it as long as for any lock.
        until(lambda: watch.execute(STALLED % postgres_ring.PUSH).fetchone() == (1,))
        assert end() == 1
        assert popping.outcome() == [b"late", b"next"]


def test_pop_after_looks_that_failed_gets_the_message_before_later_ones(
    server: Postgres, ring: TableRing, stalled: Any
) -> None:
    end = stalled(0)
    assert ring.push(b"next", timeout=0) == 1
    ring._backend._run("SET lock_timeout = 1")
    with pytest.raises(Contended):  # the push keeps its lock
        ring.pop(timeout=0)
    assert end() == 0
    with connect(server, autocommit=False) as other:
        key = postgres_ring.lock_key("public.shmring")
        other.execute(b"SELECT pg_advisory_xact_lock_shared(%d, 0)" % key)
        with pytest.raises(Contended):
            ring.pop(timeout=0)
    ring._backend._run("SET lock_timeout = 0")
    assert [ring.pop(timeout=0) for _ in range(2)] == [b"late", b"next"]


@pytest.mark.parametrize("search", ["near", "whole"])
def test_message_that_a_pop_gave_up_comes_back_laps_later(
    server: Postgres, ring: TableRing, search: str
) -> None:
    # Another pop waited for number 0 longer than it may. Pushes go round the slot since then.
    give_up = [f"SELECT nextval('shmring_{cursor}')" for cursor in ("push", "pop_0")]
    execute(server.url, give_up[1])
    ring.push(b"left", timeout=0)
    for number in range(1, 4 * SLOTS):
        if number % SLOTS == 0:
            execute(server.url, *give_up)
        else:
            assert ring.push(b"%d" % number, timeout=0) == number
            assert ring.pop(timeout=0) == b"%d" % number
    if search == "near":
        execute(server.url, *give_up)
        assert ring.pop(timeout=0) == b"left"
    else:
        with TableRing.attach(server.url) as other:
            assert other.pop(timeout=0) == b"left"
    assert pop_all(ring) == []
    assert ring.push_many([b"0", b"1", b"2"], timeout=0) == 4 * SLOTS


@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.long), 5])
def test_pushes_of_many_sessions_into_few_slots_use_no_number_twice(
    server: Postgres, thread: RunThread, slots: int
) -> None:
    each, everybody = 100, 6
    sent: list[int] = []
    found: list[tuple[int, bytes]] = []

    def push(who: int) -> None:
        with TableRing.attach(server.url, name="few", durability="delayed") as mine:
            sent.extend(mine.push(b"%d %d" % (who, n)) for n in range(each))

    def pop() -> None:
        with TableRing.attach(server.url, name="few", durability="delayed") as mine:
            while len(found) < each * everybody:
                with contextlib.suppress(Empty):
                    batch = mine.pop_batch(1, timeout=1.5)
                    (row,) = batch.to_pylist()
                    found.append((row["message_id"], row["message"]))

    with TableRing.create(server.url, name="few", slots=slots):
        threads = [thread(push, who) for who in range(everybody)]
        threads += [thread(pop) for _ in range(3)]
        for one in threads:
            one.outcome()
    TableRing.drop(server.url, name="few")
    assert sorted(number for number, _ in found) == sorted(sent)
    assert len(set(sent)) == len(sent) == each * everybody
    assert len({data for _, data in found}) == each * everybody


def pop_one(ring: TableRing) -> bytes:
    return ring.pop(timeout=0)


def pop_run(ring: TableRing) -> bytes:
    return ring.pop_many(1, timeout=0)[0]


def pop_lease(ring: TableRing) -> bytes:
    with ring.lease(1, timeout=0) as lease:
        return lease[0]


POPS = [pop_one, pop_run, pop_lease]


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


def test_a_ring_that_grew_beside_a_snapshot_gets_its_size_back(clean: Postgres) -> None:
    size = "SELECT pg_total_relation_size('shmring')"
    with TableRing(clean.url, slots=100) as ring:
        before = execute(clean.url, size)[0]
        with connect(clean) as session, session.transaction():
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT FROM shmring LIMIT 1")
            for _ in range(5):
                ring.push_many([b"x" * 300] * 100)
                assert len(ring.pop_many(100)) == 100
        assert execute(clean.url, size)[0] > 3 * before
        execute(clean.url, "CLUSTER shmring USING shmring_pkey")
        assert execute(clean.url, size)[0] < 2 * before
        ring.push(b"after")
        assert ring.pop() == b"after"
