"""Files of every version can be read for ever; tests/golden/durable/make.py wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path

from shmring.durable import AppendOnlyQueue, PersistentQueue, replay, verify
from shmring.durable.base.files import Disk
from shmring.durable.journal.log import JournalLog, Segment

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "durable"


def test_a_persistent_queue(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "persistent", tmp_path / "q")
    items = [bytes(40_000), b"second", b"last"]
    for _ in range(2):  # the golden file, then the file that opening has written
        with PersistentQueue(tmp_path / "q") as q:
            assert q.recovered is None
            with q.session() as s:
                assert list(iter(s.dequeue, None)) == items
                s.rollback()
                s.enqueue(b"more")
                s.flush()
        items.append(b"more")


def test_an_append_only_queue_and_its_snapshot(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "append_only", tmp_path / "q")
    position = int((GOLDEN / "append_only.position").read_text())
    with AppendOnlyQueue(tmp_path / "q") as q:
        assert len(q) == 2
        with AppendOnlyQueue(tmp_path / "q", position=position) as view:
            assert view.dequeue_many(9) == [b"b"]
        q.enqueue(b"d")
        q.compact()
    with AppendOnlyQueue(tmp_path / "q") as q:
        assert q.dequeue_many(9) == [b"b", b"c", b"d"]


def test_a_journal(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "journal", tmp_path / "j")
    found = [(m.message_id, m.time, m.kind, bytes(m.data)) for m in replay(tmp_path / "j")]
    assert found == [(10, 1000, 0, b"first"), (12, 2000, 7, b"x" * 400), (14, 3000, 2, b"")]
    assert verify(tmp_path / "j").segments == 2
    segment = Segment(Disk(), str(tmp_path / "j" / f"{10:020d}.journal"))
    assert (segment.uuid, segment.schema) == (bytes(range(16)), b"schema")
    segment.close()
    log = JournalLog(
        Disk(), str(tmp_path / "j"), uuid=bytes(range(16)), schema=b"", segment_bytes=1000
    )
    assert (log.end, log.torn, log.same_ring) == (15, None, True)
    log.close()
