"""UDFs of a sidecar straight from the executor's JVM, beside the way through Python."""

from __future__ import annotations

import functools as tools
import re

import pyarrow as pa
import pytest
from direct import LOSES, ROWS, TYPES, columns_of, is_direct, metrics_of, plan_of
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions
from pyspark.sql.functions import col, expr
from unchanged import arrays

from shmring.spark import arrow_udf


def own_identity(kind):
    return arrays(kind, lambda column: column)


@pytest.fixture(scope="module")
def numbers(spark):
    return spark.range(2000, numPartitions=3).selectExpr(
        "id", "id * 10 tens", "if(id % 3 = 0, null, id) gaps", "repeat('x', cast(id % 50 as int)) s"
    )


def test_zone_of_arguments_is_that_of_each_run_of_a_plan(spark, served, set_option):
    types = arrow_udf(served("types"), "string")
    frame = spark.range(1).selectExpr("timestamp_seconds(id) at").select(types("at"))
    for zone in ("UTC", "Asia/Tokyo", "America/Lima"):
        set_option("spark.sql.session.timeZone", zone)
        assert f"timestamp[us, tz={zone}]" in frame.collect()[0][0]


def test_function_sees_names_and_types_of_its_arguments(served, numbers):
    name = served("types")
    frame = numbers.selectExpr("*", "timestamp_seconds(id) at", "struct(id, s) pair")
    types = arrow_udf(name, "string")

    calls = [
        types("id", col("gaps"), frame.s),
        types(col("id") + 1, "pair.s", "id"),
        types("id", "id"),
        types("tens", sum=col("id") + 1, at="at"),
    ]
    (seen,) = frame.select(*calls).distinct().collect()
    assert tuple(seen) == (
        "id int64, gaps int64, s string",
        "_0 int64, _1 string, id int64",
        "id int64, _1 int64",
        "tens int64, sum int64, at timestamp[us, tz=Europe/Berlin]",
    )
    renamed = frame.withColumnRenamed("id", "price").select(types("price"))
    assert renamed.first()[0] == "price int64"


def test_no_two_arguments_have_one_name(spark, served):
    """A keyword stays what it is: the function may have an argument of that name."""
    types = arrow_udf(served("types"), "string")
    frame = spark.range(3, numPartitions=1).selectExpr("id a", "cast(id as string) b", "id _1")
    calls = {
        "_0 string, b int64": types("b", b="a"),
        "_0 int64, _1 string, b string, a int64": types("a", "b", b="b", a="a"),
        "__0 int64, _0 string": types(col("a") + 1, _0="b"),
        "_1 int64, __1 int64": types("_1", col("a") + 1),
    }
    twice = types("_1", "_1")
    (seen,) = frame.select(*calls.values(), twice).distinct().collect()
    assert tuple(seen) == (*calls, "_1 int64, __1 int64")


@pytest.mark.long
def test_large_offsets_where_the_session_wants_them(spark, served, set_option):
    set_option("spark.sql.execution.arrow.useLargeVarTypes", True)
    name = served("identity", workers=2)
    frame = spark.range(300, numPartitions=2).selectExpr("id", *columns_of(TYPES, "some"))

    ours = frame.select("id", *(arrow_udf(name, frame.schema[c].dataType)(c) for c in TYPES))
    assert is_direct(ours, name)
    assert ours.collect() == frame.collect()
    seen = frame.select(arrow_udf(served("types"), "string")("text")).distinct().collect()
    assert seen == [("text large_string",)]


CASTS = [
    ("cast(id as int)", "long"),
    ("id", "int"),
    ("id", "double"),
    ("id", "string"),
    ("cast(id as string)", "long"),
    ("cast(id as decimal(10, 2))", "decimal(12, 3)"),
    ("cast(id as double)", "long"),
    ("cast(timestamp_seconds(id) as timestamp_ntz)", "timestamp"),
    ("struct(cast(id as int) a)", "a long"),
]


