"""Rows that generated code writes into a sidecar's batches, and the columns that come back."""

from __future__ import annotations

import pytest
from direct import (
    FLAT,
    ROWS,
    TYPES,
    ZONED,
    columns_of,
    is_direct,
    metrics_of,
    own_identity,
    plan_of,
)
from pyspark.sql import functions
from pyspark.sql.functions import col

from shmring.spark import arrow_udf, through

WHOLE_STAGE = "spark.sql.codegen.wholeStage"
ADAPTIVE = "spark.sql.adaptive.enabled"
NUMBERS = {column: text for column, text in FLAT.items() if column != "bytes"}
# An answer lies where the ones before it lay: each row has another text.
TEXTS = "repeat(hex(id * 7919), 8) text"
FEW_SLOTS = 1024
ANSWERS = ("map", "udf", "beside udf")


def through_identity(frame, name, **options):
    return frame.mapInArrow(through(name, **options), frame.schema)


def lines_of(frame, name):
    """The sidecar's line of a plan that has run, and those above and below."""
    lines = plan_of(frame).splitlines()
    at = next(i for i, line in enumerate(lines) if f"Sidecar {name}" in line)
    return lines[at - 1] if at else "", lines[at + 1]


# Each kind of types and of nulls, with and without generated code and adaptive plans.
@pytest.mark.parametrize(
    ("types", "nulls", "generated", "adaptive"),
    [
        (FLAT, "none", True, True),
        (FLAT, "some", False, False),
        (FLAT, "all", True, False),
        (TYPES, "all", False, False),
        (NUMBERS, "some", True, True),
        (TYPES, "some", True, True),
    ],
)
def test_each_type_there_and_back(spark, served, set_option, generated, adaptive, types, nulls):
    name = served("identity", workers=2)
    set_option(ROWS, 700)
    set_option(WHOLE_STAGE, generated)
    set_option(ADAPTIVE, adaptive)
    frame = spark.range(3000, numPartitions=2).selectExpr("id", *columns_of(types, nulls))
    result = through_identity(frame, name)
    rows = result.collect()
    assert is_direct(result, name)
    assert rows == frame.collect()
    above, below = lines_of(result, name)
    assert ("RowsToArrow" in below) == (generated and types is not TYPES)
    assert ("ColumnarToRow" in above) == (generated and types is NUMBERS)
    found = metrics_of(result)
    assert found["numInputRows"] == found["numOutputRows"] == 3000


def test_plan_shows_what_is_generated(spark, served):
    name = served("identity")
    frame = spark.range(100).selectExpr("id", "2 * id twice")
    result = through_identity(frame, name).where("twice > 10").groupBy().sum("twice")
    assert result.collect() == frame.where("twice > 10").groupBy().sum("twice").collect()
    above, below = lines_of(result, name)
    assert "*(2) ColumnarToRow" in above
    assert "*(1) RowsToArrow" in below


def test_what_is_above_takes_binaries_as_columns_where_it_is_generated(spark, served):
    name = served("identity")
    frame = spark.range(5000, numPartitions=2).selectExpr("id", f"{FLAT['bytes']} bytes")
    total = "sum(id), sum(length(bytes))"
    result = through_identity(frame, name).selectExpr(*total.split(", "))
    assert result.collect() == frame.selectExpr(*total.split(", ")).collect()
    assert "ColumnarToRow" in lines_of(result, name)[0]


def test_one_sidecar_takes_the_columns_of_another(spark, served):
    name = served("identity")
    frame = spark.range(5000, numPartitions=2).selectExpr("id", TEXTS)
    result = through_identity(through_identity(frame, name), name)
    assert result.collect() == frame.collect()
    assert [line for line in plan_of(result).splitlines() if "ColumnarToRow" in line][1:] == []


def test_udf_over_columns_gives_columns(spark, plain, served):
    """To generated code, and to the next sidecar."""
    name, other = served("identity"), served("identity", workers=2)

    def udf(frame, sidecar, column, kind):
        return frame.withColumn(column, arrow_udf(sidecar, kind)(column))

    total = ["sum(id)", "max(text)"]
    result = udf(plain, name, "id", "long").selectExpr(*total)
    assert result.collect() == plain.selectExpr(*total).collect()
    above, below = lines_of(result, name)
    assert "*(1) ColumnarToRow" in above
    assert "ColumnarToRow" not in below
    twice = udf(udf(plain, name, "id", "long"), other, "text", "string")
    assert twice.collect() == plain.collect()
    assert plan_of(twice).count("ColumnarToRow") == 2  # one over each sidecar's answers
    assert "RowsToArrow" in plan_of(twice)  # a projection stands between the two


