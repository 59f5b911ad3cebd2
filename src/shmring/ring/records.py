"""Dicts with known keys: the options of a new ring, and the state of an existing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, cast

from shmring._shmring import JOURNAL_BRANCH
from shmring.common.arguments import CLOCKS

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring._shmring import Ring
    from shmring.common.arguments import Clock

_ROLES = {0: "attached", 1: "producer", 2: "consumer"}
_HOLDERS = {1: "claim", 2: "lease", 3: "consumers", 4: "no consumer"}


# CHANGE: edit this for a new option of a ring
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


# CHANGE: edit this for a new option of a ring
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
    after : names of the branches that the branch follows; if empty, the branch follows the
        producers
    position : next sequence to be taken
    released : sequence below which all sequences are released
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


def is_journal(branch: BranchRecord) -> bool:
    """Return whether a branch is a journal's: it has the journal's name and is exclusive."""
    return branch["name"] == JOURNAL_BRANCH and branch["exclusive"]


class BranchLag(BranchRecord):
    """A branch, and how far it is behind the producers.

    Attributes
    ----------
    lag : slots that the branch has still to take
    waiting : messages that the branch has still to take, up to the first claim that is not
        committed, and messages that it delivers again, because a consumer died with them or handed
        them back. End markers are not counted. The first 65,536 messages are counted, and the
        number of the others is estimated. Messages of one slot that one call (`push_many`) has
        published are counted in one step, and use up one of the 65,536
    """

    lag: int
    waiting: int


# CHANGE: edit this for a new counter that each participant has
# Every field is a sum, because metrics.py adds up each field over participants. Any other value of
# a seat, such as a maximum, is a field of ParticipantRecord.
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
    branch : branch of a consumer; None for other participants
    stopped : whether the participant is alive, but stopped by SIGSTOP or a debugger
    orphaned : whether messages of this seat wait to be delivered again: the participant died, or
        the seat has no participant (its pid is 0) and holds messages that were handed back (`nack`)
    claim : first sequence of the claim that the participant has open; None if it has none
    hold : lowest sequence that the participant holds; None if it holds none
    messages : messages that a producer has published, or a consumer has taken
    bytes : bytes of the messages that a producer has published
    full_waits : how often a producer found no room
    empty_waits : how often a consumer found no message
    contended : how often the participant lost a race with another one for a claim or a take
    recovered : dead participants that this participant has cleared away
    overrun : slots that a branch with `drop_oldest` has lost, counted by the consumer that got
        `Overrun`
    dropped : messages that a producer with ``when_full="drop"`` has thrown away
    redelivered : messages taken that had been delivered before
    synced_ns : nanoseconds that a journal has spent in syncs
    most_delivered, deliveries : first sequence of the held message that was delivered most often,
        and the number of its deliveries, where 256 means 256 or more; None and 0 if no message is
        held
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
    """The participant or branch for which producers wait; see :meth:`shmring.Ring.holder`.

    Attributes
    ----------
    kind : why the slot at `sequence` is not free. "claim": a producer has claimed the slot, and
        has neither committed nor aborted the claim; "lease": a consumer has taken the message and
        has not released it; "consumers": the branch has living consumers, and none of them has
        taken the message; "no consumer": the branch has no living consumer
    branch : name of the branch that has not released the slot; None if the ring has no branch
    name, pid, alive, stopped : properties of the producer or consumer, or of the first of several
        consumers; None, None, False and False if the branch has no living consumer
    sequence : lowest sequence that is still held
    slots : number of slots from `sequence` to the next sequence that producers claim
    age_s : seconds since the message at `sequence` was published; None if the time is unknown
    words : the record as a sentence, which is also in the text of :class:`shmring.Full`
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


# CHANGE: edit this for a new version of the layout
class RingStats(TypedDict):
    """Positions and counters of a ring; see :meth:`shmring.Ring.stats`.

    Attributes
    ----------
    claimed, floor : next sequence to be claimed, lowest sequence that is held
    used : number of slots from `floor` to `claimed`
    branches : branches, sorted by lag, the largest lag first
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
    """Return how many messages a removal of the ring loses: the largest `waiting` of a branch."""
    return max((branch["waiting"] for branch in stats["branches"]), default=0)


class Finding(NamedTuple):
    """Something wrong on this host, found by `shmring check`.

    Attributes
    ----------
    status : exit status of `shmring check` for this finding: 1 for a warning, 2 for "stuck". The
        numbers are the exit statuses of monitoring plugins for warning and critical
    kind : kind of the finding, in a word
    ring, sidecar : name of the ring or sidecar; both are None for a finding about the host
    words : sentence about the finding
    command : command that mends what the finding reports; empty if no command does
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
