"""spark.read.format("shmring")."""

from __future__ import annotations

import datetime
import decimal
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fixture_types import Read, RunThread, Until
from pyspark.sql import DataFrame, SparkSession, functions
from sessions import failure, logged

import shmring

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("half", pa.float64())])
pytestmark = pytest.mark.ring(slots=4096, schema=SCHEMA)


def batch(k: int, rows: int = 100) -> pa.RecordBatch:
    numbers = range(k * rows, (k + 1) * rows)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([None if n % 10 == 0 else f"text {n}" for n in numbers]),
            pa.array([n / 2 for n in numbers]),
        ],
        schema=SCHEMA,
    )


def fill(ring: shmring.Ring, batches: int) -> None:
    with ring.arrow_writer() as writer:
        for k in range(batches):
            writer.write(batch(k))


@pytest.fixture
def read(spark: SparkSession, allocated: Callable[[], int]) -> Callable[..., DataFrame]:
    def read(ring: str, **options: object) -> DataFrame:
        reader = spark.read.format("shmring").option("ring", ring)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    return read


@pytest.fixture
def has_left(ring: shmring.Ring, spark: SparkSession) -> Callable[[], bool]:
    """Whether nobody but this process is attached; vectors that Spark forgets keep the ring."""

    def look() -> bool:
        spark._jvm.java.lang.System.gc()
        return {
            participant["pid"] for participant in ring.participants() if participant["alive"]
        } == {os.getpid()}

    return look


@pytest.fixture(autouse=True)
def _nothing_stays_allocated(allocated: Callable[[], int], until: Until) -> Iterator[None]:
    yield
    # Other tasks of a job that has failed are killed a little later.
    until(lambda: allocated() <= 0, "the end of what tasks have")


# CHANGE: edit this for a new type between Spark and Arrow
@pytest.mark.parametrize("copy", ["true", "false"])
def test_every_type_comes_as_it_was_written_or_as_another_that_spark_has(
    name: str, read: Read, copy: str
) -> None:
    now = datetime.datetime(2026, 5, 4, 3, 2, 1, 99)
    nanos = pa.timestamp("ns")
    zoned = now.replace(tzinfo=datetime.UTC)
    cents = [decimal.Decimal("-1.50"), None, decimal.Decimal(10) ** 35]
    span = datetime.timedelta(days=-3, microseconds=7)
    values = {
        "flag": ([True, None, False], pa.bool_(), "boolean"),
        "byte": ([1, None, -128], pa.int8(), "tinyint"),
        "short": ([1, None, -32768], pa.int16(), "smallint"),
        "int": ([1, None, -(2**31)], pa.int32(), "int"),
        "long": ([1, None, -(2**63)], pa.int64(), "bigint"),
        "u8": ([255, None, 0], pa.uint8(), "smallint"),
        "u16": ([2**16 - 1, None, 0], pa.uint16(), "int"),
        "u32": ([2**32 - 1, None, 0], pa.uint32(), "bigint"),
        "u64": ([2**64 - 1, None, 0], pa.uint64(), "decimal(20,0)"),
        "float": ([0.5, None, float("inf")], pa.float32(), "float"),
        "double": ([0.1, None, -1e308], pa.float64(), "double"),
        "text": (["", None, "ä€😀"], pa.string(), "string"),
        "large": (["", None, "x" * 500], pa.large_string(), "string"),
        "bytes": ([b"", None, b"\0\xff"], pa.binary(), "binary"),
        "day": ([datetime.date(1969, 1, 1), None, now.date()], pa.date32(), "date"),
        "at": ([now, None, now], pa.timestamp("us"), "timestamp_ntz"),
        "pandas": ([now, None, now], nanos, "timestamp_ntz"),
        "zoned": ([zoned, None, zoned], pa.timestamp("ns", "UTC"), "timestamp"),
        "early": ([datetime.datetime(1900, 1, 1), None, now], nanos, "timestamp_ntz"),
        "span": ([span, None, -span], pa.duration("ns"), "interval day to second"),
        "price": ([cents[0], None, -cents[0]], pa.decimal128(9, 2), "decimal(9,2)"),
        "wide": (cents, pa.decimal256(38, 2), "decimal(38,2)"),
        "list": ([[1, None], None, []], pa.list_(pa.int32()), "array<int>"),
        "times": ([[now, None], None, []], pa.list_(nanos), "array<timestamp_ntz>"),
        "nested": ([[["a"], []], None, [None]], pa.list_(pa.list_(pa.string())), ""),
        "row": (
            [{"a": 1, "b": [7]}, None, {"a": None, "b": None}],
            pa.struct([("a", pa.int8()), ("b", pa.list_(pa.uint64()))]),
            "struct<a:tinyint,b:array<decimal(20,0)>>",
        ),
        "plain_row": ([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.string())]), ""),
        "map": ([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64()), "map<string,bigint>"),
        "times_by_key": ([[("k", now)], None, []], pa.map_(pa.string(), nanos), ""),
        "full": ([1, 2, 3], pa.int64(), "bigint"),  # no null: no validity buffer
        "void": ([None, None, None], pa.null(), "void"),
    }
    schema = pa.schema([(column, kind) for column, (_, kind, _) in values.items()])
    table = pa.table([pa.array(v, kind) for v, kind, _ in values.values()], schema=schema)
    with shmring.create(name, slots=4096, schema=schema, temporary=True) as ring:
        with ring.arrow_writer() as writer:
            writer.write(table)
            writer.write(table.slice(0, 0))
            writer.write(table.slice(1, 2))
        frame = read(name, copy=copy).withColumn("zoned", functions.expr("string(zoned)"))
        kinds = dict(frame.dtypes)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        as_they_are = ("at", "text", "list", "nested", "plain_row", "map", "full")
        alone = read(name, copy=copy).select(*as_they_are).collect()
    expected = table.to_pylist() + table.slice(1, 2).to_pylist()
    for row in expected:
        for column in ("map", "times_by_key"):
            row[column] = None if row[column] is None else dict(row[column])
        row["zoned"] = row["zoned"] and "2026-05-04 03:02:01.000099"
    wanted = {c: kind for c, (*_, kind) in values.items() if kind} | {"zoned": "string"}
    assert kinds.items() >= wanted.items()
    assert rows == expected
    some = [{column: row[column] for column in as_they_are} for row in expected]
    assert [row.asDict(recursive=True) for row in alone] == some


