"""The Python worker's side of a sidecar, for ``mapInArrow`` and for UDFs.

What Spark ships to the workers is small: a name and a few numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

    from shmring.sidecars import Metrics, SidecarClient, Task

__all__ = ["Through", "metrics", "through"]


@dataclass(frozen=True, slots=True)
class Through:
    """What runs in the Python worker; made by :func:`through`."""

    name: str
    in_flight: int
    timeout: float
    patience: float
    reply_slots: int | None
    metrics: Accumulator[Metrics] | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send each batch and yield the answers, in order."""
        # A cancelled task closes this generator (or is killed: then the sidecar
        # sweeps the reply ring); either way nothing is left.
        with self._client() as client:
            yield from client.map(batches)

    @contextlib.contextmanager
    def _client(self) -> Generator[SidecarClient]:
        from shmring.sidecars import SidecarClient

        with SidecarClient(
            self.name,
            in_flight=self.in_flight,
            timeout=self.timeout,
            patience=self.patience,
            reply_slots=self.reply_slots,
            task=_current_task(),
        ) as client:
            try:
                yield client
            finally:
                if self.metrics is not None:
                    self.metrics.add(client.metrics)


def _current_task() -> Task:
    from pyspark import TaskContext

    from shmring.sidecars import Task

    context = TaskContext.get()
    if context is None:
        return Task()
    return Task(
        application=context.getLocalProperty("spark.app.id") or "",
        stage=context.stageId(),
        partition=context.partitionId(),
        attempt=context.taskAttemptId(),
    )


def through(
    name: str,
    *,
    in_flight: int = 3,
    timeout: float = 300.0,
    patience: float = 10.0,
    reply_slots: int | None = None,
    metrics: Accumulator[Metrics] | None = None,
) -> Through:
    """A function for ``DataFrame.mapInArrow`` that lets a sidecar do the work.

    >>> df.mapInArrow(shmring.spark.through("scorer"), schema)  # doctest: +SKIP

    Parameters
    ----------
    name : of the sidecar; one must run on every host that has executors
    in_flight : batches sent ahead of the answers
    timeout : seconds without any answer after which the task fails, also where the sidecar's
        workers are still loading, or where it has no seat for another client
    patience : seconds to wait for a sidecar that is not there (yet, or any more)
    reply_slots : size of each task's ring for answers, in slots of 300 bytes; None is 65,536, or
        what leaves others room where /dev/shm has little memory
    metrics : made by :func:`metrics`, to sum up what the tasks' clients did

    Raises
    ------
    In the task, and so in the job: SidecarUnavailable, or SidecarError with the
    traceback of the sidecar's function.
    """
    return Through(name, in_flight, timeout, patience, reply_slots, metrics)


def metrics(context: SparkContext) -> Accumulator[Metrics]:
    """An accumulator that sums up the clients' :class:`~shmring.sidecars.Metrics` of a job."""
    from pyspark.accumulators import AccumulatorParam

    from shmring.sidecars import Metrics

    class Sum(AccumulatorParam[Metrics]):
        def zero(self, value: Metrics) -> Metrics:
            return Metrics()

        def addInPlace(self, value1: Metrics, value2: Metrics) -> Metrics:
            value1.add(value2)
            return value1

    return context.accumulator(Metrics(), Sum())
