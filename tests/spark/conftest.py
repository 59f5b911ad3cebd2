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
    changed: list[str] = []

    def set_to(option: str, value: Any) -> None:
        changed.append(option)
        spark.conf.set(option, value)

    yield set_to
    for option in changed:
        spark.conf.unset(option)
