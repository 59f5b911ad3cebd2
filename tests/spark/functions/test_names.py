"""The order of an answer's columns, compared with Spark's own method of the same name."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from direct import way_fixtures, ways
from functions import ANSWERS, names
from pyspark.sql import functions

from shmring.spark import through

DECLARED = "id long, risk double, score double"
BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
REFUSED = "answered with other columns than"

# Answers that Spark accepts, although it then puts values under other columns' names.
REFUSED_THOUGH_SPARK_TAKES = {
    ("mapInArrow", "swapped"),
    ("mapInArrow", "no rows, swapped"),
    ("mapInArrow", "extra"),
}
METHODS = ("mapInArrow", "applyInArrow", "cogroups' applyInArrow")
# CHANGE: edit this for a new version of Spark
OWN = Path(__file__).parents[2] / "golden/spark/names.json"
way, path, method = way_fixtures(*METHODS)


def asked(spark, method, function, kind, declared=DECLARED):
    frame = spark.range(1, numPartitions=1).select("id", functions.lit(kind).alias("kind"))
    if method.startswith("map"):
        return getattr(frame, method)(function, declared)
    groups = frame.groupBy("id")
    if method.startswith("cogroups"):
        groups = groups.cogroup(frame.groupBy("id"))
    return getattr(groups, method.rpartition(" ")[2])(function, declared)


def own(method):
    """Spark's own function with the answer that its rows ask for; pickled by value."""
    if method.startswith("map"):
        return lambda batches: map(names, batches)
    if method.startswith("cogroups"):
        return lambda left, right: pa.Table.from_batches([names(left)])
    return lambda group: pa.Table.from_batches([names(group)])


def outcome(frame):
    try:
        return list(map(tuple, frame.collect()))
    except Exception as error:
        return str(error)


def kinds(method, by_name):
    """The answers to try: only of groups Spark has the option."""
    return list(ANSWERS) if by_name or not method.startswith("map") else ["swapped"]


def recorded(method, by_name):
    """Return the rows of Spark's own method by the kind of answer; None if Spark refuses it."""
    found = json.loads(OWN.read_text())[f"{method}, by {'name' if by_name else 'place'}"]
    return {kind: rows if rows is None else list(map(tuple, rows)) for kind, rows in found.items()}


@pytest.mark.parametrize("by_name", [True, False], ids=["", "by place"])
def test_columns_are_assigned_as_by_sparks_own_method(
    spark, served, path, set_option, method, by_name
):
    set_option(BY_NAME, by_name)
    name = served("names_of_both" if method.startswith("cogroups") else "names")
    theirs = recorded(method, by_name)
    # Cogroups go the way of groups, behind what the first ones show.
    for kind in kinds(method, by_name)[: 4 if method.startswith("cogroups") else None]:
        ours = outcome(asked(spark, method, through(name), kind))
        stricter = (method, kind) in REFUSED_THOUGH_SPARK_TAKES
        stricter = stricter or (
            not by_name and kind in ("swapped", "reordered", "no rows, swapped")
        )
        if path == "python":  # Spark itself looks at what comes
            assert isinstance(ours, str) if theirs[kind] is None else ours == theirs[kind], kind
        elif theirs[kind] is None or stricter:
            assert isinstance(ours, str), (kind, ours)
            assert REFUSED in ours, (kind, ours)
        else:
            assert ours == theirs[kind], kind


@pytest.mark.long
@pytest.mark.parametrize("by_name", [True, False], ids=["", "by place"])
@pytest.mark.parametrize("method", METHODS)
def test_what_was_recorded_is_what_spark_does(spark, set_option, method, by_name):
    set_option(BY_NAME, by_name)
    found = {}
    for kind in kinds(method, by_name):
        rows = outcome(asked(spark, method, own(method), kind))
        found[kind] = None if isinstance(rows, str) else rows
    assert found == recorded(method, by_name)


@pytest.mark.parametrize("way", ways("applyInArrow"), ids="-".join)
def test_what_is_wrong_with_the_names_is_all_told(spark, served, path, method):
    told = outcome(asked(spark, method, through(served("names")), "renamed"))
    wrong = "other names, or another number (expected id bigint, risk double, score double; got "
    assert wrong in told
    assert all(f"{name} " in told for name in ("score_v2", "risk_v2"))


@pytest.mark.parametrize("way", ways("applyInArrow"), ids="-".join)
def test_each_batch_of_an_answer_has_an_order_of_its_own(spark, served, path, method):
    name = served("two_orders")
    assert outcome(asked(spark, method, through(name), "")) == [(2, 0.5, -2.0)] * 4


@pytest.mark.parametrize("way", ways("applyInArrow"), ids="-".join)
def test_fields_of_a_struct_have_the_declared_names(spark, served, path, method):
    declared = "s struct<risk: double, score: double>"
    told = outcome(asked(spark, method, through(served("nested")), "", declared))
    assert "s is struct<risk_v2:double,score:double>, not struct<risk:double,score" in told


@pytest.mark.parametrize(
    "way", [("direct", "mapInArrow"), ("direct", "applyInArrow")], ids="-".join
)
def test_rows_without_columns_are_no_answer(spark, served, path, method):
    told = outcome(asked(spark, method, through(served("rows_without_columns")), ""))
    assert isinstance(told, str)
    assert "answered with" in told
