"""Runs Python functions beside Comet, Iceberg and Delta: beside_others.py FOLDER [--times].

Maven fetches the three, so this needs a network. Each query runs over rings, and has to give the
rows that it gives in Spark's own way without Comet. Prints a line of JSON for each query, with its
source, the settings of Comet, whether Spark plans it anew while it runs (AQE), and what was found.

With --times: CPU seconds of the JVM and the workers for queries over 4 million rows, in Spark's own
way, over rings, beside Comet, and with both; in turn, medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from direct import FUNCTIONS, plan_of
from pyspark.sql import DataFrame, SparkSession, Window, functions
from unchanged import ADAPTIVE, arrays, arrays_iterator, series, series_iterator, values

from shmring.spark import configure

JARS = (
    "org.apache.datafusion:comet-spark-spark4.1_2.13:1.2.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
)
FETCHED = Path(__file__).resolve().parents[1] / "build/beside"
EXTENSIONS = (
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "io.delta.sql.DeltaSparkSessionExtension",
)
COMET = "spark.comet.enabled"
# Settings of Comet that are off unless one asks for them; each changes the plans of functions.
ASKED = {
    "transitionRevert": {
        "spark.comet.exec.transitionRevert.enabled": "true",
        "spark.comet.exec.transitionRevert.maxTransitions": "0",
    },
    "columnarToRow.native": {"spark.comet.exec.columnarToRow.native.enabled": "true"},
    "columnarToRow.direct": {"spark.comet.exec.columnarToRow.direct.enabled": "true"},
    "pyarrowUDF": {"spark.comet.exec.pyarrowUDF.enabled": "true"},
}


class Doubles:
    """A UDTF of batches."""

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Double the first column."""
        yield pa.table({"n": pc.multiply(batch.column(0), 2)})


class Pair:
    """A UDTF of values."""

    def eval(self, n: int) -> Iterator[tuple[int]]:
        """Give two rows for one."""
        yield (n,)
        yield (-n,)


def _iterated(batches: Any) -> Any:
    return (pc.add(each, 1.0) for each in batches)


def kinds(t: DataFrame) -> dict[str, DataFrame]:
    """One query of each kind of function, and some with other nodes around it."""
    added = arrays("double", lambda x: pc.add(x, 1.0))
    mean = series("double", lambda x: x.mean(), float)
    total = arrays("double", lambda x: pc.sum(x).as_py(), float)
    groups, schema = t.groupBy("k"), t.schema
    by_k = Window.partitionBy("k")
    pairs = functions.udtf(Pair, returnType="n long", useArrow=True)
    return {
        "mapInArrow": t.mapInArrow(lambda batches: batches, schema),
        "mapInPandas": t.mapInPandas(lambda frames: frames, schema),
        "mapInArrow above a filter": t.where("id % 3 = 0").mapInArrow(lambda b: b, schema),
        "applyInArrow": groups.applyInArrow(lambda table: table, schema),
        "applyInPandas": groups.applyInPandas(lambda frame: frame, schema),
        "cogroup of Arrow": groups.cogroup(groups).applyInArrow(lambda left, _: left, schema),
        "cogroup of pandas": groups.cogroup(groups).applyInPandas(
            lambda left, right: pd.concat([left, right]), schema
        ),
        "pandas_udf": t.select("*", series("double", lambda x: x * 2)("half")),
        "pandas_udf of iterators": t.select(
            series_iterator("double", lambda some: (x * 2 for x in some))("half")
        ),
        "pandas_udf of groups": groups.agg(mean("half")),
        "pandas_udf of windows": t.select("id", mean("half").over(by_k)),
        "arrow_udf": t.select("*", added("half")),
        "arrow_udf of iterators": t.select(arrays_iterator("double", _iterated)("half")),
        "arrow_udf of groups": groups.agg(total("half")),
        "arrow_udf of windows": t.select("id", total("half").over(by_k)),
        "arrow_udtf": functions.arrow_udtf(Doubles, returnType="n long")(t.select("id").asTable()),
        "udf": t.select("*", values("double", lambda x: x * 2)("half")),
        "udtf": t.lateralJoin(pairs(functions.col("id").outer())),
        "aggregate above a UDF": t.groupBy("k").agg(functions.sum(added("half"))),
        "filter above a UDF": t.select("*", added("half").alias("more")).where("more > 100"),
        "join above a UDF": t.select("id", added("half").alias("more")).join(t, "id"),
        "sort above mapInArrow": t.mapInArrow(lambda b: b, schema).orderBy("text", "id").limit(20),
        "UDF above an aggregate": groups.agg(functions.sum("half").alias("s")).select(added("s")),
        "two UDFs and a union": t.select(added("half")).union(t.select(added(added("half")))),
    }


def class_path() -> str:
    """The jars, which Maven fetches if they are not here yet, as a class path."""
    maven = ("mvn", "--quiet", "--batch-mode", "dependency:copy", f"-DoutputDirectory={FETCHED}")
    files: list[str] = []
    for jar in JARS:
        file = FETCHED / "{1}-{2}.jar".format(*jar.split(":"))
        if not file.exists():
            subprocess.run([*maven, f"-Dartifact={jar}"], check=True, stdout=sys.stderr)
        files.append(str(file))
    return ":".join(files)


