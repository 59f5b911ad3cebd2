"""Errors of a TableRing if the database refuses, fails or was changed by hand."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from postgres import Postgres, connect, postgres
from statements import execute, refused
from table_workers import by_worker, drain, pusher

from shmring.errors import (
    Contended,
    Damaged,
    Empty,
    NoSpace,
    PermissionRefused,
    RingExists,
    VersionMismatch,
)
from shmring.table_ring import PooledSession, TableRing
from shmring.table_ring.postgresql import PostgresBackend


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


def fill(path: Path) -> None:
    """Write to a new file until its disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass


def until_it_fails(ring: TableRing) -> None:
    while True:
        ring.push_many([b"x"] * 400)
        ring.pop_many(400)


def test_server_gone_within_a_batch_leaves_it_whole_or_not_there(
    server: Postgres, url: str
) -> None:
    with TableRing(url, slots=20_000) as ring:
        workers = [pusher(url, n, 50 << 40, batch=50) for n in range(2)]
        for worker in workers:
            worker.take(150)
        server.kill()
        reports = [record for worker in workers for record in worker.kill()]
        for worker in workers:
            worker.__exit__()
        server.start()
        with pytest.raises(sa.exc.OperationalError):
            ring.push_many([b"x"] * 50)
        for worker, numbers in by_worker(drain(url)).items():
            confirmed = 150 + sum(1 for who, _ in reports if who == worker)
            assert numbers == list(range(len(numbers)))
            assert len(numbers) % 50 == 0
            assert confirmed <= len(numbers) <= confirmed + 100
        assert ring.push_many([b"x"] * 50) == ring.positions()[0] - 50


@pytest.mark.parametrize("call", ["positions", "table"])
def test_crash_that_another_call_meets_leaves_no_message_behind(
    server: Postgres, url: str, call: str
) -> None:
    with TableRing(url, slots=100) as ring:
        ring.push_many([b"%d" % n for n in range(100)])
        assert ring.pop() == b"0"
        server.kill()  # a sequence goes on some 30 numbers later
        server.start()
        refused(ring, call, sa.exc.OperationalError)
        assert ring.pop() == b"1"


