"""The journal: a branch of the ring that writes every message to disk.

The arrangement is the LMAX Disruptor's: the journaller stands before the business logic.  Branches
that follow the journal's (``after="journal"``) see a message when it is on disk; ``push(...,
durable=True)`` returns then.  Slots are written directly from the ring's mapping, without a
conversion.  One sync covers everything that was gathered while the previous sync ran.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from shmring._shmring import JOURNAL_BRANCH, SLOT_BYTES, count_synced
from shmring.common.arguments import branch_names, integer, seconds_of
from shmring.common.closing import Closing, let_go
from shmring.durable.base.files import Buffer, Disk
from shmring.durable.journal.log import ENTRY, JournalLog
from shmring.errors import (
    Empty,
    EndOfStream,
    JournalGap,
    NoSpace,
    SecondConsumer,
    TooManyLeases,
)
from shmring.ring.names import path_text

if TYPE_CHECKING:
    import numpy as np

    from shmring._shmring import Batch
    from shmring.common.arguments import Start
    from shmring.ring import Consumer, Ring
    from shmring.ring.records import BranchRecord


_LOG = logging.getLogger("shmring.durable")
# Maximum bytes that one sync covers, or a third of the ring if that is less: one third is synced,
# another third is written, and producers fill the last third.
_GATHER_BYTES = 8 << 20
# Seconds for which a call waits for messages before the journal checks again whether close() was
# called; also the seconds between two checks of the journal's files and of the retention.
_IDLE = 0.1
_RETRY = 0.25  # seconds until the next try on a full disk


# CHANGE: edit this for a new option of a journal
@dataclass(frozen=True)
class Retention:
    """Rules for the segments that a journal may forget: whole segments, and never the newest.

    Parameters
    ----------
    max_bytes : forget the oldest segments beyond this size
    max_age : forget segments older than this many seconds; only seconds in which a journal ran
        count, not jumps of the wall clock
    consumed_by : keep segments that these branches have not released, whatever their size and
        age; without the other options, forget every segment that all these branches have released
    """

    max_bytes: int | None = None
    max_age: float | None = None
    consumed_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            integer("max_bytes", self.max_bytes)
        if self.max_age is not None:
            seconds_of("max_age", self.max_age)
        branch_names("consumed_by", self.consumed_by)


class Journal(Closing):
    """Writes a ring's messages to disk in its own threads; made by :meth:`Ring.journal`.

    Parameters
    ----------
    path : directory of the journal; made if missing, owned by one process at a time
    segment_bytes : size in bytes at which a new file is begun, or 1/8 of the space that the journal
        has and can get, if this is less
    retention : which segments may be forgotten; None keeps all segments
    allow_gap : continue even if messages are lost: between the journal's end and the ring's oldest
        message, between two segments, or before a new directory's first message

    Attributes
    ----------
    recovered : text about the data that opening had to drop; None if nothing was dropped
    syncs, records, messages, bytes_written : numbers of syncs, of records and messages written, and
        of their bytes in the files, since the journal was opened
    error : why the journal stopped by itself, or cannot write at the moment; None if there is no
        error

    Raises
    ------
    Locked : another process owns the directory
    SecondConsumer : another journal of this ring runs, or other programs made its branch "journal"
    JournalGap : the ring does not continue where the journal ends; messages are missing within the
        journal; or the directory is new, and another directory has the messages that the ring's
        journal has released
    Damaged : data that had been on disk is unreadable; from close(): the journal's files have been
        removed
    TooManyLeases : from close(): consumers other than journals have died on the branch "journal",
        and left more than 48 messages that are not neighbours and cannot be written in order

    While the disk is full, the journal waits and tries again. Once the ring is full, producers wait
    too.
    """

    # CHANGE: edit this for a new option of a journal
    def __init__(
        self,
        ring: Ring,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 64 << 20,
        retention: Retention | None = None,
        allow_gap: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self.path = path_text(path)
        self.syncs = self.records = self.messages = self.bytes_written = 0
        self.error: Exception | None = None
        self._ring = ring
        given = cast("object", retention)
        if not (given is None or isinstance(given, Retention)):
            raise TypeError(f"retention must be a Retention, not {given!r}")
        self._retention = retention
        self._pid = os.getpid()
        self._gather_bytes = min(_GATHER_BYTES, ring.slots * SLOT_BYTES // 3)
        self._sync_thread: threading.Thread | None = None
        self._sync_error: Exception | None = None
        self._stop = threading.Event()
        # Use an event instead of Thread.join(): if a signal's exception interrupts a join(), Python
        # 3.11 takes the thread for ended, and the next join() returns at once.
        self._ended = threading.Event()
        self._looked = time.monotonic()
        self._adopted: list[Batch] = []  # batches that _adopt() has leased; written first
        self._disk = disk or Disk(ring.info.mode)
        with ExitStack() as stack:
            self._log = JournalLog(
                self._disk,
                os.path.abspath(self.path),
                uuid=bytes.fromhex(ring.info.uuid),
                schema=ring.schema_bytes or b"",
                segment_bytes=integer("segment_bytes", segment_bytes, 1),
                allow_gap=allow_gap,
            )
            stack.callback(self._log.close)
            self._inp = _join(ring, self._log, allow_gap=allow_gap)
            stack.callback(self._inp.close)
            self._inp.end_markers = True
            threading.Thread(target=self._run, name="shmring-journal", daemon=True).start()
            stack.pop_all()

    @property
    def recovered(self) -> str | None:
        """Text about the data that opening had to drop."""
        return self._log.torn

    @property
    def durable(self) -> int:
        """The sequence below which everything is on disk."""
        return self._log.durable

    @property
    def running(self) -> bool:
        """True while the journal writes; false in a forked child, which lacks its threads."""
        return self._pid == os.getpid() and not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until an error, or close() in another thread, stops the journal; True if it did."""
        return not self.running or self._ended.wait(timeout)

    def close(self) -> None:
        """Write all messages taken from the ring to disk, and stop; the branch keeps its position.

        Raises
        ------
        the error that had stopped the journal before
        """
        if self._pid != os.getpid():
            return  # in a forked child: the journal is the parent's
        self._stop.set()
        self._ended.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error

    # --- the threads ----------------------------------------------------------------------------

    # CHANGE: edit this for a new option of a journal
    def _run(self) -> None:
        try:
            try:
                self._adopt()
                while not self._stop.is_set():
                    self._gather()
                    if time.monotonic() - self._looked >= _IDLE:
                        self._looked = time.monotonic()
                        self._log.refuse_other_files()
                        self._forget()
            finally:
                self._await_sync()
            if self._adopted:
                self._inp.abandon()
            else:
                self._inp.close()
        except Exception as error:
            # After a failed write or sync it is unknown which bytes are on disk: leased messages
            # stay unreleased and are delivered again to the next journal.
            _LOG.error("journal %s of ring %s has stopped: %s", self.path, self._ring.path, error)
            self.error = error
            self._inp.abandon()
            let_go(error)
        finally:
            self._adopted.clear()
            self._log.close()
            self._ended.set()

    def _adopt(self) -> None:
        """Lease all messages that the previous journal had on lease, before anything is written.

        While another process has the admin lock, the ring cannot deliver these messages again, and
        delivers new ones instead. So the loop leases new messages too, and sorts all batches by
        their first sequence at the end.
        """
        while not self._stop.is_set() and self._left():
            with suppress(Empty, EndOfStream):
                self._adopted.append(self._lease_some(self._most(), _IDLE))
                if not self._adopted[-1].redelivered:
                    self._stop.wait(_IDLE)
        self._adopted.sort(key=lambda batch: batch.first)

    def _left(self) -> bool:
        branch = _branch_of(self._ring)
        return branch is not None and branch["orphans"] > 0

    def _most(self) -> int:
        """Return the maximum bytes of slots in one record, and in one sync."""
        return min(self._gather_bytes, self._log.share)

    def _lease(self, nbytes: int, timeout: float) -> Batch:
        return self._adopted.pop(0) if self._adopted else self._lease_some(nbytes, timeout)

    def _lease_some(self, nbytes: int, timeout: float) -> Batch:
        self._inp.max_slots = slots = -(-nbytes // SLOT_BYTES)
        return self._inp.lease_many(slots, timeout=timeout)

    def _gather(self) -> None:
        """Write the ring's messages to the log; sync and release them in this or another thread."""
        taken: list[Batch] = []
        some, nbytes = False, 0
        most = self._most()
        while nbytes < most:
            # CHANGE: edit this for a new error
            try:
                batch = self._lease(most - nbytes, timeout=0 if some else _IDLE)
            except (Empty, EndOfStream):  # EndOfStream: an earlier journal reached the end marker
                break
            # A dead consumer left more separate messages than this consumer may hold: write, sync
            # and release the messages leased so far, then lease the rest.
            except TooManyLeases:
                if taken:
                    break
                if self._sync_thread is None:
                    raise
                self._await_sync()
                continue
            some = True
            nbytes += self._write(batch, taken)
            taken.append(batch)
        if not some:
            if self._sync_thread is not None and not self._sync_thread.is_alive():
                self._await_sync()
            return
        self._await_sync()
        if nbytes < most or not self._disk.parallel:
            # Sync in this thread: there is nothing to write meanwhile, and starting a thread would
            # only delay a push that waits for the sync.
            self._sync(taken)
            return
        self._sync_thread = threading.Thread(
            target=self._sync_aside, args=(taken,), name="shmring-journal-sync", daemon=True
        )
        self._sync_thread.start()

    def _sync(self, taken: list[Batch]) -> None:
        if self._log.durable < self._log.end:
            began = time.monotonic_ns()
            self._log.sync()
            count_synced(self._inp, time.monotonic_ns() - began)
            self.syncs += 1
        for batch in taken:
            batch.release()

    def _sync_aside(self, taken: list[Batch]) -> None:
        try:
            self._sync(taken)
        except Exception as error:
            self._sync_error = error

    def _await_sync(self) -> None:
        """Wait for the sync in the other thread, if there is one; raise the sync's error."""
        if self._sync_thread is not None:
            self._sync_thread.join()
            self._sync_thread = None
        if self._sync_error is not None:
            raise self._sync_error

    def _write(self, batch: Batch, before: list[Batch]) -> int:
        first, end = batch.first, batch.end
        known = max(first, min(self._log.end, end))
        if known == end:
            return 0  # all messages of the batch were redelivered, and the log has them already
        entries: Buffer = _entries(batch)
        slots: list[Buffer] = [batch.slots]
        if known > first:
            entries = _behind(entries, known - first)
            slots = [batch.slots[(known - first) * SLOT_BYTES :]]
        address = known % self._ring.slots * SLOT_BYTES
        while True:
            try:
                self.bytes_written += self._log.append(known, end, entries, slots, address)
                break
            except NoSpace as error:
                self.error = error
                # Make room for this record. Sync and release the messages written so far: the
                # journal's followers then get them, and release them in turn. After that, the
                # retention may allow the journal to forget more segments.
                self._await_sync()
                self._sync(before)
                before.clear()
                self._forget()
                if self._stop.wait(_RETRY):
                    raise
        self.error = None
        self.records += 1
        self.messages += len(entries) // ENTRY.size
        return (end - known) * SLOT_BYTES

    # CHANGE: edit this for a new option of a journal
    def _forget(self) -> None:
        if self._retention is None:
            return
        keep = _least_consumed(self._ring, self._retention.consumed_by)
        self._log.forget(
            max_bytes=self._retention.max_bytes, max_age=self._retention.max_age, consumed=keep
        )


def _branch_of(ring: Ring) -> BranchRecord | None:
    return next((b for b in ring.branches() if b["name"] == JOURNAL_BRANCH), None)


def _join(ring: Ring, log: JournalLog, *, allow_gap: bool) -> Consumer:
    """Join the journal's branch; a new branch begins where the journal ends."""
    branch = _branch_of(ring)
    if branch is not None and not branch["exclusive"]:
        raise SecondConsumer(
            f'ring {ring.path}: others than journals have made the branch "{JOURNAL_BRANCH}", and '
            f"may take its messages; rename theirs, and drop this one with ring.drop_branch()"
        )
    oldest = ring.floor if branch is None else branch["released"]
    begin: int | Start = "earliest"
    if log.end:
        begin = max(log.end, oldest)
        if log.end > ring.claimed:
            raise JournalGap(
                f"{log.directory} ends at sequence {log.end}, and ring {ring.path} is only at "
                f"{ring.claimed}: recreate it with shmring.durable.restore(), or use another "
                f"directory"
            )
        if not log.same_ring and ring.info.first_sequence != log.end:
            raise JournalGap(
                f"{log.directory} is the journal of another ring than {ring.path}: use another "
                f"directory, or a ring made by shmring.durable.restore()"
            )
        if oldest > log.end:
            if not allow_gap:
                raise JournalGap(
                    f"{log.directory} ends at sequence {log.end}, and ring {ring.path} holds "
                    f"messages from {oldest} on only: those between are lost; go on with "
                    f"allow_gap=True"
                )
            log.skip_to(oldest)
    elif branch is not None and oldest > ring.info.first_sequence and not allow_gap:
        raise JournalGap(
            f"{log.directory} holds no journal, and the journal of ring {ring.path} has released "
            f"the sequences up to {oldest - 1} already: continue in its directory, or begin here "
            f"without these messages by allow_gap=True"
        )
    try:
        return ring.consumer(JOURNAL_BRANCH, start=begin, exclusive=True, name="journal")
    except SecondConsumer:
        # Replace the core's error, which advises a branch that is not exclusive: a journal's branch
        # is always exclusive.
        pids = [
            f" in process {each['pid']}"
            for each in ring.participants()
            if each["branch"] == JOURNAL_BRANCH and each["alive"]
        ]
        raise SecondConsumer(
            f"ring {ring.path}: its journal runs already{''.join(pids)}; a ring has one journal: "
            f"end that one first"
        ) from None


@functools.cache
def _entry_type() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype(
        {
            "names": ["time", "slot", "length", "kind and shift"],
            "formats": ["<u8", "<u4", "<u4", "<u4"],
            "offsets": [0, 8, 12, 16],
            "itemsize": ENTRY.size,
        }
    )


def _entries(batch: Batch) -> memoryview:
    import numpy as np

    entries = np.empty(len(batch), _entry_type())
    slot = (batch.message_ids - np.uint64(batch.first)).astype(np.uint32)
    shift = batch.offsets.astype(np.uint32) - slot * np.uint32(SLOT_BYTES)
    entries["time"] = batch.times
    entries["slot"] = slot
    entries["length"] = batch.lengths
    entries["kind and shift"] = batch.kinds | shift << np.uint32(8)
    return entries.view(np.uint8).data


def _behind(entries: Buffer, slot: int) -> bytes:
    """Return the entries of the messages from slot `slot` on, with slots counted from `slot`."""
    kept = [e for e in ENTRY.iter_unpack(entries) if e[1] >= slot]
    return b"".join(ENTRY.pack(e[0], e[1] - slot, *e[2:]) for e in kept)


def _least_consumed(ring: Ring, branches: Iterable[str]) -> int | None:
    """Return the sequence up to which all branches have released their messages.

    The result is None if no branches are given, and 0 if one of them does not exist.
    """
    wanted = set(branches)
    if not wanted:
        return None
    released = {b["name"]: b["released"] for b in ring.branches() if b["name"] in wanted}
    return min(released.values()) if wanted <= released.keys() else 0
