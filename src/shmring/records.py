"""Dicts with known keys: the options of a new ring, and the state of an existing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, cast

from shmring.arguments import CLOCKS

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring._shmring import Ring
    from shmring.arguments import Clock

_ROLES = {0: "attached", 1: "producer", 2: "consumer"}
_HOLDERS = {1: "claim", 2: "lease", 3: "consumers", 4: "no consumer"}


# CHANGE: a new option of a ring
class CreateOptions(TypedDict, total=False):
    """The options of :func:`shmring.create`, without the name and the path."""

    slots: int
    participants: int
    single_producer: bool
    checksum: bool
    clock: Clock
    mode: int
    schema: pa.Schema | None
    prefault: bool
    first_sequence: int
    temporary: bool


class RingInfo(NamedTuple):
    """The properties that were fixed when the ring was made."""

    slots: int
    participants: int
    layout: tuple[int, int]
    single_producer: bool
    checksum: bool
    clock: str
    file_bytes: int
    first_sequence: int
    created_ns: int
    uuid: str
    owner_uid: int
    mode: int


class BranchRecord(TypedDict):
    """The state of a branch; see :meth:`shmring.Ring.branches`.

    Attributes
    ----------
    exclusive, ephemeral, drop_oldest : as for :meth:`shmring.Ring.consumer`
    after : names of the branches that it follows; if empty, it follows the producers
    position : the next sequence to be taken
    released : all sequences below this one are released
    ends : number of end markers that the branch has reached
    consumers : number of living consumers
    orphans : number of seats whose messages wait to be delivered again, because a consumer died or
        handed them back (`nack`)
    """

    id: int
    name: str
    exclusive: bool
    ephemeral: bool
    drop_oldest: bool
    after: list[str]
    position: int
    released: int
    ends: int
    consumers: int
    orphans: int


class BranchLag(BranchRecord):
    """A branch, and how far it is behind the producers.

    Attributes
    ----------
    lag : slots that it has still to take
    waiting : messages that it has still to take, up to the first claim that is not committed, and
        those that it delivers again, because a consumer died with them or handed them back. End
        markers are not counted. Exact up to 65,536 messages, then estimated from these. Those that
        were published in one run (`push_many`) count as one of the 65,536
    """

    lag: int
    waiting: int


# CHANGE: a new counter of participants
class Counters(TypedDict):
    """The counters of a participant."""

    messages: int
    bytes: int
    full_waits: int
    empty_waits: int
    contended: int
    recovered: int
    overrun: int
    dropped: int
    redelivered: int


class ParticipantRecord(Counters):
    """The state of a participant; see :meth:`shmring.Ring.participants`.

    Attributes
    ----------
    role : "attached", "producer" or "consumer"
    branch : the branch of a consumer; else None
    stopped : alive, but stopped by SIGSTOP or a debugger
    orphaned : messages wait here to be delivered again: the participant died, or there is none (its
        pid is 0) and the messages were handed back (`nack`)
    claim, hold : the first sequence that it has claimed, the lowest that it holds, or None
    messages, bytes, full_waits, empty_waits, contended, recovered, overrun, dropped : its counters
    redelivered : of the messages that it took, those that were taken before
    synced_ns : of a journal, nanoseconds in which it has synced
    most_delivered, deliveries : of what it holds, the first sequence of what was delivered most
        often, or None, and how often
    """

    seat: int
    role: Literal["attached", "producer", "consumer", "unknown"]
    branch: str | None
    pid: int
    alive: bool
    stopped: bool
    orphaned: bool
    joined_ns: int
    name: str
    claim: int | None
    hold: int | None
    synced_ns: int
    most_delivered: int | None
    deliveries: int


class HolderRecord(TypedDict):
    """The participant or branch that holds the producers; see :meth:`shmring.Ring.holder`.

    Attributes
    ----------
    kind : "claim": a producer has neither committed nor aborted; "lease": a consumer has not
        released; "consumers": the branch's consumers have not taken the message yet; "no
        consumer": the branch has no consumers
    branch : None for a claim
    name, pid, alive, stopped : of the participant; None, None, False and False if there is none
    sequence : the lowest sequence that is held
    slots : number of slots from there to the producers
    age_s : seconds since that message was published; None if the ring cannot say
    words : the same as a sentence, as in the text of :class:`shmring.Full`
    """

    kind: Literal["claim", "lease", "consumers", "no consumer"]
    branch: str | None
    name: str | None
    pid: int | None
    alive: bool
    stopped: bool
    sequence: int
    slots: int
    age_s: float | None
    words: str


class RingStats(TypedDict):
    """Positions and counters of a ring; see :meth:`shmring.Ring.stats`.

    Attributes
    ----------
    claimed, floor : the next sequence to be claimed, the lowest sequence that is held
    used : number of slots between the two
    branches : sorted by lag, the largest lag first
    """

    name: str | None
    path: str
    slots: int
    claimed: int
    floor: int
    used: int
    holder: HolderRecord | None
    branches: list[BranchLag]
    participants: list[ParticipantRecord]


def most_waiting(stats: RingStats) -> int:
    """Return how many messages would be lost with the ring: those that wait for one branch."""
    return max((branch["waiting"] for branch in stats["branches"]), default=0)


class Finding(NamedTuple):
    """Something that is wrong, as `shmring check` says it.

    Attributes
    ----------
    status : as monitoring plugins have it: 1 a warning, 2 stuck
    kind : which of the things that can be wrong, in a word
    ring, sidecar : what it is wrong with; the host if both are None
    words : a statement about it
    command : that mends it; empty if no command does
    """

    status: Literal[1, 2]
    kind: str
    ring: str | None
    sidecar: str | None
    words: str
    command: str = ""


def ring_info(info: dict[str, Any]) -> RingInfo:
    """Convert the core's description of a ring."""
    values = {name: info[name] for name in RingInfo._fields if name in info}
    values["layout"] = info["layout_major"], info["layout_minor"]
    values["clock"] = {number: name for name, number in CLOCKS.items()}[info["clock"]]
    values["uuid"] = info["uuid"].hex()
    return RingInfo(**values)


def branch_records(core: Ring) -> list[BranchRecord]:
    found = core.branches()
    names = {b["id"]: b["name"] for b in found}
    for branch in found:
        upstream = branch.pop("upstream")
        branch["after"] = [name for i, name in names.items() if upstream >> i & 1]
    return cast("list[BranchRecord]", found)


def participant_records(core: Ring) -> list[ParticipantRecord]:
    names = {b["id"]: b["name"] for b in core.branches()}
    found = core.participants()
    for participant in found:
        role = _ROLES.get(participant["role"], "unknown")
        participant["branch"] = names.get(participant["branch"]) if role == "consumer" else None
        participant["role"] = role
        participant["orphaned"] = participant.pop("state") == 2
    return cast("list[ParticipantRecord]", found)


def holder_record(core: Ring) -> HolderRecord | None:
    """Return the participant or branch for which producers wait when the ring is full."""
    found = core.holder()
    return cast("HolderRecord", {**found, "kind": _HOLDERS[found["kind"]]}) if found else None
