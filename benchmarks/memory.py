"""What does a ring cost, and does a reader that maps batches grow?"""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.oneway import peer
from benchmarks.payload import DEFAULT_SLOTS, MESSAGE_BYTES, arrow_batch, read_batch, unique_name
from benchmarks.processes import Gate, Role, run_together

__all__ = ["question"]

CONTROL_BYTES = 32
KB = 1024
BATCH_BYTES = 256 << 10


def _overhead(slots: int, seconds: float) -> Sample:
    """KB of a ring's file beyond its slots and their control entries."""
    del seconds
    peer("ring")
    import shmring

    name = unique_name()
    with shmring.create(name, slots=slots) as ring:
        try:
            nbytes = os.stat(ring.path).st_size
        finally:
            shmring.unlink(name)
    beyond = nbytes - slots * (MESSAGE_BYTES + CONTROL_BYTES)
    return Sample(beyond / KB, {"MB in all": nbytes / 1e6})


def _private_bytes() -> int:
    """Memory of this process that it shares with nobody: the mapped ring does not count."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * KB


def _read(gate: Gate, name: str, batches: int) -> tuple[int, int]:
    """Growth in private bytes and in Arrow's own pool over all but the first tenth."""
    import pyarrow as pa

    import shmring

    before = pool = 0
    with shmring.attach(name) as ring, ring.arrow_reader("bench", start="earliest") as reader:
        gate.wait()
        for number, batch in enumerate(reader):
            read_batch(batch, True)
            del batch
            if number == batches // 10:
                before, pool = _private_bytes(), pa.total_allocated_bytes()
        return _private_bytes() - before, pa.total_allocated_bytes() - pool


def _write(gate: Gate, name: str, batches: int) -> float:
    import shmring

    batch = arrow_batch(BATCH_BYTES)
    with shmring.attach(name) as ring, ring.arrow_writer(batch.schema) as writer:
        gate.wait()
        for _ in range(batches):
            writer.write(batch)
        writer.end()
    return time.monotonic()


def _growth(batches: int, seconds: float) -> Sample:
    """KB by which a reader grows while it maps `batches` Arrow batches, none kept."""
    del seconds
    link = {"nbytes": BATCH_BYTES, "slots": DEFAULT_SLOTS, "touch": True}
    with peer("arrow_ring").link(**link) as ring:
        (grown, pool), _ = run_together(
            [Role(_read, (ring.name, batches), 0), Role(_write, (ring.name, batches), 1)]
        )
    return Sample(grown / KB, {"KB in Arrow's pool": pool / KB})


def question(settings: Settings) -> Question:
    """File sizes (exact) and the growth of a reader."""
    batches = 2_000 if settings.quick else 20_000
    rows = [
        Row(
            f"file of a ring of {slots:,} slots beyond slots x 332",
            "KB",
            partial(_overhead, slots),
            (Target(256.0),),
            lower_is_better=True,
            rounds=1,
        )
        for slots in (1_024, DEFAULT_SLOTS, 1_048_576)
    ]
    rows.append(
        Row(
            f"growth of a reader over {batches:,} batches of 256 KB",
            "KB",
            partial(_growth, batches),
            (Target(256.0),),
            lower_is_better=True,
            rounds=2,
        )
    )
    return Question("memory", "What does a ring cost in memory?", rows, warm_up=False)
