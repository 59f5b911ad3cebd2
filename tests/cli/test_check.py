"""`shmring check`: sick situations with real processes, its words and status, and the mending."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from companion import place

import shmring
from shmring.companions import STAGING
from shmring.durable.journal import journaller
from shmring.sidecars import Sidecar, SidecarClient
from shmring.sidecars.health import check as look_at_sidecar

pytestmark = pytest.mark.kill

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

CONSUMER = """
    import sys, shmring
    with shmring.attach(sys.argv[1]) as ring, ring.consumer("b", name="reader") as inp:
        lease = inp.lease(timeout=60)
        print("holds", flush=True)
        sys.stdin.readline()
"""


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def check(*arguments: object) -> tuple[int, str]:
    said = shell(" ".join(["shmring", "check", *map(str, arguments)]))
    assert said.stderr == ""
    return said.returncode, said.stdout


def commands(text: str) -> list[str]:
    return re.findall(r"^    (.*)$", text, re.MULTILINE)


def mend(text: str) -> None:
    """Do what it says, which is one thing."""
    (command,) = commands(text)
    said = shell(command)
    assert said.returncode == 0, said.stderr


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def ring(name: str) -> Iterator[shmring.Ring]:
    """A ring that the command that mends may remove."""
    with shmring.create(name, slots=1024) as ring:
        yield ring
    if name in shmring.rings():
        shmring.unlink(name)


def fill(ring: shmring.Ring) -> shmring.Producer:
    out = ring.producer("feed", when_full="raise")
    with contextlib.suppress(shmring.Full):
        while True:
            out.push(b"x")
    return out


def test_all_is_well(ring: shmring.Ring, name: str) -> None:
    with ring.producer(), ring.consumer("b"):
        assert check(name) == (0, "all is well: 1 rings and 0 sidecars\n")


@pytest.mark.parametrize("name", ["", "a b", ".x", "-x"])
def test_impossible_name_is_said_to_be_one(name: str) -> None:
    status, said = check("--", shlex.quote(name))
    assert (status, commands(said)) == (2, [])
    assert f"{name!r} cannot name a ring" in said


def test_path_without_a_ring_is_made_where_it_can_be(tmp_path: Path) -> None:
    status, said = check(tmp_path / "-x")
    assert (status, commands(said)) == (2, [f"shmring create {tmp_path}/-x"])
    mend(said)
    assert check(tmp_path / "-x")[0] < 2
    again = shell(f"cd {tmp_path} && shmring create ./-x").stderr
    assert again.endswith(f"exists already ({tmp_path}/-x); attach to it or unlink it first\n")
    status, said = check(tmp_path / "none" / "x")
    assert (status, commands(said)) == (2, [])
    assert f"there is no folder {tmp_path}/none\n" in said
    with pytest.raises(shmring.RingNotFound, match="there is no folder"):
        shmring.attach(path=tmp_path / "none" / "x")


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/null", "/", "/dev/shm", "/dev/shm/.."])
def test_no_file_but_a_named_ring_is_to_be_removed(path: str) -> None:
    status, said = check(path)
    assert (status, commands(said)) == (2, [])
    assert f'stuck: ring "{path}": ' in said


def test_file_that_has_a_rings_name_and_is_none_is_removed(name: str) -> None:
    Path(f"/dev/shm/shmring.{name}").write_bytes(b"notes")
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"rm /dev/shm/shmring.{name}"])
    mend(said)
    assert name not in shmring.rings()


def test_ring_for_which_there_is_no_memory_now_is_not_to_be_unlinked(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    code = """
        import resource, sys
        from shmring.findings import findings
        from shmring.host import Observer
        large = Observer([sys.argv[1]])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
        print([each[1::4] for each in findings(large.look())], flush=True)
    """
    with shmring.create(f"{name}-2", temporary=True) as large:
        assert child(code, large.name).line() == "[('unreadable', '')]"


def test_link_is_said_to_be_one(ring: shmring.Ring, name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ring.path)
    status, said = check(tmp_path / "link")
    assert (status, commands(said)) == (2, [f"shmring check {ring.path}"])
    assert f"the path is a symbolic link, which is refused; it leads to {ring.path}\n" in said
    with ring.producer(), ring.consumer("b"):
        mend(said)
    both = json.loads(check(tmp_path / "link", name, "--json")[1])
    assert both["rings"] == [str(tmp_path / "link"), name]


def test_link_that_leads_nowhere_is_no_ring_that_is_well(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    status, said = check(tmp_path / "link")
    assert (status, commands(said)) == (2, [])
    assert f"it leads to {tmp_path}/nothing, where nothing is" in said
    Path(f"/dev/shm/shmring.{name}").symlink_to(tmp_path / "nothing")
    assert f'ring "{name}"' in check()[1]
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"rm /dev/shm/shmring.{name}"])
    mend(said)
    assert name not in shmring.rings()


def test_participants_of_a_ring_whose_file_was_removed(ring: shmring.Ring, name: str) -> None:
    with ring.consumer("b"):
        Path(ring.path).unlink()
        for remade in range(2):
            status, said = check(name)
            assert status == 2
            assert f'stuck: ring "{name}": its users with the pid {os.getpid()} have' in said
            if not remade:
                shmring.create(name).close()
    assert "was removed while it was in use" not in check(f"{name}-2")[1]


def test_participants_of_a_ring_elsewhere_whose_file_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with shmring.create(path=path, slots=1024) as ring, ring.consumer("b"):
        path.unlink()
        for arguments in [], [path]:
            status, said = check(*arguments)
            assert status == 2
            assert f'stuck: ring "{path}": its users with the pid {os.getpid()} have' in said


def test_ring_that_was_unlinked_on_purpose_is_no_trouble(ring: shmring.Ring, name: str) -> None:
    with ring.consumer("b"):
        shmring.unlink(name)
        assert "was removed" not in check(name)[1]
    shmring.create(name).close()


def test_branch_without_a_consumer_holds_producers(ring: shmring.Ring, name: str) -> None:
    ring.subscribe("billing")
    with fill(ring) as out:
        status, said = check(name)
        assert status == 2
        assert f'stuck: ring "{name}": branch "billing" has no consumer, and holds the pro' in said
        assert commands(said) == [f"shmring drop-branch {name} billing"]
        mend(said)
        out.push(b"goes on")
        assert check(name)[0] == 0


def test_branch_that_is_to_be_read_later_is_no_trouble(ring: shmring.Ring, name: str) -> None:
    ring.subscribe("billing")
    with ring.producer() as out:
        out.push(b"x")
        assert check(name)[0] == 0
        status, said = check(name, "--age", 0)
        assert (status, "warning: " in said) == (1, True)


def test_producer_that_is_stopped_in_a_claim(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.producer("feed") as out:
            with out.claim(5) as claim:
                print("claimed", flush=True)
                sys.stdin.readline()
                claim.buffer[:] = b"hello"
                claim.commit()
            print("done", flush=True)
            sys.stdin.readline()
    """
    with ring.consumer("b") as inp:
        feed = child(code, name)
        feed.line()
        feed.say()
        feed.line()  # it goes through the claim
        feed.say()
        feed.end()
        feed = child(code, name)
        feed.line()
        stop(feed.pid)
        status, said = check(name)
        assert status == 2
        assert f'producer "feed" (pid {feed.pid}) is stopped and has an open claim at' in said
        mend(said)
        feed.say()
        assert [inp.pop(timeout=60), inp.pop(timeout=60)] == [b"hello", b"hello"]
        assert check(name)[0] == 0


