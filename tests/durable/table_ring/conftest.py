"""A server for the tests of a module, and a schema for each test."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from postgres import Postgres, postgres
from statements import execute


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres({"fsync": "off"}) as running:  # no crash here
        yield running


@pytest.fixture
def url(server: Postgres) -> Generator[str]:
    yield server.url
    execute(server.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
