"""The Python worker's side of a sidecar, for ``mapInArrow`` and for UDFs.

What Spark ships to the workers is small: a name and a few numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn

from shmring.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql.types import StructType

    from shmring.sidecars import Metrics, SidecarClient, Task

__all__ = ["Through", "function_of", "metrics", "through"]


@dataclass(frozen=True, slots=True)
class Through:
    """What runs in the Python worker; made by :func:`through`."""

    name: str
    in_flight: int
    timeout: float
    patience: float
    reply_slots: int | None
    metrics: Accumulator[Metrics] | None
    schema: StructType | None = None  # as given to mapInArrow, in the worker

    def __reduce__(self) -> tuple[Any, ...]:
        from shmring.spark.functions.expected import declared_with

        values = [getattr(self, field.name) for field in fields(self)]
        return Through, (*values[:-1], declared_with(self) or self.schema)

    @property
    def __name__(self) -> str:
        """All that Spark's JVM knows of a function: with the jar it does this one's work itself.

        SidecarCall.java reads the same words. An accumulator can only be added to in Python.
        """
        if self.metrics is not None:
            return "Through"
        slots = "" if self.reply_slots is None else f", reply_slots={self.reply_slots}"
        return (
            f"shmring.through({self.name}, in_flight={self.in_flight}, "
            f"timeout={float(self.timeout)}, patience={float(self.patience)}{slots})"
        )

    # Spark counts the parameters: with these it is called, and refuses, whatever it is given to.
    def __call__(
        self, batches: Iterable[pa.RecordBatch], *others: object
    ) -> Generator[pa.RecordBatch]:
        """Send each batch and yield the answers, in order."""
        if others or hasattr(batches, "columns"):  # a DataFrame, or a Table
            self._refuse(others[-1] if others else batches)
        return self._map(batches)

    def _map(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        # A cancelled task closes this generator (or is killed: then the sidecar
        # sweeps the reply ring); either way nothing is left.
        with self._client() as client:
            seen: pa.Schema | None = None
            for answer in client.map(self._checked(batches)):
                if seen is None or not answer.schema.equals(seen):
                    seen = answer.schema
                    self._check(seen)
                yield answer

    def _checked(self, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            if not isinstance(batch, pa.RecordBatch):
                self._refuse(batch)
            yield batch

    def _refuse(self, data: object) -> NoReturn:
        kind = type(data)
        raise TypeError(
            f'shmring.spark.through("{self.name}") is for DataFrame.mapInArrow: it takes an '
            f"iterator of pyarrow.RecordBatch, and was given {kind.__module__}.{kind.__name__}; "
            f"mapInPandas, applyInPandas, applyInArrow and cogroup cannot use it"
        )

    def _check(self, got: pa.Schema) -> None:
        from shmring.spark.functions.expected import difference, in_words

        if self.schema is not None and (why := difference(got, self.schema)):
            columns = ", ".join(
                f"{name} {kind}" for name, kind in zip(got.names, got.types, strict=True)
            )
            raise SchemaMismatch(
                f"{function_of(self.name)} answered with other columns than mapInArrow was "
                f"declared with: {why} (expected {in_words(self.schema)}; got {columns or 'none'})"
            )

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


def function_of(sidecar: str) -> str:
    """What a sidecar runs, for the text of an error."""
    from shmring.sidecars.seats import functions

    return f'{functions(sidecar)} of sidecar "{sidecar}"'


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
    In the task, and so in the job: SidecarUnavailable, SidecarError with the
    traceback of the sidecar's function, or SchemaMismatch where its answer has other
    columns or types than the schema that ``mapInArrow`` was given.
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
