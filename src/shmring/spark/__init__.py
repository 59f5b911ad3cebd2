"""Functions for Spark: batches through a sidecar, and the jar, with rings as tables and streams.

No module here imports pyspark before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmring.spark.jvm import configure, jar_path

if TYPE_CHECKING:
    from shmring.spark.functions import arrow_udf, through

__all__ = [
    "arrow_udf",
    "configure",
    "jar_path",
    "through",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that the attendant does without pyarrow's 40 MB."""
    if name in __all__:
        return getattr(import_module("shmring.spark.functions"), name)
    raise AttributeError(f"module 'shmring.spark' has no attribute {name!r}")