def test_compressed_and_dictionary_encoded_batches_are_read(name: str, read: Read) -> None:
    schema = pa.schema([("word", pa.dictionary(pa.int32(), pa.string())), ("n", pa.int64())])
    words = pa.array(["a", None, "b"] * 1000).dictionary_encode()
    table = pa.table([words, pa.array(range(3000))], schema=schema)
    with shmring.create(name, schema=schema, temporary=True) as ring:
        for compression in (None, "lz4", "zstd"):
            with ring.arrow_writer(compression=compression) as writer:
                writer.write(table)
        rows = read(name).collect()
        only = read(name).select("word").distinct().collect()
    assert [r["word"] for r in rows] == ["a", None, "b"] * 3000
    assert [r["n"] for r in rows] == list(range(3000)) * 3
    assert {r["word"] for r in only} == {"a", "b", None}


@pytest.mark.parametrize(
    ("kind", "cast", "copy"),
    [
        (pa.timestamp("ns"), 'pa.timestamp("us")', "true"),
        (pa.duration("ns"), 'pa.duration("us")', "false"),
        (pa.time64("ns"), 'pa.time64("us")', "true"),
        (pa.list_(pa.timestamp("ns")), 'pa.timestamp("us")', "false"),
    ],
)
def test_nanoseconds_that_spark_would_lose_are_an_error_with_the_cast(
    name: str, read: Read, copy: str, kind: pa.DataType, cast: str
) -> None:
    schema = pa.schema([("t", kind), ("n", pa.int64())])
    values = [[1000, 1001]] if pa.types.is_list(kind) else [1001]
    with shmring.create(name, schema=schema, temporary=True) as ring:
        with ring.arrow_writer() as writer:
            writer.write(pa.record_batch([pa.array(values, kind), pa.array([5])], schema=schema))
        text = failure(read(name, copy=copy).collect)
        assert f'ring "{name}": column "t" has a value of type' in text
        assert f"column.cast({cast}, safe=False)" in text
        if not pa.types.is_time(kind):  # Spark counts no rows of times, nor selects beside them
            assert read(name, copy=copy).select("n").collect() == [(5,)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int64()),
        pa.struct([("a", pa.list_view(pa.int64()))]),
    ],
)
def test_views_are_refused_before_they_are_counted(
    name: str, read: Read, kind: pa.DataType
) -> None:
    with shmring.create(name, schema=pa.schema([("v", kind)]), temporary=True):
        text = failure(lambda: read(name))
    assert 'column "v" has the Arrow type' in text
    assert "views to plain texts and lists" in text


