"""Writes the golden files that are not beside this script.

A format that gets a new version gets new files, and those of the older ones stay.

python tests/golden/durable/make.py
"""

from __future__ import annotations

from pathlib import Path

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import Disk
from shmring.durable.journal.log import ENTRY, JournalLog
from shmring.durable.queues import transaction_log

HERE = Path(__file__).resolve().parent


def persistent() -> None:
    """Items in the log and in a data file, two of them taken; the log was not trimmed."""
    transaction_log._CHUNK = 64
    q = PersistentQueue(HERE / "persistent", log_reserve=64, file_size=20_000)
    with q.session() as s:
        for item in (b"first", b"", bytes(40_000), b"second"):
            s.enqueue(item)
        s.flush()
        assert s.dequeue() == b"first"
        s.flush()
        s.enqueue(b"last")
        assert s.dequeue() == b""
        s.flush()
        s.enqueue(b"never flushed")
    q.files.close(None)  # leave the files as a process that dies does


def append_only() -> None:
    """Three flushes; the middle one's position is 'a' and 'b' less 'a'."""
    with AppendOnlyQueue(HERE / "append_only") as q:
        for item in (b"a", b"b"):
            q.enqueue(item)
        q.flush()
        q.dequeue()
        position = q.flush()
        q.enqueue(b"c")
        q.flush()
    (HERE / "append_only.position").write_text(f"{position}\n")


# CHANGE: edit this for a new option of a journal
def journal() -> None:
    """Two segments: an aborted claim, a message of two slots, an end marker."""
    log = JournalLog(
        Disk(), str(HERE / "journal"), uuid=bytes(range(16)), schema=b"schema", segment_bytes=1000
    )
    entries = [ENTRY.pack(1000, 0, 5, 0, 0), ENTRY.pack(2000, 2, 400, 7, 4)]
    slots = b"first".ljust(600) + b"    " + b"x" * 400
    log.append(10, 14, b"".join(entries), [slots.ljust(1200)], 10 * 300)
    log.sync()
    log.append(14, 15, ENTRY.pack(3000, 0, 0, 2, 0), [bytes(300)], 14 * 300)
    log.sync()
    log.close()


if __name__ == "__main__":
    if not (HERE / "persistent").exists():
        persistent()
    if not (HERE / "append_only").exists():
        append_only()
    if not (HERE / "journal").exists():
        journal()
