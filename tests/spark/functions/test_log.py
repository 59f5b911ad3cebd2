"""What the driver's log says once of functions that are left to Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

JOB = """
    import sys
    from pyspark.sql import SparkSession
    import shmring.spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = shmring.spark.configure(builder).getOrCreate()
    function = shmring.spark.through(sys.argv[1])
    variants = spark.range(10).selectExpr("parse_json('1') v")
    for _ in range(2):
        variants.mapInArrow(function, "v variant").explain()
    spark.stop()
"""


@pytest.mark.long
def test_log_says_once_what_is_left_to_spark(name, tmp_path):
    job = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JOB), name],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert job.returncode == 0, job.stderr
    reason = 'column "v" of the type variant'
    assert job.stderr.count(f'mapInArrow\'s batches to sidecar "{name}": {reason}') == 1
    assert job.stdout.count(f"[Spark's own way: {reason}]") == 2
