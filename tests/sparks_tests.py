"""Runs Spark's own tests of Arrow and pandas functions, over the socket and over rings.

    python tests/sparks_tests.py SPARK/python/pyspark/sql/tests ['arrow/test_arrow_map.py' ...]

The folder is that of Spark's sources, which no package of pyspark has. Prints how many pass each
way, and each test that does not end alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pyspark

import shmring.spark

FILES = ("arrow/test_arrow_*.py", "pandas/test_pandas_*map.py", "pandas/test_pandas_udf*.py")
INSTALLED = Path(pyspark.__path__[0])
OPTIONS = {
    "spark.jars": shmring.spark.jar_path(),
    "spark.python.daemon.module": "shmring.spark.daemon",
    "spark.ui.enabled": "false",
}


def _add_tests(folder: Path, tests: Path) -> None:
    """Make the installed pyspark anew, of links, and with `pyspark.sql.tests`."""
    sql = folder / "pyspark" / "sql"
    sql.mkdir(parents=True)
    for made, part in ((sql.parent, INSTALLED), (sql, INSTALLED / "sql")):
        for entry in part.iterdir():
            if not (made / entry.name).exists():
                (made / entry.name).symlink_to(entry)
    (sql / "tests").symlink_to(tests.resolve())


def _run(folder: Path, files: list[str], switch: str) -> dict[str, str]:
    """How each test has ended."""
    (folder / switch).mkdir()
    options = OPTIONS | {"spark.shmring.functions": switch}
    lines = [f"{name} {value}\n" for name, value in options.items()]
    (folder / switch / "spark-defaults.conf").write_text("".join(lines))
    variables = {
        "SPARK_CONF_DIR": str(folder / switch),
        "SPARK_HOME": str(INSTALLED),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
    }
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    ended: dict[str, str] = {}
    for file in files:
        report = folder / "report.xml"
        module = "pyspark.sql.tests." + file.removesuffix(".py").replace("/", ".")
        command = [*pytest, f"--junitxml={report}", "--pyargs", module]
        subprocess.run(command, env=os.environ | variables, cwd=folder, check=False)
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            owner = str(case.get("classname")).rpartition(".")[2]
            ended[f"{file}::{owner}.{case.get('name')}"] = min(kinds, default="passed")
    return ended


def main() -> int:
    """Run both ways, and print the table."""
    tests = Path(sys.argv[1])
    files = sorted(
        str(file.relative_to(tests)) for each in sys.argv[2:] or FILES for file in tests.glob(each)
    )
    with tempfile.TemporaryDirectory() as made:
        _add_tests(Path(made), tests)
        off, on = (_run(Path(made), files, switch) for switch in ("off", "on"))
    for file in files:
        of_file = [
            Counter(end for name, end in ends.items() if name.startswith(f"{file}::"))
            for ends in (off, on)
        ]
        print(file, *(f"{ends['passed']} of {ends.total()} pass" for ends in of_file), sep=" | ")
    differing = [name for name in off | on if off.get(name) != on.get(name)]
    for name in differing:
        print(f"{name}: {off.get(name)} over the socket, {on.get(name)} over rings")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
