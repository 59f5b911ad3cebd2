"""Functions that nobody has named, in Spark's own Python workers: over rings, as over sockets."""

from __future__ import annotations

import gc
import os
import re
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mapped
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from direct import ROWS, TYPES, columns_of, plan_of
from pyspark.errors import PySparkException
from pyspark.sql import functions

FUNCTIONS = "spark.shmring.functions"
DAEMON = "spark.python.daemon.module"
BATCH = 500
COUNT = 7 * BATCH + 3  # in two partitions

pytestmark = pytest.mark.spark_version(since="4.3")


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark(
        "local[2]",
        **{DAEMON: "shmring.spark.daemon", "spark.sql.session.timeZone": "Europe/Berlin"},
    )


@pytest.fixture
def frame(spark, set_option):
    set_option(ROWS, BATCH)
    return spark.range(COUNT, numPartitions=2).selectExpr("id", "id * 1.5 half", "string(id) text")


def is_over_rings(frame) -> bool:
    return "over rings" in plan_of(frame)


def _said(error: Exception) -> str:
    """What is the same in two runs of an error: no numbers, no lines of Java or Spark."""
    kept: list[str] = []
    is_users = True
    for line in str(error).partition("Caused by:")[0].splitlines():
        if line.startswith("  File"):
            is_users = re.search("/(pyspark|shmring)/", line) is None
        elif not line.startswith("    "):
            is_users = True
        if is_users and not line.startswith("\tat "):
            kept.append(re.sub(r"\d+", "#", line))
    return "\n".join(kept)


@pytest.fixture
def both(spark, set_option) -> Callable[..., Any]:
    """What a query comes to, which has to be the same both ways."""

    def both(query: Callable[[], Any], *, over_rings: bool = True) -> Any:
        outcomes: list[tuple[str, Any]] = []
        for switch in ("off", "on"):
            set_option(FUNCTIONS, switch)
            planned = query()
            if hasattr(planned, "collect"):
                assert is_over_rings(planned) == (over_rings and switch == "on")
                query_rows = planned.collect
            else:
                query_rows = planned
            try:
                outcomes.append(("rows", query_rows()))
            except PySparkException as error:
                outcomes.append((type(error).__name__, _said(error)))
            except Exception as error:  # py4j's
                outcomes.append((type(error).__name__, _said(error).partition("Driver stack")[0]))
        off, on = outcomes
        assert on == off
        return on[1]

    return both


@pytest.mark.parametrize(
    ("nulls", "generated"), [("none", True), ("some", False), ("some", True), ("all", False)]
)
def test_every_type_comes_back(spark, both, set_option, nulls, generated):
    set_option(ROWS, 100)
    set_option("spark.sql.codegen.wholeStage", generated)
    frame = spark.range(1000, numPartitions=2).selectExpr(*columns_of(TYPES, nulls))
    rows = both(lambda: frame.mapInArrow(lambda batches: batches, frame.schema))
    assert len(rows) == 1000


def test_columns_of_a_file_come_back(spark, both, set_option, tmp_path):
    set_option(ROWS, 100)
    made = spark.range(1000, numPartitions=2).selectExpr(*columns_of(TYPES, "some"))
    made.write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    both(lambda: frame.mapInArrow(lambda batches: batches, frame.schema))
    flat = frame.select("flag", "big", "text", "bytes", "day", "time", "exact")
    both(lambda: flat.mapInArrow(lambda batches: batches, flat.schema))


@pytest.mark.parametrize("function", mapped.SHAPES)
def test_function_takes_and_gives_as_it_likes(both, frame, function):
    both(lambda: frame.mapInArrow(function, "n long"))
    both(
        lambda: frame.mapInArrow(mapped.counts, "n long")
    )  # what it has left is not taken for this


@pytest.mark.parametrize("function", mapped.SHAPES)
def test_function_of_frames_takes_and_gives_as_it_likes(both, frame, function):
    both(lambda: frame.mapInPandas(mapped.of_frames(function), "n long"))


def test_function_answers_more_than_the_rings_take_before_it_reads(both, frame):
    function = mapped.answers_before_it_reads
    few = "n % 100 = 0"  # the driver takes longer for 400,000 rows than Spark
    both(lambda: frame.mapInArrow(function, "n long").where(few))
    both(lambda: frame.mapInPandas(mapped.of_frames(function), "n long").where(few))


