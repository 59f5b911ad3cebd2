"""The main job: Spark's Python workers send every batch through the ring to a model server.

    python spark_examples/score_lineitem.py --scale 0.5

TPC-H lineitem is generated, read by Spark, scored by a scikit-learn model that
lives in sidecar processes, and aggregated; then the same is computed without the
ring (each task loads the model itself) and both are compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import shmring

HERE = Path(__file__).resolve().parent
console = Console()


def generate(scale: float, folder: Path) -> Path:
    """The lineitem table as parquet; kept for the next run."""
    target = folder / f"sf{scale:g}"
    lineitem = target / "lineitem.parquet"
    if not lineitem.exists():
        target.mkdir(parents=True, exist_ok=True)
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        with console.status(f"generating TPC-H lineitem at scale {scale:g} ..."):
            command = [tool, "parquet", "--scale-factor", str(scale), "--tables", "lineitem"]
            subprocess.run([*command, "--output-dir", target], check=True)
    return lineitem


def without_ring(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one does without a sidecar: load the model in each task."""
    from scorer import Scorer

    score = Scorer()
    for batch in batches:
        yield score(batch)


def main() -> int:
    """Run the job and print the report; 1 if the results differ or something is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H scale factor")
    parser.add_argument("--data", type=Path, default=HERE.parent / "data")
    parser.add_argument("--workers", type=int, default=2, help="of the sidecar")
    options = parser.parse_args()

    os.environ["LINEITEM"] = str(generate(options.scale, options.data))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE))

    from pyspark.sql import SparkSession, functions

    with console.status("starting Spark ..."):
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("score-lineitem")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.files.maxPartitionBytes", "16m")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        # The first Python workers cost seconds, whatever they do then.
        spark.range(2).mapInArrow(lambda batches: batches, "id long").count()
    lines = spark.read.parquet(os.environ["LINEITEM"]).selectExpr(
        "cast(l_quantity as double) l_quantity",
        "cast(l_extendedprice as double) l_extendedprice",
        "cast(l_discount as double) l_discount",
        "cast(l_tax as double) l_tax",
        "cast(datediff(l_shipdate, date'1970-01-01') as double) l_ship_day",
        "l_returnflag",
        "l_comment",
    )
    schema = lines.schema.simpleString().removeprefix("struct<").removesuffix(">")
    schema = ", ".join(part.replace(":", " ", 1) for part in schema.split(",")) + ", score bigint"

    def aggregate(function: Any) -> tuple[list[tuple[Any, ...]], float]:
        begun = time.perf_counter()
        rows = (
            lines.mapInArrow(function, schema)
            .groupBy("l_returnflag")
            .agg(
                functions.count("*"),
                functions.sum("l_quantity"),  # whole numbers: exact in any order
                functions.sum("score"),
            )
            .orderBy("l_returnflag")
            .collect()
        )
        return [tuple(row) for row in rows], time.perf_counter() - begun

    metrics = shmring.spark.metrics(spark.sparkContext)
    begun = time.perf_counter()
    with console.status(f"fitting the model in {options.workers} sidecar workers ..."):
        sidecar = shmring.Sidecar("scorer:Scorer", name="scorer", workers=options.workers).start()
    loaded = time.perf_counter() - begun
    try:
        with console.status("scoring through the ring ..."):
            result, seconds = aggregate(shmring.spark.through("scorer", metrics=metrics))
    finally:
        sidecar.stop()
    with console.status("scoring without the ring ..."):
        expected, seconds_without = aggregate(without_ring)
    partitions = lines.rdd.getNumPartitions()
    spark.stop()

    ours = ("sidecar.scorer", "reply.scorer.")
    left = [name for name in shmring.rings() if name.startswith(ours)]
    same = result == expected
    total = metrics.value
    moved = total.request_bytes + total.answer_bytes
    report = Table(title="lineitem scored through the ring", show_header=False)
    for name, value in (
        ("rows", f"{total.rows:,}"),
        ("batches there and back", f"{total.requests:,} and {total.answers:,}"),
        ("bytes through the rings", f"{moved:,}"),
        ("job", f"{seconds:.1f} s, {moved / seconds / 1e9:.3f} GB/s of Arrow through the rings"),
        ("tasks waited for answers", f"{total.answer_wait:.2f} s, summed over all tasks"),
        ("tasks waited for room", f"{total.room_wait:.2f} s"),
        ("model", f"loaded {options.workers} times in {loaded:.1f} s, before the job"),
        ("the same without the ring", f"{seconds_without:.1f} s, model loaded {partitions} times"),
        ("results", "equal" if same else f"DIFFERENT: {result} and {expected}"),
        ("left in /dev/shm", ", ".join(left) or "nothing"),
    ):
        report.add_row(name, value)
    console.print(report)
    answer = Table("returnflag", "lines", "sum of quantity", "mean score")
    for flag, count, quantity, score in result:
        answer.add_row(flag, f"{count:,}", f"{quantity:,.0f}", f"{score / count / 1e6:.4f}")
    console.print(answer)
    return 0 if same and not left else 1


if __name__ == "__main__":
    sys.exit(main())
