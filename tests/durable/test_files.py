"""The door to the real disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from closed_streams import LOG

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import OsDisk

MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [MIB, 0, 1],
        [1, MIB, MIB - 1, 2 * MIB + 1],
        [5 * MIB + 7],
        [3] * 5000,
        [700] * 3000,
        [MIB // 1024] * 2049,
    ],
)
def test_a_write_arrives_whole_however_it_is_divided(sizes: list[int], tmp_path: Path) -> None:
    parts = [random.Random(i).randbytes(size) for i, size in enumerate(sizes)]
    file = OsDisk().open(str(tmp_path / "file"), create=True)
    file.write(parts, 5)
    assert file.read(8 * MIB, 0) == (bytes(5) + b"".join(parts) if any(sizes) else b"")
    file.close()


LOGGING = f"""{LOG}
    from shmring.durable import AppendOnlyQueue, PersistentQueue
    os.closerange(0, 3)
    with PersistentQueue(sys.argv[1]) as queue, AppendOnlyQueue(sys.argv[2]) as stack:
        with queue.session() as session:
            session.enqueue_many([b"a", b"b" * 5000])
            session.flush()
        stack.enqueue(b"c")
        stack.flush()
        log()
    os._exit(0)
"""


def test_what_is_written_to_closed_standard_streams_is_not_written_into_a_queue(
    child: Callable[..., Any], tmp_path: Path
) -> None:
    child(LOGGING, tmp_path / "queue", tmp_path / "stack").end()
    with PersistentQueue(tmp_path / "queue") as queue, queue.session() as session:
        assert session.dequeue_many(3) == [b"a", b"b" * 5000]
    with AppendOnlyQueue(tmp_path / "stack") as stack:
        assert stack.dequeue() == b"c"
