"""Errors and statistics say who holds whom up: branch, consumer, process, since when."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import RunChild
from programs import cli

import shmring
from shmring.errors import NotDurable

ME = f"pid {os.getpid()}"


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    with shmring.create(name, slots=1024) as ring:
        yield ring
    shmring.unlink(name)


def filled(ring: shmring.Ring) -> str:
    """Fills the ring; what Full says then."""
    with ring.producer("feed", when_full="raise") as out:
        try:
            while True:
                out.push(b"x")
        except shmring.Full as error:
            return str(error)


def test_full_names_the_branch_without_a_consumer_and_the_way_out(ring: shmring.Ring) -> None:
    ring.subscribe("audit")
    said = filled(ring)
    assert 'branch "audit" has no consumer' in said
    assert "sequence 0, published" in said
    assert "1024 slots" in said
    assert f"shmring drop-branch {ring.name} audit" in said


@pytest.mark.parametrize("branch", ["a b", "$(exit)", "it's", "-x", "--help", "é", "a\\b"])
def test_full_writes_a_command_that_a_shell_understands(ring: shmring.Ring, branch: str) -> None:
    ring.subscribe(branch)
    command = filled(ring).split("`")[1]
    dashes = ["--"] if branch.startswith("-") else []
    assert shlex.split(command) == ["shmring", "drop-branch", ring.name, *dashes, branch]


def test_full_names_the_consumer_that_holds_a_lease(ring: shmring.Ring) -> None:
    with ring.producer() as out, ring.consumer("audit", name="billing") as inp:
        out.push(b"first")
        with inp.lease():
            said = filled(ring)
    assert f'branch "audit": consumer "billing" ({ME}) has not released sequence 0' in said


def test_full_tells_who_is_to_take_what_was_handed_back(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        with ring.consumer("audit", name="billing") as inp:
            out.push(b"first")
            inp.lease().nack()
            said = filled(ring)
            assert 'branch "audit" has still to take sequence 0' in said
            assert f'its only living consumer is consumer "billing" ({ME})' in said
        said = filled(ring)
    assert 'branch "audit" has no consumer' in said
    assert f"shmring drop-branch {ring.name} audit" in said


def test_full_names_a_consumer_that_takes_nothing(ring: shmring.Ring) -> None:
    with ring.consumer("audit", name="one"), ring.consumer("audit", name="two"):
        said = filled(ring)
    assert 'branch "audit" has still to take sequence 0' in said
    assert f'of its 2 living consumers the first is consumer "one" ({ME})' in said


def test_full_names_the_first_of_a_chain_and_not_who_follows(ring: shmring.Ring) -> None:
    ring.subscribe("first")
    ring.subscribe("second", after="first")
    assert 'branch "first" has no consumer' in filled(ring)


@pytest.mark.parametrize("branches", [["audit"], []])
def test_full_names_the_producer_whose_claim_is_open(
    ring: shmring.Ring, branches: list[str]
) -> None:
    for branch in branches:
        ring.subscribe(branch)
    with ring.producer("stuck") as stuck, stuck.claim(10):
        assert f'producer "stuck" ({ME}) has claimed sequence 0' in filled(ring)


def test_empty_says_whether_anybody_could_send(ring: shmring.Ring) -> None:
    with ring.consumer("audit") as inp:
        with pytest.raises(shmring.Empty, match="no producer is attached"):
            inp.pop(timeout=0.001)
        with (
            ring.producer("feed"),
            pytest.raises(shmring.Empty, match=re.escape(f'producer "feed" ({ME})')),
        ):
            inp.pop(timeout=0.001)


def test_empty_names_the_open_claim_ahead(ring: shmring.Ring) -> None:
    with (
        ring.consumer("audit") as inp,
        ring.producer("stuck") as stuck,
        stuck.claim(10),
        pytest.raises(shmring.Empty, match=re.escape(f'"stuck" ({ME}) has claimed sequence 0')),
    ):
        inp.pop(timeout=0.001)


def test_empty_names_what_the_branch_waits_for_upstream(ring: shmring.Ring) -> None:
    ring.subscribe("journal")
    with ring.consumer("audit", after="journal") as inp, ring.producer() as out:
        out.push(b"x")
        with pytest.raises(shmring.Empty, match=r'follows branch "journal" has .*, 1 slot behind'):
            inp.pop(timeout=0.001)


@pytest.mark.alone
def test_no_space_says_what_is_left(name: str) -> None:
    left = os.statvfs("/dev/shm")
    slots = 2 << (left.f_bavail * left.f_frsize // 332).bit_length()  # others may free some
    if slots > 1 << 31:
        pytest.skip("/dev/shm holds the largest ring")
    with pytest.raises(shmring.NoSpace, match=r"has \d+ left; use fewer slots"):
        shmring.create(name, slots=slots)


def test_not_durable_says_how_far_the_journal_is(ring: shmring.Ring) -> None:
    with ring.consumer("journal", exclusive=True, name="disk"), ring.producer() as out:
        with pytest.raises(NotDurable, match='branch "journal" has still to take') as error:
            out.push(b"x", durable=True, timeout=0.001)
        assert error.value.message_id == 0


def test_holder_is_nobody_on_a_ring_that_nobody_holds(ring: shmring.Ring) -> None:
    assert ring.holder() is None


def test_stat_marks_the_branch_that_holds_and_sorts_by_lag(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        ring.subscribe("slow")
        out.push(b"1")
        ring.subscribe("quick")
        out.push(b"2")
    stats = ring.stats()
    assert [b["name"] for b in stats["branches"]] == ["slow", "quick"]
    assert stats["holder"]["branch"] == "slow"
    assert stats["holder"]["kind"] == "no consumer"
    text = cli("stat", ring.name, check=True).stdout
    assert re.search(r"^> +slow", text, re.MULTILINE)
    assert not re.search(r"^> +quick", text, re.MULTILINE)
    assert '> branch "slow" has no consumer' in text
    told = cli("stat", ring.name, "--json", check=True).stdout
    assert json.loads(told)["holder"]["sequence"] == 0


# --- stopped by SIGSTOP ------------------------------------------------------------------------

STOPS_ITSELF = """
    import os, signal, sys, shmring
    with shmring.attach(sys.argv[1]) as ring:
        with ring.consumer("audit", name="billing") as inp, ring.producer("feed") as out:
            lease = inp.lease() if sys.argv[2] == "lease" else out.next()
            print("holds")
            os.kill(os.getpid(), signal.SIGSTOP)
