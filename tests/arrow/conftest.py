"""A ring for the batch of batches.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from batches import BATCH

import shmring


@pytest.fixture
def arrow_ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=1024, schema=BATCH.schema, temporary=True) as ring:
        yield ring
