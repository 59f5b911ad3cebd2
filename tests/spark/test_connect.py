"""A server of Spark Connect with the jar, and clients that have no shmring."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pyspark
import pytest
from programs import ended

from shmring.spark import jar_path

pytestmark = [pytest.mark.spark, pytest.mark.long]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
TWICE = """
def twice(batch):
    import pyarrow.compute as pc

    return batch.set_column(0, "id", pc.multiply(batch["id"], 2))
"""
CLIENT = """
    import sys

    sys.modules["shmring"] = None  # an import fails
    from pyspark.sql import SparkSession

    def apply(batches):
        from brought_along import twice

        return map(twice, batches)

    def of_pandas(frame):
        return frame.assign(id=frame.id + len(frame))

    builder = SparkSession.builder.remote(sys.argv[1])
    tables = []
    for switch in ("on", "off"):
        spark = builder.create()
        if switch == "off":
            spark.conf.set("spark.shmring.functions", switch)
        spark.addArtifact(sys.argv[2], pyfile=True)
        rows = spark.range(1000)
        groups = rows.selectExpr("id", "id % 10 key").groupBy("key")
        for frame in (
            rows.mapInArrow(apply, "id long"),
            groups.applyInPandas(of_pandas, "id long, key long"),
        ):
            plan = frame._explain_string()
            assert ("over rings" in plan) == (switch == "on"), plan
            tables.append(frame.toArrow().sort_by("id"))
        spark.stop()
    of_maps, of_groups = tables[::2], tables[1::2]
    assert of_maps[0] == of_maps[1]
    assert of_groups[0] == of_groups[1]
    print(sum(of_maps[0]["id"].to_pylist()))
"""
CONFIGURED = """
    import sys
    import warnings

    warnings.simplefilter("error")
    from pyspark.sql import SparkSession

    from shmring.spark import configure

    for functions in (None, False):
        builder = SparkSession.builder.remote(sys.argv[1])
        spark = configure(builder, functions=functions).getOrCreate()
        frame = spark.range(10).mapInArrow(lambda batches: batches, "id long")
        print("over rings" in frame._explain_string())
        spark.stop()
"""


@pytest.fixture
def server():
    """Return the address of a server that is started as the page says, for a port of its own."""
    process = subprocess.Popen(
        [
            *(Path(pyspark.__file__).parent / "bin" / "spark-submit", "--class", SERVER),
            *("--master", "local[2]", "--jars", jar_path()),
            *("--conf", "spark.shmring.functions=on", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.connect.grpc.binding.port=0"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"started at: .*:(\d+)", line):
            break
    else:
        raise RuntimeError("".join(said))
    process.stderr.close()
    yield f"sc://127.0.0.1:{found[1]}"
    process.terminate()
    process.wait()


def test_clients_without_shmring_have_functions_over_rings(server, tmp_path):
    (tmp_path / "brought_along.py").write_text(TWICE)
    client = (sys.executable, "-c", textwrap.dedent(CLIENT), server, tmp_path / "brought_along.py")
    assert ended(*client, check=True).stdout.split() == [str(999 * 1000)]
    configured = ended(sys.executable, "-c", textwrap.dedent(CONFIGURED), server, check=True)
    assert configured.stdout.split() == ["True", "False"]
    assert configured.stderr.count("start the server with --jars") == 2
