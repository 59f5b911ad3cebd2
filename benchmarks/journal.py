"""What does it cost to have a ring's messages on disk?

Producers and the journal are processes of their own. The plain writer does the journal's work
again, without a ring: as many bytes with as many syncs.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.disk import PIECE, folder, warm
from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import (
    BATCH,
    DEFAULT_SLOTS,
    MESSAGE,
    MESSAGE_BYTES,
    rows,
    unique_name,
)
from benchmarks.processes import Gate, Role, run_together

EXPECTED_BYTES = 1 << 30  # bytes of a stream, at most
PLAIN_COMMITS = "plain: a 300-byte write and a sync each"


@dataclass
class Work:
    """Work of the journal in one round."""

    nbytes: int = 0
    syncs: int = 1
    cpu: float = 0.0


def _journal(gate: Gate, name: str, path: Path, expected: int) -> Work:
    """Run the journal until the producers are done."""
    import shmring

    warm(expected)
    with shmring.attach(name) as ring, ring.journal(path) as journal:
        gate.wait()
        cpu = time.process_time()
        gate.wait()
    return Work(journal.bytes_written, journal.syncs, time.process_time() - cpu)


def _push_runs(gate: Gate, name: str, seconds: float) -> tuple[float, int]:
    import shmring

    array = rows()
    sent = 0
    with shmring.attach(name) as ring, ring.producer() as out:
        gate.wait()
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            last = out.push_many(array) + BATCH - 1
            sent += BATCH * MESSAGE_BYTES
        out.wait_durable(last)
        took = time.perf_counter() - begun
        gate.wait()
    return took, sent


def _each_timed(seconds: float, work: Callable[[], object]) -> list[float]:
    """How long each call took, for so many seconds."""
    times = [time.perf_counter()]
    while times[-1] - times[0] < seconds:
        work()
        times.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(times)]


def _push_durably(gate: Gate, name: str, seconds: float) -> tuple[float, list[float]]:
    import shmring

    with shmring.attach(name) as ring, ring.producer() as out:
        gate.wait()
        took = _each_timed(seconds, lambda: out.push(MESSAGE, durable=True))
        gate.wait()
    return sum(took), took


def _p99_ms(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100] * 1e3


def _run(
    push: Callable[..., Any], producers: int, seconds: float, expected: int = 0
) -> tuple[float, list[Any], Work]:
    """Seconds, what each producer sent, and what the journal did."""
    import shmring

    name = unique_name()
    with folder() as path, shmring.create(name, slots=DEFAULT_SLOTS, temporary=True):
        pinned = producers == 1
        results = run_together(
            [
                Role(_journal, (name, path, expected)),
                *repeat(Role(push, (name, seconds), 0 if pinned else None), producers),
            ]
        )
    work, *pushed = results
    return max(took for took, _ in pushed), [sent for _, sent in pushed], work


def _stream(work: Work, seconds: float) -> Sample:
    took, sent, done = _run(_push_runs, 1, seconds, EXPECTED_BYTES)
    work.nbytes, work.syncs = done.nbytes, done.syncs
    mb = done.nbytes / 1e6
    also = {"MB a sync": mb / done.syncs, "us CPU a MB": done.cpu / mb * 1e6}
    return Sample(sum(sent) / took / 1e6, also)


def _write_plainly(gate: Gate, path: Path, nbytes: int, syncs: int) -> tuple[float, float]:
    data = os.urandom(PIECE)
    writes = nbytes // PIECE
    warm(nbytes)
    file = os.open(path / "plain", os.O_CREAT | os.O_WRONLY)
    gate.wait()
    begun, cpu = time.perf_counter(), time.process_time()
    synced = 0
    for number in range(1, writes + 1):
        os.write(file, data)
        if number * syncs // writes > synced:
            os.fdatasync(file)
            synced += 1
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    os.close(file)
    return took, cpu


def _plain(work: Work, seconds: float) -> Sample:
    del seconds
    with folder() as path:
        args = path, work.nbytes, work.syncs
        ((took, cpu),) = run_together([Role(_write_plainly, args)])
    mb = work.nbytes / 1e6
    return Sample(mb / took, {"us CPU a MB": cpu / mb * 1e6})


def _commit_plainly(gate: Gate, path: str, seconds: float) -> list[float]:
    file = os.open(path, os.O_CREAT | os.O_WRONLY)

    def commit() -> None:
        os.write(file, MESSAGE)
        os.fdatasync(file)

    gate.wait()
    took = _each_timed(seconds, commit)
    os.close(file)
    return took


def _plain_commits(seconds: float) -> Sample:
    with folder() as path:
        (took,) = run_together([Role(_commit_plainly, (str(path / "plain"), seconds), 1)])
    return Sample(len(took) / sum(took), {"p99 ms": _p99_ms(took)})


def _durable(producers: int, seconds: float) -> Sample:
    took, pushes, work = _run(_push_durably, producers, seconds)
    each = [push for some in pushes for push in some]
    also = {"messages a sync": len(each) / work.syncs, "p99 ms": _p99_ms(each)}
    return Sample(len(each) / took, also)


def _durable_row(producers: int, *targets: Target) -> Row:
    many = f"{producers} producers" if producers > 1 else "1 producer"
    return Row(
        f"push(durable=True), {many}",
        "msg/s",
        partial(_durable, producers),
        targets,
        compare=(PLAIN_COMMITS,),
    )


def question(settings: Settings) -> Question:
    """A stream against plain writes; then producers that wait for the disk at each message."""
    del settings
    work, label = Work(), f"300-byte messages, {BATCH} a push"
    plain = f"plain writes and syncs as for {label}"
    return Question(
        "journal",
        "What does it cost to have a ring's messages on disk?",
        [
            Row(f"journal, {label}", "MB/s", partial(_stream, work), (Target(0.8, plain),)),
            Row(plain, "MB/s", partial(_plain, work)),
            Row(PLAIN_COMMITS, "commits/s", _plain_commits),
            _durable_row(1),
            _durable_row(4, Target(1.5, "push(durable=True), 1 producer")),
            _durable_row(16, Target(1.5, "push(durable=True), 4 producers")),
        ],
    )
