"""TableRing between processes that are killed, stopped and cut off, and a server that crashes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres import Postgres, postgres
from table_workers import RECORD, Worker, by_worker, drain, popper, pusher, settle

from shmring.table_ring import TableRing


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[str]:
    if request.param == "sqlite":
        # Its writers do not queue: one of many may miss the lock for long. Forks have it too.
        monkeypatch.setattr("shmring.table_ring.backend.Backend.lock_seconds", 600.0)
        yield f"sqlite:///{tmp_path}/ring.db"
        return
    address = request.getfixturevalue("server").url
    yield address
    TableRing.drop(address)


def test_full_speed_both_ways_loses_doubles_and_reorders_nothing(url: str) -> None:
    # A small ring is full and empty all the time; batches of two sizes meet at the cursors.
    count = 240
    with TableRing(
        url, slots=24, scattered=True, subscribers=["main", "audit"], subscriber="audit"
    ) as audit:
        workers = [
            pusher(url, worker, count, batch) for worker, batch in enumerate((1, 1, 3, 8))
        ] + [popper(url, limit=limit) for limit in (1, 5)]
        seen = [RECORD.unpack(audit.pop(timeout=120)) for _ in range(4 * count)]
        # Each subscriber sees each message; every pusher's come in its order.
        assert by_worker(seen) == {worker: list(range(count)) for worker in range(4)}
        for worker in workers[:4]:
            worker.finish()
        while audit.positions()[1]["main"] < 4 * count:
            os.sched_yield()
        shared = [worker.kill() for worker in workers[4:]]
        for worker in workers:
            worker.__exit__()
    # Poppers that share a subscriber see each message once, but a late push's after later ones.
    # Killed after their last pop was committed, a report may be missing; none is there twice.
    everything = sorted(record for records in shared for record in records)
    assert len(set(everything)) == len(everything) >= 4 * count - (1 + 5)


def test_batches_of_many_pushers_never_mix(url: str) -> None:
    # Long runs that begin at the same number: without the cursor's lock they would interleave.
    batch, count, group = 64, 640, 4
    with TableRing(url, slots=group * count) as ring:
        workers = [pusher(url, n, count, batch, durability="delayed") for n in range(group)]
        for worker in workers:
            worker.finish()
            worker.__exit__()
        found = drain(url)
        assert ring.positions()[0] == group * count
    for first in range(0, group * count, batch):
        worker, n = found[first]
        assert found[first : first + batch] == [(worker, k) for k in range(n, n + batch)]
    assert by_worker(found) == {n: list(range(count)) for n in range(group)}


def test_subscribers_come_and_go_while_traffic_flows(url: str) -> None:
    # Batched pops and unsubscribe count down the same rows in different orders.
    names = ["main", "a", "b"]
    with TableRing(url, slots=64, scattered=True, subscribers=names, durability="delayed") as ring:
        with (
            pusher(url, 0, 1 << 40, 4, durability="delayed"),
            popper(url, "a", limit=16) as a,
            popper(url, "b", limit=16) as b,
        ):
            seen: list[int] = []
            for round_ in range(15):
                seen += [RECORD.unpack(data)[1] for data in ring.pop_many(16, timeout=120)]
                ring.subscribe(f"extra {round_}")
                seen += [RECORD.unpack(data)[1] for data in ring.pop_many(16, timeout=120)]
                ring.unsubscribe(f"extra {round_}")
            for worker in (a, b):
                assert worker.take(100) == [(0, n) for n in range(100)]
        assert seen == list(range(len(seen)))
        settle(url)
        ring.unsubscribe("a")
        ring.unsubscribe("b")
        # Everybody's counts agree: what main has not popped is held once, the rest is free.
        push, positions = ring.positions()
        held = sorted(n for n in ring.table()["message_id"].to_pylist() if n is not None)
        assert held == list(range(positions["main"], push))
        assert sum(ring.table()["reference_count"].to_pylist()) == len(held)


def test_stopped_clients_hold_up_nobody(server: Postgres) -> None:
    with TableRing(server.url, slots=5000, durability="delayed") as ring:
        for number in range(10):
            with pusher(server.url, number, 400) as push, popper(server.url) as pop:
                push.take(1 + number)
                pop.take(1 + number)
                for worker in (push, pop):
                    os.kill(worker.pid, signal.SIGSTOP)
                # The server finishes the calls of killed processes: perhaps one pop.
                for _ in range(2):
                    ring.push(RECORD.pack(99, number), timeout=0)
                ring.pop(timeout=0)
    drain(server.url)
    TableRing.drop(server.url)


def test_killed_creators_leave_a_whole_ring_or_none(url: str) -> None:
    def create(_: Callable[[int, int], None]) -> None:
        TableRing(url, slots=20_000).close()

    for attempt in range(4):
        with Worker(create) as worker:
            for _ in range(attempt * 20_000):
                os.sched_yield()
            worker.kill()
    with TableRing(url, slots=20_000) as ring:
        assert ring.table().num_rows == 20_000
        assert ring.push(b"x", timeout=0) == 0


@pytest.mark.parametrize("durability", ["sync", "delayed"])
def test_server_crash_keeps_a_prefix_of_each_pusher(server: Postgres, durability: Any) -> None:
    with TableRing(server.url, slots=20_000) as ring:
        ring.push(RECORD.pack(9, 0))
        workers = [pusher(server.url, n, 1 << 40, durability=durability) for n in range(3)]
        reports = [record for worker in workers for record in worker.take(40)]
        server.kill()
        for worker in workers:
            reports += worker.kill()
            worker.__exit__()
        server.start()
        # The handle from before the crash says so once, then connects again.
        with pytest.raises(sa.exc.OperationalError):
            ring.positions()
        pushed = by_worker(drain(server.url))
        assert pushed.pop(9) == [0]
        total = 1 + sum(map(len, pushed.values()))
        # A number that a pusher had drawn when the server went is passed over.
        at, popped = ring.positions()
        assert total <= at <= total + len(workers)
        assert popped == {"main": at}
        assert ring.push(b"after", timeout=0) == at
        assert ring.pop(timeout=0) == b"after"
    TableRing.drop(server.url)
    for worker, confirmed in by_worker(reports).items():
        got = pushed.get(worker, [])
        assert got == list(range(len(got)))
        assert len(got) <= len(confirmed) + 1
        if durability == "sync":
            assert len(got) >= len(confirmed)


def test_server_of_the_tests_ends_with_who_started_it(child, until):
    started = child(
        """
        import sys
        from table_ring.postgres import postgres

        with postgres() as server:
            print(server.directory, flush=True)
            sys.stdin.readline()
        """
    )
    directory = Path(started.line())
    pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    started.kill()
    until(lambda: not directory.exists())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
