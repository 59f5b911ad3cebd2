"""Sessions whose Python workers ask the sidecars, as they do where there is no jar."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    return start_spark("local[2]", **{"spark.shmring.direct": "false"})
