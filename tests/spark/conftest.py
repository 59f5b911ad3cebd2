"""One Spark session for all tests of this folder, and sidecars that run functions.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sessions import Sessions

import shmring
from shmring.sidecars import Sidecar
from shmring.sidecars.wire import reply_ring_name

HERE = Path(__file__).parent
TESTS = str(HERE.parent)
SOURCE = str(Path(shmring.__file__).parent.parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # It says so of every pandas that is newer than itself, and works.
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
            )


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> object:
    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((SOURCE, TESTS)),
    }
    return sessions.start("local[2]", jar=False, environment=variables)


@pytest.fixture
def serve(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sidecar]]:
    """Starts a sidecar that runs a function of functions.py; it is stopped with the test."""
    monkeypatch.setattr(sys, "path", [TESTS, *sys.path])
    started: list[Sidecar] = []

    def start(function: str, **options: object) -> Sidecar:
        started.append(Sidecar(f"functions:{function}", name=name, **options).start())
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.stop()


@pytest.fixture
def reply_rings(name: str) -> Callable[[], list[str]]:
    """The reply rings of the test's sidecar that are there."""
    return lambda: [r for r in shmring.rings() if r.startswith(reply_ring_name(name, ""))]
