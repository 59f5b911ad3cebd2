"""What a :class:`~shmring.durable.table_ring.TableRing` asks of its database.

The rule all of them follow: a number is the value of a cursor *row*, read, used and advanced in one
transaction together with the guarded UPDATE of the slot. Full, empty, killed or cut off: the
transaction is undone as a whole and the number is still the next one. A database SEQUENCE could
not do that: its numbers are gone once given out.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from shmring.durable.table_ring.schema import Layout, Tables
from shmring.errors import Contended

__all__ = ["Backend", "Durability", "Peek", "Result"]

Durability = Literal["sync", "delayed"]
R = TypeVar("R")
Result = sa.CursorResult[*tuple[Any, ...]]


@dataclass(frozen=True)
class Peek:
    """Where a ring stands, all of it at one moment.

    Attributes
    ----------
    push : number of the next push
    pop : number of the subscriber's next pop; None where there is no such subscriber
    message_id, reference_count : of the slot asked for; reference_count is None where the table
        has no such row
    """

    push: int
    pop: int | None
    message_id: int | None
    reference_count: int | None


class Backend(ABC):
    """One connection to one ring's tables; made from a URL, its tables and a durability.

    Attributes
    ----------
    driver : SQLAlchemy's name of the one driver it works with
    free_message : SQL for the 300 zero bytes of a slot that never held a message
    """

    driver: ClassVar[str]
    free_message: ClassVar[str]
    # No statement of ours holds a lock longer than itself. Whoever does is a stranger, or stopped.
    lock_seconds: ClassVar[float] = 10.0

    def __init__(self, url: sa.URL, tables: Tables, durability: Durability) -> None:
        self.tables = tables
        self.sync = durability == "sync"
        self._engine = self._make_engine(url)
        event.listen(self._engine, "connect", self._prepare_session)
        self.connection = self._engine.connect()

    def close(self) -> None:
        """Give the connection up."""
        with contextlib.suppress(exc.DBAPIError):
            self.connection.close()
        self._engine.dispose()

    def use(self, layout: Layout) -> None:
        """Prepare for a ring's layout; before any push, pop or peek."""
        self._layout = layout
        slots, ring, subscribers = self._names()
        # One shape for both questions: the slot that `ahead` places before a position will use.
        peek = (
            f"SELECT r.position, u.position, s.message_id, s.reference_count FROM {ring} r"
            f" LEFT JOIN {subscribers} u ON u.name = :subscriber LEFT JOIN {slots} s ON s.slot = "
        )
        self._peek_push = peek + layout.place_sql("r.position + CAST(:ahead AS BIGINT)")
        self._peek_pop = peek + layout.place_sql("u.position + CAST(:ahead AS BIGINT)")

    @classmethod
    def address(cls, url: sa.URL) -> sa.URL:
        """Return the URL with the driver's name; ValueError where no ring can be there."""
        return url.set(drivername=cls.driver)

    @classmethod
    def may_exist(cls, url: sa.URL) -> bool:
        """Whether the database may be there; where it must not be made by looking for it."""
        return True

    @abstractmethod
    def push(self, rows: Sequence[bytes], time_ns: int) -> int | None:
        """Publish all rows and return the first one's number, or do nothing and return None."""

    @abstractmethod
    def pop(self, subscriber: str, limit: int) -> list[bytes]:
        """Take the subscriber's next messages, in order, up to `limit` of them; or none."""

    @abstractmethod
    def lock_creation(self) -> None:
        """Within a transaction: keep others from creating or dropping rings meanwhile."""

    @abstractmethod
    def lock_rows(self) -> str:
        """Return what follows a SELECT whose rows nobody may change until the transaction ends."""

    @contextlib.contextmanager
    def transaction(self) -> Generator[sa.Connection]:
        """Several statements in one transaction, synced whatever `durability` says."""
        with self.translated():
            self._begin()
            try:
                yield self.connection
                self._run("COMMIT")
            except BaseException:
                # After a lost connection there is nothing left to undo.
                with contextlib.suppress(exc.DBAPIError):
                    self._run("ROLLBACK")
                raise

    def transact(self, change: Callable[[sa.Connection], R]) -> R:
        """Run a change of the tables themselves in a transaction; again, if it was a deadlock.

        Pushes and pops lock the same rows and tables in another order. The database undoes one
        of two that wait for each other: a push or pop of ours tries again, and so does this.
        """
        while True:
            try:
                with self.transaction() as connection:
                    return change(connection)
            except exc.DBAPIError as error:
                if not self.is_deadlock(error):
                    raise

    def peek(self, which: Literal["push", "pop"], subscriber: str, ahead: int = 0) -> Peek:
        """Look without locking: where push or pop stands, and the slot `ahead` of that."""
        sql = self._peek_push if which == "push" else self._peek_pop
        with self.translated():
            row = self._run(sql, {"subscriber": subscriber, "ahead": ahead}).one_or_none()
        return Peek(*row) if row else Peek(push=0, pop=None, message_id=None, reference_count=None)

    @contextlib.contextmanager
    def translated(self) -> Generator[None]:
        """Turn a lock that somebody keeps into Contended, and survive a lost connection."""
        try:
            yield
        except exc.DBAPIError as error:
            if error.connection_invalidated:
                # SQLAlchemy then connects anew for the next statement; this one stays an error,
                # for nobody knows whether it was committed.
                self.connection.rollback()
            if self.is_lock_timeout(error):
                raise Contended(
                    f"the tables of ring {self.tables.slots.name!r} were locked by another"
                    f" connection for {self.lock_seconds:g} s; nothing was pushed or popped, try"
                    " again"
                ) from error
            raise

    def _names(self) -> tuple[str, str, str]:
        return self.tables.slots.name, self.tables.ring.name, self.tables.subscribers.name

    @abstractmethod
    def is_lock_timeout(self, error: exc.DBAPIError) -> bool:
        """Whether another connection has kept a lock for all of `lock_seconds`."""

    def is_deadlock(self, error: exc.DBAPIError) -> bool:
        """Whether the database has undone one of two that waited for each other."""
        return False

    @abstractmethod
    def _make_engine(self, url: sa.URL) -> sa.Engine:
        """An engine that begins and ends no transaction by itself."""

    @abstractmethod
    def _prepare_session(self, connection: Any, _record: Any) -> None:
        """Set up a connection of the driver's that is new."""

    @abstractmethod
    def _begin(self) -> None:
        """Open a transaction whose commit waits for the disk."""

    @abstractmethod
    def _run(self, sql: str, parameters: Any = None) -> Result:
        """Execute SQL with :name parameters."""
