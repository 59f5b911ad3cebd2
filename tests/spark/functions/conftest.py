"""Sessions whose Python workers ask the sidecars, and tests of both ways to these."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from direct import DIRECT
from fixture_types import RunThread, Until

import shmring
from shmring.sidecars.wire import reply_ring_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    return start_spark("local[2]", **{DIRECT: "false"})


@pytest.fixture(scope="package")
def served(standing: Callable[[], Iterator[Callable[..., str]]]) -> Iterator[Callable[..., str]]:
    """For the files of this folder together: many ask the same, which takes a second to start."""
    yield from standing()


@pytest.fixture
def reply_rings(name: str) -> Callable[[], list[str]]:
    """The reply rings of the test's sidecar that are there."""
    return lambda: [r for r in shmring.rings() if r.startswith(reply_ring_name(name, ""))]


@pytest.fixture
def start_job(
    spark: SparkSession, name: str, thread: RunThread
) -> Callable[[DataFrame], Callable[[], None]]:
    """Collects a frame beside the test; what it gives cancels that job, and waits for its end."""

    def start(frame: DataFrame) -> Callable[[], None]:
        def run() -> None:
            spark.sparkContext.setJobGroup(name, "to be cancelled", interruptOnCancel=True)
            frame.collect()

        job = thread(run)

        def cancel() -> None:
            spark.sparkContext.cancelJobGroup(name)
            with pytest.raises(Exception, match=r"(?i)cancel"):
                job.outcome()

        return cancel

    return start


@pytest.fixture
def outcome_under_kills(thread: RunThread, until: Until) -> Callable[..., Any]:
    """What a query comes to while each worker of its sidecar is killed once."""

    def outcome_under_kills(sidecar: Any, query: Callable[[], Any]) -> Any:
        done = threading.Event()

        def run() -> Any:
            try:
                return query()
            finally:
                done.set()

        job = thread(run)
        for worker in range(3):
            before = sidecar.restarts
            os.kill(sidecar.pids[worker], signal.SIGKILL)
            until(lambda before=before: sidecar.restarts > before or done.is_set())
        return job.outcome()

    return outcome_under_kills
