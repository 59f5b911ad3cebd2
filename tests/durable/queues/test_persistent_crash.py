"""Every crash point of a persistent queue, replayed on a simulated disk."""

from __future__ import annotations

import gc
import os
import random

import pytest
from queue_items import contents, put
from simulated_disk import SimulatedDisk

from shmring.durable import PersistentQueue
from shmring.durable.base.files import Disk
from shmring.durable.queues import session, transaction_log
from shmring.durable.queues.data_files import DataFile
from shmring.errors import NoSpace

SEEDS = range(int(os.environ.get("SHMRING_CRASH_SEEDS", "1")))
EACH = [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(len(SEEDS), 6))]
STATE = list[bytes]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_log, "_CHUNK", 700)
    monkeypatch.setattr(session, "_INLINE_BYTES", 100)
    monkeypatch.setattr(session, "BUFFER_BYTES", 600)


def open_queue(disk: Disk, *, delayed: bool = False) -> PersistentQueue:
    return PersistentQueue(
        "/q",
        disk=disk,
        durability="delayed" if delayed else "sync",
        delay=3600,
        file_size=2500,
        log_size=2000,
        log_reserve=700,
    )


class Workload:
    """Random transactions of several sessions, with every state a crash may leave beside them."""

    def __init__(self, seed: int, *, delayed: bool, samples: int) -> None:
        self.rng = random.Random(seed)
        self.delayed = delayed
        self.samples = samples
        self.allowed: list[STATE] = [[]]
        self.state: STATE = []
        self.count = 0
        self.checked = 0
        self.disk = SimulatedDisk()
        self.disk.on_step = self.check
        self.queue = open_queue(self.disk, delayed=delayed)

    def check(self) -> None:
        for image in self.disk.crashes(self.rng, self.samples):
            nested = self.rng.random() < 0.05
            if nested:
                image = self.crash_while_recovering(image)
            self.reopen(image)
            self.checked += 1

        killed = self.disk.kill()
        found = contents(open_queue(killed, delayed=self.delayed))
        assert found in self.allowed
        for image in killed.crashes(self.rng, 2):
            assert contents(open_queue(image)) == found
        killed = self.disk.kill()
        queue = open_queue(killed)
        put(queue, b"later")
        for image in killed.crashes(self.rng, 1):
            assert contents(open_queue(image)) == [*found, b"later"]

    def crash_while_recovering(self, image: SimulatedDisk) -> SimulatedDisk:
        images: list[SimulatedDisk] = []
        image.on_step = lambda: images.extend(image.crashes(self.rng, 1))
        open_queue(image, delayed=self.delayed)
        image.on_step = None
        return self.rng.choice(images) if images else image

    def reopen(self, image: SimulatedDisk) -> None:
        queue = open_queue(image, delayed=self.rng.random() < 0.5)
        found = contents(queue)
        assert found in self.allowed, (found, self.allowed, queue.recovered)
        if self.rng.random() < 0.2:
            put(queue, b"later")
            if self.rng.random() < 0.5:
                queue.sync()
                image = image.crash(lambda: 0.0)
            queue.close()
            again = open_queue(image)
            assert contents(again) == [*found, b"later"]
            assert again.recovered is None

    def item(self) -> bytes:
        self.count += 1
        size = self.rng.choice([0, 5, 30, 200, 700])
        return b"%d:" % self.count + self.rng.randbytes(size) if size else b""

    def transaction(self) -> None:
        rng = self.rng
        with self.queue.session() as s:
            after = list(self.state)
            if rng.random() < 0.5:
                del after[: len(s.dequeue_many(rng.randrange(3)))]
            else:
                for _ in range(rng.randrange(3)):
                    if s.dequeue() is not None:
                        after.pop(0)
            items = [self.item() for _ in range(rng.randrange(3))]
            after += items
            if rng.random() < 0.5:
                s.enqueue_many(items)
            else:
                for item in items:
                    s.enqueue(item)
            if rng.random() < 0.15:
                return
            self.allowed.append(after)
            s.flush()
            self.state = after
            if not self.delayed:
                self.allowed = [after]

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            self.transaction()
            if self.delayed and self.rng.random() < 0.2:
                self.queue.sync()
                self.allowed = [self.state]
            if self.rng.random() < 0.05:
                self.queue.close()
                self.allowed = [self.state]
                self.queue = open_queue(self.disk, delayed=self.delayed)
        self.queue.close()


@pytest.mark.crash
@pytest.mark.parametrize("seed", EACH)
@pytest.mark.parametrize("delayed", [False, True], ids=["sync", "delayed"])
def test_every_crash_leaves_the_state_before_or_after_a_commit(seed: int, delayed: bool) -> None:
    workload = Workload(seed, delayed=delayed, samples=6)
    workload.run(60)
    assert workload.checked > 600


@pytest.mark.crash
@pytest.mark.parametrize("delayed", [False, True], ids=["sync", "delayed"])
def test_crash_in_a_reset_leaves_all_or_nothing(delayed: bool) -> None:
    for seed in SEEDS:
        workload = Workload(seed, delayed=delayed, samples=6)
        workload.run(15)
        workload.queue = queue = open_queue(workload.disk, delayed=delayed)
        before, workload.checked = workload.state, 0
        with queue.session() as s:
            s.dequeue()
            workload.allowed = [before, []]
            queue.reset()
        workload.allowed = [[]]
        workload.check()
        assert workload.checked > 10


