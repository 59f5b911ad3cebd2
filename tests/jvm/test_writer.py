"""df.write.format("shmring") and writeStream."""

from __future__ import annotations

import glob
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from companion import place
from direct import RING, TYPES, columns_of
from fixture_types import RunThread, Until
from pyspark.sql import DataFrame, SparkSession, functions
from sessions import failure

import shmring
from shmring.ring.names import STAGING

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
pytestmark = pytest.mark.ring(slots=65536, schema=SCHEMA)


@pytest.fixture(autouse=True)
def _nothing_stays(allocated: Callable[[], int], name: str, until: Until) -> Iterator[None]:
    yield
    # A task of a query that was stopped is killed a little later.
    until(lambda: not beside(name) and allocated() <= 0, "the end of what tasks have")


def beside(ring: str, files: str = "") -> list[str]:
    """Return the folder that a running write keeps beside its ring, or the files in it."""
    return glob.glob(f"/dev/shm/.shmring-staging-shmring.{ring}-*{files}")


def rows(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("id", "concat('text ', id) text")


def save(frame: DataFrame, ring: str, **options: object) -> None:
    writer = frame.write.format("shmring").option("ring", ring).mode("append")
    writer.options(**{key: str(value) for key, value in options.items()}).save()


def read(ring: shmring.Ring, branch: str) -> list[int]:
    with ring.arrow_reader(branch, until="empty", copy=True) as reader:
        return [number for batch in reader for number in batch["id"].to_pylist()]


def test_rows_come_in_the_order_of_their_partitions(
    ring: shmring.Ring, spark: SparkSession
) -> None:
    ring.subscribe("b", start="earliest")
    save(rows(spark, 50_000), ring.name, batchRows=700, endMarker="true")
    with ring.arrow_reader("b", start="earliest", copy=True) as reader:
        table = pa.Table.from_batches(list(reader))
    assert table["id"].to_pylist() == list(range(50_000))
    assert table["text"].to_pylist() == [f"text {i}" for i in range(50_000)]
    assert [participant["role"] for participant in ring.participants()] == ["attached"]


# CHANGE: edit this for a new type between Spark and Arrow
BY_SPARKS_WRITER = RING | {"list": pa.list_(pa.int64())}
BY_OURS = {column: RING[column] for column in RING if column not in ("flag", "exact")}


@pytest.mark.parametrize(
    ("types", "nulls", "rows_a_batch"),
    [(BY_OURS, "none", 7), (BY_OURS, "some", 5000), (BY_SPARKS_WRITER, "some", 7)],
)
def test_each_value_arrives_as_spark_has_it(
    name: str, spark: SparkSession, types: list[str], nulls: bool, rows_a_batch: int
) -> None:
    count = 6000 if rows_a_batch > 1000 else 300
    columns = columns_of({column: TYPES[column] for column in types}, nulls)
    frame = spark.range(0, count, 1, 1).selectExpr(*columns)
    schema = pa.schema(list(types.items()))
    with shmring.create(name, slots=65536, schema=schema, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        save(frame, name, batchRows=rows_a_batch, batchBytes=1 << 24)
        with ring.arrow_reader("b", until="empty", copy=True) as reader:
            batches = list(reader)
    assert [batch.num_rows for batch in batches[:-1]] == [rows_a_batch] * (len(batches) - 1)
    assert pa.Table.from_batches(batches) == frame.toArrow().cast(schema)


def test_rows_are_readable_when_the_job_commits_and_not_before(
    ring: shmring.Ring, spark: SparkSession, thread: RunThread, until: Until
) -> None:
    ring.subscribe("b", start="earliest")
    seen: list[int] = []
    # Half of the tasks are done long before the others.
    slow = rows(spark, 40, 4).selectExpr("id", "text || reflect('java.lang.Thread', 'sleep', 50L)")
    slow = slow.toDF("id", "text")
    writing = thread(lambda: save(slow, ring.name, batchRows=1))
    until(lambda: beside(ring.name) or not writing.is_alive(), "the staging folder")
    while writing.is_alive():
        seen.append(ring.claimed)
    writing.outcome()
    assert len(set(seen) - {0}) <= 1  # nothing, then everything
    assert sorted(read(ring, "b")) == list(range(40))


@pytest.mark.parametrize(("partitions", "said"), [(1, "cannot open"), (3, "no ring")])
def test_a_job_whose_ring_is_unlinked_fails(ring, spark, thread, until, tmp_path, partitions, said):
    """Where all of its tasks have begun it is the commit that fails, and else the next task."""
    ring.subscribe("b", start="earliest")
    go = tmp_path / "go"

    @functions.udf("string", useArrow=False)  # Spark's Arrow keeps memory of tasks that are killed
    def held(text):
        while not go.exists():
            time.sleep(0.01)
        return text

    frame = rows(spark, 40, partitions).select("id", held("text").alias("text"))
    writing = thread(lambda: failure(lambda: save(frame, ring.name)))
    until(lambda: len(beside(ring.name, "/*")) == min(partitions, 2), "the tasks' files")
    shmring.unlink(ring.name)
    go.touch()
    assert said in writing.outcome()
    assert read(ring, "b") == []


def test_a_failed_job_leaves_nothing(ring: shmring.Ring, spark: SparkSession, until: Until) -> None:
    ring.subscribe("b", start="earliest")
    bad = rows(spark, 10_000).selectExpr("id", "if(id = 9999, raise_error('boom'), text) text")
    assert "boom" in failure(lambda: save(bad, ring.name))
    assert ring.claimed == 0
    until(lambda: [each["role"] for each in ring.participants()] == ["attached"], "the tasks' end")
    save(rows(spark, 10), ring.name)
    assert read(ring, "b") == list(range(10))


def test_jobs_write_side_by_side(
    ring: shmring.Ring, spark: SparkSession, thread: RunThread
) -> None:
    ring.subscribe("b", start="earliest")
    frames = [rows(spark, 1000).selectExpr(f"id + {k}000 id", "text") for k in range(4)]
    for writing in [thread(save, frame, ring.name) for frame in frames]:
        writing.outcome()
    found = read(ring, "b")
    assert sorted(found) == list(range(4000))
    blocks = [found[k : k + 1000] for k in range(0, 4000, 1000)]
    assert all(block == list(range(block[0], block[0] + 1000)) for block in blocks)


def test_a_job_larger_than_the_ring_goes_through_while_somebody_reads(
    name: str, spark: SparkSession, thread: RunThread
) -> None:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        assert "cannot become readable at once" in failure(
            lambda: save(rows(spark, 50_000), name, batchRows=500, atomic="true")
        )
        assert ring.claimed == 0
        ring.subscribe("b", start="earliest")

        def collect() -> list[int]:
            with ring.arrow_reader("b", copy=True, timeout=600) as reader:
                return [number for batch in reader for number in batch["id"].to_pylist()]

        reading = thread(collect)
        save(rows(spark, 50_000), name, batchRows=500, endMarker="true")
        assert reading.outcome() == list(range(50_000))


def test_a_full_ring_that_nobody_reads_fails_the_job(name: str, spark: SparkSession) -> None:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.producer() as producer:
            producer.push(b"x" * 300 * 900)
        text = failure(lambda: save(rows(spark, 5000), name, batchRows=500, timeout=0.2))
        assert 'branch "b"' in text
        assert "no consumer" in text
        assert ring.claimed == 900


def test_a_message_too_large_for_the_ring_is_an_error(name: str, spark: SparkSession) -> None:
    def large(count: int) -> DataFrame:
        return spark.range(0, count, 1, 1).selectExpr("id", "repeat('x', 200000) text")

    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True):
        text = failure(lambda: save(large(2), name))
        assert "a batch of 2 rows has" in text
        assert 'lower .option("batchBytes", ...)' in text
        text = failure(lambda: save(large(2), name, batchBytes=1))
        assert "one row has" in text
        assert "batchBytes" not in text.partition("more than half of the ring")[2][:200]
        wanted = re.findall(r"create the ring with (\d+) slots", text)[0]
    with shmring.create(name, slots=int(wanted), schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        save(large(2), name, batchBytes=1)
        assert read(ring, "b") == [0, 1]


def test_a_name_that_leaves_no_room_for_staging_is_an_error(name: str, spark: SparkSession) -> None:
    longest = name.ljust(255 - len(f".shmring-staging-shmring.-{uuid.uuid4()}"), "x")
    with shmring.create(longest + "x", slots=1024, schema=SCHEMA, temporary=True) as ring:
        said = failure(lambda: save(rows(spark, 1), longest + "x"))
        assert "File name too long; where its name is too long, use a ring with a shorter" in said
        assert not [each for each in ring.participants() if each["role"] == "producer"]
    with shmring.create(longest, slots=1024, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        save(rows(spark, 3), longest)
        assert read(ring, "b") == [0, 1, 2]


def test_a_ring_of_bytes_takes_one_column(name: str, spark: SparkSession) -> None:
    with shmring.create(name, slots=65536, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        save(rows(spark, 1000).selectExpr("text message"), name)
        save(rows(spark, 3).selectExpr("cast(repeat(text, 100000) as binary) bytes"), name)
        with ring.consumer("b") as consumer:
            found = [consumer.pop(timeout=0) for _ in range(1003)]
        assert found[:1000] == [b"text %d" % i for i in range(1000)]
        assert found[1000:] == [b"text %d" % i * 100_000 for i in range(3)]
        assert "one column" in failure(lambda: save(rows(spark, 3), name))


def test_columns_are_found_by_name(ring: shmring.Ring, spark: SparkSession) -> None:
    ring.subscribe("b", start="earliest")
    save(spark.range(3).selectExpr("'x' text", "id"), ring.name)
    assert sorted(read(ring, "b")) == [0, 1, 2]


def test_no_rows_are_no_message(ring: shmring.Ring, spark: SparkSession) -> None:
    save(rows(spark, 10).where("id < 0"), ring.name)
    assert ring.claimed == 0


def test_what_is_in_a_ring_cannot_be_overwritten(ring: shmring.Ring, spark: SparkSession) -> None:
    writer = rows(spark, 3).write.format("shmring").mode("overwrite")
    assert "truncate" in failure(writer.option("ring", ring.name).save)


def test_rows_that_do_not_fit_the_schema_are_refused(
    ring: shmring.Ring, spark: SparkSession, tmp_path: Path
) -> None:
    failure(lambda: save(spark.range(3).selectExpr("id", "id other"), ring.name))
    assert "one ring" in failure(lambda: save(rows(spark, 3), f"{ring.name},{ring.name}2"))
    query = spark.readStream.format("rate").load().writeStream.format("shmring")
    assert "select and cast" in failure(
        lambda: (
            query.options(ring=ring.name, checkpointLocation=str(tmp_path))
            .start()
            .awaitTermination(600)
        )
    )
    assert ring.claimed == 0


def test_what_a_dead_driver_has_staged_is_swept_by_the_next(
    ring: shmring.Ring, spark: SparkSession, tmp_path: Path
) -> None:
    left = Path(place(ring.path, STAGING, str(uuid.uuid4())))
    left.mkdir()
    (left / "0-1").write_bytes(b"rows")
    others = Path(place(f"{ring.path}-more", STAGING, str(uuid.uuid4())))
    others.mkdir()
    (tmp_path / "kept").touch()
    planted = Path(place(ring.path, STAGING, str(uuid.uuid4())))
    planted.symlink_to(tmp_path)
    save(rows(spark, 3), ring.name)
    assert not left.exists()
    others.rmdir()  # folder of another ring, whose name has this ring's as prefix
    planted.unlink()  # no job's folder
    assert (tmp_path / "kept").exists()


def test_an_epoch_larger_than_half_the_ring_is_refused(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100_000).load()
        query = (
            frame.selectExpr("value id", "'x' text")
            .writeStream.format("shmring")
            .options(ring=name, batchRows="1000", checkpointLocation=str(tmp_path))
            .start()
        )
        assert "give the query smaller batches" in failure(lambda: query.awaitTermination(600))
        assert ring.claimed == 0
