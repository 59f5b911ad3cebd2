"""How Spark ends functions over rings, and which of them are left to it."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mapped
import pandas as pd
import pyarrow as pa
import pytest
from direct import FUNCTIONS, ROWS, metrics_of, plan_of
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, Window, functions
from unchanged import ADAPTIVE, LARGE, arrays, arrays_iterator, compare, outcome, series

import shmring
from shmring.sidecars.batches import Unchanged


@pytest.fixture
def frame(spark, set_option):
    set_option(ROWS, 500)
    set_option(FUNCTIONS, "on")
    return spark.range(3503, numPartitions=2).selectExpr("id", "id * 1.5 half", "string(id) text")


def test_limit_ends_a_function(frame, tmp_path, until):
    def writes_when_closed(batches):
        try:
            yield from batches
        finally:
            Path(f"{tmp_path}/{os.getpid()}").touch()

    assert len(frame.mapInArrow(writes_when_closed, frame.schema).limit(7).collect()) == 7
    until(lambda: list(tmp_path.iterdir()))


def test_job_that_is_cancelled_ends_and_leaves_its_workers_to_spark(
    frame, start_job, until, tmp_path
):
    def waits(batches):
        for batch in batches:
            Path(f"{tmp_path}/{os.getpid()}").touch()
            signal.pause()
            yield batch

    cancel = start_job(frame.mapInArrow(waits, frame.schema))
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    cancel()
    until(lambda: not any(Path(f"/proc/{pid.name}").exists() for pid in tmp_path.iterdir()))
    assert frame.mapInArrow(mapped.counts, "n long").count() == 10


def test_worker_of_a_cancelled_task_that_did_not_wait_for_it_ends(
    spark, frame, set_option, start_job, until, tmp_path
):
    def waits(batches):
        for _ in batches:
            Path(f"{tmp_path}/{os.getpid()}").touch()
            signal.pause()
            yield from ()

    set_option(ROWS, 100)
    sleeps = "if(id > 250, reflect('java.lang.Thread', 'sleep', 600000L), '') slept"
    rows = spark.range(0, 1000, 1, 1).selectExpr(sleeps)
    cancel = start_job(rows.mapInArrow(waits, "slept string"))
    until(lambda: list(tmp_path.iterdir()))
    cancel()
    (pid,) = tmp_path.iterdir()
    until(lambda: not Path(f"/proc/{pid.name}").exists())


def test_workers_are_used_again_and_no_ring_has_a_name(spark, frame, until):
    def pids(batches):
        for _ in batches:
            pass
        yield pa.record_batch({"n": [os.getpid()]})

    # Spark takes the worker that has been idle for longest; another test may have left several.
    one_task = frame.coalesce(1).mapInArrow(pids, "n long")
    used = [one_task.collect()[0].n for _ in range(20)]
    assert len(set(used)) < len(used)
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    # A task that an earlier test has cancelled may be about to make its rings.
    until(lambda: not list(Path("/dev/shm").glob(f"shmring.worker.{jvm}-*")), "rings without names")


def test_thread_that_a_task_leaves_takes_no_batch_of_the_next_one(frame, set_option):
    def leaves(batches):
        first = next(batches)
        threading.Thread(target=list, args=(batches,), daemon=True).start()
        yield first

    set_option(ROWS, 50)
    frame = frame.coalesce(1)
    assert frame.mapInArrow(leaves, frame.schema).count() == 50
    assert frame.mapInArrow(lambda batches: batches, frame.schema).count() == 3503


def test_columns_that_are_passed_on_are_those_of_their_own_batch(spark, set_option):
    def reads_on(batches):
        first, rest = next(batches), []
        reader = threading.Thread(target=lambda: rest.extend(batches))
        compared = Unchanged.without

        def without(*sides):
            own = compared(*sides)
            if reader.ident is None:
                reader.start()
                reader.join(0.5)  # it has read on, or waits until the answer has gone
            return own

        Unchanged.without = without
        yield first
        Unchanged.without = compared
        reader.join()
        yield from rest

    set_option(ROWS, 10_000)
    set_option(FUNCTIONS, "on")
    frame = spark.range(30_000, numPartitions=1)
    rows = frame.mapInArrow(reads_on, frame.schema).collect()
    assert [row.id for row in rows] == list(range(30_000))


def test_answers_that_spark_makes_of_values_come_together(frame, set_option):
    set_option(ADAPTIVE, False)  # an adaptive plan hides the nodes
    doubled = functions.udtf(
        type("Doubled", (), {"eval": lambda self, x: [(2 * x,)] * (x % 3)}),
        returnType="n long",
        useArrow=True,
    )
    found = frame.coalesce(1).lateralJoin(doubled(functions.col("id").outer()))
    assert [tuple(row) for row in found.select("id", "n").collect()] == [
        (x, 2 * x) for x in range(3503) for _ in range(x % 3)
    ]
    assert metrics_of(found, "ArrowEvalPythonUDTF")["answers"] < 3503
    sums = frame.groupBy("id").agg(series("long", lambda x: int(x.sum()), int)("id").alias("sum"))
    assert {tuple(row) for row in sums.collect()} == {(x, x) for x in range(3503)}
    assert metrics_of(sums, "ArrowAggregatePython")["answers"] < 3503


def test_columns_of_a_batch_that_goes_in_parts_are_not_sent_back(spark, set_option):
    set_option(ADAPTIVE, False)
    set_option(ROWS, 10_000)
    set_option(FUNCTIONS, "on")

    def passes_on(batches):
        for batch in batches:
            numbers = pa.array(range(batch.num_rows), pa.int64())
            yield pa.record_batch({"n": numbers, "many": batch.column("many")})

    rows = spark.range(20_000, numPartitions=1)
    frame = rows.selectExpr("transform(sequence(1, 256), x -> float(x + id)) many")
    found = frame.mapInArrow(passes_on, "n long, many array<float>")
    tail = found.selectExpr("count(many)", "sum(n)", "sum(many[255])")
    assert [tuple(row) for row in tail.collect()] == [
        (20_000, 99_990_000, sum(256.0 + x for x in range(20_000)))
    ]
    counted = metrics_of(tail, "MapInArrow")
    assert counted["answerBytes"] < counted["requestBytes"] / 50


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_column_that_an_answer_lacks_is_told_as_spark_tells_it(frame, set_option, switch):
    set_option(FUNCTIONS, switch)
    short = frame.mapInArrow(lambda batches: (b.select(["id"]) for b in batches), "id long, n long")
    with pytest.raises(Exception, match="Index 1 out of bounds for length 1"):
        short.collect()


def test_functions_that_take_sparks_own_way_have_sparks_own_daemon(frame, set_option):
    def daemon(batches):
        for _ in batches:
            pass
        yield pa.record_batch({"name": [sys.modules["__main__"].__spec__.name]})

    for switch, name in (("on", "shmring.spark.daemon"), ("off", "pyspark.daemon")):
        set_option(FUNCTIONS, switch)
        query = frame.mapInArrow(daemon, "name string")
        assert {row.name for row in query.collect()} == {name}


def test_daemon_sweeps_after_an_executor_that_was_killed_before_its_workers_had_attached(
    child, name, until
):
    executor = """
        import os, subprocess, sys, shmring
        ring = shmring.create(f"worker.{os.getpid()}-{sys.argv[1]}", slots=1024, temporary=True)
        command = [sys.executable, "-m", "shmring.spark.daemon"]
        daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(len(daemon.stdout.read(4)))  # of its port
        sys.stdin.readline()
    """
    process = child(executor, name)
    assert process.line() == "4"
    process.kill()
    until(lambda: not any(ring.endswith(f"-{name}") for ring in shmring.rings()), "the sweep")


def test_daemon_sweeps_before_its_work_after_an_executor_that_was_killed_with_its_daemon(
    child, name, until
):
    executor = """
        import os, sys, shmring
        ring = shmring.create(f"worker.{os.getpid()}-{sys.argv[1]}", slots=1024, temporary=True)
        print(ring.name)
        sys.stdin.readline()
    """
    daemon = """
        import subprocess, sys, shmring
        command = [sys.executable, "-m", "shmring.spark.daemon"]
        daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        daemon.stdout.read(4)  # its port
        print(*(ring for ring in shmring.rings() if ring.endswith(f"-{sys.argv[1]}")))
        daemon.stdin.close()
        daemon.wait()
    """
    killed, lives = child(executor, name), child(executor, name)
    left, kept = killed.line(), lives.line()
    killed.kill()
    assert child(daemon, name).line() == kept
    assert left not in shmring.rings()
    lives.say()
    lives.end()  # the fixture would kill it before it has removed its ring


def test_memory_that_a_batch_had_is_there_for_the_next_one(child):
    program = """
        import resource
        from shmring.spark.daemon import keep_freed_memory

        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        def work():
            one, other = [bytes([1]) * (3 << 20) for _ in range(2)]

        keep_freed_memory()
        work()
        before = faults()
        for _ in range(20):
            work()
        print(faults() - before)
    """
    assert int(child(program).line()) < 2 * (3 << 20) // 4096  # the pages of a single turn


def test_garbage_is_looked_for_in_what_a_task_leaves_and_not_in_modules(frame, until, tmp_path):
    class Left:
        pass

    def leaves(batches):
        left = Left()
        left.itself = left
        out = gc.get_freeze_count()
        sign = Path(f"{tmp_path}/{os.getpid()}-{out}")
        weakref.finalize(left, sign.touch)
        for _ in batches:
            pass
        yield pa.record_batch({"out": [out], "sign": [str(sign)]})

    # Run one task: for a second task at the same time Spark may start a new worker.
    query = frame.coalesce(1).mapInArrow(leaves, "out long, sign string")
    query.collect()
    again = query.collect()
    assert all(row.out > 10_000 for row in again)
    until(lambda: all(Path(row.sign).exists() for row in again))


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_worker_that_is_silent_for_too_long_ends(frame, set_option, switch):
    def waits(batches):
        for batch in batches:
            signal.pause()
            yield batch

    set_option(FUNCTIONS, switch)
    set_option("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "1")
    set_option("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "true")
    (error,) = outcome(frame.mapInArrow(waits, frame.schema), over_rings=switch == "on")
    assert "terminated due to idle timeout (timeout: # seconds)" in error


def test_answers_are_validated_as_sparks_own(frame, set_option):
    def narrow(batches):
        for batch in batches:
            yield batch.set_column(0, "id", batch["id"].cast("int32"))

    def validated(switch):
        set_option(FUNCTIONS, switch)
        return [
            outcome(frame.mapInArrow(function, frame.schema), over_rings=switch == "on")
            for function in (narrow, lambda batches: batches)
        ]

    set_option("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    on = validated("on")
    assert on == validated("off")
    assert "MISMATCH" in on[0][0]


def test_workers_write_logs(spark, frame, set_option):
    def writing(kind):
        def logs(given):
            logging.getLogger("rings").warning(kind)
            return given

        return logs

    set_option("spark.sql.pyspark.worker.logging.enabled", "true")
    few = frame.limit(3).coalesce(1)
    calls = {
        "batches": few.mapInArrow(writing("batches"), frame.schema),
        "value": few.select(functions.udf(writing("value"), useArrow=True)("text")),
        "frame": few.groupBy("id").applyInPandas(writing("frame"), frame.schema),
    }
    for call in calls.values():
        assert "over rings" in plan_of(call)
        call.collect()
    written = spark.tvf.python_worker_logs().select("level", "msg", "context", "logger").collect()
    for kind in calls:
        assert ("WARNING", kind, {"func_name": "logs"}, "rings") in map(tuple, written)


def test_functions_with_a_resource_profile_go_over_rings(frame):
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
    for made in (
        frame.mapInArrow(lambda batches: batches, frame.schema, profile=profile),
        frame.mapInPandas(lambda frames: frames, frame.schema, profile=profile),
    ):
        assert "over rings" in plan_of(made)


def test_functions_go_over_sockets_where_the_executors_python_lacks_shmring(
    spark, frame, tmp_path, monkeypatch
):
    lacks = """raise ModuleNotFoundError("No module named 'shmring'")"""
    (tmp_path / "shmring.py").write_text(lacks)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    same = frame.mapInArrow(lambda batches: batches, frame.schema)
    assert "over rings" in plan_of(same)
    assert same.count() == 3503


@pytest.fixture
def set_conf(spark):
    """Sets an option of the running context, which no session can set."""
    conf = spark.sparkContext._jsc.sc().conf()
    names: list[str] = []

    def set_to(option, value):
        names.append(option)
        conf.set(option, value)

    yield set_to
    for name in names:
        conf.remove(name)


def test_a_daemon_of_the_users_own_is_used(frame, set_conf):
    def tells(batches):
        for batch in batches:
            yield pa.record_batch({"said": [os.environ.get("USERS_DAEMON")] * len(batch)})

    query = frame.mapInArrow(tells, "said string")
    set_conf("spark.python.daemon.module", "pyspark.daemon")
    (reason,) = _reasons(query)
    assert reason.startswith("spark.python.daemon.module is set")
    set_conf("spark.shmring.daemon", "users_daemon")
    composed = frame.mapInArrow(tells, "said string")
    assert "over rings" in plan_of(composed)
    assert {row.said for row in composed.collect()} == {"has begun"}


def test_a_worker_module_that_sparks_daemon_does_not_run_leaves_functions_over_rings(
    frame, set_conf
):
    set_conf("spark.python.worker.module", "the.users")
    assert _reasons(frame.mapInArrow(mapped.counts, "n long")) == []
    set_conf("spark.python.worker.module", "pyspark.users")
    assert _reasons(frame.mapInArrow(mapped.counts, "n long")) == [
        "spark.python.worker.module is set"
    ]


def _reasons(frame) -> list[str]:
    """Why functions take Spark's own way, as explain() says it."""
    return re.findall(r" \[Spark's own way: (.*?)\]", plan_of(frame))


