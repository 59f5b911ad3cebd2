"""The low level: sequences, and the graph in which branches follow each other.

    out = ring.sequence()
    a, b, c = (ring.sequence(name) for name in "abc")
    out.then(FanOut.to(a).and_(b)).then(c).then(out)

`a` and `b` see each message when the producer has published it, `c` sees it when both have released
it, and the producer overwrites it when `c` has released it. The graph is stored in the ring's file,
so every process sees the graph. Threads and processes may build the graph at the same time: each
adds its branches, and building the same graph again changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from shmring._shmring import CONTENDED, SLOT_BYTES, UNAVAILABLE, Consumer, Producer
from shmring.common.closing import Closing
from shmring.errors import BranchNotFound

if TYPE_CHECKING:
    from shmring.ring import Ring

__all__ = ["CONTENDED", "UNAVAILABLE", "FanOut", "Sequence"]


class Node(ABC):
    """A node of the graph: it can follow other nodes, and they can follow it."""

    def then(self, follower: NodeT) -> NodeT:
        """Let `follower` see only messages that this node has released; return the follower.

        `follower` goes on following its other branches. `follower` may also be the producer's
        sequence, which closes the loop. A producer waits for every branch anyway, so then() only
        checks that both nodes are of one ring.

        Raises
        ------
        ValueError : the ring is another one, or a branch would follow itself
        BranchNotFound : one of the branches was dropped
        """
        follower.follow(self)
        return follower

    @abstractmethod
    def follow(self, upstream: Node) -> None:
        """Make this node follow `upstream`: the follower's part of then()."""

    @abstractmethod
    def unfollow(self, upstream: list[str]) -> None:
        """Stop following the branches that `upstream` names."""

    @abstractmethod
    def ends(self) -> list[str]:
        """Return the branches for which a follower of this node waits; none for the producer."""

    @abstractmethod
    def sequences(self) -> list[Sequence]:
        """Return the sequences in this node."""


NodeT = TypeVar("NodeT", bound=Node)


def is_producer(node: Node) -> bool:
    return isinstance(node, Sequence) and node.branch is None


class Sequence(Closing, Node):
    """A position in the ring: the producer's, or a branch's; made by Ring.sequence().

    next() takes the next slot, slot() is its memory, done() passes it on. next() returns
    UNAVAILABLE (-1) if the ring is full or empty, and CONTENDED (-2) if another participant was
    faster; a single producer and an exclusive branch never get CONTENDED.

    Each message has one slot here. A producer has one claim at a time: it calls done() before the
    next next().
    """

    def __init__(self, ring: Ring, handle: Producer | Consumer) -> None:
        self._ring = ring
        self._handle = handle

    def __repr__(self) -> str:
        what = "the producer" if self.branch is None else f'branch "{self.branch}"'
        return f"<shmring.Sequence of {what} of {self._ring!r}>"

    @property
    def ring(self) -> Ring:
        """Ring of this sequence."""
        return self._ring

    @property
    def branch(self) -> str | None:
        """Name of the branch; None for the producer's sequence."""
        return self._handle.branch if isinstance(self._handle, Consumer) else None

    def next(self) -> int:
        """Take the next slot.

        Returns
        -------
        its sequence; -1 (UNAVAILABLE): full or empty; -2 (CONTENDED): lost a race, try again

        Raises
        ------
        EndOfStream : the stream has ended; the next call continues after the end marker
        ClaimOpen : the producer has not called done() for its last claim
        """
        return self._handle.next()

    def done(self, sequence: int, length: int = SLOT_BYTES) -> None:
        """Pass a slot on: a producer publishes it, a branch releases it.

        A single producer and an exclusive branch pass on the whole batch up to `sequence`: see
        available(). Consumers of a shared branch may call done() in any order.

        Parameters
        ----------
        sequence : sequence returned by next(), or the last sequence of a batch
        length : bytes of each message; for producers
        """
        if isinstance(self._handle, Producer):
            self._handle.done(sequence, length)
        else:
            self._handle.done(sequence)

    def available(self) -> int:
        """Return the sequence after the last slot that can be used now without another next().

            first = sequence.next()
            end = sequence.available()
            ...  # use slots first to end - 1
            sequence.done(end - 1)

        Each slot of the batch is a message of its own (or free, for a producer). The batch ends
        before anything that only next() handles: an aborted claim, a claim whose owner died, an end
        marker, the rest of a message of several slots, or a message that a branch in `after` has
        not released.

        Raises
        ------
        ValueError : several producers or consumers share this position
        """
        return self._handle.available()

    def slot(self, sequence: int) -> memoryview:
        """The 300 bytes of a slot, writable for a producer. Do not use them after done()."""
        return self._handle.slot(sequence)

    def drop(self) -> None:
        """Drop the branch: producers no longer wait for it, and next() raises BranchDropped."""
        if self.branch is None:
            raise ValueError("a producer has no branch to drop; close() it")
        self._ring.drop_branch(self.branch)

    def close(self) -> None:
        """Leave the ring; a branch stays, and producers wait for it when the ring is full.

        Messages that next() took, without a done(), are delivered again, marked as redelivered.
        """
        self._handle.close()

    # --- the graph ------------------------------------------------------------------------------

    def follow(self, upstream: Node) -> None:
        _check_same_ring(self, upstream)
        if self.branch is not None:
            _follow(self._ring, self.branch, upstream)
        elif is_producer(upstream):
            raise ValueError("a producer cannot follow a producer")

    def unfollow(self, upstream: list[str]) -> None:
        if self.branch is not None:
            _unfollow(self._ring, self.branch, upstream)

    def ends(self) -> list[str]:
        return [] if self.branch is None else [self.branch]

    def sequences(self) -> list[Sequence]:
        return [self]


