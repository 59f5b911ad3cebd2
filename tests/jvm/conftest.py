"""The jar, Java programs beside these tests, and Spark sessions that have the jar."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shmring
from shmring.spark.jvm import jar_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sessions import Sessions

HERE = Path(__file__).parent
SOURCE = str(Path(shmring.__file__).parent.parent)
# What Arrow's Java library asks of the JVM; Spark gives it by itself.
OPENS = "--add-opens=java.base/java.nio=ALL-UNNAMED"


def spark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "jars"


def class_path() -> str:
    return f"{jar_path()}{os.pathsep}{spark_jars()}/*"


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """The command that runs one of the Java programs of this folder."""
    classes = tmp_path_factory.mktemp("classes")
    sources = [str(source) for source in HERE.glob("*.java")]
    subprocess.run(
        ["javac", "--release", "17", "-cp", class_path(), "-d", str(classes), *sources], check=True
    )
    path = f"{classes}{os.pathsep}{class_path()}"

    def command(program: str, *arguments: object) -> list[str]:
        options = [OPENS, "-Xmx512m", "-Xcheck:jni"]
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


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of processes that import shmring, and of Spark's Python workers."""
    path = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(
                # PySpark says so of every pandas that is newer than itself, and works.
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
            )


@pytest.fixture(scope="module")
def start_spark(environment: dict[str, str], sessions: Sessions) -> Callable[..., SparkSession]:
    """Starts a session with the jar, or gives the one that runs and is like it."""
    variables = {name: environment[name] for name in ("PYSPARK_PYTHON", "PYTHONPATH")}
    options = {"spark.sql.session.timeZone": "UTC"}

    def start(master: str, **more: str) -> SparkSession:
        return sessions.start(master, jar=True, environment=variables, **(options | more))

    return start


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    """A session in one process."""
    return start_spark("local[2]")


@pytest.fixture
def allocated(spark: SparkSession) -> Callable[[], int]:
    """Bytes that Arrow's allocator in the JVM has given out."""
    jvm = spark._jvm
    assert jvm is not None
    return jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory
