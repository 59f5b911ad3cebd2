"""Looks at a host's rings from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from fixture_types import RunChild, Until
from programs import cli

import shmring
from shmring.observers import host
from shmring.observers.findings import findings
from shmring.observers.host import Observer


@pytest.mark.parametrize("mode", [0o600, 0o660], ids=["mapped", "copied"])
def test_lease_is_no_older_than_its_consumer_and_than_the_look_before_it(
    ring: shmring.Ring, name: str, until: Until, mode: int
) -> None:
    ring.subscribe("b")
    os.chmod(ring.path, mode)

    def age() -> float:
        holder = ring.holder()
        assert holder is not None
        assert holder["age_s"] is not None
        return holder["age_s"]

    def held(observer: Observer) -> float:
        seen = observer.look().ring(name)
        assert seen is not None
        (found,) = seen.held.values()
        return found

    with ring.producer() as out, Observer([name]) as observer:
        out.push_many([b"x", b"y"])
        until(lambda: age() > 1)  # before there is a consumer
        with ring.consumer("b") as inp:
            lease = inp.lease()
            joined = held(observer)
            assert joined < age() - 1
            until(lambda: held(observer) > joined + 0.5)
            lease.release()
            with inp.lease():
                assert held(observer) < held(Observer([name])) - 0.5


def test_a_process_is_reached_by_the_device_and_inode_that_it_has_mapped(
    ring: shmring.Ring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Observer([name]).look().ring(name)
    assert seen is not None
    assert seen.reaches(os.getpid())
    file = list(os.stat(ring.path))
    file[2] += 1  # st_dev: a file of the same inode elsewhere
    monkeypatch.setattr(host.os, "stat", lambda _: os.stat_result(file))
    assert not seen.reaches(os.getpid())


def test_ring_that_goes_with_its_last_user_is_not_seen_without_users(
    ring: shmring.Ring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    see = host._see

    def see_late(*arguments: object) -> host.Seen:
        ring.close()
        return see(*arguments)

    with Observer([name]) as observer:
        assert observer.look().ring(name) is not None
        monkeypatch.setattr(host, "_see", see_late)
        assert observer.look().rings == []


@pytest.fixture
def foreign(name: str) -> Iterator[str]:
    """A ring of another user's, in which a message waits; by its path."""
    with shmring.create(name, slots=1024) as ring, ring.producer() as out:
        ring.subscribe("b")
        out.push(b"hello")
        path = ring.path
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    os.chmod(path, 0o666)  # and who else may write can shorten it as well
    yield path
    os.unlink(path)


def test_ring_that_another_user_shortens_ends_nobody_who_looks_on(
    foreign: str, name: str, child: RunChild
) -> None:
    code = """
        import sys
        from shmring.observers.host import Observer
        from shmring.metrics import HostMetrics
        from shmring.ring import look_on
        kept = look_on(sys.argv[1])
        named, host = Observer([sys.argv[1]]), HostMetrics(interval=None, foreign=True)
        for _ in range(2):
            look = named.look()
            host.look()
            for each in (look, host._before):
                (ring,) = (ring for ring in each.rings if ring.name == sys.argv[1])
                seen = ring.seen and ring.seen.stats
                print(seen and (seen["used"], seen["branches"][0]["waiting"]), flush=True)
            assert kept.stats()["branches"][0]["waiting"] == 1
            sys.stdin.readline()
    """
    observer = child(code, name)
    assert [observer.line(), observer.line()] == ["(1, 1)", "(1, 1)"]
    os.truncate(foreign, 0)
    observer.say()
    assert [observer.line(), observer.line()] == ["None", "None"]
    observer.say()
    observer.end()


def test_commands_show_what_is_seen_of_another_users_ring(foreign: str, name: str) -> None:
    def said(*arguments: str) -> Any:
        return json.loads(cli(*arguments, "--json").stdout)

    assert said("stat", name)["branches"][0]["waiting"] == 1
    assert said("stat", name)["info"]["slots"] == 1024
    assert said("top", name, "--times", "1")["used"] == 1
    assert [ring["used"] for ring in said("ls") if ring["name"] == name] == [1]
    assert said("check", name)["rings"] == [name]
    assert name in said("check", "--foreign")["rings"]


@pytest.mark.skipif(os.getuid() != 0, reason="wants a file of another user")
def test_no_process_is_to_be_killed_that_is_not_of_the_rings_owner(
    foreign: str, name: str, child: RunChild
) -> None:
    reader = child(
        """
        import sys, shmring
        with shmring.attach(sys.argv[1], foreign_owner=True) as ring, ring.consumer("b"):
            print("attached", flush=True)
            sys.stdin.readline()
        """,
        name,
    )
    assert reader.line() == "attached"
    with Observer([name]) as observer:
        seen = observer.look().ring(name)
    assert seen is not None
    assert seen.reaches(reader.process.pid) == (os.geteuid() != 0)
    os.chown(foreign, os.getuid(), -1)
    assert seen.reaches(reader.process.pid)


def test_other_users_rings_are_left_out_unless_asked_for(foreign: str, name: str) -> None:
    with Observer() as observer:
        look = observer.look()
    assert name not in [ring.name for ring in look.rings]
    assert look.foreign > 0
    with Observer(foreign=True) as observer:
        look = observer.look()
    assert name in [ring.name for ring in look.rings]
    assert look.foreign == 0
    (found,) = findings(Observer([name]).look())
    assert found.command == f"sudo -u '#54321' shmring unlink {name}"


def test_journal_that_is_behind_and_goes_on_is_not_to_be_killed(
    ring: shmring.Ring, name: str
) -> None:
    inp = ring.consumer("journal", exclusive=True)
    with inp, ring.producer() as out, Observer([name]) as observer:
        out.push_many([b"x", b"y", b"z"])
        before = observer.look()
        (hangs,) = findings(observer.look(), before, age=-0.5)
        inp.pop()
        (goes_on,) = findings(observer.look(), before, age=-0.5)
    assert (hangs.kind, hangs.command) == ("journal", f"kill -9 {os.getpid()}")
    assert (goes_on.kind, goes_on.command) == ("journal", "")


def test_shared_branch_with_the_journals_name_is_no_journal(ring: shmring.Ring, name: str) -> None:
    with ring.consumer("journal"), ring.producer() as out:
        out.push(b"x")
        found = [each.kind for each in findings(Observer([name]).look(), age=-1.0)]
    found += [each.kind for each in findings(Observer([name]).look(), age=-1.0)]
    assert "no-consumer" in found
    assert "journal" not in found
