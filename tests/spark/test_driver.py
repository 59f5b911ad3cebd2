"""toArrow() and toPandas() through memory: they give what they give in Spark's own way."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from direct import FLAT, ROWS, TYPES, columns_of, nodes_shown
from programs import python
from pyspark.errors import ArithmeticException, IllegalArgumentException
from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.conversion import PandasConversionMixin
from unchanged import ADAPTIVE, WHOLE_STAGE, said
from unchanged import compare as compare_ways

from shmring.spark import driver
from shmring.spark.sparks_code import LINKS

pytestmark = [pytest.mark.java, pytest.mark.spark]

SWITCH = "spark.shmring.driver"
MOST_BYTES = "spark.shmring.driver.maxBytes"
ARROW = "spark.sql.execution.arrow.pyspark.enabled"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
SELF_DESTRUCT = "spark.sql.execution.arrow.pyspark.selfDestruct.enabled"
STRUCTS = "spark.sql.execution.pandas.structHandlingMode"
SOME = 6  # number of random frames in the quick tests
LONG = int(os.environ.get("SHMRING_RANDOM_FRAMES", "200"))
SEEDS = [
    *((seed, False) for seed in range(SOME)),
    *(pytest.param(seed, True, marks=pytest.mark.long) for seed in range(LONG)),
]


@pytest.fixture
def used(monkeypatch, set_option):
    """The parts of files that each collect has read; there is no entry for Spark's own way."""
    set_option(ARROW, True)  # Spark 4.1 leaves Arrow off for toPandas()
    collects: list[dict[int, list[tuple[int, int]]]] = []
    finish = driver._Files.finish

    def noting(files):
        collects.append(dict(files._used))
        finish(files)

    monkeypatch.setattr(driver._Files, "finish", noting)
    return collects


def writable(array: Any) -> bool:
    return bool(getattr(array, "flags", None) and array.flags.writeable)


def comes_to(frame: DataFrame) -> list[Any]:
    """All that a user can see of both calls' results, or their errors."""
    seen: list[Any] = []
    for call in (frame.toArrow, frame.toPandas):
        try:
            result = call()
        except Exception as error:
            seen.append(said(error))
            continue
        if isinstance(result, pa.Table):
            seen += [result.schema.to_string(), str(result.schema.metadata)]
            seen += [[chunk.to_pylist() for chunk in column.chunks] for column in result.columns]
        else:
            seen += [list(result.columns), [str(kind) for kind in result.dtypes], len(result)]
            series = [result.iloc[:, i] for i in range(len(result.columns))]
            seen += [[repr(value) for value in each.tolist()] for each in series]
            seen += [writable(each.to_numpy()) for each in series]
    return seen


Compare = Callable[..., None]


@pytest.fixture
def compare(set_option: Callable[[str, Any], None], live: bool) -> Compare:
    """Compares a frame's results through memory with those of Spark's own way.

    Spark's results are recorded by name.
    """

    def compare(frame: DataFrame, name: str) -> None:
        def way(switch: str) -> list[Any]:
            set_option(SWITCH, switch)
            return comes_to(frame)

        compare_ways(f"collected {name}", way, live=live)
        set_option(SWITCH, "on")  # Spark's own way came last, if it was asked

    return compare


def typed(spark: Any, rows: int, nulls: str = "some", partitions: int = 2) -> DataFrame:
    return spark.range(rows, numPartitions=partitions).selectExpr(*columns_of(TYPES, nulls))


def numbers(spark: Any, rows: int, partitions: int = 2) -> DataFrame:
    """Rows of 40 bytes, which from 7,000 on go through files."""
    return spark.range(rows, numPartitions=partitions).selectExpr(
        *("id", "id / 3 third", "id * 7 seven", "-id less", "id % 11 rest")
    )


