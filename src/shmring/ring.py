"""Rings: making one, attaching to it, and what can be done with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from shmring import _shmring
from shmring._shmring import Consumer, Producer
from shmring.arguments import branch_name, integer, schema_bytes, start_of
from shmring.choices import (
    CLOCKS,
    DEFAULT_START,
    WAITS,
    WHEN_FULL,
    Clock,
    Start,
    Wait,
    WhenFull,
    choose,
)
from shmring.closing import Closing
from shmring.errors import Closed, RingExists, RingNotFound, ShmringError
from shmring.extras import read_schema
from shmring.names import Path, attach_core, is_name, locate, make_core, not_found, remove
from shmring.records import RingInfo, branch_records, holder_record, participant_records, ring_info

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.arrow import ArrowReader, ArrowWriter
    from shmring.arrow.reader import ReaderOptions
    from shmring.arrow.writer import WriterOptions
    from shmring.durable import Journal, Retention
    from shmring.graph import Sequence
    from shmring.records import (
        BranchRecord,
        CreateOptions,
        HolderRecord,
        ParticipantRecord,
        RingStats,
    )

__all__ = ["Consumer", "Producer", "Ring", "RingInfo", "attach", "create", "open_or_create"]


def _unlink_own(path: str, uuid: bytes, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        with suppress(ShmringError):  # it is gone, or gc will see to it
            remove(path, uuid)


class Ring(Closing):
    """An attached ring; made by :func:`create`, :func:`attach` or :func:`open_or_create`.

    A context manager: leaving it closes the ring, its producers and its consumers. Memory that
    is still in use (a lease, a numpy view, an Arrow buffer) stays mapped until it is collected.
    Threads may share a ring. In a forked child it attaches again by itself when it is next asked
    for something; the parent's producers and consumers stay the parent's. It can be given to
    another process of this host, as multiprocessing and executors do with arguments: what is sent
    is the path and the uuid, and the other process attaches.
    """

    def __init__(
        self, handle: _shmring.Ring, label: str, path: str, flags: int, *, temporary: bool
    ) -> None:
        self._handle = handle
        self._label = label
        self._path = path
        self._flags = flags
        self._pid = os.getpid()
        self._info = ring_info(handle.info())
        self._unlink = (
            weakref.finalize(self, _unlink_own, path, bytes.fromhex(self._info.uuid), self._pid)
            if temporary
            else None
        )

    def __repr__(self) -> str:
        state = ", closed" if self._handle.closed else ""
        return f'<shmring.Ring "{self._label}" of {self._info.slots} slots{state}>'

    def close(self) -> None:
        """Close the ring with its producers and consumers; unlink it if it is temporary."""
        self._handle.close()
        if self._unlink is not None:
            self._unlink()

    def keep(self) -> None:
        """Leave a temporary ring to those who are attached when this Ring is closed."""
        if self._unlink is not None:
            self._unlink.detach()

    def unlink(self) -> None:
        """Remove the ring's file, as :func:`shmring.unlink` does, if it is still this ring's.

        Raises
        ------
        RingNotFound : the ring has been removed; another one may have its name by now
        """
        try:
            remove(self._path, bytes.fromhex(self._info.uuid))
        except RingNotFound:
            raise not_found(self._label, self._path) from None

    @property
    def core(self) -> _shmring.Ring:
        """The core's handle, of this process."""
        if self._pid != os.getpid() and not self._handle.closed:
            self._handle = _attach_same(self._label, self._path, self._flags, self._info.uuid)
            self._pid = os.getpid()
        return self._handle

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise Closed(f'ring "{self._label}" is closed; a closed ring cannot be sent')
        return _received, (self._label, self._path, self._flags, self._info.uuid)

    # --- what it is ---------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The ring's name; None if it was made or found by path."""
        return self._label if is_name(self._label) else None

    @property
    def path(self) -> str:
        """The ring's file."""
        return self._path

    @property
    def info(self) -> RingInfo:
        """What was fixed when the ring was made."""
        return self._info

    @property
    def slots(self) -> int:
        """Number of 300-byte slots."""
        return self._info.slots

    @property
    def read_only(self) -> bool:
        """Whether it was attached to look on only."""
        return bool(self._flags & _shmring.READ_ONLY)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle.closed

    @property
    def schema_bytes(self) -> bytes | None:
        """The Arrow schema given at creation as an IPC message, or None."""
        return self.core.info()["schema"]

    @property
    def schema(self) -> pa.Schema | None:
        """The Arrow schema given at creation, or None."""
        serialized = self.schema_bytes
        return None if serialized is None else read_schema(serialized)

    # --- using it -----------------------------------------------------------------------------

    def producer(
        self, name: str | None = None, *, when_full: WhenFull = "block", wait: Wait = "default"
    ) -> Producer:
        """Take part as a producer.

        Parameters
        ----------
        name : what this participant is called in statistics; up to 55 bytes are kept
        when_full : what push() without a timeout does when the ring is full: "block" waits,
            "raise" raises Full at once, "drop" counts the message and returns -1
        wait : how it waits, a name of :data:`shmring.Wait`; "default" spins briefly, then sleeps

        Raises
        ------
        SecondProducer : the ring has a single producer, and it lives
        LimitReached : there is no room for another participant
        PermissionRefused : the ring was attached read-only
        """
        full = choose(WHEN_FULL, "when_full", when_full)
        return self.core.producer(name, full, choose(WAITS, "wait", wait))

    def consumer(
        self,
        branch: str,
        *,
        start: Start | int = DEFAULT_START,
        exclusive: bool = False,
        ephemeral: bool = False,
        drop_oldest: bool = False,
        after: str | Iterable[str] = (),
        wait: Wait = "default",
        name: str | None = None,
    ) -> Consumer:
        """Join a branch, made first unless it is there; its consumers share its messages.

        Parameters
        ----------
        branch : name of the branch, 1 to 47 bytes. Every branch sees every message
        start : where a new branch begins: "earliest" (what is still held, also of an earlier run,
            with its end), "latest" (behind the last message that is published by now; so a message
            whose claim lies before that, and is still open, is not delivered either) or a
            sequence, of which the first message at or after it is
            delivered first. A branch that is there goes on where it stands
        exclusive : one consumer only
        ephemeral : dropped with its last consumer; otherwise it keeps holding the producers
        drop_oldest : loses the oldest messages rather than hold the producers (Overrun says
            which). What its living consumers have leased holds them all the same
        after : names of branches it follows: it sees a message when all of them have released it
        wait : as of producer()
        name : what this participant is called in statistics

        A branch that is there stays as it was made, whatever the options say.

        Raises
        ------
        SecondConsumer : the branch is exclusive and its consumer lives
        LimitReached : there are 64 branches already, or no room for another participant
        BranchNotFound : a name in `after` is no branch
        ValueError : the start lies ahead of the producers
        """
        core = self.core
        begin, sequence = start_of(start)
        return core.join(
            branch=branch_name(branch),
            name=name,
            start=begin,
            sequence=sequence,
            exclusive=exclusive,
            ephemeral=ephemeral,
            drop_oldest=drop_oldest,
            upstream=_upstream(core, after),
            wait=choose(WAITS, "wait", wait),
        )

    def subscribe(
        self,
        branch: str,
        *,
        start: Start | int = DEFAULT_START,
        exclusive: bool = False,
        drop_oldest: bool = False,
        after: str | Iterable[str] = (),
    ) -> None:
        """Make a branch without joining it, so that it holds messages for consumers to come.

        Parameters and errors as of consumer(). A branch that is there stays as it is.
        """
        core = self.core
        begin, sequence = start_of(start)
        core.subscribe(
            branch=branch_name(branch),
            start=begin,
            sequence=sequence,
            exclusive=exclusive,
            drop_oldest=drop_oldest,
            upstream=_upstream(core, after),
        )

    def drop_branch(self, branch: str) -> None:
        """Drop a branch: it holds nobody back any more, its consumers get BranchDropped.

        Raises
        ------
        BranchNotFound : there is none of this name
        """
        self.core.unsubscribe(branch_name(branch))

    def sequence(
        self,
        branch: str | None = None,
        *,
        start: Start | int = DEFAULT_START,
        exclusive: bool = True,
        after: str | Iterable[str] = (),
        name: str | None = None,
    ) -> Sequence:
        """The low level: next(), done(), available(), then().

        Parameters
        ----------
        branch : None for the producer's sequence, else the name of a branch, which is joined
        start, after, name : as of consumer()
        exclusive : one consumer only: next() never loses a race, and available() works
        """
        from shmring.graph import Sequence

        if branch is None:
            return Sequence(self, self.producer(name))
        consumer = self.consumer(branch, start=start, exclusive=exclusive, after=after, name=name)
        return Sequence(self, consumer)

    def arrow_writer(
        self, schema: pa.Schema | None = None, **options: Unpack[WriterOptions]
    ) -> ArrowWriter:
        """A writer of Arrow record batches; see :class:`shmring.arrow.ArrowWriter`."""
        from shmring.arrow import ArrowWriter

        return ArrowWriter(self, schema, **options)

    def arrow_reader(self, branch: str, **options: Unpack[ReaderOptions]) -> ArrowReader:
        """A reader of Arrow record batches; see :class:`shmring.arrow.ArrowReader`."""
        from shmring.arrow import ArrowReader

        return ArrowReader(self, branch, **options)

    def journal(
        self,
        path: Path,
        *,
        segment_bytes: int = 64 << 20,
        retention: Retention | None = None,
        allow_gap: bool = False,
    ) -> Journal:
        """Put every message on disk from now on; see :class:`shmring.durable.Journal`."""
        from shmring.durable.journal import Journal

        return Journal(
            self, path, segment_bytes=segment_bytes, retention=retention, allow_gap=allow_gap
        )

    # --- looking on ---------------------------------------------------------------------------

    @property
    def claimed(self) -> int:
        """The sequence that the next claim will get."""
        return self.core.claimed

    @property
    def floor(self) -> int:
        """What producers may overwrite up to; they raise it only when they need room."""
        return self.core.floor

    def branches(self) -> list[BranchRecord]:
        """The branches as they stand, each a dict; see :class:`shmring.BranchRecord`."""
        return branch_records(self.core)

    def participants(self) -> list[ParticipantRecord]:
        """The participants: who is attached, and what each has done so far.

        Each is a dict; see :class:`shmring.ParticipantRecord`.
        """
        return participant_records(self.core)

    def holder(self) -> HolderRecord | None:
        """Whom producers wait for when the ring is full, as it stands.

        A dict, see :class:`shmring.HolderRecord`; None if nobody holds anything.
        """
        return holder_record(self.core)

    def rows(
        self, first: int = 0, end: int | None = None, capacity: int = 300
    ) -> list[tuple[int, int, int, int, int, int, bytes]]:
        """Rows of the queue table that hold a message now, without taking part.

        Parameters
        ----------
        first, end : slot numbers, `end` excluded; None is the number of slots
        capacity : bytes of each message to copy at most

        Returns
        -------
        (slot, message_id, time in ns, length, reference_count, kind, message) each
        """
        end = self.slots if end is None else min(integer("end", end), self.slots)
        return self.core.rows(integer("first", first), end, capacity)

    def table(self) -> pa.Table:
        """The queue table; see :func:`shmring.inspect.table`."""
        from shmring.inspect import table

        return table(self)

    def stats(self) -> RingStats:
        """Positions and counters as they stand; see :func:`shmring.inspect.stats`."""
        from shmring.inspect import stats

        return stats(self)

    def recover(self) -> int:
        """Clear away participants that died, now; waiting does it too.

        Returns
        -------
        how many participants were dead

        Raises
        ------
        Contended : another process is at it right now
        """
        return self.core.recover()


