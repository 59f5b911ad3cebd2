"""A session whose rows go straight to sidecars, and what tests of both ways to these share."""

from __future__ import annotations

import pytest
from direct import ZONED

import shmring
from shmring.sidecars.wire import reply_ring_name


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]", **ZONED)


@pytest.fixture(scope="package")
def served(standing):
    """For the files of this folder together: many ask the same, which takes a second to start."""
    yield from standing()


@pytest.fixture
def reply_rings(name):
    """The reply rings of the test's sidecar that are there."""
    return lambda: [r for r in shmring.rings() if r.startswith(reply_ring_name(name, ""))]
