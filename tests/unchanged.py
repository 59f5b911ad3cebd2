"""UDFs of all kinds, and what a query of functions over rings comes to."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from direct import FUNCTIONS, ROWS, TYPES, columns_of, plan_of
from pyspark.sql import DataFrame, functions

WHOLE_STAGE = "spark.sql.codegen.wholeStage"
ADAPTIVE = "spark.sql.adaptive.enabled"
MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
# CHANGE: edit this for a new version of Spark
# CHANGE: edit this for a new type between Spark and Arrow
# Digests of what Spark itself comes to, by its version and the case; SHMRING_RECORD=1 writes them.
RECORDED = Path(__file__).with_name("golden") / "spark/unchanged.json"


def _hinted(function: Any, takes: Any, gives: Any) -> Any:
    names = inspect.signature(function).parameters
    function.__annotations__ = dict.fromkeys(names, takes) | {"return": gives}
    return function


# CHANGE: edit this for a new kind of Python function
def series(kind: Any, function: Any, gives: Any = pd.Series) -> Any:
    """A pandas_udf that gives this type; a function that gives no Series is an aggregate."""
    return functions.pandas_udf(_hinted(function, pd.Series, gives), kind)


def arrays(kind: Any, function: Any, gives: Any = pa.Array) -> Any:
    """An arrow_udf."""
    return functions.arrow_udf(_hinted(function, pa.Array, gives), kind)


def series_iterator(kind: Any, function: Any, gives: Any = Iterator[pd.Series]) -> Any:
    """A pandas_udf that takes all batches."""
    return functions.pandas_udf(_hinted(function, Iterator[pd.Series], gives), kind)


def arrays_iterator(kind: Any, function: Any, gives: Any = Iterator[pa.Array]) -> Any:
    """An arrow_udf that takes all batches."""
    return functions.arrow_udf(_hinted(function, Iterator[pa.Array], gives), kind)


def values(kind: Any, function: Any) -> Any:
    """A UDF of values that come with Arrow."""
    return functions.udf(function, kind, useArrow=True)


def said(error: Exception) -> str:
    """Return an error's text that is equal in two runs: no numbers, no lines of Java or Spark."""
    kept: list[str] = []
    is_users = True
    text = str(error).partition("Caused by:")[0].partition("Driver stack")[0]
    for line in text.splitlines():
        if line.startswith("  File"):
            is_users = re.search("/(pyspark|shmring)/", line) is None
        elif not line.startswith("    "):
            is_users = True
        if is_users and not line.startswith("\tat "):
            kept.append(re.sub(r"0x[0-9a-f]+|\d+", "#", line))
    return f"{type(error).__name__}: " + "\n".join(kept)


def outcome(query: Any, *, over_rings: bool | None = None) -> list[str]:
    """The rows of a frame, or what a function gives; or its error.

    Parameters
    ----------
    over_rings : whether the plan says so; None: either
    """
    try:
        if not isinstance(query, DataFrame):
            return [str(query())]
        if over_rings is not None:
            assert ("over rings" in plan_of(query)) == over_rings, plan_of(query)
        return [str(row) for row in query.collect()]
    except AssertionError:
        raise
    except Exception as error:
        return [said(error)]


def compare(name: str, way: Callable[[str], Any], *, live: bool) -> None:
    """Over rings a case comes to what it comes to in Spark's own way.

    Parameters
    ----------
    name : of the case
    way : what the case comes to with ``spark.shmring.functions`` set to this
    live : let Spark run it, too, where it is recorded that Spark comes to the same
    """
    recording = "SHMRING_RECORD" in os.environ
    over_rings = way("on")
    if not (live or recording) and _recorded().get(name) == _digest(over_rings):
        return
    own = way("off")
    assert over_rings == own
    if recording:
        _record(name, _digest(own))


def _recorded() -> dict[str, str]:
    return json.loads(RECORDED.read_text()).get(pyspark.__version__, {})


def _record(name: str, digest: str) -> None:
    """Write what Spark itself comes to; other workers of the run may write at the same time."""
    with RECORDED.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        recorded = json.load(file)
        recorded.setdefault(pyspark.__version__, {})[name] = digest
        file.seek(0)
        file.write(json.dumps(recorded, sort_keys=True) + "\n")
        file.truncate()


def _digest(outcomes: Any) -> str:
    """The same wherever the project, Python and the temporary files lie."""
    text = repr(outcomes)
    for folder in (tempfile.gettempdir(), str(Path(__file__).parents[1]), sys.prefix):
        text = text.replace(folder, "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- tables of cases --------------------------------------------------------------------------

BATCH = 50
COUNT = 7 * BATCH + 3  # in two partitions


class Given:
    """Frames and files from which cases are made."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.t: DataFrame = spark.range(COUNT, numPartitions=2).selectExpr(
            "id", "id * 1.5 half", "string(id) text"
        )
        self.one = self.t.coalesce(1)
        self.typed: DataFrame = spark.range(60, numPartitions=2).selectExpr(
            *columns_of(TYPES, "some")
        )
        self.grouped = self.t.selectExpr("id % 7 k", "*").groupBy("k")
        self.other = self.t.selectExpr("half", "id % 11 + 3 k", "id").groupBy("k")

    def file(
        self, frame: DataFrame, options: dict[str, Any] | None = None, form: str = "parquet"
    ) -> DataFrame:
        """The same frame, of columns that lie in a file, which was written with these options."""
        path = str(self.folder / str(len(list(self.folder.iterdir()))))
        frame.write.options(**(options or {})).format(form).save(path)
        return self.spark.read.format(form).load(path)


Case = Callable[[Given], Any]
Cases = dict[str, tuple[Case, dict[str, Any]]]


def adds_to(cases: Cases) -> Callable[..., Callable[[Case], Case]]:
    """Put cases into a table: queries, or what runs one and gives what is to be the same."""

    def case(options: dict[str, Any] | None = None) -> Callable[[Case], Case]:
        def add(function: Case) -> Case:
            cases[function.__name__] = function, options or {}
            return function

        return add

    return case


def for_each(cases: Cases, newer: str = "", rare: Iterable[str] = ()) -> Any:
    """Let a test take the name of each case, and whether Spark is to run it live, which takes long.

    Parameters
    ----------
    newer : the case that Spark has since 4.2, if there is one
    rare : how those begin that `make test` leaves to `make test-long` with a Spark whose own
        results are recorded: variants of others
    """
    is_recorded = bool(_recorded())

    def marks(name: str, live: bool) -> Iterator[Any]:
        if live or (is_recorded and name.startswith(tuple(rare))):
            yield pytest.mark.long
        if name == newer:
            yield pytest.mark.spark_version(since="4.2")

    each = [(name, live) for live in (False, True) for name in cases]
    return pytest.mark.parametrize(
        ("name", "live"),
        [
            pytest.param(name, live, marks=[*marks(name, live)], id=f"{name}-{'live' * live}")
            for name, live in each
        ],
    )


def way_of(
    spark: Any, set_option: Any, folder: Path, function: Case, options: dict[str, Any]
) -> Callable[[str], list[list[str]]]:
    """Return a function that runs a case's queries with the switch on or off."""
    for option, value in {ROWS: BATCH, **options}.items():
        set_option(option, value)

    def way(switch: str) -> list[list[str]]:
        set_option(FUNCTIONS, switch)
        made = function(Given(spark, folder))
        queries = made if isinstance(made, list) else [made]
        return [outcome(query, over_rings=switch == "on") for query in queries]

    return way
