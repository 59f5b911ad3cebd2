"""`shmring check`: sick rings with real processes, its words and status, and the mending."""

from __future__ import annotations

import contextlib
import json
import shlex
import struct
import subprocess
import sys
import uuid
from pathlib import Path

import checking
import pytest
from checking import ENVIRONMENT, check, commands, mend, says, shell, stop
from companion import place
from damage import overwrite
from fixture_types import RunChild
from programs import ended

import shmring
from shmring.ring.names import STAGING

pytestmark = pytest.mark.kill
ring = checking.ring

CONSUMER = """
    import sys, shmring
    with shmring.attach(sys.argv[1]) as ring, ring.consumer("b", name="reader") as inp:
        lease = inp.lease(timeout=60)
        print("holds", flush=True)
        sys.stdin.readline()
"""


def fill(ring: shmring.Ring) -> shmring.Producer:
    out = ring.producer("feed", when_full="raise")
    with contextlib.suppress(shmring.Full):
        while True:
            out.push(b"x")
    return out


def test_all_is_well(ring: shmring.Ring, name: str) -> None:
    with ring.producer(), ring.consumer("b"):
        assert check(name) == (0, "all is well: 1 ring and 0 sidecars\n")


@pytest.mark.parametrize("name", ["", "a b", ".x", "-x"])
def test_impossible_name_is_said_to_be_one(name: str) -> None:
    says(f"-- {shlex.quote(name)}", 2, "", f"{name!r} cannot name a ring")


def test_path_without_a_ring_is_made_where_it_can_be(tmp_path: Path) -> None:
    mend(says(tmp_path / "-x", 2, f"shmring create {tmp_path}/-x"))
    assert check(tmp_path / "-x")[0] < 2
    again = shell(f"cd {tmp_path} && shmring create ./-x").stderr
    assert again.endswith(
        f'ring "{tmp_path}/-x" exists already; attach to it, or unlink it first\n'
    )
    says(tmp_path / "none" / "x", 2, "", f"there is no folder {tmp_path}/none\n")
    with pytest.raises(shmring.RingNotFound, match="there is no folder"):
        shmring.attach(path=tmp_path / "none" / "x")


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/null", "/", "/dev/shm", "/dev/shm/.."])
def test_no_file_but_a_named_ring_is_to_be_removed(path: str) -> None:
    says(path, 2, "", f'stuck: ring "{path}": ')


def test_file_that_has_a_rings_name_and_is_none_is_removed(name: str) -> None:
    Path(f"/dev/shm/shmring.{name}").write_bytes(b"notes")
    mend(says(name, 2, f"rm /dev/shm/shmring.{name}"))
    assert name not in shmring.rings()


def test_folder_that_has_a_rings_name_is_removed(name: str) -> None:
    Path(f"/dev/shm/shmring.{name}").mkdir()
    mend(says(name, 2, f"rmdir /dev/shm/shmring.{name}"))


def test_ring_for_which_there_is_no_memory_now_is_not_to_be_unlinked(
    ring: shmring.Ring, name: str, child: RunChild
) -> None:
    code = """
        import resource, sys
        from shmring.observers.findings import findings
        from shmring.observers.host import Observer
        large = Observer([sys.argv[1]])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
        print([each[1::4] for each in findings(large.look())], flush=True)
    """
    with shmring.create(f"{name}-2", temporary=True) as large:
        assert child(code, large.name).line() == "[('unreadable', '')]"


def test_link_is_said_to_be_one(ring: shmring.Ring, name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ring.path)
    said = says(
        tmp_path / "link",
        2,
        f"shmring check {ring.path}",
        f"the path is a symbolic link, which is refused; it leads to {ring.path}\n",
    )
    with ring.producer(), ring.consumer("b"):
        mend(said)
    both = json.loads(check(tmp_path / "link", name, "--json")[1])
    assert both["rings"] == [str(tmp_path / "link"), name]


