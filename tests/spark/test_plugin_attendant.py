"""The attendant that the Spark plugin starts beside an executor, by itself: no Spark, no JVM."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from functions import numbers

import shmring
from shmring.sidecars.rings import Staff, serving
from shmring.sidecars.wire import request_ring_name

pytestmark = pytest.mark.slow


class Attendant:
    """The process, with the pipe that stands for the executor."""

    def __init__(self, stderr=None, **config):
        config = {"rings": {}, "sidecars": {}, **config}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmring.spark.attendant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self.process.stdin.write(json.dumps(config) + "\n")
        self.process.stdin.flush()

    def metrics(self):
        return json.loads(self.process.stdout.readline())

    def await_metrics(self, **wanted):
        while not wanted.items() <= (found := self.metrics()).items():
            pass
        return found

    def executor_dies(self):
        self.process.stdin.close()
        assert self.process.wait(120) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def attend():
    started = []

    def start(**config):
        started.append(Attendant(**config))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def served(name, attend):
    """An attendant of a command, which is a sidecar with one worker that is ready."""
    attendant = attend(sidecars={name: {"command": command(name)}})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    return attendant


def command(name):
    return f"{sys.executable} -m shmring sidecar functions:double --name {name}"


def ours(function, **options):
    """Settings of a sidecar of one of our functions, as the plugin's jar passes them on."""
    return {"function": f"functions:{function}", "workers": "1", **options}


def supervisors(name):
    """Return the supervisors in the sidecar's ring, on which clients wait for workers."""
    with (
        suppress(shmring.RingNotFound),
        shmring.attach(request_ring_name(name), read_only=True) as ring,
    ):
        return [each["pid"] for each in Staff.of(ring.participants()).supervisors]
    return []


def double(name):
    batch = pa.record_batch({"x": [1, 2, 3]})
    with shmring.SidecarClient(name, connect_timeout=60) as client:
        return [x for answer in client.map([batch]) for x in answer.column("x").to_pylist()]


def workers(name):
    return [worker["pid"] for worker in serving(name)]


def children_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(map(int, children.split()))


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid):
    """Whether the process is there, be it as a zombie."""
    return os.path.exists(f"/proc/{pid}")


def test_sidecar_serves_and_ends_with_the_executor(served, name):
    assert double(name) == [2, 4, 6]
    found = served.metrics()
    assert found[f"sidecar.{name}.running"] == 1
    assert found[f"sidecar.{name}.restarts"] == 0
    (worker,) = workers(name)
    served.executor_dies()
    assert not is_alive(worker)
    assert not [ring for ring in shmring.rings() if name in ring]


def test_sidecar_that_is_killed_is_started_again(served, name, until):
    (worker,) = workers(name)
    os.kill(parent(worker), signal.SIGKILL)
    served.await_metrics(**{f"sidecar.{name}.restarts": 1, f"sidecar.{name}.running": 1})
    until(lambda: not is_alive(worker), "the end of the orphan, not even a zombie")
    assert double(name) == [2, 4, 6]
    served.executor_dies()


def test_sidecar_is_started_again_while_nobody_reads_the_metrics(served, name, until):
    """The reader of the metrics stops, as a stopped executor does, and reads on later."""
    pipe = served.process.stdout.fileno()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    filling = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(filling, b" ")
    (killed,) = supervisors(name)
    os.kill(killed, signal.SIGKILL)
    until(lambda: supervisors(name) not in ([], [killed]), "another supervisor")
    os.close(filling)
    served.await_metrics(**{f"sidecar.{name}.restarts": 1})
    served.executor_dies()


def test_orphan_that_has_left_its_group_is_reaped_too(attend, name, tmp_path, until):
    """A sidecar of any kind: a subshell starts a process with a session of its own, and leaves."""
    pid = tmp_path / "pid"
    command = shlex.join(["sh", "-c", f"(setsid sh -c 'echo $$ > {pid}' &); exec sleep 1000"])
    attendant = attend(sidecars={name: {"command": command}})
    until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the orphan")
    until(lambda: not is_alive(int(pid.read_text())), "the end of the orphan")
    attendant.executor_dies()


def test_sidecar_ends_with_an_attendant_that_is_killed(served, name, until):
    (worker,) = workers(name)
    supervisor = parent(worker)
    served.kill()
    until(lambda: not is_alive(supervisor) and not is_alive(worker), "the sidecar's end")
    until(lambda: not [ring for ring in shmring.rings() if name in ring], "the end of its rings")