def test_answer_is_cast_to_the_return_type_as_spark_casts_its_own(spark, served):
    name = served("identity")
    frame = spark.range(100, numPartitions=2).selectExpr(
        *(f"if(id % 3 = 0, null, {column}) c{i}" for i, (column, _) in enumerate(CASTS))
    )

    def results(make):
        return frame.select(*(make(kind)(f"c{i}") for i, (_, kind) in enumerate(CASTS))).collect()

    assert results(lambda kind: arrow_udf(name, kind)) == results(own_identity)


def test_answer_that_would_lose_its_values_fails_the_job(spark, served):
    """An answer fails as it would from Spark's own function; test_calls.py has other losses."""
    name = served("identity")
    frame = spark.range(10, numPartitions=1).selectExpr("id / 4 x")
    with pytest.raises(Exception, match=rf"{LOSES}|cannot become the \w+ that the UDF"):
        frame.select(arrow_udf(name, "long")("x")).collect()
    with pytest.raises(Exception, match=LOSES):
        frame.select(own_identity("long")("x")).collect()


def test_udf_beside_other_columns_and_in_sql(spark, served, numbers):
    name = served("double")
    numbers.createOrReplaceTempView("numbers")
    spark.udf.register("doubled", arrow_udf(name, "long"))
    rows = spark.sql("select id, doubled(tens) t from numbers where doubled(id) > 3990").collect()
    assert [tuple(r) for r in rows] == [(i, 20 * i) for i in range(1996, 2000)]


def test_udf_is_named_after_its_sidecar(spark, name):
    assert spark.range(1).select(arrow_udf(name, "long")("id")).columns == [f"{name}(id)"]


def test_udf_that_is_not_deterministic_keeps_its_names(spark, served):
    name = served("types")
    frame = spark.range(10).select(arrow_udf(name, "string").asNondeterministic()("id"))
    assert frame.first()[0] == "id int64"
    assert is_direct(frame, name)


def test_only_the_arguments_are_sent_and_read(spark, served, numbers, tmp_path):
    name = served("double")
    wide = numbers.selectExpr("*", "repeat('y', 1000) y")
    wide.write.parquet(str(tmp_path / "wide"))
    frame = spark.read.parquet(str(tmp_path / "wide")).select(arrow_udf(name, "long")("tens"))
    assert frame.agg(expr("sum(`" + frame.columns[0] + "`)")).first()[0] == 20 * sum(range(2000))
    assert "ReadSchema: struct<tens:bigint>" in plan_of(frame)
    beside = wide.select("y", arrow_udf(name, "long")("tens"))
    assert len(beside.collect()) == 2000
    assert metrics_of(beside)["answerBytes"] < 2000 * 100


@pytest.mark.long
def test_rows_that_are_kept_beside_large_ones_bound_a_batch(spark, served):
    name = served("double", slots=4096)
    rows = [(i, "x" * 20_000) for i in range(300)]
    frame = spark.createDataFrame(rows, "id long, large string").coalesce(1)
    result = frame.select("large", arrow_udf(name, "long")("id").alias("d"))
    assert [(row.d, len(row.large)) for row in result.collect()] == [
        (2 * i, 20_000) for i in range(300)
    ]
    assert metrics_of(result)["requests"] > 20


def test_functions_of_others_are_left_to_spark(spark, served):
    """A function around ours has its name, and does something else."""
    name = served("identity")
    inner = arrow_udf(name, "long").func

    @tools.wraps(inner)
    def run(columns):
        for column in inner(columns):
            yield pa.compute.add(column, 1)

    run.__annotations__ = inner.__annotations__
    frame = spark.range(10).select(functions.arrow_udf(run, returnType="long")("id"))
    assert not is_direct(frame, name)
    with pytest.raises(Exception, match=f'sidecar "{name}": Spark.s Python workers send it'):
        frame.collect()
    mixed = spark.range(10).select(arrow_udf(name, "long")(own_identity("long")("id")))
    assert [row[0] for row in mixed.collect()] == list(range(10))


