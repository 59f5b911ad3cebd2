"""A TableRing whose tables somebody else changes or locks."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from statements import execute

from shmring.errors import Contended, Damaged, VersionMismatch
from shmring.table_ring import TableRing


@pytest.fixture
def url(either: str) -> str:
    return either


def test_lost_rows_are_damage_not_a_full_ring(url: str) -> None:
    with TableRing(url, slots=2) as ring:
        ring.push(b"x")
        execute(url, "DELETE FROM shmring WHERE slot = 1")
        with pytest.raises(Damaged, match="lost a row"):
            ring.push(b"y")
        execute(url, "UPDATE shmring SET message_id = 5")
        with pytest.raises(Damaged, match="message 0 should be in slot 0, which holds 5"):
            ring.pop()


def test_meddled_layout_is_refused(url: str) -> None:
    TableRing(url, slots=10).close()
    execute(url, "UPDATE shmring_ring SET stride = 5")
    with pytest.raises(Damaged, match="stride 5"):
        TableRing.attach(url)
    execute(url, "UPDATE shmring_ring SET layout = 9")
    with pytest.raises(VersionMismatch, match="layout 9"):
        TableRing.attach(url)


def test_foreign_reference_count_is_refused_and_publishes_nothing(url: str) -> None:
    # The last slot of the run is free, one before it says that it is not.
    with TableRing(url, name="meddled", slots=4) as ring:
        execute(url, "UPDATE meddled SET reference_count = 1 WHERE slot = 1")
        with pytest.raises(Damaged, match="1 subscribers hold the message, and names 0"):
            ring.push_many([b"0", b"1", b"2"], timeout=0)
        assert ring.positions() == (0, {"main": 0})
        assert ring.push(b"0") == 0
        with pytest.raises(Damaged, match="slot of number 1"):
            ring.push(b"1")
        execute(url, "UPDATE meddled SET reference_count = 3 WHERE slot = 0")
        assert ring.pop() == b"0"
        execute(url, "UPDATE meddled SET reference_count = 0, holders = 4 WHERE slot = 1")
        with pytest.raises(Damaged, match="holders 0x4, the ring's are 0x1"):
            ring.push(b"1")


def test_lock_that_somebody_keeps_is_contended(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmring.table_ring.backend.Backend.lock_seconds", 0.05)
    with TableRing(url, slots=2) as ring:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.begin() as stranger:
            postgresql = url.startswith("postgresql")
            locked = "LOCK TABLE shmring" if postgresql else "UPDATE shmring SET time = time"
            stranger.execute(sa.text(locked))
            with pytest.raises(Contended, match="nothing was pushed"):
                ring.push(b"x", timeout=0)
        assert ring.push(b"x", timeout=0) == 0
