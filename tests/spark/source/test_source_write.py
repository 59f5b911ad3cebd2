"""Writes by the Python data source, on a real Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions

import shmring
from shmring import beside as beside_ring
from shmring.spark import register
from shmring.spark.source.sink_record import SinkRecord
from shmring.spark.source.stream_ring import uuid_of

since_4_1 = pytest.mark.spark_version(since="4.1")
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


@pytest.fixture
def write(spark):
    register(spark)

    def save(frame, ring, **options):
        options = {key: str(value) for key, value in options.items()}
        target = frame.write.format("shmring_py").mode("append").option("ring", ring)
        target.options(**options).save()

    return save


@pytest.fixture
def arrow(name):
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("keep", start="earliest")
        yield ring


@pytest.fixture(autouse=True)
def nothing_staged_stays(name):
    yield
    assert not beside(name, "staged")
    for record in beside(name, "sink"):
        record.unlink()


def beside(name, what):
    return list(Path("/dev/shm").glob(f".shmring-{what}-shmring.{name}*"))


def rows(ring):
    with ring.arrow_reader("keep", until="empty") as batches:
        return [x for batch in batches for x in batch.column("x").to_pylist()]


def numbers(spark, count, partitions=3):
    return spark.range(count, numPartitions=partitions).selectExpr("id x", "cast(id as string) s")


# --- jobs -----------------------------------------------------------------------------------------


def test_rows_of_all_tasks_become_readable_as_one_message(spark, write, arrow):
    write(numbers(spark, 3000), arrow.name)
    assert rows(arrow) == list(range(3000))
    assert len(arrow.rows(capacity=0)) == 1


def test_columns_are_found_by_name_and_cast(spark, write, arrow):
    write(spark.range(3).selectExpr("cast(id as string) s", "cast(id as int) x"), arrow.name)
    assert rows(arrow) == [0, 1, 2]


def test_ring_of_bytes_takes_one_column(spark, write, ring):
    ring.subscribe("keep", start="earliest")
    frame = spark.range(100, numPartitions=2).selectExpr("repeat(cast(id as string), 200) m")
    write(frame, ring.name, endMarker="true")
    with ring.consumer("keep") as inp:
        assert [m.decode() for m in inp] == [str(i) * 200 for i in range(100)]


def test_job_larger_than_the_ring_is_written_while_somebody_reads(spark, write, arrow, thread):
    arrow.drop_branch("keep")
    arrow.subscribe("reader")

    def read():
        with arrow.arrow_reader("reader") as batches:
            return sum(batch.num_rows for batch in batches)

    reader = thread(read)
    write(numbers(spark, 200_000), arrow.name, endMarker="true")
    assert reader.outcome() == 200_000


def test_job_larger_than_the_ring_can_be_refused(spark, write, arrow):
    with pytest.raises(Exception, match="cannot become readable at once in more than 2048"):
        write(numbers(spark, 200_000), arrow.name, atomic="true")
    assert arrow.claimed == 0


def test_ring_without_room_fails_the_job_in_time(spark, write, arrow):
    with arrow.producer() as out:
        for _ in range(arrow.slots - 1):
            out.push_end()
    with pytest.raises(Exception, match="Full"):
        write(numbers(spark, 1000), arrow.name, timeout=0.2)
    assert arrow.claimed == arrow.slots - 1


def test_no_rows_are_no_message(spark, write, arrow):
    write(numbers(spark, 10).where("x < 0"), arrow.name)
    assert arrow.claimed == 0


def test_failed_job_leaves_nothing(spark, write, arrow):
    bad = functions.when(functions.col("x") == 2500, functions.raise_error(functions.lit("no")))
    frame = numbers(spark, 3000).withColumn("s", functions.coalesce(bad.cast("string"), "s"))
    with pytest.raises(Exception, match="no"):
        write(frame, arrow.name)
    assert arrow.claimed == 0
    assert not beside(arrow.name, "staged")


def test_what_a_dead_driver_has_staged_goes_with_the_next_write(spark, write, arrow, child):
    dead = child("print(1)")
    dead.line()
    owner = beside_ring.process_identity(dead.pid)
    dead.end()
    left = Path(f"/dev/shm/.shmring-staged-shmring.{arrow.name}-{owner}.0123456789ab")
    left.mkdir()
    (left / "1.arrow").write_bytes(b"rows")
    living = left.with_name(left.name.replace(owner, beside_ring.process_identity(os.getpid())))
    living.mkdir()
    write(numbers(spark, 10), arrow.name)
    assert not left.exists()
    living.rmdir()


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ("id x", "has the columns x, s, and these rows have x"),
        ("id x, 's' s, 1 y", "has the columns x, s, and these rows have x, s, y"),
    ],
)
def test_rows_of_another_shape_are_refused(spark, write, arrow, columns, error):
    with pytest.raises(AnalysisException, match=error):
        write(spark.range(3).selectExpr(*columns.split(", ")), arrow.name)


def test_bytes_want_one_column_of_bytes(spark, write, ring):
    with pytest.raises(AnalysisException, match="write one column of type binary or string"):
        write(spark.range(3), ring.name)


def test_value_that_does_not_fit_the_ring_fails_the_task(spark, write, name):
    schema = pa.schema([("x", pa.int8())])
    with shmring.create(name, schema=schema, temporary=True) as ring:
        with pytest.raises(PythonException, match="300"):
            write(spark.range(300, 301).withColumnRenamed("id", "x"), name)
        assert ring.claimed == 0


def test_overwrite_is_refused(spark, write, arrow):
    frame = numbers(spark, 3).write.format("shmring_py").mode("overwrite")
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        frame.option("ring", arrow.name).save()


# --- streams --------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark, write, tmp_path):
    """Streams the files of a folder into a ring, one an epoch; several files can be one epoch."""
    source = tmp_path / "source"
    source.mkdir()

    def run(ring, *epochs, files=1, **options):
        for epoch in epochs:
            (source / f"{epoch}.csv").write_text("".join(f"{x},{x}\n" for x in epoch))
            os.utime(source / f"{epoch}.csv", (epoch.start, epoch.start))
        query = (
            spark.readStream.option("maxFilesPerTrigger", files)
            .schema("x long, s string")
            .csv(str(source))
            .writeStream.format("shmring_py")
            .option("ring", ring)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


@pytest.fixture
def again(tmp_path):
    """As if the driver had died after the ring got an epoch and before it could say so."""

    def forget(epoch):
        for file in (tmp_path / "checkpoint" / "commits").glob(f"*{epoch}*"):
            file.unlink()

    return forget


@since_4_1
def test_each_epoch_is_one_message(stream, arrow):
    stream(arrow.name, range(100), range(100, 200), range(200, 300))
    assert rows(arrow) == list(range(300))
    assert len(arrow.rows(capacity=0)) == 3


@since_4_1
def test_epoch_written_twice_is_readable_once(stream, arrow, again):
    stream(arrow.name, range(100), range(100, 200))
    for epoch in range(1, 5):
        again(epoch)
        stream(arrow.name, range(100 * epoch + 100, 100 * epoch + 200))
    assert rows(arrow) == list(range(600))


@pytest.fixture
def record(arrow):
    def find(query):
        return SinkRecord(arrow, str(query.id))

    return find


@since_4_1
def test_epoch_begun_by_a_driver_that_died_before_its_store_is_written(
    stream, arrow, again, record, child
):
    query = stream(arrow.name, range(100))
    again(0)
    begun = child(
        """
        import sys, shmring
        claim = shmring.attach(sys.argv[1]).producer().claim(300)
        print(claim.message_id)
        input()
        """,
        arrow.name,
    )
    record(query).begin(0, int(begun.line()))
    begun.kill()
    stream(arrow.name)
    assert rows(arrow) == list(range(100)) * 2  # the first ones were those of "another" driver


@since_4_1
def test_epoch_whose_driver_died_after_its_store_is_not_written_again(stream, arrow, again, record):
    query = stream(arrow.name, range(100))
    again(0)
    record(query).begin(0, 0)
    stream(arrow.name, range(100, 200))
    assert rows(arrow) == list(range(200))


@since_4_1
@pytest.mark.parametrize(("choice", "written"), [("skip", 0), ("write", 100)])
def test_epoch_in_doubt_is_a_question(stream, arrow, again, record, choice, written):
    query = stream(arrow.name, range(100))
    again(0)
    record(query).begin(0, 0)
    arrow.drop_branch("keep")
    with arrow.producer() as out:
        for _ in range(arrow.slots):  # the store's place has been used again
            out.push_end()
    arrow.subscribe("keep", start="latest")
    with pytest.raises(Exception, match="was killed in that very moment"):
        stream(arrow.name)
    stream(arrow.name, inDoubt=choice)
    assert len(rows(arrow)) == written


@since_4_1
def test_ring_that_was_made_anew_has_seen_no_epoch(stream, name, again):
    for _ in range(2):
        with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
            ring.subscribe("keep", start="earliest")
            stream(name, *([range(100)] if not ring.claimed else []))
            assert rows(ring) == list(range(100))
            assert beside(name, "sink")[0].read_text().startswith(f"{uuid_of(ring)} 0 0 done")
        again(0)


@since_4_1
def test_epoch_larger_than_half_of_the_ring_is_refused(stream, name):
    with shmring.create(name, slots=1024, schema=SCHEMA, temporary=True) as ring:
        with pytest.raises(Exception, match="cannot become readable at once in more than 512"):
            stream(name, range(10_000))
        assert ring.claimed == 0


@pytest.mark.spark_version(before="4.1")
def test_stream_is_refused_where_spark_has_no_arrow_writer_for_it(stream, arrow):
    with pytest.raises(Exception, match=r"in Spark 4\.1 and later"):
        stream(arrow.name, range(10))
    assert arrow.claimed == 0
