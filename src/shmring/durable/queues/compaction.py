"""Rewriting the transaction log of a persistent queue so that it holds only what is needed."""

from __future__ import annotations

from shmring.durable.base.files import Disk
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.session import Item
from shmring.durable.queues.transaction_log import Body, TransactionLog
from shmring.errors import NoSpace

__all__ = ["snapshot"]

_BLOCK_BYTES = 1 << 20
_SLACK_BYTES = 128 << 10
_Place = tuple[Item, DataFile, int]


def snapshot(
    disk: Disk,
    log: TransactionLog,
    files: DataFiles,
    live: list[Item],
    *,
    next_item: int,
    reserve: int,
) -> tuple[TransactionLog, list[_Place]]:
    """Replace the log by one transaction that puts the live items, in one step, durably.

    Items that stand in the log are copied to a data file first.

    Parameters
    ----------
    live : the items in the queue or in a session's hands, by number

    Returns
    -------
    the new log, and the new places of the items that moved; the old log is still open

    Raises
    ------
    NoSpace : the old log stands
    """
    moved: list[_Place] = []
    try:
        _move(log, files, live, moved)
        body = _body(live, {item.number: (file, offset) for item, file, offset in moved})
        _replace(disk, log, body, next_item, reserve)
        new = TransactionLog(disk, log.path, reserve=reserve)
        new.regain_reserve()
        return new, moved
    except BaseException:
        for _, file, _ in moved:
            files.release(file, 1)
        raise


def _replace(disk: Disk, log: TransactionLog, body: Body, next_item: int, reserve: int) -> None:
    def write(reserve: int) -> None:
        TransactionLog.write_new(
            disk,
            log.path,
            body,
            number=log.next_number,
            next_item=next_item,
            reserve=reserve,
            version=log.version,
        )

    try:
        write(reserve)
    except NoSpace:
        if log.allocated < body.length + reserve + _SLACK_BYTES:
            raise
        # The old log's end frees more than the reserve that could not be written beside it.
        write(0)


def _move(log: TransactionLog, files: DataFiles, live: list[Item], moved: list[_Place]) -> None:
    block: list[Item] = []
    nbytes = 0
    for item in live:
        if item.file is None:
            block.append(item)
            nbytes += item.length
            if nbytes > _BLOCK_BYTES:
                _move_block(log, files, block, moved)
                block, nbytes = [], 0
    if block:
        _move_block(log, files, block, moved)
    files.sync({file for _, file, _ in moved})


def _move_block(
    log: TransactionLog, files: DataFiles, block: list[Item], moved: list[_Place]
) -> None:
    parts = [log.read(item.length, item.offset) for item in block]
    file, offset = files.write(parts, len(block))
    for item in block:
        moved.append((item, file, offset))
        offset += item.length


def _body(live: list[Item], places: dict[int, tuple[DataFile, int]]) -> Body:
    body = Body()
    table: list[int] = []
    first = start = end = 0
    current: DataFile | None = None
    for item in live:
        file, offset = places.get(item.number) or (item.file, item.offset)
        count = len(table) // 2
        if file is not current or offset != end or item.number != first + count:
            if current is not None:
                body.put(first, current.number, start, table)
            current, first, start, table = file, item.number, offset, []
        table += (item.length, item.crc)
        end = offset + item.length
    if current is not None:
        body.put(first, current.number, start, table)
    return body