def test_consumer_that_is_stopped_with_a_lease(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    with ring.producer() as out:
        out.push(b"x")
        reader = child(CONSUMER, name)
        reader.line()
        stop(reader.pid)
        status, said = check(name)
        assert status == 1
        assert f'consumer "reader" (pid {reader.pid}) is stopped and holds messages from' in said
        with fill(ring):
            assert check(name)[0] == 2
            assert commands(check(name)[1]) == [f"kill -CONT {reader.pid}"]
        mend(said)
        reader.say()
        reader.end()


def test_consumer_that_hangs_with_a_lease(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    with ring.producer() as out, ring.consumer("b", name="other") as other:
        out.push(b"x")
        reader = child(CONSUMER, name)
        reader.line()
        assert check(name)[0] == 0  # for less than a minute
        status, said = check(name, "--age", 1)  # which the second look waits for
        while not status:
            status, said = check(name, "--age", 1)
        assert status == 1
        assert f'consumer "reader" (pid {reader.pid}) of branch "b" has held a message for' in said
        assert commands(said) == [f"kill -9 {reader.pid}"]
        mend(said)
        assert other.pop(timeout=60) == b"x"
        reader.process.wait()
        assert check(name, "--age", 1)[0] == 0


def test_consumers_that_take_nothing(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("b", name="reader") as inp:
            print("joined", flush=True)
            sys.stdin.readline()
            print(inp.pop(timeout=60), flush=True)
            sys.stdin.readline()
    """
    with ring.producer() as out:
        reader = child(code, name)
        reader.line()
        out.push(b"x")
        status, said = check(name, "--age", 0)
        assert status == 1
        assert f'branch "b": consumer "reader" (pid {reader.pid}) takes nothing, and 1 of' in said
        assert commands(said) == [f"kill -9 {reader.pid}"]
        reader.say()
        reader.line()
        assert "takes nothing" not in check(name, "--age", 0)[1]
        second = child(code, name)
        second.line()
        out.push(b"y")
        said = check(name, "--age", 0)[1]
        assert " and 1 more take nothing, and 1 of" in said
        assert set(commands(said)[0].split()) == {"kill", "-9", str(reader.pid), str(second.pid)}
        mend(said)
        reader.process.wait()
        second.process.wait()
        with ring.consumer("b") as inp:  # which the branch then waits for
            assert inp.pop(timeout=60) == b"y"
        assert check(name)[0] == 0


def test_consumer_of_another_pid_namespace_is_not_to_be_killed(
    ring: shmring.Ring, name: str
) -> None:
    code = f"""
import shmring
with shmring.attach("{name}") as ring, ring.consumer("b"):
    print("joined", flush=True)
    input()
"""
    inside = ["unshare", "-Urpf", "--mount-proc", sys.executable, "-c", code]
    with (
        subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader,
        ring.producer() as out,
    ):
        assert reader.stdout is not None
        reader.stdout.readline()
        out.push(b"x")
        status, said = check(name, "--age", 0)
        assert (status, commands(said)) == (1, [])
        assert "takes nothing" in said
        reader.communicate(b"\n")


def test_claim_that_stays_open(ring: shmring.Ring, name: str) -> None:
    with ring.producer("feed") as out, ring.producer() as other, ring.consumer("b"):
        with out.claim(1) as claim:
            other.push(b"x")
            status, said = check(name)
            assert status == 1
            assert "keeps a claim open, for which all that is behind waits" in said
            claim.commit()
        assert check(name)[0] == 0


def test_ring_whose_participants_have_died(name: str, child: Callable[..., Any]) -> None:
    code = """
        import sys, shmring
        ring = shmring.create(sys.argv[1], slots=1024)
        out = ring.producer()
        out.push(b"x")
        print("there", flush=True)
        sys.stdin.readline()
    """
    feed = child(code, name)
    feed.line()
    feed.kill()
    status, said = check(name)
    assert (status, commands(said)) == (1, [f"shmring gc {name}"])
    assert "participants have died" in said
    mend(said)
    assert name not in shmring.rings()
    assert check(name)[0] == 2


def test_check_and_gc_say_the_same_of_rubbish_behind_a_header(name: str) -> None:
    shmring.create(name, slots=1024).close()
    with open(f"/dev/shm/shmring.{name}", "r+b") as file:
        file.seek(4096)
        file.write(b"rubbish!" * 65_536)
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"shmring unlink {name}"])
    assert "its participants' entries are damaged, and nobody alive is among them" in said
    swept = shell(f"shmring gc {name}")
    assert (swept.returncode, swept.stdout) == (1, "")
    words = swept.stderr.removeprefix("shmring: ")
    assert words in said
    assert words in shell("shmring gc --dry-run").stderr
    assert [r["error"] for r in json.loads(shell("shmring ls --json").stdout) if r["name"] == name]
    mend(said)
    assert name not in shmring.rings()


def test_ring_with_messages_that_were_handed_back_before_all_left(name: str) -> None:
    with (
        shmring.create(name, slots=1024) as ring,
        ring.producer() as out,
        ring.consumer("b") as inp,
    ):
        out.push(b"x")
        inp.lease().nack()
    (participant,) = shmring.attach(name, read_only=True).participants()
    assert participant["orphaned"]
    listed = json.loads(shell("shmring ls --json").stdout)
    assert [each["dead"] for each in listed if each["name"] == name] == [0]
    status, said = check(name)
    unlink, consume = commands(said)
    assert (status, unlink) == (1, f"shmring unlink {name}")
    assert "nobody is attached to it" in said
    assert shell(consume).stdout == "x\n"
    assert commands(check(name)[1]) == [unlink]
    shmring.unlink(name)


def test_ring_to_which_nobody_is_attached(name: str) -> None:
    shmring.create(name, slots=1024).close()
    status, said = check(name)
    assert (status, commands(said)) == (1, [f"shmring unlink {name}"])
    assert "nobody is attached to it" in said
    mend(said)
    assert name not in shmring.rings()


def test_orphans_that_nobody_takes(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    with ring.producer() as out:
        out.push(b"x")
        reader = child(CONSUMER, name)
        reader.line()
        reader.kill()
        status, said = check(name)
        assert status == 1
        assert 'branch "b": messages of 1 consumers, which died or handed them back, wait' in said
        assert commands(said) == [f"shmring consume {name} --branch b --until empty"]
        assert shell(commands(said)[0]).stdout == "x\n"
        assert check(name)[0] == 0


def test_a_message_that_is_delivered_again_and_again(
    ring: shmring.Ring, name: str, child: Callable[..., Any]
) -> None:
    with ring.producer() as out:
        out.push_many([b"fine", b"poison"])
        with ring.consumer("b") as inp:
            inp.pop()
            inp.lease().nack()
            assert "delivered" not in check(name)[1]
            inp.lease().nack()
        reader = child(CONSUMER, name)
        reader.line()
        status, said = check(name)
        times = "message 1 was delivered 3 times, to consumers that died or handed it back"
        assert status == 1
        assert f'branch "b": {times}, and consumer "reader" (pid {reader.pid}) has it' in said
        reader.kill()
        status, said = check(name)
        assert status == 1
        assert f"{times}, and it waits for the next consumer. With max_deliveries=" in said


def test_participants_are_used_up_by_the_dead(name: str, child: Callable[..., Any]) -> None:
    code = """
        import sys, shmring
        rings = [shmring.attach(sys.argv[1]) for _ in range(int(sys.argv[2]))]
        print("there", flush=True)
        sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, participants=32, temporary=True) as ring:
        crowd = child(code, name, 29)
        crowd.line()
        status, said = check(name)
        assert status == 1
        assert "30 of 32 participants are used, 0 of them by the dead" in said
        crowd.kill()
        status, said = check(name)
        assert "30 of 32 participants are used, 29 of them by the dead" in said
        assert commands(said) == [f"shmring recover {name}"]
        mend(said)
        assert len(ring.participants()) == 1
        assert check(name)[0] == 0


def test_ring_of_another_layout(name: str) -> None:
    shmring.create(name, slots=1024).close()
    with open(f"/dev/shm/shmring.{name}", "r+b") as file:
        head = file.read(16)
        major = struct.unpack_from("<I", head, 8)[0]
        file.seek(8)
        file.write(struct.pack("<I", major + 1))
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"shmring unlink {name}"])
    assert "layout" in said
    mend(said)
    assert name not in shmring.rings()