def test_columns_that_are_read_as_others_are_not_written(
    name: str, spark: SparkSession, read: Read
) -> None:
    with shmring.create(name, schema=pa.schema([("u", pa.uint16())]), temporary=True) as ring:
        frame = spark.range(3).selectExpr("cast(id as int) u").write.format("shmring")
        text = failure(lambda: frame.option("ring", name).mode("append").save())
        assert "u: Int(16, false)" in text
        assert "create the ring with that" in text
        assert ring.claimed == 0


@pytest.mark.parametrize("copy", ["true", "false"])
def test_large_batches_and_an_order_of_their_own_come_whole(
    name: str, read: Read, copy: str
) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    n = 100_000  # written as a stream: larger than what is copied in
    table = pa.table([pa.array(range(n)), pa.array([f"{i:08}" for i in range(n)])], schema=schema)
    with shmring.create(name, slots=32768, schema=schema, temporary=True) as ring:
        with ring.arrow_writer() as writer:
            writer.write(table)
        frame = read(name, copy=copy)
        assert frame.selectExpr("sum(n)", "sum(cast(s as bigint))").collect() == [
            (n * (n - 1) // 2, n * (n - 1) // 2)
        ]
        assert frame.select("s").where("n = 77777").collect() == [("00077777",)]
        assert frame.count() == n


def test_only_the_columns_that_are_asked_for_are_touched(ring: shmring.Ring, read: Read) -> None:
    message = bytearray(batch(0).serialize())
    whole = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
    offsets = whole["text"].buffers()[1].address - pa.py_buffer(message).address
    struct.pack_into("<i", message, offsets + 40, 2**31 - 1)  # an offset beyond its column
    with ring.producer() as producer, producer.claim(len(message)) as claim:
        claim.buffer[:] = message
        claim.commit(kind=3)
    assert read(ring.name).selectExpr("sum(number)", "sum(half)").collect() == [(4950, 2475.0)]
    text = failure(lambda: read(ring.name).select("text").collect())
    assert "message 0 holds no readable Arrow batch" in text
    assert 'column "text": offset' in text


@pytest.mark.parametrize("damage", ["kind", "length", "metadata", "body"])
def test_a_damaged_message_is_an_error_and_no_crash(
    ring: shmring.Ring,
    read: Read,
    forge: Callable[[shmring.Ring, bytearray, int], int],
    damage: str,
) -> None:
    message = bytearray(batch(0).serialize())
    if damage == "length":
        struct.pack_into("<i", message, 4, 2**30)
    elif damage == "metadata":
        message[12:300] = os.urandom(288)
    elif damage == "body":
        del message[-500:]
    forge(ring, message, 0 if damage == "kind" else 3)
    assert "message 0 holds no readable Arrow batch" in failure(read(ring.name).collect)
    assert "message 0" in failure(read(ring.name, copy="false").collect)


def test_a_ring_of_bytes_is_the_queue_table(name: str, read: Read) -> None:
    with (
        shmring.create(name, slots=1024, clock="precise", temporary=True) as ring,
        ring.producer() as producer,
    ):
        ring.subscribe("one", start="earliest")
        producer.push_many([b"%d" % i for i in range(1500 % 1024)])
        producer.push(b"x" * 1000)
        rows = read(name).collect()
        table = ring.table()
        assert read(name).columns == table.column_names
        for column in ("slot", "message_id"):
            assert [r[column] for r in rows] == table[column].to_pylist()
        assert [bytes(r["message"])[:300] for r in rows] == table["message"].to_pylist()
        assert [r["reference_count"] for r in rows] == [2] * len(rows)  # one is the reader's
        assert read(name).selectExpr("max(length(message))").collect() == [(1000,)]
        at = read(name).selectExpr("min(time)").collect()[0][0].replace(tzinfo=datetime.UTC)
        age = datetime.datetime.now(datetime.UTC) - at
        assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)


