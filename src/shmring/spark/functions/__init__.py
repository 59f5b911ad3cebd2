"""Sending Spark's batches through a sidecar: a function for Spark's methods, and a UDF."""

from shmring.spark.functions.bridge import through
from shmring.spark.functions.udf import arrow_udf

__all__ = ["arrow_udf", "through"]
