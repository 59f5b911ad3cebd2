"""Several UDFs of one sidecar in a select: one request a batch, and one answer."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from direct import LOSES, ROWS, TYPES, ZONED, columns_of, is_direct, metrics_of, plan_of
from pyspark.sql import functions
from pyspark.sql.functions import col, expr

from shmring.sidecars import Sidecar
from shmring.spark import arrow_udf


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


@pytest.fixture(scope="module")
def numbers(spark):
    return spark.range(2000, numPartitions=3).selectExpr(
        "id", "id * 10 tens", "if(id % 3 = 0, null, id) gaps", "repeat('x', cast(id % 50 as int)) s"
    )


@pytest.fixture(params=["rows", "columns"])
def either(request, numbers):
    """Of which the operator has rows, or columns."""
    if request.param == "columns":
        frame = numbers.cache()
        frame.count()
        yield frame
        frame.unpersist()
    else:
        yield numbers


def own_identity(kind):
    def same(column):
        return column

    same.__annotations__ = {"column": pa.Array, "return": pa.Array}
    return functions.arrow_udf(same, returnType=kind)


def nodes_of(frame, name):
    return plan_of(frame).count(f"Sidecar {name}")


def test_results_of_every_type_at_once_are_those_of_sparks_own(spark, served, set_option):
    name = served("identity", workers=2)
    set_option(ROWS, 70)
    frame = spark.range(300, numPartitions=2).selectExpr("id", *columns_of(TYPES, "some"))

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
    assert [metrics["answers"] for metrics in found] == [3, 3]
    assert found[1]["requestBytes"] < found[0]["requestBytes"] + 3 * 1000
    assert found[1]["answerBytes"] > 2 * found[0]["answerBytes"]


def test_same_call_twice_and_of_functions_that_are_not_deterministic(served, numbers):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    once = double.asNondeterministic()
    frame = numbers.select(double("id"), double("id"), once("id"), once("id"))
    assert [tuple(row) for row in frame.collect()] == [(2 * i,) * 4 for i in range(2000)]
    assert nodes_of(frame, name) == 1


def test_names_and_computed_arguments_are_each_calls_own(served, numbers):
    name = served("types")
    types = arrow_udf(name, "string")
    frame = numbers.select(
        types("id", "s"),
        types(price="id", text=col("s")),
        types(col("id") + 1, "id"),
        types("tens"),
    )
    (seen,) = frame.distinct().collect()
    assert tuple(seen) == (
        "id int64, s string",
        "price int64, text string",
        "_0 int64, id int64",
        "tens int64",
    )


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
    """What the topmost sidecar's node gets."""
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


def test_exception_of_one_call_fails_the_job_and_names_the_call(served, numbers):
    name = served("fail_on_seven")
    same = arrow_udf(name, "long")
    frame = numbers.coalesce(1).where("id > 7")
    fine = frame.select(same("id"), same("tens"))
    assert len(fine.collect()) == 1992
    bad = frame.select(same("id"), same(expr("id - 100").alias("x")), same("tens"))
    with pytest.raises(Exception, match="seven is not allowed") as caught:
        bad.collect()
    assert "in call 2 of the 3 of one request" in str(caught.value)
    assert len(fine.collect()) == 1992


def test_call_with_an_answer_of_another_type_fails_the_job(served, numbers):
    name = served("as_text")
    frame = numbers.coalesce(1).select(
        arrow_udf(name, "string")("id"), arrow_udf(name, "long")("id"), arrow_udf(name, "int")("s")
    )
    with pytest.raises(Exception, match=f"{LOSES}|cannot become the int32 that the UDF"):
        frame.collect()


def test_results_that_are_larger_than_the_ring_for_them(spark, served):
    name = served("identity", slots=4096)
    same = arrow_udf(name, "string", reply_slots=1024)
    frame = spark.range(300, numPartitions=1).selectExpr("id", "repeat('x', 2000) a", "'y' b")
    rows = frame.select("id", same("a"), same("b"), same("a")).collect()
    assert [(row[0], len(row[1]), row[2], len(row[3])) for row in rows] == [
        (i, 2000, "y", 2000) for i in range(300)
    ]


@pytest.mark.long
def test_more_calls_than_a_request_may_have(spark, served):
    name = served("double", workers=2)
    double = arrow_udf(name, "long")
    frame = spark.range(3, numPartitions=1).select(*(double(col("id") + i) for i in range(257)))
    assert nodes_of(frame, name) == 2
    assert [tuple(row) for row in frame.collect()] == [
        tuple(2 * (i + k) for k in range(257)) for i in range(3)
    ]


def test_sidecar_that_joins_requests_answers_all_calls(spark, name):
    with Sidecar("functions:total", name=name, max_batch_rows=4000, max_wait_ms=1):
        total = arrow_udf(name, "long")
        frame = spark.range(2000, numPartitions=2).selectExpr("id", "2 * id d")
        rows = frame.select(total("id", "d"), total("d"), "id").collect()
        assert is_direct(frame.select(total("id")), name)
        assert [tuple(row) for row in rows] == [(3 * i, 2 * i, i) for i in range(2000)]
