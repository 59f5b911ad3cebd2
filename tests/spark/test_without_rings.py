"""Functions over rings go over Spark's sockets where no rings can be made, or attached to."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.spark]

PROGRAM = """
    import os, sys, threading, time
    from typing import Iterator
    import pyarrow as pa, pyarrow.compute as pc
    from pyspark.sql import SparkSession, Window, functions
    from shmring.spark import configure
    from unchanged import arrays, arrays_iterator, compare, outcome, series, values

    options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    options |= {"spark.sql.execution.arrow.maxRecordsPerBatch": "30"}
    builder = SparkSession.builder.master("local[2]").config(map=options)
    spark = configure(builder).getOrCreate()
    frame = spark.range(200, numPartitions=3).selectExpr("id", "id % 7 k", "string(id) text")

    class Twice:
        def eval(self, x):
            yield (2 * x,)
            yield (3 * x,)

    class Lengths:
        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            yield pa.table({"n": pc.utf8_length(batch["text"]).cast("int64")})

    def raises(batches):
        yield next(batches)
        raise ValueError("as it should")

    def counts(batches):
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    def kinds():
        groups = frame.groupBy("k")
        few = frame.where("id < 9").groupBy("k")
        sums = series("long", lambda x: int(x.sum()), int)
        firsts = arrays("long", lambda x: x[0], pa.Scalar)
        same = arrays_iterator("long", lambda parts: parts)
        window = Window.partitionBy("k").orderBy("id").rowsBetween(-2, 0)
        twice = functions.udtf(Twice, returnType="n long", useArrow=True)
        lengths = functions.arrow_udtf(Lengths, returnType="n long")
        return {
            "map": lambda: frame.mapInArrow(lambda batches: batches, frame.schema),
            "nothing": lambda: frame.where("id < 0").mapInArrow(counts, "n long"),
            "early": lambda: frame.mapInPandas(lambda frames: [next(iter(frames))], frame.schema),
            "error": lambda: frame.mapInArrow(raises, frame.schema),
            "udf": lambda: frame.select("*", values("long", lambda x: x + 1)("id")),
            "iterator": lambda: frame.select("id", same("id")),
            "udtf": lambda: frame.lateralJoin(twice(functions.col("id").outer())),
            "table": lambda: lengths(frame.asTable()),
            "pandas": lambda: groups.applyInPandas(lambda g: g, frame.schema),
            "arrow": lambda: groups.applyInArrow(lambda g: g, frame.schema),
            "cogroup": lambda: groups.cogroup(few).applyInArrow(
                lambda left, right: pa.table({"n": [len(left) * 100 + len(right)]}), "n long"
            ),
            "aggregate": lambda: groups.agg(sums("id")),
            "window": lambda: frame.select("id", sums("id").over(window)),
            "partition": lambda: frame.select("id", firsts("id").over(Window.partitionBy("k"))),
        }

    def differs(name, live):
        def way(switch):
            spark.conf.set("spark.shmring.functions", switch)
            return sorted(outcome(kinds()[name](), over_rings=switch == "on"))

        try:
            compare(f"without rings {name}", way, live=live)
        except AssertionError as error:
            print(name, error, file=sys.stderr, flush=True)
            return True
        return False

    print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    for line in sys.stdin:
        refusal, live, names = line.split(":")
        with open(os.environ["SHMRING_TEST_REFUSED"], "w") as file:
            file.write(refusal)
        names = names.split() or kinds()
        print([name for name in names if differs(name, live == "True")], flush=True)

    def waits(batches):
        for batch in batches:
            open(os.environ["SHMRING_TEST_BEGUN"], "w").close()
            time.sleep(3600)
            yield batch

    query = frame.mapInArrow(waits, frame.schema)
    threading.Thread(target=query.collect, daemon=True).start()
    while not os.path.exists(os.environ["SHMRING_TEST_BEGUN"]):
        time.sleep(0.01)
    sys.stderr.flush()
    os._exit(0)  # the driver ends in the middle of a job
"""

Refuses = Callable[..., str]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the session's log."""
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def refuses(log: Path) -> Iterator[Refuses]:
    """Runs queries while files of rings are refused; says which queries differ from Spark's own."""
    library, refused = log.with_name("refused.so"), log.with_name("refused")
    source = Path(__file__).parents[1] / "refused_files.c"
    cc = ("cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library)
    subprocess.run(cc, check=True)
    added = {
        "LD_PRELOAD": str(library),
        "SHMRING_TEST_REFUSED": str(refused),
        "SHMRING_TEST_BEGUN": str(log.with_name("begun")),
    }
    with contextlib.ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=ends.enter_context(log.open("w")),
                text=True,
                env=os.environ | added,
            )
        )
        ends.callback(process.kill)
        assert process.stdin
        assert process.stdout
        said = process.stdout
        jvm = said.readline().strip()
        assert jvm, log.read_text()[-5000:]

        def run(program: str, error: str, path: str, *names: str, live: bool = False) -> str:
            hits = refused.with_name("refused.hits")
            hits.unlink(missing_ok=True)
            refusal = f"{program} {getattr(errno, error)} {path}"
            print(f"{refusal}:{live}:{' '.join(names)}", file=process.stdin, flush=True)
            line = said.readline()
            assert hits.exists()
            return line

        yield run
        refused.unlink()
        process.stdin.close()
        assert process.wait() == 0
        while Path(f"/proc/{jvm}").exists():
            time.sleep(0.01)
        assert "was closed" not in log.read_text()  # a task's consumer would log it


@pytest.mark.parametrize(
    "error", ["ENOENT", "EROFS", "EACCES", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC"]
)
def test_functions_go_over_sockets_where_no_rings_can_be_made(refuses, log, error, live):
    assert refuses("java", error, "/", "map", "udf", "aggregate", live=live) == "[]\n"
    assert log.read_text().count("go over Spark's own sockets") == 1


@pytest.mark.long
def test_each_kind_of_function_goes_over_sockets_where_there_is_no_shared_memory(
    refuses, log, live
):
    assert refuses("java", "ENOENT", "/", live=live) == "[]\n"
    assert log.read_text().count("go over Spark's own sockets") == 1


@pytest.mark.parametrize("error", ["EMFILE", "ENOMEM", "ENOENT"])
def test_functions_go_over_sockets_where_a_worker_cannot_attach(refuses, log, error):
    assert refuses("python", error, "/dev/shm/", "map", "udf", "aggregate") == "[]\n"
    assert log.read_text().count("go over Spark's own sockets") == 1


def test_rings_are_files_where_shared_memory_refuses_them(refuses, log):
    assert refuses("java", "EROFS", "/dev/shm/", "map", "udf") == "[]\n"
    assert log.read_text().count("the rings of Python workers are files in") == 1