class FanOut(Node):
    """Several branches side by side: ``FanOut.to(b).and_(c)``.

    Several threads and processes may add and remove branches while messages flow. A new branch
    begins at its own position, and the followers of the fan-out wait for it from then on. The
    followers of an empty fan-out follow the fan-out's upstream directly.

    The ring keeps the graph of branches. The fan-out keeps the nodes given to it, which the ring
    does not know: its members, its followers and its upstream.
    """

    def __init__(self) -> None:
        # Dicts keep their order, and each change is one step. Two threads may add a member and a
        # follower at the same time. Each thread adds its node to one dict, and then reads the other
        # dict: so at least one thread finds the other's node, and connects the two nodes.
        self._members: dict[Node, None] = {}
        self._followers: dict[Node, None] = {}
        self._upstream: Node | None = None

    @classmethod
    def to(cls, node: Node) -> FanOut:
        """Make a fan-out to one branch, or to a chain of branches, given by its last branch."""
        return cls().and_(node)

    def and_(self, node: Node) -> FanOut:
        """Add a branch, if it is not in the fan-out yet; return the fan-out."""
        if is_producer(node):
            raise ValueError("a fan-out is made of branches, not of the producer")
        self._members[node] = None
        if self._upstream is not None:
            _lead(node, self._upstream)
        self._let_followers_follow(node)
        return self

    def _let_followers_follow(self, upstream: Node) -> None:
        """Let all followers follow a node, and forget followers that somebody has dropped."""
        for follower in list(self._followers):
            try:
                follower.follow(upstream)
            except BranchNotFound:
                if not _is_dropped(follower):
                    raise
                self._followers.pop(follower, None)

    def remove(self, node: Node) -> FanOut:
        """Remove a branch and drop it, with the branches of its chain that no other branch follows.

        next() of a dropped branch raises BranchDropped.

        Raises
        ------
        ValueError : the branch is not in this fan-out
        """
        if node not in self._members:
            raise ValueError(f"{node!r} is not in this fan-out")
        self._members.pop(node, None)
        ends = node.ends()
        if self._members:
            for follower in list(self._followers):
                follower.unfollow(ends)
        # Do not change the followers if the fan-out is empty now: when a branch is dropped, the
        # ring itself lets the branch's followers follow the branch's upstream.
        upstream = [] if self._upstream is None else self._upstream.ends()
        for ring in [sequence.ring for sequence in node.sequences()][:1]:
            _drop_chain(ring, ends, upstream)
        return self

    def then(self, follower: NodeT) -> NodeT:
        """Let `follower` see only messages that all branches of the fan-out have released."""
        new = follower not in self._followers and not is_producer(follower)
        if new:
            self._followers[follower] = None
        try:
            return super().then(follower)
        except BaseException:
            if new:
                self._followers.pop(follower, None)
            raise

    def follow(self, upstream: Node) -> None:
        self._upstream = upstream
        members = list(self._members)
        for member in members:
            _lead(member, upstream)
        if not members:
            self._let_followers_follow(upstream)

    def unfollow(self, upstream: list[str]) -> None:
        for ring in [sequence.ring for sequence in self.sequences()][:1]:
            for branch in _chain(_after(ring), self.ends(), upstream):
                _unfollow(ring, branch, upstream)

    def ends(self) -> list[str]:
        there = {branch["name"] for s in self.sequences()[:1] for branch in s.ring.branches()}
        ends = [end for member in list(self._members) for end in member.ends() if end in there]
        return ends if ends or self._upstream is None else self._upstream.ends()

    def sequences(self) -> list[Sequence]:
        return [s for member in list(self._members) for s in member.sequences()]


