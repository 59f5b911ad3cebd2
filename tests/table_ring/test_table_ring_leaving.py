"""Subscribers that leave, and rings that are dropped, beside those who attach, look and change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from statements import execute

from shmring.table_ring import TableRing
from shmring.table_ring.postgresql import PostgresBackend

WAITING = "SELECT pid FROM pg_locks WHERE NOT granted"
LEFT = (
    "SELECT relname FROM pg_class WHERE relname ~ '^shmring'"
    " UNION ALL SELECT proname FROM pg_proc WHERE proname ~ '^shmring'"
)


@pytest.mark.parametrize("change", ["subscribe", "unsubscribe"])
def test_ring_that_is_dropped_while_its_subscribers_change(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    thread: Callable[..., Any],
    until: Callable[..., None],
    change: str,
) -> None:
    tell = PostgresBackend._tell
    dropping: list[Any] = []

    def late(self: PostgresBackend, connection: Any) -> None:
        tell(self, connection)
        dropping.append(thread(TableRing.drop, url))
        until(lambda: execute(url, WAITING))

    with TableRing(url, slots=5, subscribers=["main", "b"]) as ring:
        monkeypatch.setattr(PostgresBackend, "_tell", late)
        getattr(ring, change)("b" if change == "unsubscribe" else "c")
        dropping[0].outcome()
    assert execute(url, LEFT) == []
