"""The jar, Java programs beside these tests, and Spark sessions that have the jar."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fixture_types import Until
from spark_start import SHORT_LIVED

import shmring
from shmring.spark.jvm import jar_path

if TYPE_CHECKING:
    from cluster import Cluster
    from pyspark.sql import SparkSession
    from sessions import Sessions

HERE = Path(__file__).parent
# JVM option that Arrow's Java library needs; Spark sets it by itself.
OPENS = "--add-opens=java.base/java.nio=ALL-UNNAMED"
# Arrow's Java library, among Spark's jars. A program that has all 280 of these on its class path
# takes twice the time: Arrow looks through them for a logger.
ARROW = ("arrow", "netty-buffer", "netty-common", "flatbuffers", "jackson", "slf4j-api")
NO_LOGGER = "-Dslf4j.internal.verbosity=ERROR"  # do not warn that there is none


def spark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "jars"


def class_path() -> str:
    return f"{jar_path()}{os.pathsep}{spark_jars()}/*"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def java() -> Callable[..., list[str]]:
    """The command that runs one of the Java programs of this folder.

    The first worker of a run that needs these compiles them for all.
    """
    classes = Path(os.environ["SHMRING_TEST_RUN"]) / "classes"
    made = classes / "made"
    with open(f"{classes}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            sources = [str(source) for source in HERE.glob("*.java")]
            quick = [f"-J{flag}" for flag in SHORT_LIVED]
            options = ["--release", "17", "-cp", class_path(), "-d", str(classes)]
            subprocess.run(["javac", *quick, *options, *sources], check=True)
            made.touch()
    arrow = [str(jar) for name in ARROW for jar in spark_jars().glob(f"{name}-*.jar")]

    def command(program: str, *arguments: object) -> list[str]:
        options = [OPENS, "-Xmx512m", "-Xcheck:jni", NO_LOGGER, *SHORT_LIVED]
        source = HERE / f"{program.rpartition('.')[2]}.java"
        used = [class_path()] if "spark" in source.read_text() else [jar_path(), *arrow]
        path = os.pathsep.join([str(classes), *used])
        return ["java", *options, "-cp", path, program, *map(str, arguments)]

    return command


@pytest.fixture(scope="session")
def c_peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = Path(shmring.get_library())
    program = tmp_path_factory.mktemp("c") / "peer"
    subprocess.run(
        [
            *("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", str(HERE / "peer.c")),
            *("-o", str(program), "-I", shmring.get_include(), str(library)),
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )
    return program


@pytest.fixture(scope="module")
def start_on_cluster(
    start_spark: Callable[..., SparkSession], cluster: Cluster, sessions: Sessions
) -> Iterator[Callable[..., SparkSession]]:
    """Starts a session on the module's cluster, whose executors and Python workers are there."""

    def start(**options: str) -> SparkSession:
        usual = {"spark.executor.memory": "512m", "spark.locality.wait": "0"}
        session = start_spark(cluster.url, **usual, **options)
        session.range(2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").count()
        return session

    yield start
    sessions.stop()


@pytest.fixture
def allocated(spark: SparkSession, until: Until) -> Callable[[], int]:
    """Bytes that Arrow's allocator in the JVM has given out since the test began.

    What stays from before is Spark's own: 133,120 bytes of each task of `mapInArrow` that a limit
    has ended early, for as long as the JVM lives (seen with Spark 4.3 without shmring).
    """
    jvm = spark._jvm
    assert jvm is not None
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    # The tasks of a query that was stopped, in the last test, are killed later, and have memory.
    until(lambda: not scheduler.isExecutorBusy("driver"), "the end of earlier tasks")
    root = jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    before = root.getAllocatedMemory()
    return lambda: root.getAllocatedMemory() - before