def test_sidecar_that_cannot_start_does_not_keep_others(attend, name, tmp_path, until):
    marker = tmp_path / "marker"
    of_kinds = {
        "missing": {"command": "/no/such/program"},
        "failing": {"command": "false"},
        "torn": {"command": "false 'a word"},
        "strange": ours("double", workers="none"),
        "strange-unknown": ours("double", wokers="1"),
        "strange-both": ours("double", command="true"),
        "unloadable": ours("FailsToLoad"),
        "working": {"command": f"sh -c 'echo \"$0\" > {marker}; exec sleep 1000' 'a word'"},
    }
    attendant = attend(sidecars={f"{name}-{kind}": of_kinds[kind] for kind in of_kinds})
    found = attendant.await_metrics(**{f"sidecar.{name}-working.running": 1})
    assert found[f"sidecar.{name}-missing.running"] == 0
    assert not [key for key in found if "torn" in key or "strange" in key]
    while min(found[f"sidecar.{name}-{kind}.restarts"] for kind in ("failing", "unloadable")) < 2:
        found = attendant.metrics()  # the second one may have been in the line above already
    until(lambda: marker.exists() and marker.read_text() == "a word\n", "the word")
    attendant.executor_dies()


def test_rings_live_as_long_as_the_executor(attend, name, until):
    attendant = attend(rings={name: {"slots": "1k"}})
    attendant.await_metrics(**{f"ring.{name}.claimed": 0})
    with shmring.attach(name) as ring:
        with ring.producer() as out:
            out.push(b"message")
        attendant.await_metrics(**{f"ring.{name}.claimed": 1})
    attendant.executor_dies()
    assert name not in shmring.rings()


def test_ring_that_others_use_stays(attend, name, capfd):
    attendant = attend(rings={name: {"slots": "1k"}})
    attendant.await_metrics(**{f"ring.{name}.claimed": 0})
    with shmring.attach(name):
        attendant.executor_dies()
        assert name in shmring.rings()
        attendant = attend(rings={name: {"slots": "2048"}})
        attendant.metrics()
        assert "exists already with 1024 slots and stays as it is" in capfd.readouterr().err
    attendant.executor_dies()
    assert name not in shmring.rings()


def have_rings(attendant, *names):
    """Let a child that runs attendant.main() make these rings, and wait until it has."""
    rings = {name: {"slots": "1k"} for name in names}
    attendant.say(json.dumps({"rings": rings, "sidecars": {}}))
    metrics = attendant.line()
    assert all(name in metrics for name in names)


def test_attendants_that_end_at_once_leave_no_ring(child, name):
    """Each closes its handle while the other one still has its own."""
    code = """
        import sys, shmring
        from shmring.spark import attendant
        close = shmring.Ring.close

        def wait_and_close(ring):
            print("closes")
            sys.stdin.readline()
            close(ring)

        shmring.Ring.close = wait_and_close
        attendant.main()
    """
    both = [child(code) for _ in range(2)]
    for each in both:
        have_rings(each, name)
    for each in both:
        each.process.terminate()
        while each.line() != "closes":
            pass
    for each in both:
        each.say()
        each.end()
    assert name not in shmring.rings()


def test_attendant_that_is_killed_while_it_leaves_its_ring_leaves_nothing_for_good(child, name):
    code = """
        import os, signal, shmring
        from shmring.spark import attendant
        close = shmring.Ring.close

        def close_and_die(ring):
            close(ring)
            os.kill(os.getpid(), signal.SIGKILL)

        shmring.Ring.close = close_and_die
        attendant.main()
    """
    killed = child(code)
    have_rings(killed, name)
    killed.process.terminate()
    assert killed.process.wait(120) == -signal.SIGKILL
    with suppress(shmring.RingNotFound):
        shmring.gc(name)
    assert name not in shmring.rings()


def test_ring_that_cannot_be_removed_keeps_no_other_one(child, name):
    other = f"{name}-other"
    code = """
        import sys, shmring
        from shmring.spark import attendant
        remove = attendant.remove

        def refuse(path, *arguments, **options):
            if path.endswith("-other"):
                return remove(path, *arguments, **options)
            raise shmring.Contended("another process is stopped")

        attendant.remove = refuse
        attendant.main()
    """
    attendant = child(code)
    have_rings(attendant, name, other)
    attendant.process.terminate()
    _, said = attendant.process.communicate(timeout=120)
    error = f'ring "{name}" cannot be removed: another process is stopped'
    assert said.decode() == f"shmring: {error}\n"
    assert attendant.process.returncode == 0
    assert other not in shmring.rings()
    shmring.unlink(name)


def test_attendants_that_end_as_soon_as_they_have_started_leave_nothing(attend, name):
    config = {"rings": {name: {"slots": "1k"}}, "sidecars": {name: ours("double", shared="true")}}
    started = [attend(**config) for _ in range(3)]
    for each in started:
        each.process.stdin.close()
    assert [each.process.wait(120) for each in started] == [0] * 3
    assert not [ring for ring in shmring.rings() if name in ring]
    assert not turns(name)