"""


def stopped(child: RunChild, ring: shmring.Ring, how: str) -> Any:
    """A process that has stopped in a lease, or in a claim."""
    ring.subscribe("audit")
    with ring.producer() as out:
        out.push(b"x")
    process = child(STOPS_ITSELF, ring.name, how)
    assert process.line() == "holds"
    found = os.waitid(os.P_PID, process.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert found is not None
    return process


def test_full_says_that_the_consumer_in_the_way_is_stopped(
    ring: shmring.Ring, child: RunChild
) -> None:
    process = stopped(child, ring, "lease")
    assert f'consumer "billing" (pid {process.process.pid}, stopped) has not' in filled(ring)
    participants = {
        participant["name"]: participant["stopped"]
        for participant in ring.participants()
        if participant["name"]
    }
    assert participants["billing"]
    holder = ring.holder()
    assert holder is not None
    assert holder["stopped"]
    said = cli("stat", ring.name, check=True)
    assert re.search(r"billing.*\bstopped\b", said.stdout)
    process.process.send_signal(signal.SIGCONT)
    process.process.wait()
    assert not any(participant["stopped"] for participant in ring.participants())


def test_empty_and_consume_say_that_the_producer_in_the_way_is_stopped(
    ring: shmring.Ring, child: RunChild
) -> None:
    process = stopped(child, ring, "claim")
    said = f'producer "feed" (pid {process.process.pid}, stopped) has claimed sequence 1'
    with ring.consumer("audit") as inp:
        inp.pop(timeout=0)
        with pytest.raises(shmring.Empty, match=re.escape(said)):
            inp.pop(timeout=0.01)
    consumed = cli("consume", ring.name, "--branch", "audit", "--timeout", "0.3")
    assert f"no message within 0.3 s: {said}" in consumed.stderr


def test_a_ring_that_the_dead_have_left_is_said_to_be_that(name: str, child: RunChild) -> None:
    code = """
        import sys, shmring
        ring = shmring.create(sys.argv[1], slots=1024, temporary=True)
        print("made")
        sys.stdin.readline()
    """
    process = child(code, name)
    assert process.line() == "made"
    with pytest.raises(shmring.RingExists, match="attach to it, or unlink it"):
        shmring.create(name, slots=1024)
    process.kill()
    try:
        with pytest.raises(
            shmring.RingExists, match=r"all its participants are dead; .*`shmring gc"
        ):
            shmring.create(name, slots=1024)
        assert shmring.gc(name) == [name]
    finally:
        with contextlib.suppress(shmring.RingNotFound):
            shmring.unlink(name)


def test_a_ring_elsewhere_that_the_dead_have_left_names_its_path_for_gc(
    tmp_path: Path, child: RunChild
) -> None:
    code = """
        import sys, shmring
        ring = shmring.create(path=sys.argv[1], slots=1024)
        print("made")
        sys.stdin.readline()
    """
    path = tmp_path / "left.ring"
    process = child(code, str(path))
    assert process.line() == "made"
    process.kill()
    with pytest.raises(shmring.RingExists, match=re.escape(f"`shmring gc {path}` remove it")):
        shmring.create(path=path, slots=1024)
    cli("gc", path, check=True)
    assert not path.exists()
