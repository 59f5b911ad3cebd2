"""The main job: the functions of a Spark job over rings, unchanged, and a model in a sidecar.

    python spark_examples/score_lineitem.py --scale 0.5

TPC-H lineitem is generated and read by Spark. First an unchanged pandas_udf computes a column of
its rows: over Spark's sockets, as Spark comes and at its best settings, and over rings. Then a
scikit-learn model scores the rows: in a pandas_udf that loads the model in each task, and in a
sidecar that has loaded it. Results are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from memory import Memory
from rich.console import Console
from rich.table import Table

import shmring
import shmring.spark

HERE = Path(__file__).resolve().parent
ROUNDS = 3
LINES = [
    "cast(l_quantity as double) l_quantity",
    "cast(l_extendedprice as double) l_extendedprice",
    "cast(l_discount as double) l_discount",
    "cast(l_tax as double) l_tax",
    "cast(datediff(l_shipdate, date'1970-01-01') as double) l_ship_day",
    "l_returnflag",
    "l_comment",
]
DEFAULT = "Spark as it comes"
OWN = "Spark at its best settings"
OVER_RINGS = "unchanged, over rings"
# Below the largest number Spark's Arrow writer asks for the size of a batch after every row.
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SIDECAR = "scorer:Scorer"
console = Console()


def generate(scale: float, folder: Path) -> tuple[Path, Path]:
    """The lineitem table as parquet and a model for it; kept for the next run."""
    import sklearn
    from scorer import fit

    target = folder / f"sf{scale:g}"
    lineitem = target / "lineitem.parquet"
    if not lineitem.exists():
        target.mkdir(parents=True, exist_ok=True)
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        with console.status(f"generating TPC-H lineitem at scale {scale:g} ..."):
            command = [tool, "parquet", "--scale-factor", str(scale), "--tables", "lineitem"]
            subprocess.run([*command, "--output-dir", target], check=True)
    model = target / f"model-{sklearn.__version__}.joblib"
    if not model.exists():
        with console.status("fitting the model ..."):
            fit(lineitem, model)
    return lineitem, model


def session() -> Any:
    """A session whose functions go over rings, and that brings its sidecar along."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("score-lineitem")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.maxPartitionBytes", "16m")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    builder = shmring.spark.configure(builder, sidecars={"scorer": SIDECAR}, workers=2)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # The first Python workers cost seconds, whatever they do then.
    spark.range(2).mapInArrow(lambda batches: batches, "id long").count()
    return spark


def schema_with(lines: Any, name: str) -> str:
    """The columns of all lines, and one more."""
    fields = [f"{field.name} {field.dataType.simpleString()}" for field in lines.schema]
    return ", ".join([*fields, f"{name} bigint"])


def aggregate(frame: Any, column: str) -> list[tuple[Any, ...]]:
    """By the flag of return: lines, quantity, sum of the new column; whole numbers, so exact."""
    from pyspark.sql import functions

    totals = [functions.count("*"), functions.sum("l_quantity"), functions.sum(column)]
    grouped = frame.groupBy("l_returnflag").agg(*totals).orderBy("l_returnflag")
    return [tuple(row) for row in grouped.collect()]


# --- an unchanged function ----------------------------------------------------------------------


