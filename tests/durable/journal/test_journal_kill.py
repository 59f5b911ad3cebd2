"""The journal under SIGKILL at random moments, and on a real disk that is full.

``SHMRING_KILLS`` sets the number of kills; the default keeps the run short.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Until

import shmring
from shmring._shmring import KIND_END
from shmring.durable import Retention, replay
from shmring.durable.journal import journaller
from shmring.errors import BranchNotFound, NoSpace, NotDurable

KILLS = 20  # kills in one run
PATIENCE = 120.0  # seconds
ADMIN_LOCK_OFFSET = 8  # native/core/src/layout.h
RUNS = range(-(-int(os.environ.get("SHMRING_KILLS", "40")) // KILLS))


def message(number: int) -> bytes:
    return b"%d:" % number + bytes([number % 251]) * (number * 37 % 900)


def numbers(path: Path, body: Callable[[int], bytes] = message) -> list[int]:
    found: list[int] = []
    for each in replay(path):
        if each.kind == KIND_END:
            continue
        number = int(bytes(each.data).split(b":")[0])
        assert bytes(each.data) == body(number)
        found.append(number)
    return found


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Runs it in a child; yields what kills that."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    try:
        yield lambda: os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def push_numbers(ring: shmring.Ring, told: int) -> None:
    """Push for ever; a number is pushed again only if nothing was published under it."""
    number = 0
    with ring.producer() as out:
        while True:
            try:
                out.push(message(number), durable=True)
            except BranchNotFound:
                continue
            except NotDurable as error:
                number += error.message_id >= 0
                continue
            os.write(told, b"%d\n" % number)
            number += 1


either_retention = pytest.mark.parametrize(
    "retention",
    [Retention(max_bytes=500_000), Retention(consumed_by=["done"])],
    ids=["max_bytes", "consumed_by"],
)


@pytest.mark.kill
@pytest.mark.parametrize("run", RUNS)
def test_a_journal_killed_at_any_moment_misses_and_repeats_nothing(
    ring: shmring.Ring, tmp_path: Path, run: int
) -> None:
    rng = random.Random(run)
    reader, writer = os.pipe()
    lines: list[str] = []
    with os.fdopen(reader) as told, forked(lambda: push_numbers(ring, writer)):
        os.close(writer)
        for _ in range(KILLS):
            with forked(lambda: ring.journal(tmp_path, segment_bytes=30_000).wait()) as kill:
                lines += [told.readline() for _ in range(rng.randrange(1, 12))]
                time.sleep(rng.random() ** 2 * 0.003)
                kill()
    with ring.journal(tmp_path), ring.producer() as out:
        out.push_end()
        out.wait_durable(ring.claimed - 1)
    found = numbers(tmp_path)
    assert found == list(range(len(found)))
    assert {int(line) for line in lines} <= set(found)
    assert len(lines) >= KILLS


@contextlib.contextmanager
def ring_locked(ring: shmring.Ring) -> Iterator[None]:
    """Hold the ring's lock, as a process does that joins, and for long if it is stopped."""
    fd = os.open(ring.path, os.O_RDWR)
    try:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, ADMIN_LOCK_OFFSET, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(fd)


@pytest.mark.parametrize("closes", [False, True])
def test_a_journal_writes_first_what_a_dead_one_had_on_lease(
    ring: shmring.Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    ring.subscribe("journal", exclusive=True)
    reader, writer = os.pipe()

    def lease_some() -> None:
        with ring.consumer("journal", exclusive=True) as inp:
            held = inp.lease_many(6)
            os.write(writer, b"%d\n" % len(held))
            signal.pause()

    locked = contextlib.ExitStack()
    join = journaller._join

    def join_and_lock(*arguments: Any, **options: Any) -> Any:
        consumer = join(*arguments, **options)
        locked.enter_context(ring_locked(ring))
        return consumer

    with ring.producer() as out, locked:
        for number in range(6):
            out.push(message(number))
        with forked(lease_some), os.fdopen(reader) as told:
            assert told.readline() == "6\n"
        for number in range(6, 20):
            out.push(message(number))
        monkeypatch.setattr(journaller, "_join", join_and_lock)
        with ring.journal(tmp_path):
            with pytest.raises(NotDurable):
                out.wait_durable(19, timeout=0.5)
            if not closes:
                locked.close()
                out.wait_durable(ring.claimed - 1, timeout=PATIENCE)
        locked.close()
        monkeypatch.undo()
        with ring.journal(tmp_path):
            out.wait_durable(ring.claimed - 1, timeout=PATIENCE)
    os.close(writer)
    assert numbers(tmp_path) == list(range(20))


@either_retention
def test_a_journal_on_a_full_disk_forgets_what_it_may(
    ring: shmring.Ring, small_disk: Path, retention: Retention
) -> None:
    path = small_disk / "journal"
    ring.subscribe("done")
    number = 0
    with ring.producer() as out, ring.consumer("done") as done:
        journal = ring.journal(path, segment_bytes=100_000)
        while journal.error is None:
            with suppress(shmring.Full):
                out.push(message(number), timeout=0.5)
                number += 1
            with suppress(shmring.Empty):
                done.pop(timeout=0)
        with pytest.raises(NoSpace):
            journal.close()
        with ring.journal(path, segment_bytes=100_000, retention=retention):
            out.push(message(number), durable=True)
    found = numbers(path)
    assert found == list(range(found[0], number + 1))
    assert found[0] > 0


def large_behind_small(number: int) -> bytes:
    return b"%d:" % number + bytes(10 if number < 2_000 else 30_000)


@either_retention
@pytest.mark.parametrize(("body", "count"), [(message, 9_000), (large_behind_small, 2_300)])
def test_a_journal_takes_in_turn_what_is_larger_than_its_disk(
    name: str, small_disk: Path, retention: Retention, body: Callable[[int], bytes], count: int
) -> None:
    with shmring.create(name, slots=32_768, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("journal", exclusive=True)
        ring.subscribe("done", after="journal")
        for number in range(count):
            out.push(body(number))
        with (
            ring.journal(small_disk / "journal", retention=retention),
            ring.consumer("done") as done,
        ):
            for number in range(count):
                assert done.pop(timeout=PATIENCE) == body(number)
    found = numbers(small_disk / "journal", body)
    assert found == list(range(found[0], count))
    assert found[0] > 0


def test_a_journal_closed_on_a_full_disk_says_so_and_loses_nothing(
    ring: shmring.Ring, small_disk: Path, until: Until
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2_050_000))
    path = small_disk / "journal"
    journal = ring.journal(path)
    with ring.producer() as out:
        for number in range(200):
            out.push(message(number))
        until(lambda: journal.error is not None)
        with pytest.raises(NoSpace, match="disk is full"):
            journal.close()
        ballast.unlink()
        with ring.journal(path):
            out.wait_durable(ring.claimed - 1)
    assert numbers(path) == list(range(200))
