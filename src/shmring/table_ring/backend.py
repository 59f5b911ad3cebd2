"""The calls that a :class:`~shmring.table_ring.TableRing` makes to its database.

Pushes are numbered, and a subscriber pops the messages in the order of their numbers. A *cursor* is
the number of the next push, or of a subscriber's next pop. A push or pop takes numbers from a
cursor, and then updates the slots of these numbers. The WHERE clause of the UPDATE, the *guard*,
checks that each slot is in the expected state. If the ring is full or empty, or the transaction is
undone, no slot is written although the numbers were taken. SQLite then sets the cursor back with
the transaction. On PostgreSQL the cursor stays ahead, and a later *look* at the slots gives the
numbers out again, or lets subscribers skip them.
"""

from __future__ import annotations

import contextlib
import errno
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from shmring.common.arguments import seconds_of
from shmring.errors import (
    Contended,
    Damaged,
    NoSpace,
    PermissionRefused,
    RingNotFound,
    ShmringError,
)
from shmring.table_ring.schema import Layout, Tables

# Maximum number of attempts of a call after its deadline. If a look has just shown a message or a
# free slot, the call makes another attempt even after the deadline, because the attempt is likely
# to succeed. There is a limit because other connections might be faster each time.
LATE = 100

# Seconds between two searches of the whole table: the first pause, which then doubles each time,
# and the longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class SubscriberNotFound(ShmringError, LookupError):
    """The ring has no subscriber of this name."""


class SubscriberDropped(ShmringError):
    """The subscriber was removed while this handle read for it."""


class LeaseOpen(ShmringError):
    """This handle has an open lease, a transaction of its connection."""


class PooledSession(ShmringError):
    """A pooler between a handle and its database gives each transaction another session."""


