"""A sidecar's node in the SQL tab of Spark's web pages, and in its REST interface."""

from __future__ import annotations

import html
import json
import re
import urllib.request

import pytest
from direct import DIRECT, ROWS, shown_of

from shmring.sidecars import Sidecar
from shmring.spark import through


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
        "number of input rows",
        "number of output rows",
        "number of batches",
        "tasks that kept rows, not columns",
        "requests sent",
        "data sent to Python workers",
        "answers received",
        "data returned from Python workers",
        "requests sent again",
        "time waited for room",
        "time waited for answers",
        "time worked in the sidecar",
    ]
    assert shown["number of input rows"] == shown["number of output rows"] == "30,000"
    assert shown["number of batches"] == "30"
    assert 3 <= int(shown["requests sent"]) <= 30
    for each, value in shown.items():
        unit = r" (ms|s|min|h)" if each.startswith("time") else ""
        unit = r" [KM]iB" if each.startswith("data") else unit
        amount = value.splitlines()[-1].partition(" (")[0]  # behind a line on what is what
        assert re.fullmatch(r"[\d.,]+" + unit, amount), (each, value)
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