CHILDREN = (
    "select id, text from numbers where id % 3 = 0",
    "select id % 10 id, max(text) text from numbers group by 1",
    "select a.id, b.text from numbers a join numbers b on a.id = b.id + 1",
    "select id, text from numbers where id < 0",
    "select id, text from numbers order by text",
    "select id, text from numbers limit 77",
    "select id, text from numbers union all select -id, text from numbers",
    "select explode(array(id, id + 1)) id, text from numbers",
    "select * from values (1L, 'a'), (2L, null) as few(id, text)",
)


@pytest.mark.parametrize(
    ("below", "generated"),
    [*((child, True) for child in CHILDREN), (CHILDREN[1], False)],
)
def test_each_kind_of_child(spark, served, set_option, below, generated):
    """Among them some that give no row at all, or are no part of a generated stage."""
    name = served("identity")
    set_option(WHOLE_STAGE, generated)
    numbers = spark.range(3000, numPartitions=3).selectExpr("id", TEXTS)
    numbers.createOrReplaceTempView("numbers")
    frame = spark.sql(below)
    assert sorted(through_identity(frame, name).collect()) == sorted(frame.collect())


@pytest.mark.parametrize(
    ("size", "rows", "generated"),
    [
        ("300 * (id % 400)", 10_000, True),
        ("if(id % 50 = 0, 100000, 10)", 10, True),
        ("if(id % 50 = 0, 100000, 10)", 10_000, False),
        ("120000", 1, True),
    ],
)
def test_rows_of_many_sizes_fit_a_small_ring(spark, served, set_option, generated, size, rows):
    """A row that does not fit its batch begins the next one; a large one goes alone."""
    name = served("identity", slots=FEW_SLOTS)
    set_option(ROWS, rows)
    set_option(WHOLE_STAGE, generated)
    count = 400 if rows > 1 else 120
    frame = spark.range(count, numPartitions=2).selectExpr(
        "id", f"repeat('x', cast(1 + {size} as int)) text"
    )
    result = through_identity(frame, name, reply_slots=2048)
    assert result.collect() == frame.collect()
    assert metrics_of(result)["numInputRows"] == count


@pytest.mark.parametrize(
    ("below", "rows"),
    [
        pytest.param(
            "select id, explode(transform(sequence(1, 20000), x -> concat(text, x))) from numbers",
            10,
            marks=pytest.mark.long,
        ),
        ("select a.id, b.id other, a.text from numbers a cross join range(20000) b", 10_000),
        (
            "select /*+ merge(a, b) */ a.id, b.text"
            " from numbers a join many b on a.id % 2 = b.id % 2",
            10_000,
        ),
    ],
    ids=["explode", "cross join", "merge join"],
)
def test_one_row_gives_more_than_many_batches_take(spark, served, set_option, below, rows):
    """Spark's code does not stop between what one row gives."""
    name = served("with_rows", slots=FEW_SLOTS)
    set_option(ROWS, rows)
    for view, count in (("numbers", 3), ("many", 20_000)):
        numbers = spark.range(count, numPartitions=1).selectExpr("id", TEXTS)
        numbers.createOrReplaceTempView(view)
    frame = spark.sql(below)
    schema = f"{frame._jdf.schema().toDDL()}, rows long"
    result = frame.mapInArrow(through(name, reply_slots=FEW_SLOTS), schema)
    given = result.collect()
    assert sorted(row[:-1] for row in given) == sorted(map(tuple, frame.collect()))
    assert max(row.rows for row in given) <= rows
    assert "RowsToArrow" in lines_of(result, name)[1]


