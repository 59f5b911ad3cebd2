"""A queue of two immutable stacks in one file that only grows.

Items are pushed onto the back stack and popped from the front one; an empty front becomes the
reversed back.  A flush writes what is new and then the two tops, and returns a position at which
that very state can be opened again, for as long as the file is not compacted, whatever writers do
meanwhile.  The format of the file stands in append_only_file.py; beside the file lie
``<path>.lock`` and, after an interrupted compaction, ``<path>.tmp``, which means nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from shmring.closing import Closing
from shmring.durable.base.files import Buffer, Disk, OsDisk
from shmring.durable.base.items import item_bytes
from shmring.durable.queues.append_only_file import AppendOnlyFile, Commit, Node
from shmring.errors import (
    Closed,
    ForkedHandle,
    NoSpace,
    NotARing,
    PermissionRefused,
    RingNotFound,
)

__all__ = ["AppendOnlyQueue", "Overhead"]

# From this much on items are written early, uncommitted, rather than held in memory.
_BUFFER_BYTES = 1 << 20


class Overhead(NamedTuple):
    """What the file holds, in bytes."""

    file_bytes: int
    item_bytes: int

    @property
    def ratio(self) -> float:
        """Bytes beside the items, for each byte of them; taken items count until compaction."""
        return (self.file_bytes - self.item_bytes) / max(1, self.item_bytes)


@dataclass(slots=True, frozen=True)
class _State:
    front: Node | int = 0
    front_count: int = 0
    back: Node | int = 0
    back_count: int = 0


class AppendOnlyQueue(Closing):
    """Open, or create, the queue in a file.

    One process at a time writes; any number read, and neither waits for the other.

    Parameters
    ----------
    path : the file
    position : open the state that ``flush`` returned this for, to read only
    readonly : open the last state, to read only; what is taken is taken from this view alone
    timeout : seconds to wait for another writer; None waits for ever, 0 does not wait
    disk : for tests

    Attributes
    ----------
    position : where the state last flushed, or opened, stands
    recovered : what opening ignored at the end of the file, in words; None if nothing

    Raises
    ------
    Locked : another writer has it; ``pid`` says which
    PositionNotFound : no flush returned this position, or a compaction dropped it
    Damaged : the header does not make sense
    NotARing : `path` is a directory
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        position: int | None = None,
        readonly: bool = False,
        timeout: float | None = 0.0,
        disk: Disk | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.readonly = readonly or position is not None
        self._disk = disk or OsDisk()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._owner = None
        self._closed = False
        self._failure: OSError | None = None
        directory, name = os.path.split(self.path)
        if not self.readonly:
            self._disk.make_directory(directory)
            what = f"the queue at {self.path}"
            self._owner = self._disk.lock(self.path + ".lock", what, timeout)
        try:
            names = self._disk.names(directory)
            if name not in names:
                if self.readonly:
                    raise RingNotFound(f"no queue at {self.path}; open it for writing first")
                AppendOnlyFile.create(self._disk, self.path, 0)
            if not self.readonly:
                self._disk.remove(self.path + ".tmp")
            self._file = AppendOnlyFile(self._disk, self.path, write=not self.readonly)
            if not self.readonly:
                # What a killed writer left may be complete and yet only in memory.
                self._file.sync()
                self._disk.sync_directory(directory)
            commit = self._file.commit if position is None else self._file.commit_at(position)
        except IsADirectoryError:
            self._release()
            raise NotARing(
                f"{self.path} is a directory; a queue of this kind lives in a file"
            ) from None
        except BaseException:
            self._release()
            raise
        self.recovered = self._file.torn if not self.readonly else None
        self._unwritten: list[Node] = []
        self._unwritten_bytes = 0
        self._settle(commit)

    def _settle(self, commit: Commit) -> None:
        self.position = commit.position
        self._committed = self._state = _State(
            commit.front, commit.front_count, commit.back, commit.back_count
        )
        self._unwritten = []
        self._unwritten_bytes = 0

    def _check(self, *, write: bool) -> None:
        if self._closed:
            raise Closed(f"the queue at {self.path} was closed; open it again")
        if self.readonly:
            if write:
                raise PermissionRefused(
                    f"this is a view of {self.path} at position {self.position}; "
                    f"open the queue without position= and readonly= to write"
                )
            return
        if self._pid != os.getpid():
            raise ForkedHandle(
                f"the queue at {self.path} belongs to process {self._pid}; open it with "
                f"readonly=True in this one"
            )
        if self._failure is not None:
            raise Closed(
                f"the queue at {self.path} stopped after a failed write ({self._failure}); "
                f"open it again"
            ) from self._failure

    def __len__(self) -> int:
        """Return the number of items."""
        with self._lock:
            return self._state.front_count + self._state.back_count

    def enqueue(self, data: Buffer) -> None:
        """Put an item at the back.

        Raises
        ------
        NoSpace : the disk is full; this item is not in the queue, all before it are
        MessageTooLarge : the item has 4 GiB or more
        TypeError : `data` is not bytes-like
        """
        with self._lock:
            self._check(write=True)
            data = item_bytes(data)
            if self._unwritten_bytes > _BUFFER_BYTES:
                self._write_back()
            state = self._state
            node = Node(state.back, len(data), self._file.checksum(data, 0), data)
            self._unwritten.append(node)
            self._unwritten_bytes += len(data) + 100
            self._state = _State(state.front, state.front_count, node, state.back_count + 1)

    def _write_back(self) -> None:
        if self._unwritten:
            self._write(self._unwritten)
            self._state = replace(self._state, back=self._unwritten[-1].position)
            self._unwritten = []
            self._unwritten_bytes = 0

    def _write(self, nodes: list[Node]) -> None:
        try:
            self._file.append_nodes(nodes)
        except NoSpace:
            raise
        except OSError as error:
            self._failure = error
            raise

    def dequeue(self) -> bytes | None:
        """Take the item at the front; None if there is none.

        Raises
        ------
        Damaged : the item or its node does not match its checksum; it stays
        """
        with self._lock:
            self._check(write=False)
            if not self._state.front:
                self._reverse()
            state = self._state
            if not state.front:
                return None
            node = self._file.node(state.front)
            data = self._file.data(node)
            self._state = _State(node.below, state.front_count - 1, state.back, state.back_count)
            return data

    def _reverse(self) -> None:
        state = self._state
        front: Node | int = 0
        for node in self._down(state.back):
            front = Node(front, node.length, node.crc, node.data, node.item)
        self._state = _State(front, state.back_count)
        self._unwritten = []
        self._unwritten_bytes = 0

    def _down(self, link: Node | int) -> Iterator[Node]:
        while link:
            node = self._file.node(link)
            yield node
            link = node.below

    def _in_order(self) -> Iterator[Node]:
        yield from self._down(self._state.front)
        yield from reversed(list(self._down(self._state.back)))

    def __iter__(self) -> Iterator[bytes]:
        """Go through the items from the front, taking none."""
        with self._lock:
            self._check(write=False)
            nodes = list(self._in_order())
        for node in nodes:
            yield self._file.data(node)

    def flush(self) -> int:
        """Commit; return the position at which this state can be opened again.

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, and nothing here is lost
        OSError : the sync failed; open the queue again to see whether it was committed
        """
        with self._lock:
            self._check(write=True)
            if self._state is self._committed and self.position:
                return self.position
            self._write_back()
            front: list[Node] = []
            link = self._state.front
            while isinstance(link, Node) and not link.position:
                front.append(link)
                link = link.below
            if front:
                self._write(front[::-1])
            state = self._state
            try:
                commit = self._file.append_commit(
                    _position(state.front),
                    state.front_count,
                    _position(state.back),
                    state.back_count,
                )
            except NoSpace:
                raise
            except OSError as error:
                self._failure = error
                raise
            self._settle(commit)
            return self.position

    def rollback(self) -> None:
        """Return to the state last flushed."""
        with self._lock:
            self._check(write=False)
            self._state = self._committed
            self._unwritten = []
            self._unwritten_bytes = 0

    def compact(self) -> int:
        """Flush, then rewrite the file with only the items in the queue, in one step.

        Views that are open stay as they are; positions from before cannot be opened any more.

        Returns
        -------
        the position of the flushed state in the new file

        Raises
        ------
        NoSpace : the file is as it was, flushed or not
        """
        with self._lock:
            self.flush()
            return self._replace(self._in_order())

    def reset(self) -> int:
        """Delete every item, flushed or not, and every state before, in one step.

        Views that are open stay as they are; positions from before cannot be opened any more.

        Returns
        -------
        the position of the empty state in the new file

        Raises
        ------
        NoSpace : nothing was deleted
        """
        with self._lock:
            self._check(write=True)
            return self._replace(())

    def _replace(self, nodes: Iterable[Node]) -> int:
        old = self._file
        temporary = self.path + ".tmp"
        try:
            commit, new = self._copy(nodes, temporary, old.base + old.size)
        except BaseException:
            self._disk.remove(temporary)
            raise
        try:
            self._disk.rename(temporary, self.path)
            self._disk.sync_directory(os.path.dirname(self.path))
        except OSError as error:
            self._failure = error
            raise
        old.close()
        self._file = new
        new.path = self.path
        self._settle(commit)
        return self.position

    def _copy(self, nodes: Iterable[Node], path: str, base: int) -> tuple[Commit, AppendOnlyFile]:
        AppendOnlyFile.create(self._disk, path, base, self._file.version)
        new = AppendOnlyFile(self._disk, path, write=True)
        top = 0
        count = nbytes = 0
        block: list[Node] = []
        for node in nodes:
            data = self._file.data(node)
            block.append(Node(block[-1] if block else top, node.length, node.crc, data))
            count += 1
            nbytes += node.length
            if nbytes > _BUFFER_BYTES:
                new.append_nodes(block)
                top, nbytes, block = block[-1].position, 0, []
        if block:
            new.append_nodes(block)
            top = block[-1].position
        return new.append_commit(0, 0, top, count), new

    def overhead(self) -> Overhead:
        """Return how much of the file, as last flushed, is not items."""
        with self._lock:
            self._check(write=False)
            return Overhead(self._file.size, self._file.item_bytes)

    def close(self) -> None:
        """Close without a flush, and let the next writer in; a second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._file.close()
                self._release()

    def _release(self) -> None:
        if self._owner is not None and self._pid == os.getpid():
            self._owner.release()


def _position(link: Node | int) -> int:
    return link.position if isinstance(link, Node) else link