@pytest.mark.parametrize("function", [*mapped.ENDS[:3], *mapped.WRONG])
def test_function_of_frames_that_fails(both, frame, function):
    both(lambda: frame.coalesce(1).mapInPandas(mapped.of_frames(function), frame.schema))
    both(lambda: frame.mapInPandas(mapped.of_frames(mapped.counts), "n long"))


def test_every_type_that_pandas_has_comes_back(spark, both, set_option):
    set_option(ROWS, 100)
    frame = spark.range(1000, numPartitions=2).selectExpr(*columns_of(TYPES, "some"))
    both(lambda: frame.mapInPandas(lambda frames: frames, frame.schema))


@pytest.mark.parametrize("function", [mapped.counts, mapped.ignores_input, mapped.gives_nothing])
def test_partitions_without_rows(both, frame, function):
    both(lambda: frame.where("id < 0").mapInArrow(function, "n long"))
    both(lambda: frame.where("id < 1").mapInArrow(function, "n long"))


def test_columns_that_a_function_passes_on(both, spark, set_option):
    set_option(ROWS, 10_000)
    wide = spark.range(25_000, numPartitions=2).selectExpr(
        "id", "repeat('x', 300) text", "id + 1 b"
    )

    def swaps(batches):
        for batch in batches:
            names = ["b", "text", "id", "again"]
            columns = [*(batch.column(name) for name in names[:3]), batch.column("text")]
            yield pa.RecordBatch.from_arrays(columns, ["b", "text", "id", "again"])

    def later(batches):
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
        yield before

    both(lambda: wide.mapInArrow(swaps, "b long, text string, id long, again string"))
    both(lambda: wide.mapInArrow(later, wide.schema))


def test_several_in_one_task(both, frame):
    def same():
        return frame.mapInArrow(lambda batches: batches, frame.schema)

    def counted(function):
        return frame.mapInArrow(function, "n long")

    both(lambda: same().mapInArrow(mapped.counts, "n long"))
    both(lambda: same().union(same()))
    both(lambda: counted(mapped.stops_early).union(counted(mapped.counts)).coalesce(1))
    both(lambda: same().join(same(), "id").sort("id"))


def test_row_that_is_larger_than_the_rings(both, frame):
    def widens(batches):
        for batch in batches:
            first = batch.column("id")[0].as_py()
            yield pa.record_batch({"id": [first], "text": [f"{first:9}" * 3_000_000]})

    def measures(batches):
        for batch in batches:
            for text in batch.column("text"):
                yield pa.record_batch({"n": [len(text.as_py())], "head": [text.as_py()[:9]]})

    wide = lambda: frame.limit(1).mapInArrow(widens, "id long, text string")  # noqa: E731
    both(lambda: wide().selectExpr("id", "length(text)", "substr(text, 1, 20)"))
    both(lambda: wide().mapInArrow(measures, "n long, head string"))


def test_limit_ends_a_function(both, frame, tmp_path, until):
    def writes_when_closed(batches):
        try:
            yield from batches
        finally:
            Path(f"{folder}/{os.getpid()}").touch()

    folder = tmp_path / "off"
    folder.mkdir()
    both(lambda: lambda: len(frame.mapInArrow(writes_when_closed, frame.schema).limit(7).collect()))
    until(lambda: len(list(folder.iterdir())) >= 1)


@pytest.mark.parametrize(
    ("function", "simplified"), [(mapped.raises, True), *((end, False) for end in mapped.ENDS)]
)
def test_function_that_fails(both, frame, set_option, function, simplified):
    set_option("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", simplified)
    both(lambda: frame.coalesce(1).mapInArrow(function, frame.schema))
    both(lambda: frame.mapInArrow(mapped.counts, "n long"))


@pytest.mark.parametrize(
    ("function", "generated"), [(wrong, i % 2 == 0) for i, wrong in enumerate(mapped.WRONG)]
)
def test_answer_of_a_wrong_form(both, frame, set_option, function, generated):
    set_option("spark.sql.codegen.wholeStage", generated)
    both(lambda: frame.coalesce(1).mapInArrow(function, frame.schema))