@pytest.mark.parametrize(
    ("below", "rows"),
    [
        pytest.param(
            "select a.id, b.id other from numbers a cross join range(3) b",
            1000,
            marks=pytest.mark.long,
        ),
        ("select id, other from numbers lateral view outer explode(array(id, -id)) as other", 1000),
        (
            "select /*+ merge(a, b) */ a.id, b.id other"
            " from numbers a join numbers b on a.id % 500 = b.id % 500",
            7,
        ),
        (
            "select id, id % 7 other, count(*) n from numbers"
            " group by id, 2 grouping sets ((id), (2))",
            1000,
        ),
        (
            "select a.id, b.id other, repeat('x', 40) text from numbers a cross join range(3000) b"
            " where a.id % 1000 = 0",
            1000,
        ),
    ],
    ids=["cross join", "outer explode", "merge join", "expand", "thousands of a row"],
)
def test_batches_have_the_rows_of_sparks_own(spark, served, set_option, below, rows):
    """Also where one row gives several, and where the code does not stop between them."""
    name = served("with_rows")
    set_option(ROWS, rows)
    spark.range(2500, numPartitions=2).createOrReplaceTempView("numbers")
    frame = spark.sql(below)
    schema = f"{frame._jdf.schema().toDDL()}, rows long"
    result = frame.mapInArrow(through(name), schema)
    assert result.collect() == frame.mapInArrow(own_with_rows(), schema).collect()
    assert is_direct(result, name)


def test_batches_have_the_rows_of_sparks_own_where_the_sidecar_comes_late(
    spark, serve, name, set_option, thread, until, patience
):
    """It says how many bytes a batch may have, and the first row gives thousands."""
    set_option(ROWS, 1000)
    begun = f"begun.{name}"
    spark.range(2, numPartitions=1).createOrReplaceTempView("two")
    frame = spark.sql(
        "select /*+ broadcast(b) */ a.id, b.id other, repeat('x', 40) text from (select id,"
        f" reflect('java.lang.System', 'setProperty', '{begun}', cast(id as string)) before"
        " from two) a cross join range(3000) b where coalesce(a.before, '') != 'never'"
    )
    schema = f"{frame._jdf.schema().toDDL()}, rows long"
    expected = frame.mapInArrow(own_with_rows(), schema).collect()
    spark._jvm.System.clearProperty(begun)
    result = frame.mapInArrow(through(name, connect_timeout=patience), schema)
    job = thread(result.collect)
    until(lambda: spark._jvm.System.getProperty(begun))
    serve("with_rows")
    assert job.outcome() == expected
    assert "RowsToArrow" in lines_of(result, name)[1]


def own_with_rows():
    """The function with_rows for Spark's own workers; pickled by value."""

    def own(batches):
        import pyarrow as pa

        for batch in batches:
            yield batch.append_column("rows", pa.array([batch.num_rows] * batch.num_rows))

    return own


@pytest.fixture(scope="module")
def plain(spark, tmp_path_factory):
    """Rows of a file, which has columns."""
    folder = str(tmp_path_factory.mktemp("rows") / "plain")
    spark.range(8_000, numPartitions=2).selectExpr("id", TEXTS).write.parquet(folder)
    return spark.read.parquet(folder)


@pytest.fixture(params=ANSWERS)
def answered(request, plain, served, set_option):
    """Rows whose answers lie where those after them will lie, and the same rows without."""
    set_option(ROWS, 50)
    name = served("identity", slots=FEW_SLOTS)
    if request.param == "map":
        return through_identity(plain, name, reply_slots=FEW_SLOTS), plain
    column = "text" if request.param == "udf" else "id"
    same = arrow_udf(name, plain.schema[column].dataType, reply_slots=FEW_SLOTS)
    return plain.withColumn(column, same(column)), plain


KEEPERS = {
    "sort": lambda frame: frame.orderBy(col("text").desc()),
    "groups": lambda frame: frame.groupBy((col("id") % 7).alias("k")).agg(
        functions.max("text"), functions.min("text"), functions.first("text", True).isNotNull()
    ),
    "all": lambda frame: frame.agg(functions.max("text"), functions.min("text")),
    "keys": lambda frame: frame.groupBy("text").count(),
    "broadcast": lambda frame: frame.join(
        functions.broadcast(frame.withColumnRenamed("text", "other")), "id"
    ),
    "explode": lambda frame: frame.selectExpr("explode(array(text, lower(text))) text"),
    "nested": lambda frame: frame.selectExpr("named_struct('a', text, 'b', array(text)) nested"),
    "set": lambda frame: (
        frame.groupBy()
        .agg(functions.collect_set("text").alias("all"))
        .selectExpr("size(all) n", "array_max(all) most")
    ),
}


