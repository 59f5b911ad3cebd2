"""push(durable=True): an exclusive consumer of the branch "journal" stands for the disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import shmring


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_branch_with_the_number_of_a_dropped_journal_makes_nothing_durable(name, child, until):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.producer() as out:
            try:
                print("durable", out.push(b"x", durable=True))
            except shmring.errors.NotDurable as error:
                print(error)
    """
    with shmring.create(name, slots=1024, temporary=True) as ring:
        journal = ring.consumer("journal", exclusive=True)
        (number,) = [branch["id"] for branch in ring.branches()]
        writer = child(code, name)
        with journal.lease(timeout=120):
            os.kill(writer.pid, signal.SIGSTOP)
            until(lambda: is_stopped(writer.pid))
            ring.drop_branch("journal")
        journal.close()
        with ring.consumer("another", start="latest"):
            assert [branch["id"] for branch in ring.branches()] == [number]
            os.kill(writer.pid, signal.SIGCONT)
            assert "journal's branch was dropped" in writer.end()


def test_ring_closed_while_a_large_durable_message_is_copied_is_said_to_be_closed(name, child):
    code = """
        import sys, threading, shmring
        data = bytes(15_000_000)
        for _ in range(10):
            ring = shmring.attach(sys.argv[1])
            out = ring.producer()
            onlooker = shmring.attach(sys.argv[1], read_only=True)
            begun = onlooker.claimed
            def close():
                while onlooker.claimed == begun:
                    pass
                ring.close()
            closing = threading.Thread(target=close)
            closing.start()
            try:
                out.push(data, durable=True)
            except (shmring.Closed, shmring.errors.NotDurable):
                print("closed")
            closing.join()
            onlooker.close()
    """
    with (
        shmring.create(name, temporary=True) as ring,
        ring.consumer("journal", exclusive=True, drop_oldest=True),
    ):
        assert child(code, name).end() == "closed\n" * 10


def test_consumers_of_a_branch_with_the_journals_name_are_no_journal(ring, tmp_path):
    with ring.producer() as out, ring.consumer("journal") as inp:
        with pytest.raises(shmring.errors.BranchNotFound, match="has no journal"):
            out.push(b"x", durable=True)
        with pytest.raises(shmring.errors.BranchNotFound, match="has no journal"):
            out.push_many([b"x"], durable=True)
        assert ring.claimed == 0
        out.push(b"x")
        inp.pop()
        with pytest.raises(shmring.errors.BranchNotFound, match="has no journal"):
            out.wait_durable(0)
        with pytest.raises(shmring.errors.SecondConsumer, match="others than journals"):
            ring.journal(tmp_path)
