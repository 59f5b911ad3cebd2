"""A TableRing whose sessions end, whose threads and processes mix, whose users may not."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from fixture_types import RunThread, Until
from statements import execute, refused

from shmring.errors import Contended, Empty, ForkedHandle, PermissionRefused
from shmring.table_ring import Lease, LeaseOpen, TableRing


def named(url: str, name: str) -> str:
    return f"{url}&application_name={name}"


def terminate(url: str, name: str) -> None:
    """End a session, and return when it is gone; one of an earlier test may be ending still."""
    named = f"FROM pg_stat_activity WHERE application_name = '{name}'"
    assert any(execute(url, f"SELECT pg_terminate_backend(pid, 60000) {named}"))


def waiting(url: str) -> list[Any]:
    """The advisory locks that say that somebody waits."""
    held = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND objid >= 100"
    return execute(url, held)


def both(first: TableRing, second: TableRing, work: Callable[[], None]) -> None:
    with first.lease(2) as one, second.lease(2) as two:
        assert (list(one), list(two)) == ([b"0", b"1"], [b"2", b"3"])
        work()


class Failed(Exception):
    """The exception that ends the tests' work."""


def test_lease_of_a_session_that_is_terminated_comes_back(url: str) -> None:
    with (
        TableRing(url, slots=8) as ring,
        TableRing.attach(named(url, "first")) as first,
        TableRing.attach(named(url, "second")) as second,
    ):
        ring.push_many([b"%d" % n for n in range(6)])
        with pytest.raises(sa.exc.OperationalError):
            both(first, second, lambda: terminate(url, "first"))
        assert second.pop_many(timeout=0) == [b"0", b"1"]
        # The handle has connected anew.
        assert first.pop_many(timeout=0) == [b"4", b"5"]
        assert ring.positions() == (6, {"main": 6})


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("SELECT 1", Contended, "connection was lost"),
        ("COMMIT", Contended, "by hand"),
        ("ROLLBACK", Contended, "by hand"),
        ("SELECT 1 / 0", sa.exc.DBAPIError, "aborted"),
    ],
)
def test_lease_whose_transaction_ends_within_its_block_pops_nothing(
    url: str, statement: str, error: type[Exception], said: str
) -> None:
    with TableRing(url, slots=8) as ring, TableRing.attach(named(url, "leasing")) as first:
        ring.push_many([b"0", b"1"])

        def end(lease: Lease) -> None:
            if "lost" in said:
                terminate(url, "leasing")
            with contextlib.suppress(sa.exc.DBAPIError):
                lease.connection.exec_driver_sql(statement)
            assert ring.pop(timeout=0) == b"0"

        with pytest.raises(error, match=said), first.lease(2) as lease:
            end(lease)
        assert ring.pop_many(timeout=0) == [b"1"]
        assert first.push(b"2") == 2


def test_session_that_is_terminated_while_a_pop_waits(
    url: str, thread: RunThread, until: Until
) -> None:
    with TableRing(url, slots=8) as ring, TableRing.attach(named(url, "waits")) as waits:
        popping = thread(lambda: waits.pop(timeout=60))
        until(lambda: waiting(url))
        terminate(url, "waits")
        with pytest.raises(sa.exc.OperationalError):
            popping.outcome()
        assert waiting(url) == []
        ring.push(b"0")
        assert waits.pop(timeout=60) == b"0"


def test_end_of_a_session_that_only_its_notifications_meet(url: str) -> None:
    with TableRing.create(named(url, "waits"), slots=8) as waits:
        backend = waits._backend
        terminate(url, "waits")
        backend._driver.pgconn.consume_input()  # a look may read the server's last message, too
        with pytest.raises(sa.exc.OperationalError):
            backend.told()


def test_thread_that_waits_while_another_leases_leaves_no_lock(
    url: str, thread: RunThread, until: Until
) -> None:
    with TableRing(url, slots=8) as ring, TableRing.attach(url) as other:
        ring.push(b"0")
        pushing = thread(lambda: ring.push_many([b"x"] * 8, timeout=60))
        until(lambda: waiting(url))
        with ring.lease(), pytest.raises(LeaseOpen):
            pushing.outcome()
        assert waiting(url) == []
        assert other.push(b"1") == 1


