"""Functions do over rings what they do over the socket: a table of batches and of types."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import mapped
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from direct import ROWS, TYPES, columns_of
from pyspark.sql import functions
from pyspark.sql.functions import col
from pyspark.sql.types import ArrayType, LongType, StringType, StructType
from unchanged import (
    MOST_BYTES,
    WHOLE_STAGE,
    Case,
    Cases,
    Given,
    adds_to,
    arrays,
    arrays_iterator,
    compare,
    for_each,
    series,
    values,
    way_of,
)

CASES: Cases = {}
case = adds_to(CASES)


# --- batches ------------------------------------------------------------------------------------


def _of_shape(function: Any) -> Case:
    return lambda s: [
        s.t.mapInArrow(function, "n long"),
        s.t.mapInPandas(mapped.of_frames(function), "n long"),
        s.t.mapInArrow(mapped.counts, "n long"),  # leftovers are not taken for this answer
    ]


def _that_fails(function: Any) -> Case:
    return lambda s: [
        s.one.mapInArrow(function, s.t.schema),
        s.one.mapInPandas(mapped.of_frames(function), s.t.schema),
    ]


for shape in mapped.SHAPES:
    CASES[shape.__name__] = _of_shape(shape), {}
for number, function in enumerate([*mapped.ENDS, *mapped.WRONG]):
    CASES[function.__name__] = _that_fails(function), {WHOLE_STAGE: number % 2 == 0}


@case()
def answers_before_it_reads(s):
    """More than the rings take; the driver takes longer for all rows than Spark."""
    function, few = mapped.answers_before_it_reads, "n % 100 = 0"
    return [
        s.t.mapInArrow(function, "n long").where(few),
        s.t.mapInPandas(mapped.of_frames(function), "n long").where(few),
    ]


@case()
def every_type_comes_back(s):
    return [
        s.typed.mapInArrow(lambda batches: batches, s.typed.schema),
        s.typed.mapInPandas(lambda frames: frames, s.typed.schema),
        s.typed.groupBy("flag").applyInArrow(lambda table: table, s.typed.schema),
    ]


@case({WHOLE_STAGE: False})
def every_type_without_nulls_and_of_nulls(s):
    frames = [s.spark.range(60).selectExpr(*columns_of(TYPES, nulls)) for nulls in ("none", "all")]
    return [frame.mapInArrow(lambda batches: batches, frame.schema) for frame in frames]


@case({ROWS: 1500})
def arrays_of_every_flat_type(s):
    def of(text):
        value = text.replace("id", "(id + i)")
        some = f"CASE WHEN id % 3 = 0 AND i % 71 = 70 THEN null ELSE {value} END"
        array = f"transform(sequence(0, id * 13 % 150), i -> {some})"
        return f"CASE WHEN id % 5 = 3 THEN null WHEN id % 7 = 1 THEN array() ELSE {array} END"

    flat = {name: of(TYPES[name]) for name in list(TYPES)[: list(TYPES).index("list")]}
    frame = s.spark.range(1600, numPartitions=1).selectExpr(*columns_of(flat, "none"))

    def digests(batches):
        for batch in batches:
            batch.validate(full=True)
            found = [hashlib.sha256(str(c.to_pylist()).encode()).hexdigest() for c in batch]
            yield pa.record_batch({"rows": [batch.num_rows] * len(found), "digest": found})

    return [
        given.mapInArrow(digests, "rows long, digest string") for given in (frame, s.file(frame))
    ]


def _schemas() -> Any:
    """A function of batches that tells their schema; workers do not find this module."""
    return lambda batches: (pa.record_batch({"n": [str(b.schema)]}) for b in batches)


@case({"spark.sql.execution.arrow.useLargeVarTypes": True})
def large_types(s):
    return [s.t.mapInArrow(_schemas(), "n string"), s.t.mapInArrow(lambda b: b, s.t.schema)]


@case()
def schema_that_functions_see(s):
    return s.typed.mapInArrow(_schemas(), "n string")


@case()
def batches_of_another_schema_than_the_first(s):
    def second_is(change):
        def function(batches):
            for i, batch in enumerate(batches):
                yield change(batch) if i else batch

        return function

    def required(batch):
        fields = [field.with_nullable(False) for field in batch.schema]
        return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))

    changes = (
        required,
        lambda batch: batch.rename_columns(["id", "half", "other"]),
        lambda batch: batch.set_column(0, "id", batch["id"].cast("int32")),
        lambda batch: batch.replace_schema_metadata({"a": "b"}),
        lambda batch: batch.select(["id", "half"]),
    )
    return [s.one.mapInArrow(second_is(change), s.t.schema) for change in changes]


@case()
def answers_that_are_run_end_encoded(s):
    def encoded(batches):
        for batch in batches:
            runs = pa.RunEndEncodedArray.from_arrays([batch.num_rows], [7])
            yield pa.record_batch({"n": runs})

    ends = arrays("long", lambda x: pa.RunEndEncodedArray.from_arrays([len(x)], [7]))
    return [s.one.mapInArrow(encoded, "n long"), s.one.select(ends("id"))]


@case({"spark.sql.session.timeZone": "Asia/Kolkata"})
def zone(s):
    times = s.spark.range(40).selectExpr(
        "timestamp_seconds(id * 3601) time", "date_add('1960-1-1', int(id)) day"
    )
    text = lambda x: str(x)  # noqa: E731
    later = series("timestamp", lambda x: x + pd.Timedelta(hours=1))
    shown = series("string", lambda x: x.dt.strftime("%Y-%m-%d %H:%M"))
    return [
        times.select(
            later("time"),
            shown("time"),
            values("string", text)("time"),
            values("date", lambda x: x)("day"),
        ),
        times.mapInPandas(
            lambda frames: (frame.astype(str) for frame in frames), "time string, day string"
        ),
        times.selectExpr("cast(time as timestamp_ntz) time").mapInArrow(
            lambda b: b, "time timestamp_ntz"
        ),
    ]


@case()
def partitions_without_rows(s):
    empty, first = s.t.where("id < 0"), s.t.where("id < 1")
    return [
        *(
            frame.mapInArrow(function, "n long")
            for frame in (empty, first)
            for function in (mapped.counts, mapped.ignores_input)
        ),
        empty.select(
            "id",
            series("long", lambda x: x)("id"),
            arrays_iterator("long", mapped.needs_a_batch)("id"),
        ),
        empty.mapInPandas(mapped.of_frames(mapped.counts), "n long"),
    ]


@case()
def without_columns(s):
    none = StructType()
    counts = lambda batches: (pa.record_batch({"n": [b.num_rows]}) for b in batches)  # noqa: E731
    return [
        s.t.select().mapInArrow(counts, "n long"),
        s.t.select().mapInArrow(lambda batches: batches, none),
        s.t.mapInPandas(lambda frames: (frame[[]] for frame in frames), none),
        s.grouped.applyInArrow(lambda table: table.select([]), none),
        s.grouped.applyInPandas(lambda frame: frame[[]], none),
    ]


@case()
def file_that_is_read(s):
    file = s.file(s.t)
    name = functions.regexp_extract(functions.input_file_name(), "part-[0-9]+", 0)
    return [
        file.select("id", series("double", lambda x: x + 1)("half"), name),
        file.mapInArrow(lambda batches: batches, file.schema).select("id", name),
        file.mapInPandas(lambda frames: frames, file.schema).select(
            "id", arrays("double", lambda x: pc.add(x, 1))("half"), name
        ),
    ]


@case()
def many_columns(s):
    wide = s.spark.range(20).select(*(col("id").alias(f"c{i}") for i in range(150)))
    return wide.mapInArrow(lambda batches: batches, wide.schema)


@case({ROWS: 10_000})
def columns_that_are_passed_on(s):
    wide = s.spark.range(2500, numPartitions=2).selectExpr(
        "id", "repeat('x', 300) text", "id + 1 b"
    )

    def swaps(batches):
        for batch in batches:
            columns = [batch.column(name) for name in ("b", "text", "id", "text")]
            yield pa.RecordBatch.from_arrays(columns, ["b", "text", "id", "again"])

    def later(batches):
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
        yield before

    total = ["sum(hash(*))", "count(text)"]
    return [
        wide.mapInArrow(swaps, "b long, text string, id long, again string").selectExpr(*total),
        wide.mapInArrow(later, wide.schema).selectExpr(*total),
    ]


@case()
def several_in_one_task(s):
    same = s.t.mapInArrow(lambda batches: batches, s.t.schema)
    early = s.t.mapInArrow(mapped.stops_early, "n long")
    return [
        same.mapInArrow(mapped.counts, "n long"),
        same.union(same),
        early.union(s.t.mapInArrow(mapped.counts, "n long")).coalesce(1),
        same.join(same, "id").sort("id"),
    ]


@case()
def row_of_30_mb(s):
    def widens(batches):
        for batch in batches:
            first = batch.column("id")[0].as_py()
            yield pa.record_batch({"id": [first], "text": [f"{first:9}" * 3_333_333]})

    def measures(batches):
        for batch in batches:
            for text in batch.column("text"):
                yield pa.record_batch({"n": [len(text.as_py())], "head": [text.as_py()[:9]]})

    wide = s.t.limit(1).mapInArrow(widens, "id long, text string")
    return wide.mapInArrow(measures, "n long, head string")


@case()
def limits(s):
    same = s.t.mapInArrow(lambda batches: batches, s.t.schema)
    twice = series("double", lambda x: x * 2)
    return [
        same.limit(7),
        s.t.select(twice("half")).limit(60),
        same.orderBy(col("id").desc()).limit(3),
    ]


def _sizes(kind: str) -> Case:
    def sizes(batches):
        yield pa.record_batch({"n": [batch.num_rows for batch in batches]})

    text = "if(id % 7 = 1, null, repeat('x', int(id % 50))) text"
    columns = ["if(id % 3 = 0, null, id) id", text, "id % 2 = 0 flag"]
    if kind == "nested":
        columns += ["array(id, null) ids", "struct(id, string(id) s) both", "decimal(id) d"]

    def of_batches(s: Given) -> Any:
        frame = s.spark.range(300, numPartitions=1).selectExpr(*columns)
        made = s.file(frame) if kind == "file" else frame
        groups = made.groupBy("flag").applyInArrow(
            lambda table: pa.table({"n": [len(part) for part in table.column("id").chunks]}),
            "n long",
        )
        return [made.mapInArrow(sizes, "n long"), groups]

    return of_batches


for kind, options in (
    ("rows", {ROWS: 1}),
    ("rows", {ROWS: 7, MOST_BYTES: 1000}),
    ("rows", {ROWS: 0, MOST_BYTES: 1, WHOLE_STAGE: False}),
    ("rows", {ROWS: 0, MOST_BYTES: 200, "spark.sql.execution.arrow.useLargeVarTypes": True}),
    ("nested", {ROWS: 0, MOST_BYTES: 1000}),
    ("nested", {ROWS: 10_000, MOST_BYTES: 5000, WHOLE_STAGE: False}),
    ("file", {MOST_BYTES: 1000, WHOLE_STAGE: False}),
    ("file", {ROWS: 0, MOST_BYTES: 20_000}),
):
    CASES[f"sizes_of_{kind}_{'_'.join(map(str, options.values()))}"] = _sizes(kind), options


@case()
def columns_of_a_file(s):
    flat = s.spark.range(300, numPartitions=2).selectExpr(*columns_of(TYPES, "some"), "id")
    file = s.file(flat)
    some = file.select("flag", "big", "text", "bytes", "day", "time", "exact")
    plus = series("double", lambda x, y: x + y)
    ahead = arrays_iterator("string", lambda batches: mapped.looks_one_ahead(batches))
    return [
        file.mapInArrow(lambda batches: batches, file.schema),
        some.mapInArrow(lambda batches: batches, some.schema),
        file.select("*", plus("half", "id"), arrays("long", lambda x: pc.add(x, 1))("id")),
        file.select("*", ahead("text")),
        some.groupBy("flag").applyInPandas(lambda frame: frame, some.schema),
    ]


# --- answers of other types ---------------------------------------------------------------------

DAY, HOUR = 86_400_000_000, 3_600_000_000
# CHANGE: edit this for a new type between Spark and Arrow
ANSWERS = {
    "string": [
        lambda: pa.array(["a", "b", None, "a"]).dictionary_encode(),
        lambda: pa.array(["a", None], pa.large_string()),
        lambda: pa.array(["a", "longer than its view", None], pa.string_view()),
        lambda: pa.array([b"a"]),
        lambda: pa.array([1, 2]),
        lambda: pa.nulls(2),
    ],
    "binary": [
        lambda: pa.array([b"a", None], pa.large_binary()),
        lambda: pa.array([b"ab", None], pa.binary(2)),
        lambda: pa.array([b"a", b"longer than its view", None], pa.binary_view()),
        lambda: pa.array(["a", None]),
    ],
    "long": [
        lambda: pa.array([1, None], pa.int32()),
        lambda: pa.array([1, None], pa.uint64()),
        lambda: pa.array([1.5, None]),
        lambda: pa.array([DAY, None], pa.timestamp("us")),
        lambda: pa.nulls(2),
        lambda: pa.array([1, 1, 2]).dictionary_encode(),
    ],
    "int": [lambda: pa.array([1, None], pa.int64()), lambda: pa.array([1], pa.int16())],
    "double": [lambda: pa.array([1.5], pa.float32()), lambda: pa.array([1], pa.int64())],
    "float": [lambda: pa.array([1.5, None], pa.float64()), lambda: pa.array([1.5], pa.float16())],
    "boolean": [lambda: pa.array([1], pa.int8()), lambda: pa.array(["true"])],
    "date": [lambda: pa.array([DAY // 1000], pa.date64()), lambda: pa.array([1], pa.int32())],
    "timestamp": [
        lambda: pa.array([HOUR, None], pa.timestamp("us")),
        lambda: pa.array([HOUR, None], pa.timestamp("us", "UTC")),
        lambda: pa.array([HOUR * 1000, None], pa.timestamp("ns", "UTC")),
        lambda: pa.array([3600], pa.timestamp("s", "Asia/Kolkata")),
        lambda: pa.array([1], pa.date32()),
    ],
    "timestamp_ntz": [
        lambda: pa.array([HOUR, None], pa.timestamp("us", "UTC")),
        lambda: pa.array([HOUR, None], pa.timestamp("ms")),
    ],
    "interval day to second": [lambda: pa.array([5], pa.duration("ns")), lambda: pa.array([5])],
    "decimal(10,2)": [
        lambda: pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
        lambda: pa.array([Decimal("1.5"), None], pa.decimal128(10, 1)),
        lambda: pa.array([Decimal("1.500")], pa.decimal128(12, 3)),
        lambda: pa.array([Decimal("123456789012.50")], pa.decimal128(20, 2)),
        lambda: pa.array([Decimal("1.50")], pa.decimal256(50, 2)),
        lambda: pa.array([1]),
    ],
    "array<long>": [
        lambda: pa.array([[1, None], None], pa.large_list(pa.int64())),
        lambda: pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        lambda: pa.array([[1, 2]], pa.list_(pa.int32())),
        lambda: pa.array([[]], pa.list_(pa.null())),
        lambda: pa.array([1]),
    ],
    "map<string,long>": [
        lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int32())),
        lambda: pa.array([[{"key": "a", "value": 1}]]),
    ],
    "struct<a: long, b: string>": [
        lambda: pa.array([{"b": "x", "a": 1}]),
        lambda: pa.array([{"a": 1, "b": "x"}, None]),
        lambda: pa.array([{"a": 1}]),
        lambda: pa.array([{"a": 1, "b": "x", "c": 2}]),
        lambda: pa.array([{"c": 1, "d": "x"}]),
    ],
}


def _answers(kind: str, makers: list[Any]) -> Case:
    return lambda s: [
        s.spark.range(1).mapInArrow(
            lambda batches, make=make: (
                pa.RecordBatch.from_arrays([make()], ["n"]) for _ in batches
            ),
            f"n {kind}",
        )
        for make in makers
    ]


for kind, makers in ANSWERS.items():
    CASES[f"answers_for_{kind}"] = _answers(kind, makers), {}


@case()
def answers_of_arrow_udfs(s):
    one = s.spark.range(2, numPartitions=1)
    return [
        one.select("id", arrays(kind, lambda x, make=make: make())("id"))
        for kind, makers in ANSWERS.items()
        for make in makers
        if kind in ("string", "long", "timestamp") and len(make()) == 2
    ]


@case()
def nulls_where_none_are_declared(s):
    flat = StructType().add("a", LongType(), nullable=False)
    text = StructType().add("a", StringType(), nullable=False)
    inner = StructType().add("a", ArrayType(LongType(), containsNull=False))
    texts = StructType().add("a", ArrayType(StringType(), containsNull=False))
    part = StructType().add("a", flat)

    def gives(rows):
        return lambda batches: (
            pa.RecordBatch.from_pylist([{"a": row} for row in rows]) for _ in batches
        )

    one = s.spark.range(1)
    udf = series(inner["a"].dataType, lambda x: pd.Series([[1, None]]))
    table = arrays(inner["a"].dataType, lambda x: pa.array([[1, None]]))
    return [
        one.mapInArrow(gives([1, None]), flat),
        one.mapInPandas(lambda frames: (pd.DataFrame({"a": [1, None]}) for _ in frames), flat),
        one.mapInArrow(gives(["x", None]), text),
        one.mapInArrow(gives([[1], [2, None]]), inner),
        one.mapInArrow(gives([["x"], ["y", None]]), texts),
        one.mapInArrow(gives([{"a": 1}, {"a": None}]), part),
        one.mapInArrow(gives([{"a": 1}, None]), part),
        one.groupBy("id").applyInArrow(lambda t: pa.table({"a": [1, None]}), flat),
        one.groupBy("id").applyInPandas(lambda t: pd.DataFrame({"a": [1, None]}), flat),
        one.select(udf("id"), table("id")),
    ]


# --- both ways ----------------------------------------------------------------------------------


RARE = (
    *(
        "answers_for_",
        "every_type_without",
        "sizes_of_rows_0",
        "sizes_of_nested",
        "sizes_of_file_0",
    ),
    *("zone", "gives_", "raises_at_t", "ends_", "arrays_of_every_flat"),
)


@for_each(CASES, rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
