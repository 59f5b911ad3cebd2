"""Making the Python data source known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``format("shmring_py")`` known: the data source for clusters where no jar can be added.

    >>> register(spark)  # doctest: +SKIP
    >>> spark.read.format("shmring_py").option("ring", "orders").load()  # doctest: +SKIP

    Nothing is needed but this package, on the driver and on every executor. The options and a
    stream's offsets are those of the jar's ``format("shmring")``, without ``hosts``: Spark asks no
    Python data source where its partitions lie, so that tasks run anywhere, and fail on hosts other
    than the driver's. Spark 4.0 and 4.1 put no limits
    on a stream's batches, so that a run with ``availableNow`` is one batch, of half of the ring at
    most; and 4.0 has no stream writers for Arrow, so that streams can be read only.
    """
    from shmring.spark.source import RingSource

    spark.dataSource.register(RingSource)
