"""What Spark's log says of sidecars: while a task waits, and where mapInArrow is left to Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

JOB = """
    import sys
    from pyspark.sql import SparkSession
    import shmring.spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.shmring.waitLogInterval", "200ms")
    spark = shmring.spark.configure(builder).getOrCreate()
    frame = spark.range(10).selectExpr("id x")
    print(frame.mapInArrow(shmring.spark.through(sys.argv[1]), "x long").count())
    spark.stop()
"""

LEFT_TO_SPARK = """
    from pyspark.sql import SparkSession
    import shmring.spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = shmring.spark.configure(builder).getOrCreate()
    frame = spark.range(10).selectExpr("parse_json('1') v")
    for _ in range(2):
        frame.mapInArrow(shmring.spark.through("scorer"), "v variant").explain()
    spark.stop()
"""


def test_task_says_again_and_again_who_works_on_its_request(name, serve, marker, tmp_path):
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
    said = []
    for line in job.stderr:
        said += wanted.findall(line)
        if len(said) == 3:
            marker.touch()
            break
    output, errors = job.communicate()
    assert job.returncode == 0, errors
    assert len(said) == 3
    assert output.split() == ["10"]


def test_driver_says_once_why_mapinarrow_is_left_to_spark(tmp_path):
    job = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEFT_TO_SPARK)],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert job.returncode == 0, job.stderr
    reason = 'column "v" of the type variant'
    assert job.stderr.count(f'mapInArrow\'s batches to sidecar "scorer": {reason}') == 1
    assert job.stdout.count(f"[Spark's own way: {reason}]") == 2