def test_udfs_get_the_batches_of_columns_that_spark_gives_them(spark, frame, set_option, tmp_path):
    lengths = arrays("long", lambda x: pa.array([len(x)] * len(x)))
    of_all = arrays_iterator("long", lambda batches: (pa.array([len(b)] * len(b)) for b in batches))
    frame.write.parquet(str(tmp_path / "rows"))
    set_option("spark.sql.parquet.columnarReaderBatchSize", 700)
    rows = spark.read.parquet(str(tmp_path / "rows"))
    nested = rows.withColumn("both", functions.struct("id", "text"))

    def lengths_seen(query, way: str) -> list[str]:
        return sorted(outcome(query, over_rings=way == "on"))

    def outcomes(way: str) -> list[list[str]]:
        set_option(FUNCTIONS, way)
        queries = [
            rows.select("text", lengths("id"), lengths("half")),
            rows.select("id", lengths(functions.expr("id + half"))),
            rows.select("id", of_all("text")),
            rows.withColumn("n", lengths("id")).select("id", "n", lengths("n")),
            rows.where("id % 3 > 0").select("id", lengths("id")),
            nested.select("both", lengths("id")),
        ]
        return [lengths_seen(query, way) for query in queries]

    on, off = outcomes("on"), outcomes("off")
    assert on == off
    assert ("=700" in on[0][0]) == (spark.version >= "4.2"), on[0][0]
    set_option("spark.sql.execution.arrow.pythonUDF.columnarInput.enabled", "false")
    set_option(FUNCTIONS, "on")
    assert all("=700" not in row for row in lengths_seen(rows.select(lengths("id")), "on"))


