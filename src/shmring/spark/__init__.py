"""Spark's side: Python workers send their batches through a sidecar.

Nothing here imports pyspark before it is used, and what is shipped to the
workers is small: a name and a few numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

    from shmring.sidecars import Metrics, SidecarClient

__all__ = ["arrow_udf", "metrics", "pandas_udf", "through"]


@dataclass(frozen=True, slots=True)
class _Through:
    """What runs in the Python worker; pickled by Spark, so it holds settings only."""

    name: str
    in_flight: int
    timeout: float
    patience: float
    reply_slots: int
    metrics: Accumulator[Metrics] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # A cancelled task closes this generator (or is killed: then the sidecar
        # sweeps the reply ring); either way nothing is left.
        with self._client() as client:
            yield from client.map(batches)

    def arrays(self, arrays: Iterator[Any]) -> Iterator[pa.Array]:
        import pyarrow as pa

        with self._client() as client:
            for batch in client.map(_as_batch(a) for a in arrays):
                column = batch.column(0)
                yield column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def series(self, series: Iterator[Any]) -> Iterator[pd.Series[Any]]:
        import pyarrow as pa

        def batches() -> Iterator[pa.RecordBatch]:
            for item in series:
                columns = item if isinstance(item, tuple) else (item,)
                yield _as_batch(tuple(pa.Array.from_pandas(c) for c in columns))

        with self._client() as client:
            for batch in client.map(batches()):
                yield batch.column(0).to_pandas()

    @contextlib.contextmanager
    def _client(self) -> Iterator[SidecarClient]:
        from shmring.sidecars import SidecarClient, Task

        with SidecarClient(
            self.name,
            in_flight=self.in_flight,
            timeout=self.timeout,
            patience=self.patience,
            reply_slots=self.reply_slots,
            task=_current_task(Task),
        ) as client:
            try:
                yield client
            finally:
                if self.metrics is not None:
                    self.metrics.add(client.metrics)


def _as_batch(arrays: Any) -> pa.RecordBatch:
    import pyarrow as pa

    columns = arrays if isinstance(arrays, tuple) else (arrays,)
    return pa.RecordBatch.from_arrays(list(columns), [f"_{i}" for i in range(len(columns))])


def _current_task(task: Callable[..., Any]) -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return task()
    return task(
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
    reply_slots: int = 65_536,
    metrics: Accumulator[Metrics] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``DataFrame.mapInArrow`` that lets a sidecar do the work.

    >>> df.mapInArrow(shmring.spark.through("scorer"), schema)  # doctest: +SKIP

    Parameters
    ----------
    name : of the sidecar; one must run on every host that has executors
    in_flight : batches sent ahead of the answers
    timeout : seconds without any answer after which the task fails
    patience : seconds to wait for a sidecar that is not there (yet, or any more)
    reply_slots : size of each task's ring for answers, in slots of 300 bytes
    metrics : made by :func:`metrics`, to sum up what the tasks' clients did

    Raises
    ------
    In the task, and so in the job: SidecarUnavailable, or SidecarError with the
    traceback of the sidecar's function.
    """
    return _Through(name, in_flight, timeout, patience, reply_slots, metrics)


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


def arrow_udf(name: str, return_type: Any, **options: Any) -> Any:
    """An ``arrow_udf`` (Spark 4.1 and later) whose work a sidecar does.

    The sidecar gets batches with the columns ``_0``, ``_1``, ... and answers with
    batches of as many rows, whose first column is the result.

    Parameters
    ----------
    return_type : as for ``pyspark.sql.functions.arrow_udf``
    options : those of :func:`through`
    """
    import pyarrow as pa
    from pyspark.sql import functions

    run = _through_with(name, options)

    def call(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return run.arrays(arrays)

    call.__annotations__ = {"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return functions.arrow_udf(call, returnType=return_type)


def pandas_udf(name: str, return_type: Any, **options: Any) -> Any:
    """A ``pandas_udf`` whose work a sidecar does; like :func:`arrow_udf` otherwise."""
    import pandas as pd
    from pyspark.sql import functions

    run = _through_with(name, options)

    def call(series: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return run.series(series)

    call.__annotations__ = {"series": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return functions.pandas_udf(call, returnType=return_type)


def _through_with(name: str, options: dict[str, Any]) -> _Through:
    made = through(name, **options)
    assert isinstance(made, _Through)
    return made
