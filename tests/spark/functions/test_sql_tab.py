"""A sidecar's node in the SQL tab of Spark's web pages, and in its REST interface."""

from __future__ import annotations

import html
import json
import re
import time
import urllib.request
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pytest
from direct import DIRECT, FUNCTIONS, ROWS, metrics_of, plan_of, shown_of
from programs import cli
from py4j.java_gateway import JavaClass
from pyspark.errors import PythonException
from pyspark.sql import functions
from sessions import logged

import shmring
from shmring.metrics import HostMetrics
from shmring.observers.host import Observer
from shmring.sidecars import Sidecar
from shmring.spark import compare, comparison, report, status, through


@pytest.fixture(scope="module")
def spark(start_spark):
    pages = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    beats = {"spark.executor.heartbeatInterval": "200ms"}  # heartbeats report running tasks
    return start_spark("local[2]", **{DIRECT: "true"}, **pages, **beats)


@pytest.fixture
def get(spark):
    """Return a function that gets a page of the web server once all events have arrived."""
    port = spark.sparkContext.uiWebUrl.rpartition(":")[2]

    def get(path):
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(600_000)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.read().decode()

    return get


# CHANGE: edit this for a new metric
# Metrics that nodes of a sidecar and of Python workers share, in the order that Spark shows.
OF_BOTH = (
    "number of input rows",
    "number of output rows",
    "number of batches",
    "number of output batches",
    "batches of a request",
    "largest request",
    "tasks that kept rows, not columns",
    "requests sent",
    "data sent to Python workers",
    "answers received",
    "data returned from Python workers",
    "data of columns passed on",
    "time waited for answers",
)


def test_names_units_and_order_of_what_is_counted(spark, serve, name, set_option, get):
    serve("identity")
    set_option(ROWS, 1000)
    frame = spark.range(30_000, numPartitions=3).mapInArrow(through(name), "id long")
    frame.collect()
    queries = f"/api/v1/applications/{spark.sparkContext.applicationId}/sql"
    query = json.loads(get(f"{queries}?length=1000"))[-1]["id"]
    nodes = json.loads(get(f"{queries}/{query}?details=true"))["nodes"]
    (node,) = (node for node in nodes if node["nodeName"] == f"Sidecar {name}")
    shown = {each["name"]: each["value"] for each in node["metrics"]}
    assert list(shown) == [
        *OF_BOTH,
        "requests sent again",
        "time waited for room",
        "time worked in the sidecar",
    ]
    assert shown["number of input rows"] == shown["number of output rows"] == "30,000"
    assert shown["number of batches"] == "30"
    assert 3 <= int(shown["requests sent"]) <= 30
    for each, value in shown.items():
        unit = r" (ms|s|min|h)" if each.startswith("time") else ""
        unit = r" [KM]?i?B" if each.startswith(("data", "largest")) else unit
        last = value.splitlines()[-1].lstrip("(")  # behind a line on what is what
        assert re.fullmatch(r"[\d., ]+?" + unit, last.partition(" (")[0]), (each, value)
    page = html.unescape(get(f"/SQL/execution/?id={query}"))
    assert f"Sidecar {name} mapInArrow, through({name}, " in page


def test_task_that_runs_tells_what_it_has_done(spark, serve, name, thread, until, marker):
    serve("identity")
    with Sidecar("functions:wait_for_marker", name=f"{name}-gate"):
        frame = spark.range(20_000, numPartitions=1).mapInArrow(through(name), "id long")
        behind = frame.mapInArrow(through(f"{name}-gate", in_flight=1), "id long")
        counting = thread(behind.count)
        until(marker.with_suffix(".begun").exists, "the first batch")

        def told():
            (shown,) = shown_of(behind, name)
            return shown["requests sent"] in ("1", "2")

        until(told, "a heartbeat")
        marker.touch()
        assert counting.outcome() == 20_000


