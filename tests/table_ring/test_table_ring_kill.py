"""Four clients of a table ring, killed at random; what each did is written beside its pops.

``SHMRING_KILL_SECONDS`` sets for how long; the default keeps the run short.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from postgres import postgres
from table_workers import RECORD, Worker, by_worker, settle

from shmring.errors import Contended, Empty, Full
from shmring.table_ring import TableRing

SECONDS = float(os.environ.get("SHMRING_KILL_SECONDS", "3"))
CLIENTS = 4
BATCH = 5
SEEN = sa.text("INSERT INTO seen VALUES (:worker, :number)")

pytestmark = pytest.mark.kill


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ring.db"
        return
    with postgres() as server:
        yield server.url


def pop(ring: TableRing, limit: int, timeout: float = 0.01) -> None:
    """Pop messages and write down which, in one transaction; none twice, says the table's key."""
    with ring.lease(limit, timeout=timeout) as lease:
        rows = [RECORD.unpack(data) for data in lease]
        values = [{"worker": worker, "number": number} for worker, number in rows]
        lease.connection.execute(SEEN, values)


def client(url: str, who: int, seed: int) -> Worker:
    """Pushes and pops, one and several, until it is killed; reports what it pushed."""

    def work(report: Callable[[int, int], None]) -> None:
        rng = random.Random(seed)
        number = 0
        with TableRing.attach(url, durability="delayed") as ring:
            while True:
                try:
                    count = rng.choice((1, 1, BATCH))
                    rows = [RECORD.pack(who, number + n) for n in range(count)]
                    ring.push_many(rows, timeout=0.01)
                    number += count
                    report(who, number)
                    pop(ring, rng.choice((1, BATCH)))
                except (Full, Empty, Contended):
                    _try_pop(ring)

    return Worker(work)


def _try_pop(ring: TableRing) -> None:
    try:
        pop(ring, BATCH)
    except (Empty, Contended):
        return


def pop_all(ring: TableRing) -> None:
    while True:
        pop(ring, 1000, timeout=3.0)


def test_killed_clients_lose_and_double_nothing(url: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE seen (worker BIGINT, number BIGINT, PRIMARY KEY (worker, number))"
            )
        )
    rng = random.Random(1)
    confirmed: dict[int, int] = {}
    kills = 0
    with TableRing(url, slots=400, scattered=True) as ring:
        end = time.monotonic() + SECONDS
        clients: dict[int, Worker] = {}
        while time.monotonic() < end or kills < CLIENTS:
            while len(clients) < CLIENTS:
                who = kills + len(clients)
                clients[who] = client(url, who, seed=who)
            for who, worker in list(clients.items())[: rng.randrange(1, CLIENTS + 1)]:
                reports = worker.take(rng.randrange(1, 12))
                time.sleep(rng.random() ** 2 * 0.01)
                reports += worker.kill()
                worker.__exit__()
                del clients[who]
                confirmed[who] = max(number for _, number in reports)
                kills += 1
        for who, worker in clients.items():
            reports = worker.kill()
            worker.__exit__()
            confirmed[who] = max((number for _, number in reports), default=0)
        settle(url)
        with pytest.raises(Empty):
            pop_all(ring)
        assert {row["reference_count"] for row in ring.table().to_pylist()} == {0}
        push, pops = ring.positions()
        assert pops == {"main": push}
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT worker, number FROM seen ORDER BY 1, 2")).all()
    seen = by_worker([(row[0], row[1]) for row in found])
    # Shown by `pytest -rP`.
    print(f"{kills} kills, {sum(confirmed.values())} pushed for sure, {len(found)} popped once")
    for who, count in confirmed.items():
        got = seen.get(who, [])
        assert got == list(range(len(got)))
        assert count <= len(got) <= count + BATCH
    engine.dispose()
