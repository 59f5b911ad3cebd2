"""The jar, Java programs beside these tests, and Spark sessions that have the jar."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shmring
from shmring.spark.jvm import jar_path

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