# Each after one kind of answer, the first after all.
@pytest.mark.parametrize(
    ("answered", "keeper"),
    [
        *((answer, "sort") for answer in ANSWERS),
        *(
            pytest.param(
                ANSWERS[i % len(ANSWERS)],
                keeper,
                marks=[] if keeper in ("groups", "broadcast") else pytest.mark.long,
            )
            for i, keeper in enumerate(KEEPERS)
            if i
        ),
    ],
    indirect=["answered"],
)
def test_what_keeps_values_has_them_when_their_place_is_used_again(answered, keeper):
    through_sidecar, plain = answered
    query = KEEPERS[keeper]
    assert sorted(query(through_sidecar).collect()) == sorted(query(plain).collect())


def test_cache_has_values_when_their_place_is_used_again(answered):
    through_sidecar, plain = answered
    cached = through_sidecar.cache()
    try:
        assert sorted(cached.collect()) == sorted(plain.collect())
        assert cached.selectExpr("max(text)").collect() == plain.selectExpr("max(text)").collect()
    finally:
        cached.unpersist()


def check_another_thread(spark, through_sidecar, plain):
    own = through_sidecar.mapInArrow(own_identity(), plain.schema)
    assert sorted(own.collect()) == sorted(plain.collect())
    through_sidecar.createOrReplaceTempView("answered")
    by_cat = "select transform(id, text) using 'cat' as (id long, text string) from answered"
    assert sorted(spark.sql(by_cat).collect()) == sorted(plain.collect())
    for _ in range(5):  # a limit ends a task that has more to read
        own = through_sidecar.mapInArrow(own_identity(), plain.schema)
        assert len(own.limit(3).collect()) == 3
    assert sorted(through_sidecar.collect()) == sorted(plain.collect())


@pytest.mark.parametrize(
    "answered", ["map", pytest.param("beside udf", marks=pytest.mark.long)], indirect=True
)
def test_another_thread_reads_the_answers(spark, answered):
    check_another_thread(spark, *answered)


@pytest.mark.parametrize(
    "columns",
    [101, pytest.param(90, marks=pytest.mark.long), pytest.param(2000, marks=pytest.mark.long)],
)
def test_many_columns(spark, served, columns):
    """Up to a hundred are generated; no class or method becomes too large."""
    frame = spark.range(300, numPartitions=2).select(
        *((col("id") * i).alias(f"c{i}") for i in range(columns))
    )
    rows = frame.collect()
    name = served("identity")
    result = through_identity(frame, name)
    assert result.collect() == rows
    assert ("RowsToArrow" in lines_of(result, name)[1]) == (columns <= 100)
    total = arrow_udf(served("total"), "long")  # gets all columns, which stay beside its result
    assert frame.select("*", total(*frame.columns)).collect() == [(*row, sum(row)) for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("count", [1000, 10_000])
def test_row_of_thousands_of_fields(spark, served, count):
    name = served("identity")
    fields = ", ".join(f"id + {i} f{i}" for i in range(count))
    frame = spark.range(3, numPartitions=1).selectExpr(f"struct({fields}) wide")
    same = arrow_udf(name, frame.schema["wide"].dataType)
    beside = frame.select("wide", arrow_udf(name, "long")(frame["wide.f0"]))
    for result in (through_identity(frame, name), frame.select(same("wide").alias("wide")), beside):
        assert is_direct(result, name)
        ends = result.selectExpr("wide.f0", f"wide.f{count - 1}")
        assert ends.collect() == [(i, i + count - 1) for i in range(3)]


@pytest.mark.long
def test_threads_of_pipelined_workers_read_the_answers(start_spark, serve, name):
    options = {**ZONED, ROWS: "50", "spark.python.udf.pipelined.enabled": "true"}
    spark = start_spark("local[2]", **options)
    serve("identity", slots=FEW_SLOTS)
    frame = spark.range(8_000, numPartitions=2).selectExpr("id", TEXTS)
    check_another_thread(spark, through_identity(frame, name, reply_slots=FEW_SLOTS), frame)