def test_folder_that_a_dead_driver_has_staged(ring: shmring.Ring, name: str) -> None:
    staged = Path(place(ring.path, STAGING, str(uuid.uuid4())))
    staged.mkdir()
    with ring.producer(), ring.consumer("b"):
        status, said = check(name)
        assert (status, commands(said)) == (1, [f"shmring gc {name}"])
        assert str(staged) in said
        mend(said)
        assert not staged.exists()
        assert check(name)[0] == 0


def test_shared_memory_of_a_container_is_used_up_by_the_dead() -> None:
    script = """
        set -eu
        mount -t tmpfs -o size=64m tmpfs /dev/shm
        python -c 'import os, shmring
        r = shmring.create("big", slots=131072); r.producer(); os.kill(os.getpid(), 9)' || true
        shmring create small --slots 8192 --branch b > /dev/null
        shmring check && exit 9 || echo status $?
        shmring check | grep -A1 /dev/shm | grep '^    ' | sh
        python -c 'import os, shmring
        print(shmring.rings())
        with shmring.attach("small") as r, r.producer(): os.system("shmring check")'
    """
    script = "\n".join(line.removeprefix(8 * " ") for line in script.splitlines())
    said = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    listed, end = said.stdout.split("status 1\n")
    assert "/dev/shm has 64 MiB, of which " in listed
    assert "no further ring of the usual size fits" in listed
    assert end == "big\n['small']\nall is well: 1 rings and 0 sidecars\n"