def test_what_spark_tells_its_workers(spark, both, frame, tmp_path):
    context = spark.sparkContext
    (tmp_path / "side.txt").write_text("of a file")
    context.addFile(str(tmp_path / "side.txt"))
    told = context.broadcast({"k": 5})
    seen = context.accumulator(0)

    def tells(batches):
        from pyspark import SparkFiles, TaskContext

        task = TaskContext.get()
        for batch in batches:
            seen.add(batch.num_rows)
        text = Path(SparkFiles.get("side.txt")).read_text()
        yield pa.record_batch({"n": [f"{task.partitionId()} {told.value} {text}"]})

    assert len(both(lambda: frame.mapInArrow(tells, "n string"))) == 2
    assert seen.value == 2 * COUNT


def test_barrier(both, frame):
    def gathers(batches):
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        for _ in batches:
            pass
        yield pa.record_batch({"n": [str(sorted(context.allGather(str(context.partitionId()))))]})

    both(lambda: frame.mapInArrow(gathers, "n string", barrier=True))


def test_job_that_is_cancelled_ends_and_leaves_its_workers_to_spark(
    spark, frame, set_option, thread, until, tmp_path
):
    def waits(batches):
        for batch in batches:
            Path(f"{tmp_path}/{os.getpid()}").touch()
            signal.pause()
            yield batch

    def run():
        spark.sparkContext.setJobGroup("cancelled", "", interruptOnCancel=True)
        frame.mapInArrow(waits, frame.schema).collect()

    set_option(FUNCTIONS, "on")
    job = thread(run)
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    spark.sparkContext.cancelJobGroup("cancelled")
    with pytest.raises(Exception, match=r"(?i)cancel"):
        job.outcome()
    until(lambda: not any(Path(f"/proc/{pid.name}").exists() for pid in tmp_path.iterdir()))
    assert frame.mapInArrow(mapped.counts, "n long").count() == 10


def test_worker_of_a_cancelled_task_that_did_not_wait_for_it_ends(
    spark, set_option, thread, until, tmp_path
):
    def waits(batches):
        for _ in batches:
            Path(f"{tmp_path}/{os.getpid()}").touch()
            signal.pause()
            yield from ()

    def run():
        spark.sparkContext.setJobGroup("cancelled", "", interruptOnCancel=True)
        sleeps = "if(id > 250, reflect('java.lang.Thread', 'sleep', 600000L), '') slept"
        spark.range(0, 1000, 1, 1).selectExpr(sleeps).mapInArrow(waits, "slept string").collect()

    set_option(FUNCTIONS, "on")
    set_option(ROWS, 100)
    job = thread(run)
    until(lambda: list(tmp_path.iterdir()))
    spark.sparkContext.cancelJobGroup("cancelled")
    with pytest.raises(Exception, match=r"(?i)cancel"):
        job.outcome()
    (pid,) = tmp_path.iterdir()
    until(lambda: not Path(f"/proc/{pid.name}").exists())


def test_workers_are_used_again_and_no_ring_has_a_name(spark, frame, set_option):
    def pids(batches):
        for _ in batches:
            pass
        yield pa.record_batch({"n": [os.getpid()]})

    set_option(FUNCTIONS, "on")
    first = {row.n for row in frame.mapInArrow(pids, "n long").collect()}
    again = {row.n for row in frame.mapInArrow(pids, "n long").collect()}
    assert first & again
    assert not list(Path("/dev/shm").glob("shmring.worker.*"))


def test_garbage_is_looked_for_in_what_a_task_leaves_and_not_in_modules(
    frame, set_option, until, tmp_path
):
    class Left:
        pass

    def leaves(batches):
        left = Left()
        left.itself = left
        out = gc.get_freeze_count()
        sign = Path(f"{tmp_path}/{os.getpid()}-{out}")
        weakref.finalize(left, sign.touch)
        for _ in batches:
            pass
        yield pa.record_batch({"out": [out], "sign": [str(sign)]})

    set_option(FUNCTIONS, "on")
    query = frame.mapInArrow(leaves, "out long, sign string")
    query.collect()
    again = query.collect()
    assert all(row.out > 10_000 for row in again)
    until(lambda: all(Path(row.sign).exists() for row in again))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "60"),
        ("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true"),
        ("spark.sql.pyspark.worker.logging.enabled", "true"),
    ],
)
def test_what_changes_how_spark_runs_functions_leaves_them_to_it(
    both, frame, set_option, option, value
):
    set_option(option, value)
    both(lambda: frame.mapInArrow(mapped.counts, "n long"), over_rings=False)
    (reason,) = _reasons(frame.mapInArrow(mapped.counts, "n long"))
    assert "workers" in reason or "schema" in reason