@pytest.mark.parametrize(
    "opening",
    [
        "attach",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("create", "drop", "renew")),
    ],
)
def test_connection_that_dies_while_it_is_prepared_is_sqlalchemys_error(
    server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    """The session dies before its first statement, then its second, until it lives long enough."""
    send = psycopg.Cursor.execute
    sent = dies_before = 0
    plain = sa.make_url(server.url).set(drivername="postgresql")
    address = plain.render_as_string(hide_password=False)

    def execute_or_die(cursor: psycopg.Cursor[Any], *arguments: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == dies_before:
            with psycopg.connect(address, autocommit=True) as other:
                pid = cursor.connection.info.backend_pid
                send(other.cursor(), "SELECT pg_terminate_backend(%s, 60000)", (pid,))
        return send(cursor, *arguments, **options)

    if opening != "create":
        TableRing.create(url, slots=4).close()
    call: Any = getattr(TableRing, opening)
    monkeypatch.setattr(psycopg.Cursor, "execute", execute_or_die)
    for dies_before in range(1, 1000):  # noqa: B007
        sent = 0
        try:
            opened = call(url, **({"slots": 4} if opening == "create" else {}))
        except sa.exc.OperationalError:
            continue
        except RingExists:  # it died behind the commit of the one before
            break
        if opened is not None:
            opened.close()
        break
    assert dies_before > 2


FAILING = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('failures') <= {times} THEN
            RAISE 'could not serialize access' USING ERRCODE = '{state}';
        END IF;
        RETURN NEW;
    END $$"""
TRIGGER = "CREATE TRIGGER fail BEFORE UPDATE ON shmring FOR EACH ROW EXECUTE FUNCTION fail()"
AT_COMMIT = (
    "CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON shmring DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION fail()"
)


MISSING = """
    CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO missing VALUES (1);
        RETURN NEW;
    END $$"""
BROKEN = """
    CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE 'missing is broken' USING ERRCODE = 'XX000';
    END $$"""


@pytest.mark.parametrize("look", ["push(0)", "pop('main', 0, 'shmring_pop_0'::regclass, true)"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_look_with_an_older_snapshot_is_refused_and_sets_nothing_back(
    clean: Postgres, look: str, level: str
) -> None:
    with TableRing(clean.url, slots=3) as ring, connect(clean, autocommit=False) as other:
        other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        other.execute("SELECT FROM shmring")
        ring.push_many([b"0", b"1"])
        with pytest.raises(psycopg.Error, match="wants a transaction that is read committed"):
            other.execute(f"SELECT * FROM shmring_look_{look}".encode())
        other.rollback()
        assert ring.push(b"2") == 2
        assert ring.pop_many() == [b"0", b"1", b"2"]


def test_number_is_pushed_once_also_where_the_cursor_was_set_back(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        ring.push(b"1")
        assert ring.pop_many() == [b"0", b"1"]
        execute(url, "SELECT setval('shmring_push', 1)")
        assert ring.push(b"2", timeout=0) == 2
        assert ring.pop(timeout=0) == b"2"


@pytest.mark.parametrize("trigger", [MISSING, BROKEN])
def test_error_of_a_trigger_that_somebody_added_comes_out(url: str, trigger: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        execute(url, trigger, TRIGGER.replace("fail", "miss"))
        refused(ring, "push push_many pop pop_many pop_batch", sa.exc.DBAPIError, "missing")
        execute(url, "DROP TRIGGER miss ON shmring")
        assert ring.push(b"1") == 1
        assert ring.pop_many() == [b"0", b"1"]


def test_error_within_a_look_is_no_removed_subscriber(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        (look,) = execute(url, "SELECT pg_get_functiondef('shmring_look_pop'::regproc)")
        failing = look.replace("BEGIN", "BEGIN RAISE 'broken' USING ERRCODE = 'XX000';", 1)
        execute(url, failing.replace(":", r"\:"))
        with pytest.raises(sa.exc.DBAPIError, match="broken"):
            ring.pop(timeout=0)


@pytest.mark.parametrize(
    ("state", "trigger"), [("40001", TRIGGER), ("40P01", TRIGGER), ("40001", AT_COMMIT)]
)
def test_transaction_that_the_server_undoes_is_tried_again(
    url: str, state: str, trigger: str
) -> None:
    with TableRing(url, slots=3) as ring:
        failing = FAILING.format(times=3, state=state)
        execute(url, "CREATE SEQUENCE failures", failing, trigger)
        assert ring.push_many([b"0", b"1"]) == 0
        execute(url, "SELECT setval('failures', 1)")
        assert ring.pop_many() == [b"0", b"1"]
        execute(url, "SELECT setval('failures', 1)")
        ring.subscribe("late")
        ring.push(b"2")
        assert ring.pop() == b"2"


def test_lease_that_the_server_undoes_says_so_and_comes_back(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        failing = FAILING.format(times=1, state="40001")
        execute(url, "CREATE SEQUENCE failures", failing, TRIGGER)
        with pytest.raises(Contended, match=r"undid a lease .* could not serialize"), ring.lease():
            pass
        with ring.lease(timeout=0) as lease:
            assert list(lease) == [b"0"]


POOLED = r"PgBouncer.* pool_mode = session"


def test_pooler_that_gives_another_session_with_each_transaction_is_named(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        driver = ring._backend._driver
        # A session in which other clients of the pooler have prepared theirs.
        for name in (f"{whose}_{n}" for whose in ("shmring", "_pg3") for n in range(99)):
            with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):
                driver.execute(f"PREPARE {name} AS SELECT 1")
        refused(ring, "push pop_many lease", PooledSession, POOLED)


def test_pooler_whose_session_has_others_of_the_same_names_is_named(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        ring.pop()
        driver = ring._backend._driver
        for (name,) in driver.execute("SELECT name FROM pg_prepared_statements").fetchall():
            driver.execute(f"DEALLOCATE {name}")
            driver.execute(f"PREPARE {name} AS SELECT make_date($1, $2, $3), make_date($4, $5, $6)")
        driver.commit()
        refused(ring, "push pop", PooledSession, POOLED)


GATE = 77
GATED = f"""
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared({GATE});
        RETURN NEW;
    END $$"""


def test_run_that_ends_in_a_deadlock_is_tried_again(
    clean: Postgres, monkeypatch: pytest.MonkeyPatch, thread: RunThread, until: Until
) -> None:
    monkeypatch.setattr(PostgresBackend, "lock_seconds", 3600.0)
    # Only the ring's session looks for deadlocks, so the database undoes this session.
    ours = f"{clean.url}&options=-cdeadlock_timeout%3D1ms"
    with (
        TableRing(ours, slots=2) as ring,
        connect(clean) as gate,
        connect(clean, autocommit=False) as other,
    ):

        def waiting(kind: str) -> bool:
            query = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = '{kind}'"
            return gate.execute(query.encode()).fetchone() == (1,)

        with pytest.raises(Empty):
            ring.pop(timeout=0)
        execute(
            clean.url,
            GATED,
            "CREATE TRIGGER wait BEFORE UPDATE ON shmring FOR EACH ROW WHEN (OLD.slot = 0"
            " AND NEW.message_id IS NOT NULL) EXECUTE FUNCTION wait()",
        )
        gate.execute(b"SELECT pg_advisory_lock(%d)" % GATE)
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("UPDATE shmring SET time = 7 WHERE slot = 1")
        pushing = thread(ring.push_many, [b"0", b"1"])
        until(lambda: waiting("advisory"))
        updating = thread(other.execute, "UPDATE shmring SET time = 7 WHERE slot = 0")
        until(lambda: waiting("transactionid"))
        gate.execute(b"SELECT pg_advisory_unlock(%d)" % GATE)
        # The other session could not go on before the run was undone.
        updating.outcome()
        other.commit()
        assert pushing.outcome() == 0
        assert ring.pop_many() == [b"0", b"1"]


def test_transaction_that_is_undone_again_and_again_ends(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        failing = FAILING.format(times=1 << 40, state="40001")
        execute(url, "CREATE SEQUENCE failures", failing, TRIGGER)
        with pytest.raises(Contended, match=r"undid 10 attempts .* could not serialize"):
            ring.push(b"0")
        execute(url, "DROP TRIGGER fail ON shmring")
        assert ring.push(b"0") == 0
        assert ring.pop() == b"0"


def test_ring_without_its_row_knows_no_subscribers(url: str) -> None:
    with TableRing(url, slots=1) as ring:
        execute(url, "DELETE FROM shmring_ring")
        with pytest.raises(Empty):
            ring.pop(timeout=0)
        ring.push(b"x")
        with pytest.raises(Damaged, match="the ring's are 0x0"):
            ring.push(b"y", timeout=0)


def test_functions_of_another_version_are_refused_and_renewed(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"kept")
    other = "UPDATE shmring_ring SET functions = 'version 77 for public.shmring'"
    execute(url, other, "DROP FUNCTION shmring_pop_one")
    with pytest.raises(VersionMismatch, match="are version 77, this shmring knows"):
        TableRing.attach(url)
    TableRing.renew(url)
    with TableRing.attach(url) as ring:
        assert ring.pop(timeout=0) == b"kept"
    execute(url, "DROP FUNCTION shmring_slot")
    with pytest.raises(Damaged, match=r"lost the functions public\.shmring_slot"):
        TableRing.attach(url)
    TableRing.drop(url)


KNOWN = {
    "subscribers": "shmring_subscribed() RETURNS smallint LANGUAGE sql AS 'SELECT (1)::smallint'",
    "holders": "shmring_holders() RETURNS bigint LANGUAGE sql AS 'SELECT (1)::bigint'",
}


@pytest.mark.parametrize("column", KNOWN)
def test_functions_that_know_other_subscribers_are_refused_and_renewed(
    url: str, column: str
) -> None:
    with TableRing(url, slots=3, subscribers=["main", "b"]) as ring:
        ring.push(b"kept")
    execute(url, f"CREATE OR REPLACE FUNCTION {KNOWN[column]}")
    with (
        TableRing.attach(url) as ring,
        pytest.raises(Damaged, match=r"know other subscribers than table shmring_ring; .*renew"),
    ):
        ring.push(b"lost")
    TableRing.renew(url)
    with TableRing.attach(url, subscriber="b") as ring:
        ring.push(b"after")
        assert ring.pop_many(timeout=0) == [b"kept", b"after"]


@pytest.fixture
def elsewhere(url: str) -> Generator[str]:
    """The server's address for sessions whose path begins with a schema that is not the ring's."""
    execute(url, 'CREATE SCHEMA "an app: 5%"')
    yield f'{url}&options=-csearch_path%3D"an\\ app:\\ 5%25",public'
    execute(url, 'DROP SCHEMA "an app: 5%" CASCADE')


def test_half_of_each_page_of_the_queue_table_stays_free(url: str) -> None:
    """SQLAlchemy 2.0 takes no storage parameters in Table(): `make versions` runs this with it."""
    TableRing.create(url, slots=4).close()
    options = "SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE relname = 'shmring'"
    assert execute(url, options) == ["fillfactor=45"]


def made_in(url: str, schema: str) -> int:
    there = f"namespace = to_regnamespace('{schema}')"
    classes, functions = execute(
        url,
        f"SELECT count(*) FROM pg_class WHERE rel{there}"
        f" UNION ALL SELECT count(*) FROM pg_proc WHERE pro{there}",
    )
    return classes + functions


def test_session_with_another_path_subscribes_and_unsubscribes_in_the_schema_of_the_ring(
    url: str, elsewhere: str
) -> None:
    with TableRing.create(url, slots=4) as ring, TableRing.attach(elsewhere) as other:
        ring.push(b"0")
        other.subscribe("late")
        ring.push(b"1")
        ring.push_many([b"2", b"3"])
        with TableRing.attach(elsewhere, subscriber="late") as late:
            assert late.pop_many(timeout=0) == [b"1", b"2", b"3"]
        assert ring.pop_many(timeout=0) == [b"0", b"1", b"2", b"3"]
        other.unsubscribe("late")
        for n in range(12):
            assert ring.push(b"again", timeout=0) == 4 + n
            assert other.pop(timeout=0) == b"again"
        assert other.positions() == (16, {"main": 16})
        assert made_in(url, '"an app: 5%"') == 0


def test_session_with_another_path_renews_and_drops_in_the_schema_of_the_ring(
    url: str, elsewhere: str
) -> None:
    before = made_in(url, "public")
    with TableRing.create(url, slots=4) as ring:
        made = made_in(url, "public")
        TableRing.renew(elsewhere)
        assert (made_in(url, "public"), made_in(url, '"an app: 5%"')) == (made, 0)
        ring.push(b"kept")
        assert ring.pop(timeout=0) == b"kept"
    TableRing.drop(elsewhere)
    assert made_in(url, "public") == before


def test_handle_stays_with_its_ring_when_another_is_made_before_it_on_the_path(
    url: str, elsewhere: str
) -> None:
    only_there = elsewhere.removesuffix(",public")
    with (
        TableRing.create(url, slots=4) as ring,
        TableRing.attach(elsewhere) as other,
        TableRing.create(only_there, slots=4) as near,
    ):
        assert near.push(b"near") == 0
        assert other.push(b"far") == 0
        assert ring.pop(timeout=0) == b"far"
        other.subscribe("late")
        assert [*ring.positions()[1]] == ["main", "late"]
        assert [*near.positions()[1]] == ["main"]
        assert other.table().column("reference_count").to_pylist() == [0, 0, 0, 0]
        assert near.pop(timeout=0) == b"near"


GRANTS = (
    "CREATE ROLE worker LOGIN",
    "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    "GRANT USAGE ON SCHEMA public TO worker",
    "GRANT SELECT, UPDATE ON shmring TO worker",
    "GRANT SELECT ON shmring_ring, shmring_subscribers TO worker",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON shmring_leases TO worker",
    "GRANT SELECT, UPDATE ON SEQUENCE shmring_push, shmring_pop_0, shmring_pop_1 TO worker",
)


def test_user_who_may_call_and_not_create(url: str) -> None:
    worker = url.replace("postgres@", "worker@", 1)
    with TableRing(url, slots=3, subscribers=["main", "b"]) as ring:
        execute(url, *GRANTS[:3])
        with pytest.raises(PermissionRefused, match=r"refuses ring 'shmring' .* lists the grants"):
            TableRing.attach(worker)
        execute(url, *GRANTS[3:])
        with TableRing.attach(worker) as other:
            assert other.push(b"0") == 0
            assert other.push_many([b"1", b"2"]) == 1
            assert other.pop() == b"0"
            with other.lease() as lease:
                assert list(lease) == [b"1"]
            assert other.pop_many() == [b"2"]
            assert other.positions() == (3, {"main": 3, "b": 0})
            refused(other, "subscribe unsubscribe", PermissionRefused)
        with pytest.raises(PermissionRefused):
            TableRing(worker, name="another", slots=3)
        with pytest.raises(PermissionRefused):
            TableRing.drop(worker)
        assert ring.positions()[0] == 3
    execute(url, "DROP OWNED BY worker", "DROP ROLE worker")


def test_the_guide_grants_functions_where_nobody_may_execute_by_default(url: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "table-ring.md").read_text()
    (block,) = re.findall(r"^    DO .*?^    END [$][$];", guide, re.MULTILINE | re.DOTALL)
    execute(url, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    with TableRing(url, slots=3, subscribers=["main", "b"]):
        execute(url, *GRANTS)
        with TableRing.attach(url.replace("postgres@", "worker@", 1)) as other:
            refused(other, "push pop", PermissionRefused, "lists the grants")
            execute(url, block.replace("orders", "shmring").replace(":", "\\:"))
            assert other.push(b"0") == 0
            assert other.pop() == b"0"
    execute(
        url,
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
        "DROP OWNED BY worker",
        "DROP ROLE worker",
    )


def test_a_database_that_cannot_be_written_is_refused_in_sqlite_s_words(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with TableRing(f"sqlite:///{path}", slots=3) as ring:
        ring.push(b"x")
        with (
            TableRing.attach(f"sqlite:///file:{path}?mode=ro&uri=true") as other,
            pytest.raises(PermissionRefused, match="-wal and -shm files and their folder must be"),
        ):
            other.pop(timeout=0)


def test_full_disk_refuses_a_ring_and_leaves_one_that_is_there_at_work(small_disk: Path) -> None:
    # While another session looks on, which autovacuum may begin, old versions keep their room.
    with postgres({"autovacuum": "off"}) as server:
        owner = os.stat(server.directory)
        os.chown(small_disk, owner.st_uid, owner.st_gid)
        for above in small_disk.parents:
            # The server's user has to pass through pytest's folders, which are its maker's alone.
            if Path(os.environ["PYTEST_DEBUG_TEMPROOT"]).resolve() in above.parents:
                above.chmod(above.stat().st_mode | 0o011)
        execute(server.url, f"CREATE TABLESPACE small LOCATION '{small_disk}'")
        there = f"{server.url}&options=-c default_tablespace=small".replace(" ", "%20")
        with TableRing(there, name="fits", slots=200) as ring:
            with pytest.raises(NoSpace, match="disk of the database of ring 'large' is full"):
                TableRing(there, name="large", slots=100_000)
            filler = Path(next(small_disk.iterdir())) / "filler"
            fill(filler)
            # All its rows are there, and each page has room for their next versions.
            for lap in range(5):
                ring.push_many([b"%d" % lap * 100] * 200)
                assert ring.pop_many() == [b"%d" % lap * 100] * 200


def test_full_disk_on_sqlite_undoes_the_call(small_disk: Path) -> None:
    with TableRing(f"sqlite:///{small_disk}/ring.db", slots=500) as ring:
        ring.push_many([b"%d" % n for n in range(10)])
        filler = small_disk / "filler"
        fill(filler)
        with pytest.raises(NoSpace, match="nothing was done"):
            until_it_fails(ring)
        before = ring.positions()
        for _ in range(2):
            with pytest.raises(NoSpace, match="nothing was done"), ring.lease(500, timeout=0):
                pass
        assert ring.positions() == before
        filler.unlink()
        with ring.lease(500, timeout=0) as lease:
            assert len(lease) == before[0] - before[1]["main"]
            assert lease[0] == b"0" or set(lease) == {b"x"}
        assert ring.push(b"after") == ring.positions()[0] - 1


def test_unlogged_ring_is_empty_after_a_crash_and_its_numbers_go_on(
    server: Postgres, url: str
) -> None:
    with TableRing(url, slots=5, unlogged=True) as ring:
        ring.push_many([b"0", b"1", b"2"])
        execute(url, "CHECKPOINT")
        server.kill()
        server.start()
        with pytest.raises(sa.exc.OperationalError):
            ring.push(b"3")
        with pytest.raises(Damaged, match="its server crashed, attach again"):
            ring.push(b"3")
        with TableRing.attach(url) as again:
            number = again.push(b"3")
            assert number >= 3
            assert again.pop(timeout=0) == b"3"
        assert ring.push(b"4") == number + 1
        assert ring.pop() == b"4"
        assert ring.positions() == (number + 2, {"main": number + 2})


def test_many_may_attach_at_once_to_an_unlogged_ring_after_a_crash(
    clean: Postgres, thread: RunThread, until: Until
) -> None:
    url = clean.url
    with TableRing(url, slots=5, unlogged=True) as ring:
        ring.push(b"0")
    execute(url, "TRUNCATE shmring, shmring_leases")  # a crash empties the tables
    waiting = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
    with connect(clean) as session, contextlib.ExitStack() as rings:
        with session.transaction():
            session.execute("LOCK TABLE shmring IN SHARE MODE")
            attaching = [thread(TableRing.attach, url) for _ in range(2)]
            until(lambda: session.execute(waiting).fetchone() == (2,))
        first, second = (rings.enter_context(attached.outcome()) for attached in attaching)
        assert first.push(b"1") == 1
        assert second.pop(timeout=0) == b"1"


def test_positions_beside_a_subscriber_that_leaves(
    clean: Postgres, thread: RunThread, until: Until
) -> None:
    waiting = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
    with TableRing(clean.url, slots=5, subscribers=["a", "b"]) as ring, connect(clean) as session:
        ring.push(b"0")
        with session.transaction():  # do the steps of unsubscribing
            session.execute("DROP SEQUENCE shmring_pop_1")
            session.execute("DELETE FROM shmring_subscribers WHERE name = 'b'")
            asked = thread(ring.positions)
            until(lambda: session.execute(waiting).fetchone() == (1,))
        assert asked.outcome() == (1, {"a": 0})