# --- journals -------------------------------------------------------------------------------------


@pytest.fixture
def journal() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shmring", "journal", "run", name, "--json"]
        command += map(str, arguments)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_journal_that_is_stopped(
    ring: shmring.Ring, name: str, journal: Callable[..., Any], small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    with ring.producer() as out:
        out.push(b"x", durable=True)
        stop(running.pid)
        out.push(b"y")
        status, said = check(name)
        assert (status, commands(said)) == (1, [f"kill -CONT {running.pid}"])
        assert "is stopped" in said
        mend(said)
        out.push(b"z", durable=True)
        assert check(name)[0] == 0


def test_journal_that_was_killed(
    ring: shmring.Ring, name: str, journal: Callable[..., Any], small_disk: Path
) -> None:
    running = journal(name, small_disk / "journal")
    with ring.producer() as out:
        out.push(b"x", durable=True)
        running.kill()
        running.wait()
        out.push(b"y")
        status, said = check(name)
        assert (status, commands(said)) == (1, [f"shmring journal run {name} DIRECTORY"])
        assert "its journal does not run" in said
        journal(name, small_disk / "journal")
        out.push(b"z", durable=True)
        assert check(name)[0] == 0


def test_disk_of_a_journal_is_full_of_other_files(
    ring: shmring.Ring, name: str, journal: Callable[..., Any], small_disk: Path
) -> None:
    journal(name, small_disk / "journal")
    with ring.producer() as out:
        out.push(b"x", durable=True)
        (small_disk / "ballast").write_bytes(bytes(1_900_000))
        status, said = check(name)
        assert (status, commands(said)) == (1, [])
        found = r"the disk of its journal in (.*) has 0 MiB left, and the journal has 0 MiB of it"
        assert re.search(found, said)[1] == f"{small_disk}/journal"
        (small_disk / "ballast").unlink()
        assert check(name)[0] == 0


def test_disk_of_a_journal_in_a_container_is_full(
    ring: shmring.Ring, name: str, tmp_path: Path
) -> None:
    script = (
        f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
        f" && head -c 1900000 /dev/zero > {tmp_path}/ballast"
        f" && exec {sys.executable} -m shmring journal run {name} {tmp_path}/journal --json"
    )
    inside = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert "ready" in running.stdout.readline()
            with ring.producer() as out:
                out.push(b"x", durable=True)
            status, said = check(name)
            assert (status, commands(said)) == (1, [])
            assert f"the disk of its journal in {tmp_path}/journal has 0 MiB left" in said
        finally:
            running.kill()


def test_disk_of_a_journal_behind_another_root_is_full(
    ring: shmring.Ring, name: str, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(1_900_000))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # There is no ring there to attach to, and nothing to import.
            assert ring.schema_bytes is None
            journaller._entry_type()
            os.chroot(small_disk)
            with ring.journal("/journal") as journal:
                os.write(writer, b"ready")
                journal.wait()
        finally:
            os._exit(1)
    try:
        os.close(writer)
        with os.fdopen(reader) as told, ring.producer() as out:
            assert told.read(5) == "ready"
            out.push(b"x", durable=True)
            assert f"of its journal in {small_disk}/journal has 0 MiB left" in check(name)[1]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_pipe_of_a_journals_process_holds_no_look_up(
    ring: shmring.Ring, name: str, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(1_900_000))
    os.mkfifo(small_disk / "a.journal")
    pipe = os.open(small_disk / "a.journal", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with ring.journal(small_disk / "journal"), ring.producer() as out:
            out.push(b"x", durable=True)
            assert f"of its journal in {small_disk}/journal has 0 MiB left" in check(name)[1]
    finally:
        os.close(pipe)


def test_disks_of_two_journals_of_one_process(
    ring: shmring.Ring, name: str, small_disk: Path, tmp_path: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(1_900_000))
    with (
        shmring.create(f"{name}-2", slots=1024, temporary=True) as other,
        ring.journal(small_disk / "full"),
        other.journal(small_disk / "too"),
        ring.producer() as out,
        other.producer() as there,
    ):
        out.push(b"x", durable=True)
        there.push(b"y", durable=True)
        assert f"of its journal in {small_disk}/full has" in check(name)[1]
        assert f"of its journal in {small_disk}/too has" in check(f"{name}-2")[1]


def test_disk_of_a_journal_is_full_of_it(
    ring: shmring.Ring,
    name: str,
    journal: Callable[..., Any],
    small_disk: Path,
    until: Callable[..., None],
) -> None:
    running = journal(name, small_disk / "journal", "--segment", "100K")
    with ring.producer() as out:
        with contextlib.suppress(shmring.Full):
            while True:
                out.push(bytes(200), timeout=1)
        until(lambda: check(name)[0] == 2)
        (command,) = (each for each in commands(check(name)[1]) if "--max-bytes" in each)
        running.kill()
        running.wait()
        *command_itself, directory, option, limit = command.split()
        assert command_itself == ["shmring", "journal", "run", name]
        journal(name, directory, option, limit)
        out.push(b"y", durable=True)
        until(lambda: check(name)[0] == 0)


# --- sidecars -------------------------------------------------------------------------------------


def test_each_is_counted_once_however_it_is_named(
    ring: shmring.Ring, name: str, serve: Callable[..., Sidecar]
) -> None:
    assert check(name, name, ring.path) == (0, "all is well: 1 rings and 0 sidecars\n")
    served = serve("double")
    assert served.name == name
    named = (name, f"sidecar.{name}")
    assert json.loads(check(*named, "--json")[1])["sidecars"] == [name]


def test_sidecar_is_named_as_a_sidecar(name: str, serve: Callable[..., Sidecar]) -> None:
    serve("double")
    assert check(name) == (0, "all is well: 0 rings and 1 sidecars\n")
    assert check(name, "--age", 0)[0] == 0  # idle workers hold nothing
    assert json.loads(check(name, "--json")[1])["sidecars"] == [name]


def test_sidecar_whose_worker_is_stopped(
    name: str, serve: Callable[..., Sidecar], until: Callable[..., None]
) -> None:
    (pid,) = serve("double", workers=1).pids
    stop(pid)
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"kill -CONT {pid}"])
    assert f'stuck: sidecar "{name}": worker {pid}, stopped' in said
    mend(said)
    until(lambda: check(name)[0] == 0)


