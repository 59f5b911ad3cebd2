"""Moves requests that a worker holds for long out of the sidecar's ring.

A ring frees its slots in order, so a request that is held for long stops all clients once other
requests have filled the rest of the ring. The request moves before that happens. One copy goes into
a ring of its own, which delivers the request again if this worker dies, as the sidecar's ring
would. Another copy goes into this process's own memory, at the addresses where the function reads
the request. docs/spark-design.md describes the steps and their order. A worker also warns if a
function keeps a batch after its answer.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Self

import pyarrow as pa

import shmring
from shmring import Consumer, Lease, Ring
from shmring._shmring import is_released, is_used, own, slots_for
from shmring.common.arguments import LEAST_SLOTS
from shmring.common.closing import Closing
from shmring.errors import Empty, LimitReached, RingNotFound, ShmringError
from shmring.sidecars.rings import MOVED, parked_rings, request_at
from shmring.sidecars.wire import KIND_REQUEST, WORKERS_BRANCH, Head, parked_ring_name

INTERVAL = 0.1  # seconds between checks; a request moves only if two checks in a row see it
_PART = 4  # a request moves if it and later ones occupy more than 1/_PART of the ring
_ALIGNMENT = 64  # bytes to which an Arrow body is aligned
_PARTICIPANTS = 16  # seats of the ring that a request moves into; each worker takes one
# Maximum seconds that a worker waits for the lease of a moved request whose worker has died.
_ADOPTION = 0.05
_SEARCH_EVERY = 1.0  # seconds between searches for reference cycles that hold a request
_SAY_EVERY = 60.0  # seconds between warnings about a held request


class _Parked:
    """A request in a ring of its own.

    A second message in that ring marks that the request has left the sidecar's ring.
    """

    def __init__(self, ring: Ring, inbox: Consumer, lease: Lease) -> None:
        self._ring = ring
        self._inbox = inbox
        self.lease = lease
        self._entry: shmring.Producer | None = None

    @classmethod
    def made(cls, request: Lease, name: str) -> Self:
        """Copy a request into a new ring, and hold it there."""
        slots = LEAST_SLOTS
        while slots < 2 * slots_for(len(request), True) + 2:
            slots *= 2
        # Remove the ring of a worker that died while it moved this request, if there is one.
        with suppress(RingNotFound):
            shmring.unlink(name)
        ring = shmring.create(name, slots=slots, participants=_PARTICIPANTS, temporary=True)
        try:
            ring.keep()  # the ring stays if this worker leaves, so that others find the request
            inbox = ring.consumer(WORKERS_BRANCH, start="earliest", exclusive=True)
            data = pa.py_buffer(request)
            with ring.producer() as out:
                out.push(data, kind=KIND_REQUEST, align=-data.address % _ALIGNMENT, timeout=0)
            return cls(ring, inbox, inbox.lease(timeout=0))
        except BaseException:
            _remove(ring)
            raise

    @classmethod
    def of_the_dead(cls, name: str, requests: Ring) -> Self | None:
        """Take over a dead worker's request from the ring `name`, into which the request moved.

        Return None if the ring has no request, or if another worker has taken the request over.
        """
        with suppress(ShmringError), ExitStack() as ends:
            ring = shmring.attach(name)
            ends.callback(ring.close)
            ring.recover()
            inbox = ring.consumer(WORKERS_BRANCH, start="earliest", exclusive=True)
            # Hand the request back at the end of this block, unless pop_all() below cancels the
            # call.
            ends.callback(inbox.abandon)
            # CHANGE: edit this for a new error
            try:
                lease: Lease | None = inbox.lease(timeout=_ADOPTION)
            except Empty:
                lease = None
            # Check whether the ring has no request: it is empty, or has only the message without
            # bytes by which settle() marks that the request has left the sidecar's ring.
            if lease is None or len(lease) == 0:
                if not any(branch["orphans"] for branch in ring.branches()):
                    # The ring has no request: the worker that made the ring died before it copied
                    # the request, or after it answered the request.
                    ring.unlink()
                return None
            if inbox.lag or not _is_held(requests, int(name.rpartition("-")[2])):
                ends.pop_all()
                return cls(ring, inbox, lease)
        return None

    def announce(self, ring: Ring, words: str) -> None:
        """Show in the sidecar's ring that this process works on the request."""
        with suppress(LimitReached):  # show nothing if the sidecar's ring has no free seat
            self._entry = ring.producer(f"{MOVED}{words}")

    def settle(self) -> None:
        """Mark that the request has left the sidecar's ring, which will not deliver it again."""
        with self._ring.producer() as out:
            out.push(b"", timeout=0)

    def close(self) -> None:
        """Remove the ring: the request was answered, or stays in the sidecar's ring."""
        self._close_entry()
        self._inbox.abandon()
        _remove(self._ring)

    def leave(self) -> None:
        """Leave the request to another worker."""
        self._close_entry()
        self._inbox.abandon()
        self._ring.close()

    def _close_entry(self) -> None:
        if self._entry is not None:
            self._entry.close()


def _remove(ring: Ring) -> None:
    with suppress(ShmringError):  # another process has removed the ring already
        ring.unlink()
    ring.close()


def _is_held(ring: Ring, sequence: int) -> bool:
    """Whether a request is still in a sidecar's ring, on lease or waiting for redelivery."""
    slot = sequence % ring.slots
    return any(row[1] == sequence and row[4] > 0 for row in ring.rows(slot, slot + 1, 0))


