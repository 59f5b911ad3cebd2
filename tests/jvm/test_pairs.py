"""C, Python and Java: each as the producer and as the consumer of each other, bytes and Arrow."""

from __future__ import annotations

import gzip
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from java_programs import check

import shmring

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "ring"
MESSAGES = 3000
BATCHES = 50

Command = Callable[[str, str, str, object, int], list[str]]

spec = importlib.util.spec_from_file_location("jvm_peer", HERE / "peer.py")
assert spec is not None
assert spec.loader is not None
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)


@pytest.fixture
def command(java, c_peer):
    """The command of one side of a pair; C knows of bytes alone."""

    def command(language, act, kind, ring, count):
        if language == "java":
            return java("Peer", act, kind, ring, count)
        if language == "c":
            path = ring if isinstance(ring, Path) else f"/dev/shm/shmring.{ring}"
            return [str(c_peer), act, str(path), str(count)]
        return [sys.executable, str(HERE / "peer.py"), act, kind, str(ring), str(count)]

    return command


# Each language to each other one.
@pytest.mark.parametrize(
    ("producer", "consumer", "kind"),
    [
        ("c", "python", "bytes"),
        ("python", "java", "bytes"),
        ("java", "c", "bytes"),
        ("python", "java", "arrow"),
        ("java", "python", "arrow"),
    ],
)
def test_what_one_language_writes_each_other_reads(name, command, producer, consumer, kind):
    schema, count = (peer.SCHEMA, BATCHES) if kind == "arrow" else (None, MESSAGES)
    # Smaller than what goes through it: both sides wait for each other.
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        ring.subscribe("pair", start="earliest")
        peers = [
            subprocess.Popen(command(language, act, kind, name, count), stderr=subprocess.PIPE)
            for language, act in ((producer, "produce"), (consumer, "consume"))
        ]
        for process in peers:
            try:
                _, errors = process.communicate(timeout=600)
            finally:
                process.kill()
            assert process.returncode == 0, errors.decode()
        assert ring.branches()[0]["position"] == ring.claimed


# tests/golden/ring/make.py wrote them.
@pytest.mark.parametrize(
    ("language", "kind"),
    [
        ("c", "bytes"),
        ("python", "bytes"),
        ("java", "bytes"),
        ("python", "arrow"),
        ("java", "arrow"),
    ],
)
def test_a_ring_file_of_layout_1_0_is_read(command, tmp_path, language, kind):
    ring = tmp_path / "ring"
    ring.write_bytes(gzip.decompress((GOLDEN / f"{kind}-1.0.ring.gz").read_bytes()))
    check(command(language, "consume", kind, ring, 500 if kind == "bytes" else 5))


def test_what_java_hands_back_is_delivered_again(name, java):
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("pair") as inp,
    ):
        out.push(b"one")
        check(java("Peer", "nack", "bytes", name, 3))
        with inp.lease(timeout=0) as lease:
            assert (lease.data, lease.redelivered) == (b"one", True)


def test_java_sets_aside_what_was_delivered_too_often(name, java):
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        shmring.create(f"{name}.dead", slots=1024, temporary=True) as dead,
        ring.producer() as out,
        dead.consumer("letters") as letters,
    ):
        ring.subscribe("pair", start="earliest")
        for data in b"bad", b"good", b"worse", b"best":
            out.push(data, kind=99)
        check(java("Peer", "aside", "bytes", name, 3))
        assert ring.branches()[0]["released"] == ring.claimed
        for data in b"bad", b"worse":
            with letters.lease(timeout=0) as letter:
                assert (letter.data, letter.kind) == (data, 99)
        assert len(dead.participants()) == 1  # this process, as a consumer


def test_a_close_ends_the_waits_of_other_threads(name, java):
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("holds", start="earliest")
        out.push_many([b""] * 1024)
        check(java("Peer", "close", "bytes", name, 40))
        assert len(ring.participants()) == 1  # this process, as a producer


def test_branch_that_java_drops_is_gone_for_all(name, java):
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer(when_full="raise") as out,
        ring.consumer("holds", start="earliest") as inp,
    ):
        out.push_many([b""] * 1024)
        check(java("Peer", "drop", "bytes", name, 3))
        assert ring.branches() == []
        out.push(b"goes on")
        with pytest.raises(shmring.BranchDropped):
            inp.pop(timeout=0)


def test_one_end_marker_ends_each_thread_of_each_process_once_a_run(name, java):
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        command = java("Peer", "runs", "bytes", name, 3)
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        try:
            lines = [[process.stdout.readline()] for process in processes if process.stdout]
            assert lines == [[b"ready\n"]] * 2, processes[0].communicate()[1].decode()
            for run in range(2):
                sent = [b"%d.%d" % (run, i) for i in range(100)]
                out.push_many(sent)
                out.push_end()
                got = [process.stdout.readline() for process in processes if process.stdout]
                assert sorted(b" ".join(got).split()) == sorted(sent)
            for process in processes:
                rest, errors = process.communicate(timeout=600)
                assert (process.returncode, rest) == (0, b""), errors.decode()
        finally:
            for process in processes:
                process.kill()
                process.communicate()
