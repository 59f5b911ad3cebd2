"""An attached ring: its properties, and calls that use, observe and recover the ring."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack, cast

from shmring import _shmring
from shmring._shmring import SLOT_BYTES, Consumer, Producer
from shmring.common.arguments import (
    DEFAULT_START,
    WAITS,
    WHEN_FULL,
    Start,
    Wait,
    WhenFull,
    branch_name,
    branch_names,
    choose,
    integer,
    start_of,
)
from shmring.common.closing import Closing
from shmring.common.extras import read_schema
from shmring.errors import Closed, RingNotFound, ShmringError
from shmring.ring.names import Path, attach_core, is_name, locate_text, not_found, remove
from shmring.ring.records import (
    RingInfo,
    branch_records,
    holder_record,
    participant_records,
    ring_info,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.arrow import ArrowReader, ArrowWriter
    from shmring.arrow.reader import ReaderOptions
    from shmring.arrow.writer import WriterOptions
    from shmring.durable import Journal, Retention
    from shmring.gpu import Pinned
    from shmring.ring.graph import Sequence
    from shmring.ring.records import (
        BranchRecord,
        HolderRecord,
        ParticipantRecord,
        RingStats,
    )


def _unlink_own(path: str, uuid: bytes, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove its parent's ring
        with suppress(ShmringError):  # another process has removed the ring, or gc() will
            remove(path, uuid)


class Ring(Closing):
    """An attached ring; made by :func:`create`, :func:`attach` or :func:`open_or_create`.

    A ring is a context manager. Leaving the block closes the ring, its producers and its
    consumers. Memory that is still in use (a lease, a numpy view, an Arrow buffer) stays mapped
    until it is collected. Threads may share a ring.

    In a forked child the ring attaches again by itself at its next call. The parent's producers
    and consumers cannot be used in the child. A ring can be sent to another process of this host,
    as multiprocessing and executors do with arguments. The path and the uuid are sent, and the
    other process attaches.
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
        try:
            if self._unlink is not None and (finalizer := self._unlink.peek()):
                # Unlink the ring before this process leaves it, so that no other process finds a
                # temporary ring without participants. Detach the finalizer only after the removal:
                # if an exception ends the removal half-way, the finalizer repeats it.
                _unlink_own(*finalizer[2])
                self._unlink.detach()
        finally:
            # Close even if a signal's handler has raised: the caller may never call close() again.
            self._handle.close()

    def keep(self) -> None:
        """Leave a temporary ring to its other users: do not unlink it when this Ring is closed."""
        if self._unlink is not None:
            self._unlink.detach()

    def unlink(self) -> None:
        """Remove the ring's file, as :func:`shmring.unlink` does, if the file is still this ring's.

        Raises
        ------
        RingNotFound : the ring has been removed; another ring may have its name by now
        """
        try:
            remove(self._path, bytes.fromhex(self._info.uuid))
        except RingNotFound:
            if not os.path.lexists(self._path):
                raise not_found(self._label, self._path) from None
            raise RingNotFound(
                f'ring "{self._label}" was removed already, and {self._path} is another file, which'
                f" stays: shmring.unlink() removes that one if it is a ring"
            ) from None

    @property
    def core(self) -> _shmring.Ring:
        """The core's handle in this process."""
        if self._pid != os.getpid() and not self._handle.closed:
            self._handle = _attach_same(self._label, self._path, self._flags, self._info.uuid)
            self._pid = os.getpid()
        return self._handle

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise Closed(f'ring "{self._label}" is closed; a closed ring cannot be sent')
        return _received, (self._label, self._path, self._flags, self._info.uuid)

    # --- the ring's properties ----------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The ring's name; None if it was made or found by path."""
        return self._label if is_name(self._label) else None

    @property
    def path(self) -> str:
        """Path of the ring's file."""
        return self._path

    @property
    def info(self) -> RingInfo:
        """The properties that were fixed when the ring was made."""
        return self._info

    @property
    def slots(self) -> int:
        """Number of 300-byte slots."""
        return self._info.slots

    @property
    def read_only(self) -> bool:
        """Whether the ring was attached read-only."""
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

    # --- using the ring ----------------------------------------------------------------------

    def producer(
        self, name: str | None = None, *, when_full: WhenFull = "block", wait: Wait = "default"
    ) -> Producer:
        """Open a producer.

        Parameters
        ----------
        name : name of this participant in statistics; up to 55 bytes are kept
        when_full : how push() without a timeout behaves when the ring is full: "block" waits,
            "raise" raises Full at once, "drop" discards and counts the message and returns -1
        wait : how the producer waits, a name of :data:`shmring.Wait`; "default" spins briefly,
            then sleeps

        Raises
        ------
        SecondProducer : the ring allows one producer, and another producer lives
        LimitReached : the ring has no room for another participant
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
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
        wait: Wait = "default",
        name: str | None = None,
    ) -> Consumer:
        """Join a branch, and make the branch first if it does not exist.

        A branch is a consumer group with its own position: its consumers share its messages.

        Parameters
        ----------
        branch : name of the branch, 1 to 47 bytes. Every branch sees every message
        start : where a new branch begins. "earliest": with the messages that the ring still holds,
            also messages and end markers of earlier runs of the programs. "latest": after the last
            message that is published now. The branch then also misses a message that a producer
            publishes later, in slots that it claimed before the last message's slots. A sequence:
            with the first message at or after this sequence. An existing branch continues at its
            position
        exclusive : allow one consumer only
        ephemeral : drop the branch with its last consumer; otherwise the branch stays, and
            producers wait for it when the ring is full
        drop_oldest : when the ring is full, lose the branch's oldest messages instead of making
            producers wait (Overrun says which messages). Producers still wait for messages on lease
            to living consumers of the branch
        after : names of the branches that this branch follows: it sees a message when all of them
            have released the message
        max_deliveries, dead_letter : the most deliveries of one message, 1 to 255, and the ring for
            messages that reach this limit. If a message was delivered `max_deliveries` times and
            never released, this consumer does not deliver it again: it pushes the message into the
            ring `dead_letter`, and releases it. `dead_letter` is the name of an existing ring, or
            its path (with a slash); the ring must have the same schema and at least as many slots;
            see :doc:`death </concepts/death>`
        wait : as for producer()
        name : name of this participant in statistics

        An existing branch does not change, whatever the options say.

        Raises
        ------
        RingNotFound : there is no ring `dead_letter`
        SecondConsumer : the branch is exclusive, and another consumer of it lives
        LimitReached : the ring has 64 branches, or no room for another participant
        BranchNotFound : a name in `after` is no branch
        ValueError : the start is ahead of the producers
        """
        core, letters = self.core, _dead_letters(self._label, max_deliveries, dead_letter)
        consumer = core.join(
            branch_name(branch),
            name,
            (*start_of(start), exclusive, ephemeral, drop_oldest, _upstream(core, after)),
            choose(WAITS, "wait", wait),
        )
        if letters is not None:
            try:
                _shmring.set_aside(consumer, *letters)
            except BaseException:
                consumer.close()
                raise
        return consumer

    def subscribe(
        self,
        branch: str,
        *,
        start: Start | int = DEFAULT_START,
        exclusive: bool = False,
        drop_oldest: bool = False,
        after: str | Iterable[str] = (),
    ) -> None:
        """Make a branch without joining it, so that the ring keeps messages for later consumers.

        Parameters and errors are those of consumer(). An existing branch does not change.
        """
        core = self.core
        core.subscribe(
            branch_name(branch),
            (*start_of(start), exclusive, False, drop_oldest, _upstream(core, after)),
        )

    def drop_branch(self, branch: str) -> None:
        """Drop a branch. Producers no longer wait for it, and its consumers get BranchDropped.

        The consumers keep the messages that they have on lease, and producers wait until these
        leases are released, or until the consumers' processes have ended.

        Raises
        ------
        BranchNotFound : there is no branch of this name
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
        """Return the low-level interface: next(), done(), available(), then().

        Parameters
        ----------
        branch : name of a branch to join; None for the sequence of a producer
        start, after, name : as for consumer()
        exclusive : allow one consumer only: next() never loses a race, and available() works
        """
        from shmring.ring.graph import Sequence

        if branch is None:
            return Sequence(self, self.producer(name))
        consumer = self.consumer(branch, start=start, exclusive=exclusive, after=after, name=name)
        return Sequence(self, consumer)

    def arrow_writer(
        self, schema: pa.Schema | None = None, **options: Unpack[WriterOptions]
    ) -> ArrowWriter:
        """Return a writer of Arrow record batches; see :class:`shmring.arrow.ArrowWriter`."""
        from shmring.arrow import ArrowWriter

        return ArrowWriter(self, schema, **options)

    def arrow_reader(self, branch: str, **options: Unpack[ReaderOptions]) -> ArrowReader:
        """Return a reader of Arrow record batches; see :class:`shmring.arrow.ArrowReader`."""
        from shmring.arrow import ArrowReader

        return ArrowReader(self, branch, **options)

    # CHANGE: edit this for a new option of a journal
    def journal(
        self,
        path: Path,
        *,
        segment_bytes: int = 64 << 20,
        retention: Retention | None = None,
        allow_gap: bool = False,
    ) -> Journal:
        """Write every message to disk from now on; see :class:`shmring.durable.Journal`."""
        from shmring.durable.journal.journaller import Journal

        return Journal(
            self, path, segment_bytes=segment_bytes, retention=retention, allow_gap=allow_gap
        )

    def pin(self) -> Pinned:
        """Let a GPU's runtime pin the slots in this process: copies then run at the bus's speed.

        Pinned memory keeps its place in physical memory, so the GPU reads it directly. The runtime
        is CUDA's or HIP's: the one that torch or cupy has loaded, or else the first one that is
        found. Pinning takes a third of a second for each GB, once. The ring is unpinned by unpin(),
        at the end of a block ``with ring.pin():``, or before its memory is unmapped. In a forked
        child the ring is not pinned. Pinning a pinned ring changes nothing.

        Raises
        ------
        GpuError : no runtime was found, or the runtime refuses
        """
        from shmring.gpu import pin

        return pin(self)

    def unpin(self) -> None:
        """Wait for the copies that to_device() and to_torch() have begun, and unpin the slots."""
        from shmring.gpu import unpin

        unpin(self)

    @property
    def pinned(self) -> bool:
        """Whether pin() has pinned the slots in this process."""
        return self._handle.pinned

    # --- observing the ring ------------------------------------------------------------------

    @property
    def claimed(self) -> int:
        """The sequence that the next claim will get."""
        return self.core.claimed

    @property
    def floor(self) -> int:
        """The sequence below which producers may overwrite; rises only when producers need room."""
        return self.core.floor

    def branches(self) -> list[BranchRecord]:
        """Return the branches, each a dict; see :class:`shmring.BranchRecord`."""
        return branch_records(self.core)

    def participants(self) -> list[ParticipantRecord]:
        """Return the participants with their counters.

        Each is a dict; see :class:`shmring.ParticipantRecord`.
        """
        return participant_records(self.core)

    def holder(self) -> HolderRecord | None:
        """Return the participant or branch for which producers wait when the ring is full.

        A dict, see :class:`shmring.HolderRecord`; None if nothing is held.
        """
        return holder_record(self.core)

    def rows(
        self, first: int = 0, end: int | None = None, capacity: int = SLOT_BYTES
    ) -> list[tuple[int, int, int, int, int, int, bytes]]:
        """Return a row for each message that the ring holds now, without joining the ring.

        Parameters
        ----------
        first, end : slot numbers, `end` excluded; None means the number of slots. Messages that
            begin in other slots are left out
        capacity : maximum number of bytes to copy of each message

        Returns
        -------
        for each message (slot, message_id, time in ns, length, reference_count, kind, message)
        """
        end = self.slots if end is None else min(integer("end", end), self.slots)
        # The core allocates a buffer of this size, and no message is larger than the ring.
        room = min(integer("capacity", capacity), self.slots * SLOT_BYTES)
        return self.core.rows(integer("first", first), end, room)

    def table(self) -> pa.Table:
        """Return the queue table; see :func:`shmring.inspect.table`."""
        from shmring.inspect import table

        return table(self)

    def stats(self) -> RingStats:
        """Return positions and counters; see :func:`shmring.inspect.stats`."""
        from shmring.inspect import stats

        return stats(self)

    def recover(self) -> int:
        """Clear away dead participants now; waiting processes also do this by themselves.

        Returns
        -------
        the number of dead participants

        Raises
        ------
        Contended : another process is clearing away dead participants at this moment
        """
        return self.core.recover()