class Holds(Closing):
    """The requests that a worker holds, and a thread that moves them out of the sidecar's ring.

    The requests do not move if `moves` is false: the ring is then pinned for a GPU.
    """

    def __init__(self, ring: Ring, inbox: Consumer, sidecar: str, *, moves: bool = True) -> None:
        self._ring = ring
        self._inbox = inbox
        self._sidecar = sidecar
        self.current: Lease | None = None  # the request that was taken last
        # Held requests except `current`, each with its description if it has moved, else "".
        self.leases: dict[Lease, str] = {}
        self._parked: dict[Lease, _Parked] = {}  # moved requests, by the worker's lease
        self._seen: set[Lease] = set()  # requests held at the last check
        self._looked_on: dict[str, Ring] = {}  # rings into which other workers moved requests
        self._searched = self._said = -math.inf
        self._trouble = ""
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None
        if moves:
            self._watch = threading.Thread(target=self._run, name="shmring-holds", daemon=True)
            self._watch.start()

    def forget_copy(self, lease: Lease) -> None:
        """Remove the ring into which a dead worker copied a request but did not finish moving it.

        This worker has got the request from the sidecar's ring again, and does not need the copy.
        """
        with suppress(ShmringError):
            shmring.unlink(self._name_for(lease))

    def settle(self) -> None:
        """Forget answered requests; warn of an answered request that is still held."""
        kept: Lease | None = None
        for lease in [lease for lease in self.leases if is_released(lease)]:
            if (parked := self._parked.pop(lease, None)) is not None:
                parked.close()
            if is_used(lease):
                kept = kept or lease
            else:
                self.leases.pop(lease, None)
        if kept is not None:
            self._tell_of(kept)

    def _tell_of(self, lease: Lease) -> None:
        """Free a request that a reference cycle holds; else warn that the function holds it."""
        now = time.monotonic()
        if now - self._searched < _SEARCH_EVERY:
            return
        self._searched = now
        gc.collect()
        if is_used(lease) and now - self._said >= _SAY_EVERY:
            self._said = now
            words = self.leases[lease] or self._words_of(lease)
            _say(
                f"the function still holds the batch of {words}, which it has answered; a function "
                f"that keeps a batch, or an array over one, must copy it"
            )

    # --- moving requests whose slots other clients wait for -------------------------------------

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            before = self._trouble
            try:
                self._look()
                self._trouble = ""
            except (ShmringError, OSError, MemoryError) as error:
                self._trouble = str(error)
            if self._trouble != before and self._trouble:
                _say(f"a request that others wait for stays in the ring: {self._trouble}")

    def _look(self) -> None:
        seen, self._seen = self._seen, set(self.leases)
        if self.current is not None:
            self._seen.add(self.current)
        for lease in sorted(seen & self._seen, key=lambda each: each.message_id):
            hold = self._inbox.hold
            if hold is None or self._ring.claimed - hold <= self._ring.slots // _PART:
                break
            if is_used(lease) and not self.leases.get(lease):
                try:
                    self._move(lease)
                except ShmringError:
                    # Ignore the error if the worker has answered the request meanwhile: an answered
                    # request need not move.
                    if not is_released(lease):
                        raise

    def _move(self, lease: Lease) -> None:
        """Free a request's slots; the worker may answer the request at any moment meanwhile."""
        words = self._words_of(lease)
        # Move an answered request into this process's memory only. The user's function still keeps
        # the request's batch, but no other worker needs the request.
        if is_released(lease):
            if own(lease):
                self.leases[lease] = words
            return
        parked = self._parked[lease] = _Parked.made(lease, self._name_for(lease))
        has_moved = False
        try:
            has_moved = own(lease)
            if has_moved:
                self.leases[lease] = words
                parked.settle()
                parked.announce(self._ring, words)
        finally:
            if not has_moved and self._parked.pop(lease, None) is not None:
                parked.close()

    def _words_of(self, lease: Lease) -> str:
        return request_at(self._ring, lease.message_id)[0]

    def _name_for(self, lease: Lease) -> str:
        unique = f"{self._ring.info.uuid[:12]}-{lease.message_id}"
        return parked_ring_name(self._sidecar, unique)

    def of_the_dead(self) -> Iterator[Lease]:
        """Take over requests that had moved, if their workers have died."""
        prefix = parked_ring_name(self._sidecar, self._ring.info.uuid[:12])
        names = [name for name in parked_rings(self._sidecar) if name.startswith(prefix)]
        for name in self._looked_on.keys() - names:
            self._looked_on.pop(name).close()
        for name in names:
            if not self._has_worker(name):
                self._looked_on.pop(name).close()
                parked = _Parked.of_the_dead(name, self._ring)
                if parked is not None:
                    words = Head.unpack(parked.lease, ring=name).describe()
                    parked.announce(self._ring, words)
                    self.leases[parked.lease] = words
                    self._parked[parked.lease] = parked
                    yield parked.lease

    def _has_worker(self, name: str) -> bool:
        try:
            if name not in self._looked_on:
                self._looked_on[name] = shmring.attach(name, read_only=True)
            return any(each["alive"] for each in self._looked_on[name].participants())
        except ShmringError:  # the ring was just removed, so no request is left to take over
            return True

    def abandon(self) -> None:
        """Leave the unanswered requests to other workers."""
        for parked in self._parked.values():
            parked.leave()
        self._parked.clear()

    def close(self) -> None:
        """Forget answered requests, and leave the others to other workers."""
        self._ended.set()
        if self._watch is not None:
            self._watch.join()
        self.settle()
        self.abandon()
        for ring in self._looked_on.values():
            ring.close()
        self._looked_on.clear()


def _say(text: str) -> None:
    with suppress(OSError):  # the log's reader is gone, or the disk is full
        print(f"shmring: {text}", file=sys.stderr, flush=True)