def test_threads_that_share_a_handle_lose_and_double_nothing(url: str, thread: RunThread) -> None:
    # Leases of one thread meet pushes, pops and leases of others at every moment.
    count, group = 60, 3
    popped: list[bytes] = []
    with TableRing(url, slots=16, durability="delayed") as ring:

        def retry(call: Callable[[], Any]) -> Any:
            while True:
                try:
                    return call()
                except LeaseOpen:
                    os.sched_yield()

        def push(worker: int) -> None:
            for n in range(count):
                retry(partial(ring.push, b"%d %d" % (worker, n)))

        def pop() -> None:
            while len(popped) < count * group:
                with contextlib.suppress(Empty):
                    popped.append(retry(lambda: ring.pop(timeout=0.01)))

        def lease() -> None:
            while len(popped) < count * group:
                with contextlib.suppress(Empty, LeaseOpen, Failed), ring.lease(3, timeout=0) as got:
                    if len(got) == 2:
                        raise Failed
                    popped.extend(got)

        work = [thread(push, n) for n in range(group)]
        for each in [*work, *map(thread, (pop, lease, lease))]:
            each.outcome()
        expected = sorted(b"%d %d" % (w, n) for w in range(group) for n in range(count))
        assert sorted(popped) == expected
        assert waiting(url) == []


def test_child_that_closes_and_collects_a_handle_leaves_the_parents_alone(
    url: str, in_child: Callable[..., None]
) -> None:
    handles = [TableRing(named(url, "parent"), slots=8)]
    handles[0].push_many([b"0", b"1"])
    (session,) = execute(url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'parent'")

    def child() -> None:
        with pytest.raises(ForkedHandle):
            handles[0].pop(timeout=0)
        handles.pop().close()
        gc.collect()

    with handles[0].lease() as lease:
        lease.connection.execute(sa.text("CREATE TABLE written (n int)"))
        in_child(child)
        assert list(lease) == [b"0"]
    assert handles[0].pop(timeout=0) == b"1"
    assert execute(url, "SELECT count(*) FROM written") == [0]
    there = "SELECT pid FROM pg_stat_activity WHERE application_name = 'parent'"
    assert execute(url, there) == [session]
    handles.pop().close()


def test_user_who_may_only_read_is_refused_in_words_and_may_look(url: str) -> None:
    reader = url.replace("postgres@", "reader@", 1)
    with TableRing(url, slots=3) as ring:
        ring.push(b"0")
        execute(
            url,
            "CREATE ROLE reader LOGIN",
            "GRANT USAGE ON SCHEMA public TO reader",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
            "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO reader",
        )
        with TableRing.attach(reader) as other:
            assert other.table()["message"].to_pylist() == [b"0", None, None]
            calls = "positions push push_many pop pop_many lease subscribe"
            refused(other, calls, PermissionRefused, "lists the grants")
        assert ring.positions() == (1, {"main": 0})
        assert ring.pop(timeout=0) == b"0"
    execute(url, "DROP OWNED BY reader", "DROP ROLE reader")


@pytest.mark.parametrize(
    "setting", ["quote_all_identifiers%3Don", "client_encoding%3Dlatin1", "bytea_output%3Descape"]
)
def test_settings_of_a_session_change_nothing(url: str, setting: str) -> None:
    name = "größer als 2³ €"
    with (
        TableRing(url, slots=3, subscribers=["main", name]) as ring,
        TableRing.attach(f"{url}&options=-c{setting}", subscriber=name) as other,
    ):
        ring.push(b"\\0\xff")
        assert other.pop(timeout=0) == b"\\0\xff"
        assert other.positions() == (1, {"main": 0, name: 1})
        other.subscribe("late 日")
        ring.push(b"1")
        assert sorted(ring.positions()[1]) == sorted(["main", name, "late 日"])


def test_wait_in_a_process_with_thousands_of_files(
    url: str, thread: RunThread, until: Until
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with TableRing(url, slots=3) as ring, TableRing.attach(url) as other:
            popping = thread(lambda: ring.pop(timeout=60))
            until(lambda: waiting(url))
            other.push(b"0")
            assert popping.outcome() == b"0"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
