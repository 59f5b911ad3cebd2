"""Runs Spark's own tests of Arrow and pandas functions, over the socket and over rings.

    python tests/sparks_tests.py SPARK/python/pyspark/sql/tests ['arrow/test_arrow_map.py' ...]

The folder is that of Spark's sources, which no package of pyspark has. Prints how many pass over
rings, how many of the others fail over the socket too, and each test that does not.
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
    "spark.sql.shuffle.partitions": "4",
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


def _run(folder: Path, tests: list[str], switch: str) -> dict[str, str]:
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
    report = folder / f"{switch}.xml"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [*pytest, f"--rootdir={folder}", f"--junitxml={report}", *tests]
    subprocess.run(command, env=os.environ | variables, cwd=folder, check=False)
    ended: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        module, _, owner = str(case.get("classname")).rpartition(".")
        name = f"{module.replace('.', '/')}.py::{owner}::{case.get('name')}"
        ended[name] = min([*kinds, ended.get(name, "passed")])  # one with parts ends with each
    return ended


def main() -> int:
    """Run over rings, and over the socket what does not pass; print the table."""
    tests = Path(sys.argv[1])
    files = sorted(
        f"pyspark/sql/tests/{file.relative_to(tests)}"
        for each in sys.argv[2:] or FILES
        for file in tests.glob(each)
    )
    with tempfile.TemporaryDirectory() as made:
        _add_tests(Path(made), tests)
        on = _run(Path(made), files, "on")
        failing = [name for name, end in on.items() if end not in ("passed", "skipped")]
        off = _run(Path(made), failing, "off") if failing else {}
    for file in files:
        of_file = {name: end for name, end in on.items() if name.startswith(f"{file}::")}
        ends = Counter(of_file.values())
        also = sum(off.get(name) == end for name, end in of_file.items())
        print(f"{file}: {ends['passed']} pass of {len(of_file)}, {also} fail over the socket too")
    differing = [name for name in failing if off.get(name) != on[name]]
    print(*differing, sep="\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
