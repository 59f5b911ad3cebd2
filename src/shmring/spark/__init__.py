"""Spark's side: Python workers send their batches through a sidecar.

Nothing here imports pyspark before it is used.
"""

from shmring.spark.bridge import metrics, through
from shmring.spark.registration import register
from shmring.spark.udf import arrow_udf, pandas_udf

__all__ = ["arrow_udf", "metrics", "pandas_udf", "register", "through"]
