"""Spark's side: batches through a sidecar, and the jar, in which rings are tables and streams.

Nothing here imports pyspark before it is used.
"""

from shmring.spark.functions import arrow_udf, metrics, pandas_udf, through
from shmring.spark.jvm import configure, jar_path

__all__ = [
    "arrow_udf",
    "configure",
    "jar_path",
    "metrics",
    "pandas_udf",
    "through",
]
