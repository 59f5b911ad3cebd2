"""The Python worker's side of a sidecar, for methods of DataFrames and for UDFs.

Spark ships only a name and a few numbers to the workers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, cast

from shmring.arguments import seconds_of
from shmring.errors import SchemaMismatch, ShmringError
from shmring.spark.functions.assigned import BY_NAME, BY_PLACE, Assigned
from shmring.spark.functions.kept_clients import Options, borrow, kept_client

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql.types import StructType

    from shmring.sidecars import Metrics, SidecarClient, Task
    from shmring.spark.functions.groups import GroupOptions, Groups

__all__ = ["Through", "function_of", "metrics", "through"]


@dataclass(frozen=True)
class Through:
    """The function that runs in the Python worker; made by :func:`through`."""

    name: str
    in_flight: int
    timeout: float
    connect_timeout: float
    reply_slots: int | None
    metrics: Accumulator[Metrics] | None
    schema: StructType | None = None  # as given to Spark's method, in the worker
    options: GroupOptions | None = None  # of the session, in the worker

    def __post_init__(self) -> None:
        seconds_of("timeout", self.timeout)
        seconds_of("connect_timeout", self.connect_timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        from shmring.spark.functions.expected import declared_with
        from shmring.spark.functions.groups import session_options

        values = [getattr(self, field.name) for field in fields(self)]
        schema = declared_with(self) or self.schema
        return Through, (*values[:-2], schema, session_options() or self.options)

    @property
    def __name__(self) -> str:
        """The options as a name, the only part of a function that Spark's JVM can read.

        SidecarCall.java reads it and does the work in the JVM. A function with an accumulator runs
        in Python, as only Python can add to it.
        """
        if self.metrics is not None:
            return "Through"
        return f"shmring.through{json.dumps(self._options()._asdict())}"

    # Spark counts the parameters: with two it gives a group's key and rows, or both of a cogroup.
    def __call__(self, given: Any, *others: Any) -> Any:
        """Return the answers to batches, in order; or the answer to one group."""
        if not others and not hasattr(given, "columns"):
            return self._map(given)
        sides = others if isinstance(given, tuple) else (given, *others)  # rows have their key
        if not 1 <= len(sides) <= 2:
            self._refuse(others[-1])
        return self._of_group(sides)

    def _map(self, given: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        items = iter(given)
        first = next(items, None)
        if first is None:  # an empty partition needs no sidecar
            return
        batches = map(self._batch, chain((first,), items))
        # A cancelled task closes this generator (or is killed: then the sidecar
        # sweeps the reply ring); either way nothing is left.
        with self._client() as client:
            yield from self._checked(client.map(batches), "mapInArrow", BY_PLACE)

    def _checked(
        self, answers: Iterable[pa.RecordBatch], method: str, assigned: Assigned
    ) -> Iterator[pa.RecordBatch]:
        """Yield the answers with the declared columns, in their order."""
        schema = self.schema
        if schema is None:
            yield from answers
            return
        seen: pa.Schema | None = None
        for answer in answers:
            if method != "mapInArrow" and not answer.num_columns and not answer.num_rows:
                continue  # only rows need columns
            names = answer.schema.names
            if assigned.objection(names, schema.names) is None:
                places = assigned.places(names, schema.names)
                if places != list(range(len(names))):
                    answer = cast("Any", answer).select(places)
            if seen is None or not answer.schema.equals(seen):
                self._check(answer.schema, method, assigned)
                seen = answer.schema
            yield answer

    def _of_group(self, sides: Sequence[Any]) -> pa.Table:
        from shmring.spark.functions.groups import GroupOptions, as_table

        options = self.options or GroupOptions()
        assigned = BY_NAME if options.by_name else BY_PLACE
        answers = self._groups.answers(list(map(self._batch, sides)))
        return as_table(self._checked(answers, "applyInArrow", assigned), self.schema, options)

    @cached_property
    def _groups(self) -> Groups:
        from shmring.spark.functions.groups import Groups

        return Groups(self)

    def _batch(self, given: Any) -> pa.RecordBatch:
        import pyarrow as pa

        from shmring.spark.functions.groups import as_batch

        if isinstance(given, pa.RecordBatch):
            return given
        if not isinstance(given, pa.Table):
            self._refuse(given)
        return as_batch(given)

    def _refuse(self, data: object) -> NoReturn:
        if hasattr(data, "iloc"):
            raise ShmringError(needs_the_jar(self.name, "mapInArrow or applyInArrow"))
        kind = type(data)
        raise TypeError(
            f'shmring.spark.through("{self.name}") is for mapInArrow and mapInPandas, and for '
            f"applyInArrow and applyInPandas of groups and cogroups: it takes data of pyarrow, "
            f"and was given {kind.__module__}.{kind.__name__}"
        )

    def _check(self, got: pa.Schema, method: str, assigned: Assigned) -> None:
        from shmring.spark.functions.expected import difference, in_words

        if self.schema is not None and (why := difference(got, self.schema, assigned)):
            columns = ", ".join(
                f"{name} {kind}" for name, kind in zip(got.names, got.types, strict=True)
            )
            raise SchemaMismatch(
                f"{function_of(self.name)} answered with other columns than {method} was "
                f"declared with: {why} (expected {in_words(self.schema)}; got {columns or 'none'})"
            )

    @contextlib.contextmanager
    def _client(self) -> Generator[SidecarClient]:
        with kept_client(self._options(), _current_task()) as client:
            try:
                yield client
            finally:
                if self.metrics is not None:
                    self.metrics.add(client.metrics)

    def connect(self) -> SidecarClient:
        """Return a client for the task in which this runs; the task closes it."""
        return borrow(self._options(), _current_task())

    def _options(self) -> Options:
        return Options(
            self.name, self.in_flight, self.timeout, self.connect_timeout, self.reply_slots
        )


def function_of(sidecar: str) -> str:
    """The functions of a sidecar, for the text of an error."""
    from shmring.sidecars.participants import functions

    return f'{functions(sidecar)} of sidecar "{sidecar}"'


def needs_the_jar(sidecar: str, instead: str) -> str:
    """The text of the error when Spark's Python worker made pandas data for a sidecar."""
    from shmring.sidecars.told import WITH_THE_JAR

    return (
        f'sidecar "{sidecar}": functions for pandas need the jar: {WITH_THE_JAR}; {instead} does '
        f"without"
    )


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
    connect_timeout: float = 10.0,
    reply_slots: int | None = None,
    metrics: Accumulator[Metrics] | None = None,
) -> Through:
    """Return a function for ``DataFrame.mapInArrow`` that sends batches through a sidecar.

    >>> df.mapInArrow(shmring.spark.through("scorer"), schema)  # doctest: +SKIP

    ``mapInPandas`` takes it, too: the sidecar sees the same batches. ``applyInArrow`` and
    ``applyInPandas`` call the sidecar's function with each group as one batch, or with each cogroup
    as two batches, one for each side. ``mapInPandas`` and ``applyInPandas`` need the jar. An error
    fails the task, and so the job.

    Parameters
    ----------
    name : name of the sidecar; it must run on every host that has executors
    in_flight : number of requests sent ahead of the answers; each is a batch, or with the jar
        several small batches
    timeout : the task fails after so many seconds without any answer, also if the sidecar's workers
        are still loading, or if the sidecar has no room for another client
    connect_timeout : seconds to wait for a sidecar that does not run (yet, or any more), and for
        memory for its answers
    reply_slots : size of each task's reply ring, in slots of 300 bytes. None: 4,096, and up
        to 65,536 as the requests under way need them; less if /dev/shm has little memory, but
        enough for any row
    metrics : an accumulator of :func:`metrics` that sums up the counters of the tasks' clients

    Raises
    ------
    SidecarUnavailable : no sidecar of this name answered in time
    SidecarError : the sidecar's function raised; the text has its traceback
    ShmringError : pandas data came without the jar
    SchemaMismatch : an answer has other columns or types than the schema that Spark's method was
        given. Columns are assigned as by Spark's own method: ``mapInArrow`` takes them by position
        and ignores other names, but refuses a declared name at another place. The others take
        them by name
    """
    return Through(name, in_flight, timeout, connect_timeout, reply_slots, metrics)


def metrics(context: SparkContext) -> Accumulator[Metrics]:
    """Return an accumulator that sums up the :class:`~shmring.sidecars.Metrics` of a job."""
    from pyspark.accumulators import AccumulatorParam

    from shmring.sidecars import Metrics

    class Sum(AccumulatorParam[Metrics]):
        def zero(self, value: Metrics) -> Metrics:
            return Metrics()

        def addInPlace(self, value1: Metrics, value2: Metrics) -> Metrics:
            value1.add(value2)
            return value1

    return context.accumulator(Metrics(), Sum())
