"""A branch is read once in a plan, however the ring is written and whatever the plan is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fixture_types import Load
from pyspark.sql import DataFrame, SparkSession

import shmring

SCHEMA = pa.schema([("number", pa.int64())])
ROWS = 100
REFUSED = r'branch "b" is read twice in this plan'


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=4096, schema=SCHEMA, temporary=True) as ring:
        ring.subscribe("b", start="earliest")
        fill(ring)
        yield ring


def fill(ring: shmring.Ring, first: int = 0) -> None:
    with ring.arrow_writer() as writer:
        for number in range(first, first + ROWS):
            writer.write(pa.table([[number]], schema=SCHEMA))


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """Loads a ring as it is written, with the branch unless told otherwise."""

    def load(ring: object, how: str = "load", **options: str) -> DataFrame:
        reader = spark.read.format("shmring").options(**{"branch": "b", **options})
        return reader.load(str(ring)) if how == "load" else reader.option("ring", str(ring)).load()

    return load


@pytest.fixture(params=["path", "file:", "slashes", "folder that is a link", "hard link"])
def other(request: pytest.FixtureRequest, ring: shmring.Ring, tmp_path: Path) -> Iterator[str]:
    """The same ring, as it may be written, too."""
    path = Path(ring.path)
    hard = path.with_name(path.name + "-too")
    hard.hardlink_to(path)
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    yield {
        "path": str(path),
        "file:": path.as_uri(),
        "slashes": f"//dev/./shm/../shm/{path.name}",
        "folder that is a link": str(link / path.name),
        "hard link": str(hard),
    }[request.param]
    hard.unlink()


def test_ring_is_the_same_however_it_is_written(ring: shmring.Ring, load: Load, other: str) -> None:
    with pytest.raises(Exception, match=REFUSED):
        load(ring.name).union(load(other, "option")).collect()
    pair = load(other).alias("a").join(load(ring.name, "option").alias("b"), "number")
    with pytest.raises(Exception, match=REFUSED):
        pair.collect()
    assert load(other).count() == ROWS  # nothing was taken


def test_one_load_that_names_a_ring_twice_reads_it_once(
    ring: shmring.Ring, load: Load, other: str
) -> None:
    twice = f"{ring.name},{other}"
    assert load(twice, branch="").count() == ROWS
    assert load(twice, "option", branch="").count() == ROWS
    assert load(twice).count() == ROWS


def test_subquery_view_and_written_frame_are_looked_into(
    spark: SparkSession, ring: shmring.Ring, load: Load, tmp_path: Path
) -> None:
    load(ring.name).createOrReplaceTempView("by_name")
    load(ring.path).createOrReplaceTempView("by_path")
    for query in (
        "select * from by_name where number < (select avg(number) from by_path)",
        "select * from by_name where number in (select number from by_path)",
        "with x as (select number + rand() n from by_name) select * from x, by_path, x y",
        "select * from by_name union select * from by_path",
    ):
        with pytest.raises(Exception, match=REFUSED):
            spark.sql(query).collect()
    both = spark.table("by_name").union(spark.table("by_path"))
    with pytest.raises(Exception, match=REFUSED):
        both.write.parquet(str(tmp_path / "parquet"))
    with pytest.raises(Exception, match=REFUSED):
        both.write.format("shmring").mode("append").save(ring.name)
    with pytest.raises(Exception, match=REFUSED):
        spark.table("by_name").repartition(3).union(spark.table("by_path").repartition(3)).collect()
    assert load(ring.path).count() == ROWS


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_cached_frame_that_is_not_filled_yet_is_a_read(
    spark: SparkSession, ring: shmring.Ring, load: Load, adaptive: str
) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        other = load(ring.path)
        for cached in (
            load(ring.name).cache(),
            load(ring.name).repartition(3).groupBy("number").count().select("number").cache(),
            load(ring.name).cache().where("number >= 0").cache(),  # one that has another below it
        ):
            for both in (cached.union(other), other.union(cached)):
                with pytest.raises(Exception, match=REFUSED):
                    both.collect()
            cached.unpersist()
        load(ring.name).createOrReplaceTempView("by_name")
        nested = "select id from range(5) where id < (select max(number) from by_name)"
        cached = spark.sql(nested).cache()
        with pytest.raises(Exception, match=REFUSED):
            cached.union(other.select("number")).collect()
        cached.unpersist()
    finally:
        spark.catalog.clearCache()
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_cached_frame_that_is_filled_is_none(ring: shmring.Ring, load: Load) -> None:
    cached = load(ring.name).cache()
    assert cached.union(cached).count() == 2 * ROWS  # fills it once
    assert cached.union(load(ring.path)).count() == ROWS
    fill(ring, ROWS)
    assert cached.union(load(ring.path)).count() == 2 * ROWS
    cached.unpersist()


def test_two_caches_of_one_branch_fill_in_turn_only(ring: shmring.Ring, load: Load) -> None:
    one = load(ring.name).cache()
    other = load(ring.path).select("number", "number").cache()
    with pytest.raises(Exception, match=REFUSED):
        one.join(other).collect()
    assert one.count() == ROWS
    assert one.join(other).count() == 0  # the second has what came since
    one.unpersist()
    other.unpersist()


def test_other_branches_and_other_rings_are_free(ring: shmring.Ring, load: Load, name: str) -> None:
    ring.subscribe("c", start="earliest")
    assert load(ring.name).union(load(ring.path, branch="c")).count() == 2 * ROWS
    with shmring.create(f"{name}-other", slots=4096, schema=SCHEMA, temporary=True) as other:
        other.subscribe("b", start="earliest")
        fill(other)
        fill(ring)
        assert load(ring.name).union(load(other.path)).count() == 2 * ROWS


def test_stream_and_batch_of_one_branch_are_refused(
    ring: shmring.Ring, spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    stream = spark.readStream.format("shmring").options(ring=ring.name, branch="b").load()
    both = stream.alias("a").join(load(ring.path).alias("b"), "number")
    query = (
        both.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=REFUSED):
        query.awaitTermination()


def test_rings_of_other_hosts_are_compared_as_their_core_finds_them(
    spark: SparkSession, name: str
) -> None:
    def load(ring: str, host: str) -> DataFrame:
        reader = spark.read.format("shmring").schema("number long")
        return reader.options(ring=ring, branch="b", hosts=host, hostWait="0").load()

    one = load(name, "elsewhere")
    for other in (f"/dev/shm/shmring.{name}", f"/dev//shm/../shm/shmring.{name}"):
        with pytest.raises(Exception, match=REFUSED):
            one.union(load(other, "elsewhere")).collect()
    with pytest.raises(Exception, match="is on host elsewhere"):  # two rings: they are not found
        one.union(load(name, "elsewhere-too")).collect()


def test_stream_goes_on_under_another_writing_of_its_ring(
    ring: shmring.Ring, spark: SparkSession, tmp_path: Path
) -> None:
    seen: dict[int, list[int]] = {}

    def fails(frame: DataFrame, epoch: int) -> None:
        seen[epoch] = [row.number for row in frame.collect()]
        raise RuntimeError("behind its work")

    def takes(frame: DataFrame, epoch: int) -> None:
        seen.setdefault(epoch, []).extend(row.number for row in frame.collect())

    def run(written: str, sink: Callable[[DataFrame, int], None]) -> None:
        stream = spark.readStream.format("shmring").options(ring=written, branch="b").load()
        query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="behind its work"):
        run(ring.name, fails)
    assert seen == {0: list(range(ROWS))}
    seen.clear()
    run(ring.path, takes)  # the same batch again, under its number
    assert seen.pop(0) == list(range(ROWS))
    assert not any(seen.values())
