"""UDTFs do over rings what they do over the socket: a table of cases."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from direct import ROWS
from pyspark.sql import DataFrame, functions
from pyspark.sql.functions import (
    SkipRestOfInputTableException,
    col,
    lit,
)
from unchanged import (
    ADAPTIVE,
    LARGE,
    MOST_BYTES,
    WHOLE_STAGE,
    Cases,
    Given,
    adds_to,
    compare,
    for_each,
    outcome,
    way_of,
)

CASES: Cases = {}
case = adds_to(CASES)

LEGACY = "spark.sql.legacy.execution.pythonUDTF.pandas.conversion.enabled"
SHUFFLED = "spark.sql.shuffle.partitions"


def _handler(evaluate: Any, terminate: Any) -> type:
    """A class that workers get by value: they do not find this module."""
    if isinstance(evaluate, type):
        return evaluate
    methods: dict[str, Any] = {"eval": lambda self, *given, **named: evaluate(*given, **named)}
    if terminate is not None:
        methods["terminate"] = lambda self: terminate()
    return type("Handler", (), methods)


def _rows(kind: Any, evaluate: Any, terminate: Any = None) -> Any:
    """A UDTF that takes values or rows: of a class, or of what its methods do."""
    return functions.udtf(_handler(evaluate, terminate), returnType=kind, useArrow=True)


def _batches(kind: Any, evaluate: Any, terminate: Any = None) -> Any:
    """The same for one that takes arrays or batches."""
    return functions.arrow_udtf(_handler(evaluate, terminate), returnType=kind)


def _beside(frame: DataFrame, function: Any, *names: str) -> DataFrame:
    """The rows of a frame, each beside what comes of some of its columns."""
    return frame.lateralJoin(function(*(col(name).outer() for name in names)))


def _keyed(s: Given) -> DataFrame:
    return s.t.selectExpr("id % 7 k", "*")


# --- values and rows ----------------------------------------------------------------------------


def of_values(s):
    class Sums:
        def __init__(self) -> None:
            self.n = self.sum = 0

        def eval(self, x: int) -> Iterator[Any]:
            self.n += 1
            self.sum += x
            for i in range(x % 3):
                yield self.sum, i

        def terminate(self) -> Iterator[Any]:
            yield self.n, -1
            yield self.sum, -2

    repeats = _rows("n long, text string", lambda x, y: ((i, y * i) for i in range(x % 4)))
    halves = _rows("half_of double", lambda x: [(x / 2,)] if x % 2 else None)
    return [
        _beside(s.t, repeats, "id", "text"),
        _beside(s.t.select("half", "id"), _rows("sum long, i int", Sums), "id"),
        _beside(_beside(s.t, halves, "id"), repeats, "id", "text").select("half", "n", "half_of"),
        s.t.lateralJoin(repeats(col("id").outer() + 1, lit("x"))),
        s.t.lateralJoin(repeats(col("id").outer(), col("id").outer())),
        _beside(s.t, repeats, "id", "text").select("n"),
        _beside(s.t, repeats, "id", "text").where("n > 1").groupBy("id").count().sort("id"),
        _beside(s.t, repeats, "id", "text").limit(7),
    ]


for name, options in {
    "tables_of_values": {},
    "tables_of_values_of_pandas": {LEGACY: True},
    "tables_of_values_in_small_batches": {ROWS: 3, MOST_BYTES: 40, WHOLE_STAGE: False},
    "tables_of_values_in_one_batch": {ROWS: 0, LARGE: True},
    "tables_of_values_not_adaptive": {ADAPTIVE: False},
}.items():
    CASES[name] = of_values, options


@case()
def tables_of_named_values(s):
    class Named:
        def eval(self, x: int, y: str = "default", **more: Any) -> Iterator[Any]:
            yield x, y, str(sorted(more.items()))

    named = _rows("x long, y string, more string", Named)
    id, text = col("id").outer(), col("text").outer()
    return [
        s.t.lateralJoin(named(y=text, x=id)),
        s.t.lateralJoin(named(id, z=text, a=lit(1))),
        s.t.lateralJoin(named(id)),
    ]


@case()
def tables_of_literals(s):
    pairs = _rows("a long, b string", lambda x, y: ((i, y) for i in range(x)))
    arrays = _batches("a long, b string", lambda x, y: [pa.table({"a": x, "b": y})])
    null = lit(None).cast("string")
    return [pairs(lit(3), lit("x")), pairs(lit(2), null), arrays(lit(3), lit("x"))]


def of_tables(s):
    class Counts:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def eval(self, row: Any) -> Iterator[Any]:
            self.rows.append(row["id"])
            if len(self.rows) % 10 == 0:
                yield row["id"], str(row)

        def terminate(self) -> Iterator[Any]:
            yield len(self.rows), str(self.rows)

    counts = _rows("n long, of string", Counts)
    table = _keyed(s).asTable
    return [
        counts(table()),
        counts(table().withSinglePartition()),
        counts(table().partitionBy("k")),
        counts(table().partitionBy("k").orderBy(col("id").desc())),
        counts(table().partitionBy(col("k") % 2, "k").orderBy("text")),
        counts(row=table().withSinglePartition().orderBy("half")),
        counts(_keyed(s).limit(9).asTable().partitionBy("k")).groupBy("n").count().sort("n"),
    ]


for name, options in {
    "tables_of_tables": {},
    "tables_of_tables_in_small_batches": {ROWS: 3, WHOLE_STAGE: False},
}.items():
    CASES[name] = of_tables, options


@case()
def tables_of_tables_and_values(s):
    class Scaled:
        def eval(self, factor: int, row: Any, text: str) -> Iterator[Any]:
            yield row["id"] * factor, text + row["text"]

    scaled = _rows("n long, text string", Scaled)
    return [
        scaled(lit(3), s.t.asTable(), lit("x")),
        scaled(lit(3), _keyed(s).asTable().partitionBy("k").orderBy("id"), lit("y")),
    ]


@case()
def tables_of_nothing(s):
    ends = [None, lambda: [(7,)], lambda: None, list]
    evals = [lambda x: None, lambda x: [], lambda x: iter(())]
    functions = [_rows("n long", one, end) for one in evals for end in ends]
    empty = s.t.where("id < 0").select("id")
    return [
        *(_beside(s.one, each, "id") for each in functions),
        *(functions[i](empty.asTable()) for i in (0, 2, 3)),
    ]


@case()
def tables_whose_rows_lie_beside_nothing(s):
    """Rows yielded at the end of an empty partition lie beside no row: Spark fails."""
    ends = _rows("n long", lambda x: [(x,)], lambda: [(-1,)])
    frames = [_beside(s.t.where("id < 60"), ends, "id"), ends(s.t.where("id < 0").asTable())]
    # Java leaves the text out once it has happened often.
    return [lambda frame=frame: "NullPointer" in outcome(frame)[0] for frame in frames]


@case()
def tables_of_every_type(s):
    same = _rows(s.typed.schema, lambda *values: [values])
    row = _rows(s.typed.schema, lambda row: [tuple(row)])
    batches = _batches(s.typed.schema, lambda batch: [pa.table(batch)])
    table = s.typed.asTable()
    return [row(table), _beside(s.typed, same, *s.typed.columns), batches(table)]


@case()
def tables_that_fail(s):
    def raises(x: int) -> Any:
        raise ValueError(f"of {x}")

    def later(x: int) -> Iterator[Any]:
        yield (x,)
        raise ValueError(f"after {x}")

    failing = [raises, later, lambda x: os._exit(3), lambda x: sys.exit("with a text"), lambda x: 1]

    class Cleans:
        def eval(self, x: int) -> Iterator[Any]:
            yield (x,)

        def cleanup(self) -> None:
            raise ValueError("of what cleans up")

    good = lambda x: [(x,)]  # noqa: E731
    return [
        _beside(s.one, _rows("n long", Cleans), "id"),
        *(_beside(s.one, _rows("n long", each), "id") for each in failing),
        *(_rows("n long", each)(s.one.select("id").asTable()) for each in failing[:2]),
        _batches("n long", raises)(s.one.select("id").asTable()),
        *(_beside(s.one, _rows("n long", good, lambda each=e: each(1)), "id") for e in failing),
        _rows("n long", lambda: [(1,)])(lit(1)),
    ]


@case()
def tables_that_skip(s):
    class Skips:
        def __init__(self) -> None:
            self.seen = 0

        def eval(self, row: Any) -> Iterator[Any]:
            self.seen += 1
            if self.seen > 4:
                raise SkipRestOfInputTableException("enough")
            yield row["id"], self.seen

        def terminate(self) -> Iterator[Any]:
            yield -1, self.seen

    class Values(Skips):
        def eval(self, x: int) -> Iterator[Any]:
            yield from super().eval({"id": x})

    skips, table = _rows("n long, seen int", Skips), _keyed(s).asTable
    return [
        skips(table()),
        skips(table().partitionBy("k").orderBy("id")),
        _beside(s.t, _rows("n long, seen int", Values), "id"),
    ]


@case()
def tables_of_udfs(s):
    twice = functions.udf(lambda x: x * 2, "long", useArrow=True)
    once = _rows("n long", lambda x: [(x,)])
    made = s.t.select("id", twice("id").alias("twice"))
    return [
        _beside(made, once, "twice"),
        _beside(s.t, once, "id").select("id", twice("n")),
        s.t.lateralJoin(once(twice(col("id").outer()))),
    ]


@case({"spark.sql.execution.pythonUDTF.arrow.enabled": True})
def tables_that_spark_gives_to_arrow(s):
    pairs = functions.udtf(_handler(lambda x: [(x, str(x))], None), returnType="n long, s string")
    return _beside(s.t, pairs, "id")


@case()
def tables_of_large_values(s):
    wide = _rows("wide string", lambda x: (("x" * 3_000_000,) for _ in range(3)))
    many = _rows("n long", lambda x: ((i,) for i in range(200_000)))
    length = _rows("n int", lambda text: [(len(text),)])
    few = s.t.limit(3)
    return [
        _beside(few, wide, "id").selectExpr("id", "length(wide)"),
        _beside(few, many, "id").groupBy("id").agg({"n": "sum"}).sort("id"),
        _beside(_beside(few, wide, "id"), length, "wide").select("n"),
    ]


@case({ROWS: 10_000})
def tables_of_many_rows(s):
    frame = s.spark.range(20_000, numPartitions=2)
    twice = _rows("n long", lambda x: [(x * 2,)], lambda: [(-1,)])
    return _beside(frame, twice, "id").selectExpr("sum(hash(*))", "count(*)", "max(id)")


# --- arrays and batches -------------------------------------------------------------------------


@case()
def tables_of_arrays(s):
    def adds(x: pa.Array, y: pa.Array) -> Iterator[pa.Table]:
        yield pa.table({"n": x, "sum": pc.add(pc.cast(x, "double"), pc.cast(y, "double"))})

    def scales(batch: pa.RecordBatch, x: pa.Array) -> Iterator[pa.Table]:
        yield pa.table({"n": pc.multiply(batch["id"], x), "sum": pc.cast(batch["half"], "double")})

    kind = "n long, sum double"
    return [
        _batches(kind, adds)(lit(1), lit(0.5)),
        _batches(kind, scales)(s.t.asTable(), lit(3)),
        _batches(kind, scales)(x=lit(3), batch=_keyed(s).asTable().partitionBy("k").orderBy("id")),
    ]


def of_batches(s):
    class Sizes:
        def __init__(self) -> None:
            self.rows = 0

        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            self.rows += batch.num_rows
            yield pa.table({"n": [batch.num_rows], "names": [str(batch.schema.names)]})

        def terminate(self) -> Iterator[pa.Table]:
            yield pa.table({"n": [self.rows], "names": ["all"]})

    def passes(batch: pa.RecordBatch) -> Iterable[pa.Table]:
        return [pa.table(batch.select(["id", "text"]))]

    sizes = _batches("n long, names string", Sizes)
    passing = _batches("id long, text string", passes)
    table = _keyed(s).asTable
    return [
        sizes(table()),
        sizes(table().withSinglePartition()),
        sizes(table().partitionBy("k").orderBy("id")),
        passing(table()),
        passing(table().partitionBy("k").orderBy(col("id").desc())),
    ]


CASES["tables_of_batches"] = of_batches, {}
CASES["tables_of_batches_in_small_batches"] = of_batches, {ROWS: 7, MOST_BYTES: 200}


# --- both ways ----------------------------------------------------------------------------------


RARE = (
    *("tables_of_values_o", "tables_of_values_in_one", "tables_of_values_not"),
    *("tables_of_tables_", "tables_of_batches_in"),
    *("tables_of_large", "tables_that_spark", "tables_that_fail", "tables_of_values_in_small"),
)


@for_each(CASES, rare=RARE)
def test_case(spark, set_option, tmp_path, name, live):
    set_option(SHUFFLED, 3)
    compare(name, way_of(spark, set_option, tmp_path, *CASES[name]), live=live)
