"""Makes and removes a sidecar's rings, and reads the participants of its request ring.

A sidecar's processes know each other by their names as participants. A supervisor's name shows that
the ring is in use, even if there is no worker just now. A worker's name shows which function it
loads or serves.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import shmring
from shmring._shmring import MAX_PARTICIPANTS, SLOT_FILE_BYTES
from shmring.common.arguments import LEAST_SLOTS
from shmring.errors import (
    Damaged,
    LimitReached,
    NoSpace,
    RingNotFound,
    ShmringError,
    SidecarUnavailable,
)
from shmring.ring import attach_or_make
from shmring.ring.names import (
    REQUESTS,
    SHM_FOLDER,
    command_line,
    is_own_limit,
    memory,
    remove,
)
from shmring.ring.records import Finding, ParticipantRecord
from shmring.sidecars.wire import (
    HEAD_BYTES,
    Head,
    parked_ring_name,
    reply_ring_name,
    request_ring_name,
)

# Seats of the request ring that clients leave free, so that a new worker finds a seat even if there
# are many clients. In a ring with fewer than 128 seats, clients leave an eighth of the seats free.
_FOR_WORKERS = 16

# First word of a supervisor's name; its number and identity (identity.py) follow.
SUPERVISOR = "supervisor"
# First word of a supervisor's name, instead of SUPERVISOR, if its workers end before they serve.
FAILING = "failing"
# First word of a supervisor's second entry while it replaces older supervisors. The next word is
# the largest number among the older supervisors.
REPLACES = "replaces"
# First word of the name of a worker that is not ready; the function's name follows.
LOADING = "loading "
CLIENT = "client"
# First word of a worker's second entry while it works on a request that has left the ring; the
# request's description follows. The entry's joined_ns is the time when the request left.
MOVED = "moved "
# First word of an entry about restarts. Two numbers follow: all workers replaced so far, and the
# workers replaced within the last RESTART_SECONDS. The entry's joined_ns is the time of the last
# replacement.
RESTARTED = "restarted "
RESTART_SECONDS = 300
# `shmring check` warns if at least this number of workers were replaced within RESTART_SECONDS.
_AGAIN = 3
_CALM = 60.0  # seconds after the last replacement at which `shmring check` stops warning

# Seconds between tries to find the sidecar, or to get memory for a ring; also the first pause
# between tries to get a seat in the request ring.
_SLICE = 0.05
_PAUSE = 1.0  # longest pause between tries to get a seat in the request ring, in seconds


def enter(sidecar: str) -> tuple[shmring.Ring, shmring.Producer]:
    """Attach to a sidecar's request ring as a client; raise LimitReached if it has no room."""
    ring = shmring.attach(request_ring_name(sidecar))
    try:
        producer = ring.producer(CLIENT)
        most = ring.info.participants
        if len(ring.participants()) > most - min(_FOR_WORKERS, most // 8):
            raise LimitReached(f'sidecar "{sidecar}": the room that is left is for workers')
    except BaseException:
        ring.close()
        raise
    return ring, producer


def await_entry(
    sidecar: str, timeout: float, connect_timeout: float
) -> tuple[shmring.Ring, shmring.Producer]:
    """Attach as a client once the sidecar runs and has room; else raise SidecarUnavailable.

    Wait at most `timeout` seconds for room, and `connect_timeout` seconds for the sidecar.
    """
    begun = time.monotonic()
    pause = _SLICE
    while True:
        try:
            return enter(sidecar)
        except RingNotFound as error:
            if time.monotonic() - begun >= connect_timeout:
                raise SidecarUnavailable(
                    f'no sidecar "{sidecar}" on this host (waited {connect_timeout:g} s, '
                    f"connect_timeout=..., and it did not start); `shmring ls` lists those that "
                    f"are there; start it with `{_start(sidecar)}`, "
                    f"or see in the log of what should have started it why it is not there"
                ) from error
            time.sleep(_SLICE)
        except LimitReached as error:
            left = timeout - (time.monotonic() - begun)
            if left <= 0:
                raise SidecarUnavailable(
                    f'sidecar "{sidecar}" has had no room for another client for '
                    f"{timeout:g} s: `{of_requests('stat', sidecar)}` shows who takes "
                    f"part; let fewer tasks run at a time on a host, share their work between "
                    f"sidecars of several names, or wait longer (timeout=...)"
                ) from error
            time.sleep(min(left, random.uniform(pause / 2, pause)))
            pause = min(2 * pause, _PAUSE)


def _start(sidecar: str) -> str:
    """Return the command that starts a sidecar; the user fills in the function."""
    return command_line("sidecar", "MODULE:FUNCTION", name=sidecar)


def of_requests(verb: str, sidecar: str) -> str:
    """Return the text of a command, such as `shmring stat`, for a sidecar's request ring."""
    return command_line(verb, request_ring_name(sidecar))


def serving(sidecar: str) -> list[ParticipantRecord]:
    """Return the workers of a sidecar that serve requests."""
    with suppress(ShmringError), shmring.attach(request_ring_name(sidecar), read_only=True) as ring:
        return [
            each for each in ring.participants() if each["alive"] and each["role"] == "consumer"
        ]
    return []


def is_replaced(ring: shmring.Ring) -> bool:
    """Whether another ring has the request ring's name: the sidecar ended and was started again."""
    with suppress(ShmringError), shmring.attach(ring.name, read_only=True) as found:
        return found.info.uuid != ring.info.uuid
    return False


def lives(participants: list[ParticipantRecord]) -> bool:
    """Whether a worker or a supervisor lives, given the request ring's participants."""
    return any(
        each["alive"] and (each["role"] == "consumer" or each["name"].startswith(SUPERVISOR))
        for each in participants
    )


def request_at(ring: shmring.Ring, sequence: int) -> tuple[str, int]:
    """Return a description of a request, and its time of publishing in ns, or 0 if unknown."""
    slot = sequence % ring.slots
    for found in ring.rows(slot, slot + 1, HEAD_BYTES):
        if found[1] == sequence:
            with suppress(Damaged):
                return Head.unpack(found[6], ring=ring.path).describe(), found[2]
    return f"message {sequence}", 0


def _age_of(participant: ParticipantRecord) -> str:
    return _in_words(max(0.0, time.time() - participant["joined_ns"] / 1e9))


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


class Staff(NamedTuple):
    """The living processes of a sidecar, by their roles."""

    workers: list[ParticipantRecord]
    loading: list[ParticipantRecord]
    supervisors: list[ParticipantRecord]
    clients: list[ParticipantRecord]
    moved: list[ParticipantRecord]  # second entries of workers: see MOVED
    restarts: int  # number of workers that were replaced
    recent: int  # number of workers that were replaced within the last RESTART_SECONDS
    last_ns: int  # time of the last replacement, in nanoseconds

    @classmethod
    def of(cls, participants: Iterable[ParticipantRecord]) -> Staff:
        """Find the living processes among the participants of the request ring."""
        alive = [participant for participant in participants if participant["alive"]]
        named = {
            name: [participant for participant in alive if participant["name"].startswith(name)]
            for name in (LOADING, SUPERVISOR, FAILING, CLIENT, RESTARTED, MOVED)
        }
        lately = time.time_ns() - RESTART_SECONDS * 10**9
        total = recent = last = 0
        for participant in named[RESTARTED]:
            counts = re.findall(r"\d+", participant["name"])
            if len(counts) == 2:
                total += int(counts[0])
                recent += int(counts[1]) if participant["joined_ns"] > lately else 0
                last = max(last, participant["joined_ns"])
        workers = [participant for participant in alive if participant["role"] == "consumer"]
        # Count a supervisor once: while it changes its name, it has an entry under each name.
        entries = named[SUPERVISOR] + named[FAILING]
        supervisors = list({entry["pid"]: entry for entry in entries}.values())
        of = (named[LOADING], supervisors, named[CLIENT], named[MOVED])
        return cls(workers, *of, restarts=total, recent=recent, last_ns=last)

    def moved_of(self, worker: ParticipantRecord) -> ParticipantRecord | None:
        """Return a worker's MOVED entry; None if the worker has no request that left the ring."""
        return next((each for each in self.moved if each["pid"] == worker["pid"]), None)

    def is_busy(self, worker: ParticipantRecord) -> bool:
        """Whether a worker works on a request."""
        return worker["hold"] is not None or self.moved_of(worker) is not None


def state(ring: shmring.Ring) -> list[str]:
    """Describe a sidecar by its request ring: the work of each worker, and what is wrong."""
    participants = ring.participants()
    staff = Staff.of(participants)
    at = [_at(ring, staff, worker) for worker in staff.workers if not worker["stopped"]]
    sidecar = str(ring.name).removeprefix(REQUESTS)
    return at + [each.words for each in findings(sidecar, participants)]


def _at(ring: shmring.Ring, staff: Staff, worker: ParticipantRecord) -> str:
    words = f"worker {worker['pid']} serves {worker['name']}"
    moved = staff.moved_of(worker)
    if moved is not None:
        request = moved["name"].removeprefix(MOVED)
        return f"{words}, and has been at {request} for more than {_age_of(moved)}"
    if worker["hold"] is None:
        return f"{words}, and waits for requests"
    request, published = request_at(ring, worker["hold"])
    seconds = max(0.0, time.time() - max(published, worker["joined_ns"]) / 1e9)
    return f"{words}, and has been at {request} for up to {_in_words(seconds)}"


# CHANGE: edit this for a new finding of check
def findings(sidecar: str, participants: list[ParticipantRecord]) -> list[Finding]:
    """Return what is wrong with a sidecar, given its request ring's participants, dead or alive."""
    staff = Staff.of(participants)
    serves = any(not worker["stopped"] for worker in staff.workers)
    loads = any(not worker["stopped"] for worker in staff.loading)
    status: Literal[1, 2] = 1 if serves or loads else 2
    found: list[Finding] = []

    def find(kind: str, words: str, command: str = "") -> None:
        found.append(Finding(status, f"sidecar-{kind}", None, sidecar, words, command))

    for worker in staff.workers:
        if worker["stopped"]:
            find(
                "stopped",
                f"worker {_stopped(worker)} serves nothing ({worker['name']})",
                _go(worker),
            )
    for worker in staff.loading:
        function = worker["name"].removeprefix(LOADING)
        who = _stopped(worker) if worker["stopped"] else worker["pid"]
        find(
            "stopped" if worker["stopped"] else "loading",
            f"worker {who} has been loading {function} for {_age_of(worker)}",
            _go(worker) if worker["stopped"] else "",
        )
    for supervisor in staff.supervisors:
        if supervisor["stopped"]:
            words = f"supervisor {_stopped(supervisor)} starts no worker"
            find("stopped", words, _go(supervisor))
        elif not staff.workers and not staff.loading:
            find(
                "no-worker",
                f"supervisor {supervisor['pid']} has no worker just now; what its workers ended "
                f"with stands in its log",
            )
    last = time.time() - staff.last_ns / 1e9
    if staff.recent >= _AGAIN and last < _CALM:
        find(
            "dying",
            f"its workers die again and again: {staff.recent} were replaced lately, the last "
            f"{last:.0f} s ago; what they ended with stands in the supervisor's log",
        )
    if not staff.workers and not staff.loading and not staff.supervisors:
        words = (
            f"its processes have ended; only its ring is there, which "
            f"`{of_requests('gc', sidecar)}` removes if no client waits"
        )
        find("ended", words, _start(sidecar))
    return found


def _stopped(participant: ParticipantRecord) -> str:
    return f"{participant['pid']}, stopped (`{_go(participant)}`),"


def _go(participant: ParticipantRecord) -> str:
    return f"kill -CONT {participant['pid']}"


# --- the rings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """The size of one kind of ring."""

    usual: int  # number of slots if the user sets none and there is enough memory
    # If the user sets no number, a ring takes at most 1/part of the free memory; the rest is for
    # later rings.
    part: int
    knob: str  # words that name the user's option; {slots} stands for the option's value

    @property
    def remedy(self) -> str:
        """Advice for a user whose message is too large."""
        return f"make it larger with {self.knob}"

    def make(
        self,
        slots: int | None,
        make: Callable[[int], shmring.Ring],
        *,
        connect_timeout: float = 0.0,
    ) -> shmring.Ring:
        """Call `make` with a number of slots, and return the ring that it makes.

        The number is `slots`; if `slots` is None, a number that leaves memory for other rings. Wait
        at most `connect_timeout` seconds for memory, then raise NoSpace.
        """
        begun = time.monotonic()
        lowest = LEAST_SLOTS if slots is None else slots
        while True:
            wanted = self._fitting() if slots is None else slots
            while wanted > lowest:
                with suppress(NoSpace):  # another process has taken the memory since _fitting()
                    return make(wanted)
                wanted = max(lowest, wanted // 2)
            try:
                return make(lowest)
            except NoSpace as error:
                if is_own_limit(lowest):
                    raise
                if time.monotonic() - begun >= connect_timeout:
                    raise NoSpace(self._no_memory(lowest, connect_timeout)) from error
            time.sleep(_SLICE)

    def _fitting(self) -> int:
        """Return a number of slots, a power of two: `usual`, or fewer if memory is short."""
        _, free = memory()
        slots = LEAST_SLOTS
        while slots < self.usual and 2 * slots * SLOT_FILE_BYTES <= free // self.part:
            slots *= 2
        return slots

    def _no_memory(self, slots: int, connect_timeout: float) -> str:
        total, free = memory()
        waited = f" (waited {connect_timeout:g} s, connect_timeout=...)" if connect_timeout else ""
        smaller = f", make the ring smaller with {self.knob.format(slots='...')}"
        return (
            f"{SHM_FOLDER} has {free >> 20} of {total >> 20} MB left, and a ring of {slots} "
            f"slots needs {slots * SLOT_FILE_BYTES / 2**20:.1f} MB{waited}; give it more "
            f"(docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory)"
            f"{smaller if slots > LEAST_SLOTS else ''}, or let fewer tasks run at a time"
        )


REQUEST = Size(131_072, 4, "`shmring sidecar --slots {slots}` (Sidecar(slots={slots}))")
REPLY = Size(4_096, 32, "reply_slots={slots} of through(), the UDF or SidecarClient")


def open_ring(sidecar: str, slots: int | None) -> shmring.Ring:
    """Open or make a sidecar's request ring.

    If `slots` is None, a new ring gets a size that leaves memory for the clients' reply rings.
    """
    ring = REQUEST.make(
        slots,
        lambda slots: attach_or_make(
            request_ring_name(sidecar),
            None,
            slots=slots,
            participants=MAX_PARTICIPANTS,
            temporary=True,
        )[0],
    )
    ring.keep()  # another sidecar may still serve the ring when this one stops
    return ring


def leave_ring(sidecar: str, ring: shmring.Ring) -> None:
    """Close a sidecar's request ring, and remove it unless another supervisor is there.

    The clients' reply rings are removed, too: a client that goes on makes a new ring for the next
    sidecar of this name, and an idle client may be killed before it could remove its ring.
    """
    ring.close()
    # List the rings before the request ring is removed: afterwards a new sidecar of this name may
    # start, and the list would also have the rings of its clients.
    others = [*reply_rings(sidecar), *parked_rings(sidecar)]
    uuid = bytes.fromhex(ring.info.uuid)
    with suppress(RingNotFound):  # the ring was removed, or another ring has its name by now
        if remove(ring.path, uuid, is_used=_has_supervisor):
            for name in others:
                with suppress(ShmringError):  # a client or worker has removed its ring already
                    shmring.unlink(name)


def _has_supervisor(living: list[dict[str, Any]]) -> bool:
    return any(one["name"].startswith((SUPERVISOR, FAILING)) for one in living)


def reply_rings(sidecar: str) -> Iterator[str]:
    """Yield the names of the reply rings of a sidecar's clients."""
    return _rings_of(reply_ring_name(sidecar, ""))


def parked_rings(sidecar: str) -> Iterator[str]:
    """Yield the names of the rings with requests that have left a sidecar's ring."""
    return _rings_of(parked_ring_name(sidecar, ""))


def _rings_of(prefix: str) -> Iterator[str]:
    for name in shmring.rings():
        if name.startswith(prefix) and "." not in name.removeprefix(prefix):
            yield name


def sweep(sidecar: str) -> None:
    """Remove the rings that a killed sidecar, or its killed clients, left.

    While the sidecar's ring is in use, rings of requests that have moved out of it stay: the
    ring's workers take these requests over.
    """
    requests = request_ring_name(sidecar)
    _collect(requests, *reply_rings(sidecar))
    if requests not in shmring.rings():
        _collect(*parked_rings(sidecar))


def _collect(*names: str) -> None:
    for name in names:
        with suppress(ShmringError):
            shmring.gc(name)