def test_explain_says_why_a_function_is_left_to_spark(frame, set_option):
    pickled = functions.udf(lambda x: x + 1, "double", useArrow=False)
    assert _reasons(frame.select(pickled("half"))) == ["functions of this kind are not taken"]
    handler = type("Handler", (), {"eval": lambda self: [(1,)]})
    of_values = functions.udtf(handler, returnType="n long", useArrow=False)
    assert _reasons(of_values()) == ["functions of this kind are not taken"]
    of_nothing = functions.udtf(handler, returnType="n long", useArrow=True)
    assert _reasons(of_nothing()) == ["it takes no columns"]
    alone = functions.udf(lambda: 1, "long", useArrow=True).asNondeterministic()
    assert _reasons(frame.select(alone())) == ["it takes no columns"]
    variant = frame.selectExpr("parse_json(text) v").mapInArrow(
        lambda batches: batches, "v variant"
    )
    assert _reasons(variant) == ['column "v" of the type variant']
    mean = series("double", lambda x: x.mean(), float)("half")
    cased = frame.selectExpr("half", "text collate UTF8_LCASE of")
    (reason,) = _reasons(cased.select(mean.over(Window.partitionBy("of"))))
    assert "UTF8_LCASE" in reason
    assert _reasons(frame.select(series("int", lambda x: x * 2)("half"))) == []
    set_option(FUNCTIONS, "off")
    assert _reasons(frame.select(pickled("half"))) == []


