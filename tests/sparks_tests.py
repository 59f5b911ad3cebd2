"""Runs Spark's own tests of Python functions, and of collected results, over rings.

    python tests/sparks_tests.py SPARK/python/pyspark/sql/tests ['arrow/test_arrow_map.py' ...]

The folder is that of Spark's sources, which no package of pyspark has. A test that does not pass
over rings runs without conversions too, and over Spark's sockets. Prints for each file how many
tests pass, how many of the others end alike over sockets, and each that does not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyspark
import pytest
import spark_start

import shmring.spark
from shmring.spark import driver

FILES = (
    *("arrow/test_arrow_*map.py", "arrow/test_arrow_*ud*.py", "pandas/test_pandas_*map.py"),
    *("pandas/test_pandas_udf*.py", "test_unified_udf.py", "test_udf_combinations.py"),
    *("test_udtf.py", "arrow/test_arrow.py", "test_collection.py"),
)
SECONDS = "600"  # seconds that one test may take
INSTALLED = Path(pyspark.__path__[0])
ENDS = "SPARKS_TESTS_ENDS"  # the file that says how each test has ended
WAYS = {
    "rings": {},
    "no conversions": {"spark.shmring.conversions": "off"},
    "sockets": {"spark.shmring.functions": "off", "spark.shmring.driver": "off"},
}
OPTIONS = {
    "spark.shmring.functions": "on",
    "spark.shmring.driver": "on",
    "spark.jars": shmring.spark.jar_path(),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": shlex.join(spark_start.FLAGS),
}


def pytest_configure() -> None:
    """Let this Python collect results through memory, as no test calls configure()."""
    driver.equip()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note at once how a test ends, as this module is a plugin of the run too."""
    if report.when == "call" or report.outcome != "passed":
        end = "endless" if "Timeout (>" in report.longreprtext else report.outcome
        with Path(os.environ[ENDS]).open("a") as ends:
            ends.write(f"{report.nodeid} {end}\n")


def _add_tests(folder: Path, tests: Path) -> None:
    """Make the installed pyspark anew, of links, and with the tests and what they import."""
    sql = folder / "pyspark" / "sql"
    sql.mkdir(parents=True)
    (sql.parent / "testing").symlink_to(tests.resolve().parents[1] / "testing")
    for made, part in ((sql.parent, INSTALLED), (sql, INSTALLED / "sql")):
        for entry in part.iterdir():
            if not (made / entry.name).exists():
                (made / entry.name).symlink_to(entry)
    (sql / "tests").symlink_to(tests.resolve())
    (folder / "python").symlink_to(tests.resolve().parents[2])  # with test_support


def _run(folder: Path, tests: list[str], way: str) -> dict[str, str]:
    """Run tests one way; return how each has ended."""
    (folder / way).mkdir(exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in (OPTIONS | WAYS[way]).items()]
    (folder / way / "spark-defaults.conf").write_text("".join(lines))
    ends = folder / way / "ends"
    ends.write_text("")
    path = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        ENDS: str(ends),
        "SPARK_CONF_DIR": str(folder / way),
        "SPARK_HOME": str(INSTALLED),
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
    }
    runner = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
    limits = ["--timeout", SECONDS, "--timeout-method", "signal"]
    command = [*runner, *limits, "-c", os.devnull, f"--rootdir={folder}", *tests]
    with (folder / way / "log").open("a") as log:
        subprocess.run(
            command, env=os.environ | variables, cwd=folder, check=False, stdout=log, stderr=log
        )
    ended: dict[str, str] = {}
    for line in ends.read_text().splitlines():
        name, end = line.split()
        ended[name] = min(end, ended.get(name, end))  # one with parts ends with each
    return ended


def main() -> int:
    """Run all files over rings, and in each other way the tests that did not pass."""
    tests = Path(sys.argv[1])
    named = (file for each in sys.argv[2:] or FILES for file in sorted(tests.glob(each)))
    files = [f"pyspark/sql/tests/{file.relative_to(tests)}" for file in dict.fromkeys(named)]
    with tempfile.TemporaryDirectory() as made:
        _add_tests(Path(made), tests)
        ended = {"rings": _run(Path(made), files, "rings")}
        failing = [test for test, end in ended["rings"].items() if end not in ("passed", "skipped")]
        for way in [*WAYS][1:]:
            ended[way] = _run(Path(made), failing, way) if failing else {}
    unlike = {test for test in failing if ended["rings"][test] != ended["sockets"].get(test)}
    print("| file | tests | pass over rings | end alike over sockets | differ |")
    print("|---|---|---|---|---|")
    for file in files:
        ends = {test: end for test, end in ended["rings"].items() if test.startswith(f"{file}::")}
        counts = Counter(ends.values())
        ran = len(ends) - counts["skipped"]
        others = len(unlike & ends.keys())
        print(
            f"| `{file.removeprefix('pyspark/sql/tests/')}` | {ran} | {counts['passed']} |"
            f" {ran - counts['passed'] - others} | {others} |"
        )
    for test in failing:
        print(f"{test}: {', '.join(f'{way} {ends.get(test)}' for way, ends in ended.items())}")
    return int(bool(unlike))


if __name__ == "__main__":
    sys.exit(main())
