"""C, Python and Java: each as the producer and as the consumer of each other, bytes and Arrow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import shmring

HERE = Path(__file__).parent
MESSAGES = 3000
BATCHES = 50

spec = importlib.util.spec_from_file_location("jvm_peer", HERE / "peer.py")
assert spec is not None
assert spec.loader is not None
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)

Start = Callable[[str, str, str, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """What C writes, each a batch; it leaves in them what it reads."""
    files = [tmp_path / f"{k}.arrow" for k in range(BATCHES)]
    for k, file in enumerate(files):
        file.write_bytes(peer.batch(k).serialize())
    return files


@pytest.fixture
def start(java: Callable[..., list[str]], c_peer: Path, files: list[Path]) -> Start:
    def run(language: str, act: str, kind: str, ring: str) -> subprocess.Popen[bytes]:
        count = MESSAGES if kind == "bytes" else BATCHES
        if language == "c":
            what = [str(MESSAGES)] if kind == "bytes" else [str(file) for file in files]
            command = [str(c_peer), act, kind, f"/dev/shm/shmring.{ring}", *what]
        elif language == "python":
            command = [sys.executable, str(HERE / "peer.py"), act, kind, ring, str(count)]
        else:
            command = java("Peer", act, kind, ring, count)
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    return run


# Each language to each other one, and each both ways with both kinds.
@pytest.mark.parametrize(
    ("producer", "consumer", "kind"),
    [
        ("c", "python", "bytes"),
        ("python", "java", "bytes"),
        ("java", "c", "bytes"),
        ("python", "c", "arrow"),
        ("java", "python", "arrow"),
        ("c", "java", "arrow"),
    ],
)
def test_what_one_language_writes_each_other_reads(
    name: str, start: Start, files: list[Path], producer: str, consumer: str, kind: str
) -> None:
    schema = peer.SCHEMA if kind == "arrow" else None
    # Smaller than what goes through it: both sides wait for each other.
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        ring.subscribe("pair", start="earliest")
        peers = [start(producer, "produce", kind, name), start(consumer, "consume", kind, name)]
        for process in peers:
            try:
                _, errors = process.communicate(timeout=600)
            finally:
                process.kill()
            assert process.returncode == 0, errors.decode()
        assert ring.branches()[0]["position"] == ring.claimed
    found = [pa.ipc.read_record_batch(pa.py_buffer(f.read_bytes()), peer.SCHEMA) for f in files]
    assert found == [peer.batch(k) for k in range(BATCHES)]


def test_what_java_hands_back_is_delivered_again(name: str, java: Callable[..., list[str]]) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("pair") as inp,
    ):
        out.push(b"one")
        command = java("Peer", "nack", "bytes", name, 3)
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        with inp.lease(timeout=0) as lease:
            assert (lease.data, lease.redelivered) == (b"one", True)


def test_java_sets_aside_what_was_delivered_too_often(
    name: str, java: Callable[..., list[str]]
) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        shmring.create(f"{name}.dead", slots=1024, temporary=True) as dead,
        ring.producer() as out,
        dead.consumer("letters") as letters,
    ):
        ring.subscribe("pair", start="earliest")
        for data in b"bad", b"good", b"worse", b"best":
            out.push(data, kind=99)
        command = java("Peer", "aside", "bytes", name, 3)
        done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert ring.branches()[0]["released"] == ring.claimed
        for data in b"bad", b"worse":
            with letters.lease(timeout=0) as letter:
                assert (letter.data, letter.kind) == (data, 99)
        assert len(dead.participants()) == 1  # this process, as a consumer


def test_a_close_ends_the_waits_of_other_threads(name: str, java: Callable[..., list[str]]) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        ring.subscribe("holds", start="earliest")
        out.push_many([b""] * 1024)
        command = java("Peer", "close", "bytes", name, 40)
        done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert len(ring.participants()) == 1  # this process, as a producer


def test_branch_that_java_drops_is_gone_for_all(name: str, java: Callable[..., list[str]]) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer(when_full="raise") as out,
        ring.consumer("holds", start="earliest") as inp,
    ):
        out.push_many([b""] * 1024)
        command = java("Peer", "drop", "bytes", name, 3)
        done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert ring.branches() == []
        out.push(b"goes on")
        with pytest.raises(shmring.BranchDropped):
            inp.pop(timeout=0)


def test_one_end_marker_ends_each_thread_of_each_process_once_a_run(
    name: str, java: Callable[..., list[str]]
) -> None:
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