def _reasons(frame) -> list[str]:
    """Why functions take Spark's own way, as explain() says it."""
    return re.findall(r" \[Spark's own way: (.*?)\]", plan_of(frame))


def test_explain_says_why_a_function_is_left_to_spark(spark, frame, set_option):
    set_option(FUNCTIONS, "on")
    pickled = functions.udf(lambda x: x + 1, "double", useArrow=False)
    assert _reasons(frame.select(pickled("half"))) == ["functions of this kind are not taken"]
    alone = functions.udf(lambda: 1, "long", useArrow=True).asNondeterministic()
    assert _reasons(frame.select(alone())) == ["it takes no columns"]
    variant = frame.selectExpr("parse_json(text) v").mapInArrow(
        lambda batches: batches, "v variant"
    )
    assert _reasons(variant) == ['column "v" of the type variant']
    assert _reasons(frame.select(*_columns()["cast"]())) == []
    set_option(FUNCTIONS, "off")
    assert _reasons(frame.select(pickled("half"))) == []


# --- UDFs ---------------------------------------------------------------------------------------


UDFS = (
    *("columns", "the same twice", "expressions", "named", "struct", "arrow"),
    *("chain", "of two kinds", "cast"),
)


def _columns():
    """UDFs of all sorts, as columns of the frame."""

    @functions.pandas_udf("double")
    def plus(x: pd.Series, y: pd.Series) -> pd.Series:
        return x + y

    @functions.pandas_udf("string")
    def shouts(x: pd.Series) -> pd.Series:
        return x.str.upper() + "!"

    @functions.pandas_udf("a long, b string")
    def both_of(x: pd.Series, y: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"a": x, "b": y})

    @functions.arrow_udf("long")
    def doubled(x: pa.Array) -> pa.Array:
        return pc.multiply(x, 2)

    @functions.pandas_udf("int")
    def cast(x: pd.Series) -> pd.Series:
        return x * 2

    return {
        "columns": lambda: [plus("id", "half")],
        "the same twice": lambda: [plus("half", "half")],
        "expressions": lambda: [plus(functions.col("id") + 1, "half"), shouts("text")],
        "named": lambda: [plus(y=functions.col("half"), x=functions.col("id"))],
        "struct": lambda: [both_of("id", "text")],
        "arrow": lambda: [doubled("id"), doubled(functions.col("id") % 7)],
        "chain": lambda: [plus(plus("half", "id"), "id"), shouts(shouts("text"))],
        "of two kinds": lambda: [plus(doubled("id"), "half"), doubled(doubled("id"))],
        "cast": lambda: [cast("half")],
    }


@pytest.mark.parametrize(("name", "beside"), [(UDFS[0], []), *((name, ["*"]) for name in UDFS)])
def test_udf(both, frame, name, beside):
    both(lambda: frame.select(*beside, *_columns()[name]()))


@pytest.mark.parametrize("generated", [True, False])
def test_udfs_of_a_file(both, spark, frame, set_option, tmp_path, generated):
    set_option("spark.sql.codegen.wholeStage", generated)
    frame.selectExpr("if(id % 3 = 0, null, half) half", "id", "text").write.parquet(
        str(tmp_path / "rows")
    )
    file = spark.read.parquet(str(tmp_path / "rows"))
    both(lambda: file.select("*", *_columns()["columns"](), *_columns()["arrow"]()))


@pytest.mark.parametrize("name", ["raises", "loses a row", "ends its process"])
def test_udf_that_fails(both, frame, name):
    def fails(x: pd.Series) -> pd.Series:
        if name == "raises":
            raise ValueError(f"of {len(x)} rows")
        if name == "ends its process":
            os._exit(3)
        return x[:-1]

    udf = functions.pandas_udf(fails, "double")
    both(lambda: frame.coalesce(1).select(udf("half")))
    both(lambda: frame.select("id", *_columns()["columns"]()))


