"""Resources that a host runs out of, and limits of a process: the ring says so or goes on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import shmring

# A user that is not root may make namespaces as the root of a user namespace.
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


# --- memory -----------------------------------------------------------------------------------


def test_without_file_descriptors_attach_is_an_error_and_nothing_leaks(ring, name, child):
    code = """
        import os, resource, sys
        import shmring
        def count():
            return len(os.listdir("/proc/self/fd"))
        before = count()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for room in range(2):  # attach opens two files: neither, or only one can be had
            resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + room, limits[1]))
            try:
                shmring.attach(sys.argv[1])
            except shmring.ShmringError as error:
                print("Too many open files" in str(error))
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert count() == before
        shmring.attach(sys.argv[1]).close()
        assert count() == before
    """
    lines = child(code, name).end().splitlines()
    assert lines == ["True", "True"]
    assert len(ring.participants()) == 1


def test_without_addresses_create_is_an_error_and_nothing_stays(tmp_path, child):
    code = """
        import os, resource, sys
        import shmring
        def have():
            return os.listdir(sys.argv[1]), len(os.listdir("/proc/self/fd"))
        path = f"{sys.argv[1]}/ring"
        page = os.sysconf("SC_PAGESIZE")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        def make(room):  # addresses for so many pages are left
            used = int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, ((used + room) * page, limits[1]))
            try:
                shmring.create(path=path, slots=1024).close()
            except MemoryError as error:
                return str(error)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
        before = have()
        failures = []
        for room in range(0, 4096, 8):
            failure = make(room)
            if failure is None:
                break
            failures.append(failure)
            assert have() == before, (room, failure, have())
        os.unlink(path)
        assert have() == before
        print(any("cannot make the file" in failure for failure in failures))
    """
    assert child(code, tmp_path).end().splitlines() == ["True"]


def test_ring_larger_than_a_file_may_be_names_the_limit_and_not_the_memory(name, child):
    code = """
        import os, resource, sys
        import shmring
        from shmring.sidecars import Sidecar
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for make in (lambda: shmring.create(sys.argv[1], slots=1024),
                     lambda: Sidecar("functions:identity", name=sys.argv[1]).start()):
            try:
                make()
            except shmring.NoSpace as error:
                print("100000 (ulimit -f)" in str(error),
                      any(w in str(error) for w in ("left; use", "shm-size")))
        assert not any(sys.argv[1] in file for file in os.listdir("/dev/shm"))
    """
    assert child(code, name).end().splitlines() == ["True False"] * 2


@pytest.mark.kill
def test_sidecar_goes_on_when_it_had_no_file_descriptors_or_processes_for_a_while(name, child):
    code = """
        import io, os, resource, signal, subprocess, sys, threading
        import pyarrow as pa
        from shmring.sidecars import Sidecar, SidecarClient

        class Said(io.StringIO):
            def __init__(self):
                super().__init__()
                self.line = threading.Event()
            def write(self, text):
                super().write(text)
                if text.endswith("\\n"):
                    self.line.set()

        def kill_worker():
            participants = client._requests.participants()
            alive = [s for s in participants if s["alive"]]
            (pid,) = {s["pid"] for s in alive if s["name"] == "functions:identity"}
            os.kill(pid, signal.SIGKILL)

        sys.stderr = said = Said()
        batch = pa.record_batch({"x": [1, 2]})
        name = sys.argv[1]
        sidecar = Sidecar("functions:identity", name=name)
        with sidecar, SidecarClient(name, timeout=60) as client:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            used = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
            assert said.line.wait(120)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            print(name in said.getvalue() and "Too many open files" in said.getvalue())
            kill_worker()
            assert list(client.map([batch])) == [batch]

            start, refused = subprocess.Popen, threading.Semaphore(0)
            def refuse(*_, **__):
                refused.release()
                raise BlockingIOError(11, "Resource temporarily unavailable")
            subprocess.Popen = refuse
            kill_worker()
            refused.acquire(timeout=120)
            subprocess.Popen = start
            assert list(client.map([batch])) == [batch]
            told = [line for line in said.getvalue().splitlines() if "temporarily" in line]
            print(all(name in line and "tried again in" in line for line in told))
    """
    assert child(code, name).end().splitlines() == ["True"] * 2


# --- users ------------------------------------------------------------------------------------


AS_OTHER_USER = """
    import os, sys
    import shmring
    name, group = sys.argv[1], int(sys.argv[2])
    os.setgroups([])
    os.setgid(group)
    os.setuid(65534)
    for options in ({}, {"foreign_owner": True}):
        try:
            with shmring.attach(name, **options) as ring, ring.producer() as out:
                out.push(b"from the group")
                print("pushed")
        except shmring.PermissionRefused as error:
            print("refused", "foreign_owner" in str(error))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="wants to become another user")
