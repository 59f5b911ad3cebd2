"""Rings that are moved, renewed or dropped, and subscribers that leave, beside open handles."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from postgres import Postgres, connect, find_bin
from statements import CALLS, execute, refused

from shmring.errors import (
    Contended,
    Damaged,
    Empty,
    Full,
    RingNotFound,
    VersionMismatch,
)
from shmring.table_ring import (
    SubscriberDropped,
    SubscriberNotFound,
    TableRing,
    postgres_ring,
    postgresql,
)
from shmring.table_ring.postgresql import PostgresBackend
from shmring.table_ring.sqlite import SqliteBackend


def run(server: Postgres, program: str, *arguments: str) -> None:
    subprocess.run(
        [str(find_bin() / program), "-h", str(server.directory), "-U", "postgres", *arguments],
        check=True,
    )


@pytest.fixture
def restored(server: Postgres, url: str, tmp_path: Path) -> Generator[Callable[[], str]]:
    """Dump the database and restore the dump as another, whose address is returned."""

    def restore() -> str:
        dump = str(tmp_path / "dump")
        run(server, "pg_dump", "-Fc", "-f", dump, "postgres")
        run(server, "createdb", "restored")
        run(server, "pg_restore", "-d", "restored", "--exit-on-error", dump)
        return url.replace("/postgres?", "/restored?")

    yield restore
    run(server, "dropdb", "--force", "--if-exists", "restored")


# Query for the sessions that wait for a notification.
AWAITED = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid ="
    f" {postgres_ring.AWAIT_MESSAGE}"
)


def test_restored_ring_has_its_messages_and_tells_those_who_wait(
    url: str,
    restored: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    thread: RunThread,
    until: Until,
) -> None:
    with TableRing(url, slots=8, subscribers=["main", "audit"], scattered=True) as ring:
        ring.push_many([b"%d" % n for n in range(11 - 4)])
        assert ring.pop_many(3) == [b"0", b"1", b"2"]
    there = restored()
    # A session without notifications looks by itself, but not within this test.
    monkeypatch.setattr(postgresql, "TOLD_WAIT", 1e6)
    monkeypatch.setattr(postgresql, "UNTOLD_WAIT", 1e6)
    with TableRing.attach(there) as ring, TableRing.attach(there, subscriber="audit") as audit:
        assert ring.pop_many(timeout=0) == [b"3", b"4", b"5", b"6"]
        assert audit.pop_many(timeout=0) == [b"%d" % n for n in range(7)]
        for push in (lambda: ring.push(b"one"), lambda: ring.push_many([b"two", b"three"])):
            waiting = thread(audit.pop_many)
            until(lambda: execute(there, AWAITED))
            push()
            assert waiting.outcome()
        ring.subscribe("late")
        assert ring.positions() == (10, {"main": 7, "audit": 10, "late": 10})


def test_ring_that_was_dumped_in_the_middle_of_traffic_pops_what_its_dump_has(
    url: str, restored: Callable[[], str], thread: RunThread
) -> None:
    stop = threading.Event()
    with TableRing(url, slots=1000, durability="delayed") as ring:
        ring.push_many([b"%d" % n for n in range(500)])

        def work() -> None:
            with TableRing.attach(url, durability="delayed") as mine:
                while not stop.is_set():
                    for data in mine.pop_many(7, timeout=60):
                        mine.push(data)

        workers = [thread(work) for _ in range(3)]
        there = restored()
        stop.set()
        for worker in workers:
            worker.outcome()
    with TableRing.attach(there) as copy:
        rows = copy.table().to_pylist()
        held = sorted(row["message_id"] for row in rows if row["reference_count"])
        found: list[int] = []
        while len(found) < len(held):
            found += copy.pop_batch(timeout=120)["message_id"].to_pylist()
        assert sorted(found) == held
        with pytest.raises(Empty):
            copy.pop_batch(timeout=0)
        number = copy.push(b"next")
        assert number > max(held)
        assert copy.pop_batch(timeout=0)["message_id"].to_pylist() == [number]


def test_ring_in_a_schema_of_another_name_is_refused_until_it_is_renewed(url: str) -> None:
    execute(url, "CREATE SCHEMA before")
    there = f"{url}&options=-csearch_path%3Dbefore,after"
    with TableRing(there, slots=4) as ring:
        ring.push(b"kept")
        execute(url, "ALTER SCHEMA before RENAME TO after")
        with pytest.raises(RingNotFound, match="was dropped since this handle attached"):
            ring.push(b"lost")
        with pytest.raises(Damaged, match=r"for another ring: .*before\.shmring.*; this is after"):
            TableRing.attach(there)
        TableRing.renew(there)
        with TableRing.attach(there) as again:
            assert again.pop(timeout=0) == b"kept"
            assert again.push(b"more") == 1
    execute(url, "DROP SCHEMA after CASCADE")


def test_open_handle_notices_functions_of_another_version_at_its_next_call(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TableRing(url, slots=4) as ring, TableRing.attach(url) as other:
        ring.push(b"0")
        ring.push_many([b"1", b"2"])
        assert other.pop(timeout=0) == b"0"
        renew_as_another_version(url, monkeypatch)
        said = "are version 77, this shmring knows"
        refused(ring, "push push_many", VersionMismatch, said)
        refused(other, "pop pop_many pop_batch lease positions", VersionMismatch, said)
        TableRing.renew(url)
        # The handles are of this version, and go on.
        assert ring.push(b"3", timeout=0) == 3
        assert other.pop_many(timeout=0) == [b"1", b"2", b"3"]


def renew_as_another_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a ring functions of the same names and parameters as ours, but for the version's."""
    with monkeypatch.context() as patch:
        patch.setattr(postgres_ring, "VERSION", 77)
        TableRing.renew(url)