def test_times_and_sizes_of_python_functions(spark, set_option):
    set_option(FUNCTIONS, "on")
    set_option(ROWS, 100)

    def passes_on(batches):
        for batch in batches:
            time.sleep(0.02)
            yield batch

    slow = "if(id % 100 = 0, reflect('java.lang.Thread', 'sleep', 60L), '') slept"
    rows = spark.range(500, numPartitions=1).selectExpr("id", "repeat(uuid(), 50) text", slow)
    frame = rows.mapInArrow(passes_on, rows.schema)
    frame.collect()
    (shown,) = shown_of(frame, "MapInArrow over rings")
    assert list(shown) == [
        *OF_BOTH,
        "time worked in Python",
        "time Python waited for input",
        "time Python waited for room",
        "time to start Python workers",
        "time to initialize Python workers",
        "time to run Python workers",
        "time to execute Python code",
        "batches converted by Spark: code not known",
        "batches converted by Spark: pandas not known",
        "batches converted by Spark: kind of function or type",
        "batches converted by Spark: value",
    ]
    found = metrics_of(frame, "MapInArrow over rings")
    assert found["batches"] == found["outputBatches"] == 5
    assert found["largestRequest"] > 100 * 36 * 50
    assert found["passedOnBytes"] > 500 * 36 * 50
    assert found["workedTime"] >= 5 * 20_000_000
    assert found["inputTime"] > 0
    assert found["workedTime"] + found["inputTime"] < 1_000_000 * (found["pythonTotalTime"] + 100)


def test_batches_that_sparks_own_code_converts_are_counted_with_the_reason(spark, set_option):
    set_option("spark.sql.adaptive.enabled", False)
    set_option(FUNCTIONS, "on")
    set_option(ROWS, 10)
    rows = spark.range(60, numPartitions=1)

    def reasons(frame, name):
        frame.collect()
        found = metrics_of(frame, name)
        return [found[f"convertedBySpark{number}"] for number in (1, 2, 3, 4)]

    plain = rows.select(functions.udf(lambda x: x, "long", useArrow=True)("id"))
    large = rows.groupBy(functions.expr("id div 25")).applyInPandas(lambda frame: frame, "id long")
    assert reasons(plain, "ArrowEvalPython") == [0, 0, 0, 0]
    assert reasons(large, "FlatMapGroupsInPandas") == [0, 0, 0, 2]
    set_option("spark.sql.execution.pythonUDF.arrow.concurrency.level", 2)
    plain = rows.select(functions.udf(lambda x: x, "long", useArrow=True)("id"))
    assert reasons(plain, "ArrowEvalPython") == [0, 0, 6, 0]
    # The third answer, with which the task ends, tells of the two before.
    assert reasons(plain.limit(25), "ArrowEvalPython")[2] >= 2


def test_largest_request_is_that_of_all_partitions_in_a_task(spark, set_option):
    set_option(FUNCTIONS, "on")
    texts = spark.range(2, numPartitions=2).selectExpr("repeat('x', if(id = 0, 50000, 1)) text")
    frame = texts.mapInArrow(lambda batches: batches, texts.schema).coalesce(1)
    frame.collect()
    assert metrics_of(frame, "MapInArrow over rings")["largestRequest"] > 50_000


@pytest.fixture
def more(spark):
    """Return a function that returns how a sum over all tasks of the JVM grows by a query."""
    name = "io.shmring.spark.request.FunctionTask$Metrics"
    metrics = JavaClass(name, spark._jvm._gateway_client)

    def more(name, query):
        before = metrics.total(name)
        query()
        return metrics.total(name) - before

    return more


def test_counts_of_a_task_that_ends_early_are_complete(spark, set_option, more):
    set_option(FUNCTIONS, "on")
    set_option(ROWS, 10)

    def fails(batches):
        for number, batch in enumerate(batches):
            if number == 7:
                raise ValueError("the eighth batch")
            yield batch

    frame = spark.range(100, numPartitions=1).mapInArrow(fails, "id long")

    def all_rows():
        with pytest.raises(PythonException, match="the eighth batch"):
            frame.collect()

    # At least: a task of an earlier test may still end.
    assert more("outputBatches", all_rows) >= 7
    assert more("numOutputRows", all_rows) >= 70
    assert more("numOutputRows", frame.limit(5).collect) >= 5