def _attach_same(label: str, path: str, flags: int, uuid: str) -> _shmring.Ring:
    """Attach to the ring with this uuid, and to no other ring of the same name."""
    handle = attach_core(label, path, flags)
    if handle.info()["uuid"].hex() != uuid:
        handle.close()
        raise RingNotFound(
            f'ring "{label}" was replaced by another one of the same name since this process, or '
            "the one that sent the ring, attached to it; attach to that one with shmring.attach()"
        )
    return handle


def _received(label: str, path: str, flags: int, uuid: str) -> Ring:
    """Return the ring that another process has sent."""
    handle = _attach_same(label, path, flags, uuid)
    return Ring(handle, label, path, flags, temporary=False)


def _dead_letters(
    label: str, max_deliveries: int | None, dead_letter: str | None
) -> tuple[int, Producer] | None:
    if max_deliveries is None and dead_letter is None:
        return None
    if max_deliveries is None or dead_letter is None:
        raise ValueError("max_deliveries and dead_letter go together: give both, or none")
    most = integer("max_deliveries", max_deliveries, 1, 255)
    given = cast("object", dead_letter)
    if isinstance(given, Ring):
        raise TypeError(f"dead_letter is the name or path of a ring: give {given.path!r}")
    if not isinstance(given, str):
        raise TypeError(f"dead_letter is the name or path of a ring, a str, not {given!r}")
    letters, where = locate_text(dead_letter)
    ring = Ring(attach_core(letters, where, 0), letters, where, 0, temporary=False)
    return most, ring.producer(f"dead letters of {label}")


def _upstream(core: _shmring.Ring, after: str | Iterable[str]) -> int:
    upstream = 0
    given = cast("str | Iterable[str] | Consumer", after)
    if isinstance(given, Consumer):  # iterating over a consumer would take its messages
        raise TypeError(f"after takes names of branches: give {given.branch!r}, not {given!r}")
    for name in branch_names("after", (after,) if isinstance(after, str) else after):
        upstream |= 1 << core.find_branch(name)
    return upstream