def test_rings_with_checksums_and_without_a_clock_are_read(name: str, read: Read) -> None:
    with (
        shmring.create(name, checksum=True, clock="off", temporary=True) as ring,
        ring.producer() as producer,
    ):
        for i in range(100):
            producer.push(b"%d" % i)
        rows = read(name).collect()
        assert [r["slot"] for r in rows] == ring.table()["slot"].to_pylist()
        assert {r["time"] for r in rows} == {None}


def test_a_read_without_a_branch_consumes_nothing(ring: shmring.Ring, read: Read) -> None:
    fill(ring, 20)
    frame = read(ring.name)
    assert frame.count() == frame.count() == 2000
    assert ring.branches() == []


def test_a_read_from_a_branch_consumes_what_it_has_read(ring: shmring.Ring, read: Read) -> None:
    ring.subscribe("b", start="earliest")
    fill(ring, 20)
    assert read(ring.name, branch="b", maxMessages=5).agg({"number": "max"}).collect() == [(499,)]
    assert read(ring.name, branch="b").agg({"number": "min"}).collect() == [(500,)]
    assert read(ring.name, branch="b").count() == 0
    branch = ring.branches()[0]
    assert branch["released"] == ring.claimed
    assert branch["consumers"] == 0


def test_a_new_branch_begins_where_it_is_told_to(ring: shmring.Ring, read: Read) -> None:
    fill(ring, 4)
    half = ring.claimed // 2
    assert read(ring.name, branch="a", start="latest").count() == 0
    assert read(ring.name, branch="b", start=half).count() == 200
    assert read(ring.name, branch="c", start="earliest").count() == 400


def test_log_tells_of_a_new_branch_beside_others(
    spark: SparkSession, ring: shmring.Ring, read: Read
) -> None:
    with logged(spark, "io.shmring.spark.read.RingReads") as said:
        read(ring.name, branch="a").count()
        read(ring.name).count()
        assert said() == ""
        for _ in range(2):
            read(ring.name, branch="b").count()
    (line,) = said().splitlines()
    assert f'ring "{ring.name}" had no branch "b" beside "a": making it' in line


def test_a_task_that_fails_hands_its_messages_back(ring: shmring.Ring, read: Read) -> None:
    ring.subscribe("b", start="earliest")
    fill(ring, 20)
    frame = read(ring.name, branch="b")
    assert "boom" in failure(frame.selectExpr("if(number = 1500, raise_error('boom'), 0)").collect)
    assert ring.branches()[0]["released"] == 0
    assert frame.selectExpr("count(*)", "sum(number)").collect() == [(2000, 1999 * 1000)]


@pytest.mark.parametrize("copy", ["true", "false"])
def test_limit_consumes_the_messages_that_it_has_looked_at(
    ring: shmring.Ring, read: Read, has_left: Callable[[], bool], until: Until, copy: str
) -> None:
    ring.subscribe("b", start="earliest")
    fill(ring, 20)
    assert len(read(ring.name, branch="b", copy=copy).limit(1).collect()) == 1
    first = read(ring.name, branch="b").agg({"number": "min"}).collect()[0][0]
    assert 0 < first <= 300
    assert first % 100 == 0  # whole messages
    until(has_left, "the end of the task")
    assert [branch["name"] for branch in ring.branches()] == ["b"]


@pytest.mark.parametrize(
    ("release", "kept", "copy"), [("task", 2000, "true"), ("message", 0, "false")]
)
def test_a_cancelled_task_hands_back_what_is_not_released(
    ring: shmring.Ring,
    read: Read,
    spark: SparkSession,
    thread: RunThread,
    until: Until,
    has_left: Callable[[], bool],
    copy: str,
    release: str,
    kept: int,
) -> None:
    ring.subscribe("b", start="earliest")
    fill(ring, 20)
    waiting = read(ring.name, branch="b", until="end", release=release, copy=copy)
    job = thread(lambda: failure(waiting.selectExpr("sum(number)").collect))
    reached = "released" if release == "message" else "position"
    until(lambda: ring.branches()[0][reached] == ring.claimed, "the wait for the end")
    spark.sparkContext.cancelAllJobs()
    assert "cancel" in job.outcome().lower()
    until(has_left, "the end of the task")
    (branch,) = ring.branches()
    assert branch["name"] == "b"
    assert branch["consumers"] == 0
    assert read(ring.name, branch="b").count() == kept
    assert len(ring.participants()) == 1