def test_ring_may_be_renewed_while_it_is_used(url: str, thread: RunThread) -> None:
    count = 1500
    popped: list[bytes] = []
    # A call that meets ten renewals, one after the other, gives up: each waits for a push.
    moved = threading.Event()

    def push() -> None:
        with TableRing.attach(url, durability="delayed") as ring:
            for n in range(0, count, 3):
                ring.push(b"%d" % n)
                ring.push_many([b"%d" % (n + 1), b"%d" % (n + 2)])
                moved.set()

    def pop() -> None:
        with TableRing.attach(url, durability="delayed") as ring:
            while len(popped) < count and not pushing.error:
                with contextlib.suppress(Empty, Contended):
                    popped.append(ring.pop(timeout=1.5))
                    popped.extend(ring.pop_many(5, timeout=0))
                    with ring.lease(2, timeout=0) as lease:
                        got = list(lease)
                    popped.extend(got)

    with TableRing(url, slots=16):
        pushing = thread(push)
        popping = thread(pop)
        while popping.is_alive():
            if moved.wait(timeout=0.1):
                moved.clear()
                TableRing.renew(url)
        pushing.outcome()
        popping.outcome()
        assert sorted(popped, key=int) == [b"%d" % n for n in range(count)]


def test_open_handle_of_a_ring_that_was_dropped_says_so(either: str) -> None:
    with TableRing(either, slots=4) as ring:
        ring.push(b"0")
        TableRing.drop(either)
        refused(ring, " ".join(CALLS), RingNotFound, "was dropped since")
        with TableRing(either, slots=4):
            refused(ring, "pop pop_many lease", SubscriberDropped, "was made anew: attach again")


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced", "its folder renamed"])
def test_open_handle_of_a_file_that_has_gone_says_so(tmp_path: Path, how: str) -> None:
    """SQLite itself goes on in it, and nobody sees what is there."""
    file, other = tmp_path / "here" / "ring.db", tmp_path / "other.db"
    file.parent.mkdir()
    with TableRing(f"sqlite:///{file}", slots=9) as ring:
        ring.push_many([b"0", b"1"])
        if how == "removed":
            file.unlink()
        elif how == "renamed":
            file.rename(other)
        elif how == "replaced":
            with TableRing(f"sqlite:///{other}", slots=9):
                pass
            other.rename(file)
        else:
            file.parent.rename(tmp_path / "there")
        calls = "push push_many pop pop_many lease subscribe unsubscribe"
        refused(ring, calls, RingNotFound, r"ring\.db was removed, renamed or replaced")


def test_pop_that_waits_is_told_that_the_file_has_gone(tmp_path: Path, thread: RunThread) -> None:
    file = tmp_path / "ring.db"
    with TableRing(f"sqlite:///{file}", slots=9) as ring:
        waiting = thread(ring.pop)
        file.unlink()
        with pytest.raises(RingNotFound, match="was removed"):
            waiting.outcome()


def test_open_handle_writes_nothing_to_a_ring_of_another_size_in_the_place_of_its_own(
    either: str,
) -> None:
    with TableRing(either, slots=3) as old:
        old.push(b"old")
        TableRing.drop(either)
        with TableRing(either, slots=5) as new:
            new.push_many([b"0", b"1", b"2", b"3"])
            calls = "push push_many pop pop_many subscribe unsubscribe"
            refused(old, calls, RingNotFound, "was dropped since")
            new.push(b"end")
            assert new.pop_many(timeout=0) == [b"0", b"1", b"2", b"3", b"end"]


def test_function_refuses_a_run_longer_than_its_ring(url: str) -> None:
    with (
        TableRing(url, slots=3),
        pytest.raises(sa.exc.DBAPIError, match="4 messages can never fit 3 slots"),
    ):
        execute(url, "SELECT shmring_push_many(array_fill('x'::bytea, ARRAY[4]), 0)")


