"""Engines behind Spark's API, each a process of its own: Spark, and Sail and Comet beside it.

Those of others have environments of their own below build/, which pip fills the first time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Unavailable
from benchmarks.jvm import need, run
from benchmarks.native import ROOT
from benchmarks.spark_session import SESSION

__all__ = ["Engine", "comet", "sail", "spark"]

BUILD = ROOT / "build" / "engines"
PROGRAM = ROOT / "benchmarks" / "peers" / "spark_engine.py"
# Each with the client, or the Spark, that its documentation names.
SAIL = ("pysail==0.7.2", "pyspark-client==4.2.0", "pandas<3", "pyarrow")
COMET_SPARK = ("pyspark==4.1.1", "pandas<3", "pyarrow")
COMET = "org.apache.datafusion:comet-spark-spark4.1_2.13:1.1.0"

# Of every engine that is Spark.
SPARK = SESSION | {"spark.python.unix.domain.socket.enabled": "true"}
# As Comet's documentation says.
COMET_SESSION = {
    "spark.plugins": "org.apache.spark.CometPlugin",
    "spark.shuffle.manager": "org.apache.spark.sql.comet.execution.shuffle.CometShuffleManager",
    "spark.comet.enabled": "true",
    "spark.comet.exec.enabled": "true",
    "spark.comet.exec.pyarrowUDF.enabled": "true",
    "spark.memory.offHeap.enabled": "true",
    "spark.memory.offHeap.size": "2g",
}


class Engine:
    """A process that answers the requests of `peers/spark_engine.py`.

    Parameters
    ----------
    name : of its log
    session : settings of Spark's session; None is Sail
    path : where its Python finds modules beside those of its environment
    """

    def __init__(
        self,
        name: str,
        python: str | Path,
        session: Mapping[str, str] | None = None,
        path: str = "",
    ) -> None:
        python = str(python)
        own = {"PYTHONPATH": path, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        BUILD.mkdir(parents=True, exist_ok=True)
        self._log = BUILD / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, PROGRAM, json.dumps(session)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env=os.environ | own,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Let the engine do it; raises if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: no answer comes
            print(json.dumps([verb, arguments]), file=self._process.stdin)
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the engine's process has ended"}
        if "error" in answer:
            raise RuntimeError(f"{answer['error']} ({self._log} says more)")
        return dict(answer)

    def close(self) -> None:
        """End it: it sees the end of its input."""
        self._process.communicate()


def spark(*, pipelined: bool = False) -> Engine:
    """Spark with this project's jar, in this environment.

    Parameters
    ----------
    pipelined : a thread of its own writes for the Python worker
    """
    from shmring.spark import jar_path

    pipeline = {"spark.python.udf.pipelined.enabled": str(pipelined).lower()}
    session = SPARK | pipeline | {"spark.jars": jar_path()}
    name = "pipelined" if pipelined else "spark"
    return Engine(name, sys.executable, session, os.environ.get("PYTHONPATH", ""))


def sail() -> Engine:
    """Sail: a server of Spark Connect in Rust, which runs Python functions in its own process."""
    return Engine("sail", _environment("sail", SAIL))


def comet() -> Engine:
    """DataFusion Comet: a plugin of Spark that keeps columns, also on the way to Python workers."""
    need("mvn", package="maven")
    _, artifact, version = COMET.split(":")
    jar = BUILD / f"{artifact}-{version}.jar"
    if not jar.exists():
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        try:
            run("mvn", "-q", "-B", goal, f"-Dartifact={COMET}", f"-DoutputDirectory={BUILD}")
        except Unavailable:
            raise Unavailable(f"Maven does not find {COMET} here") from None
    jars = {"spark.jars": str(jar), "spark.driver.extraClassPath": str(jar)}
    return Engine("comet", _environment("comet", COMET_SPARK), SPARK | COMET_SESSION | jars)


def _environment(name: str, packages: tuple[str, ...]) -> Path:
    """The Python of an environment that has these packages."""
    folder = BUILD / name
    python, made_of = folder / "bin" / "python", folder / "packages"
    wanted = "\n".join(packages)
    if not made_of.exists() or made_of.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
        # Isolated: PYTHONPATH has the modules of this environment.
        pip = (python, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, *packages)
        made_of.write_text(wanted)
    return python
