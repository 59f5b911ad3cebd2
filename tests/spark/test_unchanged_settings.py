"""Settings of Spark that change between the plan of a query and its run."""

from __future__ import annotations

import re
import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from direct import FUNCTIONS, plan_of
from pyspark.sql import Window, functions
from unchanged import arrays, arrays_iterator, outcome, series, values

# Setting that lets tracebacks show variables, also those of Spark's and shmring's own frames,
# which have others: a test of its own compares the user's.
LOCALS = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"
# Spark's own way refuses both limits together.
MOST_OUT = {
    "spark.sql.execution.arrow.maxRecordsPerOutputBatch",
    "spark.sql.execution.arrow.maxBytesPerOutputBatch",
}
# Settings of Arrow, pandas and Python's workers, and the zone of times, among all of SQLConf.
CHANGED = re.compile(
    rf"(?!{LOCALS})spark\.sql\.((legacy\.)?execution\.(arrow|pandas|python|pyspark)"
    r"|pyspark\.(jvmStacktrace|udf|worker)|session\.timeZone)"
)
# CHANGE: edit this for a new version of Spark
# Values of settings that are neither true nor false, which get the other value.
VALUES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": 7,
    "spark.sql.execution.arrow.maxBytesPerBatch": 300,
    "spark.sql.execution.arrow.compression.codec": "zstd",
    "spark.sql.execution.arrow.compression.zstd.level": 5,
    "spark.sql.execution.arrow.localRelationThreshold": "1k",
    "spark.sql.execution.arrow.maxRecordsPerOutputBatch": 3,
    "spark.sql.execution.arrow.maxBytesPerOutputBatch": 100,
    "spark.sql.execution.arrow.transformWithStateInPandas.maxRecordsPerBatch": 3,
    "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch": 3,
    "spark.sql.execution.pandas.structHandlingMode": "dict",
    "spark.sql.execution.pandas.udf.buffer.size": 4096,
    "spark.sql.execution.python.udf.buffer.size": 4096,
    "spark.sql.execution.python.udf.maxRecordsPerBatch": 3,
    "spark.sql.execution.python.udf.maxBytesPerBatch": 1000,
    "spark.sql.execution.pythonUDF.arrow.concurrency.level": 2,
    "spark.sql.execution.pyspark.python": sys.executable,
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": 600,
    "spark.sql.execution.pyspark.udf.tracebackDumpIntervalSeconds": 600,
    "spark.sql.pyspark.udf.profiler": "perf",
    "spark.sql.session.timeZone": "Asia/Kolkata",
}


def settings_of(spark: Any) -> dict[str, Any]:
    """Each setting with another value than it has; None: not known."""
    conf = getattr(spark._jvm.org.apache.spark.sql.internal, "SQLConf$")
    names = sorted(entry.key() for entry in getattr(conf, "MODULE$").getConfigEntries().toArray())
    others = {"true": "false", "false": "true"}
    return {
        name: VALUES.get(name) or others.get(spark.conf.get(name))
        for name in names
        if CHANGED.match(name) and spark.conf.isModifiable(name)
    }


