"""Opening a persistent queue: from what is on disk to the items in the queue.

The rules of validity stand in transaction_log.py.  Whatever opening decides is made durable
before anything acts on it, and a crash in the middle of it leaves the same decision to be taken
again.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

from shmring.durable.base.checksums import Checksum
from shmring.durable.base.files import Disk
from shmring.durable.queues.data_files import DataFiles
from shmring.durable.queues.session import Item
from shmring.durable.queues.transaction_log import (
    Body,
    Frame,
    Put,
    Take,
    TransactionLog,
    parse_operations,
)
from shmring.errors import Damaged

__all__ = ["LOG_NAME", "Recovered", "recover"]

LOG_NAME = "transaction.log"
# Where an item's bytes are: file number (None: the log), offset, length, crc.
_Place = tuple[int | None, int, int, int]


@dataclass(slots=True)
class Recovered:
    """What a queue starts from."""

    files: DataFiles
    log: TransactionLog
    items: deque[Item]
    next_item: int
    recovered: str | None
    rewrite: bool


@dataclass(slots=True)
class _Findings:
    notes: list[str] = field(default_factory=list[str])
    damaged: bool = False


def recover(disk: Disk, path: str, *, cut: bool, file_size: int, log_reserve: int) -> Recovered:
    """Read the queue in ``path``, and repair it as far as that is allowed.

    Parameters
    ----------
    cut : keep what stands before damage, instead of refusing to open

    Raises
    ------
    Damaged : something other than a torn end is wrong; nothing was changed
    """
    names = disk.names(path)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(os.path.join(path, name))
    files = DataFiles(disk, path, maximum=file_size)
    findings = _Findings()
    log = _open_log(disk, path, LOG_NAME in names, files, findings, cut, log_reserve)
    try:
        places, next_item = _replay(disk, log, files, findings, cut)
        items = _attach(places, files, findings, cut)
        # A killed owner may have left the names, and what is behind them, in memory only.
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
    return Recovered(files, log, items, next_item, recovered, findings.damaged)


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
        _keep_copy(disk, log_path)
        findings.damaged = True
    elif files.numbers():
        text = f"{log_path} is missing, but data files are there"
        if not cut:
            raise Damaged(f'{text}; open with damage="cut" to set them aside as *.broken')
        findings.notes.append(f"{text}; they were set aside")
        findings.damaged = True
    TransactionLog.write_new(disk, log_path, Body(), number=1, next_item=1, reserve=reserve)
    return TransactionLog(disk, log_path, reserve=reserve)


def _replay(
    disk: Disk, log: TransactionLog, files: DataFiles, findings: _Findings, cut: bool
) -> tuple[dict[int, _Place], int]:
    if log.damage is not None and not cut:
        raise Damaged(log.damage)
    places: dict[int, _Place] = {}
    next_item = log.next_item
    for frame in log.frames:
        operations = parse_operations(frame, log.raw[frame.body : frame.end])
        if frame.deferred and frame.number > log.synced:
            problem = _unwritten(operations, files, log.checksum)
            if problem is not None:
                findings.notes.append(
                    f"{log.path}: transaction {frame.number} at byte {frame.position} and those "
                    f"after it were dropped: they had not been synced ({problem})"
                )
                log.cut(frame.position, frame.number)
                return places, next_item
        try:
            next_item = _apply(operations, places, next_item)
        except Damaged as error:
            where = f"{log.path}: transaction {frame.number} at byte {frame.position}: {error}"
            if not cut:
                raise Damaged(where) from error
            _cut_damage(disk, log, frame, where, findings)
            return places, next_item
    if log.damage is not None:
        _cut_damage(disk, log, None, log.damage, findings)
    elif log.torn is not None:
        findings.notes.append(f"{log.torn}; it was dropped")
        log.cut(log.end, log.next_number)
    return places, next_item


def _cut_damage(
    disk: Disk, log: TransactionLog, frame: Frame | None, text: str, findings: _Findings
) -> None:
    _keep_copy(disk, log.path)
    if frame is None:
        log.cut(log.end, log.next_number)
    else:
        log.cut(frame.position, frame.number)
    findings.notes.append(f"{text}; it was cut there")
    findings.damaged = True


def _unwritten(operations: list[Put | Take], files: DataFiles, checksum: Checksum) -> str | None:
    for operation in operations:
        if not isinstance(operation, Put) or operation.file is None:
            continue
        try:
            file = files.find(operation.file)
        except Damaged as error:
            return str(error)
        for _, offset, length, crc in operation.items():
            problem = file.verify(length, crc, offset, checksum)
            if problem is not None:
                return problem
    return None


def _apply(operations: list[Put | Take], places: dict[int, _Place], next_item: int) -> int:
    for operation in operations:
        if isinstance(operation, Put):
            for number, offset, length, crc in operation.items():
                places[number] = (operation.file, offset, length, crc)
                next_item = max(next_item, number + 1)
            continue
        for number in range(operation.first, operation.first + operation.count):
            if places.pop(number, None) is None:
                raise Damaged(f"item {number} is taken, but is not in the queue")
    return next_item


def _attach(
    places: dict[int, _Place], files: DataFiles, findings: _Findings, cut: bool
) -> deque[Item]:
    sizes: dict[int, int] = {}
    items: deque[Item] = deque()
    for number, (file_number, offset, length, crc) in sorted(places.items()):
        if file_number is None:
            items.append(Item(number, None, offset, length, crc))
            continue
        try:
            file = files.find(file_number)
            if file_number not in sizes:
                sizes[file_number] = file.size()
            if sizes[file_number] < offset + length:
                raise Damaged(
                    f"{file.path} is {sizes[file_number]} bytes long, but item {number} stands "
                    f"at bytes {offset} to {offset + length}"
                )
        except Damaged as error:
            if not cut:
                raise
            findings.notes.append(f"item {number} was dropped: {error}")
            findings.damaged = True
            continue
        file.references += 1
        items.append(Item(number, file, offset, length, crc))
    return items


def _keep_copy(disk: Disk, path: str) -> None:
    directory, name = os.path.split(path)
    names = disk.names(directory)
    copy = f"{name}.broken"
    count = 1
    while copy in names:
        count += 1
        copy = f"{name}.{count}.broken"
    source = disk.open(path, write=False)
    target = disk.open(os.path.join(directory, copy), create=True)
    try:
        target.write([source.read(source.size(), 0)], 0)
        target.sync()
        disk.sync_directory(directory)
    finally:
        source.close()
        target.close()