def _is_dropped(node: Node) -> bool:
    """Return whether every branch of a node was dropped, by this process or another one."""
    sequences = node.sequences()
    there = {branch["name"] for s in sequences[:1] for branch in s.ring.branches()}
    return bool(sequences) and not any(s.branch in there for s in sequences)


# --- changes of the ring's graph ------------------------------------------------------------------


def _check_same_ring(node: Node, upstream: Node) -> None:
    for sequence in node.sequences():
        for other in upstream.sequences():
            if other.ring.info.uuid != sequence.ring.info.uuid:
                raise ValueError(f"{node!r} cannot follow {other!r}: they are of different rings")


def _follow(ring: Ring, branch: str, upstream: Node) -> None:
    """Let a branch follow all branches of `upstream` in one step.

    With several steps, the branch could run ahead of the branches added last.
    """
    core = ring.core
    while True:
        ends = upstream.ends()
        try:
            core.follow(core.find_branch(branch), sum(1 << core.find_branch(end) for end in ends))
        except BranchNotFound:
            if upstream.ends() == ends:
                raise
            continue  # another thread or process has just dropped one of these branches: try again
        return


def _unfollow(ring: Ring, branch: str, upstream: list[str]) -> None:
    core = ring.core
    for end in upstream:
        with suppress(BranchNotFound):  # a dropped branch follows no other, and has no followers
            core.unfollow(core.find_branch(branch), 1 << core.find_branch(end))


def _after(ring: Ring) -> dict[str, list[str]]:
    return {branch["name"]: branch["after"] for branch in ring.branches()}


def _chain(after: dict[str, list[str]], ends: list[str], upstream: list[str]) -> list[str]:
    """Return `ends` and all branches that they follow, except `upstream` and what it follows."""
    behind = set(_chain(after, upstream, []) if upstream else upstream)
    found = dict.fromkeys(ends)
    next_ones = ends
    while next_ones:
        further = (up for branch in next_ones for up in after.get(branch, ()))
        next_ones = [up for up in dict.fromkeys(further) if up not in behind and up not in found]
        found.update(dict.fromkeys(next_ones))
    return list(found)


def _lead(node: Node, upstream: Node) -> None:
    """Let the first branches of the chain that ends with `node` follow `upstream`."""
    _check_same_ring(node, upstream)
    for ring in [sequence.ring for sequence in node.sequences()][:1]:
        after = _after(ring)
        chain = _chain(after, node.ends(), upstream.ends())
        for branch in chain:
            if not set(chain).intersection(after.get(branch, ())):
                _follow(ring, branch, upstream)


def _drop_chain(ring: Ring, ends: list[str], upstream: list[str]) -> None:
    """Drop `ends`, then each branch of their chain (see _chain) that nothing follows any more."""
    after = _after(ring)
    chain = _chain(after, ends, upstream)
    going = ends
    while going:
        for branch in going:
            with suppress(BranchNotFound):  # another thread or process has dropped the branch
                ring.drop_branch(branch)
            after.pop(branch, None)
        followed = {up for upstreams in after.values() for up in upstreams}
        going = [branch for branch in chain if branch in after and branch not in followed]