def test_log_says_once_for_a_session_that_functions_go_over_rings(spark):
    other = spark.newSession()
    other.conf.set(FUNCTIONS, "on")
    with logged(spark, "io.shmring.spark.functions.PythonCalls") as said:
        for _ in range(2):
            other.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    (line,) = said().splitlines()
    assert (
        f"over rings, first MapInArrow: shmring {shmring.__version__}, Spark {spark.version}"
        in line
    )
    assert "conversions on, warm workers on, results of the driver on" in line


def test_status_says_what_went_over_rings_and_why_the_rest_did_not(spark, set_option):
    set_option(FUNCTIONS, "on")
    frame = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    frame.select(functions.udf(lambda x: x, "long", useArrow=False)("id")).collect()
    found = status(spark)
    assert found["functions"] is True
    assert found["conversions"] is True
    assert found["obstacles"] == []
    assert any("functions of this kind are not taken" in why for why in found["left_to_spark"])
    assert found["versions"]["jar"] == found["versions"]["shmring"] == shmring.__version__
    query = found["queries"][-1]
    assert (query["share"], query["left"]) == (0.5, ["BatchEvalPython"])
    assert status(spark, queries=1)["queries"] == [query]
    with pytest.raises(ValueError, match="queries must be from 0"):
        status(spark, queries=-1)
    set_option(FUNCTIONS, "off")
    assert status(spark, queries=0)["functions"] is False
    set_option(FUNCTIONS, "true")
    unclear = status(spark, queries=0)
    why = "spark.shmring.functions must be on or off, not true"
    assert f"[Spark's own way: {why}]" in plan_of(frame)
    assert (unclear["functions"], unclear["obstacles"]) == (False, [why])


def test_wrong_settings_are_in_the_plan_the_log_and_the_status(spark, set_option, name):
    set_option(FUNCTIONS, "on")
    other = spark.newSession()
    other.conf.set(FUNCTIONS, "on")
    switches = ("spark.shmring.conversions", "spark.shmring.driver", "spark.shmring.warmWorkers")
    expected = [f"{switch} must be on or off, not {name}" for switch in switches]
    expected.insert(1, f"spark.shmring.direct must be true or false, not {name}")
    with logged(spark, "io.shmring.spark.functions.SettingsCheck") as said:
        for switch in switches:
            other.conf.set(switch, name)
        frame = other.range(1).mapInArrow(lambda batches: batches, "id long")
        assert f"[Spark's own way: {expected[0]}]" in plan_of(frame)
        other.conf.set("spark.shmring.direct", name)
        other.conf.set("spark.shmring.warmworkers", "off")
        other.conf.set("spark.shmring.sidecar.scorer.workers", "2")
        for _ in range(2):
            other.range(1).collect()
    lines = said().splitlines()
    assert [lines.count(text) for text in expected] == [1] * len(expected)
    plugin = "does nothing without spark.plugins=io.shmring.spark.ShmringPlugin"
    expected.insert(3, f"spark.shmring.sidecar.scorer.workers {plugin}")
    misspelled = "spark.shmring.warmworkers is no setting of shmring: did you mean "
    found = status(other, queries=0)
    assert found["wrong_settings"] == [*expected, f"{misspelled}spark.shmring.warmWorkers?"]
    assert found["obstacles"] == [expected[0]]
    assert status(spark, queries=0)["obstacles"] == []


def test_status_leaves_out_a_query_that_the_session_has_just_forgotten(spark, set_option):
    set_option(FUNCTIONS, "on")
    for _ in range(2):
        spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    store = spark._jsparkSession.sharedState().statusStore()
    kept, forgotten = status(spark)["queries"][-2:]

    class Forgets:
        executionsList = store.executionsList

        def planGraph(self, number):
            return store.planGraph(-1 if number == forgotten["id"] else number)

    shared = SimpleNamespace(statusStore=Forgets)
    session = SimpleNamespace(sharedState=lambda: shared)
    forgetting = SimpleNamespace(sparkContext=spark.sparkContext, _jsparkSession=session)
    assert report._queries(forgetting, spark._jvm, 1) == [kept]


def test_session_that_was_stopped_is_said_to_be(spark, monkeypatch):
    frame = spark.range(1)
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)
    for ask in (lambda: status(spark), lambda: compare(lambda: frame)):
        with pytest.raises(shmring.ShmringError, match="was stopped: ask in one that runs"):
            ask()