def test_types_that_no_sidecar_has_are_named_and_stay_beside_the_arguments(spark, served):
    name = served("identity")
    frame = spark.createDataFrame([(i, Vectors.dense([i, 0.5])) for i in range(20)], ["id", "v"])
    for udf, columns, which in (
        (arrow_udf(name, "long"), ("id", "v"), 'column "v" of the type'),
        (arrow_udf(name, frame.schema["v"].dataType), ("id",), f'column "{name}" of the type'),
    ):
        with pytest.raises(Exception, match=f'sidecar "{name}": a UDF cannot have {which}'):
            frame.select(udf(*columns)).collect()
    beside = frame.select(arrow_udf(name, "long")("id"), "v")
    assert is_direct(beside, name)
    assert beside.collect() == frame.collect()


def test_empty_partitions_limits_and_joins(served, numbers):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    frame = numbers.select("id", double("id").alias("d"))
    assert frame.where("id < 0").collect() == []
    assert [tuple(row) for row in frame.limit(3).collect()] == [(0, 0), (1, 2), (2, 4)]
    few = frame.where("id = 7")
    assert [tuple(row) for row in few.collect()] == [(7, 14)]
    twin = frame.withColumnRenamed("id", "other").withColumnRenamed("d", "e")
    assert frame.join(twin, expr("d = other")).count() == 1000


# --- several UDFs of one sidecar: one request a batch, and one answer ----------------------------


@pytest.fixture(params=["rows", "columns"])
def either(request, numbers):
    """Return a frame that the operator gets as rows, or as columns."""
    if request.param == "columns":
        frame = numbers.cache()
        frame.count()
        yield frame
        frame.unpersist()
    else:
        yield numbers


def nodes_of(frame, name):
    return plan_of(frame).count(f"Sidecar {name}")


@pytest.mark.parametrize("nulls", ["none", "some"])
def test_results_of_every_type_at_once_are_those_of_sparks_own(spark, served, set_option, nulls):
    name = served("identity", workers=2)
    set_option(ROWS, 70)
    frame = spark.range(300, numPartitions=2).selectExpr("id", *columns_of(TYPES, nulls))

    def results(make):
        return frame.select("id", *(make(frame.schema[c].dataType)(c) for c in TYPES))

    ours = results(lambda kind: arrow_udf(name, kind))
    assert nodes_of(ours, name) == 1
    assert ours.collect() == results(own_identity).collect()


def test_shared_arguments_nulls_and_different_types(served, either):
    name = served("total", workers=2)
    pairs = [("id", "tens"), ("tens", "gaps"), ("id", "tens"), ("gaps", "gaps"), ("id", "gaps")]
    kinds = ["long", "double", "string", "decimal(22, 2)", "long"]
    calls = list(zip(kinds, pairs, strict=True))
    ours = either.select("s", *(arrow_udf(name, kind)(*pair) for kind, pair in calls), "id")
    assert nodes_of(ours, name) == 1
    sums = (f"cast(ifnull({a}, 0) + ifnull({b}, 0) as {kind})" for kind, (a, b) in calls)
    assert ours.collect() == either.selectExpr("s", *sums, "id").collect()


def test_batch_is_one_request_with_each_argument_once(served, either):
    name = served("total", workers=2)
    total = arrow_udf(name, "long")
    one = either.select(total("id", "tens"))
    three = either.select(total("id", "tens"), total("tens", "id"), total("id"))
    found = []
    for frame in (one, three):
        assert len(frame.collect()) == 2000
        found.append(metrics_of(frame))
    assert [metrics["requests"] for metrics in found] == [3, 3]
    assert found[1]["requestBytes"] < found[0]["requestBytes"] + 3 * 1000
    assert found[1]["answerBytes"] > 2 * found[0]["answerBytes"]


def test_same_call_twice_and_of_functions_that_are_not_deterministic(served, numbers):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    once = double.asNondeterministic()
    frame = numbers.select(double("id"), double("id"), once("id"), once("id"))
    assert [tuple(row) for row in frame.collect()] == [(2 * i,) * 4 for i in range(2000)]
    assert nodes_of(frame, name) == 1


