"""Tells whether a session's functions go over rings, and why some do not."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from shmring import __version__
from shmring.common.arguments import integer
from shmring.common.extras import need
from shmring.errors import ShmringError
from shmring.spark.sparks_code import LINKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = "spark.shmring.functions"  # setting that sends functions over rings
# CHANGE: edit this for a new setting of Spark's sessions
_OTHERS = {
    "conversions": ("spark.shmring.conversions", "on"),
    "warm_workers": ("spark.shmring.warmWorkers", "on"),
    "driver": ("spark.shmring.driver", "off"),
}
_REASONS = "io.shmring.spark.functions.LeftToSpark"
_SETTINGS = "io.shmring.spark.functions.SettingsCheck"
_PATIENCE_MS = 10_000  # longest wait for the metrics of queries that have ended
_OVER_RINGS = " over rings"
_NODES = re.compile(r"Python|InPandas|InArrow")  # matches the names of nodes of Python functions


def status(spark: SparkSession, *, queries: int = 20) -> dict[str, Any]:
    """Return whether functions of this session go over rings, why not, and what its queries did.

    >>> shmring.spark.status(spark)["functions"]  # doctest: +SKIP
    True

    Returns
    -------
    dict with ``functions`` (whether functions go over rings), ``obstacles`` (why none can),
    ``left_to_spark`` (why some were left to Spark, in all sessions of this JVM), ``conversions``,
    ``warm_workers`` and ``driver`` (whether these switches are on), ``wrong_settings`` (which
    settings have wrong values or unknown names), ``versions``, and ``queries``. The list
    ``queries`` has a dict for each of the last queries with Python functions, in all sessions of
    this JVM: ``id``, ``description``, ``share`` (fraction of the query's nodes of Python functions
    that went over rings), and ``left`` (names of the nodes that did not)

    Parameters
    ----------
    queries : maximum number of queries to return

    Raises
    ------
    TypeError, ValueError : `spark` is no session; `queries` is no int, or negative
    ShmringError : the session is a client of Spark Connect, or was stopped
    """
    need("pyspark", "a Spark session", "spark")
    queries = integer("queries", queries)
    if not hasattr(spark, "createDataFrame"):
        raise TypeError(f"spark must be a SparkSession, not {spark!r}")
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ShmringError("a client of Spark Connect cannot see this: ask in the server's session")
    if cast(Any, spark.sparkContext)._jsc is None:
        raise ShmringError("this session was stopped: ask in one that runs")
    obstacles: list[str] = []
    told: list[str] = []
    wrong: list[str] = []
    versions = {"shmring": __version__, "spark": spark.version, "python": platform.python_version()}
    # Import importlib.metadata only here, because it imports csv and other standard modules, and
    # workers' daemons import this file: a csv.py that a task brings would then be ignored.
    metadata: Any = import_module("importlib.metadata")
    for package in ("pyarrow", "pandas"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    versions["java"] = jvm.java.lang.System.getProperty("java.version")
    protocol: Any = import_module("py4j.protocol")
    gateway: Any = import_module("py4j.java_gateway")
    try:
        missing = gateway.JavaClass(LINKS, jvm._gateway_client).missing()
        if missing.isPresent():
            obstacles.append(f"this Spark lacks {missing.get()}")
        else:
            reasons = gateway.JavaClass(_REASONS, jvm._gateway_client)
            versions["jar"] = reasons.version()
            # Ask for this session's settings: the JVM's current session may be another one.
            conf = cast(Any, spark)._jsparkSession.sessionState().conf()
            obstacles.extend(reasons.obstacles(conf))
            told.extend(reasons.told())
            wrong.extend(gateway.JavaClass(_SETTINGS, jvm._gateway_client).wrong(conf))
    except protocol.Py4JError:
        obstacles.append("the session's JVM has no jar of shmring: start it with configure()")
    is_on = spark.conf.get(FUNCTIONS, "off") == "on"
    switches = {
        name: spark.conf.get(option, default) == "on" for name, (option, default) in _OTHERS.items()
    }
    return {
        "functions": is_on and not obstacles,
        "obstacles": obstacles,
        "left_to_spark": told,
        **switches,
        "wrong_settings": wrong,
        "versions": versions,
        "queries": _queries(spark, jvm, queries) if queries else [],
    }


def _queries(spark: Any, jvm: Any, most: int) -> list[dict[str, Any]]:
    """Return the last queries with Python functions, at most `most`, oldest first.

    Search from the newest query back: a session keeps a thousand queries, and reading one takes
    many calls of the JVM.
    """
    convert = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    protocol: Any = import_module("py4j.protocol")
    with suppress(protocol.Py4JError):  # use the metrics that have come within _PATIENCE_MS
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)
    store = spark._jsparkSession.sharedState().statusStore()
    found: list[dict[str, Any]] = []
    for query in reversed(convert(store.executionsList())):
        number = query.executionId()
        try:
            names = [node.name() for node in convert(store.planGraph(number).allNodes())]
        except protocol.Py4JError:
            continue  # the session keeps only its last queries, and has just dropped this one
        nodes = [name for name in names if _NODES.search(name)]
        left = [name for name in nodes if not name.endswith(_OVER_RINGS)]
        if nodes:
            share = 1 - len(left) / len(nodes)
            asked = {"id": number, "description": query.description()}
            found.append({**asked, "share": share, "left": left})
            if len(found) == most:
                break
    return found[::-1]