def test_a_writer_that_stays_away_is_a_timeout(ring: shmring.Ring, read: Read) -> None:
    text = failure(read(ring.name, until="end", timeout=0.2).collect)
    assert "no message and no end marker in 0.2 s" in text


@pytest.mark.parametrize("copy", ["true", "false"])
def test_more_than_the_ring_holds_is_read_until_the_end_marker(
    name: str, read: Read, thread: RunThread, copy: str
) -> None:
    with shmring.create(name, slots=65536, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        rows, batches = 10_000, 100

        def write() -> None:
            with ring.arrow_writer() as writer:
                for k in range(batches):
                    writer.write(batch(k, rows))
                writer.end()

        writing = thread(write)
        frame = read(name, branch="b", until="end", timeout=600, copy=copy)
        expected = rows * batches
        assert frame.selectExpr("count(text)", "sum(number)").collect() == [
            (expected - expected // 10, expected * (expected - 1) // 2)
        ]
        writing.outcome()


def test_a_read_of_no_column_keeps_no_message(ring: shmring.Ring, read: Read) -> None:
    fill(ring, 20)
    frame = read(ring.name, branch="b", start="earliest", copy="false")
    assert frame.count() == 2000
    attached = {each["pid"] for each in ring.participants() if each["alive"]}
    assert attached <= {os.getpid()}  # without a collection of the JVM's garbage


def test_several_rings_are_a_partition_each(name: str, read: Read) -> None:
    rings = [shmring.create(f"{name}-{i}", schema=SCHEMA, temporary=True) for i in range(3)]
    try:
        for i, ring in enumerate(rings):
            with ring.arrow_writer() as writer:
                writer.write(batch(i))
        assert read(f"{name}-*").rdd.getNumPartitions() == 3
        assert read(f"{name}-*").count() == 300
        assert read(f"{name}-0, {name}-2").agg({"number": "max"}).collect() == [(299,)]
        assert read(rings[1].path).agg({"number": "min"}).collect() == [(100,)]
        with shmring.create(f"{name}-3", temporary=True):
            assert "differ" in failure(lambda: read(f"{name}-*"))
    finally:
        for ring in rings:
            ring.close()


def test_errors_say_what_is_wrong(
    name: str, read: Read, spark: SparkSession, tmp_path: Path
) -> None:
    assert f'no ring "{name}" on this host' in failure(lambda: read(name))
    assert "matches" in failure(lambda: read(f"{name}*"))
    assert 'needs .option("ring", NAME)' in failure(lambda: spark.read.format("shmring").load())
    other = tmp_path / "file"
    other.write_bytes(b"x" * 100_000)
    assert "is not a shmring ring" in failure(lambda: read(str(other)))
    with shmring.create(name, schema=pa.schema([("t", pa.float16())]), temporary=True):
        assert 'column "t" has the Arrow type FloatingPoint(HALF)' in failure(lambda: read(name))


@pytest.mark.parametrize("bad", ["a b", "-a", "a" * 201])
def test_what_cannot_name_a_ring_is_refused_in_the_cores_words(read, bad):
    assert "cannot name a ring: a name has 1 to 200" in failure(lambda: read(bad))


def test_a_ring_of_another_layout_version_is_refused(name: str, read: Read, tmp_path: Path) -> None:
    with shmring.create(path=tmp_path / "ring", slots=1024, temporary=True) as ring:
        file = Path(ring.path)
        content = bytearray(file.read_bytes())
        struct.pack_into("<H", content, 8, 99)
        newer = tmp_path / "newer"
        newer.write_bytes(content)
    text = failure(lambda: read(str(newer)))
    assert "99" in text


def test_a_ring_that_is_unlinked_under_a_query_serves_it_to_its_end(name: str, read: Read) -> None:
    with shmring.create(name, schema=SCHEMA) as ring:
        fill(ring, 10)
        frame = read(name)
        assert frame.count() == 1000
        shmring.unlink(name)
    assert f'no ring "{name}"' in failure(frame.count)
    raw = pa.schema([("other", pa.int64())])
    with shmring.create(name, schema=raw, temporary=True):
        assert "replaced by one with another schema" in failure(frame.count)