def _attach_same(label: str, path: str, flags: int, uuid: str) -> _shmring.Ring:
    """Attach to the ring that another process knew, and to no other."""
    handle = attach_core(label, path, flags)
    if handle.info()["uuid"].hex() != uuid:
        handle.close()
        raise RingNotFound(
            f'ring "{label}" was replaced by another one of the same name since this process, or '
            "the one that sent the ring, attached to it; attach to that one with shmring.attach()"
        )
    return handle


def _received(label: str, path: str, flags: int, uuid: str) -> Ring:
    """The ring that another process has sent."""
    handle = _attach_same(label, path, flags, uuid)
    return Ring(handle, label, path, flags, temporary=False)


def _upstream(core: _shmring.Ring, after: str | Iterable[str]) -> int:
    upstream = 0
    for name in (after,) if isinstance(after, str) else after:
        upstream |= 1 << core.find_branch(branch_name(name))
    return upstream


# --- making and attaching -----------------------------------------------------------------------


def create(
    name: str | None = None,
    *,
    slots: int = 65_536,
    path: Path | None = None,
    participants: int = 128,
    single_producer: bool = False,
    scattered: bool = False,
    checksum: bool = False,
    clock: Clock = "coarse",
    mode: int = 0o600,
    schema: pa.Schema | None = None,
    prefault: bool = False,
    lock_memory: bool = False,
    huge_pages: bool = False,
    first_sequence: int = 0,
    temporary: bool = False,
) -> Ring:
    """Make a ring and attach to it. It stays until it is unlinked.

    Parameters
    ----------
    name : 1 to 200 of the characters A-Z a-z 0-9 . _ -; or None with `path`
    slots : number of 300-byte slots, a power of two, at least 1,024; a slot costs 332 bytes
    path : a file to use instead of shared memory
    participants : at most 248: a handle that attaches is one, which one producer or consumer at a
        time uses; any other takes one more
    single_producer : refuse a second living producer
    scattered : put neighbours far apart in memory; messages of one slot only
    checksum : keep and check a CRC32C of every message
    clock : time of messages: "coarse" (1 to 4 ms), "precise" (costs about 20 ns) or "off"
    mode : permission bits of the file
    schema : Arrow schema kept in the ring, for readers that come late
    prefault : touch every page now
    lock_memory : lock it into memory while this process makes it
    huge_pages : ask for transparent huge pages
    first_sequence : where message_ids begin
    temporary : for as long as somebody is attached: unlinked when this Ring is closed or
        collected, at the latest at exit; or by gc() when all who were attached have gone

    Raises
    ------
    ValueError : a name, size or option that cannot be
    RingExists : there is one of this name
    NoSpace : the file system cannot hold it
    PermissionRefused : the folder is not writable
    """
    label, where = locate(name, path)
    core = make_core(
        label,
        where,
        mode=integer("mode", mode, 0, 0o777),
        slots=integer("slots", slots, 1),
        participants=integer("participants", participants, 1, 2**31),
        single_producer=single_producer,
        scattered=scattered,
        checksum=checksum,
        prefault=prefault,
        lock_memory=lock_memory,
        huge_pages=huge_pages,
        clock=choose(CLOCKS, "clock", clock),
        schema=schema_bytes(schema),
        first_sequence=integer("first_sequence", first_sequence),
        temporary=temporary,
    )
    return Ring(core, label, where, 0, temporary=temporary)


