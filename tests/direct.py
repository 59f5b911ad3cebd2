"""Finds out which way a sidecar's rows went: straight from the JVM, or by Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DIRECT = "spark.shmring.direct"
FUNCTIONS = "spark.shmring.functions"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# CHANGE: edit this for a new version of Spark
# Spark's error for a cast that would lose values: the texts of 4.3 and of earlier versions.
LOSES = "MISMATCH|ArrowInvalid"
# Settings of a session whose rows go straight, in a time zone that shows wrong instants.
ZONED = {DIRECT: "true", "spark.sql.session.timeZone": "Europe/Berlin"}

# CHANGE: edit this for a new type between Spark and Arrow
# Each kind of type that the operator takes: flat types first.
TYPES = {
    "flag": "id % 2 = 0",
    "tiny": "cast(id % 100 as tinyint)",
    "small": "cast(-id as smallint)",
    "number": "cast(id as int)",
    "big": "id * 1000000007",
    "single": "cast(id / 4 as float)",
    "half": "id / 2",
    "exact": "cast(id as decimal(10, 2))",
    "wide": "cast(id as decimal(38, 10))",
    "text": "repeat('é', cast(id % 7 as int))",
    "bytes": "cast(repeat('b', cast(id % 300 as int)) as binary)",
    "day": "date_add(date'1960-01-01', cast(id as int))",
    "time": "timestamp_seconds(id - 500)",
    "local": "cast(timestamp_seconds(id) as timestamp_ntz)",
    "span": "make_dt_interval(0, 0, 0, id)",
    "list": "array(id, null, -id)",
    "texts": "array(array(cast(id as string)), array(), null)",
    "map": "map('k', id, cast(id as string), null)",
    "struct": "struct(id, array(cast(id as string)) inner, cast(id as decimal(5, 1)) d)",
    "deep": "array(struct(map(id, array(id)) m))",
}
NESTED = {"list", "texts", "map", "struct", "deep"}
FLAT = {column: text for column, text in TYPES.items() if column not in NESTED}
# Flat columns that a ring of Arrow batches may have.
RING = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "number": pa.int32(),
    "big": pa.int64(),
    "single": pa.float32(),
    "half": pa.float64(),
    "exact": pa.decimal128(10, 2),
    "text": pa.string(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
}


def columns_of(types: Mapping[str, str], nulls: str) -> list[str]:
    """Expressions that make a column of each type from `id`; of its values every third is null.

    Parameters
    ----------
    types : the expressions of the values, by the column
    nulls : none or all, where not "some" of the values are null
    """
    if nulls == "none":
        return [f"{text} {column}" for column, text in types.items()]
    return [
        f"if(id % 3 = {i % 3} or {nulls == 'all'}, null, {text}) {column}"
        for i, (column, text) in enumerate(types.items())
    ]


def own_identity() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function that Spark's own workers run, for batches or frames; pickled by value."""

    def identity(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    return identity


def ways(*methods: str) -> list[tuple[str, str]]:
    """How each method gets its rows to a sidecar: all but mapInArrow have but one way."""
    return [
        (path, method)
        for method in methods
        for path in ("direct", "python")
        if path == "direct" or method == "mapInArrow"
    ]


def way_fixtures(*methods: str) -> tuple[Any, Any, Any]:
    """Fixtures `way`, and of it `path` and `method`, for a module whose tests call these."""

    @pytest.fixture(params=ways(*methods), ids="-".join)
    def way(request: pytest.FixtureRequest) -> tuple[str, str]:
        return request.param

    @pytest.fixture
    def path(way: tuple[str, str], set_option: Callable[[str, Any], None]) -> str:
        set_option(DIRECT, way[0] == "direct")
        return way[0]

    @pytest.fixture
    def method(way: tuple[str, str]) -> str:
        return way[1]

    return way, path, method


def plan_of(frame: DataFrame) -> str:
    """Return the frame's plan as explain() shows it."""
    return _plan(frame).toString()


def is_direct(frame: DataFrame, name: str) -> bool:
    """Whether rows go to this sidecar without Python's workers."""
    return f"Sidecar {name}" in plan_of(frame)


def metrics_of(frame: DataFrame, name: str = "Sidecar") -> dict[str, int]:
    """Return the metrics of the topmost node with this name, of a frame that was collected."""
    plan = _plan(frame)
    while not plan.nodeName().startswith(name):
        plan = plan.children().head()
    convert = frame.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return {key: metric.value() for key, metric in dict(convert(plan.metrics())).items()}


def shown_of(frame: DataFrame, name: str) -> list[dict[str, str]]:
    """The metrics of nodes of this name, or of a sidecar, in Spark's SQL tab, of the last query."""
    names = (name, f"Sidecar {name}")
    return [each for node, each in nodes_shown(frame.sparkSession) if node in names]


def nodes_shown(spark: Any) -> list[tuple[str, dict[str, str]]]:
    """The nodes of the last query, and their metrics, as Spark's SQL tab shows them."""
    convert = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    # Wait for the listener bus: metrics come to Spark's store a little later.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(600_000)
    store = spark._jsparkSession.sharedState().statusStore()
    query = list(convert(store.executionsList()))[-1].executionId()
    values: dict[int, str] = dict(convert(store.executionMetrics(query)))
    return [
        (
            node.name(),
            {each.name(): values.get(each.accumulatorId(), "") for each in convert(node.metrics())},
        )
        for node in convert(store.planGraph(query).allNodes())
    ]


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().executedPlan()
