"""CPU of the metrics of functions over rings: the same queries with metrics and without them.

The figure is the CPU of the JVM's threads of tasks and of the workers. The JVM's compiler and
collector take as much in some rounds and nothing in others; the metrics give them no work.

The product has no switch for its metrics. The session runs a copy of the jar in which three classes
have such a switch; the copy is made of the sources as they are, and a source that no longer has the
changed lines fails the run. The workers run one method of the exchange without its clock and its
report. The clocks of a worker's wait for input stay: they are read only while the worker waits.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.spark_cpu import cpu_use
from benchmarks.spark_session import WORKERS, find_modules_in_workers, spark_session
from benchmarks.spark_unchanged import QUICK, RUNS, configured, numbers, run

LIMIT = 1.01
# Rows of a query, and of a batch.
CASES = {
    "mapInArrow, batches of 10,000 rows": (8_000_000, 10_000),
    "mapInArrow, batches of 100 rows": (500_000, 100),
    "pandas_udf, batches of 100 rows": (300_000, 100),
}
_JAVA = Path(__file__).resolve().parent.parent / "native/jvm/java"
_TASK, _COUNTS = "io/shmring/spark/request/FunctionTask", "io/shmring/spark/request/TaskCounts"
_CLIENT = "io/shmring/exchange/WorkerClient"
_SWITCH = f"{_TASK}$Metrics".replace("/", ".")
# Expressions of lines, and what takes their places in the copy of a class.
_CHANGES = {
    _TASK: {
        r"private static final long UNSET = -1;": (
            r"\g<0> public static volatile boolean off;"
            r" public static void switchOff(boolean is) { off = is; }"
        ),
        r"return new Metrics\(all, isOfPython\);": (
            r'if (off) { all.keySet().removeIf(name -> !name.startsWith("python")); } \g<0>'
        ),
    },
    _COUNTS: {
        r"void (add\(String name, long more|updateAtTimes\(|update\()\) \{": (
            r"\g<0> if (FunctionTask.Metrics.off) { return; }"
        ),
    },
    _CLIENT: {
        r"System\.nanoTime\(\)": f"({_SWITCH.replace('$', '.')}.off ? 0 : System.nanoTime())",
        r"    report\(bytes\);": f"    if (!{_SWITCH.replace('$', '.')}.off) {{ report(bytes); }}",
    },
}


def _changed(source: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        source, count = re.subn(old, new, source)
        if not count:
            raise RuntimeError(f"the sources have changed: {old!r} is not there")
    return source


def _jar_with_switch(folder: Path) -> str:
    """Copy the jar, with a switch for the metrics."""
    import pyspark

    from shmring.spark import jar_path

    if shutil.which("javac") is None:
        raise Unavailable("no javac")
    jar = str(shutil.copy(jar_path(), folder))
    sources: list[Path] = []
    for name, changes in _CHANGES.items():
        file = folder / "java" / f"{name}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_changed((_JAVA / f"{name}.java").read_text(), changes))
        sources.append(file)
    classes = folder / "classes"
    class_path = f"{jar}:{pyspark.__path__[0]}/jars/*"
    subprocess.run(
        ["javac", "--release", "17", "-nowarn", "-cp", class_path, "-d", classes, *sources],
        check=True,
        capture_output=True,
    )
    subprocess.run(["jar", "--update", "--file", jar, "-C", classes, "."], check=True)
    return jar


@cache
def _methods() -> dict[str, Any]:
    """The method of the exchange that reports, with and without metrics."""
    from shmring.spark import exchange

    bare: Any = exchange._head_without_report  # pyright: ignore[reportPrivateUsage]

    def packed(self: Any, flags: int, total: int = 0, together: int = 0) -> bytes:
        self._said = self._left
        return bare.pack(self._stream, self._left, total, flags, together)

    return {"on": vars(exchange.Exchange)["_packed"], "off": packed}


def _switch_worker(metrics: str) -> None:
    from shmring.spark import exchange

    exchange.Exchange._packed = _methods()[metrics]  # pyright: ignore[reportPrivateUsage]


class _Job:
    """The session, while the rounds run."""

    def __init__(self, settings: Settings) -> None:
        self._part = QUICK if settings.quick else 1
        self._warm_up_runs = 1 if settings.quick else RUNS
        self._warm: set[str] = set()
        self._session: Any = None
        self._metrics: Any = None  # Java's class

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Until the rounds are done."""
        find_modules_in_workers()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            jar = _jar_with_switch(folder)
            stack.enter_context(mock.patch("shmring.spark.jvm.jar_path", return_value=jar))
            self._session = stack.enter_context(spark_session(configured))
            gateway: Any = import_module("py4j.java_gateway")
            client = self._session._jvm._gateway_client
            self._metrics = gateway.JavaClass(_SWITCH, client)
            yield

    def _query(self, case: str, metrics: str) -> Any:
        import pyspark.sql.functions as sql

        rows = numbers(self._session, CASES[case][0] // self._part)

        def mapped(batches: Iterator[Any]) -> Iterator[Any]:
            _switch_worker(metrics)
            yield from batches

        def doubled(values: Any) -> Any:
            _switch_worker(metrics)
            return values * 2

        if case.startswith("mapInArrow"):
            return rows.mapInArrow(mapped, rows.schema)
        functions: Any = sql
        kind = functions.PandasUDFType.SCALAR
        return rows.select(functions.pandas_udf(doubled, "double", kind)("price"))

    def sample(self, case: str, metrics: str, seconds: float) -> Sample:
        """CPU of a query."""
        del seconds
        rows, batch = CASES[case]
        self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
        self._metrics.switchOff(metrics == "off")
        make: Callable[[], Any] = partial(self._query, case, metrics)
        if case + metrics not in self._warm:
            self._warm.add(case + metrics)
            for _ in range(self._warm_up_runs):
                run(make())
        query = make()
        counted, before = self._metrics.total("batches"), cpu_use()
        run(query)
        used = cpu_use().since(before)
        if (self._metrics.total("batches") > counted) != (metrics == "on"):
            raise RuntimeError("the switch of the metrics does not work")
        millions = rows // self._part / 1e6
        cpu = {kind or "of all": spent / millions for kind, spent in used.items()}
        return Sample(cpu["of tasks"] + cpu["of workers"], cpu)


def question(settings: Settings) -> Question:
    """The same queries with metrics and without them."""
    job = _Job(settings)
    rows: list[Row] = []
    for case in CASES:
        off, on = f"{case}: without metrics", f"{case}: with metrics"
        rows += [
            Row(off, "CPU s/M rows", partial(job.sample, case, "off"), lower_is_better=True),
            Row(
                on,
                "CPU s/M rows",
                partial(job.sample, case, "on"),
                (Target(LIMIT, off),),
                lower_is_better=True,
            ),
        ]
    return Question(
        "spark-metrics",
        f"What do metrics of functions over rings cost? (local[{WORKERS}])",
        rows,
        setup=job.open,
        least_rounds=RUNS,
    )