def attach(
    name: str | None = None,
    *,
    path: Path | None = None,
    read_only: bool = False,
    foreign_owner: bool = False,
) -> Ring:
    """Attach to a ring that is there.

    Parameters
    ----------
    name, path : one of the two
    read_only : to look on only: is no participant and disturbs nobody
    foreign_owner : accept a ring that another user owns; trust them, they can forge messages

    Raises
    ------
    RingNotFound : there is none
    NotARing, VersionMismatch, Damaged : the file is not a ring that this version can use
    PermissionRefused : it is somebody else's
    LimitReached : there is no room for another participant
    """
    label, where = locate(name, path)
    flags = _shmring.READ_ONLY if read_only else 0
    if foreign_owner:
        flags |= _shmring.FOREIGN_OWNER
    return Ring(attach_core(label, where, flags), label, where, flags, temporary=False)


def open_or_create(
    name: str | None = None, *, path: Path | None = None, **options: Unpack[CreateOptions]
) -> Ring:
    """Attach to the ring, or make it if there is none; both ends of a pipe may call it at once.

    Parameters
    ----------
    name, path : one of the two
    options : of :func:`create`; a ring that is there stays as it is

    Raises
    ------
    as :func:`create` and :func:`attach`
    """
    return attach_or_make(name, path, **options)[0]


def attach_or_make(
    name: str | None, path: Path | None, **options: Unpack[CreateOptions]
) -> tuple[Ring, bool]:
    """What open_or_create() does, and whether the ring was made now."""
    while True:
        try:
            return attach(name, path=path), False
        except RingNotFound:
            pass
        try:
            return create(name, path=path, **options), True
        except RingExists:
            pass