def test_what_killed_sidecars_have_left_is_swept(attend, child, name):
    dead = child(
        """
        import sys, shmring
        ring = shmring.create(sys.argv[1])
        print("made")
        input()
        """,
        request_ring_name(name),
    )
    dead.line()
    dead.kill()
    attendant = attend(sidecars={name: {"command": "sleep 1000"}})
    attendant.metrics()
    assert request_ring_name(name) not in shmring.rings()
    attendant.executor_dies()


def test_children_of_a_shell_get_their_time_to_end(attend, name):
    shell = shlex.join(["sh", "-c", f"{command(name)}; true"])
    attendant = attend(sidecars={name: {"command": shell}})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    attendant.process.terminate()
    assert attendant.process.wait(120) == 0
    assert not [ring for ring in shmring.rings() if name in ring]


def test_rings_of_a_sidecar_that_has_to_be_killed_go_with_it(child, name, until):
    code = """
        from shmring.spark import attendant
        attendant._GRACE = 0.0
        attendant.main()
    """
    attendant = child(code)
    sidecar = {"command": f"{command(name)} --workers 3"}
    attendant.say(json.dumps({"rings": {}, "sidecars": {name: sidecar}}))
    until(lambda: len(workers(name)) == 3, "the workers")
    for pid in (parent(workers(name)[0]), *workers(name)):
        os.kill(pid, signal.SIGSTOP)
    attendant.process.terminate()
    assert attendant.process.wait(120) == 0
    assert not [ring for ring in shmring.rings() if name in ring]


# --- functions: workers of the attendant's own ---------------------------------------------------


def test_workers_of_functions_are_the_attendants_own(attend, name):
    names = [f"{name}-{letter}" for letter in "ab"]
    attendant = attend(sidecars={each: ours("double", workers="2") for each in names})
    attendant.await_metrics(**{f"sidecar.{each}.workers": 2 for each in names})
    assert children_of(attendant.process.pid) == sorted(
        pid for each in names for pid in workers(each)
    )
    assert [double(each) for each in names] == [[2, 4, 6]] * 2
    attendant.executor_dies()
    assert not [ring for ring in shmring.rings() if name in ring]


# CHANGE: edit this for a new option of a sidecar
def test_options_are_obeyed(attend, name):
    options = {"slots": "2k", "timeout": "60", "maxBatchRows": "20", "maxWaitMs": "0.5"}
    attendant = attend(sidecars={name: {"function": "functions:marked", **options}})
    found = attendant.await_metrics(**{f"sidecar.{name}.workers": 2})  # the decorator's number
    assert found[f"sidecar.{name}.running"] == 1
    (worker, _) = workers(name)
    words = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    assert json.loads(words[-2]) == {
        "max_batch_rows": 20,
        "max_wait_ms": 0.5,
        "pin": False,
    }
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        assert ring.slots == 2048
    attendant.executor_dies()


def test_worker_is_replaced_where_the_log_cannot_be_written(attend, name):
    with open("/dev/full", "w") as full:
        attendant = attend(sidecars={name: ours("double")}, stderr=full)
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    os.kill(*workers(name), signal.SIGKILL)
    attendant.await_metrics(**{f"sidecar.{name}.restarts": 1, f"sidecar.{name}.workers": 1})
    assert double(name) == [2, 4, 6]
    attendant.executor_dies()
    assert not [ring for ring in shmring.rings() if name in ring]


def test_workers_of_an_attendant_that_is_killed_end_and_leave_no_ring(attend, name, until):
    attendant = attend(sidecars={name: ours("double", workers="2")})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 2})
    pids = workers(name)
    attendant.kill()
    until(lambda: not any(map(is_alive, pids)), "the workers' end")
    # The worker that ends last removes the ring, or if it is slow a process that it leaves.
    until(lambda: not [ring for ring in shmring.rings() if name in ring], "the end of the ring")


