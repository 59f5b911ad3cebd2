"""Reads a persistent queue's files into memory on opening, and writes a shorter log.

transaction_log.py defines which transactions are valid.  Opening makes each decision
(to drop a transaction, for example) durable before it acts on the decision, so that an opening
after a crash decides the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby

from shmring._shmring import extents_of, runs_of
from shmring.durable.base.files import Buffer, Disk, replace_file, set_aside
from shmring.durable.base.items import EXTENT, TABLE_ENTRY_BYTES, ReadAhead
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.line import Line, Run, Source, Span
from shmring.durable.queues.transaction_log import (
    DEFERRED,
    Body,
    Put,
    Take,
    TransactionLog,
    parse_operations,
)
from shmring.errors import Damaged

LOG_NAME = "transaction.log"
# Number of items that one call checks, when opening compares unsynced items with their checksums.
_CHECKED_ITEMS = 1024


class Recovery:
    """Reads the queue in ``path``, and repairs it.

    With `cut`, keep everything before the damage.  Without it, raise Damaged, and change nothing,
    if the files have other damage than a torn end.
    """

    def __init__(self, disk: Disk, path: str, *, cut: bool, file_size: int, reserve: int) -> None:
        exists = LOG_NAME in disk.names(path)
        disk.remove(os.path.join(path, f"{LOG_NAME}.tmp"))
        self.notes: list[str] = []  # texts about the data that was dropped
        self.damaged = False  # whether more than a torn end was dropped
        self.line = Line()
        self._disk = disk
        self._cut = cut
        self.files = DataFiles(disk, path, maximum=file_size)
        self.log = log = self._open_log(os.path.join(path, LOG_NAME), exists, reserve)
        self.next_item = log.next_item
        try:
            self._replay()
            self._attach()
            # Sync: a killed owner may have left the files, and their names, in memory only.
            disk.sync_directory(path)
            log.sync()
            if log.unchecked:
                existing = self.files.existing()
                for file in existing:
                    file.distrust()
                self.files.sync(existing)
                log.witness()
            self.files.settle(keep_broken=self.damaged)
        except BaseException:
            self.files.close(None)
            log.close()
            raise
        log.forget_raw()

    def _open_log(self, path: str, exists: bool, reserve: int) -> TransactionLog:
        if exists:
            try:
                return TransactionLog(self._disk, path, reserve=reserve)
            except Damaged as error:
                if not self._cut:
                    raise
                self.notes.append(f"{error}; every item was set aside")
            set_aside(self._disk, path, copy=True)
            self.damaged = True
        elif self.files.existing():
            text = f"{path} is missing, but data files are there"
            if not self._cut:
                raise Damaged(f'{text}; open with damage="cut" to set them aside as *.broken')
            self.notes.append(f"{text}; they were set aside")
            self.damaged = True

        def make(name: str) -> TransactionLog:
            return TransactionLog.write_new(
                self._disk, name, path, Body(), number=1, next_item=1, reserve=reserve
            )

        return replace_file(self._disk, path, make)

    def _replay(self) -> None:
        log = self.log
        if log.damage is not None and not self._cut:
            raise Damaged(log.damage)
        for frame in log.frames:
            operations = parse_operations(frame, log.raw[frame.payload : frame.payload_end])
            if frame.flags & DEFERRED and frame.first > log.synced:
                problem = _unwritten(operations, self.files)
                if problem is not None:
                    self.notes.append(
                        f"{log.path}: transaction {frame.first} at byte {frame.offset} and those "
                        f"after it were dropped: they had not been synced ({problem})"
                    )
                    log.cut(frame.offset, frame.first)
                    return
            try:
                self._apply(operations)
            except Damaged as error:
                where = f"{log.path}: transaction {frame.first} at byte {frame.offset}: {error}"
                if not self._cut:
                    raise Damaged(where) from error
                self._cut_damage(where, frame.offset, frame.first)
                return
        if log.damage is not None:
            self._cut_damage(log.damage, log.end, log.next_number)
        elif log.torn is not None:
            self.notes.append(f"{log.torn}; it was dropped")
            log.cut(log.end, log.next_number)

    def _cut_damage(self, text: str, offset: int, number: int) -> None:
        set_aside(self._disk, self.log.path, copy=True)
        self.log.cut(offset, number)
        self.notes.append(f"{text}; it was cut there")
        self.damaged = True

    def _apply(self, operations: list[Put | Take]) -> None:
        for operation in operations:
            if isinstance(operation, Put):
                file = operation.file
                source: Source = self.log if file is None else self.files.expect(file)
                count = len(operation.table) // TABLE_ENTRY_BYTES
                if count:
                    extents = extents_of(operation.table, operation.offset)
                    self.line.append(Run(operation.first, source, extents))
                self.next_item = max(self.next_item, operation.first + count)
                continue
            missing = self.line.remove(operation.first, operation.count)
            if missing is not None:
                raise Damaged(f"item {missing} is taken, but is not in the queue")

    def _attach(self) -> None:
        """Count the items of each data file, and check that the file is long enough for them."""
        sizes: dict[DataFile, int] = {}
        for span in list(self.line):
            file = span.run.source
            if not isinstance(file, DataFile):
                continue
            if file not in sizes:
                sizes[file] = file.size() if file.exists else -1
            extents, begin, end = span.run.extents, span.begin, span.end
            if max(behind for _, behind, _ in runs_of(extents, begin, end)) > sizes[file]:
                for number, text in _lacking(span, file, sizes[file]):
                    if not self._cut:
                        raise Damaged(text)
                    self.notes.append(f"item {number} was dropped: {text}")
                    self.damaged = True
                    self.line.remove(number, 1)
        for span in self.line:
            if isinstance(span.run.source, DataFile):
                span.run.source.references += len(span)


def _unwritten(operations: list[Put | Take], files: DataFiles) -> str | None:
    """Describe damage in the items of a transaction that was not synced; None without damage."""
    ahead = ReadAhead()
    for operation in operations:
        if not isinstance(operation, Put) or operation.file is None:
            continue
        file = files.expect(operation.file)
        if not file.exists:
            return f"the data file {file.path} is missing"
        extents = extents_of(operation.table, operation.offset)
        count = len(extents) // EXTENT.size
        for begin in range(0, count, _CHECKED_ITEMS):
            end = min(count, begin + _CHECKED_ITEMS)
            good = begin + ahead.many([], file, extents, begin, end)
            if good < end:
                offset, length, _ = EXTENT.unpack_from(extents, good * EXTENT.size)
                return f"{file.path}: the {length} bytes at {offset} do not match their checksum"
    return None


def _lacking(span: Span, file: DataFile, size: int) -> Iterator[tuple[int, str]]:
    """Yield the number of each item that lies beyond the end of its file, with a text."""
    for index in range(span.begin, span.end):
        number = span.run.first + index
        offset, length, _ = EXTENT.unpack_from(span.run.extents, index * EXTENT.size)
        if size < 0:
            yield number, f"the data file {file.path} is missing"
        elif offset + length > size:
            text = (
                f"{file.path} is {size} bytes long, but item {number} stands at bytes {offset} to "
                f"{offset + length}"
            )
            yield number, text


# --- a shorter log --------------------------------------------------------------------------------


# Runs that were moved out of the log: the data file, and the new extents of the living items.
Moved = dict[Run, tuple[DataFile, bytearray]]


def rewrite(
    disk: Disk, log: TransactionLog, files: DataFiles, live: list[Span], next_item: int
) -> tuple[TransactionLog, Moved]:
    """Replace the log, in one durable step, by a log whose only transaction adds the live items.

    Return the new log, and the runs that have moved: items that stand in the log are copied to a
    data file first. `live` are the items in the queue or taken by sessions, in the order of their
    numbers.
    """
    moved: Moved = {}

    def make(name: str) -> TransactionLog:
        try:
            for run, spans in groupby(live, key=lambda span: span.run):
                if run.source is log:
                    moved[run] = _move(log, files, run, list(spans))
            files.sync({file for file, _ in moved.values()})
            return TransactionLog.write_new(
                disk,
                name,
                log.path,
                _body(live, moved),
                number=log.next_number,
                next_item=next_item,
                reserve=log.reserve,
                replaces=log.allocated,
            )
        except BaseException:
            # Release the copies only if making the new log fails. If the rename fails later, the
            # log at the path may be the new log, which needs the copies.
            for run, (file, _) in moved.items():
                files.release(file, sum(len(span) for span in live if span.run is run))
            raise

    return replace_file(disk, log.path, make), moved


def _move(
    log: TransactionLog, files: DataFiles, run: Run, spans: list[Span]
) -> tuple[DataFile, bytearray]:
    """Copy the living items of a run to a data file, in one write."""
    parts: list[Buffer] = []
    tables: list[bytes] = []
    for span in spans:
        for offset, end, table in runs_of(run.extents, span.begin, span.end):
            parts.append(log.read(end - offset, offset))
            tables.append(table)
    file, offset = files.write(parts, sum(map(len, spans)))
    found = extents_of(b"".join(tables), offset)
    extents = bytearray(len(run.extents))
    at = 0
    for span in spans:
        nbytes = len(span) * EXTENT.size
        extents[span.begin * EXTENT.size : span.end * EXTENT.size] = found[at : at + nbytes]
        at += nbytes
    return file, extents


def _body(live: list[Span], moved: Moved) -> Body:
    body = Body()
    for span in live:
        file, extents = moved.get(span.run, (span.run.source, span.run.extents))
        assert isinstance(file, DataFile)
        number = span.number
        for offset, _, table in runs_of(extents, span.begin, span.end):
            body.put(number, file.number, offset, table)
            number += len(table) // TABLE_ENTRY_BYTES
    return body