Case = Callable[[Any], DataFrame]
IN_FILES: dict[str, Case] = {
    "every type": lambda spark: typed(spark, 2400),
    "every type without nulls": lambda spark: typed(spark, 2400, "none"),
    "flat rows": lambda spark: numbers(spark, 20_000),
    "two columns of one name": lambda spark: numbers(spark, 20_000).selectExpr(
        "id a", "id b", "id a", "third"
    ),
    "sorted": lambda spark: numbers(spark, 20_000).orderBy(functions.desc("third")),
    "grouped": lambda spark: (
        numbers(spark, 30_000).groupBy("id").agg({"third": "sum", "seven": "max"})
    ),
    "joined": lambda spark: numbers(spark, 20_000).join(numbers(spark, 20_000), "id"),
    "cached": lambda spark: numbers(spark, 20_000).cache(),
    "a limit": lambda spark: numbers(spark, 30_000).limit(20_000),
    "a union": lambda spark: numbers(spark, 20_000).union(numbers(spark, 20_000)),
    "of Python": lambda spark: numbers(spark, 20_000).mapInArrow(
        lambda some: some, "id long, third double, seven long, less long, rest long"
    ),
    "only the second partition": lambda spark: numbers(spark, 20_000).where("id >= 10000"),
    "more columns than code is generated for": lambda spark: spark.range(
        2000, numPartitions=2
    ).selectExpr(*(f"id + {i} c{i}" for i in range(130))),
}
IN_RESULTS: dict[str, Case] = {
    "ten rows": lambda spark: typed(spark, 10),
    "all nulls": lambda spark: typed(spark, 10, "all"),
    "no rows": lambda spark: typed(spark, 0),
    "filtered": lambda spark: typed(spark, 50).where("big < 0"),
    "one row in many partitions": lambda spark: spark.range(1).repartition(20),
    "no partitions": lambda spark: spark.createDataFrame([], "a int, b string"),
    "one row without a source": lambda spark: spark.sql("select 1 a, rand(3) b"),
    "a command": lambda spark: spark.sql("show databases"),
    "a local relation": lambda spark: spark.createDataFrame(
        [(1, "x"), (2, None)], "a int, b string"
    ),
    "an error in a task": lambda spark: spark.range(9).selectExpr(
        "if(id = 7, raise_error('seven'), id) x"
    ),
}
SPARKS: dict[str, Case] = {
    "no columns": lambda spark: spark.range(5).select(),
    "an error of the plan": lambda spark: spark.range(9).selectExpr("assert_true(id < 5)", "id"),
    "null": lambda spark: spark.sql("select null n, 1 one"),
    "an interval of months": lambda spark: spark.sql("select interval '1' month m"),
    "a calendar interval": lambda spark: spark.sql("select make_interval(1, 2) i"),
    "a variant": lambda spark: spark.sql("select parse_json('[1]') v"),
    "a collation": lambda spark: spark.sql("select 'a' collate UNICODE_CI c, 'b' d"),
    "structs with one name twice": lambda spark: spark.sql("select named_struct('a', 1, 'a', 2) s"),
}


@pytest.mark.parametrize("case", IN_FILES)
def test_result_in_files_is_the_same(spark, compare, used, case):
    compare(IN_FILES[case](spark), case)
    assert len(used) == 2
    assert all(used)


@pytest.mark.parametrize("case", IN_RESULTS)
def test_result_in_the_tasks_results_is_the_same(spark, compare, used, case):
    compare(IN_RESULTS[case](spark), case)
    assert used == [{}, {}]


@pytest.mark.parametrize("case", SPARKS)
def test_result_in_sparks_own_way_is_the_same(spark, compare, used, case):
    compare(SPARKS[case](spark), case)
    assert not used


@pytest.mark.parametrize("nulls", ["some", pytest.param("none", marks=pytest.mark.long)])
def test_result_of_dictionaries_is_the_same(spark, compare, tmp_path, used, nulls):
    path = str(tmp_path / "file")
    spark.range(9000, numPartitions=2).selectExpr(*columns_of(FLAT, nulls)).write.parquet(path)
    compare(spark.read.parquet(path), f"dictionaries, {nulls} null")
    assert all(used)


@pytest.mark.long
@pytest.mark.parametrize("live", [True])
@pytest.mark.parametrize("shape", ["partitions", "columns"])
def test_result_of_thousands_is_the_same(spark, compare, used, shape):
    many = [f"id + {i} c{i}" for i in range(2000)]
    of_columns = spark.range(3000, numPartitions=2).selectExpr(*many)
    compare(numbers(spark, 10**6, 10_000) if shape == "partitions" else of_columns, shape)
    assert all(used)


@pytest.mark.parametrize("case", ["rows made", "grouped", "from a file"])
def test_nodes_show_the_metrics_that_spark_shows(spark, set_option, tmp_path, case):
    frame = numbers(spark, 30_000)
    if case == "grouped":
        frame = frame.groupBy("rest").count()
    elif case == "from a file":
        frame.write.parquet(str(tmp_path / "file"))
        frame = spark.read.parquet(str(tmp_path / "file"))

    def shown():
        frame.select("*").toArrow()  # a plan of its own: a shuffle is not run again
        return [
            (node, {name: "number" not in name or value for name, value in metrics.items()})
            for node, metrics in nodes_shown(spark)
        ]

    set_option(SWITCH, "off")
    own = shown()
    set_option(SWITCH, "on")
    assert shown() == own
    assert all(metrics["duration"] for _, metrics in nodes_shown(spark) if "duration" in metrics)