def test_session_without_the_jar_is_told_so(spark, monkeypatch):
    monkeypatch.setattr(report, "LINKS", "io.shmring.NoSuchClass")
    assert status(spark)["functions"] is False
    with pytest.raises(shmring.ShmringError, match=r"has no jar of shmring: start it with"):
        compare(lambda: spark.range(1))


def test_what_is_no_session_and_no_query_is_said_to_be_none(spark):
    with pytest.raises(TypeError, match="spark must be a SparkSession, not None"):
        status(None)
    frame = spark.range(1)
    with pytest.raises(
        TypeError, match=r"make_df must be a function: compare\(lambda: .*DataFrame"
    ):
        compare(frame)
    with pytest.raises(TypeError, match="make_df must return a DataFrame, not 1"):
        compare(frame.count)


def test_compare_runs_both_ways_and_says_whether_the_rows_are_the_same(spark, capsys):
    before = spark.conf.get(FUNCTIONS, None)
    rows = spark.range(1000, numPartitions=2).selectExpr("id", "id / 3 third", "map('a', id) m")
    found = compare(lambda: rows.mapInArrow(lambda batches: batches, rows.schema), rounds=2)
    assert found.is_same
    assert found.rows == {"off": 1000, "on": 1000}
    assert len(found.ratios) == len(found.seconds["on"]) == len(found.cpu_seconds["off"]) == 2
    assert min(found.ratios) <= found.ratio <= max(found.ratios)
    assert "same 1,000 rows" in capsys.readouterr().out

    def random(batches):
        yield pa.record_batch({"x": [uuid.uuid4().hex]})

    other = compare(lambda: rows.coalesce(1).mapInArrow(random, "x string"), rounds=1)
    assert not other.is_same
    assert "THE ROWS DIFFER" in capsys.readouterr().out
    assert spark.conf.get(FUNCTIONS, None) == before


@pytest.mark.parametrize("row", ["{}, {}", "struct({}, {})", "array({}, {})", "map(1, {}, 2, {})"])
def test_compare_sees_where_nulls_are(spark, row):
    assert is_seen(spark, *[row.format(*order) for order in (("7", "null"), ("null", "7"))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("array(null, 'null')", "array('null', null)"),
        ("parse_json('[1, null]')", "parse_json('[1, 2]')"),
        ("struct(parse_json('1'), null)", "struct(parse_json('null'), null)"),
        ("array(make_interval(1, 2))", "array(make_interval(1, 3))"),
        ("map(1, timestamp_micros(1))", "map(1, timestamp_micros(2))"),
    ],
)
def test_compare_sees_values_of_types_that_sparks_hash_does_not_tell(spark, one, other):
    assert is_seen(spark, one, other)


def is_seen(spark, *rows):
    one, other = (comparison._digest(spark.sql(f"select {row}")) for row in rows)
    assert one[0] == other[0] == 1
    return one != other


def test_check_and_the_exporter_know_the_workers_of_this_executor(
    spark, set_option, thread, until, marker
):
    def waits(batches):
        marker.with_suffix(".begun").touch()
        while not marker.exists():
            time.sleep(0.01)
        yield from batches

    set_option(FUNCTIONS, "on")
    counting = thread(spark.range(10, numPartitions=1).mapInArrow(waits, "id long").count)
    until(marker.with_suffix(".begun").exists, "the function")
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    with Observer() as observer, HostMetrics(interval=None) as metrics:

        def all_know_them():  # workers of earlier tests may end meanwhile
            workers = [each for each in observer.look().spark if each.executor == jvm]
            metrics.look()
            said = f"Spark's executor {jvm} has {len(workers)} Python workers"
            return (
                max(each.ring_bytes for each in workers) > 2 * 1024 * 300
                and all(each.private_bytes > 1 << 20 for each in workers)
                and said in cli("check").stdout
                and sum(metrics.samples["spark_workers"].values()) >= len(workers)
            )

        until(all_know_them, "the same workers")
        assert sum(metrics.samples["spark_worker_bytes"].values()) > 1 << 20
        assert metrics.samples["spark_ring_bytes"][()] > 2 * 1024 * 300
    marker.touch()
    assert counting.outcome() == 10
