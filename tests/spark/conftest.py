"""What tests do with the session of their module, whichever that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def set_option(spark: SparkSession) -> Iterator[Callable[[str, Any], None]]:
    """Sets an option of the session for the length of the test."""
    before: dict[str, str | None] = {}

    def set_to(option: str, value: Any) -> None:
        before.setdefault(option, spark.conf.get(option, None))
        spark.conf.set(option, value)

    yield set_to
    for option, value in before.items():
        spark.conf.unset(option) if value is None else spark.conf.set(option, value)