@pytest.mark.parametrize(
    "options",
    [
        {ROWS: 700},
        {ROWS: 0},
        {LARGE: True},
        {SELF_DESTRUCT: True},
        {WHOLE_STAGE: False},
        {ADAPTIVE: False},
        {STRUCTS: "row"},
        {"spark.sql.session.timeZone": "America/New_York"},
        {ARROW: False},
    ],
    ids=str,
)
def test_result_is_the_same_with_options(spark, set_option, compare, options):
    for option, value in options.items():
        set_option(option, value)
    compare(typed(spark, 2400), f"every type with {options}")
    compare(numbers(spark, 20_000).groupBy("rest").agg({"third": "sum"}), f"sums with {options}")


@pytest.mark.parametrize(("seed", "live"), SEEDS)
def test_random_frames_are_the_same(spark, set_option, compare, tmp_path, seed):
    rng = random.Random(seed)
    set_option(ROWS, rng.choice([1, 50, 3000, 10_000, 0]))
    for option in (LARGE, SELF_DESTRUCT, WHOLE_STAGE, ADAPTIVE):
        set_option(option, rng.choice([True, False]))
    kinds = dict(rng.sample([*TYPES.items()], rng.randint(1, 6)))
    columns = columns_of(kinds, rng.choice(["none", "some", "all"]))
    count = rng.choice([0, 1, 3, 700, 9000]) if rng.random() < 0.7 else 20_000
    frame = spark.range(count, numPartitions=rng.choice([1, 2, 5])).selectExpr("id", *columns)
    if rng.random() < 0.4:
        # Ids from 10,000 on are too large for a column of TYPES: then collecting fails, too.
        with suppress(ArithmeticException):
            frame.write.parquet(str(tmp_path / "file"))
            frame = spark.read.parquet(str(tmp_path / "file"))
    changes = [
        lambda some: some.where("id % 3 > 0"),
        lambda some: some.orderBy(functions.desc("id")),
        lambda some: some.repartition(3, "id"),
        lambda some: some.limit(500).orderBy("id"),
        lambda some: some.where("id > 8000"),
    ]
    for change in rng.sample(changes, rng.randint(0, 2)):
        frame = change(frame)
    compare(frame.orderBy("id"), f"frame {seed}")