def test_sidecar_whose_worker_hangs(
    name: str,
    serve: Callable[..., Sidecar],
    thread: Callable[..., Any],
    until: Callable[..., None],
    marker: Path,
) -> None:
    import pyarrow as pa

    (pid,) = serve("wait_for_marker", workers=1).pids

    def ask() -> list[pa.RecordBatch]:
        with SidecarClient(name) as client:
            return list(client.map([pa.record_batch({"x": [1]})]))

    asked = thread(ask)
    until(marker.with_suffix(".begun").exists)
    assert check(name)[0] == 0
    until(lambda: check(name, "--age", 1)[0] == 1)
    status, said = check(name, "--age", 1)
    assert (status, commands(said)) == (1, [f"kill -9 {pid}"])
    assert f"worker {pid} (functions:wait_for_marker) has been at one request for up to" in said
    mend(said)
    marker.touch()
    (answer,) = asked.outcome()
    assert answer.num_rows == 1
    assert check(name, "--age", 1)[0] == 0


MODEL = """
import os, time
class Model:
    def __init__(self):
        while not os.path.exists("loaded"):
            if os.path.exists("broken"):
                raise OSError("no model")
            time.sleep(0.01)
    def __call__(self, batch):
        return batch
"""


@pytest.fixture
def supervised(name: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "shmring", "sidecar", "model:Model", "--name", name]
    with subprocess.Popen(
        [*command, "--workers", "1"], cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as process:
        yield process
        process.terminate()


def test_sidecar_that_loads_and_then_dies_again_and_again(
    name: str,
    tmp_path: Path,
    supervised: subprocess.Popen[bytes],
    until: Callable[..., None],
) -> None:
    until(lambda: look_at_sidecar(name).status == 1)
    status, said = check(name)
    assert (status, commands(said)) == (1, [])
    assert "has been loading model:Model for" in said
    (tmp_path / "loaded").touch()
    until(lambda: look_at_sidecar(name).status == 0)
    assert check(name)[0] == 0
    (tmp_path / "loaded").unlink()
    (tmp_path / "broken").touch()
    os.kill(int(look_at_sidecar(name).words[0].split()[1]), signal.SIGKILL)
    until(lambda: "die again and again" in " ".join(look_at_sidecar(name).words))
    until(lambda: look_at_sidecar(name).status == 2)
    assert "its workers die again and again: " in check(name)[1]
    (tmp_path / "loaded").touch()
    (tmp_path / "broken").unlink()
    until(lambda: "serves" in look_at_sidecar(name).words[0])
    assert check(name)[0] == 1  # for a minute


def test_sidecar_whose_processes_were_killed(
    name: str,
    tmp_path: Path,
    supervised: subprocess.Popen[bytes],
    until: Callable[..., None],
) -> None:
    (tmp_path / "loaded").touch()
    until(lambda: look_at_sidecar(name).status == 0)
    stop(supervised.pid)  # it replaces no worker, and a worker removes no ring
    os.kill(int(look_at_sidecar(name).words[0].split()[1]), signal.SIGKILL)
    supervised.kill()
    until(lambda: "ended" in look_at_sidecar(name).words[0])
    status, said = check(name)
    assert (status, commands(said)) == (2, [f"shmring sidecar MODULE:FUNCTION --name {name}"])
    assert (
        f"its processes have ended; only its ring is there, which `shmring gc sidecar.{name}`"
        in said
    )
    command = [sys.executable, "-m", "shmring", "sidecar", "model:Model", "--name", name]
    with subprocess.Popen([*command, "--workers", "1"], cwd=tmp_path) as again:
        until(lambda: check(name)[0] == 0)
        again.terminate()
    assert f"sidecar.{name}" not in shmring.rings()
