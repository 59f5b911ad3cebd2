"""Sessions whose Python workers ask the sidecars, as they do where there is no jar."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import shmring
from shmring.sidecars.wire import reply_ring_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(start_spark: Callable[..., SparkSession]) -> SparkSession:
    return start_spark("local[2]", **{"spark.shmring.direct": "false"})


@pytest.fixture
def reply_rings(name: str) -> Callable[[], list[str]]:
    """The reply rings of the test's sidecar that are there."""
    return lambda: [r for r in shmring.rings() if r.startswith(reply_ring_name(name, ""))]
