"""A ring for the batch of batches.py, and rings with both ends open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from batches import BATCH

import shmring


@pytest.fixture
def arrow_ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=1024, schema=BATCH.schema, temporary=True) as ring:
        yield ring


@pytest.fixture
def both_ends(name: str) -> Callable[..., contextlib.AbstractContextManager[tuple[Any, ...]]]:
    """Opens a ring with a schema, a writer and a reader, which may have options."""

    @contextlib.contextmanager
    def opened(schema: pa.Schema, *, slots: int = 1024, **options: Any) -> Iterator[Any]:
        with (
            shmring.create(name, slots=slots, schema=schema, temporary=True) as ring,
            ring.arrow_writer() as writer,
            ring.arrow_reader("r", **options) as reader,
        ):
            yield ring, writer, reader

    return opened
