"""Cost of a new Python worker of Spark: memory, CPU, first query. local[2], a small pandas_udf.

Each sample has workers of its own, which Spark starts for an environment of its own. Their daemon
starts with them: the time of a query has its start, memory and CPU are those of a worker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Row, Sample, Settings, Target
from benchmarks.spark_rings import with_jar
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session

RUNS = 7
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_MIB = 1024  # KiB, in which the kernel tells memory
_SIDES = {
    "Spark's own": {"functions": "off", "warmWorkers": "on"},
    "over rings, warmWorkers=off": {"functions": "on", "warmWorkers": "off"},
    "over rings": {"functions": "on", "warmWorkers": "on"},
}
_UNITS = {"private memory": "MiB", "shared memory": "MiB", "CPU": "s", "first query": "s"}
# Figures of a side by those of Spark's own.
_TARGETS = {"private memory": 0.6, "CPU": 0.5}


class _Job:
    """The session, while the rounds run."""

    def __init__(self) -> None:
        self._session: Any = None
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Until the rounds are done."""
        find_modules_in_workers()
        with spark_session(with_jar) as self._session:
            yield

    def sample(self, figure: str, side: str, seconds: float) -> Sample:
        """Run one query in new workers, and look at them while they wait for the next."""
        del seconds
        import pyspark.sql.functions as sql

        functions: Any = sql
        for option, value in _SIDES[side].items():
            self._session.conf.set(f"spark.shmring.{option}", value)
        context = self._session.sparkContext
        context.environment["SHMRING_SAMPLE"] = str(next(self._numbers))

        def pids_of(ids: Any) -> Any:  # a function of no module: a worker imports nothing for it
            return ids * 0 + os.getpid()

        kind = functions.PandasUDFType.SCALAR
        pid = functions.pandas_udf(pids_of, "long", kind)("id")
        frame = self._session.range(0, 1000 * WORKERS, 1, WORKERS).select(pid.alias("pid"))
        started = time.monotonic()
        pids = {row.pid for row in frame.collect()}
        took = time.monotonic() - started
        values = {
            "private memory": statistics.mean(map(_private, pids)),
            "shared memory": statistics.mean(map(_rings, pids)),
            "CPU": statistics.mean(map(_cpu, pids)),
            "first query": took,
        }
        return Sample(
            values.pop(figure), {f"{name}, {_UNITS[name]}": values[name] for name in values}
        )


def _private(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / _MIB


def _rings(pid: int) -> float:
    """Return the size of a worker's rings, whose files have all of their pages."""
    ends: dict[str, int] = {}  # end of each file, by its inode
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, _, offset, _, inode, *name = line.split()
        if name and "/shmring.worker." in name[0]:
            first, last = (int(address, 16) for address in addresses.split("-"))
            ends[inode] = max(ends.get(inode, 0), int(offset, 16) + last - first)
    return sum(ends.values()) / (1 << 20)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) * _TICK


def question(settings: Settings) -> Question:
    """The same query in new workers of each kind."""
    del settings
    job = _Job()
    rows: list[Row] = []
    for figure, unit in _UNITS.items():
        own = f"{figure}: Spark's own"
        for side in _SIDES:
            limit = _TARGETS.get(figure) if side == "over rings" else None
            is_alone = limit or side == "Spark's own" or figure == "shared memory"  # Spark's is 0
            rows.append(
                Row(
                    f"{figure}: {side}",
                    unit,
                    partial(job.sample, figure, side),
                    () if limit is None else (Target(limit, own),),
                    lower_is_better=True,
                    compare=() if is_alone else (own,),
                )
            )
    return Question(
        "spark-workers",
        f"What does a new Python worker of Spark cost? (local[{WORKERS}])",
        rows,
        setup=job.open,
        least_rounds=RUNS,
    )
