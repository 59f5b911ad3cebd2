"""A server for the tests that do not kill it, and a schema or a file for each test.

Tests can import the helpers beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from postgres import Postgres, postgres
from statements import execute


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.database)


@pytest.fixture(scope="session")
def server() -> Generator[Postgres]:
    with postgres({"fsync": "off"}) as running:  # no crash here
        yield running


@pytest.fixture
def clean(server: Postgres) -> Generator[Postgres]:
    """The server, which is as new again after the test."""
    yield server
    execute(server.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


@pytest.fixture
def url(clean: Postgres) -> str:
    return clean.url


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ring.db"
    return request.getfixturevalue("clean").url
