"""SIGKILL at random moments, disk full on a real file system, truncation at every byte.

``SHMRING_KILLS`` sets the number of kills; the default keeps the run short.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from queue_items import contents, put

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.queues import session, transaction_log
from shmring.errors import Damaged, NoSpace

KILLS = 40  # kills in one run
RUNS = range(-(-int(os.environ.get("SHMRING_KILLS", "40")) // KILLS))
SIZES = (0, 10, 300, 5_000, 60_000)


class Killed:
    """Runs work in a child process, kills it at a random moment, and returns what it told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def run(self, work: Callable[[Callable[[str], None]], None]) -> list[str]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:

            def tell(line: str) -> None:
                os.write(writer, line.encode() + b"\n")

            try:
                os.close(reader)
                work(tell)
            finally:
                os._exit(1)
        os.close(writer)
        try:
            with os.fdopen(reader) as told:
                # So many lines, however slow the disk is, and then at any moment of a flush.
                lines = [told.readline() for _ in range(self.rng.randrange(1, 12))]
                time.sleep(self.rng.random() ** 2 * 0.003)
                os.kill(pid, signal.SIGKILL)
                return "".join([*lines, told.read()]).splitlines()
        finally:
            os.waitpid(pid, 0)


def follow(told: list[str], state: list[int]) -> list[list[int]]:
    """Return the states allowed after the kill: each line is "try <taken> <ids...>" or "done"."""
    trial = state
    for line in told:
        word, *numbers = line.split()
        if word == "try":
            taken, *ids = map(int, numbers)
            trial = state[taken:] + ids
        else:
            state = trial
    return [state, trial]


def payload(number: int) -> bytes:
    return b"%d:" % number + bytes([number % 251]) * SIZES[number % len(SIZES)]


def numbers(items: list[bytes]) -> list[int]:
    found = [int(item.split(b":")[0]) for item in items]
    assert items == [payload(number) for number in found]
    return found


@pytest.mark.kill
@pytest.mark.parametrize("kind", ["sync", "delayed", "append_only"])
@pytest.mark.parametrize("run", RUNS)
def test_killed_queue_reopens_before_or_after_its_last_flush(
    tmp_path: Path, kind: Any, run: int
) -> None:
    rng = random.Random(f"{kind} {run}")
    killed = Killed(rng)
    state: list[int] = []
    done = 0

    def opened() -> PersistentQueue | AppendOnlyQueue:
        if kind == "append_only":
            return AppendOnlyQueue(tmp_path / "q")
        return PersistentQueue(
            tmp_path / "q", file_size=200_000, log_size=30_000, durability=kind, delay=0.002
        )

    def work(tell: Callable[[str], None]) -> None:
        q = opened()
        ends = q.session() if isinstance(q, PersistentQueue) else q
        count = (max(state) if state else 0) + 1000
        for i in range(300):
            # More comes out when much is in, so that files drain.
            taken = sum(ends.dequeue() is not None for _ in range(rng.choice([0, 1, 2, 4])))
            ids = list(range(count, count + rng.randrange(4)))
            count += len(ids)
            for number in ids:
                ends.enqueue(payload(number))
            tell(f"try {taken} {' '.join(map(str, ids))}")
            if isinstance(ends, AppendOnlyQueue) and i % 10 == 9:
                ends.compact()
            else:
                ends.flush()
            tell("done")
        q.close()

    for _ in range(KILLS):
        told = killed.run(work)
        done += told.count("done")
        allowed = follow(told, state)
        with opened() as q:
            state = numbers(contents(q))
        assert state in allowed
    assert done > KILLS


@pytest.mark.parametrize("size", [20_000, 300_000])
def test_full_disk_makes_flush_fail_and_dequeue_still_works(small_disk: Path, size: int) -> None:
    with PersistentQueue(small_disk / "q") as q, q.session() as s:

        def fill() -> None:
            while True:
                put(s, b"%d:" % len(q) + bytes(size))

        with pytest.raises(NoSpace, match="disk is full"):
            fill()
        count = len(q)
        s.rollback()
        assert s.dequeue() == b"0:" + bytes(size)
        s.flush()
    with PersistentQueue(small_disk / "q") as q, q.session() as s:
        for i in range(1, count):
            assert s.dequeue() == b"%d:" % i + bytes(size)
            s.flush()
        put(s, bytes(size))  # a new log keeps the item, with hardly any room for it


@pytest.mark.crash
@pytest.mark.parametrize("kind", [PersistentQueue, AppendOnlyQueue])
def test_file_truncated_at_every_byte_is_an_earlier_state_or_damage(
    tmp_path: Path, kind: type[PersistentQueue | AppendOnlyQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "_CHUNK", 64)
    options: dict[str, Any] = {"log_reserve": 64} if kind is PersistentQueue else {}
    name = "transaction.log" if kind is PersistentQueue else ""  # the queue's path is its file
    states: list[list[bytes]] = [[]]
    q = kind(tmp_path / "source", **options)
    ends = q.session() if isinstance(q, PersistentQueue) else q
    for i in range(6):
        ends.enqueue(b"item %d" % i)
        if i % 2:
            ends.dequeue()
        ends.flush()
        states.append([b"item %d" % j for j in range((i + 1) // 2, i + 1)])
    raw = (tmp_path / "source" / name).read_bytes()
    q.close()
    last = 0
    for nbytes in range(len(raw) + 1):
        path = tmp_path / str(nbytes) / "q"
        (path / name).parent.mkdir(parents=True)
        (path / name).write_bytes(raw[:nbytes])
        if nbytes < 64:
            with pytest.raises(Damaged):
                kind(path, **options)
        else:
            with kind(path, **options) as q:
                found = contents(q)
            # One transaction may leave the same state as another, so look no further back.
            assert found in states[last : last + 2]
            last += states[last : last + 2].index(found)
        shutil.rmtree(tmp_path / str(nbytes))
    assert last == 6


@pytest.mark.crash
def test_data_file_truncated_at_every_byte_is_damage_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_INLINE_BYTES", 0)
    path = tmp_path / "q"
    with PersistentQueue(path, log_reserve=64) as q, q.session() as s:
        for i in range(3):
            s.enqueue(b"%d" % i * 50)
        s.flush()
        put(s, b"last")
    (data,) = path.glob("data.*")
    raw = data.read_bytes()
    assert len(raw) == 154
    for nbytes in range(len(raw)):
        data.write_bytes(raw[:nbytes])
        with pytest.raises(Damaged, match=f"{data.name} is {nbytes} bytes long, but item"):
            PersistentQueue(path, log_reserve=64)
    data.write_bytes(raw)
    with PersistentQueue(path, log_reserve=64) as q:
        assert len(contents(q)) == 4
