"""Runs a query with functions over rings and without, and says what rings gain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from shmring.common.arguments import integer
from shmring.common.extras import need
from shmring.common.words import counted
from shmring.errors import ShmringError
from shmring.observers.spark_workers import processes
from shmring.spark.report import FUNCTIONS, status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICK = 1 / os.sysconf("SC_CLK_TCK")
# Types whose values Spark's hash function refuses, or whose inner nulls the function leaves out.
_HASHED_AS_TEXT = ("array", "map", "struct", "variant")
_WAYS = ("off", "on")


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`."""

    seconds: dict[str, list[float]]  # time of each round: "off" without rings, "on" with rings
    cpu_seconds: dict[str, list[float]]  # CPU time of the JVM and its workers; empty on a cluster
    rows: dict[str, int]  # number of rows
    is_same: bool  # whether both ways gave the same rows, in any order

    @property
    def ratios(self) -> list[float]:
        """Time without rings divided by the time with rings, of each round."""
        return _ratios(self.seconds)

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)

    def __rich__(self) -> Table:
        same = f"both gave the same {counted(self.rows['on'], 'row')}"
        if not self.is_same:
            same = f"THE ROWS DIFFER: {self.rows['off']:,} off, {self.rows['on']:,} on"
        rounds = counted(len(self.ratios), "round")
        table = Table(title=f"Python functions over rings, {rounds}", caption=same)
        for title in ("", *_WAYS, "off / on", "from .. to"):
            table.add_column(title, justify="right")
        for title, found in {"time": self.seconds, "CPU": self.cpu_seconds}.items():
            if found:
                ratios = _ratios(found)
                times = (f"{median(found[way]):.2f} s" for way in _WAYS)
                spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
                table.add_row(title, *times, f"{median(ratios):.2f} x", spread)
        return table


def compare(make_df: Callable[[], DataFrame], rounds: int = 3) -> Comparison:
    """Run a query with functions over rings and without, in turn; print and return both times.

    >>> compare(lambda: trips.groupBy("zone").applyInPandas(score, schema))  # doctest: +SKIP

    First, each way runs once without being timed, to compare the rows by their hashes, in any
    order: numbers must be equal, not only close. The timed rounds follow; they write the rows
    nowhere (Spark's sink "noop").

    Parameters
    ----------
    make_df : returns the query as a new DataFrame at each call, because a DataFrame that has run
        keeps its plan
    rounds : number of times that each way is timed

    Raises
    ------
    ShmringError : functions of this session cannot go over rings; the text says why
    TypeError : `make_df` is no function, or returns no DataFrame
    """
    need("pyspark", "a query", "spark")
    rounds = integer("rounds", rounds, 1)
    if not callable(make_df):
        raise TypeError(f"make_df must be a function: compare(lambda: ...), not {make_df!r}")
    spark = getattr(made := make_df(), "sparkSession", None)
    if spark is None:
        raise TypeError(f"make_df must return a DataFrame, not {made!r}")
    if reasons := status(spark, queries=0)["obstacles"]:
        raise ShmringError(f"no function of this session goes over rings: {'; '.join(reasons)}")
    with _kept(spark, FUNCTIONS):
        digests = {way: _digest(_made(spark, make_df, way)) for way in _WAYS}
        seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
        cpu: dict[str, list[float]] = {way: [] for way in _WAYS}
        for number in range(rounds):
            for way in _WAYS[:: -1 if number % 2 else 1]:
                frame = _made(spark, make_df, way)
                used, begun = _cpu_seconds(spark), time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                seconds[way].append(time.perf_counter() - begun)
                cpu[way].append(_cpu_seconds(spark) - used)
    rows = {way: digest[0] for way, digest in digests.items()}
    is_local = _is_local(spark) and all(map(all, cpu.values()))
    found = Comparison(seconds, cpu if is_local else {}, rows, digests["on"] == digests["off"])
    Console().print(found)
    return found


def _ratios(found: dict[str, list[float]]) -> list[float]:
    return [off / on for off, on in zip(found["off"], found["on"], strict=True)]


@contextmanager
def _kept(spark: SparkSession, option: str) -> Generator[None]:
    """Restore an option of a session when the `with` block ends."""
    before = spark.conf.get(option, None)
    try:
        yield
    finally:
        spark.conf.unset(option) if before is None else spark.conf.set(option, before)


def _made(spark: SparkSession, make_df: Callable[[], DataFrame], way: str) -> DataFrame:
    spark.conf.set(FUNCTIONS, way)
    return make_df()


def _digest(frame: DataFrame) -> tuple[int, ...]:
    """Return the number of rows, and two sums of hashes that do not depend on the rows' order."""
    functions: Any = import_module("pyspark.sql.functions")
    # Rename the columns, because two of them may have the same name.
    named = frame.toDF(*[f"c{place}" for place in range(len(frame.columns))])
    # Hash for each column also whether the value is null, because a hash leaves out nulls.
    given = [named[name].isNull() for name in named.columns]
    for field in named.schema:
        column = named[field.name]
        if field.dataType.typeName() in _HASHED_AS_TEXT:
            # Hash the value as JSON, which tells a null from the text "null", and also cast to a
            # string, which has all digits of a time.
            json = functions.to_json(functions.struct(column), {"ignoreNullFields": "false"})
            given += [json, column.cast("string")]
        else:
            given.append(column)
    hashed = functions.xxhash64(*given) if given else functions.lit(0)
    # Whole numbers of 38 digits: the sum of a billion hashes does not overflow.
    total = functions.sum(functions.col("h").cast("decimal(38, 0)"))
    squares = functions.sum(functions.xxhash64("h").cast("decimal(38, 0)"))
    row: Any = named.select(hashed.alias("h")).agg(functions.count("*"), total, squares).first()
    return tuple([int(each or 0) for each in row])


def _is_local(spark: Any) -> bool:
    return spark.sparkContext.master.startswith("local")


def _cpu_seconds(spark: Any) -> float:
    """Return the CPU time of a local session's JVM and its descendants, ended ones included."""
    every = processes()
    ours, found = set[int](), {int(spark._jvm.java.lang.ProcessHandle.current().pid())}
    while found:
        ours |= found
        found = {pid for pid, process in every.items() if process.parent in found}
    return _TICK * sum(every[pid].ticks + every[pid].waited for pid in ours & every.keys())