def compare_ways(spark: Any, lines: Any) -> bool:
    """An unchanged pandas_udf on three ways; whether all come to the same."""
    from pyspark.sql.functions import pandas_udf

    def cents(price: pd.Series, discount: pd.Series) -> pd.Series:
        return (price * (1 - discount) * 100).round().astype("int64")

    job = lines.withColumn("revenue", pandas_udf(cents, "bigint")("l_extendedprice", "l_discount"))
    default, most = spark.conf.get(BYTES), 2**31 - 1
    ways = {DEFAULT: ("off", default), OWN: ("off", most), OVER_RINGS: ("on", default)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    results: list[list[tuple[Any, ...]]] = []
    for number in range(ROUNDS + 1):
        for way, (switch, most_bytes) in ways.items():
            spark.conf.set("spark.shmring.functions", switch)
            spark.conf.set(BYTES, most_bytes)
            with console.status(f"{way}, round {number} of {ROUNDS} ..."):
                begun = time.perf_counter()
                results.append(aggregate(job, "revenue"))
                if number:  # before that the JVM gets warm
                    seconds[way].append(time.perf_counter() - begun)
    spark.conf.unset(BYTES)
    count = sum(row[1] for row in results[0])
    table = Table("a pandas_udf", "seconds", "", "", title=f"{count:,} lines")
    medians = {way: statistics.median(taken) for way, taken in seconds.items()}
    for way, median in medians.items():
        bar = "\u2588" * round(24 * median / max(medians.values()))
        table.add_row(way, f"{median:.2f}", bar, f"{medians[OWN] / median:.2f} x")
    console.print(table)
    console.print(f"best settings: {BYTES}={most}, spark.python.unix.domain.socket.enabled=true")
    return all(result == results[0] for result in results)


# --- a model ------------------------------------------------------------------------------------


class Job(NamedTuple):
    """Rows of a job, its time in seconds, and the seconds of each load of the model."""

    rows: list[tuple[Any, ...]]
    seconds: float
    loads: list[float]
    memory: Memory


def loads() -> list[float]:
    """How long each load of the model has taken."""
    return [float(line) for line in Path(os.environ["MODEL_LOADS"]).read_text().split()]


def run(scored: Any, *kinds: str) -> Job:
    """Run a job in which Python processes of these kinds take part."""
    before = len(loads())
    with Memory(*kinds) as memory:
        begun = time.perf_counter()
        rows = aggregate(scored, "score")
        seconds = time.perf_counter() - begun
    return Job(rows, seconds, loads()[before:], memory)


def scored_by_pandas(lines: Any) -> Any:
    """Score by an iterator, as Spark's manual advises: it loads the model once a task."""
    from pyspark.sql.functions import pandas_udf
    from scorer import FEATURES

    def score(parts: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        from scorer import Scorer

        scorer = Scorer()
        for columns in parts:
            yield pd.Series(scorer.predict(columns))

    return lines.withColumn("score", pandas_udf(score, "bigint")(*FEATURES))


def compare_servers(spark: Any, lines: Any) -> bool:
    """A model in Spark's Python workers, and served; whether both come to the same."""
    spark.conf.set("spark.shmring.functions", "off")
    lines = lines.drop("l_comment")  # Spark leaves out what a UDF does not ask for
    served = lines.mapInArrow(shmring.spark.through("scorer"), schema_with(lines, "score"))
    before = loads()  # while Spark started
    with console.status("a model in a sidecar ..."):
        ours = run(served, SIDECAR, "shmring.spark.attendant")
    with console.status("the model in a pandas_udf ..."):
        usual = run(scored_by_pandas(lines), "shmring.spark.daemon")
    count = sum(row[1] for row in ours.rows)
    table = Table(
        "",
        "rows a second",
        "models loaded",
        "seconds each",
        "MB of Java",
        "MB of Python",
        title=f"{count:,} lines, scored by a scikit-learn model",
    )
    for name, job, times, when in (
        ("pandas_udf", usual, usual.loads, "in the job"),
        ("sidecar", ours, [*before, *ours.loads], "before"),
    ):
        memory = job.memory
        table.add_row(
            name,
            f"{count / job.seconds:,.0f}",
            f"{len(times)} {when}",
            f"{statistics.mean(times):.1f}",
            f"{memory.java:,.0f}",
            f"{memory.python:,.0f}",
        )
    console.print(table)
    answer = Table("returnflag", "lines", "sum of quantity", "mean score")
    for flag, number, quantity, score in ours.rows:
        answer.add_row(flag, f"{number:,}", f"{quantity:,.0f}", f"{score / number / 1e6:.4f}")
    console.print(answer)
    return ours.rows == usual.rows


def main() -> int:
    """Run the jobs and print the report; 1 if results differ or something is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H scale factor")
    parser.add_argument("--data", type=Path, default=HERE.parent / "data")
    options = parser.parse_args()
    lineitem, model = generate(options.scale, options.data.resolve())
    with tempfile.NamedTemporaryFile() as loads_file:
        # The JVM passes them on to all that it starts.
        os.environ.update(MODEL=str(model), MODEL_LOADS=loads_file.name)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        with console.status("starting Spark and its sidecars ..."):
            spark = session()
        lines = spark.read.parquet(str(lineitem)).selectExpr(*LINES)
        same = [compare_ways(spark, lines), compare_servers(spark, lines)]
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        spark.stop()
    ours = ("sidecar.scorer", "reply.scorer", f"worker.{jvm}-")
    end = time.monotonic() + 60
    # A JVM that lives on gives its reply rings back when it next looks for sidecars that are gone.
    while (left := [n for n in shmring.rings() if n.startswith(ours)]) and time.monotonic() < end:
        time.sleep(0.1)
    console.print(f"results: {'equal' if all(same) else 'DIFFERENT'}")
    console.print(f"left in /dev/shm: {', '.join(left) or 'nothing'}")
    return 0 if all(same) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
