"""Runs Spark's own tests of Arrow and pandas functions, over rings and over the socket.

    python tests/sparks_tests.py SPARK/python/pyspark/sql/tests ['arrow/test_arrow_map.py' ...]

The folder is that of Spark's sources, which no package of pyspark has. Prints how many tests of
each file pass over rings, and what does not, with how it ends over the socket.
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
    """Make the installed pyspark anew, of links, and with `pyspark.sql.tests`."""
    sql = folder / "pyspark" / "sql"
    sql.mkdir(parents=True)
    for made, part in ((sql.parent, INSTALLED), (sql, INSTALLED / "sql")):
        for entry in part.iterdir():
            if not (made / entry.name).exists():
                (made / entry.name).symlink_to(entry)
    (sql / "tests").symlink_to(tests.resolve())
    (folder / "python").symlink_to(tests.resolve().parents[2])  # with test_support


def _run(folder: Path, tests: list[str], switch: str) -> dict[str, str]:
    """How each test has ended."""
    (folder / switch).mkdir()
    options = OPTIONS | {"spark.shmring.functions": switch}
    lines = [f"{name} {value}\n" for name, value in options.items()]
    (folder / switch / "spark-defaults.conf").write_text("".join(lines))
    ends = folder / switch / "ends"
    ends.touch()
    path = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        ENDS: str(ends),
        "SPARK_CONF_DIR": str(folder / switch),
        "SPARK_HOME": str(INSTALLED),
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
    }
    runner = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
    limits = ["--timeout", SECONDS, "--timeout-method", "signal"]
    command = [*runner, *limits, "-c", os.devnull, f"--rootdir={folder}", *tests]
    subprocess.run(command, env=os.environ | variables, cwd=folder, check=False)
    ended: dict[str, str] = {}
    for line in ends.read_text().splitlines():
        name, end = line.split()
        ended[name] = min(end, ended.get(name, end))  # one with parts ends with each
    return ended


def main() -> int:
    """Run over rings, and over the socket what does not pass."""
    tests = Path(sys.argv[1])
    files = sorted({file for each in sys.argv[2:] or FILES for file in tests.glob(each)})
    paths = [f"pyspark/sql/tests/{file.relative_to(tests)}" for file in files]
    with tempfile.TemporaryDirectory() as made:
        _add_tests(Path(made), tests)
        on = _run(Path(made), paths, "on")
        failing = [name for name, end in on.items() if end not in ("passed", "skipped")]
        off = _run(Path(made), failing, "off") if failing else {}
    for path in paths:
        of_file = {name: end for name, end in on.items() if name.startswith(f"{path}::")}
        also = sum(off.get(name) == end for name, end in of_file.items())
        print(f"{path}: {dict(Counter(of_file.values()))}, {also} end so over the socket too")
    for name in failing:
        print(f"{name}: {on[name]} over rings, {off.get(name)} over the socket")
    return int(any(off.get(name) != on[name] for name in failing))


if __name__ == "__main__":
    sys.exit(main())
