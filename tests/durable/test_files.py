"""The entry point to the real disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from closed_streams import LOG

from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base.files import Disk

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
    file = Disk().open(str(tmp_path / "file"), create=True)
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


LIMITED = """
    import resource, sys, threading
    import shmring
    from shmring.durable import AppendOnlyQueue, PersistentQueue, replay

    def limit(nbytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    def filled(enqueue, flush):
        for n in range(1000):
            enqueue(b"%d" % n + bytes(1000))
            try:
                flush()
            except shmring.NoSpace as error:
                assert "ulimit -f" in str(error), error
                return n

    path, size = sys.argv[1], int(sys.argv[3])
    with (
        PersistentQueue(path + "/p") as queue,
        queue.session() as session,
        AppendOnlyQueue(path + "/a") as stack,
    ):
        for ends in session, stack:
            limit(size)
            count = filled(ends.enqueue, ends.flush)
            limit(resource.RLIM_INFINITY)
            ends.flush()
            taken = ends.dequeue_many(2000)
            assert [int(item[:-1000]) for item in taken] == list(range(count + 1))
            ends.flush()
    with shmring.create(sys.argv[2], slots=1024, temporary=True) as ring, ring.producer() as out:
        limit(30_000)
        with ring.journal(path + "/j") as journal:
            for n in range(100):
                out.push(bytes(1000))
            while journal.error is None:
                assert journal.running
            assert "ulimit -f" in str(journal.error)
            limit(resource.RLIM_INFINITY)
            out.wait_durable(ring.claimed - 1)
            assert journal.error is None
        assert len(list(replay(path + "/j"))) == 100
"""


# A new transaction log has more than the smaller one: its limit comes where it need not grow.
@pytest.mark.parametrize("size", [50_000, 200_000])
def test_a_file_that_may_not_grow_is_a_full_disk_and_nothing_is_lost(
    child: Callable[..., Any], tmp_path: Path, name: str, size: int
) -> None:
    child(LIMITED, tmp_path, name, size).end()
