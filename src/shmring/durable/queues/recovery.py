"""Opening a persistent queue: from the files to the items in the queue.

transaction_log.py defines which transactions are valid.  Opening makes each of its decisions
durable before anything acts on it; after a crash, the next opening decides the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shmring._shmring import places_of, runs_of
from shmring.durable.base.files import Disk, replace_file, set_aside
from shmring.durable.base.frames import Frame
from shmring.durable.base.items import PLACE, TABLE_ENTRY_BYTES, ReadAhead
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
# Items of a data file that was not synced are checked in groups of so many bytes.
_CHECKED_ITEMS = 1024


@dataclass(slots=True)
class Recovered:
    """The state with which a queue starts."""

    files: DataFiles
    log: TransactionLog
    line: Line
    next_item: int
    recovered: str | None
    rewrite: bool


@dataclass(slots=True)
class _Findings:
    notes: list[str] = field(default_factory=list[str])
    damaged: bool = False


def recover(disk: Disk, path: str, *, cut: bool, file_size: int, log_reserve: int) -> Recovered:
    """Read the queue in ``path``, and repair it as far as ``cut`` allows.

    Parameters
    ----------
    cut : keep everything before the damage, instead of refusing to open

    Raises
    ------
    Damaged : there is other damage than a torn end; nothing was changed
    """
    names = disk.names(path)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(os.path.join(path, name))
    files = DataFiles(disk, path, maximum=file_size)
    findings = _Findings()
    log = _open_log(disk, path, LOG_NAME in names, files, findings, cut, log_reserve)
    try:
        line, next_item = _replay(disk, log, files, findings, cut)
        _attach(line, files, findings, cut)
        # A killed owner may have left the files, and their names, in memory only.
        disk.sync_directory(path)
        log.sync()
        if log.unchecked:
            files.force_sync()
            log.append(Body(), deferred=False, may_use_reserve=True)
            log.sync()
        files.settle(keep_broken=findings.damaged)
    except BaseException:
        log.close()
        raise
    log.forget_raw()
    recovered = "; ".join(findings.notes) or None
    return Recovered(files, log, line, next_item, recovered, findings.damaged)


def _open_log(
    disk: Disk,
    path: str,
    exists: bool,
    files: DataFiles,
    findings: _Findings,
    cut: bool,
    reserve: int,
) -> TransactionLog:
    log_path = os.path.join(path, LOG_NAME)
    if exists:
        try:
            return TransactionLog(disk, log_path, reserve=reserve)
        except Damaged as error:
            if not cut:
                raise
            findings.notes.append(f"{error}; every item was set aside")
        set_aside(disk, log_path, copy=True)
        findings.damaged = True
    elif files.numbers():
        text = f"{log_path} is missing, but data files are there"
        if not cut:
            raise Damaged(f'{text}; open with damage="cut" to set them aside as *.broken')
        findings.notes.append(f"{text}; they were set aside")
        findings.damaged = True

    def make(name: str) -> TransactionLog:
        return TransactionLog.write_new(
            disk, name, log_path, Body(), number=1, next_item=1, reserve=reserve
        )

    return replace_file(disk, log_path, make)


def _replay(
    disk: Disk, log: TransactionLog, files: DataFiles, findings: _Findings, cut: bool
) -> tuple[Line, int]:
    if log.damage is not None and not cut:
        raise Damaged(log.damage)
    line = Line()
    next_item = log.next_item
    for frame in log.frames:
        operations = parse_operations(frame, log.raw[frame.payload : frame.payload_end])
        if frame.flags & DEFERRED and frame.first > log.synced:
            problem = _unwritten(operations, files)
            if problem is not None:
                findings.notes.append(
                    f"{log.path}: transaction {frame.first} at byte {frame.place} and those "
                    f"after it were dropped: they had not been synced ({problem})"
                )
                log.cut(frame.place, frame.first)
                return line, next_item
        try:
            next_item = _apply(operations, log, files, line, next_item)
        except Damaged as error:
            where = f"{log.path}: transaction {frame.first} at byte {frame.place}: {error}"
            if not cut:
                raise Damaged(where) from error
            _cut_damage(disk, log, frame, where, findings)
            return line, next_item
    if log.damage is not None:
        _cut_damage(disk, log, None, log.damage, findings)
    elif log.torn is not None:
        findings.notes.append(f"{log.torn}; it was dropped")
        log.cut(log.end, log.next_number)
    return line, next_item


def _cut_damage(
    disk: Disk, log: TransactionLog, frame: Frame | None, text: str, findings: _Findings
) -> None:
    set_aside(disk, log.path, copy=True)
    if frame is None:
        log.cut(log.end, log.next_number)
    else:
        log.cut(frame.place, frame.first)
    findings.notes.append(f"{text}; it was cut there")
    findings.damaged = True


def _unwritten(operations: list[Put | Take], files: DataFiles) -> str | None:
    """Describe damage in the items of a transaction that was not synced; None without damage."""
    ahead = ReadAhead(DataFile.read)
    for operation in operations:
        if not isinstance(operation, Put) or operation.file is None:
            continue
        try:
            file = files.find(operation.file)
        except Damaged as error:
            return str(error)
        places = places_of(operation.table, operation.offset)
        count = len(places) // PLACE.size
        for begin in range(0, count, _CHECKED_ITEMS):
            end = min(count, begin + _CHECKED_ITEMS)
            good = begin + ahead.many([], file, places, begin, end)
            if good < end:
                offset, length, _ = PLACE.unpack_from(places, good * PLACE.size)
                return f"{file.path}: the {length} bytes at {offset} do not match their checksum"
    return None


def _apply(
    operations: list[Put | Take], log: TransactionLog, files: DataFiles, line: Line, next_item: int
) -> int:
    for operation in operations:
        if isinstance(operation, Put):
            source: Source = log if operation.file is None else files.expect(operation.file)
            count = len(operation.table) // TABLE_ENTRY_BYTES
            if count:
                places = places_of(operation.table, operation.offset)
                line.append(Run(operation.first, source, places))
            next_item = max(next_item, operation.first + count)
            continue
        missing = line.remove(operation.first, operation.count)
        if missing is not None:
            raise Damaged(f"item {missing} is taken, but is not in the queue")
    return next_item


def _attach(line: Line, files: DataFiles, findings: _Findings, cut: bool) -> None:
    """Count the items of each data file, and check that the file has them."""
    sizes: dict[DataFile, int] = {}
    for span in list(line):
        file = span.run.source
        if not isinstance(file, DataFile):
            continue
        if file not in sizes:
            sizes[file] = file.size() if files.has(file) else -1
        places, begin, end = span.run.places, span.begin, span.end
        if max(behind for _, behind, _ in runs_of(places, begin, end)) > sizes[file]:
            for number, text in _lacking(span, file, sizes[file]):
                if not cut:
                    raise Damaged(text)
                findings.notes.append(f"item {number} was dropped: {text}")
                findings.damaged = True
                line.remove(number, 1)
    for span in line:
        if isinstance(span.run.source, DataFile):
            span.run.source.references += len(span)


def _lacking(span: Span, file: DataFile, size: int) -> list[tuple[int, str]]:
    """The numbers of the items beyond the end of a file, each with a text."""
    found: list[tuple[int, str]] = []
    for index in range(span.begin, span.end):
        number = span.run.first + index
        offset, length, _ = PLACE.unpack_from(span.run.places, index * PLACE.size)
        if size < 0:
            found.append((number, f"the data file {file.path} is missing"))
        elif offset + length > size:
            found.append(
                (
                    number,
                    f"{file.path} is {size} bytes long, but item {number} stands at bytes "
                    f"{offset} to {offset + length}",
                )
            )
    return found
