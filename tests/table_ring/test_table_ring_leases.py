"""Leases, Arrow batches, unused numbers; beside sessions that stall, die or are removed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import psycopg
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from postgres import Postgres, connect
from statements import execute, refused

from shmring.errors import Contended, Empty, Full, MessageTooLarge
from shmring.table_ring import LeaseOpen, SubscriberDropped, TableRing
from shmring.table_ring.postgresql import PostgresBackend


@pytest.fixture
def url(either: str) -> str:
    return either


class Failed(Exception):
    """The exception that ends the tests' work."""


@contextlib.contextmanager
def failing() -> Generator[None]:
    with pytest.raises(Failed):
        yield


def test_lease_that_ends_well_has_popped(url: str) -> None:
    with TableRing(url, slots=5) as ring:
        ring.push_many([b"0", b"1", b"2"])
        with ring.lease(2, timeout=0) as lease:
            assert (list(lease), lease.message_ids, len(lease)) == ([b"0", b"1"], [0, 1], 2)
        assert ring.pop_many(timeout=0) == [b"2"]
        assert ring.stats().popped == 3
        with pytest.raises(Empty), ring.lease(timeout=0):
            pass


@pytest.mark.parametrize("scattered", [False, True])
def test_lease_that_fails_returns_before_later_messages(url: str, scattered: bool) -> None:
    with TableRing(url, slots=5, scattered=scattered) as ring:
        ring.push_many([b"0", b"1", b"2", b"3"])
        with failing(), ring.lease(2) as lease:
            assert lease[0] == b"0"
            raise Failed
        with ring.lease(1) as lease:
            assert list(lease) == [b"0"]
        assert [ring.pop(timeout=0) for _ in range(3)] == [b"1", b"2", b"3"]
        assert ring.push_many([b"4"] * 5, timeout=0) == 4
        assert ring.positions() == (9, {"main": 4})


def test_what_the_lease_writes_is_committed_or_undone_with_it(url: str) -> None:
    with TableRing(url, slots=5) as ring, TableRing.attach(url) as other:
        execute(url, "CREATE TABLE done (message_id BIGINT)")
        insert = sa.text("INSERT INTO done VALUES (:number)")
        ring.push_many([b"0", b"1"])
        with failing(), ring.lease() as lease:
            lease.connection.execute(insert, {"number": lease.message_ids[0]})
            raise Failed
        with ring.lease() as lease:
            lease.connection.execute(insert, {"number": lease.message_ids[0]})
        assert execute(url, "SELECT message_id FROM done") == [0]
        assert other.pop(timeout=0) == b"1"
        execute(url, "DROP TABLE done")


def test_handle_with_an_open_lease_refuses_everything_else(url: str) -> None:
    with TableRing(url, slots=5) as ring:
        ring.push(b"0")
        with ring.lease():
            refused(ring, "push pop positions table", LeaseOpen, "open lease")
        assert ring.push(b"1") == 1


