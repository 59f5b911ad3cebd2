"""Many messages a call from Java: what a handler is given, and what a writer fills."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator

import pytest
from damage import overwrite
from java_programs import Java, beside, check, message

import shmring

pytestmark = pytest.mark.ring(checksum=True, branch="drained")


@pytest.fixture
def inp(ring: shmring.Ring) -> Iterator[shmring.Consumer]:
    """Another consumer of the branch."""
    with ring.consumer("drained") as inp:
        yield inp


def test_messages_of_every_size_come_where_they_lie_and_the_end_last(
    name: str, java: Java, ring: shmring.Ring, out: shmring.Producer
) -> None:
    count = 3000
    with beside(java("DrainCheck", "drain", name, count)):
        for i in range(count):  # around the ring several times: some lie across its end
            out.push(message(i), timeout=600)
        out.push_end()
    assert ring.branches()[0]["position"] == ring.claimed


@pytest.mark.parametrize("options", [{}, {"checksum": True}])
def test_what_a_writer_fills_arrives_all_at_once(
    name: str, java: Java, options: dict[str, bool]
) -> None:
    count = 3000
    with (
        shmring.create(name, slots=1024, temporary=True, **options) as ring,
        ring.consumer("a", start="earliest") as inp,
    ):
        with beside(java("DrainCheck", "push", name, count)):
            got = list(inp)
        assert got == [message(i % 300) for i in range(count)]


def test_a_handler_that_throws_gets_the_rest_again(
    name: str, java: Java, ring: shmring.Ring, out: shmring.Producer
) -> None:
    for i in range(40):
        out.push(message(i))
    check(java("DrainCheck", "throw", name, 40))
    assert ring.branches()[0]["position"] == ring.claimed == ring.branches()[0]["released"]


@pytest.mark.parametrize(
    ("what", "sent", "written"), [("late", b"0" * 40, [b""]), ("again", message(0), [b"ok"] * 2)]
)
def test_what_a_callback_was_lent_is_its_own(
    name: str,
    java: Java,
    ring: shmring.Ring,
    out: shmring.Producer,
    what: str,
    sent: bytes,
    written: list[bytes],
) -> None:
    with ring.consumer("a") as inp:
        out.push(sent)
        check(java("DrainCheck", what, name, 0))
        assert [inp.pop(timeout=0) for _ in range(inp.lag)] == [sent, *written]


def test_threads_with_one_consumer_share_its_messages(
    name: str, java: Java, out: shmring.Producer
) -> None:
    count = 500
    out.push_many([b"%d" % i for i in range(count)])
    check(java("DrainCheck", "threads", name, count))


def test_who_closes_waits_for_the_handler(
    name: str, java: Java, out: shmring.Producer, inp: shmring.Consumer
) -> None:
    out.push_many([message(i) for i in range(3)])
    check(java("DrainCheck", "closed", name, 0))
    with inp.lease_many(10, timeout=0) as again:
        assert [bytes(data) for data in again] == [message(1), message(2)]
        assert again.redelivered


def damage(ring: shmring.Ring, slot: int) -> None:
    """Change a byte of the message in this slot."""
    overwrite(ring.path, ring.info.file_bytes - (ring.slots - slot) * 300, b"x")


def test_a_damaged_message_is_told_of_and_stepped_over(
    name: str, java: Java, ring: shmring.Ring, out: shmring.Producer
) -> None:
    out.push_many([message(i) for i in range(5)])
    damage(ring, 2)
    check(java("DrainCheck", "damaged", name, 0))


def test_messages_that_are_aborted_when_they_are_read_are_not_held(
    name: str, java: Java, ring: shmring.Ring, out: shmring.Producer
) -> None:
    aborted = 1
    out.push_many([message(i) for i in range(3)])
    control = ring.info.file_bytes - ring.slots * (300 + 32)
    for i in range(3):  # the first entry goes on saying that three messages follow
        overwrite(ring.path, control + 32 * i + 29, bytes([aborted]))
    check(java("DrainCheck", "aborted", name, 0))


@pytest.mark.parametrize("what", ["stopped", "stopped damaged"])
def test_what_could_not_be_handed_back_comes_again_when_the_consumer_is_closed(
    name: str,
    java: Java,
    ring: shmring.Ring,
    out: shmring.Producer,
    inp: shmring.Consumer,
    what: str,
) -> None:
    out.push_many([message(i) for i in range(5)])
    if what == "stopped damaged":
        damage(ring, 0)
    with (
        open(ring.path, "r+b") as file,
        subprocess.Popen(
            java("DrainCheck", what, name, 0), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"joined\n"
            # Hold the lock, as a process does that is stopped while it joins or recovers.
            for lock, then in ((fcntl.F_WRLCK, b"held\n"), (fcntl.F_UNLCK, b"")):
                admin = struct.pack("hhqqi4x", lock, os.SEEK_SET, 8, 1, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, admin)
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == then
            assert process.wait(timeout=600) == 0
        finally:
            process.kill()
    first = 1 if what == "stopped damaged" else 0
    assert [inp.pop(timeout=120) for _ in range(first, 5)] == [message(i) for i in range(first, 5)]


def test_a_writer_that_throws_publishes_nothing(
    name: str, java: Java, inp: shmring.Consumer
) -> None:
    check(java("DrainCheck", "writer", name, 0))
    assert inp.pop(timeout=0) == message(0)
    assert inp.pop(timeout=0) == message(1)
    with pytest.raises(shmring.Empty):
        inp.pop(timeout=0)
