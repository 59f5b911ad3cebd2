"""The jar with Spark's data source, for sessions that read and write rings in the JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import shmring
from shmring.errors import ShmringError
from shmring.spark.jar_build import kept_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["configure", "jar_path"]


def jar_path() -> str:
    """Path of the jar, for ``--jars``, ``spark.jars`` or ``spark.driver.extraClassPath``.

    An installation that was built where Spark's jars were missing has none: then the jar is made
    once, with the JDK that is here, and kept in the user's cache.

    Raises
    ------
    ShmringError : there is none, and it cannot be made; the text says what is missing
    """
    folder = Path(shmring.__file__).parent / "jars"
    jar = folder / "shmring.jar"
    if jar.exists():
        return str(jar)
    if not (folder / "src").exists():
        raise ShmringError(
            f"this installation of shmring has no jar ({jar}): it was built with SHMRING_JVM=OFF"
        )
    return str(kept_jar(folder / "src"))


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Give a session that is being built the jar, for the driver and the executors.

    >>> spark = configure(SparkSession.builder).getOrCreate()  # doctest: +SKIP
    >>> spark.read.format("shmring").option("ring", "orders").load()  # doctest: +SKIP

    It goes to the front of ``spark.jars``; what the builder has there stays.
    """
    options: dict[str, str] = getattr(builder, "_options", {})
    others = [jar for jar in options.get("spark.jars", "").split(",") if jar]
    jar = jar_path()
    return builder.config("spark.jars", ",".join([jar, *(j for j in others if j != jar)]))