@pytest.mark.parametrize("shared", ["false", "true"])
def test_next_attendant_goes_on_with_the_requests_of_one_that_was_killed(
    attend, name, marker, thread, until, shared
):
    """One that comes then, or that has waited for its turn with a sidecar that both share."""
    first = attend(sidecars={name: ours("wait_for_marker", shared=shared)})
    first.await_metrics(**{f"sidecar.{name}.workers": 1})
    before = workers(name)
    if shared == "true":
        second = attend(sidecars={name: ours("wait_for_marker", shared="true")})
        second.metrics()

    def ask():
        with shmring.SidecarClient(name, connect_timeout=60) as client:
            return list(client.map([numbers(i) for i in range(5)]))

    asking = thread(ask)
    until(marker.with_suffix(".begun").exists)
    first.kill()
    if shared == "false":
        second = attend(sidecars={name: ours("wait_for_marker")})
    marker.touch()
    assert asking.outcome() == [numbers(i) for i in range(5)]
    while set(workers(name)) & set(before):
        second.metrics()
    second.await_metrics(**{f"sidecar.{name}.workers": 1, f"sidecar.{name}.running": 1})
    second.executor_dies()
    assert not [ring for ring in shmring.rings() if name in ring]


def test_what_a_functions_worker_has_started_ends_with_it(attend, name, marker, until):
    attendant = attend(sidecars={name: ours("StartsAnother")})
    attendant.await_metrics(**{f"sidecar.{name}.workers": 1})
    started = int(marker.read_text())
    os.kill(*workers(name), signal.SIGKILL)
    until(lambda: not is_alive(started), "the end of the worker's own process")
    attendant.await_metrics(**{f"sidecar.{name}.restarts": 1, f"sidecar.{name}.workers": 1})
    started = int(marker.read_text())
    attendant.executor_dies()
    assert not is_alive(started)


def test_what_functions_print_is_no_metric(attend, name):
    attendant = attend(sidecars={name: ours("print_much")})
    with shmring.SidecarClient(name, connect_timeout=60) as client:
        assert list(client.map([numbers(0)])) == [numbers(0)]
    attendant.metrics()
    attendant.executor_dies()


def test_ring_that_another_executors_last_sidecar_has_removed_is_made_again(attend, name, until):
    attendant = attend(sidecars={name: ours("FailsToLoad")})
    attendant.await_metrics(**{f"sidecar.{name}.restarts": 1})
    shmring.unlink(request_ring_name(name))
    until(lambda: request_ring_name(name) in shmring.rings(), "the ring")
    attendant.executor_dies()
    assert request_ring_name(name) not in shmring.rings()


# --- one for all executors of a host ------------------------------------------------------------


def turns(name):
    return [
        file for file in os.listdir("/dev/shm") if file.startswith(".shmring-") and name in file
    ]


@pytest.fixture
def two(attend, name, until):
    """Attendants of two executors that share a sidecar; the first one runs it."""
    running = attend(sidecars={name: ours("double", shared="true")})
    running.await_metrics(**{f"sidecar.{name}.workers": 1})
    other = attend(sidecars={name: ours("double", shared="true")})
    other.await_metrics(**{f"sidecar.{name}.workers": 1, f"sidecar.{name}.running": 0})
    until(lambda: supervisors(name) == [running.process.pid], "the other one to step back")
    return running, other


def test_executors_of_a_host_share_a_sidecar_that_ends_with_the_last_of_them(two, name):
    first, second = two
    assert len(workers(name)) == 1
    second.executor_dies()
    assert double(name) == [2, 4, 6]
    assert first.metrics()[f"sidecar.{name}.restarts"] == 0
    first.executor_dies()
    assert not [ring for ring in shmring.rings() if name in ring]
    assert not turns(name)


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "open to all", "another user's"])
def test_shared_sidecar_whose_turn_a_stranger_has_planted_says_so(attend, name, tmp_path, kind):
    planted = Path(f"/dev/shm/.shmring-turn-{request_ring_name(name)}")
    second = planted.with_name(f"{planted.name}-second")
    if kind == "link":
        planted.symlink_to(tmp_path / "precious")
    elif kind == "second name":
        planted.touch()
        second.hardlink_to(planted)
    elif kind == "pipe":
        os.mkfifo(planted)
    elif kind == "open to all":
        planted.touch()
        planted.chmod(0o666)
    elif os.getuid() == 0:
        planted.touch()
        os.chown(planted, 54321, -1)
    else:
        pytest.skip("wants a file of another user")
    sidecar = {"command": "sleep 1000", "shared": "true"}
    with attend(stderr=subprocess.PIPE, sidecars={name: sidecar}).process.stderr as said:
        assert planted.name in next(line for line in said if "cannot be started" in line)
    planted.unlink()
    second.unlink(missing_ok=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_another_executor_takes_a_shared_sidecar_over(two, name, until):
    first, second = two
    (worker,) = workers(name)
    first.executor_dies()
    second.await_metrics(**{f"sidecar.{name}.running": 1})
    until(lambda: not is_alive(worker), "the end of the first one's worker")
    assert double(name) == [2, 4, 6]
    assert len(workers(name)) == 1
    second.executor_dies()
    assert not [ring for ring in shmring.rings() if name in ring]
    assert not turns(name)
