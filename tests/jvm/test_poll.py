"""Leases and claims in Java: what they show, damaged messages, no memory, a close at any moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from damage import overwrite
from java_programs import Java, check, message

import shmring
from shmring.common.arguments import WAITS

pytestmark = pytest.mark.ring(slots=1 << 14, checksum=True, branch="polled")


@pytest.fixture
def push(ring: shmring.Ring) -> Callable[[int], None]:
    """Publishes so many messages, the i-th of which is message(i)."""

    def push(count: int) -> None:
        with ring.producer() as out:
            for i in range(count):
                out.push(message(i))

    return push


def run(java: Java, what: str, ring: shmring.Ring, count: int, heap: str = "512m") -> str:
    command = java("PollCheck", what, ring.name, count)
    command[command.index("-Xmx512m")] = f"-Xmx{heap}"
    return check(command)


def test_messages_of_a_lease_are_read_in_every_way(
    java: Java, ring: shmring.Ring, push: Callable[[int], None]
) -> None:
    push(1001)
    run(java, "ways", ring, 1000)
    assert ring.branches()[0]["released"] == ring.claimed


def test_a_buffer_that_grows_while_it_is_copied_to_gets_the_message_only(
    java: Java, ring: shmring.Ring
) -> None:
    with ring.producer() as out:
        out.push_many([b"a" * 300, b"b" * 300])
    run(java, "grows", ring, 0)


def test_a_message_that_there_was_no_memory_for_comes_again(
    java: Java, ring: shmring.Ring, push: Callable[[int], None]
) -> None:
    push(5)
    run(java, "memory", ring, 5, heap="32m")
    assert ring.branches()[0]["released"] == ring.claimed


def test_room_that_there_was_no_memory_for_a_claim_of_is_free_again(
    java: Java, ring: shmring.Ring
) -> None:
    with ring.consumer("a", start="earliest") as inp:
        run(java, "claim memory", ring, 8, heap="32m")
        assert sum(inp.pop(timeout=0)[0] for _ in range(8)) > 0
        with pytest.raises(shmring.Empty):
            inp.pop(timeout=0)


def test_a_lease_of_a_damaged_message_is_given_and_reading_it_is_refused(
    java: Java, ring: shmring.Ring, push: Callable[[int], None]
) -> None:
    push(3)
    overwrite(ring.path, ring.info.file_bytes - ring.slots * 300, b"x")
    run(java, "damaged", ring, 0)
    assert ring.branches()[0]["released"] == ring.claimed


def test_a_consumer_may_be_closed_at_any_moment_of_a_poll(java: Java, ring: shmring.Ring) -> None:
    run(java, "race", ring, 300)
    assert ring.branches()[0]["consumers"] == 0


def test_bytes_of_more_than_a_part_come_as_they_were(java: Java, ring: shmring.Ring) -> None:
    run(java, "put", ring, 0)


def test_end_that_one_thread_is_told_of_ends_the_wait_of_another(
    java: Java, ring: shmring.Ring
) -> None:
    run(java, "shared", ring, 0)


def test_a_ring_for_one_producer_is_made_in_java(name: str, java: Java) -> None:
    check(java("PollCheck", "single", name, 1024))
    with shmring.attach(name) as ring:
        assert ring.info.single_producer
        ring.unlink()


def test_a_ring_with_fewer_slots_is_not_opened_in_java(java: Java, ring: shmring.Ring) -> None:
    run(java, "larger", ring, 2 * ring.slots)


def test_a_temporary_ring_whose_file_is_another_ones_is_closed_in_java(
    name: str, java: Java
) -> None:
    assert check(java("CloseCheck", name)).split() == ["0", "0"]
    shmring.unlink(name)  # the other ring's file is still there


def test_producers_and_consumers_wait_by_the_strategy_they_are_given(java: Java, name: str) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring:
        told = run(java, "waits", ring, 5000)
    assert dict(line.split() for line in told.splitlines()) == {
        strategy: str(number) for strategy, number in WAITS.items()
    }
