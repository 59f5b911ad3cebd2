"""What does a sidecar gain where a call has a fixed cost, and it joins requests? Eight clients."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.payload import unique_name
from benchmarks.processes import Gate, Role, run_together

__all__ = ["model", "question"]

CLIENTS = 8
ROWS = 10  # a batch
WEIGHTS = np.full((512, 512), 1 / 512, np.float32)
GUESS = 2000.0  # rows a second to expect, until it has been measured
ALONE = "each request alone"


def model(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Costs some milliseconds, however many rows there are."""
    if not np.allclose(WEIGHTS @ WEIGHTS, WEIGHTS):
        raise RuntimeError("the product of means is the mean")
    return batch


def _ask(gate: Gate, name: str, count: int) -> tuple[float, float]:
    """One client: so many batches; when it began and ended."""
    from shmring.sidecars import SidecarClient

    batch = pa.record_batch({"x": list(range(ROWS))})
    with SidecarClient(name) as client:
        gate.wait()
        begun = time.monotonic()
        rows = sum(answer.num_rows for answer in client.map([batch] * count))
        ended = time.monotonic()
    if rows != ROWS * count:
        raise RuntimeError(f"{rows} rows came back, not {ROWS * count}")
    return begun, ended


class _Served:
    """Eight clients of a sidecar with one worker; the figure is thousands of rows a second.

    Parameters
    ----------
    options : of the sidecar
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._rate = GUESS

    def __call__(self, seconds: float) -> Sample:
        from shmring.sidecars import Sidecar

        count = max(3, int(self._rate * seconds / ROWS / CLIENTS))
        name = unique_name()
        with Sidecar("benchmarks.joint_requests:model", name=name, workers=1, **self._options):
            times = run_together([Role(_ask, (name, count))] * CLIENTS)
        begun, ended = min(each[0] for each in times), max(each[1] for each in times)
        self._rate = ROWS * CLIENTS * count / (ended - begun)
        return Sample(self._rate / 1e3, {"ms a request": (ended - begun) / count * 1e3})


def question(settings: Settings) -> Question:
    """The same requests alone, in joint batches that become full, and in some that do not."""
    del settings
    rows = [
        Row(ALONE, "k rows/s", _Served()),
        Row(
            f"joined, up to {ROWS * CLIENTS} rows",
            "k rows/s",
            _Served(max_batch_rows=ROWS * CLIENTS),
            (Target(3.0, ALONE),),
        ),
        Row(
            "joined, up to 1,000 rows: never full, 5 ms of waiting",
            "k rows/s",
            _Served(max_batch_rows=1000),
            (Target(3.0, ALONE),),
        ),
    ]
    title = f"What does joining requests gain? ({CLIENTS} clients, batches of {ROWS} rows)"
    return Question("joint", title, rows)