def test_link_that_leads_nowhere_is_no_ring_that_is_well(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    says(tmp_path / "link", 2, "", f"it leads to {tmp_path}/nothing, where nothing is")
    Path(f"/dev/shm/shmring.{name}").symlink_to(tmp_path / "nothing")
    assert f'ring "{name}"' in check()[1]
    mend(says(name, 2, f"rm /dev/shm/shmring.{name}"))
    assert name not in shmring.rings()


def test_branch_without_a_consumer_holds_producers(ring: shmring.Ring, name: str) -> None:
    ring.subscribe("billing")
    with fill(ring) as out:
        stuck = f'stuck: ring "{name}": branch "billing" has no consumer, and holds the pro'
        mend(says(name, 2, f"shmring drop-branch {name} billing", stuck))
        out.push(b"goes on")
        assert check(name)[0] == 0


def test_branch_that_is_called_like_an_option_is_dropped(ring: shmring.Ring, name: str) -> None:
    ring.subscribe("--help")
    with fill(ring) as out:
        mend(says(name, 2, f"shmring drop-branch {name} -- --help"))
        out.push(b"goes on")


def test_branch_that_is_to_be_read_later_is_no_trouble(ring: shmring.Ring, name: str) -> None:
    ring.subscribe("billing")
    with ring.producer() as out:
        out.push(b"x")
        assert check(name)[0] == 0
        status, said = check(name, "--age", 0)
        assert (status, "warning: " in said) == (1, True)


def test_producer_that_is_stopped_in_a_claim(
    ring: shmring.Ring, name: str, child: RunChild
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
        feed.line()  # the message goes through the claim
        feed.say()
        feed.end()
        feed = child(code, name)
        feed.line()
        stop(feed.pid)
        stopped = f'producer "feed" (pid {feed.pid}) is stopped and has an open claim at'
        mend(says(name, 2, f"kill -CONT {feed.pid}", stopped))
        feed.say()
        assert [inp.pop(timeout=60), inp.pop(timeout=60)] == [b"hello", b"hello"]
        assert check(name)[0] == 0


def test_consumer_that_is_stopped_with_a_lease(
    ring: shmring.Ring, out: shmring.Producer, name: str, child: RunChild
) -> None:
    out.push(b"x")
    reader = child(CONSUMER, name)
    reader.line()
    stop(reader.pid)
    stopped = f'consumer "reader" (pid {reader.pid}) is stopped and holds messages from'
    says(name, 1, f"kill -CONT {reader.pid}", stopped)
    with fill(ring):
        said = says(name, 2, f"kill -CONT {reader.pid}")
    mend(said)
    reader.say()
    reader.end()


def test_consumer_that_hangs_with_a_lease(ring: shmring.Ring, name: str, child: RunChild) -> None:
    with ring.producer() as out, ring.consumer("b", name="other") as other:
        out.push(b"x")
        reader = child(CONSUMER, name)
        reader.line()
        assert check(name)[0] == 0  # for less than a minute
        status, said = check(name, "--age", 1)  # the second look comes a second later
        while not status:
            status, said = check(name, "--age", 1)
        assert status == 1
        assert f'consumer "reader" (pid {reader.pid}) of branch "b" has held a message for' in said
        assert commands(said) == [f"kill -9 {reader.pid}"]
        mend(said)
        assert other.pop(timeout=60) == b"x"
        reader.process.wait()
        assert check(name, "--age", 1)[0] == 0


def test_consumers_that_take_nothing(ring: shmring.Ring, name: str, child: RunChild) -> None:
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
        idle = f'branch "b": consumer "reader" (pid {reader.pid}) takes nothing, and 1 of'
        says(f"{name} --age 0", 1, f"kill -9 {reader.pid}", idle)
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
        with ring.consumer("b") as inp:  # the branch then waits for this consumer
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
        says(f"{name} --age 0", 1, "", "takes nothing")
        reader.communicate(b"\n")


def test_claim_that_stays_open(ring: shmring.Ring, name: str) -> None:
    with ring.producer("feed") as out, ring.producer() as other, ring.consumer("b"):
        with out.claim(1) as claim:
            other.push(b"x")
            says(name, 1, "", "keeps a claim open, for which all that is behind waits")
            claim.commit()
        assert check(name)[0] == 0


def test_ring_whose_participants_have_died(name: str, child: RunChild) -> None:
    code = """
        import sys, shmring
        ring = shmring.create(sys.argv[1], slots=1024)
        ring.subscribe("b")
        out = ring.producer()
        out.push(b"x")
        print("there", flush=True)
        sys.stdin.readline()
    """
    feed = child(code, name)
    feed.line()
    feed.kill()
    mend(
        says(
            name,
            1,
            f"shmring gc {name}",
            "its participant has died. Start the program that reads it, or let",
        )
    )
    assert name not in shmring.rings()
    assert check(name)[0] == 2


def test_check_and_gc_say_the_same_of_rubbish_behind_a_header(name: str) -> None:
    shmring.create(name, slots=1024).close()
    overwrite(f"/dev/shm/shmring.{name}", 4096, b"rubbish!" * 65_536)
    said = says(
        name,
        2,
        f"shmring unlink {name}",
        "its participants' entries are damaged, and nobody alive is among them",
    )
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
    consume, unlink = commands(said)
    assert (status, unlink) == (1, f"shmring unlink {name}")
    assert "nobody is attached to it" in said
    assert shell(consume).stdout == "x\n"
    assert commands(check(name)[1]) == [unlink]
    shmring.unlink(name)


def test_ring_to_which_nobody_is_attached(name: str) -> None:
    shmring.create(name, slots=1024).close()
    mend(says(name, 1, f"shmring unlink {name}", "nobody is attached to it"))
    assert name not in shmring.rings()


def test_command_for_a_ring_at_a_path_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "it's a ring"
    shmring.create(path=path, slots=1024).close()
    mend(says(shlex.quote(str(path)), 1, f"shmring unlink {shlex.quote(str(path))}"))
    assert not path.exists()


def test_ring_to_which_nobody_is_attached_and_whose_messages_wait(name: str) -> None:
    with shmring.create(name, slots=1024) as ring, ring.producer() as out:
        ring.subscribe("read", drop_oldest=True)
        ring.subscribe("later")
        out.push_many([b"x", b"y"])
        out.push(b"z")
    _, said = check(name)
    assert "Start the program that reads it, or let the command remove it: the 3 messages" in said
    status, said = check(name, "--age", 0)
    assert (status, commands(said)) == (
        1,
        [f"shmring drop-branch {name} later", f"shmring unlink {name}"],
    )
    assert "Start its reader, or let the command drop the branch: the 3 messages waiting" in said
    shmring.unlink(name)


LEASES_ALL = """
    import sys, shmring
    with shmring.create(sys.argv[1], slots=1024) as ring, ring.producer() as out:
        with ring.consumer("b") as inp:
            out.push_many([b"m"] * 40)
            leases = inp.lease_many(30), inp.lease_many(10)
            print("holds", flush=True)
            sys.stdin.readline()
"""


def test_messages_that_dead_consumers_held_wait(name: str, child: RunChild) -> None:
    holder = child(LEASES_ALL, name)
    holder.line()
    holder.kill()
    would_go = "40 messages waiting in it would go with it"
    says(name, 1, f"shmring gc {name}", would_go)
    assert would_go in shell(f"shmring gc --dry-run {name}").stderr
    with shmring.attach(name) as ring:
        assert [branch["waiting"] for branch in ring.stats()["branches"]] == [40]
        ring.recover()
        assert [branch["waiting"] for branch in ring.stats()["branches"]] == [40]
    assert would_go in check(name)[1]
    shmring.unlink(name)


def test_orphans_that_nobody_takes(out: shmring.Producer, name: str, child: RunChild) -> None:
    out.push(b"x")
    reader = child(CONSUMER, name)
    reader.line()
    reader.kill()
    waiting = 'branch "b" has 1 message waiting, and no consumer: some were handed'
    consume = f"shmring consume {name} --branch b --until empty"
    says(name, 1, consume, waiting)
    assert shell(consume).stdout == "x\n"
    assert check(name)[0] == 0


def test_a_message_that_is_delivered_again_and_again(
    ring: shmring.Ring, out: shmring.Producer, name: str, child: RunChild
) -> None:
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


def test_participants_are_used_up_by_the_dead(name: str, child: RunChild) -> None:
    code = """
        import sys, shmring
        rings = [shmring.attach(sys.argv[1]) for _ in range(int(sys.argv[2]))]
        print("there", flush=True)
        sys.stdin.readline()
    """
    with shmring.create(name, slots=1024, participants=32, temporary=True) as ring:
        crowd = child(code, name, 29)
        crowd.line()
        says(name, 1, "", "30 of 32 participants are used, 0 of them by the dead")
        crowd.kill()
        used = "30 of 32 participants are used, 29 of them by the dead"
        mend(says(name, 1, f"shmring recover {name}", used))
        assert len(ring.participants()) == 1
        assert check(name)[0] == 0


def test_ring_of_another_layout(name: str) -> None:
    shmring.create(name, slots=1024).close()
    (major,) = struct.unpack_from("<I", Path(f"/dev/shm/shmring.{name}").read_bytes(), 8)
    overwrite(f"/dev/shm/shmring.{name}", 8, struct.pack("<I", major + 1))
    says(name, 2, "", "layout")
    shmring.unlink(name)


def test_folder_that_a_dead_driver_has_staged(ring: shmring.Ring, name: str) -> None:
    staged = Path(place(ring.path, STAGING, str(uuid.uuid4())))
    staged.mkdir()
    with ring.producer(), ring.consumer("b"):
        said = says(name, 1, f"shmring gc {name}")
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
    said = ended("unshare", "-Urm", "bash", "-c", script, env=ENVIRONMENT, check=True)
    listed, end = said.stdout.split("status 1\n")
    assert "/dev/shm has 64 MiB, of which " in listed
    assert "no further ring of the usual size fits" in listed
    assert end == "big\n['small']\nall is well: 1 ring and 0 sidecars\n"