@pytest.mark.parametrize("beside", [[], ["*"]])
@pytest.mark.parametrize("kind", ["series", "arrays"])
@pytest.mark.parametrize("function", mapped.ITERATORS)
def test_udf_of_iterators(both, frame, function, kind, beside):
    def of_arrays(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return function(batches)

    def of_series(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return mapped.of_series(function)(batches)

    if kind == "arrays":
        udf = functions.arrow_udf(of_arrays, "long")
    else:
        udf = functions.pandas_udf(of_series, "long")
    both(lambda: frame.coalesce(1).select(*beside, udf("id")))
    both(lambda: frame.where("id < 0").select(*beside, udf("id")))


def test_udf_of_iterators_over_the_columns_of_a_file(both, spark, set_option, tmp_path):
    set_option(ROWS, 10_000)
    spark.range(25_000, numPartitions=1).selectExpr(
        "id", "repeat('x', 300) text", "if(id % 3 = 0, null, id) n"
    ).write.parquet(str(tmp_path / "rows"))
    file = spark.read.parquet(str(tmp_path / "rows"))

    def ahead(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return mapped.looks_one_ahead(batches)

    def joins(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for first, second in list(batches):
            yield first + second

    def splits(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            for part in (batch[:4321], batch[4321:]):
                yield pd.DataFrame({"n": part, "twice": part * 2})

    both(lambda: file.select("*", functions.arrow_udf(ahead, "string")("text")))
    both(lambda: file.select("*", functions.pandas_udf(joins, "long")("n", "id")))
    both(lambda: file.select("*", functions.pandas_udf(splits, "n long, twice long")("id")))


# --- groups -------------------------------------------------------------------------------------


@pytest.fixture
def grouped(frame, set_option):
    set_option("spark.sql.shuffle.partitions", 2)
    set_option(ROWS, 100)
    return frame.selectExpr("id % 7 k", "*").groupBy("k")


def _of_groups() -> dict[str, Callable[..., Any]]:
    """Functions for applyInArrow, and for applyInPandas where a frame is one of pandas'."""

    def counts(key: Any, table: pa.Table) -> pa.Table:
        return pa.table({"k": [key[0].as_py()], "n": [table.num_rows], "of": [_chunks(table)]})

    def batches(key: Any, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield pa.record_batch({"k": [key[0].as_py()], "n": [part.num_rows], "of": ["part"]})

    def stops(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = next(parts)
        yield pa.record_batch({"k": part.column("k"), "n": part.column("id"), "of": part["text"]})

    def nothing(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter([])

    def raises(table: pa.Table) -> pa.Table:
        if table.column("k")[0].as_py() == 3:
            raise ValueError("of the third group")
        return pa.table({"k": [0], "n": [0], "of": ["before"]})

    def misnames(table: pa.Table) -> pa.Table:
        return pa.table({"k": [1], "m": [1], "of": ["m"]})

    def mistypes(table: pa.Table) -> pa.Table:
        return pa.table({"k": [1], "n": ["1"], "of": ["text"]})

    def no_table(table: pa.Table) -> Any:
        return 1

    return {
        each.__name__: each
        for each in (counts, batches, stops, nothing, raises, misnames, mistypes, no_table)
    }


def _chunks(table: pa.Table) -> str:
    return str([len(chunk) for chunk in table.column("id").chunks])


OF_GROUPS = tuple(_of_groups())


@pytest.mark.parametrize("name", OF_GROUPS)
def test_groups_of_arrow(both, grouped, name):
    both(lambda: grouped.applyInArrow(_of_groups()[name], "k long, n long, of string"))


def test_groups_of_pandas(both, grouped, set_option):
    def counts(key: Any, table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"of": table["text"].max(), "k": key[0], "n": [len(table)]})

    def parts(key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in frames:
            yield pd.DataFrame({"k": key[0], "n": [len(part)], "of": "part"})

    def raises(table: pd.DataFrame) -> pd.DataFrame:
        raise ValueError(f"of {len(table)} rows")

    def misnames(table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": [1], "m": [1], "of": ["m"]})

    for function in (counts, parts, raises, misnames):
        both(lambda: grouped.applyInPandas(function, "k long, n long, of string"))  # noqa: B023


@pytest.mark.parametrize("expressions", [[], ["k"], ["k", "text"], ["id % 3"]])
def test_groups_by_keys_of_all_sorts(both, frame, expressions):
    keys = [functions.expr(each) for each in expressions]
    keyed = frame.limit(60).selectExpr("id % 7 k", "id", "half", "text")
    both(lambda: keyed.groupBy(*keys).applyInArrow(lambda table: table, keyed.schema))
    both(lambda: keyed.groupBy(*keys).applyInPandas(lambda table: table, keyed.schema))
    both(lambda: keyed.where("id < 0").groupBy(*keys).applyInArrow(lambda t: t, keyed.schema))


def test_groups_of_every_type(spark, both, set_option):
    set_option(ROWS, 100)
    frame = spark.range(1000, numPartitions=2).selectExpr("id % 3 k", *columns_of(TYPES, "some"))
    both(lambda: frame.groupBy("k").applyInArrow(lambda table: table, frame.schema))


@pytest.mark.parametrize("most", [1, 1000, 20_000])
def test_batches_of_groups_have_sparks_own_sizes(both, grouped, set_option, most):
    set_option("spark.sql.execution.arrow.maxBytesPerBatch", most)
    both(lambda: grouped.applyInArrow(_of_groups()["counts"], "k long, n long, of string"))


def test_group_that_is_larger_than_the_rings(both, spark, set_option):
    set_option(ROWS, 100_000)
    uneven = spark.range(50_000, numPartitions=1).selectExpr(
        "if(id < 5, 0, 1) k", "id", "repeat('x', 300) text"
    )
    both(lambda: uneven.groupBy("k").applyInArrow(lambda table: table, uneven.schema))


COGROUPED = "k long, n long, m long, of string"


def _of_cogroups() -> dict[str, Callable[..., Any]]:
    def counts(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
        sizes = f"{_chunks(left)} {_chunks(right)}"
        rows = {"n": [left.num_rows], "m": [right.num_rows]}
        return pa.table({"k": [key[0].as_py()], **rows, "of": [sizes]})

    def takes_left(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"k": left["k"], "n": left["id"], "m": left["id"], "of": left["text"]})

    def raises(left: pa.Table, right: pa.Table) -> pa.Table:
        raise ValueError(f"of {left.num_rows} and {right.num_rows} rows")

    return {each.__name__: each for each in (counts, takes_left, raises)}


@pytest.mark.parametrize("name", ["counts", "takes_left", "raises"])
def test_cogroups_of_arrow(both, grouped, frame, name):
    other = frame.selectExpr("half", "id % 11 + 3 k", "id").groupBy("k")
    both(lambda: grouped.cogroup(other).applyInArrow(_of_cogroups()[name], COGROUPED))


def test_cogroups_of_pandas(both, grouped, frame):
    other = frame.selectExpr("half", "id % 11 + 3 k", "id").groupBy("k")

    def counts(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        sizes = {"n": [len(left)], "m": [len(right)]}
        return pd.DataFrame({"k": key[0], **sizes, "of": str(list(left) + list(right))})

    both(lambda: grouped.cogroup(other).applyInPandas(counts, COGROUPED))


# --- aggregates ---------------------------------------------------------------------------------


def _aggregates() -> dict[str, Callable[..., Any]]:
    @functions.pandas_udf("double")
    def mean(x: pd.Series) -> float:
        return x.mean()

    @functions.pandas_udf("string")
    def both_of(x: pd.Series, y: pd.Series) -> str:
        return f"{x.max()} {y.min()}"

    @functions.pandas_udf("double")
    def parts(batches: Iterator[pd.Series]) -> float:
        return sum(len(batch) * 1000 + batch.iloc[0] for batch in batches)

    @functions.arrow_udf("long")
    def total(x: pa.Array) -> pa.Scalar:
        return pc.sum(x)

    @functions.arrow_udf("long")
    def first_only(batches: Iterator[pa.Array]) -> int:
        return len(next(batches))

    @functions.pandas_udf("long")
    def raises(x: pd.Series) -> int:
        raise ValueError(f"of {len(x)} rows")

    third = functions.expr("id % 3")
    return {
        "mean": lambda frame: frame.groupBy("k").agg(mean("id")),
        "several": lambda frame: frame.groupBy("k").agg(mean("id"), both_of("id", "text")),
        "named": lambda frame: frame.groupBy("k").agg(both_of(y="text", x="id").alias("of")),
        "expressions": lambda frame: frame.groupBy(third).agg(mean(third + 1) + third, third * 2),
        "all": lambda frame: frame.agg(mean("id"), mean(functions.col("id") + 1)),
        "of nothing": lambda frame: frame.where("id < 0").agg(mean("id")),
        "groups of nothing": lambda frame: frame.where("id < 0").groupBy("k").agg(mean("id")),
        "arrow": lambda frame: frame.groupBy("k", "text").agg(total("id")).where("text > '33'"),
        "parts": lambda frame: frame.groupBy("k").agg(parts("id")),
        "first": lambda frame: frame.groupBy("k").agg(first_only("id")),
        "raises": lambda frame: frame.groupBy("k").agg(raises("id")),
        "of a udf": lambda frame: frame.groupBy("k").agg(mean(_columns()["cast"]()[0])),
    }


AGGREGATES = (
    *("mean", "several", "named", "expressions", "all", "of nothing", "groups of nothing"),
    *("arrow", "parts", "first", "raises", "of a udf"),
)


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates(both, frame, set_option, name):
    set_option("spark.sql.shuffle.partitions", 2)
    set_option(ROWS, 100)
    both(lambda: _aggregates()[name](frame.selectExpr("id % 7 k", "*")))


def test_aggregates_that_spark_refuses(both, frame):
    def mean(x: pd.Series) -> float:
        return x.mean()

    udf = functions.pandas_udf(mean, "double")
    both(lambda: lambda: frame.agg(udf("id"), functions.sum("id")).collect())


# --- functions of values ------------------------------------------------------------------------


ROW_BY_ROW = (
    "number",
    "text",
    "struct",
    "list",
    "two",
    "named",
    "chain",
    "raises",
    "wrong",
    "zone",
)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_udf_of_values(both, frame, name):
    def raises(x):
        raise ValueError(f"of {x}")

    def udf(function, kind):
        return functions.udf(function, kind, useArrow=True)

    less = udf(lambda x, y: x - y, "double")
    once = udf(lambda x: None if x % 5 == 0 else x + 1, "long")
    made = {
        "number": lambda: [once("id")],
        "text": lambda: [udf(lambda text: text * 2, "string")("text")],
        "struct": lambda: [udf(lambda x: {"a": x, "b": str(x)}, "a long, b string")("id")],
        "list": lambda: [udf(lambda x: [x, None], "array<long>")("id")],
        "two": lambda: [less("id", "half"), less("half", functions.col("id") + 1)],
        "named": lambda: [less(y=functions.col("id"), x=functions.col("half"))],
        "chain": lambda: [less(less("id", "half"), "half"), once(once(functions.col("id") + 1))],
        "raises": lambda: [udf(raises, "long")("id")],
        "wrong": lambda: [udf(lambda x: "text", "date")("id")],
        "zone": lambda: [
            udf(lambda time: str(time), "string")(functions.timestamp_seconds("id")),
            udf(lambda time: time, "timestamp")(functions.timestamp_seconds("id")),
        ],
    }[name]
    both(lambda: frame.select("*", *made()))
    both(lambda: frame.select(*made()))


def test_udf_of_values_is_one_where_spark_makes_it_one(both, frame, set_option):
    set_option("spark.sql.execution.pythonUDF.arrow.enabled", True)
    plain = functions.udf(lambda x: x * 2.5, "double")
    both(lambda: frame.select("id", plain("half")))


def test_udf_that_is_left_to_spark(both, frame):
    pickled = functions.udf(lambda x: x + 1, "double", useArrow=False)
    both(lambda: frame.limit(1).select(pickled("half")), over_rings=False)


@pytest.mark.parametrize(
    ("kind", "most", "generated"),
    [
        ("rows", 1, True),
        ("rows", 1000, False),
        ("rows", 5000, True),
        ("rows", 20_000, False),
        ("nested", 1000, True),
        ("nested", 5000, False),
        ("file", 1000, False),
        ("file", 20_000, True),
    ],
)
def test_batches_have_sparks_own_sizes(both, spark, set_option, tmp_path, most, kind, generated):
    def sizes(batches):
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows]})

    set_option("spark.sql.execution.arrow.maxBytesPerBatch", most)
    set_option("spark.sql.codegen.wholeStage", generated)
    columns = ["if(id % 3 = 0, null, id) id", "repeat('x', int(id % 50)) text", "id % 2 = 0 flag"]
    if kind == "nested":
        columns += ["array(id, null) ids", "struct(id, string(id) s) both"]
    frame = spark.range(300, numPartitions=1).selectExpr(*columns, "cast(id as decimal(30)) d")
    if kind == "file":
        frame.write.parquet(str(tmp_path / "rows"))
        frame = spark.read.parquet(str(tmp_path / "rows"))
    both(lambda: frame.mapInArrow(sizes, "n long"))
