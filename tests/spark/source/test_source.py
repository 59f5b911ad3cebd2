"""Batch reads by the Python data source, on a real Spark."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions
from pyspark.sql.types import LongType, StructField, StructType

import shmring
from shmring.spark import register
from shmring.spark.source.options import ReadOptions
from shmring.spark.source.read import RingReader

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


@pytest.fixture
def read(spark):
    register(spark)

    def load(ring, **options):
        options = {key: str(value) for key, value in options.items()}
        return spark.read.format("shmring_py").option("ring", ring).options(**options).load()

    return load


@pytest.fixture
def arrow(name):
    """An Arrow ring whose branch "b" holds 20 batches of 100 rows."""
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.arrow_writer() as out:
            for first in range(0, 2000, 100):
                rows = range(first, first + 100)
                out.write(pa.table([list(rows), [str(i) for i in rows]], schema=SCHEMA))
        yield ring


def branch(ring, name="b"):
    return next(b for b in ring.branches() if b["name"] == name)


def test_arrow_ring_is_read_with_its_own_schema(read, arrow):
    frame = read(arrow.name)
    assert frame.schema.simpleString() == "struct<x:bigint,s:string>"
    assert [(r.x, r.s) for r in frame.collect()] == [(i, str(i)) for i in range(2000)]
    assert branch(arrow)["released"] == 0
    assert len(arrow.branches()) == 1


def test_ring_of_bytes_is_read_as_the_queue_table(read, ring):
    ring.subscribe("one", start="earliest")
    ring.subscribe("two", start="earliest")
    with ring.producer() as out:
        sent = [b"", b"short", b"long" * 200, b"\0\1\2"] * 200  # once around the ring
        for message in sent[:200]:
            out.push(message)
        ring.drop_branch("one")
        ring.drop_branch("two")
        ring.subscribe("one", start="latest")
        ring.subscribe("two", start="latest")
        ids = [out.push(message) for message in sent[200:]]
    before = datetime.datetime.now() - datetime.timedelta(minutes=1)
    rows = read(ring.name, branch="one").collect()
    assert [r.message_id for r in rows] == ids
    assert [bytes(r.message) for r in rows] == sent[200:]
    assert [r.slot for r in rows] == [i % 1024 for i in ids]
    assert {r.reference_count for r in rows} == {2}
    assert all(before < r.time < datetime.datetime.now() for r in rows)


def test_user_may_ask_for_some_columns_by_a_schema(spark, read, arrow):
    frame = spark.read.format("shmring_py").option("ring", arrow.name).schema("s string").load()
    assert frame.agg(functions.max("s")).first()[0] == "999"
    frame = spark.read.format("shmring_py").option("ring", arrow.name).schema("y int").load()
    with pytest.raises(PythonException, match=r"has no column y; it has s, x"):
        frame.collect()


def test_every_type_that_both_have_comes_through(read, name):
    table = pa.table(
        {
            "b": [True, None],
            "i": pa.array([1, None], pa.int16()),
            "f": pa.array([1.5, None], pa.float32()),
            "d": pa.array(["1.25", None]).cast(pa.decimal128(20, 2)),
            "t": pa.array([1_700_000_000_000_000, None], pa.timestamp("us", "UTC")),
            "day": pa.array([19000, None], pa.date32()),
            "large": pa.array(["x", None], pa.large_string()),
            "dictionary": pa.array(["y", None]).dictionary_encode(),
            "list": [[1, 2], None],
            "struct": [{"a": 1, "b": ["z"]}, None],
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    with shmring.create(name, schema=table.schema, temporary=True) as ring:
        with ring.arrow_writer() as out:
            out.write(table)
        one, none = read(name).collect()
    assert one.asDict(recursive=True) == {
        "b": True,
        "i": 1,
        "f": 1.5,
        "d": one.d,
        "t": one.t,
        "day": datetime.date(2022, 1, 8),
        "large": "x",
        "dictionary": "y",
        "list": [1, 2],
        "struct": {"a": 1, "b": ["z"]},
        "map": {"k": 1},
    }
    assert str(one.d) == "1.25"
    assert set(none) == {None}


def test_type_that_spark_lacks_is_named(read, name):
    wrong = 'column "n" has the Arrow type halffloat'
    with (
        shmring.create(name, schema=pa.schema([("n", pa.float16())]), temporary=True),
        pytest.raises(AnalysisException, match=wrong),
    ):
        read(name)


def test_several_rings_are_read_by_list_and_by_pattern(read, name):
    rings = [shmring.create(f"{name}-{i}", schema=SCHEMA, temporary=True) for i in range(3)]
    try:
        for i, ring in enumerate(rings):
            with ring.arrow_writer() as out:
                out.write(pa.table([[i], [str(i)]], schema=SCHEMA))
        everything = read(f"{name}-*")
        assert everything.rdd.getNumPartitions() == 3
        assert sorted(r.x for r in everything.collect()) == [0, 1, 2]
        some = read(f"{name}-2, {rings[0].path}")
        assert sorted(r.x for r in some.collect()) == [0, 2]
    finally:
        for ring in rings:
            ring.close()


# --- options --------------------------------------------------------------------------------------


def test_named_branch_goes_on_where_it_stood(read, arrow):
    assert read(arrow.name, branch="b", maxMessages=7).count() == 700
    assert read(arrow.name, branch="b").agg(functions.min("x")).first()[0] == 700
    assert read(arrow.name, branch="b").count() == 0
    assert branch(arrow)["released"] == arrow.claimed


def test_start_is_where_a_branch_begins_that_is_not_there_yet(read, arrow):
    ids = [row[1] for row in sorted(arrow.rows(capacity=0), key=lambda row: row[1])]
    assert read(arrow.name, start=ids[15]).count() == 500
    assert read(arrow.name, start="latest").count() == 0
    assert read(arrow.name, start=ids[15], branch="new").count() == 500


def test_until_end_waits_for_the_marker(read, arrow, thread):
    def finish():
        with arrow.arrow_writer() as out:
            out.write(pa.table([[2000], ["last"]], schema=SCHEMA))
            out.end()
            out.write(pa.table([[2001], ["behind the end"]], schema=SCHEMA))

    frame = read(arrow.name, branch="b", until="end", timeout=600)
    job = thread(frame.count)
    finisher = thread(finish)
    assert job.outcome() == 2001
    finisher.outcome()
    assert [r.s for r in read(arrow.name, branch="b").collect()] == ["behind the end"]


def test_until_end_gives_up_in_time(read, arrow):
    with pytest.raises(PythonException, match=r"no message and no end marker in 0\.2 s"):
        read(arrow.name, branch="b", until="end", release="task", timeout=0.2).count()
    assert branch(arrow)["released"] == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "soon"}, "option start must be earliest, latest or a sequence"),
        ({"until": "later"}, "option until must be empty or end"),
        ({"maxMessages": 0}, "option maxMessages must be a positive number"),
        ({"timeout": "long"}, "option timeout must be a time"),
        ({"hosts": "here"}, "option hosts needs the jar"),
        ({"ring": " , "}, "option ring is missing"),
        ({"ring": "no-such-*"}, 'no ring on this host matches "no-such-'),
        ({"ring": "no-such"}, 'no ring "no-such" on this host'),
    ],
)
def test_wrong_options_are_told(read, arrow, options, error):
    options = {"ring": arrow.name, **options}
    with pytest.raises(AnalysisException, match=error):
        read(options.pop("ring"), **options)


# --- tasks that fail ------------------------------------------------------------------------------


@pytest.fixture
def large(name):
    """An Arrow ring whose branch "b" holds more than the sockets between Spark and Python do."""
    with shmring.create(name, slots=131_072, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        with ring.arrow_writer() as out:
            for first in range(0, 3000, 100):
                rows = range(first, first + 100)
                out.write(pa.table([list(rows), ["x" * 10_000 for i in rows]], schema=SCHEMA))
        yield ring


def test_failed_task_hands_back_what_it_took(read, large, until):
    fail = functions.when(functions.col("x") == 50, functions.raise_error(functions.lit("no")))
    with pytest.raises(Exception, match="no"):
        read(large.name, branch="b").select(fail).collect()
    until(lambda: not branch(large)["members"], "the task's end")
    assert read(large.name, branch="b").count() == 3000


def test_limit_hands_back_what_it_took(read, large, until):
    assert len(read(large.name, branch="b").limit(1).collect()) == 1
    until(lambda: not branch(large)["members"], "the task's end")
    assert read(large.name, branch="b").count() == 3000


def test_damaged_batch_fails_the_job_and_not_the_jvm(spark, read, name, forge):
    with shmring.create(name, schema=SCHEMA, temporary=True) as ring:
        batch = pa.record_batch([[1, 2], ["one", "two"]], schema=SCHEMA)
        message = bytearray(batch.serialize().to_pybytes())
        lying = message.rindex(b"onetwo")
        offsets = message.rindex(b"\0\0\0\0\3\0\0\0\6\0\0\0", 0, lying)
        message[offsets + 8 : offsets + 12] = (2**30).to_bytes(4, "little")
        with ring.producer() as out:
            out.push(message, kind=3)
        with pytest.raises(PythonException, match="message 0 is damaged"):
            read(name).collect()
        bad = forge(ring, b"no batch", 3)
        with pytest.raises(PythonException, match=f"message {bad} holds no readable Arrow batch"):
            read(name, start=bad).collect()
    assert spark.range(3).count() == 3


def test_ring_that_is_unlinked_ends_the_wait(read, arrow, thread, until):
    job = thread(read(arrow.name, branch="b", until="end").count)
    until(lambda: branch(arrow)["released"] == arrow.claimed, "the task's wait")
    shmring.unlink(arrow.name)
    with pytest.raises(PythonException, match="was unlinked while it was read"):
        job.outcome()


# --- attempts of one task, without Spark ----------------------------------------------------------


@pytest.fixture
def task(arrow):
    """Runs the task of a read of branch "b"; how many rows it got."""
    columns = StructType([StructField("x", LongType())])
    reader = RingReader(ReadOptions.of({"ring": arrow.name, "branch": "b"}), columns, "frame")
    (partition,) = reader.partitions()

    def run():
        return sum(batch.num_rows for batch in reader.read(partition))

    run.partition = partition
    run.reader = reader
    return run


def test_attempt_waits_for_one_that_is_still_running(arrow, task, thread):
    first = task.reader.read(task.partition)
    next(first)
    second = thread(task)
    second.join(0.2)
    assert second.is_alive()
    first.close()
    assert second.outcome() == 2000
    assert [b["name"] for b in arrow.branches()] == ["b"]


def test_attempt_goes_on_after_one_that_was_killed(arrow, task, child):
    other = child(
        """
        import sys, shmring
        ring = shmring.attach(sys.argv[1])
        seat = ring.consumer(f"spark-read-{sys.argv[2]}", exclusive=True, ephemeral=True)
        inp = ring.consumer("b")
        held = inp.lease_many(5)
        print("reading")
        input()
        """,
        arrow.name,
        task.partition.read.name,
    )
    other.line()
    other.kill()
    assert task() == 2000


def test_attempt_after_a_release_says_that_rows_would_be_missing(task):
    assert task() == 2000
    with pytest.raises(shmring.ShmringError, match="rows would be missing from its result"):
        task()


def test_attempt_after_one_that_failed_is_told_of_an_end_that_another_member_took(arrow):
    columns = StructType([StructField("x", LongType())])
    options = {"ring": arrow.name, "branch": "b", "until": "end", "timeout": "600"}
    reader = RingReader(ReadOptions.of(options), columns, "frame")
    (partition,) = reader.partitions()
    first = reader.read(partition)
    next(first)
    with arrow.arrow_reader("b", copy=True) as other, arrow.producer() as out:
        out.push_end()
        rows = sum(batch.num_rows for batch in other)
    first.close()
    assert rows + sum(batch.num_rows for batch in reader.read(partition)) == 2000
    reader = RingReader(ReadOptions.of(options), columns, "another frame")
    (partition,) = reader.partitions()
    later = reader.read(partition)
    with arrow.arrow_writer() as out:
        out.write(pa.table([[2000], ["next run"]], schema=SCHEMA))
        out.end()
    assert sum(batch.num_rows for batch in later) == 1


def test_attempts_do_not_wait_for_others_of_the_branch(arrow, task):
    with arrow.consumer("b", name="somebody else"):
        assert task() == 2000
