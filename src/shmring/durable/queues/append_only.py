"""A queue of two immutable stacks in one file that only grows.

Items are pushed onto the back stack and popped from the front stack.  When the front is empty, the
reversed back becomes the new front.  A flush writes the new items and nodes, then the two tops, and
returns a position.  The state at this position can be opened again until the file is compacted,
whatever writers do meanwhile.  append_only_file.py describes the format of the file.
Companion files are ``<path>.lock`` and, after an interrupted compaction, ``<path>.tmp``, which is
ignored.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import NamedTuple

from shmring._shmring import extents_of
from shmring.common.arguments import seconds_of
from shmring.common.forks import lineage
from shmring.durable.base.files import Disk, check_names, replace_file
from shmring.durable.base.items import EXTENT, Packing, ReadAhead
from shmring.durable.queues import session
from shmring.durable.queues.append_only_file import AppendOnlyFile, Commit, Held, Piece
from shmring.errors import (
    Closed,
    Damaged,
    ForkedHandle,
    NoSpace,
    PermissionRefused,
    RingNotFound,
)
from shmring.ring.names import path_text


class Overhead(NamedTuple):
    """The size of a queue's file, and how many of its bytes are items."""

    file_bytes: int
    item_bytes: int

    @property
    def ratio(self) -> float:
        """Bytes that are no items, for each byte of items.

        Items that were taken count as items until a compaction removes them.
        """
        return (self.file_bytes - self.item_bytes) / max(1, self.item_bytes)