class Deadline:
    """The end of a call's timeout; wait() sleeps longer each time, but not beyond this end."""

    def __init__(self, timeout: float | None) -> None:
        self._end = math.inf
        if timeout is not None:
            self._end = time.monotonic() + seconds_of("timeout", timeout)
        self.waits = 0
        self._late = 0

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._end - time.monotonic())

    def wait(self, sleep: Callable[[float], None], first: float, longest: float) -> bool:
        """Sleep for `first` seconds, doubled by each call up to `longest`; False if time is up."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            return False
        sleep(min(first * 2**self.waits, remaining, longest))
        # Cap the exponent: after 60 doublings the wait is `longest` in any case.
        self.waits = min(self.waits + 1, 60)
        return True

    def again(self) -> bool:
        """Return whether to try again, after a look that shows a message or a free slot."""
        if time.monotonic() >= self._end:
            self._late += 1
        return self._late <= LATE


class Searches:
    """Decides when a handle that finds no message searches the whole table.

    A handle that has found no message yet searches at once, because its first call may be its only
    one: a program may attach anew for each pop. Other handles search some time after the last
    message, whatever the number of calls, and then less and less often.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._due = -math.inf

    def found(self) -> None:
        """Note that there was a message, and postpone the next search."""
        self._pause = FIRST_PAUSE
        self._due = time.monotonic() + FIRST_PAUSE

    def due(self) -> bool:
        """Return whether to search now; if so, set the time of the next search."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


Durability = Literal["sync", "delayed"]
Meaning = Literal["locked", "pooled", "refused", "full"]
Which = Literal["push", "pop"]
Message = tuple[int, int, bytes]  # number, time, data
R = TypeVar("R")

# Maximum number of attempts of a transaction: if two transactions wait for each other, the database
# undoes one of them, which is then tried again.
ATTEMPTS = 10


@dataclass(frozen=True)
class Peek:
    """The state of a ring at one moment."""

    push: int  # number of the next push
    number: int | None  # the message whose slot was read; None if there is no such subscriber
    # Columns of the slot that was read; None if the table has no row for the slot.
    message_id: int | None = None
    reference_count: int | None = None
    holders: int | None = None
    known: int | None = 0  # bits of all subscribers; None if the ring lost its row
    returned: bool = False  # whether a lease was given up, so that its messages wait

    def check_slot(self, which: Which, name: str) -> None:
        """Raise if the slot is missing, or its holders are not subscribers of the ring."""
        if self.reference_count is None or self.holders is None:
            raise Damaged(
                f"table ring {name!r} lost a row: the slot of the next {which} is missing"
                f" from table {name}; if the ring is unlogged and its server crashed, attach"
                " again"
            )
        holders = self.holders & (1 << 64) - 1
        known = self.known or 0
        if self.reference_count != holders.bit_count() or self.holders & ~known:
            raise Damaged(
                f"table {name} says of the slot of number {self.number} that"
                f" {self.reference_count} subscribers hold the message, and names"
                f" {holders.bit_count()} (holders {holders:#x}, the ring's are"
                f" {known & (1 << 64) - 1:#x}); another program wrote to the table"
            )

    def check_message(self, name: str, layout: Layout) -> None:
        """Raise if the slot of the waiting message `number` holds another number."""
        assert self.number is not None
        # A number of a later lap is no damage: other sessions moved on between the reads of the
        # cursor and the slot, and the caller looks again.
        ahead = (self.message_id or 0) - self.number
        passed = ahead > 0 and ahead % layout.slots == 0
        if self.message_id != self.number and not passed:
            raise Damaged(
                f"table ring {name!r}: message {self.number} should be in slot"
                f" {layout.slot_of(self.number)}, which holds {self.message_id}; another program"
                " wrote to the table"
            )


class Backend(ABC):
    """One connection to one ring's tables.

    A method with an empty body is one that only some databases need: their backends override it.
    """

    driver: ClassVar[str]  # SQLAlchemy's name of the only driver that the backend works with
    free_message: ClassVar[str]  # SQL for the 300 zero bytes of a slot that never held a message
    cursor_rows: ClassVar[bool]  # whether columns hold the numbers of the next push and pops
    first_wait: ClassVar[float]  # seconds of the first wait; each later wait takes twice as long
    # The database's error codes, each with its meaning for users.
    meanings: ClassVar[Mapping[str | int | None, Meaning]]
    rights: ClassVar[str]  # text about the rights that a user of a ring needs
    # Seconds to wait for a lock. Statements of shmring hold a lock only while they run: a lock that
    # is held longer belongs to another program, or to a stopped process.
    lock_seconds: ClassVar[float] = 10.0
    # True once the first session is prepared; a connection that is lost earlier is not opened
    # again.
    _connected = False

    def __init__(self, url: sa.URL, name: str, durability: Durability, unlogged: bool) -> None:
        self.tables = Tables(name, cursor_rows=self.cursor_rows, unlogged=unlogged)
        self.sync = durability == "sync"
        self._in_use = False
        self._engine = self._make_engine(url)
        event.listen(self._engine, "connect", self._prepare_session)
        try:
            with self.translated():
                self.connection = self._engine.connect()
        except BaseException:
            self._engine.dispose()
            raise
        self._connected = True

    def close(self) -> None:
        with contextlib.suppress(exc.DBAPIError):
            self.connection.close()
        self._engine.dispose()

    def use(self, layout: Layout) -> None:
        """Prepare for a ring's layout; called before any push, pop or peek."""
        self._layout = layout
        self._in_use = True

    @abstractmethod
    def serve(self, subscriber: str, holder: int) -> bool:
        """Make later pops take the subscriber's messages; return False if it was removed.

        `holder`: the subscriber's bit.
        """

    @classmethod
    def address(cls, url: sa.URL) -> sa.URL:
        """Return the URL with the driver's name; raise ValueError if no ring can be at the URL."""
        return url.set(drivername=cls.driver)

    @classmethod
    def may_exist(cls, url: sa.URL) -> bool:
        """Return False if the database is missing, and a connection would create it."""
        return True

    # -- messages --------------------------------------------------------------------------------

    @abstractmethod
    def push(self, rows: Sequence[bytes], time_ns: int, timeout: float) -> int | None:
        """Publish all rows and return the first one's number, or do nothing and return None.

        `timeout`: seconds that the call may wait within the database, for databases that can wait.
        """

    @abstractmethod
    def pop_one(self, timeout: float) -> bytes | None:
        """Take the subscriber's next message, if there is one."""

    @abstractmethod
    def pop_rows(self, limit: int, timeout: float) -> list[Message]:
        """Take the subscriber's next messages in order, up to `limit`; empty if there are none."""

    def pop_many(self, limit: int, timeout: float) -> list[bytes]:
        """Take messages as :meth:`pop_rows` does, and return only their data."""
        return [data for _, _, data in self.pop_rows(limit, timeout)]

    @abstractmethod
    def begin_lease(self, limit: int) -> list[Message]:
        """Take messages in a transaction that stays open, unless there are none."""

    def end_lease(self, keep: bool) -> None:
        """End the transaction of a lease: pop its messages (`keep`), or give them back."""
        with self.translated():
            self._run("COMMIT" if keep else "ROLLBACK")

    @abstractmethod
    def peek(self, which: Which, ahead: int = 0, whole: bool = False) -> Peek:
        """Read the position of push or pop, and the slot that is `ahead` slots after it.

        For a push: if the slots from the position to this slot are not all free, read one that is
        not free.
        `whole`: search all slots for messages whose number a connection took without popping them.
        """

    def waiting(self, peek: Peek) -> int:
        """Return how many messages wait for the subscriber, from the number in `peek` on."""
        return peek.push - (peek.number or 0)

    def listen(self, which: Which) -> float:
        """Ask the database to notify us when a slot comes free (push) or a message comes (pop).

        Returns the seconds after which the caller should look without a notification.
        """
        return 0.02

    def unlisten(self, which: Which, announced: float) -> None:  # noqa: B027
        """End the notifications; `announced` is the value that :meth:`listen` returned."""

    def told(self) -> int:
        """Return how many notifications have come; called before a look."""
        return 0

    def sleep(self, seconds: float, told: int = 0) -> None:
        """Wait for at most `seconds`; a notification ends the wait.

        `told`: result of told() before the last look. If notifications came since, do not sleep:
        the look may have missed their messages.
        """
        time.sleep(seconds)

    # -- the ring and its subscribers ------------------------------------------------------------

    def rows(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Read tables of the ring outside of any transaction."""
        with self.translated():
            return self.connection.execute(query).all()

    @abstractmethod
    def positions(self) -> tuple[int, dict[str, int]]:
        """Return the number of the next push, and of each subscriber's next pop."""

    def lock_creation(self) -> None:  # noqa: B027
        """Keep others from creating or dropping rings until this transaction ends."""

    def exist(self, connection: sa.Connection) -> bool:
        """Return whether the ring exists; called before any other use of its tables."""
        return self.tables.exist(connection)

    def create(self, connection: sa.Connection, layout: Layout, subscribers: Sequence[str]) -> None:
        """Create the ring within a transaction."""
        self.tables.create(connection, layout, subscribers, self.free_message)

    def adopt(self, connection: sa.Connection, layout: Layout) -> None:  # noqa: B027
        """Check, within a transaction, the ring's parts other than tables."""

    def renew(self, connection: sa.Connection, layout: Layout) -> None:  # noqa: B027
        """Replace, within a transaction, the ring's parts other than tables."""

    def drop(self, connection: sa.Connection) -> None:
        """Drop the ring within a transaction."""
        self.tables.metadata.drop_all(connection)

    def subscribe(self, name: str) -> None:
        """Add a subscriber at the push position."""

        def change(connection: sa.Connection) -> None:
            position = self._hold_pushes(connection)
            holder = self.tables.add(connection, name, position)
            self._add_cursor(connection, holder, position)
            self._tell(connection)

        self.transact(change)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber, and its reference to each message that it has not popped."""

        def change(connection: sa.Connection) -> None:
            holder = self.tables.lock(connection, name)
            if holder is None:
                raise SubscriberNotFound(
                    f"table ring {self.tables.name!r} has no subscriber {name!r}"
                )
            self._drop_cursor(connection, holder)
            self._hold_pushes(connection)
            self.tables.remove(connection, name, holder)
            self._tell(connection)

        self.transact(change)

    @abstractmethod
    def _hold_pushes(self, connection: sa.Connection) -> int:
        """Block pushes until the transaction ends; return the number of the next push."""

    def _add_cursor(self, connection: sa.Connection, holder: int, position: int) -> None:  # noqa: B027
        """Make a new subscriber's cursor at `position`, unless cursors are columns of a table."""

    def _drop_cursor(self, connection: sa.Connection, holder: int) -> None:  # noqa: B027
        """Wait until a subscriber's calls and leases have ended, and remove its cursor."""

    def _tell(self, connection: sa.Connection) -> None:  # noqa: B027
        """Let each later message wait for the subscribers that the ring's row now lists."""

    # -- transactions ----------------------------------------------------------------------------

    def transact(self, change: Callable[[sa.Connection], R]) -> R:
        """Change the ring in a transaction; wait for the disk, whatever the `durability`."""

        def attempt() -> R:
            with self.translated():
                try:
                    self._begin()
                    changed = change(self.connection)
                    self._run("COMMIT")
                except BaseException:
                    # A lost connection has undone the transaction already: ROLLBACK then fails.
                    with contextlib.suppress(ShmringError, exc.SQLAlchemyError):
                        self._run("ROLLBACK")
                    raise
                return changed

        return self.again(attempt)

    def again(self, attempt: Callable[[], R]) -> R:
        """Return the result of an attempt; try again if the database has undone it."""
        undone: exc.DBAPIError | None = None
        for number in range(ATTEMPTS):
            try:
                return attempt()
            except exc.DBAPIError as error:
                if not self.is_undone(error):
                    raise
                undone = error
                time.sleep(0.001 * 2**number)
        raise Contended(
            f"the database undid {ATTEMPTS} attempts at ring {self.tables.name!r}, the last one"
            f" because: {undone and undone.orig}; nothing was done, try again"
        ) from undone

    @contextlib.contextmanager
    def translated(self) -> Generator[None]:
        """Turn errors that a user can act on into errors of shmring; replace a lost connection."""
        try:
            yield
        except exc.DBAPIError as error:
            if error.connection_invalidated and self._connected:
                # SQLAlchemy connects again for the next statement. The failed statement stays an
                # error, because it may or may not have been committed.
                self.connection.invalidate()
                self.connection.rollback()
            self._refuse_dropped(error)
            ours = self._ours(error)
            if ours is None:
                raise
            raise ours from error

    def _ours(self, error: exc.DBAPIError) -> ShmringError | None:
        """Return shmring's error for a database's error; None if `meanings` has none for it."""
        ring, said = f"ring {self.tables.name!r}", error.orig
        match self.meanings.get(self.code(error)):
            case "locked":  # another connection has held a lock for all of `lock_seconds`
                return Contended(
                    f"the tables of {ring} were locked by another connection for"
                    f" {self.lock_seconds:g} s; nothing was pushed or popped, try again"
                )
            case "pooled":
                return PooledSession(
                    f"the database's session is not the one in which this handle of {ring}"
                    f" prepared its statements: {said}. The URL seems to lead to a pooler, such as"
                    " PgBouncer, that gives each transaction another; connect to PostgreSQL"
                    " itself, or set pool_mode = session for this database"
                )
            case "refused":
                return PermissionRefused(
                    f"the database refuses {ring} to this user: {said}; {self.rights}"
                )
            case "full":
                return NoSpace(
                    errno.ENOSPC,
                    f"the disk of the database of {ring} is full: {said}; nothing was done, make"
                    " room and try again",
                )
            case _:
                return None

    def _refuse_dropped(self, error: exc.DBAPIError) -> None:  # noqa: B027
        """Raise a clearer error if the ring, or a part of it, is gone or was replaced."""

    def dropped(self) -> RingNotFound:
        """Return the error of a handle whose ring is gone, or was replaced by another one."""
        return RingNotFound(
            f"table ring {self.tables.name!r} was dropped since this handle attached to it; if"
            " there is a new ring of this name, attach again"
        )

    @abstractmethod
    def code(self, error: exc.StatementError) -> str | int | None:
        """Return the database's code of an error; `meanings` maps some of the codes."""

    def is_undone(self, error: exc.DBAPIError) -> bool:
        """Return whether the database has undone a transaction that another attempt may finish."""
        return False

    @abstractmethod
    def _make_engine(self, url: sa.URL) -> sa.Engine:
        """Make an engine that begins and ends no transaction by itself."""

    @abstractmethod
    def _prepare_session(self, connection: Any, _record: Any) -> None:
        """Set up a new connection of the driver."""

    @abstractmethod
    def _begin(self) -> None:
        """Open a transaction whose commit waits for the disk."""

    @abstractmethod
    def _run(self, sql: str) -> None:
        """Execute SQL that has no parameters and no result."""