def test_call_ends_whose_attempts_fail_although_each_look_shows_that_they_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TableRing(f"sqlite:///{tmp_path}/ring.db", slots=3) as ring:
        ring.push(b"0")
        monkeypatch.setattr(SqliteBackend, "push", lambda *_: None)
        monkeypatch.setattr(SqliteBackend, "pop_one", lambda *_: None)
        with pytest.raises(Full):
            ring.push(b"1", timeout=0)
        with pytest.raises(Empty):
            ring.pop(timeout=0)


@pytest.mark.parametrize("added", [("c", "a"), ("a", "c")], ids=["other_bit", "same_bit"])
def test_handle_of_a_subscriber_that_was_removed_takes_nothing_where_it_comes_again(
    either: str, added: tuple[str, str]
) -> None:
    with (
        TableRing(either, slots=8, subscribers=["a", "b"]) as ring,
        TableRing.attach(either, subscriber="a") as old,
    ):
        ring.unsubscribe("a")
        for name in added:
            ring.subscribe(name)
        ring.push_many([b"0", b"1"])
        refused(old, "pop pop_many", SubscriberDropped)
        for name in ("a", "b", "c"):
            with TableRing.attach(either, subscriber=name) as mine:
                assert mine.pop_many(timeout=0) == [b"0", b"1"]


@pytest.mark.parametrize("part", ["TABLE shmring", "TABLE shmring_leases", "SEQUENCE shmring_push"])
def test_part_of_a_ring_that_somebody_dropped_is_missed_by_name(url: str, part: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        execute(url, f"DROP {part} CASCADE")
        # A pop that finds a message, and no lease before it, does without the leases' table.
        damaged = pytest.raises(Damaged, match=rf"lost public\.{part.split()[1]};")
        with damaged, ring.lease(timeout=0):
            pass


def test_function_that_somebody_dropped_is_missed_by_name_and_renewed(url: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        execute(url, "DROP FUNCTION shmring_pop_one")
        lost = r"lost the functions public\.shmring_pop_one; TableRing\.renew"
        with pytest.raises(Damaged, match=lost):
            ring.pop(timeout=0)
        TableRing.renew(url)
        assert ring.pop(timeout=0) == b"0"


WAITING = "SELECT pid FROM pg_locks WHERE NOT granted"
LEFT = (
    "SELECT relname FROM pg_class WHERE relname ~ '^shmring'"
    " UNION ALL SELECT proname FROM pg_proc WHERE proname ~ '^shmring'"
)


def pop(holder: int) -> bytes:
    sequence = f"'shmring_pop_{holder}'::regclass"
    return f"SELECT shmring_pop_one({holder}, {1 << holder}, {sequence}, 0)".encode()


@pytest.mark.parametrize(
    ("wanted", "heir"), [("other", False), ("other", True), (None, False), (None, True)]
)
def test_subscriber_that_leaves_while_a_handle_attaches(
    url: str, monkeypatch: pytest.MonkeyPatch, wanted: str | None, heir: bool
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
        if wanted:
            with pytest.raises(SubscriberNotFound, match="has no subscriber 'other'"):
                TableRing.attach(url, subscriber=wanted)
        else:
            with TableRing.attach(url) as attached:
                assert attached.subscriber == ("heir" if heir else "other")
        if heir:
            with TableRing.attach(url, subscriber="heir") as mine:
                assert mine.pop(timeout=0) == b"0"


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
    # Only the session that attaches looks for deadlocks.
    patient, hasty = (f"{clean.url}&options=-cdeadlock_timeout%3D{t}" for t in ("1h", "1ms"))
    with (
        TableRing(patient, slots=5, unlogged=True, subscribers=["a", "b"]) as ring,
        connect(clean) as session,
    ):
        ring.push(b"0")
        session.execute("TRUNCATE shmring, shmring_leases")  # a crash empties the tables
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


def test_a_look_for_a_push_is_none_for_the_number_that_a_pop_gave_up(clean: Postgres) -> None:
    """Two threads share a handle: one pops, and the other waits for a slot."""
    with TableRing(clean.url, slots=4) as ring, TableRing(clean.url) as other:
        ring.push(b"0")
        assert ring.pop() == b"0"
        other.push(b"1")
        assert other.pop() == b"1"
        popping, pushing = ring._backend, other._backend
        pushing._run("BEGIN")
        assert pushing.push([b"2"], 0, 0) == 2
        assert popping.pop_one(0) is None  # the push of this number has not committed
        pushing._run("COMMIT")
        popping.peek("push")
        other.push(b"3")
        assert popping.pop_one(0) == b"2"
