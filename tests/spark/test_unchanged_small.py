"""Spark's own Python workers where /dev/shm has no room for their rings."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.long]

PROGRAM = """
    import os
    from pathlib import Path

    from pyspark.sql import SparkSession
    from shmring.spark import configure

    builder = SparkSession.builder.master("local[2]").config("spark.local.dir", "local")
    spark = configure(builder).getOrCreate()
    numbers = spark.range(0, 10_000, 1, 4).selectExpr("id", "repeat('x', 300) text")
    for _ in range(2):
        same = numbers.mapInArrow(lambda batches: batches, numbers.schema)
        assert "over rings" in same._jdf.queryExecution().executedPlan().toString()
        totals = same.selectExpr("sum(id)", "sum(length(text))").first()
        assert tuple(totals) == (sum(range(10_000)), 300 * 10_000)
    assert not os.listdir("/dev/shm")
    assert not [path for path in Path("local").rglob("*") if "worker" in path.name]
"""


def test_rings_are_files_elsewhere_and_one_line_says_so(
    tmp_path: Path, with_small_shm: Callable[..., list[str]]
) -> None:
    done = subprocess.run(
        with_small_shm("64k", sys.executable, "-c", textwrap.dedent(PROGRAM)),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stderr.count("/dev/shm has no room for the rings of Python workers") == 1
