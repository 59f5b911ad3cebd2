"""Property tests: both durable queues against plain lists, with crashes in between."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_disk import SimulatedDisk

from shmring.durable import AppendOnlyQueue, PersistentQueue, Session
from shmring.errors import Closed, NoSpace


def _large(size: int) -> bytes:
    return bytes([size % 251]) * size


ITEM: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=40), st.integers(30_000, 40_000).map(_large)
)
pytestmark = pytest.mark.slow
SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)


class PersistentModel(RuleBasedStateMachine):
    """Items are numbered as they are committed; the queue is the untaken ones in order."""

    @initialize(delayed=st.booleans())
    def start(self, delayed: bool) -> None:
        self.delayed = delayed
        self.disk = SimulatedDisk()
        self.live: dict[int, bytes] = {}
        self.next = 0
        self.open()
        for number in range(6):
            self.enqueue(0, b"%d" % number * 30_000 if number % 2 else b"%d" % number)
            self.flush(0, full=False)

    def open(self) -> None:
        self.queue = PersistentQueue(
            "/q",
            disk=self.disk,
            durability="delayed" if self.delayed else "sync",
            delay=3600,
            file_size=50_000,
            log_size=20_000,
            log_reserve=1000,
        )
        self.sessions: list[tuple[Session, list[bytes], list[int]]] = [
            (self.queue.session(), [], []) for _ in range(3)
        ]
        self.numbers = sorted(self.live)

    @rule(which=st.integers(0, 2), item=ITEM)
    def enqueue(self, which: int, item: bytes) -> None:
        s, put, _ = self.sessions[which]
        s.enqueue(item)
        put.append(item)

    @rule(which=st.integers(0, 2), items=st.lists(ITEM, max_size=6))
    def enqueue_many(self, which: int, items: list[bytes]) -> None:
        s, put, _ = self.sessions[which]
        assert s.enqueue_many(items) == len(items)
        put += items

    @rule(which=st.integers(0, 2), count=st.integers(0, 8))
    def dequeue_many(self, which: int, count: int) -> None:
        s, _, taken = self.sessions[which]
        numbers, self.numbers = self.numbers[:count], self.numbers[count:]
        assert s.dequeue_many(count) == [self.live[number] for number in numbers]
        taken += numbers

    @rule(which=st.integers(0, 2))
    def dequeue(self, which: int) -> None:
        s, _, taken = self.sessions[which]
        if self.numbers:
            number = self.numbers.pop(0)
            assert s.dequeue() == self.live[number]
            taken.append(number)
        else:
            assert s.dequeue() is None

    @rule(which=st.integers(0, 2), full=st.booleans())
    def flush(self, which: int, full: bool) -> None:
        s, put, taken = self.sessions[which]
        self.disk.capacity = 0 if full else 1 << 30
        try:
            s.flush()
        except NoSpace:
            assert full
            return
        finally:
            self.disk.capacity = 1 << 30
        for number in taken:
            del self.live[number]
        for item in put:
            self.live[self.next] = item
            self.numbers.append(self.next)
            self.next += 1
        put.clear()
        taken.clear()

    @rule(which=st.integers(0, 2))
    def rollback(self, which: int) -> None:
        s, put, taken = self.sessions[which]
        s.rollback()
        self.numbers = sorted(self.numbers + taken)
        put.clear()
        taken.clear()

    @rule(how=st.sampled_from(["reset", "close", "crash"]), seed=st.integers(0, 1 << 30))
    def disturb(self, how: str, seed: int) -> None:
        """One rule of several ways: else a session would hardly live for more than three steps."""
        if how == "reset":
            self.reset()
        elif how == "close":
            self.queue.close()
            self.open()
        else:
            self.crash(random.Random(seed))

    def reset(self) -> None:
        self.queue.reset()
        self.live.clear()
        self.numbers.clear()
        for s, put, taken in self.sessions:
            if taken:
                with pytest.raises(Closed, match="reset"):
                    s.flush()
                s.rollback()
                put.clear()
                taken.clear()

    def crash(self, rng: random.Random) -> None:
        self.queue.sync()
        old = self.queue
        self.disk = self.disk.crash(lambda: float(rng.random() < 0.5))
        self.open()
        old.close()

    @invariant()
    def same_length(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.numbers)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.open()
            with self.queue.session() as s:
                assert list(iter(s.dequeue, None)) == [self.live[n] for n in sorted(self.live)]
            self.queue.close()


class AppendOnlyModel(RuleBasedStateMachine):
    """Two lists: the queue, and the queue as last flushed; and every state flushed before."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.queue = AppendOnlyQueue("/d/q", disk=self.disk)
        self.model: list[bytes] = []
        self.flushed: list[bytes] = []
        self.history: dict[int, list[bytes]] = {}

    @rule(item=ITEM)
    def enqueue(self, item: bytes) -> None:
        self.queue.enqueue(item)
        self.model.append(item)

    @rule(items=st.lists(ITEM, max_size=6))
    def enqueue_many(self, items: list[bytes]) -> None:
        assert self.queue.enqueue_many(items) == len(items)
        self.model += items

    @rule()
    def dequeue(self) -> None:
        assert self.queue.dequeue() == (self.model.pop(0) if self.model else None)

    @rule(count=st.integers(0, 8))
    def dequeue_many(self, count: int) -> None:
        assert self.queue.dequeue_many(count) == self.model[:count]
        del self.model[:count]

    @rule()
    def flush(self) -> None:
        self.history[self.queue.flush()] = list(self.model)
        self.flushed = list(self.model)

    @rule()
    def rollback(self) -> None:
        self.queue.rollback()
        self.model = list(self.flushed)

    @rule(how=st.sampled_from(["compact", "reset", "crash"]), seed=st.integers(0, 1 << 30))
    def disturb(self, how: str, seed: int) -> None:
        if how == "compact":
            self.flushed = list(self.model)
            self.history = {self.queue.compact(): list(self.model)}
        elif how == "reset":
            self.model, self.flushed = [], []
            self.history = {self.queue.reset(): []}
        else:
            rng = random.Random(seed)
            self.disk = self.disk.crash(lambda: float(rng.random() < 0.5))
            self.queue = AppendOnlyQueue("/d/q", disk=self.disk)
            self.model = list(self.flushed)

    @precondition(lambda self: self.history)
    @rule(which=st.integers(0, 1 << 30))
    def view(self, which: int) -> None:
        position = sorted(self.history)[which % len(self.history)]
        view = AppendOnlyQueue("/d/q", position=position, disk=self.disk)
        assert list(iter(view.dequeue, None)) == self.history[position]

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.model)


TestPersistentModel = PersistentModel.TestCase
TestPersistentModel.settings = SETTINGS
TestAppendOnlyModel = AppendOnlyModel.TestCase
TestAppendOnlyModel.settings = SETTINGS
