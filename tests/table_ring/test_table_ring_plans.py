"""Subscribers that come and go beside sessions whose plans were made before."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
import pytest
from fixture_types import RunThread, Until
from postgres import Postgres, connect

from shmring.errors import Empty
from shmring.table_ring import TableRing

POP = b"SELECT shmring_pop_one(0, 1, 'shmring_pop_0'::regclass, 0)"
PUSHES = {
    "one": b"SELECT shmring_push_one('m', 0, 0)",
    "run": b"SELECT shmring_push_many(ARRAY['m', 'm']::bytea[], 0)",
}
# Calls of a transaction before another session subscribes: each call locks other tables.
BEFORE = {
    "nothing": [],
    "read the table": [b"SELECT count(*) FROM shmring, shmring_ring, shmring_leases"],
    "popped": [POP],
    "popped and found nothing": [POP, POP],
    "looked": [b"SELECT shmring_look_pop('main', 0, 'shmring_pop_0'::regclass, false)"],
}


@pytest.fixture
def ring(server: Postgres) -> Generator[TableRing]:
    with TableRing.create(server.url, slots=20) as made:
        yield made
    TableRing.drop(server.url)


@pytest.fixture
def session(server: Postgres) -> Generator[psycopg.Connection[Any]]:
    """A session that keeps its plans, as those of handles do."""
    with connect(server, autocommit=False) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.commit()
        yield connection


def warm(session: psycopg.Connection[Any], ring: TableRing) -> None:
    """Make the plans of all these calls, and leave one message."""
    for statement in [*PUSHES.values(), POP, *BEFORE["read the table"], *BEFORE["looked"]]:
        session.execute(statement)
        session.commit()
    ring.pop_many()
    ring.push(b"first")


def holders(session: psycopg.Connection[Any], push: str) -> tuple[int, int]:
    """How many a message waits for that is pushed so, and who they are."""
    number = session.execute(PUSHES[push]).fetchone()
    assert number is not None
    query = b"SELECT reference_count, holders FROM shmring WHERE message_id = %d" % number[0]
    found = session.execute(query).fetchone()
    assert found is not None
    return found[0], found[1]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("push", PUSHES)
def test_message_waits_for_who_subscribed_before_the_push_within_its_transaction(
    ring: TableRing, session: psycopg.Connection[Any], push: str, before: str
) -> None:
    warm(session, ring)
    for statement in BEFORE[before]:
        session.execute(statement)
    ring.subscribe("late")
    assert holders(session, push) == (2, 3)
    session.commit()
    with TableRing.attach(ring.url, subscriber="late") as late:
        assert late.pop(timeout=0) == b"m"


@pytest.mark.parametrize("push", PUSHES)
def test_message_waits_for_nobody_who_unsubscribed_before_the_push(
    ring: TableRing, session: psycopg.Connection[Any], push: str
) -> None:
    ring.subscribe("early")
    warm(session, ring)
    with TableRing.attach(ring.url, subscriber="early") as early:
        early.pop_many()
    session.execute(POP)
    ring.unsubscribe("early")
    assert holders(session, push) == (1, 1)
    session.commit()
    assert ring.pop(timeout=0) == b"m"


def test_subscription_that_is_undone_changes_nothing(
    ring: TableRing, session: psycopg.Connection[Any]
) -> None:
    warm(session, ring)
    with pytest.raises(ValueError, match="has a subscriber 'main' already"):
        ring.subscribe("main")
    assert holders(session, "one") == (1, 1)


def test_pop_that_looks_while_a_subscriber_is_removed_sees_no_damage(
    server: Postgres, ring: TableRing, thread: RunThread, until: Until
) -> None:
    ring.subscribe("b")
    waiting = b"SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
    with connect(server) as admin, connect(server, autocommit=False) as removing:
        ring.push_many([b"m"] * 20)  # subscriber b gets all of them
        ring.pop_many(timeout=0)
        removing.execute("LOCK TABLE shmring_ring")
        popping = thread(lambda: ring.pop(timeout=0))
        until(lambda: admin.execute(waiting).fetchone() == (1,))
        removing.execute("UPDATE shmring SET holders = 0, reference_count = 0")
        removing.execute("UPDATE shmring_ring SET holders = 1, subscribers = 1")
        removing.commit()
        with pytest.raises(Empty):
            popping.outcome()
