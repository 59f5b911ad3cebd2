"""Rings dumped and restored, renamed, renewed, dropped and made again beside open handles."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from postgres import Postgres, find_bin
from statements import execute

from shmring.errors import (
    Contended,
    Damaged,
    Empty,
    Full,
    RingNotFound,
    VersionMismatch,
)
from shmring.table_ring import SubscriberDropped, TableRing, postgres_ring, postgresql
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
    # Who is not told looks by himself, but not within this test.
    monkeypatch.setattr(postgresql, "TOLD_WAIT", 1e6)
    monkeypatch.setattr(postgresql, "UNTOLD_WAIT", 1e6)
    with TableRing.attach(there) as ring, TableRing.attach(there, subscriber="audit") as audit:
        assert ring.pop_many(timeout=0) == [b"3", b"4", b"5", b"6"]
        assert audit.pop_many(timeout=0) == [b"%d" % n for n in range(7)]
        for push in (lambda: ring.push(b"one"), lambda: ring.push_many([b"two", b"three"])):
            waiting = thread(audit.pop_many)
            until(lambda: locks(there))
            push()
            assert waiting.outcome()
        ring.subscribe("late")
        assert ring.positions() == (10, {"main": 7, "audit": 10, "late": 10})


def locks(url: str) -> bool:
    """Whether somebody waits to be told."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        query = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = "
            f"{postgres_ring.AWAIT_MESSAGE}"
        )
        return connection.execute(sa.text(query)).scalar_one() > 0


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
        with contextlib.suppress(Empty):
            while True:
                found += copy.pop_batch(timeout=3.0)["message_id"].to_pylist()
        assert sorted(found) == held
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
        for call in (
            lambda: ring.push(b"3", timeout=0),
            lambda: ring.push_many([b"3", b"4"], timeout=0),
            lambda: other.pop(timeout=0),
            lambda: other.pop_many(timeout=0),
            lambda: other.pop_batch(timeout=0),
            lambda: other.claim(timeout=0).__enter__(),
            other.positions,
        ):
            with pytest.raises(VersionMismatch, match="are version 77, this shmring knows"):
                call()
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
    # A call that meets ten renewals, one after the other, gives up: each waits for a push or a pop.
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
                    with ring.claim(2, timeout=0) as claim:
                        got = list(claim)
                    popped.extend(got)
                    moved.set()

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
        for call in (
            lambda: ring.push(b"1", timeout=0),
            lambda: ring.push_many([b"1", b"2"], timeout=0),
            lambda: ring.pop(timeout=0),
            lambda: ring.pop_many(timeout=0),
            lambda: ring.claim(timeout=0).__enter__(),
            ring.positions,
            ring.table,
            lambda: ring.subscribe("late"),
            lambda: ring.unsubscribe("main"),
        ):
            with pytest.raises(RingNotFound, match="was dropped since"):
                call()


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
        for call in (
            lambda: ring.push(b"2", timeout=0),
            lambda: ring.push_many([b"2", b"3"], timeout=0),
            lambda: ring.pop(timeout=0),
            lambda: ring.pop_many(timeout=0),
            lambda: ring.claim(timeout=0).__enter__(),
            lambda: ring.subscribe("late"),
            lambda: ring.unsubscribe("main"),
        ):
            with pytest.raises(RingNotFound, match=r"ring\.db was removed, renamed or replaced"):
                call()


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
            for call in (
                lambda: old.push(b"4", timeout=0),
                lambda: old.push_many([b"4"] * 3, timeout=0),
                lambda: old.pop(timeout=0),
                lambda: old.pop_many(timeout=0),
                lambda: old.subscribe("late"),
                lambda: old.unsubscribe("main"),
            ):
                with pytest.raises(RingNotFound, match="was dropped since"):
                    call()
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


def test_handle_of_a_subscriber_that_was_removed_takes_nothing_where_it_comes_again(
    either: str,
) -> None:
    with (
        TableRing(either, slots=8, subscribers=["a", "b"]) as ring,
        TableRing.attach(either, subscriber="a") as old,
    ):
        ring.unsubscribe("a")
        ring.subscribe("c")
        ring.subscribe("a")
        ring.push_many([b"0", b"1"])
        for call in (lambda: old.pop(timeout=0), lambda: old.pop_many(timeout=0)):
            with pytest.raises(SubscriberDropped):
                call()
        for name in ("a", "b", "c"):
            with TableRing.attach(either, subscriber=name) as mine:
                assert mine.pop_many(timeout=0) == [b"0", b"1"]


@pytest.mark.parametrize("part", ["TABLE shmring", "TABLE shmring_claims", "SEQUENCE shmring_push"])
def test_part_of_a_ring_that_somebody_dropped_is_missed_by_name(url: str, part: str) -> None:
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        execute(url, f"DROP {part} CASCADE")
        # A pop that finds a message, and no claim before it, does without the claims' table.
        damaged = pytest.raises(Damaged, match=rf"lost public\.{part.split()[1]};")
        with damaged, ring.claim(timeout=0):
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
