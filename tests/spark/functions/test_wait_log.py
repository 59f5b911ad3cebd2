"""What Spark's log says of sidecars: while a task waits, and where mapInArrow is left to Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

JOB = """
    import sys
    from pyspark.sql import SparkSession
    import shmring.spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.shmring.waitLogInterval", "200ms")
    spark = shmring.spark.configure(builder).getOrCreate()
    function = shmring.spark.through(sys.argv[1])
    variants = spark.range(10).selectExpr("parse_json('1') v")
    for _ in range(2):
        variants.mapInArrow(function, "v variant").explain()
    print(spark.range(10).selectExpr("id x").mapInArrow(function, "x long").count())
    spark.stop()
"""


@pytest.mark.long
def test_log_says_once_what_is_left_to_spark_and_again_and_again_who_works_on_a_request(
    name, serve, marker, tmp_path
):
    sidecar = serve("wait_for_marker")
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(JOB), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    (pid,) = sidecar.pids
    wanted = re.compile(
        rf'task 0.0 in stage \d+ has waited for sidecar "{name}" for \d+ s: '
        rf"worker {pid} \(functions:wait_for_marker\) has been at request 0 of process \d+"
    )
    assert job.stderr is not None
    said, log = [], ""
    for line in job.stderr:
        log += line
        said += wanted.findall(line)
        if len(said) == 3:
            marker.touch()
            break
    output, errors = job.communicate()
    assert job.returncode == 0, log + errors
    assert len(said) == 3
    assert output.split()[-1] == "10"
    reason = 'column "v" of the type variant'
    assert log.count(f'mapInArrow\'s batches to sidecar "{name}": {reason}') == 1
    assert output.count(f"[Spark's own way: {reason}]") == 2
