"""Arrow data of other libraries into a ring, and batches of a ring into other libraries."""

from __future__ import annotations

import duckdb
import nanoarrow
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import shmring

TABLE = pa.table(
    {
        "x": pa.array([1, 2, None], pa.int64()),
        "s": ["a", None, "a string that no view holds inline"],
        "l": [[1.5], [], None],
    }
)

SOURCES = {
    "record batch": lambda: TABLE.to_batches()[0],
    "table": lambda: TABLE,
    "record batch reader": lambda: TABLE.to_reader(),
    "polars": lambda: pl.from_arrow(TABLE),
    "duckdb": lambda: duckdb.from_arrow(TABLE),
    "nanoarrow stream": lambda: nanoarrow.ArrayStream(TABLE),
    "nanoarrow array": lambda: nanoarrow.c_array(TABLE.to_batches()[0]),
}


@pytest.fixture
def table_ring(name):
    with shmring.create(name, slots=1024, schema=TABLE.schema, temporary=True) as ring:
        yield ring


@pytest.fixture
def written(table_ring):
    """A reader of a ring that holds TABLE twice, then the end."""
    with table_ring.arrow_reader("r") as reader:
        with table_ring.arrow_writer() as writer:
            writer.write(TABLE)
            writer.write(TABLE)
            writer.end()
        yield reader


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_whatever_speaks_arrow_can_be_written(table_ring, source):
    with table_ring.arrow_reader("r", until="empty") as reader, table_ring.arrow_writer() as writer:
        writer.write(source())
        assert pa.Table.from_batches(reader) == TABLE


def test_pandas_frame_can_be_written(both_ends):
    frame = pd.DataFrame({"x": np.arange(5), "s": list("abcde")})
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    with both_ends(schema, until="empty") as (_, writer, reader):
        writer.write(frame)
        pd.testing.assert_frame_equal(
            pa.Table.from_batches(reader).to_pandas(), frame, check_dtype=False
        )


def test_polars_reads_a_ring(written):
    assert pl.DataFrame(written).equals(pl.from_arrow(pa.concat_tables([TABLE, TABLE])))


def test_duckdb_reads_a_ring(written):
    query = duckdb.from_arrow(pa.RecordBatchReader.from_stream(written))
    assert query.aggregate("sum(x), count(*)").fetchall() == [(6, 6)]


def test_pandas_reads_a_ring(written):
    assert pa.table(written).to_pandas()["x"].sum() == 6


def test_nanoarrow_reads_a_ring(written):
    assert sum(len(chunk) for chunk in nanoarrow.ArrayStream(written)) == 6


def test_ring_is_written_into_another_ring(written, name):
    with (
        shmring.create(f"{name}-2", slots=1024, temporary=True) as second,
        second.arrow_reader("r", until="empty") as reader,
    ):
        with second.arrow_writer(TABLE.schema) as writer:
            writer.write(written)
        assert pa.Table.from_batches(reader) == pa.concat_tables([TABLE, TABLE])


def test_export_keeps_nothing_in_the_ring(written, table_ring):
    table = pa.table(written)
    (branch,) = table_ring.branches()
    assert branch["released"] == table_ring.claimed
    assert table == pa.concat_tables([TABLE, TABLE])


def test_export_casts_to_the_schema_that_is_asked_for(written):
    wanted = pa.schema([("x", pa.int32()), *list(TABLE.schema)[1:]])
    assert pa.table(written, schema=wanted).schema == wanted


def test_error_while_reading_reaches_the_other_library(table_ring):
    with table_ring.arrow_reader("r") as reader, table_ring.producer() as out:
        out.push(b"no batch")
        with pytest.raises(Exception, match="is not an Arrow batch"):
            pa.table(reader)


def test_scalar_stream_is_refused_in_words(table_ring):
    with table_ring.arrow_writer() as writer, pytest.raises(TypeError, match="ChunkedArray"):
        writer.write(pa.chunked_array([[1]]))
