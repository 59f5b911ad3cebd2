"""The tests' Spark sessions: one at a time, shared by all modules that want an equal one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Sessions"]

_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class Sessions:
    """PySpark's session and its JVM, which takes seconds to start and longer to get warm."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._wanted: object = None
        self._launched: object = None
        self._patch = pytest.MonkeyPatch()

    def start(
        self, master: str, *, jar: bool, environment: Mapping[str, str], **options: str
    ) -> SparkSession:
        """The running session if it is like this, or else a new one.

        Parameters
        ----------
        jar : whether Spark has the jar
        environment : variables of Spark's Python workers
        """
        from pyspark.sql import SparkSession

        from shmring.spark.jvm import configure

        launched = (jar, dict(environment))
        wanted = (launched, master, options)
        if self._session is not None and wanted == self._wanted:
            return self._session
        self.stop()
        if launched != self._launched:
            self._end_jvm()
        self._launched, self._wanted = launched, wanted
        for variable, value in environment.items():
            self._patch.setenv(variable, value)
        builder = SparkSession.builder.master(master).appName("shmring-tests")
        for option, value in (_OPTIONS | options).items():
            builder = builder.config(option, value)
        self._session = (configure(builder) if jar else builder).getOrCreate()
        self._session.sparkContext.setLogLevel("OFF")
        return self._session

    def stop(self) -> None:
        """Stop the session; the JVM stays for the next."""
        if self._session is not None:
            self._session.stop()
            self._session = None
            self._patch.undo()

    def close(self) -> None:
        """End both."""
        self.stop()
        self._end_jvm()

    def _end_jvm(self) -> None:
        # It knows only the jars and the environment that it was started with.
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
            SparkContext._gateway = None
            SparkContext._jvm = None
