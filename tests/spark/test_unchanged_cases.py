"""Functions do over rings what they do over the socket: a table of cases."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import mapped
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from direct import ROWS, TYPES, columns_of
from pyspark.sql import DataFrame, functions
from pyspark.sql.functions import col
from pyspark.sql.types import ArrayType, LongType, StringType, StructType
from unchanged import (
    ADAPTIVE,
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
    said,
    series,
    series_iterator,
    values,
    way_of,
)

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"

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


# --- UDFs ---------------------------------------------------------------------------------------


@case()
def several_udfs_in_one_projection(s):
    plus = series("double", lambda x, y: x + y)
    both = series("a long, b string", lambda x, y: pd.DataFrame({"a": x, "b": y}), pd.DataFrame)
    doubled = arrays("long", lambda x: pc.multiply(x, 2))
    shouts = series("string", lambda x: x.str.upper() + "!")
    cast = series("int", lambda x: x * 2)
    return [
        s.t.select(plus("id", "half")),
        s.t.select(
            "*",
            plus("id", "half"),
            plus("half", "half"),
            plus(col("id") + 1, "half"),
            shouts("text"),
        ),
        s.t.select("*", plus(y=col("half"), x=col("id")), both("id", "text"), cast("half")),
        s.t.select("*", doubled("id"), doubled(col("id") % 7)),
        s.t.select("*", plus(plus("half", "id"), "id"), shouts(shouts("text"))),
        s.t.select("*", plus(doubled("id"), "half"), doubled(doubled("id"))),
    ]


@case()
def udfs_everywhere(s):
    odd = series("boolean", lambda x: x % 2 == 1)
    rest = arrays("long", lambda x: pc.subtract(x, pc.multiply(pc.divide(x, 5), 5)))
    near = series("boolean", lambda x, y: (x - y).abs() < 2)
    few = s.t.limit(20)
    return [
        s.t.where(odd("id") & (col("id") > 9)),
        s.t.where(odd("id")).select("text", rest("id")).where(rest(col("id")) > 2),
        few.alias("a").join(few.alias("b"), near(col("a.id"), col("b.id"))).sort("a.id", "b.id"),
        few.orderBy(rest("id").desc(), "id"),
        s.t.groupBy(rest("id"))
        .agg(functions.sum(rest("id")), functions.count("*"))
        .sort(functions.col("count(1)")),
        s.t.groupBy("id")
        .agg(functions.max("half").alias("m"))
        .select(rest("id"), odd("m"))
        .sort("m"),
        few.select(functions.when(col("id") > 3, rest("id")).otherwise(rest(col("id") + 1))),
    ]


@case()
def udf_of_literals_and_nulls(s):
    plus = series("double", lambda x, y: x + y)
    null = s.t.selectExpr("if(id % 2 = 0, null, id) n", "cast(null as string) none", "id")
    return [
        s.t.select(plus(functions.lit(1), "half")),
        null.select(series("int", lambda x: x)("n"), series("string", lambda x: x)("none")),
        null.select(
            arrays("long", lambda x: x)("n"), values("long", lambda x: x)("n"), plus("n", "id")
        ),
    ]


@case()
def udf_of_every_type(s):
    return [
        s.typed.select(*(made(kind, lambda x: x)(name) for name, kind in s.typed.dtypes))
        for made in (arrays, values, series)
    ]


def _udf_that_fails(function: Any) -> Case:
    return lambda s: [
        s.one.select(series("double", function)("half")),
        s.one.select(arrays("double", function)("half")),
    ]


for name, failing in {
    "udf_that_raises": lambda x: (_ for _ in ()).throw(ValueError(f"of {len(x)} rows")),
    "udf_that_loses_a_row": lambda x: x[:-1],
    "udf_that_ends_its_process": lambda x: os._exit(3),
}.items():
    CASES[name] = _udf_that_fails(failing), {SIMPLIFIED: name == "udf_that_raises"}

for number, function in enumerate(mapped.ITERATORS):

    def of_iterators(s, function=function, beside=("*",)[: number % 2]):
        return [
            s.one.select(*beside, arrays_iterator("long", lambda b: function(b))("id")),
            s.one.select(
                *beside, series_iterator("long", lambda b: mapped.of_series(function)(b))("id")
            ),
            s.t.where("id < 0").select(
                *beside, arrays_iterator("long", lambda b: function(b))("id")
            ),
        ]

    CASES[f"iterators_{function.__name__}"] = of_iterators, {}


@case({ROWS: 40})
def iterators_of_tuples_and_structs(s):
    def joins(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for first, second in list(batches):
            yield first + second

    def splits(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            for part in (batch[:17], batch[17:]):
                yield pd.DataFrame({"n": part, "twice": part * 2})

    return [
        s.t.select("*", functions.pandas_udf(joins, "double")("half", "id")),
        s.t.select("*", functions.pandas_udf(splits, "n long, twice long")("id")),
    ]


@case()
def values_of_all_sorts(s):
    less = values("double", lambda x, y: x - y)
    once = values("long", lambda x: None if x % 5 == 0 else x + 1)
    columns = [
        *(
            once("id"),
            values("string", lambda text: text * 2)("text"),
            less(y=col("id"), x=col("half")),
        ),
        values("a long, b string", lambda x: {"a": x, "b": str(x)})("id"),
        values("array<long>", lambda x: [x, None])("id"),
        *(less(less("id", "half"), "half"), once(once(col("id") + 1))),
    ]
    return [
        s.t.select("*", *columns),
        s.t.select(columns[0]),
        s.t.select(columns[0], less("id", "half")),
    ]


@case(
    {
        "spark.sql.execution.pythonUDF.arrow.enabled": True,
        "spark.sql.execution.pythonUDF.arrow.concurrency.level": 2,
    }
)
def values_that_spark_gives_to_arrow(s):
    return s.t.select("id", functions.udf(lambda x: x * 2.5, "double")("half"))


# --- groups -------------------------------------------------------------------------------------


GROUPED = "k long, n long, of string"


@case()
def groups_of_arrow(s):
    def counts(key: Any, table: pa.Table) -> pa.Table:
        return pa.table({"k": [key[0].as_py()], "n": [table.num_rows], "of": [mapped.sizes(table)]})

    def batches(key: Any, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield pa.record_batch({"k": [key[0].as_py()], "n": [part.num_rows], "of": ["part"]})

    def stops(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = next(parts)
        yield pa.record_batch({"k": part.column("k"), "n": part.column("id"), "of": part["text"]})

    def nothing(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter([])

    def raises(table: pa.Table) -> pa.Table:
        if table.column("k")[0].as_py() == 3:
            raise ValueError("of the third group")
        return pa.table({"k": [0], "n": [0], "of": ["before"]})

    each = (counts, batches, stops, nothing, raises)
    return [s.grouped.applyInArrow(function, GROUPED) for function in each]


@case()
def groups_of_pandas(s):
    def counts(key: Any, table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"of": table["text"].max(), "k": key[0], "n": [len(table)]})

    def parts(key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in frames:
            yield pd.DataFrame({"k": key[0], "n": [len(part)], "of": "part"})

    return [
        s.grouped.applyInPandas(function, GROUPED)
        for function in (counts, parts, lambda t: pd.DataFrame())
    ]


@case({"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": False})
def columns_of_groups_by_place(s):
    return [
        s.grouped.applyInArrow(
            lambda t: pa.table({"a": t["k"], "b": t["id"], "c": t["text"]}), GROUPED
        ),
        s.grouped.applyInPandas(
            lambda t: pd.DataFrame({"a": t["k"], "b": t["id"], "c": t["text"]}), GROUPED
        ),
    ]


def _by(expressions: list[str]) -> Case:
    def by(s: Given) -> Any:
        keys = [functions.expr(each) for each in expressions]
        keyed = s.t.limit(60).selectExpr(
            "id % 7 k", "id", "half", "if(id % 5 = 0, null, text) text"
        )
        return [
            keyed.groupBy(*keys).applyInArrow(lambda table: table, keyed.schema),
            keyed.groupBy(*keys).applyInPandas(lambda table: table, keyed.schema),
            keyed.where("id < 0").groupBy(*keys).applyInArrow(lambda t: t, keyed.schema),
        ]

    return by


for keys in ([], ["k"], ["k", "text"], ["id % 3"]):
    CASES[f"groups_by_{'_and_'.join(keys) or 'nothing'}"] = _by(keys), {}


@case({ROWS: 100_000, WHOLE_STAGE: False})
def group_that_is_larger_than_the_rings(s):
    uneven = s.spark.range(50_000, numPartitions=1).selectExpr(
        "if(id < 5, 0, 1) k", "id", "repeat('x', 300) text"
    )
    same = uneven.groupBy("k").applyInArrow(lambda table: table, uneven.schema)
    return same.selectExpr("count(*)", "sum(id * k)", "sum(length(text))")


COGROUPED = "k long, n long, m long, of string"


@case()
def cogroups_of_arrow(s):
    def counts(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
        rows = {"n": [left.num_rows], "m": [right.num_rows]}
        return pa.table(
            {"k": [key[0].as_py()], **rows, "of": [f"{mapped.sizes(left)} {mapped.sizes(right)}"]}
        )

    def takes_left(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"k": left["k"], "n": left["id"], "m": left["id"], "of": left["text"]})

    def raises(left: pa.Table, right: pa.Table) -> pa.Table:
        raise ValueError(f"of {left.num_rows} and {right.num_rows} rows")

    both = s.grouped.cogroup(s.other)
    return [both.applyInArrow(each, COGROUPED) for each in (counts, takes_left, raises)]


@case()
def cogroups_of_pandas(s):
    def counts(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        sizes = {"n": [len(left)], "m": [len(right)]}
        return pd.DataFrame({"k": key[0], **sizes, "of": str(list(left) + list(right))})

    return s.grouped.cogroup(s.other).applyInPandas(counts, COGROUPED)


# --- aggregates ---------------------------------------------------------------------------------


@case()
def aggregates(s):
    mean = series("double", lambda x: x.mean(), float)
    both = series("string", lambda x, y: f"{x.max()} {y.min()}", str)
    total = arrays("long", lambda x: pc.sum(x), pa.Scalar)
    third = functions.expr("id % 3")
    keyed = s.t.selectExpr("id % 7 k", "*")
    by = keyed.groupBy("k")
    return [
        by.agg(mean("id"), both("id", "text")),
        by.agg(both(y="text", x="id").alias("of")),
        keyed.groupBy(third).agg(mean(third + 1) + third, third * 2),
        keyed.agg(mean("id"), mean(col("id") + 1)),
        keyed.where("id < 0").agg(mean("id")),
        keyed.where("id < 0").groupBy("k").agg(mean("id")),
        keyed.groupBy("k", "text").agg(total("id")).where("text > '33'"),
        by.agg(mean(series("int", lambda x: x * 2)("half"))),
        by.agg(mean("id").alias("m")).where("m > 174").orderBy("m"),
    ]


@case()
def aggregates_of_iterators(s):
    parts = series_iterator("double", lambda b: sum(len(x) * 1000 + x.iloc[0] for x in b), float)
    first = arrays_iterator("long", lambda batches: len(next(batches)), int)
    by = s.t.groupBy((col("id") % 7).alias("k"))
    return [by.agg(parts("id")), by.agg(first("id"))]


@case()
def aggregates_that_fail(s):
    raises = series("long", lambda x: [][len(x)], int)
    mean = series("double", lambda x: x.mean(), float)
    return [
        s.grouped.agg(raises("id")),
        lambda: s.t.agg(mean("id"), functions.sum("id")).collect(),
    ]


# --- Spark's settings for its workers, and their ends ---------------------------------------------


@case()
def context_broadcast_and_accumulator(s):
    context = s.spark.sparkContext
    told, seen = context.broadcast({"k": 5}), context.accumulator(0)
    (s.folder / "side.txt").write_text("of a file")
    context.addFile(str(s.folder / "side.txt"))
    context.setLocalProperty("shmring.property", "seen")

    def tells(batches):
        from pyspark import SparkFiles, TaskContext

        task = TaskContext.get()
        for batch in batches:
            seen.add(batch.num_rows)
        text = Path(SparkFiles.get("side.txt")).read_text()
        of_task = f"{task.partitionId()} {task.attemptNumber()} {task.cpus()} {task.resources()}"
        yield pa.record_batch(
            {"n": [f"{text} {of_task} {task.getLocalProperty('shmring.property')}"]}
        )

    def query():
        rows = s.t.mapInArrow(tells, "n string").collect()
        s.t.select(series("long", lambda x: x + told.value["k"])("id")).collect()
        return rows, seen.value

    return query


@case()
def environment_of_a_function(s):
    def tells(batches):
        names = ("OMP_NUM_THREADS", "SPARK_REUSE_WORKER", "SPARK_AUTH_SOCKET_TIMEOUT", "PYTHONPATH")
        of_names = [str(os.environ.get(name)) for name in names]
        yield pa.record_batch({"n": [os.getcwd(), *of_names, str(sys.path), str(sys.stdin.read())]})

    return s.one.mapInArrow(tells, "n string")


@case()
def barrier(s):
    def gathers(batches):
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        for _ in batches:
            pass
        yield pa.record_batch({"n": [str(sorted(context.allGather(str(context.partitionId()))))]})

    return [
        s.t.mapInArrow(gathers, "n string", barrier=True),
        s.t.mapInPandas(mapped.of_frames(gathers), "n string", barrier=True),
    ]


@case()
def output_and_deep_recursion(s):
    def prints(batches):
        for batch in batches:
            print("to stdout", batch.num_rows, flush=True)
            yield batch

    def recurses(batches):
        return recurses(batches)

    return [s.t.mapInArrow(prints, s.t.schema), s.one.mapInArrow(recurses, s.t.schema)]


def kinds_of_all_sorts(s: Given) -> list[DataFrame]:
    """Few of each kind, for options."""
    few = s.t.limit(30).selectExpr("id % 3 k", "*")
    mean = series("double", lambda x: x.mean(), float)
    return [
        few.mapInPandas(lambda frames: frames, few.schema),
        few.select(
            "*", series("double", lambda x: x / 2)("half"), arrays("long", lambda x: x)("id")
        ),
        few.groupBy("k").applyInPandas(lambda frame: frame[["k"]], "k long"),
        few.groupBy("k").agg(mean("half")).orderBy("k"),
        few.select(values("int", lambda x: 7 // (x - 40))("id")),
    ]


for name, options in {
    "without_whole_stage_code": {WHOLE_STAGE: False, ADAPTIVE: False},
    "without_ansi": {"spark.sql.ansi.enabled": False},
    "with_safe_conversion": {"spark.sql.execution.pandas.convertToArrowArraySafely": True},
    "with_legacy_conversion": {
        "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": True
    },
    "with_int_extensions": {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": True},
}.items():
    CASES[f"kinds_{name}"] = kinds_of_all_sorts, options


@case({"spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": False})
def iterables_that_are_no_iterators(s):
    return s.one.mapInArrow(lambda batches: list(batches), s.t.schema)


@case({"spark.sql.execution.pyspark.udf.hideTraceback.enabled": True})
def settings_that_an_rdd_keeps(s):
    """Its tasks are of no query of Spark's, and have the settings only while they begin."""

    def query():
        s.spark.conf.set(ROWS, 20)
        try:
            lengths = s.one.mapInArrow(mapped.counts, "n long").rdd
            failing = s.one.mapInArrow(mapped.raises, s.t.schema).rdd
        finally:
            s.spark.conf.set(ROWS, 50)
        try:
            failing.collect()
        except Exception as error:
            return lengths.collect(), said(error)

    return query


@case({"spark.sql.pyspark.udf.profiler": "perf"})
def profiled(s):
    def query():
        s.spark.profile.clear()
        rows = s.t.select(series("long", lambda x: x + 1)("id")).collect()
        results = s.spark._profiler_collector._perf_profile_results
        return rows, [stats.total_calls > 0 for stats in results.values()]

    return query


@case()
def workers_that_are_not_used_again(s):
    def query():
        conf = s.spark.sparkContext._jsc.sc().conf()
        conf.set("spark.python.worker.reuse", "false")
        try:
            return s.t.mapInArrow(mapped.counts, "n long").collect()
        finally:
            conf.set("spark.python.worker.reuse", "true")

    return query


# --- both ways ----------------------------------------------------------------------------------


RARE = (
    *("answers_for_", "kinds_with_", "groups_by_k", "every_type_without", "sizes_of_rows_0"),
    *("sizes_of_nested", "sizes_of_file_0", "udf_that_e", "iterators_gives", "iterators_l"),
    *("values_that", "profiled", "zone", "aggregates_of", "columns_of_groups", "gives_"),
    *("raises_at_t", "ends_", "arrays_of_every_flat"),
)


@for_each(CASES, newer="aggregates_of_iterators", rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
