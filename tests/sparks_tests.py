"""Runs Spark's own tests of Python functions: over rings, with and without conversions.

    python tests/sparks_tests.py SPARK/python/pyspark/sql/tests ['arrow/test_arrow_map.py' ...]

The folder is that of Spark's sources, which no package of pyspark has. Prints for each file how
many tests pass each way, and each test that does not end alike, over Spark's sockets too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyspark
import pytest

import shmring.spark

FILES = (
    *("arrow/test_arrow_*map.py", "arrow/test_arrow_*ud*.py", "pandas/test_pandas_*map.py"),
    *("pandas/test_pandas_udf*.py", "test_unified_udf.py", "test_udf_combinations.py"),
    "test_udtf.py",
)
SECONDS = "600"  # seconds that one test may take
INSTALLED = Path(pyspark.__path__[0])
ENDS = "SPARKS_TESTS_ENDS"  # the file that says how each test has ended
WAYS = {
    "conversions": {"spark.shmring.functions": "on"},
    "rings": {"spark.shmring.functions": "on", "spark.shmring.conversions": "off"},
    "sockets": {"spark.shmring.functions": "off"},
}
OPTIONS = {
    "spark.jars": shmring.spark.jar_path(),
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


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


def _passed(ended: dict[str, str]) -> str:
    counts = Counter(ended.values())
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{counts['passed']} of {len(ended) - counts['skipped']}{skipped}"


def main() -> int:
    """Run file by file; over Spark's sockets only what does not pass over rings."""
    tests = Path(sys.argv[1])
    files = sorted({file for each in sys.argv[2:] or FILES for file in tests.glob(each)})
    differ = 0
    print("| file | conversions | without conversions | fail over sockets too |", flush=True)
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _add_tests(folder, tests)
        for file in files:
            name = file.relative_to(tests)
            ended = {way: _run(folder, [f"pyspark/sql/tests/{name}"], way) for way in [*WAYS][:2]}
            names = {test for ends in ended.values() for test in ends}
            failing = sorted(
                test
                for test in names
                if any(ends.get(test) not in ("passed", "skipped") for ends in ended.values())
            )
            ended["sockets"] = _run(folder, failing, "sockets") if failing else {}
            alike = [
                test for test in failing if len({ends.get(test) for ends in ended.values()}) == 1
            ]
            counts = " | ".join(_passed(ended[way]) for way in [*WAYS][:2])
            print(f"| `{name}` | {counts} | {len(alike)} |", flush=True)
            for test in sorted({*failing} - {*alike}):
                differ += 1
                ends = ", ".join(f"{way} {ends.get(test)}" for way, ends in ended.items())
                print(f"{test}: {ends}", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