def test_consumer_of_the_group_takes_part_once_it_says_that_it_trusts_the_owner(name, child):
    with shmring.create(name, slots=1024, mode=0o660, temporary=True) as ring:
        os.chown(ring.path, -1, 54321)
        with ring.consumer("a") as inp:
            assert child(AS_OTHER_USER, name, 54321).end().splitlines() == [
                "refused True",
                "pushed",
            ]
            assert inp.pop(timeout=1) == b"from the group"
            assert child(AS_OTHER_USER, name, 54322).end().splitlines() == [
                "refused False",
                "refused False",
            ]


def test_link_planted_at_the_name_is_neither_followed_nor_removed(name, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = Path("/dev/shm") / f"shmring.{name}"
    link.symlink_to(victim)
    try:
        with pytest.raises(shmring.NotARing, match="symbolic link"):
            shmring.create(name, slots=1024)
        for call in (shmring.attach, shmring.open_or_create, shmring.gc):
            with pytest.raises(shmring.PermissionRefused, match="symbolic link"):
                call(name)
        assert link.is_symlink()
        assert victim.read_bytes() == b"precious"
    finally:
        link.unlink()


# --- the life of a process --------------------------------------------------------------------


def test_exec_in_the_middle_of_a_claim_counts_as_death(name, child, until):
    code = """
        import os, sys
        import shmring
        ring = shmring.attach(sys.argv[1])
        slot = ring.producer().claim(100)
        print("claimed", flush=True)
        sys.stdin.readline()
        os.execvp("cat", ["cat"])
    """
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        process = child(code, name)
        process.line()
        out.push(b"behind it")
        assert ring.recover() == 0
        process.say()
        assert inp.pop(timeout=120) == b"behind it"
        assert process.process.poll() is None  # the process lives, as another program
        until(lambda: len(ring.participants()) == 2, "only the living have seats")


# --- clocks -----------------------------------------------------------------------------------

# Each look at the wall clock goes an hour back, then a day ahead of the last.
JUMPING_CLOCK = """
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
	static atomic_int calls;
	int status = (int)syscall(SYS_clock_gettime, clock, time);
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
		int n = atomic_fetch_add(&calls, 1);
		time->tv_sec += n % 2 ? -3600 : 86400 * (n % 7);
	}
	return status;
}
"""


def test_wall_clock_that_jumps_changes_times_and_nothing_else(name, tmp_path, child, monkeypatch):
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(JUMPING_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    code = """
        import sys, threading
        import shmring
        with shmring.create(sys.argv[1], slots=1024, temporary=True) as ring:
            with ring.producer() as out, ring.consumer("a") as inp:
                for i in range(3000):
                    out.push(b"%d" % i)
                    assert inp.pop(timeout=120) == b"%d" % i
                    assert shmring.gc(sys.argv[1]) == []
                try:
                    inp.pop(timeout=0.01)
                except shmring.Empty:
                    print("timed out")
                threading.Timer(0.05, out.push, [b"late"]).start()
                print(inp.pop(timeout=120))
                out.push(b"a"), out.push(b"b")
                times = [row[2] for row in ring.rows()]
                print(max(times) - min(times) > 3_600_000_000_000)
    """
    assert child(code, name).end().splitlines() == ["timed out", "b'late'", "True"]


# --- namespaces -------------------------------------------------------------------------------

HOLD_AND_CLAIM = """
import os, sys
import shmring
ring = shmring.attach(sys.argv[1])
out, inp = ring.producer(), ring.consumer("a")
lease = inp.lease(timeout=120)
slot = out.claim(100)
print("pid", os.getpid(), flush=True)
sys.stdin.readline()
"""

IN_OTHER_PID_NAMESPACE = """
    import os, sys
    name, code, *options = sys.argv[1:]
    os.execvp("unshare", ["unshare", *options, "--pid", "--fork", "--kill-child",
                          sys.executable, "-u", "-c", code, name])
"""


def test_death_is_seen_across_pid_namespaces_and_life_too(ring, name, child, until):
    ring.subscribe("a")
    with ring.producer() as out:
        out.push(b"held")
        process = child(IN_OTHER_PID_NAMESPACE, name, HOLD_AND_CLAIM, *AS_ROOT)
        assert process.line() == "pid 1"  # its number says nothing here
        out.push(b"behind")
        for _ in range(100):
            assert ring.recover() == 0  # the process lives, and is waited for
        process.kill()
        with ring.consumer("a") as inp:
            assert inp.pop(timeout=120) == b"held"
            assert inp.pop(timeout=120) == b"behind"
        until(lambda: len(ring.participants()) == 1, "only the living have seats")