class AppendOnlyQueue(session.Ends):
    """Open the queue in a file, or create it.

    One process at a time writes, and any number of processes read.  Neither waits for the other.

    Parameters
    ----------
    path : the file
    position : a position that ``flush`` returned: open its state read-only
    readonly : open the last state read-only; dequeue() then takes items from this object's copy of
        the state, and the file stays unchanged
    timeout : seconds to wait for another writer; None waits for ever, 0 does not wait
    disk : replacement for the calls of the file system; for tests

    Attributes
    ----------
    position : position of the state that was last flushed, or opened
    recovered : text about bytes that opening ignored at the end of the file, or None

    Raises
    ------
    Locked : another writer has the queue; ``pid`` is its process id
    PositionNotFound : no flush returned this position, or a compaction dropped it
    Damaged : the header is not valid
    NotARing : `path` is a directory; or a file with hard links, opened for writing
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
        super().__init__()
        if timeout is not None:
            seconds_of("timeout", timeout)
        # Resolve links: the lock beside the file is then the same for every link.
        self.path = os.path.realpath(path_text(path))
        self.readonly = readonly or position is not None
        self._disk = disk or Disk()
        self._pid, self._forks = os.getpid(), lineage.forks
        self._owner = None
        self._closed = False
        # True if a forked child may read this queue, because the queue is open read-only, and no
        # thread of the parent was changing its state in memory at the fork.
        self._shared = self.readonly
        self._failure: BaseException | None = None
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
                replace_file(self._disk, self.path, self._write_empty).close()
            if not self.readonly:
                self._disk.remove(self.path + ".tmp")
            self._file = AppendOnlyFile(self._disk, self.path, write=not self.readonly)
            if not self.readonly:
                self._file.refuse_other_names()
                # Sync: a killed writer may have left a complete file whose bytes are not on disk.
                self._file.sync()
                self._disk.sync_directory(directory)
            commit = self._file.commit if position is None else self._file.commit_at(position)
        except BaseException:
            self._release()
            raise
        self.recovered = self._file.torn if not self.readonly else None
        self._ahead = ReadAhead()
        self._settle(commit)

    def _write_empty(self, name: str) -> AppendOnlyFile:
        return AppendOnlyFile.write_new(self._disk, name, self.path, 0)

    def _settle(self, commit: Commit) -> None:
        """Make a state of the file the state of this object, which drops unflushed changes."""
        self.position = commit.position
        self._committed = commit
        self._changed = False
        # Front stack: the items that are loaded, and the position where the rest begins.
        self._front: list[Piece] = []
        self._rest = commit.front
        self._front_count = commit.front_count
        # Back stack: position of its top in the file, and the items to write on top of it.
        self._back = commit.back
        self._written_count = commit.back_count
        self._packing = Packing()

    def _check_writable(self) -> None:
        self._check_readable()
        if self.readonly:
            raise PermissionRefused(
                f"this is a view of {self.path} at position {self.position}; "
                f"open the queue without position= and readonly= to write"
            )

    def _check_readable(self) -> None:
        if self._closed:
            raise Closed(f"the queue at {self.path} was closed; open it again")
        if self._shared:
            return
        if self._forks != lineage.forks:
            raise ForkedHandle(
                f"the queue at {self.path} belongs to process {self._pid}; open it with "
                f"readonly=True in this one"
            )
        if self._failure is not None:
            raise Closed(
                f"the queue at {self.path} has stopped ({self._failure!r}); open it again"
            ) from self._failure

    def _in_a_call_at_fork(self) -> None:
        # A call in the parent may have been at work at the fork, with the state half changed.
        self._shared = False

    def __len__(self) -> int:
        """Return the number of items."""
        with self._lock:
            self._check_readable()
            return self._front_count + self._written_count + self._packing.count

    def _write_early(self) -> None:
        with self._writing():
            self._write_back()

    def _write_back(self) -> None:
        self._packing.settle()
        if self._packing.count:
            self._back = self._file.append_back(self._packing, self._back)
            self._written_count += self._packing.count
            self._packing = Packing()
            self._changed = True

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Let all later calls raise Closed if this block raises anything but NoSpace."""
        try:
            yield
        except NoSpace:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _check_names(self) -> None:
        """Raise if the lock file or the queue's file was removed or replaced.

        If the lock file is gone, a second writer may have opened the queue.
        """
        assert self._owner is not None
        check_names(self._owner, self._file.file)

    @session.Ends._alone
    def dequeue(self) -> bytes | None:
        """Take the item at the front; None if there is no item.

        Raises
        ------
        Damaged : the item or its node does not match its checksum; the item stays
        """
        self._check_readable()
        if not self._front and not self._load():
            return None
        piece = self._front[0]
        data = self._ahead.one(piece.source, piece.extents, piece.begin)
        if data is None:
            raise self._damaged(piece)
        self._take(piece, 1)
        return data

    def _take_some(self, items: list[bytes], most: int) -> bool:
        if not self._front and not self._load():
            return False
        piece = self._front[0]
        end = min(piece.end, piece.begin + most)
        got = self._ahead.many(items, piece.source, piece.extents, piece.begin, end)
        if not got:
            raise self._damaged(piece)
        self._take(piece, got)
        return True

    def _take(self, piece: Piece, count: int) -> None:
        piece.begin += count
        self._front_count -= count
        self._changed = True
        if piece.begin == piece.end:
            del self._front[0]

    def _damaged(self, piece: Piece) -> Damaged:
        position, length, _ = EXTENT.unpack_from(piece.extents, piece.begin * EXTENT.size)
        return Damaged(
            f"{self.path}: the {length} bytes of the item at position {position} do not match "
            f"their checksum"
        )

    def _load(self) -> bool:
        """Load a part of the front stack if none is loaded; False if the queue is empty."""
        if self._rest:
            extents, rest = self._file.walk(self._rest)
            piece = Piece(self._file, extents, self._rest)
            # Make no call between these changes: a signal handler may raise after any call, and
            # would leave only one of them.
            self._front += [piece]
            self._rest = rest
        elif self._written_count or self._packing.count:
            # The front is empty: the reversed back becomes the new front.
            front, empty = self._reversed_back(), Packing()
            self._front_count = self._written_count + self._packing.count
            self._changed |= self._packing.count > 0
            self._front, self._back, self._written_count = front, 0, 0
            self._packing = empty
        return bool(self._front)

    def _reversed_back(self) -> list[Piece]:
        pieces: list[Piece] = []
        link = self._back
        while link:
            extents, link = self._file.walk(link, upwards=True)
            pieces.append(Piece(self._file, extents))
        pieces.reverse()
        self._packing.settle()
        if self._packing.count:
            data = b"".join(self._packing.parts)
            pieces.append(Piece(Held(data), extents_of(self._packing.table, 0)))
        return pieces

    def _in_order(self) -> list[Piece]:
        """Return all items, in pieces, without changing the queue."""
        while self._rest:
            self._load()
        return [*self._front, *self._reversed_back()]

    @session.Ends._alone
    def flush(self) -> int:
        """Commit; return the position at which this state can be opened again.

        Raises
        ------
        NoSpace : the disk is full; nothing was committed, and the changes can still be flushed
        OSError : the sync failed; opening the queue again shows whether the flush was committed
        """
        return self._commit()

    def _commit(self) -> int:
        self._check_writable()
        with self._writing():
            self._check_names()
            self._write_back()
            if not self._changed and self.position:
                return self.position
            if self._front and not self._front[0].link:
                self._front = self._file.append_front(self._front)
            commit = self._file.append_commit(
                self._front[0].top if self._front else self._rest,
                self._front_count,
                self._back,
                self._written_count,
            )
            self._check_names()
            self.position, self._committed, self._changed = commit.position, commit, False
        return self.position

    @session.Ends._alone
    def rollback(self) -> None:
        """Return to the state that was last flushed."""
        self._check_readable()
        self._settle(self._committed)

    @session.Ends._alone
    def compact(self) -> int:
        """Flush, then rewrite the file with only the items in the queue, in one step.

        Return the position of the flushed state in the new file.  A queue that is open read-only
        keeps the old file.  Earlier positions can no longer be opened.

        Raises
        ------
        NoSpace : the disk is full; the old file stays, whether the flush succeeded or not
        """
        self._commit()
        return self._replace(self._in_order())

    @session.Ends._alone
    def reset(self) -> int:
        """Delete every item, flushed or not, and every earlier state, in one step.

        Return the position of the empty state in the new file.  A queue that is open read-only
        keeps the old file.  Earlier positions can no longer be opened.

        Raises
        ------
        NoSpace : nothing was deleted
        """
        self._check_writable()
        return self._replace(())

    def _replace(self, pieces: Iterable[Piece]) -> int:
        old = self._file
        with self._writing():
            self._check_names()
        old.refuse_other_names()
        made = False

        def make(name: str) -> tuple[Commit, AppendOnlyFile]:
            nonlocal made
            copied = self._copy(pieces, name, old.base + old.size)
            made = True
            return copied

        try:
            commit, new = replace_file(self._disk, self.path, make)
            old.close()
            self._file = new
            self._settle(commit)
        except BaseException as error:
            # Let all later calls raise Closed, because the path may name the old or the new file.
            if made:
                self._failure = error
            raise
        return self.position

    def _copy(self, pieces: Iterable[Piece], name: str, base: int) -> tuple[Commit, AppendOnlyFile]:
        new = AppendOnlyFile.write_new(self._disk, name, self.path, base)
        top = count = 0
        packing = Packing()
        for piece in pieces:
            at, end = piece.begin, piece.begin + len(piece)
            count += len(piece)
            while at < end:
                items: list[bytes] = []
                got = self._ahead.some(items, piece.source, piece.extents, at, end)
                if not got:
                    raise self._damaged(Piece(piece.source, piece.extents, 0, at))
                packing.add_many(items)
                at += got
                if packing.nbytes > session.BUFFER_BYTES:
                    top, packing = new.append_back(packing, top), Packing()
        if packing.count:
            top = new.append_back(packing, top)
        return new.append_commit(0, 0, top, count), new

    def overhead(self) -> Overhead:
        """Return the size of the file, and how many of its bytes are items.

        Items that were taken count until a compaction; items only in memory do not count.
        """
        with self._lock:
            self._check_readable()
            return Overhead(self._file.size, self._file.item_bytes)

    @session.Ends._alone
    def close(self) -> None:
        """Close without a flush, and release the lock; a second call does nothing."""
        self._closed = True
        try:
            self._file.close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._owner is not None and self._forks == lineage.forks:
            self._owner.release()