def _kinds_that_tell(frame: DataFrame) -> list[DataFrame]:
    """Functions of all kinds that say how many rows they get at a time, and of which types."""

    def tells(batch):
        types = (batch.schema.field(name).type for name in ("at", "text", "bytes"))
        return " ".join(map(str, (batch.num_rows, *types)))

    def tells_of_columns(column):
        return f"{len(column)} {column.type}"

    class Tells:
        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            yield pa.table({"of": [tells(batch)]})

    earliest = series("string", lambda x: str(x.min()), str)("at")
    groups = frame.groupBy("k")
    return [
        frame.mapInArrow(
            lambda batches: (pa.RecordBatch.from_pydict({"of": [tells(b)]}) for b in batches),
            "of string",
        ),
        *(
            frame.select(
                arrays("string", lambda x: pa.array([tells_of_columns(x)] * len(x)))(column)
            )
            for column in ("at", "text", "bytes")
        ),
        groups.applyInPandas(
            lambda group: pd.DataFrame({"of": [str(group["at"].min())]}), "of string"
        ),
        groups.cogroup(groups).applyInArrow(
            lambda left, right: pa.table({"of": [tells(left), str(right["at"].num_chunks)]}),
            "of string",
        ),
        groups.agg(earliest),
        frame.select(earliest.over(Window.partitionBy("k"))),
        functions.arrow_udtf(Tells, returnType="of string")(frame.asTable()),
    ]


