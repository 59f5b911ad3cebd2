"""Spark's side: batches through a sidecar, rings as tables and streams, with and without a jar.

Nothing here imports pyspark before it is used.
"""

from shmring.spark.functions import arrow_udf, metrics, pandas_udf, through
from shmring.spark.jvm import configure, jar_path
from shmring.spark.registration import register

__all__ = [
    "arrow_udf",
    "configure",
    "jar_path",
    "metrics",
    "pandas_udf",
    "register",
    "through",
]
