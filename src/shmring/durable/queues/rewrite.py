"""Rewriting the log of a persistent queue as one transaction, with the living items alone."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from shmring._shmring import places_of, runs_of
from shmring.durable.base.files import Buffer, Disk, replace_file
from shmring.durable.base.items import PLACE, TABLE_ENTRY_BYTES
from shmring.durable.queues.data_files import DataFile, DataFiles
from shmring.durable.queues.line import Run, Span
from shmring.durable.queues.transaction_log import Body, TransactionLog


class Moved(NamedTuple):
    """A run that stood in the log, and the new places of its living items."""

    run: Run
    file: DataFile
    places: bytearray
    items: int


def rewrite(
    disk: Disk, log: TransactionLog, files: DataFiles, live: list[Span], next_item: int
) -> tuple[TransactionLog, list[Moved]]:
    """Replace the log by one transaction that puts the live items, in one step, durably.

    Items that stand in the log are copied to a data file first.

    Parameters
    ----------
    live : the items in the queue or taken by sessions, by number

    Returns
    -------
    the new log, and what has moved
    """
    moved: list[Moved] = []

    def make(name: str) -> TransactionLog:
        try:
            for run, spans in groupby(live, key=lambda span: span.run):
                if run.source is log:
                    moved.append(_move(log, files, run, list(spans)))
            files.sync({each.file for each in moved})
            return log.write_anew(disk, name, _body(live, moved), next_item=next_item)
        except BaseException:
            # Only here: once the rename was tried, the log at the path may need what has moved.
            for each in moved:
                files.release(each.file, each.items)
            raise

    return replace_file(disk, log.path, make), moved


def _move(log: TransactionLog, files: DataFiles, run: Run, spans: list[Span]) -> Moved:
    """Copy the living items of a run to a data file, in one write."""
    parts: list[Buffer] = []
    tables: list[bytes] = []
    for span in spans:
        for offset, end, table in runs_of(run.places, span.begin, span.end):
            parts.append(log.read(end - offset, offset))
            tables.append(table)
    count = sum(map(len, spans))
    file, offset = files.write(parts, count)
    found = places_of(b"".join(tables), offset)
    places = bytearray(len(run.places))
    at = 0
    for span in spans:
        nbytes = len(span) * PLACE.size
        places[span.begin * PLACE.size : span.end * PLACE.size] = found[at : at + nbytes]
        at += nbytes
    return Moved(run, file, places, count)


def _body(live: list[Span], moved: list[Moved]) -> Body:
    body = Body()
    new = {id(each.run): each for each in moved}
    for span in live:
        run = span.run
        where = new.get(id(run))
        file = where.file if where is not None else run.source
        assert isinstance(file, DataFile)
        number = span.number
        places = where.places if where is not None else run.places
        for offset, _, table in runs_of(places, span.begin, span.end):
            body.put(number, file.number, offset, table)
            number += len(table) // TABLE_ENTRY_BYTES
    return body
