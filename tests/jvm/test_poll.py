"""Leases and claims in Java: what they show, damaged messages, no memory, a close at any moment."""

from __future__ import annotations

import pytest
from java_programs import Java, check, message

import shmring
from shmring.choices import WAITS


@pytest.mark.parametrize("options", [{}, {"checksum": True}])
def test_messages_of_a_lease_are_read_in_every_way(
    name: str, java: Java, options: dict[str, bool]
) -> None:
    count = 1000
    with (
        shmring.create(name, slots=4096, temporary=True, **options) as ring,
        ring.producer() as out,
    ):
        ring.subscribe("polled", start="earliest")
        for i in range(count + 1):
            out.push(message(i))
        check(java("PollCheck", "ways", name, count))
        assert ring.branches()[0]["released"] == ring.claimed


def test_a_large_message_is_copied_whole(name: str, java: Java) -> None:
    length = 3_500_001
    data = bytes(i % 251 for i in range(length))
    with (
        shmring.create(name, slots=16_384, temporary=True) as ring,
        ring.producer() as out,
    ):
        ring.subscribe("polled", start="earliest")
        for _ in range(10_000):  # the message goes on beyond the ring's end
            out.push(b"")
        with ring.consumer("polled") as inp, inp.lease_many(10_000, timeout=0):
            pass
        out.push(data)
        check(java("PollCheck", "large", name, length))


def test_a_buffer_that_grows_while_it_is_copied_to_gets_the_message_only(
    name: str, java: Java
) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer() as out,
    ):
        ring.subscribe("polled", start="earliest")
        out.push_many([b"a" * 300, b"b" * 300])
        check(java("PollCheck", "grows", name, 0))


def test_a_message_that_there_was_no_memory_for_comes_again(name: str, java: Java) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer() as out,
    ):
        ring.subscribe("polled", start="earliest")
        out.push_many([message(i) for i in range(5)])
        command = java("PollCheck", "memory", name, 5)
        command[command.index("-Xmx512m")] = "-Xmx32m"
        check(command)
        assert ring.branches()[0]["released"] == ring.claimed


def test_room_that_there_was_no_memory_for_a_claim_of_is_free_again(name: str, java: Java) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.consumer("a", start="earliest") as inp,
    ):
        command = java("PollCheck", "claim memory", name, 8)
        command[command.index("-Xmx512m")] = "-Xmx32m"
        check(command)
        assert sum(inp.pop(timeout=0)[0] for _ in range(8)) > 0
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0)


def test_bytes_of_more_than_a_part_come_as_they_were(name: str, java: Java) -> None:
    with shmring.create(name, slots=1 << 14, temporary=True):
        check(java("PollCheck", "put", name, 0))


def test_a_ring_for_one_producer_is_made_in_java(name: str, java: Java) -> None:
    check(java("PollCheck", "single", name, 1024))
    with shmring.attach(name) as ring:
        assert ring.info.single_producer
        ring.unlink()


def test_a_lease_of_a_damaged_message_is_given_and_reading_it_is_refused(
    name: str, java: Java
) -> None:
    with (
        shmring.create(name, slots=1024, checksum=True, temporary=True) as ring,
        ring.producer() as out,
    ):
        ring.subscribe("polled", start="earliest")
        out.push_many([message(i) for i in range(3)])
        with open(ring.path, "r+b") as file:
            file.seek(ring.info.file_bytes - ring.slots * 300)
            file.write(b"x")
        check(java("PollCheck", "damaged", name, 0))
        assert ring.branches()[0]["released"] == ring.claimed


def test_a_consumer_may_be_closed_at_any_moment_of_a_poll(name: str, java: Java) -> None:
    with shmring.create(name, slots=4096, temporary=True) as ring:
        ring.subscribe("polled", start="earliest")
        check(java("PollCheck", "race", name, 300))
        assert ring.branches()[0]["consumers"] == 0


def test_producers_and_consumers_wait_by_the_strategy_they_are_given(name: str, java: Java) -> None:
    with shmring.create(name, slots=1024, temporary=True):
        told = check(java("PollCheck", "waits", name, 5000))
    assert dict(line.split() for line in told.splitlines()) == {
        strategy: str(number) for strategy, number in WAITS.items()
    }


def test_end_that_one_thread_is_told_of_ends_the_wait_of_another(name: str, java: Java) -> None:
    with shmring.create(name, slots=1024, temporary=True):
        check(java("PollCheck", "shared", name, 0))