def test_results_of_each_other_need_a_request_of_their_own(served, numbers):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    frame = numbers.select(
        double("id"), double(double("id")), double(double(double("tens"))), double("gaps"), "s"
    )
    assert [tuple(row)[:4] for row in frame.collect()] == [
        (2 * i, 4 * i, 80 * i, 2 * i if i % 3 else None) for i in range(2000)
    ]
    assert nodes_of(frame, name) == 3


def columns_below(frame):
    """Return the columns that the topmost sidecar's node gets."""
    plan = frame._jdf.queryExecution().executedPlan()
    while not plan.nodeName().startswith("Sidecar"):
        plan = plan.children().head()
    columns = plan.children().head().output()
    return [columns.apply(i).name() for i in range(columns.size())]


def test_columns_that_only_one_of_two_steps_takes_end_there(spark, serve, name):
    serve("identity")
    frame = spark.range(2000, numPartitions=2).selectExpr("id", "repeat('x', 50) s", "-id n")
    same, number = arrow_udf(name, "string"), arrow_udf(name, "long")
    twice = frame.select(same(same("s")), "id", number("n"))
    assert [tuple(row) for row in twice.collect()] == [("x" * 50, i, -i) for i in range(2000)]
    assert len(columns_below(twice)) == 3
    assert "id" in columns_below(twice)


def test_explain_says_what_each_function_is_given(spark, serve, name):
    total = arrow_udf(name, "long")
    frame = spark.range(3).selectExpr("id", "2 * id d")
    text = plan_of(frame.select(total("id", b="d"), total("d"), total(col("id") + 1, "d")))
    one = r"\w+#\d+L"
    called = rf"{one}: \(id#\d+L AS id, d#\d+L AS b\), {one}: \(d#\d+L AS d\)"
    computed = rf"{one}: \(\(id#\d+L \+ 1\) AS _0, d#\d+L AS d\)"
    assert re.search(rf"udf, through\({name}, .*\), \[{called}, {computed}\]", text), text


def test_row_whose_arguments_or_results_fit_no_message_says_what_to_set(spark, serve, name):
    serve("identity", slots=1024)
    frame = spark.range(1).selectExpr("repeat('x', 100000) a", "repeat('y', 100000) b")
    same = arrow_udf(name, "string", reply_slots=1024)
    assert len(frame.select(same("a")).collect()) == 1
    with pytest.raises(Exception, match="may have") as caught:
        frame.select(same("a"), same("b")).collect()
    assert re.search(
        rf'sidecar "{name}", ring of 1024 slots: 1 rows need at least \d+ bytes, a message may '
        r"have 153300; make it larger with `shmring sidecar --slots 2048`.*arguments of UDFs",
        str(caught.value),
    )
    with pytest.raises(Exception, match="may have") as caught:
        frame.select(same("a"), same(x=col("a"))).collect()
    text = str(caught.value)
    assert f'sidecar "{name}" raised' in text
    assert re.search(
        r"one row needs \d+ bytes, a message may have \d+; make it larger with "
        r"reply_slots=2048 of through\(\), the UDF",
        text,
    )
    assert "the results of 2 UDFs for a row go as one message: select fewer at a time" in text


def test_sidecars_in_turn_are_asked_once_each(served, numbers):
    one, other = served("double", workers=2), served("as_text")
    double, text = arrow_udf(one, "long"), arrow_udf(other, "string")
    frame = numbers.select(double("id"), text("id"), double("tens"), text(double("id")), "id")
    assert [tuple(row) for row in frame.collect()] == [
        (2 * i, f"{i}", 20 * i, f"{2 * i}", i) for i in range(2000)
    ]
    assert nodes_of(frame, f"{one} ") == 1
    assert nodes_of(frame, f"{other} ") == 1


@pytest.mark.long
def test_more_calls_than_a_request_may_have(spark, served):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    frame = spark.range(3, numPartitions=1).select(*(double(col("id") + i) for i in range(257)))
    assert nodes_of(frame, name) == 2
    assert [tuple(row) for row in frame.collect()] == [
        tuple(2 * (i + k) for k in range(257)) for i in range(3)
    ]
