"""Dicts with known keys: a new ring's options, and what is seen of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.choices import Clock

__all__ = [
    "BranchLag",
    "BranchRecord",
    "Counters",
    "CreateOptions",
    "HolderRecord",
    "RingStats",
    "SeatRecord",
]


class CreateOptions(TypedDict, total=False):
    """The options of :func:`shmring.create` beside the name and the path."""

    slots: int
    participants: int
    single_producer: bool
    scattered: bool
    checksum: bool
    clock: Clock
    mode: int
    schema: pa.Schema | None
    prefault: bool
    lock_memory: bool
    huge_pages: bool
    first_sequence: int
    temporary: bool


class BranchRecord(TypedDict):
    """A branch as it stands; see :meth:`shmring.Ring.branches`.

    Attributes
    ----------
    after : names of the branches it follows; none: the producers
    position : the next sequence to be taken
    released : all below has been released
    ends : of the stream, so many has the branch come to
    members : the living
    orphans : members that died, whose messages await redelivery
    """

    id: int
    name: str
    exclusive: bool
    ephemeral: bool
    lapse: bool
    after: list[str]
    position: int
    released: int
    ends: int
    members: int
    orphans: int


class BranchLag(BranchRecord):
    """A branch, and how many slots it is behind the producers."""

    lag: int


class Counters(TypedDict):
    """What participants count."""

    messages: int
    bytes: int
    full_waits: int
    empty_waits: int
    contended: int
    recovered: int
    lapsed: int
    dropped: int


class SeatRecord(Counters):
    """A participant as it stands; see :meth:`shmring.Ring.seats`.

    Attributes
    ----------
    branch : of a member; else None
    orphaned : the participant died, and what it held awaits redelivery
    claim, hold : first sequence that it has claimed, lowest that it holds, or None
    """

    seat: int
    role: Literal["attached", "producer", "member", "unknown"]
    branch: str | None
    pid: int
    alive: bool
    orphaned: bool
    joined_ns: int
    name: str
    claim: int | None
    hold: int | None


class HolderRecord(TypedDict):
    """Whom the producers wait for when the ring is full; see :meth:`shmring.Ring.holder`.

    Attributes
    ----------
    kind : "claim": a producer has neither committed nor aborted; "lease": a member has not
        released; "members": the branch's members have still to take it; "no member"
    branch : None for a claim
    name, pid, alive : of the participant; None, None and False where there is none
    sequence : the lowest that is held
    slots : from there to the producers
    age_s : seconds since that message was published; None where the ring cannot say
    words : the same as a sentence, as :class:`shmring.Full` says it
    """

    kind: Literal["claim", "lease", "members", "no member"]
    branch: str | None
    name: str | None
    pid: int | None
    alive: bool
    sequence: int
    slots: int
    age_s: float | None
    words: str


class RingStats(TypedDict):
    """Positions and counters of a ring; see :meth:`shmring.Ring.stats`.

    Attributes
    ----------
    claimed, floor : sequences: the next to be claimed, the lowest that is held
    used : slots between the two
    branches : the one that lags most first
    totals : of the participants' counters, by role
    """

    name: str | None
    path: str
    slots: int
    claimed: int
    floor: int
    used: int
    holder: HolderRecord | None
    branches: list[BranchLag]
    participants: list[SeatRecord]
    totals: dict[Literal["producer", "member"], Counters]