def test_reset_on_a_full_disk_deletes_and_frees() -> None:
    disk = SimulatedDisk()
    queue = open_queue(disk)
    with queue.session() as s:
        for _ in range(20):
            s.enqueue(b"x" * 300)
        s.flush()
    disk.capacity = 0
    queue.reset()
    assert not [name for name in disk.names("/q") if name.startswith("data.")]
    assert contents(open_queue(disk.crash(lambda: 0.0))) == []


def test_large_flush_that_fills_several_files_is_atomic() -> None:
    disk = SimulatedDisk()
    queue = open_queue(disk)
    rng = random.Random(1)
    items = [b"%03d" % i + rng.randbytes(300) for i in range(40)]

    def check() -> None:
        for image in disk.crashes(rng, 3):
            assert contents(open_queue(image)) in ([], items)

    disk.on_step = check
    with queue.session() as s:
        for item in items:
            s.enqueue(item)
        s.flush()
    assert sum(name.startswith("data.") for name in disk.names("/q")) > 3


@pytest.mark.parametrize("seed", EACH)
def test_full_disk_loses_nothing_committed_and_dequeue_still_commits(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk()
    queue = open_queue(disk)
    kept: STATE = []

    def put_any(size: int) -> None:
        data = rng.randbytes(size)
        put(queue, data)
        kept.append(data)

    def put_many(size: int) -> None:
        for _ in range(100):
            put_any(size)

    for _ in range(10):
        put_any(rng.choice([20, 400]))
    disk.capacity = 0
    for size in (20, 400, 5000):
        # The log's space beyond its reserve still takes small items.
        with pytest.raises(NoSpace):
            put_many(size)
    assert contents(open_queue(disk.crash(lambda: 0.0))) == kept
    for _ in range(5):
        with queue.session() as s:
            assert s.dequeue() == kept.pop(0)
            s.flush()
    assert contents(open_queue(disk.crash(lambda: 0.0))) == kept
    disk.capacity = 1 << 30
    put_any(400)
    queue.close()
    assert contents(open_queue(disk)) == kept


class CrowdedDisk(SimulatedDisk):
    """A disk on which others take what a rename makes room for."""

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.capacity -= self.room()


def test_a_log_that_cannot_be_written_anew_with_its_reserve_keeps_it() -> None:
    disk = CrowdedDisk()
    queue = open_queue(disk)
    with queue.session() as s:
        put(s, b"a" * 50)
        disk.capacity += 500 - disk.room()  # for a log, and not for a reserve
        queue._rewrite_log()
        assert s.dequeue() == b"a" * 50
        s.flush()
    assert contents(open_queue(disk.crash(lambda: 0.0))) == []


def test_a_log_that_was_written_anew_without_its_reserve_has_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_log, "_SLACK_BYTES", 0)
    disk = SimulatedDisk()
    queue = PersistentQueue("/q", disk=disk, log_reserve=10_000)
    with queue.session() as s:
        s.enqueue_many([b"%d" % n for n in range(20)])
        s.flush()
        for _ in range(100):
            put(s, b"x" * 300)
        s.dequeue_many(110)
        s.flush()
        disk.capacity -= disk.room() - 5000  # for a log, and not for a reserve beside the old one
        queue._rewrite_log()
        disk.capacity -= disk.room()
        for left in reversed(range(10)):
            assert s.dequeue() is not None
            s.flush()
            assert len(queue) == left
    assert contents(open_queue(disk.crash(lambda: 0.0))) == []


def test_a_delayed_queue_forgets_the_files_that_it_deletes() -> None:
    disk = SimulatedDisk()
    queue = open_queue(disk, delayed=True)
    with queue.session() as s:
        for _ in range(2):
            put(s, bytes(100_000))  # read alone: no block of the file stays
            queue.sync()
            s.dequeue()
            s.flush()
            queue.sync()
    gc.collect()
    there = [each for each in gc.get_objects() if isinstance(each, DataFile)]
    assert not [each for each in there if each._disk is disk]  # others' threads may not have ended


def test_flush_refused_by_a_full_disk_can_be_repeated() -> None:
    disk = SimulatedDisk()
    queue = open_queue(disk)
    with queue.session() as s:
        s.enqueue(b"a" * 500)
        disk.capacity = 0
        with pytest.raises(NoSpace):
            s.flush()
        disk.capacity = 1 << 30
        s.flush()
    assert contents(open_queue(disk.crash(lambda: 0.0))) == [b"a" * 500]


def test_files_stay_where_a_full_disk_kept_close_from_saying_that_they_are_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_log, "_CHUNK", 0)
    disk = SimulatedDisk()
    queue = PersistentQueue("/q", disk=disk, durability="delayed", delay=3600, log_reserve=0)
    with queue.session() as s:
        put(s, b"a" * 500)
        assert s.dequeue() == b"a" * 500
        put(s, b"b")
    disk.capacity = 0
    queue.close()
    disk.capacity = 1 << 30
    assert contents(open_queue(disk)) == [b"b"]
