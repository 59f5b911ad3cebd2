"""Ways to run a function in a query of Spark's, and what it costs in each, beside the query alone.

A contestant is warmed up in every way that it has, and then goes the one that was fastest: so each
side has the settings that suit it best, and the figures name them.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import engines
from benchmarks.harness import Sample
from benchmarks.payload import unique_name
from benchmarks.spark_cpu import CpuUse, cpu_use
from benchmarks.spark_rings import SHM
from benchmarks.spark_session import WORKERS, find_modules_in_workers

__all__ = ["BEST", "COMET", "DEFAULT", "DIRECT", "SAIL", "Bench", "Contestant", "Effort", "Input"]


@dataclass(frozen=True)
class Effort:
    """How much is measured; a pair is the query without the function and with it.

    Parameters
    ----------
    warm_ups : pairs before the first sample, in each way
    tries : of these, the last ones, which decide about the way
    pairs : of a sample
    """

    rows: int
    warm_ups: int = 8
    tries: int = 3
    pairs: int = 3


@dataclass(frozen=True)
class Input:
    """A parquet file.

    Parameters
    ----------
    row_bytes : of the values
    columns : their SQL
    totals : on which all ways must agree, of every column
    """

    name: str
    row_bytes: int
    columns: tuple[str, ...]
    totals: tuple[str, ...]


@dataclass(frozen=True)
class _Way:
    """An engine, and settings of its session.

    Parameters
    ----------
    batch : rows
    limit : bytes of a batch; this one is none
    """

    engine: str
    direct: bool = False
    batch: int = 10_000
    limit: int = 2**31 - 1

    def settings(self) -> dict[str, str]:
        if self.engine == "sail":
            return {}
        return {
            "spark.shmring.direct": str(self.direct).lower(),
            "spark.sql.execution.arrow.maxBytesPerBatch": str(self.limit),
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.batch),
        }

    def named(self) -> dict[str, float]:
        """What was chosen, for the report."""
        batch = {} if self.engine == "sail" else {"rows a batch": float(self.batch)}
        return batch | ({"pipeline": 1.0} if self.engine == "pipelined" else {})


_BATCHES = (10_000, 64_000)
BEST = [_Way(engine, batch=rows) for engine in ("spark", "pipelined") for rows in _BATCHES]
DEFAULT = [_Way("spark", limit=64 << 20)]
DIRECT = [_Way("spark", direct=True, batch=rows) for rows in _BATCHES]
COMET = [_Way("comet", batch=rows) for rows in _BATCHES]
SAIL = [_Way("sail")]

# What Spark's plan shows where the function runs as it should.
_NODES = {"spark": "MapInArrow", "pipelined": "MapInArrow", "comet": "CometMapInBatch", "sail": ""}

_ENGINES = {
    "spark": engines.spark,
    "pipelined": partial(engines.spark, pipelined=True),
    "comet": engines.comet,
    "sail": engines.sail,
}


class Bench:
    """The data, and the engines and sidecars, which start when they are first asked."""

    def __init__(self, effort: Effort, *inputs: Input) -> None:
        self.effort = effort
        self._inputs = inputs
        self._stack = contextlib.ExitStack()
        self._started: dict[str, engines.Engine] = {}
        self._sidecars: dict[str, str] = {}
        self._folder = ""
        self._agreed: dict[tuple[Input, str | None], list[Any]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Write the parquet files."""
        find_modules_in_workers()
        with self._stack:
            self._folder = tempfile.mkdtemp(dir=SHM, prefix=f"{unique_name()}-")
            self._stack.callback(shutil.rmtree, self._folder)
            for data in self._inputs:
                self._engine("spark").ask(
                    "write",
                    path=self._path(data),
                    rows=self.effort.rows,
                    parts=WORKERS,
                    columns=data.columns,
                )
            yield

    def _path(self, data: Input) -> str:
        return f"{self._folder}/{data.name}"

    def _engine(self, name: str) -> engines.Engine:
        if name not in self._started:
            self._started[name] = _ENGINES[name]()
            self._stack.callback(self._started[name].close)
        return self._started[name]

    def _sidecar(self, function: str) -> str:
        """The name of a sidecar that serves this function of `peers/spark_engine.py`."""
        from shmring.sidecars import Sidecar

        if function not in self._sidecars:
            name = unique_name()
            path = f"benchmarks.peers.spark_engine:{function}"
            self._stack.enter_context(Sidecar(path, name=name, workers=WORKERS))
            self._sidecars[function] = name
        return self._sidecars[function]

    def run(
        self, way: _Way, data: Input, function: str | None, totals: tuple[str, ...] | None
    ) -> dict[str, Any]:
        """Run a query: its seconds, its totals and its plan.

        Parameters
        ----------
        function : None applies none
        totals : None drops the rows
        """
        answer = self._engine(way.engine).ask(
            "query",
            path=self._path(data),
            function=function,
            sidecar=self._sidecar(function) if function and way.direct else None,
            totals=totals,
            settings=way.settings(),
        )
        node = "Sidecar" if way.direct else _NODES[way.engine]
        if function and totals and node not in answer["plan"]:
            raise RuntimeError(f"the plan has no {node}:\n{answer['plan']}")
        return answer

    def cpu(self, way: _Way) -> CpuUse:
        """Of the way's engine, and of the sidecars; a JVM that rests may still compile."""
        others = [engine.pid for name, engine in self._started.items() if name != way.engine]
        return cpu_use(others)

    def check(self, way: _Way, data: Input, function: str | None) -> None:
        """Raise if the totals of this way are not those of the way that came first."""
        for applied in (None, function):
            found = self.run(way, data, applied, data.totals)["totals"]
            changed = None if applied in ("identity", "copying") else applied
            first = self._agreed.setdefault((data, changed), found)
            if found != first:
                raise RuntimeError(f"{data.name}: the totals are {found}, elsewhere {first}")


