"""How every Spark that the tests start is set, the examples' too, and how its JVMs start.

    python tests/spark_start.py

lets a Spark work and writes the classes that it has read into an archive, which other JVMs map
instead of reading them from 280 jars again. `make test` does so once for each pyspark; without the
archive, or with that of another Java, all is the same and slower. It pays from the tenth JVM on.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE = Path(sys.prefix) / "spark.jsa"
DEFAULTS = Path(__file__).with_name("spark-defaults.conf")
# The tests' JVMs live for seconds: the second compiler and a collector with threads of its own
# cost as much as they gain; so does the verification of Spark's classes. A JVM that cannot use the
# archive would say so where its program's output goes.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
FLAGS = (
    *SHORT_LIVED,
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
    *("-Xlog:disable", "-Xlog:all=error:stderr"),
    # The first compiler alone gets 48 MB: a worker's session fills them, and then a thread looks
    # all the time for code to throw away, which is soon compiled again.
    "-XX:ReservedCodeCacheSize=240m",
    "-Djdk.lang.Process.launchMechanism=VFORK",  # no jspawnhelper before each chmod of Hadoop's
)


def _checkpoints() -> str:
    """Return the class that writes streams' checkpoints, in place of Hadoop's FileContext.

    FileContext starts about ten processes (mostly readlink) for each file that it renames.
    """
    package = "org.apache.spark.sql.execution.streaming"
    if tuple(map(int, metadata.version("pyspark").split(".")[:2])) >= (4, 1):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


def environment(*driver: str) -> dict[str, str]:
    """The variables for programs that start Spark; `driver` is for the JVM that they start alone.

    Nothing is in Spark's folder of settings: an archive serves no JVM whose class path begins with
    a folder that has something in it.
    """
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
    flags = shlex.join([*FLAGS, *archive])
    submit = (
        *("--properties-file", str(DEFAULTS)),
        *("--driver-java-options", shlex.join([*shlex.split(flags), *driver])),
        *("--conf", f"spark.executor.extraJavaOptions={flags}"),
        *("--conf", f"spark.sql.streaming.checkpointFileManagerClass={_checkpoints()}"),
        "pyspark-shell",
    )
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
        "SPARK_DAEMON_JAVA_OPTS": flags,  # options of the clusters' master and workers
        "SPARK_LAUNCHER_OPTS": " ".join(FLAGS),  # options of the launcher's JVM
    }


def _work(spark: SparkSession, folder: str) -> None:
    """Do what most of the JVMs do: to write a class costs as much as to read it five times."""
    numbers: DataFrame = spark.range(0, 100, 1, 2).selectExpr("id", "cast(id as string) text")
    numbers.write.parquet(f"{folder}/numbers")
    read = spark.read.parquet(f"{folder}/numbers")
    read.mapInArrow(lambda batches: batches, read.schema).groupBy("text").count().collect()


def main() -> None:
    ARCHIVE.unlink(missing_ok=True)
    written = ARCHIVE.with_suffix(f".{os.getpid()}")  # another `make test` may be at it, too
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ.update(environment(f"-XX:ArchiveClassesAtExit={written}"))
    from sessions import Sessions

    sessions = Sessions()
    with tempfile.TemporaryDirectory() as folder:
        _work(sessions.start("local[2]"), folder)
        sessions.close()  # now the JVM writes
    written.replace(ARCHIVE)  # a JVM that cannot write one has left none


if __name__ == "__main__":
    main()
