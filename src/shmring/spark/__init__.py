"""Functions for users of Spark: for the session, for sidecars, and for reports on queries.

`configure` adds shmring's jar to a session, `through` and `arrow_udf` send batches to a sidecar,
and `status` and `compare` tell which functions go over rings, and what that gains.

No module here imports pyspark before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmring.spark.jvm import configure, jar_path
from shmring.spark.report import status

if TYPE_CHECKING:
    from shmring.spark.comparison import Comparison, compare
    from shmring.spark.functions import arrow_udf, through

__all__ = [
    "Comparison",
    "arrow_udf",
    "compare",
    "configure",
    "jar_path",
    "status",
    "through",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that the attendant does not load pyarrow (40 MB)."""
    if name in __all__:
        module = "comparison" if name in ("Comparison", "compare") else "functions"
        return getattr(import_module(f"shmring.spark.{module}"), name)
    raise AttributeError(f"module 'shmring.spark' has no attribute {name!r}")