@pytest.fixture(scope="module")
def make(spark) -> Any:
    """Makes a query of each kind of function; results tell types, sizes and errors."""
    frame = spark.range(40, numPartitions=2).selectExpr(
        *("id", "id % 3 k", "timestamp_seconds(id * 9999) at", "string(id) text"),
        *("cast(id as decimal(5, 1)) exact", "struct(id, string(id) name) both"),
    )

    one = frame.coalesce(1)  # with two tasks either could fail first

    def told(batch):
        return f"{batch.num_rows} {'; '.join(map(str, batch.schema.types))}"

    def of_batches(batches):
        for batch in batches:
            yield pa.record_batch({"n": [told(batch)]})

    def of_frame(group: pd.DataFrame) -> str:
        return f"{[*map(str, group.dtypes)]} {group.iloc[0].to_dict()} {len(group)}"

    def of_frames(frames):
        for each in frames:
            yield pd.DataFrame({"n": [of_frame(each)]})

    def other_order(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"b": [of_frame(group)], "a": ["1.5"]})

    def of_table(group):
        return pa.table({"n": pa.array([told(group)], group.schema.field("text").type)})

    def both(group, other):
        return pd.DataFrame({"n": [of_frame(group) + of_frame(other)]})

    def raises(x: pd.Series) -> pd.Series:
        secret = 17
        raise ValueError(f"of {secret - x.iloc[0] * 0}")

    class Handler:
        def eval(self, at, text):
            yield f"{at!r} {text!r}", 7

    lengths = arrays_iterator("long", lambda them: (pa.array([len(x)] * len(x)) for x in them))
    table = functions.udtf(Handler, returnType="n string, t tinyint", useArrow=True)
    groups = frame.groupBy("k")
    mean = series("string", lambda x: f"{x.dtype} {len(x)}", str)

    def queries() -> list[Any]:
        return [
            frame.mapInArrow(of_batches, "n string"),
            frame.mapInPandas(of_frames, "n string"),
            one.mapInPandas(lambda _: [pd.DataFrame({"n": [1.0, 2.5]})], "n int"),
            frame.select(
                series("string", lambda x: x.map(lambda y: f"{x.dtype} {y}"))("at"),
                series("string", lambda x: pd.Series([f"{type(x)} {len(x)}"] * len(x)))("both"),
                arrays("string", lambda x: pa.array([f"{x.type} {len(x)}"] * len(x)))("text"),
            ),
            one.select(series("decimal(10, 2)", lambda x: x + 1)("id")),
            one.select(series("tinyint", lambda x: x * 1.5)("id")),
            frame.select(lengths("at")),
            frame.select(
                values("string", lambda x, y: f"{x!r} {y!r}")("both", "at"),
                values("string", lambda x: x)("id"),
                values("decimal(4, 1)", lambda x: x)("exact"),
            ),
            groups.applyInPandas(other_order, "a string, b string"),
            groups.applyInArrow(of_table, "n string"),
            groups.cogroup(frame.groupBy("k")).applyInPandas(both, "n string"),
            groups.agg(mean("exact")),
            frame.select(mean("at").over(Window.partitionBy("k").orderBy("id"))),
            frame.lateralJoin(table(functions.col("at").outer(), functions.col("text").outer())),
            one.select(series("long", raises)("id")),
        ]

    return queries


@pytest.fixture
def differences(spark, make, set_option) -> Any:
    """Pairs of unequal outcomes, on and off, of queries whose settings change after the plan."""

    def outcomes(switch: str, changed: dict[str, Any]) -> list[list[str]]:
        set_option(FUNCTIONS, switch)
        planned = make()
        for query in planned:
            assert ("over rings" in plan_of(query)) == (switch == "on"), plan_of(query)
        before = {name: spark.conf.get(name, None) for name in changed}
        for name, value in changed.items():
            set_option(name, value)
        found = [sorted(outcome(query)) for query in planned]
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
        return found

    def compare(changed: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
        pairs = zip(outcomes("on", changed), outcomes("off", changed), strict=True)
        return [pair for pair in pairs if pair[0] != pair[1]]

    return compare


def test_another_value_of_each_setting_is_known(spark):
    assert [name for name, value in settings_of(spark).items() if value is None] == []


@pytest.mark.long
def test_settings_that_change_together_after_the_plan(spark, differences):
    changed = settings_of(spark)
    for name in sorted(MOST_OUT.intersection(changed))[1:]:
        del changed[name]
    assert differences(changed) == []


@pytest.mark.parametrize("switch", ["on", "off"])
def test_both_limits_of_results_are_refused(make, set_option, switch):
    set_option(FUNCTIONS, switch)
    for name in MOST_OUT:
        set_option(name, VALUES[name])
    queries = make()
    for query in (queries[0], queries[3], queries[8]):
        (text,) = outcome(query, over_rings=switch == "on")
        assert "Both max records and max bytes of an Arrow output batch cannot" in text
    table = queries[-2]  # Spark's tasks of UDTFs do not look
    assert len(outcome(table, over_rings=switch == "on")) == 40


@pytest.mark.spark_version(since="4.3")
@pytest.mark.parametrize("switch", ["on", "off"])
def test_variables_in_tracebacks_that_are_wanted_after_the_plan(make, set_option, switch):
    set_option(FUNCTIONS, switch)
    raises = make()[-1]
    assert ("over rings" in plan_of(raises)) == (switch == "on")
    set_option(LOCALS, "true")
    (text,) = outcome(raises)
    assert "\n    secret = #\n" in text


@pytest.mark.long
def test_each_setting_that_changes_after_the_plan(spark, differences):
    found = {name: differences({name: value}) for name, value in settings_of(spark).items()}
    assert {name: pairs for name, pairs in found.items() if pairs} == {}
