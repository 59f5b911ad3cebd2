"""Clients of the test's sidecar, and where its functions look for their marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmring.sidecars import SidecarClient


@pytest.fixture
def client(name: str) -> Iterator[Callable[..., SidecarClient]]:
    """Makes clients of the test's sidecar; they are closed with the test."""
    made: list[SidecarClient] = []

    def make(**options: object) -> SidecarClient:
        made.append(SidecarClient(name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that some of functions.py look for, or wait for."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("SHMRING_TEST_MARKER", str(marker))
    return marker