# --- other callers, and other times -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`to_pandas` loads all data")
def test_pandas_on_spark_and_foreach_batch_come_through_memory(spark, tmp_path, used, monkeypatch):
    monkeypatch.setenv("PYARROW_IGNORE_TIMEZONE", "1")  # else Spark 4.1 warns
    frame = numbers(spark, 20_000)
    assert frame.pandas_api().to_pandas()["seven"].sum() == sum(range(20_000)) * 7
    assert used.pop()
    frame.write.parquet(str(tmp_path / "in"))
    sums: list[int] = []
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in")).writeStream
    query = (
        stream.foreachBatch(lambda batch, _: sums.append(batch.toPandas()["id"].sum()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sums == [sum(range(20_000))]
    assert used.pop()


def test_threads_collect_at_once(spark, thread):
    frames = [numbers(spark, 20_000 + i) for i in range(6)]
    threads = [thread(lambda frame=frame: frame.toArrow().num_rows) for frame in frames]
    assert [each.outcome() for each in threads] == [20_000 + i for i in range(6)]


def test_sparks_code_that_is_not_known_stays(monkeypatch):
    own = driver._own
    monkeypatch.setattr(PandasConversionMixin, "_collect_as_arrow", own)
    monkeypatch.setattr(driver, "digest", lambda: "other")
    driver.equip()
    assert PandasConversionMixin._collect_as_arrow is own


def test_spark_collects_where_it_lacks_a_member(spark, used):
    """Spark itself may lack it, or only what a newer one wants: see tests/jvm/test_links.py."""
    links = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(LINKS)
    found = links.getDeclaredField("FOUND")
    found.setAccessible(True)
    package = spark._jvm.java.util.List.of("driver/")
    before = found.get(None).put(package, spark._jvm.java.util.Optional.of("a member"))
    driver._collects.cache_clear()
    try:
        assert numbers(spark, 20_000).toArrow().num_rows == 20_000
        assert not used
    finally:
        found.get(None).put(package, before) if before else found.get(None).remove(package)
        driver._collects.cache_clear()
    assert numbers(spark, 20_000).toArrow().num_rows == 20_000
    assert used


# --- failures -------------------------------------------------------------------------------------


def failure_of(frame: DataFrame) -> str:
    """The error of toArrow() and its causes, without the lines of Java."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        frame.toArrow()
    lines = str(caught.value).partition("Driver stacktrace")[0].splitlines()
    kept = [line for line in lines if not line.startswith("\t")]
    return type(caught.value).__name__ + re.sub(r"\d+", "#", "\n".join(kept))


def files() -> list[str]:
    """The files of results that this process has open, or mapped."""
    found = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    found += Path("/proc/self/maps").read_text().splitlines()
    return [line for line in found if "shmring-result" in line]


def test_limit_is_told_in_sparks_words(spark, set_option):
    set_option(MOST_BYTES, "2m")  # the first part is within the limit
    words = "Job aborted due to stage failure: Total size of serialized results of # tasks"
    assert f"{words} (#.# MiB) is bigger than {MOST_BYTES} (#.# MiB)" in failure_of(
        numbers(spark, 90_000, 3)
    )
    with pytest.raises(Exception, match="is bigger than") as kept:
        numbers(spark, 90_000, 3).toArrow()
    assert not files()  # although the error is kept
    del kept
    assert numbers(spark, 10_000).toArrow().num_rows == 10_000


@pytest.mark.parametrize("size", ["4 gigabytes", "-1", "9000p"])
def test_limit_that_is_no_size_is_named(spark, set_option, size):
    set_option(MOST_BYTES, size)
    with pytest.raises(
        IllegalArgumentException, match=f"{MOST_BYTES} must be a size .* not {size}"
    ):
        numbers(spark, 10).toArrow()


def test_cancelled_job_tells_what_spark_tells_and_leaves_nothing(
    spark, set_option, name, thread, until
):
    endless = spark.range(10**15, numPartitions=2).where("id % 1000000007 = 5 and id > 10")
    context = spark.sparkContext
    tracker = context.statusTracker()

    def run(group):
        context.setJobGroup(group, "to be cancelled")
        return failure_of(endless)

    def is_running(group):
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        return any(job is not None and job.status == "RUNNING" for job in jobs)

    told = []
    for number, switch in enumerate(("off", "on")):
        set_option(SWITCH, switch)
        group = f"{name}-{number}"  # a new one: a job's end comes to the tracker a little later
        job = thread(run, group)
        until(lambda group=group: is_running(group))
        context.cancelJobGroup(group)
        told.append(job.outcome())
    assert told[0] == told[1]
    assert "cancel" in told[1]
    assert not files()


def test_what_a_failed_attempt_has_written_is_given_back(spark, set_option, used, monkeypatch):
    """Once, in the file of another partition's part."""
    blocks: list[int] = []
    finish = driver._Files.finish

    def adding(files):
        for number in files._open:
            os.pwrite(number, b"x" * 1_000_000, 1 << 40)
        finish(files)
        blocks.extend(os.fstat(number).st_blocks * 512 for number in files._open)
        with pytest.raises(PermissionError):
            os.pwrite(files._open[-1], b"late", 0)

    monkeypatch.setattr(driver._Files, "finish", adding)
    rows = 100_000
    assert numbers(spark, rows).toArrow()["id"].to_pylist() == [*range(rows)]
    parts = [length for some in used[0].values() for _, length in some]
    assert sum(parts) <= sum(blocks) <= sum(parts) + 2 * 4096 * (len(parts) + 1)


def test_file_that_cannot_be_written_leaves_batches_to_the_results(
    spark, compare, used, monkeypatch
):
    links = driver._Files.links

    def sealed(files):
        for number in files._open[1:]:
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        return links(files)

    monkeypatch.setattr(driver._Files, "links", sealed)
    compare(IN_FILES["every type"](spark), "every type")
    assert used == [{}, {}]


@pytest.mark.parametrize("change", [("/proc/", "/proc/1"), ("memfd:", "memfd:a")], ids=str)
def test_files_of_other_processes_are_left_alone(spark, compare, used, monkeypatch, change):
    links = driver._Files.links
    monkeypatch.setattr(driver._Files, "links", lambda files: links(files).replace(*change))
    compare(IN_FILES["every type"](spark), "every type")
    assert used == [{}, {}]


def test_files_on_disk_take_what_memory_does_not(spark, set_option, compare, used, monkeypatch):
    monkeypatch.setattr(driver, "_free_memory", lambda: 100_000)
    compare(IN_FILES["every type"](spark), "every type")
    assert all(len(some) == 1 for some in used)
    set_option(MOST_BYTES, "0")
    larger = numbers(spark, 2_000_000)  # 80 MB: results of 64 MB never fail for lack of memory
    assert re.search("bigger than the free memory; set spark.shmring", failure_of(larger))


def test_memory_goes_with_what_refers_to_it(spark):
    gc.collect()  # errors of earlier tests may hold results by their frames
    table = numbers(spark, 200_000).toArrow()
    lines = files()
    assert lines
    assert all("rw" not in line for line in lines)
    column = table["third"]
    del table
    assert files() == lines
    assert column.to_pylist()[::50_000] == [i / 3 for i in range(0, 200_000, 50_000)]
    del column
    assert not files()
    frame = numbers(spark, 50_000).toPandas()
    assert not files() or len(frame)
    del frame
    assert not files()


ENDS = """
    import os, signal, sys, threading, time
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from shmring.spark import configure

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,3]").config("spark.local.dir", sys.argv[1])
    builder = builder.config("spark.driver.maxResultSize", "8m").config("spark.ui.enabled", False)

    def outcome(frame):
        try:
            return frame.toArrow().num_rows
        except BaseException as error:
            causes = str(error).partition("Driver stacktrace")[0].splitlines()
            return type(error).__name__, [line for line in causes if not line.startswith("\\t")]

    def once(batches):
        for k, batch in enumerate(batches):
            yield batch
            if k == 5 and TaskContext.get().attemptNumber() == 0:
                raise ValueError("once")

    def left():
        paths = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return [path for path in paths if os.path.islink(path) and "shmring" in os.readlink(path)]

    def ends_by(act):
        def run():
            while not spark.sparkContext.statusTracker().getActiveJobsIds():
                time.sleep(0.01)
            act()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            # Only the error's class: its text says what Spark was about when it ended.
            return outcome(spark.range(10**15, numPartitions=2).where("id % 1000000007 = 5"))[0]
        finally:
            thread.join()

    for switch in ("off", "on"):
        spark = configure(builder, functions=False).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        spark.conf.set("spark.shmring.driver", switch)
        print(outcome(spark.range(0, 2_000_000, 1, 2)), end=" ")
        rows = spark.range(0, 400_000, 1, 4).mapInArrow(once, "id long").toArrow()
        print(rows["id"].to_pylist() == [*range(400_000)], end=" ")
        print(spark.newSession().range(100_000).toArrow().num_rows, end=" ")
        print(ends_by(lambda: os.kill(os.getpid(), signal.SIGINT)), end=" ")
        table = spark.range(0, 900_000, 1, 2).toArrow()
        print(ends_by(spark.stop), left())
    print(sum(table["id"].to_pylist()))
    spark = configure(builder, functions=False).getOrCreate()
    table = spark.range(0, 900_000, 1, 2).toArrow()
    jvm = spark.sparkContext._gateway.proc
    jvm.kill()
    jvm.wait()
    child = os.fork()
    if child == 0:
        del table
        os._exit(0)
    os.waitpid(child, 0)
    print(sum(table["id"].to_pylist()))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_sessions_end_as_sparks_own_and_a_frame_outlives_them(tmp_path):
    """Also the JVM and a fork; a task's second attempt counts, and nothing is left."""
    before = {*os.listdir("/dev/shm")}
    done = python(ENDS, tmp_path)
    own, ours, *totals = done.stdout.splitlines()
    assert "spark.driver.maxResultSize (8.0 MiB)" in own
    assert " True 100000 " in own
    assert re.sub(r"\d+", "#", own) == re.sub(r"\d+", "#", ours)
    assert totals == [str(sum(range(900_000)))] * 2
    assert not [name for name in {*os.listdir("/dev/shm")} - before if "result" in name]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "result" in path.name]


@pytest.mark.long
@pytest.mark.parametrize("size", ["64m", "4k"])
def test_dev_shm_may_be_small(in_small_shm, size):
    program = """
        from pyspark.sql import SparkSession
        from shmring.spark import configure

        spark = configure(SparkSession.builder.master("local[2]"), functions=False).getOrCreate()
        table = spark.range(0, 10**7, 1, 2).toArrow()
        maps = open("/proc/self/maps").read()
        print(table["id"].to_pylist() == [*range(10**7)], "shmring-result" in maps)
    """
    assert in_small_shm(size, program) == "True True\n"