CHANGES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "rows": (ROWS, (7, 11, 20)),
    "zone": ("spark.sql.session.timeZone", ("UTC", "Asia/Tokyo", "America/Lima")),
    "large": (LARGE, (False, True, False)),
    "small": (LARGE, (True, False, True)),
}
COMMON = (("rows", True), ("large", True), ("zone", False), ("small", False))


@pytest.mark.parametrize(
    ("change", "adaptive"),
    [
        pytest.param(*each, marks=[] if each in COMMON else pytest.mark.long)
        for each in itertools.product(CHANGES, (True, False))
    ],
)
def test_settings_that_change_after_a_query_was_planned_and_run(
    spark, set_option, change, adaptive, live
):
    """Spark's nodes read some when they are made, and tasks others: a plan keeps what was read."""
    frame = spark.range(60, numPartitions=2).selectExpr(
        *("id", "id % 3 k", "timestamp_seconds(id * 9999) at"),
        *("string(id) text", "binary(repeat('b', int(id))) bytes"),
    )
    set_option(ADAPTIVE, adaptive)
    setting, values = CHANGES[change]

    def runs(switch):
        set_option(FUNCTIONS, switch)
        set_option(setting, values[0])
        queries = _kinds_that_tell(frame)
        found = [("over rings" in plan_of(query)) == (switch == "on") for query in queries]
        for value in values[1:]:
            set_option(setting, value)
            found += [sorted(outcome(query)) for query in queries]
        return found

    compare(f"after a change of {change}, adaptive {adaptive}", runs, live=live)


def test_batch_has_as_many_rows_as_sparks_own(spark, set_option):
    set_option(ROWS, 0)
    set_option("spark.sql.execution.arrow.maxBytesPerBatch", 2**31 - 1)
    set_option(FUNCTIONS, "on")

    def rows(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    frame = spark.range(2**24 + 1, numPartitions=1).selectExpr("cast(id % 100 as byte) x")
    assert frame.mapInArrow(rows, "rows long").collect() == [(2**24 + 1,)]
