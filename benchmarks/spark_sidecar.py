"""What does a sidecar cost a Spark job? local[2], 300-byte rows, one session.

Spark's Python workers talk to the JVM over Unix sockets, which are its fastest way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.payload import MESSAGE_BYTES, unique_name
from benchmarks.processes import cpu_seconds_of_children
from benchmarks.spark_rings import with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session

__all__ = ["question"]

IDENTITY = "identity mapInArrow, no sidecar"
SOCKET = "identity sidecar over a Unix socket"
THROUGH = "identity sidecar through the ring, by Python workers"
DIRECT = "identity sidecar through the ring, straight from the JVM"

# The JVM warms up slowly and has its own noise.
LEAST_ROUNDS = 7
ROWS = 1_000_000
ROWS_QUICK = 200_000


class _Job:
    """The session, the data, and the sidecars, while the rounds run."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._session: Any = None
        self._data: Any = None
        self._stack = contextlib.ExitStack()
        self._functions: dict[str, Callable[..., Any]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Start Spark; the sidecars start with their first run."""
        find_modules_in_workers()
        with self._stack:
            self._session = self._stack.enter_context(spark_session(_configured))
            payload = f"unhex('{'5a' * (MESSAGE_BYTES - 8)}') AS payload"
            self._data = self._session.range(0, self._rows, 1, WORKERS).selectExpr("id", payload)
            yield

    def _function(self, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The sidecar's function; made, and its answers checked, once."""
        if name not in self._functions:
            function = make()
            totals = ["count(*)", "sum(id)", "sum(length(payload))"]
            mapped = self._data.mapInArrow(function, self._data.schema)
            wanted = (
                self._rows,
                self._rows * (self._rows - 1) // 2,
                self._rows * (MESSAGE_BYTES - 8),
            )
            if tuple(mapped.selectExpr(*totals).first()) != wanted:
                raise RuntimeError(f"{name}: the rows that came back are not those that were sent")
            self._functions[name] = function
        return self._functions[name]

    def _time(self, data: Any) -> Sample:
        started, used = time.monotonic(), cpu_seconds_of_children()
        data.write.format("noop").mode("overwrite").save()
        took, used = time.monotonic() - started, cpu_seconds_of_children() - used
        size = self._rows * MESSAGE_BYTES / 1e9
        return Sample(size / took, {"M rows/s": self._rows / took / 1e6, "CPU s/GB": used / size})

    def nothing(self, seconds: float) -> Sample:
        """The rows without Python."""
        del seconds
        return self._time(self._data)

    def mapped(
        self, name: str, make: Callable[[_Job], Callable[..., Any]], *, direct: bool = False
    ) -> Callable[[float], Sample]:
        """A contestant: the rows through what `make` makes."""

        def run(seconds: float) -> Sample:
            del seconds
            self._session.conf.set("spark.shmring.direct", direct)
            function = self._function(name, lambda: make(self))
            return self._time(self._data.mapInArrow(function, self._data.schema))

        return run

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> Any:
        """Keep a sidecar until the session ends."""
        return self._stack.enter_context(context)


def _configured(builder: Any) -> Any:
    return with_jar(builder).config("spark.python.unix.domain.socket.enabled", "true")


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _by_identity(job: _Job) -> Callable[..., Any]:
    del job
    return _identity


def _by_socket(job: _Job) -> Callable[..., Any]:
    from benchmarks.socket_sidecar import SocketClient, identity, serve

    return SocketClient(job.enter(serve(identity, workers=WORKERS)))


def _by_ring(job: _Job) -> Callable[..., Any]:
    try:
        import shmring.spark
        from shmring.sidecars import Sidecar
    except ImportError as error:
        raise Unavailable(f"waits for shmring.spark.through() and the sidecar: {error}") from None
    name = unique_name()
    job.enter(Sidecar("benchmarks.socket_sidecar:identity", name=name, workers=WORKERS))
    return shmring.spark.through(name)


def question(settings: Settings) -> Question:
    """The same rows through nothing, through Python, and through two kinds of sidecar."""
    job = _Job(ROWS_QUICK if settings.quick else ROWS)
    return Question(
        "spark",
        "What does a sidecar cost a Spark job? (local[2], rows of 300 bytes)",
        [
            Row("rows without Python", "GB/s", job.nothing),
            Row(IDENTITY, "GB/s", job.mapped(IDENTITY, _by_identity)),
            Row(
                THROUGH,
                "GB/s",
                job.mapped(THROUGH, _by_ring),
                (Target(0.95, IDENTITY), Target(1.0, SOCKET)),
            ),
            Row(
                DIRECT,
                "GB/s",
                job.mapped(DIRECT, _by_ring, direct=True),
                (Target(1.8, IDENTITY),),
                compare=(THROUGH,),
            ),
            Row(
                SOCKET,
                "GB/s",
                job.mapped(SOCKET, _by_socket),
                compare=(IDENTITY,),
            ),
        ],
        setup=job.open,
        least_rounds=LEAST_ROUNDS,
    )