def session(folder: Path) -> SparkSession:
    """A session with all three; Comet is off until a query asks for it."""
    settings: dict[str, str] = {
        "spark.driver.extraClassPath": class_path(),
        "spark.plugins": "org.apache.spark.CometPlugin",
        "spark.shuffle.manager": (
            "org.apache.spark.sql.comet.execution.shuffle.CometShuffleManager"
        ),
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": "1g",
        COMET: "false",
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "iceberg"),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",  # applyInArrow of Spark 4.1 fails with another one
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for option, value in settings.items():
        builder = builder.config(option, value)
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def sources(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """The same rows as files, as a table of Iceberg and as one of Delta, both with deletions."""
    rows = spark.range(400, numPartitions=2).selectExpr(
        *("id", "id % 7 k", "id * 1.5D half", "if(id % 5 = 0, null, string(id)) text"),
        *("timestamp_seconds(id * 9999) at", "array(id, null) list"),
    )
    rows.where("id % 11 > 0").write.parquet(str(folder / "files"))
    rows.writeTo("ice.db.t").using("iceberg").create()
    spark.sql("ALTER TABLE ice.db.t SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql("DELETE FROM ice.db.t WHERE id % 11 = 0")
    rows.write.format("delta").save(str(folder / "delta"))
    table = f"delta.`{folder}/delta`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors'=true)")
    spark.sql(f"DELETE FROM {table} WHERE id % 11 = 0")
    return {
        "files": spark.read.parquet(str(folder / "files")),
        "Iceberg": spark.table("ice.db.t"),
        "Delta": spark.read.format("delta").load(str(folder / "delta")),
    }


def _rows(query: DataFrame) -> list[str]:
    return sorted(map(str, query.collect()))


def compared(spark: SparkSession, query: DataFrame, own: list[str]) -> dict[str, object]:
    """A query's rows over rings beside its rows in Spark's own way, without Comet."""
    try:
        plan = plan_of(query)
        found = {"rings": plan.count("over rings"), "comet_nodes": plan.count("Comet")}
        return {**found, "same": own == _rows(query) and len(own) > 0}
    except Exception as error:
        return {"error": str(error)[:2000]}


def settings_of_comet() -> Iterator[tuple[str, dict[str, str]]]:
    """Comet's settings, by a name: off, on, and on with each of those that one asks for."""
    yield "off", {COMET: "false"}
    yield "on", {COMET: "true"}
    for name, settings in ASKED.items():
        yield name, {COMET: "true", **settings}


ROUNDS = 5
WAYS = {
    "Spark": ("off", {COMET: "false"}),
    "rings": ("on", {COMET: "false"}),
    "Comet": ("off", {COMET: "true"}),
    "both": ("on", {COMET: "true"}),
    "Comet's own functions": ("off", {COMET: "true", **ASKED["pyarrowUDF"]}),
}


def _measured(t: DataFrame) -> dict[str, DataFrame]:
    few = t.where("id % 2 = 0")
    doubled = series("double", lambda x: x * 2)
    return {
        "mapInArrow above a filter": few.mapInArrow(lambda batches: batches, t.schema),
        "pandas_udf above a filter": few.select("*", doubled("half")),
    }


def times(spark: SparkSession, folder: Path) -> None:
    """Print the CPU seconds of each query in each way."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.spark_cpu import cpu_use

    rows = spark.range(4_000_000, numPartitions=2)
    rows.selectExpr("id", "id % 1000 k", "id * 1.5D half", "string(id) text").write.parquet(
        str(folder / "many")
    )
    found: dict[tuple[str, str], list[float]] = {}
    for round_ in range(1 + ROUNDS):  # the first one warms up
        for way, (switch, settings) in WAYS.items():
            for option, value in {FUNCTIONS: switch, **settings}.items():
                spark.conf.set(option, value)
            for name, query in _measured(spark.read.parquet(str(folder / "many"))).items():
                before = cpu_use()
                query.write.format("noop").mode("overwrite").save()
                if round_:
                    used = cpu_use().since(before)[""]
                    found.setdefault((name, way), []).append(used)
            for option in settings:
                spark.conf.unset(option)
    for (name, way), seconds in sorted(found.items()):
        most, least = max(seconds), min(seconds)
        print(f"{name:30} {way:22} {statistics.median(seconds):6.2f} ({least:.2f} to {most:.2f})")


def compare_all(spark: SparkSession, folder: Path) -> None:
    """Print what each query comes to, for each source and each setting."""
    frames = sources(spark, folder)
    spark.conf.set(FUNCTIONS, "off")
    own = {
        (source, kind): _rows(query)
        for source, frame in frames.items()
        for kind, query in kinds(frame).items()
    }
    spark.conf.set(FUNCTIONS, "on")
    for comet, settings in settings_of_comet():
        for option, value in settings.items():
            spark.conf.set(option, value)
        chosen = {"files": frames["files"]} if comet in ASKED else frames
        for adaptive in ("true", "false"):
            spark.conf.set(ADAPTIVE, adaptive)
            for source, frame in chosen.items():
                for kind, query in kinds(frame).items():
                    about = {"comet": comet, "adaptive": adaptive, "source": source, "kind": kind}
                    found = compared(spark, query, own[source, kind])
                    print(json.dumps({**about, **found}), flush=True)
        for option in settings:
            spark.conf.unset(option)


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session(folder)
    if "--times" in sys.argv:
        times(spark, folder)
    else:
        compare_all(spark, folder)
    spark.stop()


if __name__ == "__main__":
    main()
