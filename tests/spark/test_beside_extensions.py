"""Nodes over rings beside other extensions, whose rules change plans after shmring's have run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import FUNCTIONS
from unchanged import ADAPTIVE, arrays

EXECUTION = "org.apache.spark.sql.execution"


@pytest.fixture
def plan(spark, set_option, tmp_path) -> Any:
    """The plan of a UDF over columns of a file, whose node gives columns."""
    set_option(ADAPTIVE, False)
    set_option(FUNCTIONS, "on")
    rows = spark.range(900, numPartitions=2).selectExpr("id", "id * 0.5 half", "string(id) text")
    rows.write.parquet(str(tmp_path / "rows"))
    added = arrays("double", lambda x: pc.add(x, pa.scalar(1.0)))
    query = spark.read.parquet(str(tmp_path / "rows")).select("*", added("half"))
    return query._jdf.queryExecution().executedPlan()


def _replaced(spark: Any, plan: Any, name: str, make: Any) -> Any:
    """The plan as a rule leaves it that puts another node at the place of each of this class."""
    if plan.getClass().getSimpleName() == name:
        return make(plan)
    below = [plan.children().apply(i) for i in range(plan.children().size())]
    changed = [_replaced(spark, child, name, make) for child in below]
    convert = spark._jvm.scala.jdk.javaapi.CollectionConverters
    return plan.withNewChildren(convert.asScala(changed).toList())


def _classes(plan: Any) -> list[str]:
    below = [plan.children().apply(i) for i in range(plan.children().size())]
    return [plan.getClass().getSimpleName(), *(name for each in below for name in _classes(each))]


def _found(plan: Any, name: str) -> Any:
    """The topmost node of this class, in a plan whose nodes have one child each."""
    while plan.getClass().getSimpleName() != name:
        plan = plan.children().apply(0)
    return plan


def _rows(plan: Any) -> list[str]:
    return sorted(row.toString() for row in plan.executeCollect())


def test_rule_that_puts_rows_below_a_node_that_gives_columns(spark, plan):
    to_rows = getattr(spark._jvm, f"{EXECUTION}.ColumnarToRowExec")
    changed = _replaced(spark, plan, "FileSourceScanExec", to_rows)
    assert "ColumnarToRowExec" in _classes(changed)
    assert _rows(changed) == _rows(plan)


def test_rule_that_replaces_sparks_conversions_to_rows_leaves_those_of_answers(plan):
    """Comet replaces them by a node that takes its own columns alone."""
    assert "ColumnsToRowsExec" in _classes(plan)
    assert "ColumnarToRowExec" not in _classes(plan)
    assert "ColumnarToRow" in plan.toString()


def test_rule_that_puts_a_conversion_to_rows_over_a_node_that_gives_columns(spark, plan):
    """Comet does so where it gives a stage back to Spark (transitionRevert)."""
    answers = _found(plan, "ColumnsToRowsExec")
    to_rows = getattr(spark._jvm, f"{EXECUTION}.ColumnarToRowExec")
    convert = spark._jvm.scala.jdk.javaapi.CollectionConverters
    changed = answers.withNewChildren(convert.asScala([to_rows(_found(plan, "OfUdfs"))]).toList())
    assert _rows(changed) == _rows(answers)


def test_metrics_can_be_carried_into_tasks(spark, plan):
    """Comet's node of metrics holds those of the nodes below it."""
    utils = getattr(spark._jvm, "org.apache.commons.lang3.SerializationUtils")
    assert utils.serialize(_found(plan, "OfUdfs").metrics())
