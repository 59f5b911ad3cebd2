"""A batch job in Spark over a ring that DuckDB fills, and one that polars fills.

    python spark_examples/frames.py

Neither goes through a file or a socket.
"""

from __future__ import annotations

import os
import sys

import duckdb
import polars as pl
import pyarrow as pa

import shmring
from shmring.spark import configure

ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64())])
CUSTOMERS = pa.schema([("customer", pa.int64()), ("country", pa.string())])
COUNT = 100_000


def fill_by_duckdb(ring: shmring.Ring) -> None:
    """The result of a query goes into the ring, batch by batch."""
    query = f"""
        select i::bigint order_id, (i % 1000)::bigint customer, (i % 97)::bigint amount
        from range({COUNT}) t(i)
    """
    with ring.arrow_writer() as out:
        out.write(duckdb.sql(query))
        out.end()


def fill_by_polars(ring: shmring.Ring) -> None:
    """So does a data frame."""
    countries = ["DE", "FR", "IT", "PL"]
    frame = pl.DataFrame({"customer": range(1000)}).with_columns(
        country=pl.Series([countries[i % 4] for i in range(1000)])
    )
    with ring.arrow_writer() as out:
        out.write(frame)
        out.end()


def main() -> int:
    """Fill two rings and join them in Spark; 1 if the result is not DuckDB's."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("frames")
    builder = builder.config("spark.ui.enabled", "false")
    spark = configure(builder.config("spark.sql.shuffle.partitions", "2")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    names = [f"orders-{os.getpid()}", f"customers-{os.getpid()}"]
    with (
        shmring.create(names[0], slots=32_768, schema=ORDERS, temporary=True) as orders,
        shmring.create(names[1], slots=4096, schema=CUSTOMERS, temporary=True) as customers,
    ):
        fill_by_duckdb(orders)
        fill_by_polars(customers)
        for table, name in zip(("orders", "customers"), names, strict=True):
            frame = spark.read.format("shmring").option("ring", name)
            frame.option("until", "end").load().createOrReplaceTempView(table)
        rows = spark.sql(
            "select country, count(*) orders, sum(amount) amount "
            "from orders join customers using (customer) group by country order by country"
        ).collect()
    spark.stop()
    for row in rows:
        print(f"{row.country} {row.orders:8,} {row.amount:12,}")
    expected = duckdb.sql(
        f"select ['DE', 'FR', 'IT', 'PL'][i % 1000 % 4 + 1] country, count(*), sum(i % 97)::bigint "
        f"from range({COUNT}) t(i) group by country order by country"
    ).fetchall()
    right = [tuple(row) for row in rows] == expected
    print("as DuckDB has it" if right else f"WRONG: {expected}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
