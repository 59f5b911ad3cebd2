"""The low level: sequences, and the graph of who follows whom.

    out = ring.sequence()
    a, b, c = (ring.sequence(name) for name in "abc")
    out.then(FanOut.to(a).and_(b)).then(c).then(out)

`a` and `b` see what the producer has published, `c` what both of them have released, and the
producer overwrites what `c` has released. The graph is kept in the ring, so that every process
sees it; these objects describe it for the process that builds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shmring._shmring import CONTENDED, UNAVAILABLE, Consumer, Producer

if TYPE_CHECKING:
    from types import TracebackType

    from shmring.ring import Ring

__all__ = ["CONTENDED", "UNAVAILABLE", "FanOut", "Sequence"]


class Node:
    """What can follow and be followed."""

    _upstream: Node | None

    def then(self, follower: NodeT) -> NodeT:
        """Let `follower` see only what this has released; returns `follower`, so that calls chain.

        A producer at the end closes the loop. It always waits for every branch, so this only
        checks that it is the same ring's.

        Raises
        ------
        ValueError : another ring's, or a branch that would follow itself
        """
        follower.follow(self)
        return follower

    def follow(self, upstream: Node) -> None:
        """What then() does, seen from the follower."""
        raise NotImplementedError

    def mask(self) -> int:
        """The branches that who follows this must wait for, as bits; 0 for the producer."""
        raise NotImplementedError

    def chain(self) -> list[Node]:
        """This and what it follows, up to and without the producer."""
        nodes: list[Node] = [self]
        while (up := nodes[-1]._upstream) is not None and not is_producer(up):
            nodes.append(up)
        return nodes

    def sequences(self) -> list[Sequence]:
        """The sequences it consists of."""
        raise NotImplementedError


NodeT = TypeVar("NodeT", bound=Node)


def is_producer(node: Node) -> bool:
    return isinstance(node, Sequence) and node.branch is None


class Sequence(Node):
    """A position in the ring: the producer's, or a branch's; made by Ring.sequence().

    next() takes the next slot, slot() is its memory, done() gives it on. next() answers
    UNAVAILABLE (-1) when the ring is full or empty and CONTENDED (-2) when another one was faster;
    a single producer and an exclusive branch never get CONTENDED.

    Messages have one slot here. A producer has one claim at a time: done() before the next next().
    """

    def __init__(self, ring: Ring, handle: Producer | Consumer) -> None:
        self._ring = ring
        self._handle = handle
        self._upstream = None

    def __repr__(self) -> str:
        what = "the producer" if self.branch is None else f'branch "{self.branch}"'
        return f"<shmring.Sequence of {what} of {self._ring!r}>"

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def ring(self) -> Ring:
        """The ring."""
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
        EndOfStream : the message is an end marker
        ClaimOpen : the producer's last claim is not done() yet
        """
        return self._handle.next()

    def done(self, sequence: int, length: int = 300) -> None:
        """Give a slot on: a producer publishes it, a branch releases it.

        Where nobody races, the whole batch up to `sequence` at once: see available(). Members of a
        shared branch may be done in any order.

        Parameters
        ----------
        sequence : what next() returned, or the last of a batch
        length : bytes of each message; for producers
        """
        if isinstance(self._handle, Producer):
            self._handle.done(sequence, length)
        else:
            self._handle.done(sequence)

    def available(self) -> int:
        """How far one may go from next() without asking again (exclusive).

            first = sequence.next()
            end = sequence.available()
            ...  # use slots first to end - 1
            sequence.done(end - 1)

        Raises
        ------
        ValueError : several producers or members share this; there is no such promise then
        """
        return self._handle.available()

    def slot(self, sequence: int) -> memoryview:
        """The 300 bytes of a slot: writable for a producer. Not to be used after done()."""
        return self._handle.slot(sequence)

    def drop(self) -> None:
        """Drop the branch: it holds nobody back any more, and its next() raises BranchDropped."""
        if self.branch is None:
            raise ValueError("a producer has no branch to drop; close() it")
        self._ring.drop_branch(self.branch)

    def close(self) -> None:
        """Give the seat back; a branch stays and goes on holding the producers."""
        self._handle.close()

    # --- the graph ------------------------------------------------------------------------------

    def follow(self, upstream: Node) -> None:
        """What then() does, seen from the follower."""
        for other in upstream.sequences():
            if other.ring.info.uuid != self._ring.info.uuid:
                raise ValueError(f"{self!r} cannot follow {other!r}: they are of different rings")
        if isinstance(self._handle, Producer):
            if is_producer(upstream):
                raise ValueError("a producer cannot follow a producer")
            return
        self._ring.core.follow(self._handle.branch_id, upstream.mask())
        self._upstream = upstream

    def mask(self) -> int:
        """The branches that who follows this must wait for, as bits; 0 for the producer."""
        return 1 << self._handle.branch_id if isinstance(self._handle, Consumer) else 0

    def sequences(self) -> list[Sequence]:
        """The sequences it consists of."""
        return [self]


class FanOut(Node):
    """Several branches side by side: ``FanOut.to(b).and_(c)``.

    Branches may come and go while traffic flows. A newcomer begins where its branch stands, and
    what follows the fan-out waits for it from then on. An empty fan-out holds nobody back.
    """

    def __init__(self) -> None:
        self._members: dict[Node, list[Node]] = {}  # each with the chain it ends
        self._followers: list[Node] = []
        self._upstream = None

    @classmethod
    def to(cls, node: Node) -> FanOut:
        """A fan-out to one branch, or to a chain of them, of which the last one is given."""
        return cls().and_(node)

    def and_(self, node: Node) -> FanOut:
        """Add a branch; one that is in already stays. Returns the fan-out."""
        if is_producer(node):
            raise ValueError("a fan-out is made of branches, not of the producer")
        if node not in self._members:
            chain = node.chain()
            if self._upstream is not None:
                chain[-1].follow(self._upstream)
            self._members[node] = chain
            self._tell_followers()
        return self

    def remove(self, node: Node) -> FanOut:
        """Take a branch (with its chain) out and drop it: its next() raises BranchDropped.

        Raises
        ------
        ValueError : it is not in this fan-out
        """
        if node not in self._members:
            raise ValueError(f"{node!r} is not in this fan-out")
        chain = self._members.pop(node)
        self._tell_followers()
        for link in chain:
            for sequence in link.sequences():
                sequence.drop()
        return self

    def then(self, follower: NodeT) -> NodeT:
        """Let `follower` see only what all branches of the fan-out have released."""
        super().then(follower)
        if follower not in self._followers and not is_producer(follower):
            self._followers.append(follower)
        return follower

    def follow(self, upstream: Node) -> None:
        """What then() does, seen from the follower."""
        for chain in self._members.values():
            chain[-1].follow(upstream)
        self._upstream = upstream
        self._tell_followers()

    def mask(self) -> int:
        """The branches that who follows this must wait for, as bits."""
        if not self._members:
            return self._upstream.mask() if self._upstream is not None else 0
        mask = 0
        for member in self._members:
            mask |= member.mask()
        return mask

    def sequences(self) -> list[Sequence]:
        """The sequences it consists of."""
        return [s for member in self._members for s in member.sequences()]

    def _tell_followers(self) -> None:
        for follower in self._followers:
            follower.follow(self)
