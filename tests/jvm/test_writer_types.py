"""df.write.format("shmring"): every type of column, nulls, and batches of any size."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

import shmring

TYPES = {
    "tiny": (pa.int8(), "cast(id % 100 as tinyint)"),
    "small": (pa.int16(), "cast(-id % 30000 as smallint)"),
    "number": (pa.int32(), "cast(id as int)"),
    "big": (pa.int64(), "id * 1000000007"),
    "single": (pa.float32(), "cast(id / 4 as float)"),
    "half": (pa.float64(), "cast(id / 2 as double)"),
    "day": (pa.date32(), "date_add(date'2020-01-01', cast(id as int))"),
    "time": (pa.timestamp("us", "UTC"), "timestamp_seconds(id)"),
    "local": (pa.timestamp("us"), "cast(timestamp_seconds(id) as timestamp_ntz)"),
    "text": (pa.string(), "repeat('é', cast(id % 7 as int))"),
    "bytes": (pa.binary(), "cast(repeat('b', cast(id % 300 as int)) as binary)"),
}
# Not flat, so that Spark's own writer takes the rows.
NESTED = {"list": (pa.list_(pa.int64()), "array(id, null)"), "flag": (pa.bool_(), "id % 2 = 0")}


def expected(name, k):
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=k)
    return {
        "tiny": k % 100,
        "small": -(k % 30000),
        "number": k,
        "big": k * 1000000007,
        "single": k / 4,
        "half": k / 2,
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=k),
        "time": epoch,
        "local": epoch.replace(tzinfo=None),
        "text": "é" * (k % 7),
        "bytes": b"b" * (k % 300),
        "list": [k, None],
        "flag": k % 2 == 0,
    }[name]


@pytest.mark.parametrize(
    ("extra", "nulls", "rows_a_batch"),
    [({}, False, 7), ({}, True, 5000), (NESTED, True, 7)],
)
def test_each_row_arrives_as_it_was(name, spark, allocated, extra, nulls, rows_a_batch):
    types = {**TYPES, **extra}
    count = 6000 if rows_a_batch > 1000 else 300
    schema = pa.schema([(column, kind) for column, (kind, _) in types.items()])
    made = [
        f"if(id % {5 + i} = 0, null, {text}) AS {column}" if nulls else f"{text} AS {column}"
        for i, (column, (_, text)) in enumerate(types.items())
    ]
    with shmring.create(name, slots=65536, schema=schema, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        frame = spark.range(0, count, 1, 1).selectExpr(*made)
        writer = frame.write.format("shmring").option("ring", name).mode("append")
        writer.option("batchRows", rows_a_batch).option("batchBytes", 1 << 24).save()
        with ring.arrow_reader("b", until="empty", copy=True) as reader:
            batches = list(reader)
        again = spark.read.format("shmring").option("ring", name).load()
        assert again.exceptAll(frame).count() == 0
        assert again.count() == count
    assert [batch.num_rows for batch in batches[:-1]] == [rows_a_batch] * (len(batches) - 1)
    found = pa.Table.from_batches(batches)
    for i, column in enumerate(types):
        assert found[column].to_pylist() == [
            None if nulls and k % (5 + i) == 0 else expected(column, k) for k in range(count)
        ], column
    assert allocated() == 0