def test_lease_that_cannot_begin_lets_no_other_begin_that_it_would_undo(
    url: str, thread: RunThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TableRing(url, slots=5) as ring, contextlib.ExitStack() as leases:
        ring.push(b"0")
        turns = ring
        end_lease = turns._end_lease

        def refused(_limit: int) -> None:
            monkeypatch.undo()
            monkeypatch.setattr(turns, "_end_lease", behind_another)
            raise Contended("refused")

        def behind_another(taken: list[Any]) -> None:
            monkeypatch.undo()
            # The lock is free, and who waited for it goes on.
            with pytest.raises(LeaseOpen):
                thread(leases.enter_context, ring.lease(timeout=0)).outcome()
            end_lease(taken)

        monkeypatch.setattr(ring._backend, "begin_lease", refused)
        with pytest.raises(Contended, match="refused"), ring.lease(timeout=0):
            pass
        with ring.lease(timeout=0) as lease:
            assert list(lease) == [b"0"]


def test_lease_of_a_closed_connection_returns(url: str) -> None:
    ring = TableRing(url, slots=5)
    ring.push(b"0")
    with TableRing.attach(url) as other:
        with failing(), ring.lease():
            ring.close()
            raise Failed
        assert other.pop() == b"0"


def test_open_leases_let_others_go_on(clean: Postgres) -> None:
    with (
        TableRing(clean.url, name="work", slots=6, subscribers=["main", "audit"]) as first,
        TableRing.attach(clean.url, name="work") as second,
        TableRing.attach(clean.url, name="work", subscriber="audit") as audit,
    ):
        first.push_many([b"%d" % n for n in range(6)])
        with failing(), first.lease(2) as one, second.lease(2) as two:
            assert (list(one), list(two)) == ([b"0", b"1"], [b"2", b"3"])
            assert audit.pop_many(2) == [b"0", b"1"]
            with pytest.raises(Full):
                audit.push(b"6", timeout=0)  # a lease holds its slot
            with TableRing.attach(clean.url, name="work") as third:
                assert third.pop_many(1) == [b"4"]
                assert third.pop() == b"5"
                with pytest.raises(Empty):
                    third.pop(timeout=0)
            raise Failed
        assert [first.pop(timeout=0) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        audit.pop_many()
        assert set(first.table()["reference_count"].to_pylist()) == {0}


# -- Arrow ---------------------------------------------------------------------------------------


def test_arrow_goes_in_and_comes_out(url: str) -> None:
    batch = pa.record_batch({"key": [1, 2, 3], "message": pa.array([b"a", b"b", b"c"])})
    with TableRing(url, slots=10) as ring:
        assert ring.push_many(batch) == 0
        assert ring.push_many(pa.Table.from_batches([batch])) == 3
        found = ring.pop_batch(4)
        assert found.schema.names == ["message_id", "time", "message"]
        assert found["message_id"].to_pylist() == [0, 1, 2, 3]
        assert found["message"].to_pylist() == [b"a", b"b", b"c", b"a"]
        with ring.lease(5) as lease:
            assert lease.batch()["message"].to_pylist() == [b"b", b"c"]
        assert ring.push_many(found) == 6


def test_arrow_that_does_not_fit_is_refused_by_name(url: str) -> None:
    with TableRing(url, slots=10) as ring:
        with pytest.raises(TypeError, match="no column 'message' among key"):
            ring.push_many(pa.record_batch({"key": [1]}))
        with pytest.raises(MessageTooLarge, match="row 1 of 301 bytes"):
            ring.push_many(pa.array([b"fits", b"x" * 301]))
        assert ring.positions() == (0, {"main": 0})


# -- numbers that nobody used --------------------------------------------------------------------


def value(session: psycopg.Connection[Any], query: str) -> Any:
    found = session.execute(query.encode()).fetchone()
    assert found is not None
    return found[0]


PUSH_LOST = "SELECT lost_push_one('never', 0, 0)"
POP_LOST = "SELECT lost_pop_one(0, 1, 'lost_pop_0'::regclass, 0)"


def test_number_of_a_push_that_was_undone_is_used_again(clean: Postgres) -> None:
    with TableRing(clean.url, name="lost", slots=3) as ring:
        ring.push(b"0")
        with connect(clean, autocommit=False) as dying:
            assert value(dying, PUSH_LOST) == 1
            assert ring.pop(timeout=0) == b"0"
        assert ring.positions() == (1, {"main": 1})
        assert ring.push(b"1") == 1


def test_number_that_later_pushes_have_passed_is_passed_over(clean: Postgres) -> None:
    subscribers = ["main", "audit"]
    with (
        TableRing(clean.url, name="lost", slots=3, subscribers=subscribers) as ring,
        TableRing.attach(clean.url, name="lost", subscriber="audit") as audit,
    ):
        with pytest.raises(Empty):
            audit.pop(timeout=0)
        with pytest.raises(Empty):
            ring.pop(timeout=0)
        for lap in range(3):
            with connect(clean, autocommit=False) as dying:
                number = value(dying, PUSH_LOST)
                assert ring.push(b"%d" % lap) == number + 1
            assert ring.pop(timeout=0) == b"%d" % lap
            assert audit.pop_many(timeout=0) == [b"%d" % lap]
            with pytest.raises(Empty):
                ring.pop(timeout=0)
        assert ring.push_many([b"a", b"b", b"c"], timeout=0) == 6
        assert ring.pop_many() == [b"a", b"b", b"c"]


def test_message_left_far_behind_is_found_by_whoever_waits(clean: Postgres) -> None:
    with TableRing(clean.url, name="lost", slots=1000) as ring:
        ring.push_many([b"%d" % n for n in range(900)])
        with connect(clean, autocommit=False) as dying:
            assert value(dying, POP_LOST) == b"0"
            assert [ring.pop(timeout=0) for _ in range(400)] == [b"%d" % n for n in range(1, 401)]
        assert ring.pop_batch(10_000)["message_id"].to_pylist() == list(range(401, 900))
        assert ring.pop(timeout=60) == b"0"


@pytest.mark.parametrize("late", [False, True])
def test_unsubscribing_waits_for_leases_and_keeps_nobody_from_pushing(
    clean: Postgres, monkeypatch: pytest.MonkeyPatch, thread: RunThread, until: Until, late: bool
) -> None:
    url = clean.url
    run = PostgresBackend._run
    leases = contextlib.ExitStack()

    def begin_late(self: PostgresBackend, sql: str) -> None:
        if sql.startswith("DROP SEQUENCE"):
            leases.enter_context(lessee.lease(1))
        run(self, sql)

    with (
        TableRing(url, slots=8, subscribers=["main", "gone"]) as ring,
        TableRing.attach(url, subscriber="gone") as lessee,
        TableRing.attach(url) as other,
    ):
        ring.push_many([b"0", b"1"])
        if late:
            monkeypatch.setattr(PostgresBackend, "_run", begin_late)
        else:
            leases.enter_context(lessee.lease(1))
        leaving = thread(other.unsubscribe, "gone")
        until(lambda: execute(url, "SELECT pid FROM pg_locks WHERE NOT granted"), "the wait")
        assert ring.push(b"2", timeout=0) == 2
        leases.close()
        leaving.outcome()
        assert lessee.stats().popped == 1
        refused(lessee, "pop", SubscriberDropped)
        assert ring.pop_many(timeout=0) == [b"0", b"1", b"2"]
        assert execute(url, "SELECT sum(reference_count) FROM shmring") == [0]


def test_lease_that_is_not_committed_yet_is_asked_for_later(clean: Postgres) -> None:
    with (
        TableRing(clean.url, name="lost", slots=8, subscribers=["main", "audit"]) as ring,
        TableRing.attach(clean.url, name="lost", subscriber="audit") as audit,
        connect(clean, autocommit=False) as leasing,
    ):
        ring.push_many([b"0", b"1"])
        assert value(leasing, "SELECT lost_lease(0, 'lost_pop_0', 1)") is True
        assert [audit.pop(timeout=0) for _ in range(2)] == [b"0", b"1"]
        leasing.commit()
        assert [ring.pop(timeout=0) for _ in range(2)] == [b"0", b"1"]


def test_subscriber_s_sequence_says_whether_it_may_have_leases(clean: Postgres) -> None:
    ahead = "SELECT last_value >> 62 FROM lost_pop_0"
    with TableRing(clean.url, name="lost", slots=8) as ring:
        ring.push_many([b"0", b"1", b"2"])
        with failing(), ring.lease(1):
            raise Failed
        # A dump reads the sequence later or earlier than the lease.
        assert execute(clean.url, ahead, "SELECT setval('lost_pop_0', 1)", ahead) == [0]
        with TableRing.attach(clean.url, name="lost") as late:
            assert late.pop(timeout=0) == b"0"
            assert execute(clean.url, ahead) == [1]
            assert late.pop(timeout=0) == b"1"
            assert execute(clean.url, ahead) == [0]
            assert late.pop(timeout=0) == b"2"


def test_lease_that_a_transaction_popped_and_undid_comes_back(clean: Postgres) -> None:
    with TableRing(clean.url, name="lost", slots=8) as ring:
        ring.push(b"0")
        with failing(), ring.lease(1):
            raise Failed
        with connect(clean, autocommit=False) as dying:
            assert value(dying, POP_LOST) == b"0"
            assert value(dying, POP_LOST) is None
        ring.push(b"1")
        assert [ring.pop(timeout=0) for _ in range(2)] == [b"0", b"1"]


def test_head_start_counts_messages_and_not_numbers(clean: Postgres) -> None:
    with TableRing(clean.url, slots=9) as ring, TableRing.attach(clean.url, head_start=3) as late:
        ring.push(b"0")
        execute(clean.url, "SELECT nextval('shmring_push')")
        ring.push(b"1")
        with pytest.raises(Empty, match="head_start 3"):
            late.pop(timeout=0)
        ring.push(b"2")
        assert [late.pop(timeout=0) for _ in range(3)] == [b"0", b"1", b"2"]


def test_head_start_ends_when_no_more_messages_fit(clean: Postgres) -> None:
    with TableRing(clean.url, slots=4) as ring, TableRing.attach(clean.url, head_start=4) as late:
        ring.push(b"0")
        execute(clean.url, "SELECT nextval('shmring_push')")
        ring.push_many([b"1", b"2"])
        with pytest.raises(Full):
            ring.push(b"3", timeout=0)
        assert late.pop(timeout=0) == b"0"


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


@pytest.fixture(scope="module")
def stalling(server: Postgres) -> Generator[None]:
    execute(server.url, *STALLING)
    yield
    execute(server.url, "DROP SCHEMA stalling CASCADE")


@pytest.fixture
def ring(server: Postgres, stalling: None) -> Generator[TableRing]:
    with TableRing.create(server.url, slots=5, subscribers=["main", "audit"]) as made:
        yield made
    TableRing.drop(server.url)


def rest(ring: TableRing) -> list[bytes]:
    """Pop one by one until a handle that has just come, and so searches everything, finds none."""
    found: list[bytes] = []
    with TableRing.attach(ring.url) as late, contextlib.suppress(Empty):
        while True:
            found.append(late.pop(timeout=0))
    return found


def test_pop_whose_subscriber_leases_before_its_number_gets_the_next_message(
    server: Postgres, ring: TableRing, thread: RunThread, until: Until
) -> None:
    ring.push_many([b"0", b"1", b"2"])
    with connect(server) as gate, connect(server) as late:
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        late.execute("SET search_path = stalling, pg_catalog, public")
        popping = thread(value, late, POP)
        until(lambda: gate.execute(STALLED).fetchone() == (1,))
        with failing(), ring.lease(1) as lease:
            assert list(lease) == [b"0"]
            gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
            assert popping.outcome() == b"1"
            raise Failed
    assert rest(ring) == [b"0", b"2"]


STEPS = {
    "leased": [f"SELECT shmring_lease({ME}, 2)"],
    "undone": ["BEGIN", f"SELECT shmring_lease({ME}, 2)"],
    "opened": [f"SELECT shmring_lease({ME}, 2)", "BEGIN", f"SELECT * FROM shmring_open({ME}, 2)"],
    "settled": [
        f"SELECT shmring_lease({ME}, 2)",
        "BEGIN",
        f"SELECT shmring_settle(0, o.lease, o.message_id) FROM shmring_open({ME}, 1) o",
    ],
    "taken over": [f"SELECT shmring_lease({ME}, 2)", "BEGIN", POP],
    "all taken over": [f"SELECT shmring_lease({ME}, 2)", "BEGIN", POP, POP, POP],
}


@pytest.mark.parametrize("step", STEPS)
def test_session_that_ends_in_a_lease_leaves_all_messages_to_others(
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


def test_leases_of_a_subscriber_that_was_removed_are_not_its_successors(
    server: Postgres, ring: TableRing
) -> None:
    ring.push_many([b"0", b"1"])
    with failing(), ring.lease(1):
        raise Failed
    with TableRing.attach(ring.url, subscriber="audit") as audit:
        audit.unsubscribe("main")
        audit.subscribe("main")
        assert audit.pop_many() == [b"0", b"1"]
        ring.push(b"2")
        assert rest(ring) == [b"2"]


@pytest.mark.parametrize("late", [False, True])
def test_handle_of_a_removed_subscriber_opens_no_lease_of_its_successor(
    ring: TableRing, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def replace() -> None:
        monkeypatch.undo()
        with TableRing.attach(ring.url, subscriber="audit") as audit:
            audit.unsubscribe("main")
            audit.subscribe("heir")  # gets the bit
            audit.push(b"1")
        with TableRing.attach(ring.url, subscriber="heir") as heir, failing(), heir.lease():
            raise Failed

    backend = ring._backend
    begin = backend._begin
    ring.push(b"0")
    if late:  # the lease is made, and is opened next
        monkeypatch.setattr(backend, "_begin", lambda: (replace(), begin()))
    else:
        replace()
    with pytest.raises(SubscriberDropped), ring.lease(timeout=0):
        pass
    with TableRing.attach(ring.url, subscriber="heir") as heir:
        assert heir.pop(timeout=0) == b"1"


def test_unsubscribing_waits_for_a_pop_that_goes_on_to_its_number(
    server: Postgres, ring: TableRing, thread: RunThread, until: Until
) -> None:
    ring.push(b"0")
    # Only the pop looks for deadlocks: the other session waits for an hour before it looks.
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
