"""How rings are named and options given; and what a DataFrame over a branch may be used for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixture_types import Load, RunThread, Until
from java_programs import Java, check
from pyspark.sql import DataFrame, SparkSession
from sessions import HERE, failure

import shmring

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def fill(ring: shmring.Ring, rows: int = 1000) -> None:
    with ring.arrow_writer() as writer:
        for first in range(0, rows, 100):
            numbers = list(range(first, first + 100))
            writer.write(pa.table([numbers, [str(n) for n in numbers]], schema=SCHEMA))


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        fill(ring)
        yield ring


@pytest.fixture
def load(spark: SparkSession, ring: shmring.Ring) -> Callable[..., DataFrame]:
    def load(**options: object) -> DataFrame:
        reader = spark.read.format("shmring").options(ring=ring.name)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    return load


# --- a branch gives each message once ---------------------------------------------------------


def test_a_dataframe_over_a_branch_is_used_once(load: Load) -> None:
    frame = load(branch="b")
    assert frame.count() == 1000
    text = failure(frame.count)
    assert "rows would be missing" in text
    assert ".cache() or .localCheckpoint()" in text
    assert load(branch="b").count() == 0


def test_a_plan_that_is_only_looked_at_reads_nothing(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = load(branch="b")
    frame.explain()
    frame.explain()
    assert frame.count() == 1000
    frame.explain()


# --- names and tables -------------------------------------------------------------------------


def test_a_ring_is_what_load_and_save_are_given(spark: SparkSession, ring: shmring.Ring) -> None:
    frame = spark.read.format("shmring").load(ring.name)
    assert frame.count() == 1000
    assert spark.read.format("shmring").load(ring.path).count() == 1000
    frame.limit(10).write.format("shmring").mode("append").save(ring.name)
    assert spark.read.format("shmring").load([ring.name]).count() == 1010


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    yield "rows_of_a_ring"
    spark.sql("drop table if exists rows_of_a_ring")
    with suppress(OSError):  # Spark makes it for any table
        Path("spark-warehouse").rmdir()


def test_a_table_is_a_ring_with_its_options(
    spark: SparkSession, ring: shmring.Ring, table: str
) -> None:
    spark.sql(f"create table {table} using shmring options (ring '{ring.name}', maxMessages 5)")
    assert spark.table(table).columns == ["number", "text"]
    assert spark.sql(f"select count(*) from {table}").first()[0] == 500
    spark.sql(f"insert into {table} values (1, 'one')")
    assert spark.read.option("maxMessages", 100).table(table).count() == 1001


@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMN more INT",
        "ADD COLUMNS (more INT, most INT)",
        "RENAME COLUMN text TO words",
        "DROP COLUMN text",
        "ALTER COLUMN text COMMENT 'words'",
    ],
)
def test_a_table_has_the_columns_of_its_ring_and_no_others(
    spark: SparkSession, ring: shmring.Ring, table: str, change: str
) -> None:
    spark.sql(f"CREATE TABLE {table} USING shmring OPTIONS (ring '{ring.name}')")
    assert "are those of its ring" in failure(lambda: spark.sql(f"ALTER TABLE {table} {change}"))
    assert spark.table(table).columns == ["number", "text"]
    assert spark.table(table).count() == 1000


def test_a_table_has_the_place_of_its_ring(
    spark: SparkSession, ring: shmring.Ring, table: str
) -> None:
    spark.sql(f"create table {table} using shmring location '{ring.path}'")
    assert spark.sql(f"select count(*) from {table}").first()[0] == 1000


def test_a_table_says_how_it_was_created(
    spark: SparkSession, ring: shmring.Ring, table: str
) -> None:
    clauses = f"USING shmring OPTIONS (ring '{ring.name}', start 'earliest')"
    spark.sql(f"CREATE TABLE {table} {clauses}")
    shown = spark.sql(f"SHOW CREATE TABLE {table}").first()[0]
    assert "USING shmring" in shown
    assert f"'ring' = '{ring.name}'" in shown
    assert "'start' = 'earliest'" in shown
    spark.sql(f"DROP TABLE {table}")
    spark.sql(shown)
    assert spark.table(table).count() == 1000


def test_a_schema_that_differs_is_refused(spark: SparkSession, ring: shmring.Ring) -> None:
    for schema in ("number int, text string", "other long"):
        reader = spark.read.format("shmring").option("ring", ring.name).schema(schema)
        text = failure(lambda reader=reader: reader.load().collect())
        assert ring.name in text
        assert "number" in text
    same = "number long, text string"
    reader = spark.read.format("shmring").option("ring", ring.name).schema(same)
    assert reader.load().count() == 1000


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["0.1", "100ms", "interval 0.1 seconds"])
def test_times_are_written_as_spark_writes_them(load: Load, timeout: str) -> None:
    text = failure(load(until="end", timeout=timeout).collect)
    assert "no message and no end marker" in text


# CHANGE: edit this for a new option of Spark's reads or writes
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", "10 parsecs"),
        ("timeout", "-1"),
        ("hostWait", "soon"),
        ("maxMessages", "many"),
        ("maxMessages", "0"),
        ("maxMessagesPerTrigger", "0"),
        ("until", "later"),
        ("release", "never"),
        ("start", "-5"),
        ("start", "never"),
        ("failOnDataLoss", "maybe"),
    ],
)
def test_a_read_names_the_option_that_does_not_parse(load: Load, option: str, value: str) -> None:
    text = failure(lambda: load(**{option: value}).collect())
    assert f"option {option} must be" in text
    assert f'"{value}"' in text


def test_an_unknown_option_is_refused_with_the_nearest_one(
    spark: SparkSession, ring: shmring.Ring, load: Load, table: str, tmp_path: Path
) -> None:
    frame = load()
    write = frame.write.format("shmring").option("ring", ring.name).mode("append")
    stream = spark.readStream.format("shmring").option("ring", ring.name)
    created = f"CREATE TABLE {table} USING shmring OPTIONS (ring '{ring.name}', brnach 'b')"
    for act in (
        lambda: load(brnach="b").collect(),
        lambda: (
            stream.option("Brnach", "b")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .start()
            .processAllAvailable()
        ),
        lambda: spark.sql(created).collect() or spark.table(table).collect(),
    ):
        assert "did you mean branch?" in failure(act)
    assert "did you mean batchRows?" in failure(write.option("bachRows", "5").save)
    assert load(BRANCH="b", hostwait="1s").count() == 1000


# CHANGE: edit this for a new option of Spark's reads or writes
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", "1 fortnight"),
        ("atomic", "perhaps"),
        ("endMarker", "1"),
        ("inDoubt", "guess"),
        ("hostWait", "x"),
        ("batchRows", "0"),
        ("batchRows", str(2**30 + 1)),
        ("batchBytes", "1MB"),
        ("batchBytes", str(2**31)),
    ],
)
def test_a_write_names_the_option_that_does_not_parse(
    ring: shmring.Ring, load: Load, option: str, value: str
) -> None:
    writer = load().write.format("shmring").options(ring=ring.name, **{option: value})
    text = failure(writer.mode("append").save)
    assert f"option {option} must be" in text
    assert f'"{value}"' in text


# --- the host of a ring -----------------------------------------------------------------------


def test_a_host_without_executor_is_an_error_in_words(load: Load) -> None:
    assert load(hosts=HERE, branch="b").count() == 1000
    text = failure(load(hosts="127.0.0.3", hostWait="100ms").collect)
    assert "is on host 127.0.0.3, and this task runs on 127.0.0." in text
    assert "let 127.0.0.3 have an executor" in text
    assert "hostWait" in text


def test_a_wait_for_the_right_host_ends_with_its_job(
    spark: SparkSession, load: Load, thread: RunThread, until: Until
) -> None:
    tracker = spark.sparkContext.statusTracker()

    def waits() -> bool:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(stage and stage.numActiveTasks for stage in stages)

    until(lambda: not waits(), "the end of earlier tasks")
    job = thread(lambda: failure(load(hosts="127.0.0.3", hostWait="1 hour").collect))
    until(waits, "the task")
    spark.sparkContext.cancelAllJobs()
    assert "cancel" in job.outcome().lower()
    until(lambda: not waits(), "the task's end")


# --- costs and metrics ------------------------------------------------------------------------


@pytest.mark.long
def test_looks_at_a_wait_become_rare(java: Java) -> None:
    said = check(java("io.shmring.spark.read.WaitCheck"))
    assert said.split() == ["100", "200", "400", "800", "1600", "3200", "6400"]


def test_a_batch_is_refused_rows_that_an_int_does_not_count(java: Java) -> None:
    count, *refusals = check(java("io.shmring.spark.columns.RowsCheck")).splitlines()
    assert int(count) == 2**30
    assert len(refusals) == 3
    assert all(f"more than {2**30} rows do not fit one batch" in text for text in refusals)


@pytest.fixture
def metrics(spark: SparkSession) -> Callable[[str], dict[str, list[int]]]:
    """The metrics with such names, of each execution since the test began."""
    store = spark._jsparkSession.sharedState().statusStore()
    bus = spark.sparkContext._jsc.sc().listenerBus()
    convert = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava

    def executions() -> Any:
        bus.waitUntilEmpty(600_000)  # ms: what Spark knows comes to its store a little later
        return store.executionsList()

    earlier = executions()
    last = -1 if earlier.isEmpty() else earlier.last().executionId()

    def metrics(ending: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for execution in convert(executions()):
            # All names in one text: to ask Java for each takes seconds.
            if execution.executionId() <= last or ending not in execution.metrics().toString():
                continue
            values = dict(convert(store.executionMetrics(execution.executionId())))
            for metric in convert(execution.metrics()):
                if metric.name().endswith(ending):
                    of_it = found.setdefault(metric.name(), [])
                    of_it.append(int(values.get(metric.accumulatorId(), "0")))
        return found

    return metrics


def test_a_read_is_in_the_metrics(
    load: Load, metrics: Callable[[str], dict[str, list[int]]]
) -> None:
    load().collect()
    assert metrics("taken from rings")["messages taken from rings"] == [10]


def test_a_write_is_in_the_metrics(
    spark: SparkSession, ring: shmring.Ring, metrics: Callable[[str], dict[str, list[int]]]
) -> None:
    frame = spark.range(2500).selectExpr("id number", "cast(id as string) text").coalesce(1)
    frame.write.format("shmring").options(ring=ring.name, batchRows=1000).mode("append").save()
    found = metrics("written to the ring")
    assert found["rows written to the ring"] == [2500]
    assert found["messages written to the ring"] == [3]
    assert found["bytes of messages written to the ring"][-1] > 2500 * 12


def test_a_stream_s_writes_are_in_its_progress(
    spark: SparkSession,
    ring: shmring.Ring,
    tmp_path: Path,
    until: Until,
    metrics: Callable[[str], dict[str, list[int]]],
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 700)
    frame = source.load().selectExpr("value number", "cast(value as string) text").coalesce(1)
    options = {"ring": ring.name, "batchRows": "500", "checkpointLocation": str(tmp_path)}
    query = frame.writeStream.format("shmring").options(**options).start()
    try:
        until(lambda: not query.isActive or query.recentProgress, "an epoch")
        assert query.isActive, query.exception()
        found = query.recentProgress[0]["sink"]["metrics"]
    finally:
        query.stop()
    assert (found["ringRowsWritten"], found["ringMessagesWritten"]) == ("700", "2")
    assert not metrics("written to the ring")  # no zeros in the SQL tab
