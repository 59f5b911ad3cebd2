"""The jar with Spark's data source, for sessions that read and write rings in the JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import shmring
from shmring.errors import ShmringError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["configure", "jar_path"]


def jar_path() -> str:
    """Path of the jar, for ``--jars``, ``spark.jars`` or ``spark.driver.extraClassPath``.

    Raises
    ------
    ShmringError : this installation was built without it; the text says how to get it
    """
    jar = Path(shmring.__file__).parent / "jars" / "shmring.jar"
    if not jar.exists():
        raise ShmringError(
            f"this installation of shmring has no jar ({jar}): it was built where javac or Spark's "
            "jars were missing. Install a JDK (openjdk-17-jdk-headless) and pyspark, then build "
            "shmring again with -C cmake.define.SHMRING_JVM=ON "
            "-C cmake.define.SHMRING_PYSPARK_JARS=\"$(python -c 'import os, pyspark; "
            'print(os.path.join(pyspark.__path__[0], "jars"))\')"'
        )
    return str(jar)


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