class Contestant:
    """What a function costs in the fastest of some ways.

    Parameters
    ----------
    function : None applies none: what the other totals cost
    totals : that the query wants; None drops the rows
    figure : of the seconds without the function, the seconds with it, and gigabytes
    others : the totals with the function, if they are not the same
    """

    def __init__(
        self,
        bench: Bench,
        data: Input,
        ways: list[_Way],
        function: str | None,
        totals: tuple[str, ...] | None,
        figure: Callable[[float, float, float], float],
        others: tuple[str, ...] | None = None,
    ) -> None:
        self._bench, self._data, self._ways = bench, data, ways
        self._function, self._totals, self._figure = function, totals, figure
        self._others = others or totals
        self._chosen: _Way | None = None

    def __call__(self, seconds: float) -> Sample:
        """Measure some pairs; the first time, this warms up."""
        del seconds
        if self._chosen is None:
            self._chosen = self._choose()
        size = self._bench.effort.rows * self._data.row_bytes / 1e9
        pairs = [self._pair(self._chosen) for _ in range(self._bench.effort.pairs)]
        figures = [self._figure(without, mapped, size) for without, mapped, _ in pairs]
        cpu = {
            kind or "CPU s/GB": statistics.median(used[kind] / size for _, _, used in pairs)
            for kind in pairs[0][2]
        }
        also = {
            "s without it": statistics.median(without for without, _, _ in pairs),
            "s with it": statistics.median(mapped for _, mapped, _ in pairs),
        }
        return Sample(statistics.median(figures), also | cpu | self._chosen.named())

    def _choose(self) -> _Way:
        effort = self._bench.effort
        took: dict[_Way, float] = {}
        for way in self._ways:
            self._bench.check(way, self._data, self._function)
            pairs = [self._pair(way) for _ in range(effort.warm_ups)]
            took[way] = statistics.median(mapped for _, mapped, _ in pairs[-effort.tries :])
        return min(took, key=took.__getitem__)

    def _pair(self, way: _Way) -> tuple[float, float, dict[str, float]]:
        """Seconds without the function, seconds with it, and what CPU seconds the latter took."""
        without = self._bench.run(way, self._data, None, self._totals)["seconds"]
        before = self._bench.cpu(way)
        mapped = self._bench.run(way, self._data, self._function, self._others)["seconds"]
        return without, mapped, self._bench.cpu(way).since(before)
