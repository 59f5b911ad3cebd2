"""Spark for the tests: one session and one cluster at a time, for all who want an equal one.

Sidecars, too: a few at a time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from direct import DIRECT, FUNCTIONS

from shmring.sidecars import Sidecar

if TYPE_CHECKING:
    from cluster import Cluster
    from pyspark.sql import SparkSession

# Seconds that a test with Spark waits for an event: JVMs start in it, or a batch of a stream takes
# one, and ten on a loaded machine.
PATIENCE = 600.0
STANDING = "-standing-"  # in the names of sidecars that outlive a test
_numbers = itertools.count()
HERE, THERE = "127.0.0.1", "127.0.0.2"


def failure(act: Callable[[], object]) -> str:
    """Return the text of the error that `act` raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act()
    return str(caught.value)


@contextmanager
def logged(spark: SparkSession, of_class: str) -> Iterator[Callable[[], str]]:
    """Yield a function that returns what a Java class of the driver has logged in the block."""
    log4j: Any = cast(Any, spark)._jvm.org.apache.logging.log4j
    writer: Any = cast(Any, spark)._jvm.java.io.StringWriter()
    make = log4j.core.appender.WriterAppender.createAppender
    appender = make(None, None, writer, "of a test", False, True)
    appender.start()
    log4j.core.config.Configurator.setLevel(of_class, log4j.Level.INFO)
    logger = log4j.LogManager.getLogger(of_class)
    logger.addAppender(appender)
    try:
        yield writer.toString
    finally:
        logger.removeAppender(appender)


class Sessions:
    """PySpark's session and its JVM, which takes seconds to start and longer to get warm."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._wanted: object = None
        self._of_queries: dict[str, str] = {}

    def start(self, master: str, **options: str) -> SparkSession:
        """The running session with these options, or a new one if it has to be; it has the jar."""
        of_queries = {key: value for key, value in options.items() if _is_of_queries(key)}
        wanted = (master, {key: options[key] for key in options.keys() - of_queries.keys()})
        if self._session is None or wanted != self._wanted:
            self.stop()
            self._session, self._wanted = self._begin(*wanted), wanted
        for key in self._of_queries:
            self._session.conf.unset(key)
        for key, value in of_queries.items():
            self._session.conf.set(key, value)
        self._of_queries = of_queries
        return self._session

    def _begin(self, master: str, options: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession

        from shmring.spark.jvm import configure

        self._start_jvm(configure(SparkSession.builder, functions=False))
        builder = SparkSession.builder.master(master).appName("shmring-tests")
        for option, value in options.items():
            builder = builder.config(option, value)
        # The tests compare with Spark's own functions; those of functions over rings say so.
        session = configure(builder, functions=False).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return session

    def _start_jvm(self, builder: SparkSession.Builder) -> None:
        """Start it with the jar alone: all of its sessions have the options that it is given."""
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setAll(list(builder._options.items()))
        SparkContext._ensure_initialized(conf=conf)

    def stop(self) -> None:
        """Stop the session; the JVM stays for the next."""
        if self._session is not None:
            self._session.stop()
            self._session = None
            self._of_queries = {}

    def close(self) -> None:
        """End both."""
        self.stop()
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
            SparkContext._gateway = None
            SparkContext._jvm = None


def _is_of_queries(option: str) -> bool:
    """Whether a session takes it for the queries to come."""
    return option.startswith("spark.sql.") or option in (DIRECT, FUNCTIONS)


class Clusters:
    """Two workers on two hosts: Spark runs no two attempts of a task on one."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._wanted: object = None

    def start(self, *, cores: int = 1, apart: bool = False) -> Cluster:
        """The running cluster if it is like this, or else a new one.

        Parameters
        ----------
        cores : of each worker
        apart : whether the second worker has a /dev/shm of its own
        """
        from cluster import Cluster

        wanted = (cores, apart)
        if self._cluster is None or wanted != self._wanted:
            self.stop()
            self._cluster = Cluster(workers=2, cores=cores, hosts=(HERE, THERE), apart=apart)
            self._wanted = wanted
        return self._cluster

    def stop(self) -> None:
        """End it with all that runs on it."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


def target_of(function: str) -> str:
    """A function of functions.py, unless the name of another module stands before its own."""
    return function if ":" in function else f"functions:{function}"


class Sidecars:
    """Sidecars that run functions of the tests; only this object stops them."""

    FEW = 6  # most sidecars: each has tens of megabytes of shared memory

    def __init__(self) -> None:
        # A folder's sidecars keep running when a module's sidecars end.
        self.prefix = f"test-{os.getpid()}{STANDING}{next(_numbers)}-"
        self._running: dict[object, Sidecar] = {}  # the sidecar used last is the last entry

    def start(self, function: str, **options: object) -> str:
        """The name of the running one if it is like this, or else of a new one."""
        wanted = (function, *sorted(options.items()))
        sidecar = self._running.pop(wanted, None)
        if sidecar is None:
            if len(self._running) == self.FEW:
                self._running.pop(next(iter(self._running))).stop()
            name = f"{self.prefix}{next(_numbers)}"
            sidecar = Sidecar(target_of(function), name=name, **options).start(timeout=PATIENCE)
        self._running[wanted] = sidecar
        return sidecar.name

    def stop(self) -> None:
        """End all of them."""
        for sidecar in self._running.values():
            sidecar.stop()
        self._running.clear()
