"""Sending Spark's batches through a sidecar: mapInArrow's function, and the two kinds of UDF."""

from shmring.spark.functions.bridge import metrics, through
from shmring.spark.functions.udf import arrow_udf, pandas_udf

__all__ = ["arrow_udf", "metrics", "pandas_udf", "through"]
