"""Sidecars of one name: which may share it, and how one takes the place of another."""

from __future__ import annotations

import signal
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from functions import numbers

import shmring
from shmring.sidecars import Sidecar, SidecarClient
from shmring.sidecars.identity import Identity, source_of
from shmring.sidecars.rings import serving
from shmring.sidecars.wire import request_ring_name

SERVER = """
import os, time
import pyarrow as pa

def serve(batch):
    path = os.environ.get("SHMRING_TEST_MARKER", "")
    if batch.num_rows == 2:
        open(path + ".begun", "w").close()
        while not os.path.exists(path):
            time.sleep(0.01)
    return pa.record_batch({{"by": [{}] * batch.num_rows}})
"""
ONE, TWO = pa.record_batch({"x": [0]}), pa.record_batch({"x": [0, 0]})  # TWO waits for the marker


@pytest.fixture
def deploy(command, name, tmp_path):
    """Starts `shmring sidecar server:serve` in a folder whose server.py answers with `by`."""

    def start(folder: str, by: int, *options: object):
        where = tmp_path / folder
        where.mkdir(exist_ok=True)
        (where / "server.py").write_text(SERVER.format(by))
        return command("sidecar", "server:serve", "--name", name, *options, cwd=where)

    return start


def is_ready(process) -> bool:
    """Whether a sidecar's process says so; its log is read until then."""
    return any(b" is ready: " in line for line in process.stderr)


def refusal(process) -> str:
    _, errors = process.communicate()
    assert process.returncode == 1
    return errors.decode()


def stop(process) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate()


def by(name: str) -> int:
    with SidecarClient(name) as client:
        (answer,) = client.map([ONE])
    return answer["by"][0].as_py()


# --- sidecars with one name -----------------------------------------------------------------------


def test_sidecar_with_other_code_is_refused_and_the_first_one_serves(deploy, name, tmp_path):
    first = deploy("blue", 1)
    assert is_ready(first)
    said = refusal(deploy("green", 2))
    assert (
        f'sidecar "{name}" is served by process {first.pid}, started in {tmp_path / "blue"}, '
        f"with other code; choose another name (--name, name=), or stop process {first.pid}, or "
        f"take its place with --replace (replace=True)"
    ) in said
    assert [by(name) for _ in range(10)] == [1] * 10
    stop(first)
    assert request_ring_name(name) not in shmring.rings()


def test_file_that_was_changed_since_the_start_is_other_code(deploy, name):
    first = deploy("blue", 1)
    assert is_ready(first)
    assert "with other code" in refusal(deploy("blue", 2))
    stop(first)


def test_executors_folders_with_the_same_file_share_a_name(deploy, name):
    first, second = deploy("blue", 1), deploy("green", 1)
    assert is_ready(first)
    assert is_ready(second)
    assert len(serving(name)) == 2
    stop(first)
    assert by(name) == 1
    stop(second)


@pytest.mark.long
def test_of_sidecars_that_start_at_once_all_that_serve_are_the_same(deploy, name):
    started = {deploy(f"folder{number}", number % 2): number % 2 for number in range(4)}
    ready = {served for process, served in started.items() if is_ready(process)}
    assert len(ready) == 1
    assert {by(name) for _ in range(10)} == ready
    for process in started:
        stop(process)


# CHANGE: edit this for a new option of a sidecar
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"slots": 2048}, "a request ring of 1024 slots instead of 2048"),
        ({"max_batch_rows": 10}, "other values of max_batch_rows, max_wait_ms or pin"),
        ({"pin": True}, "other values of max_batch_rows, max_wait_ms or pin"),
    ],
)
def test_options_that_differ_are_refused_and_not_ignored(serve, name, option, words):
    first = serve("identity", slots=1024)
    with pytest.raises(shmring.SidecarMismatch, match=words):
        serve("identity", **option)
    assert len(serving(name)) == 1
    serve("identity", workers=2)  # any number of workers, in the existing ring
    assert len(serving(name)) == 3
    assert first.slots == 1024


def test_other_function_and_other_python_are_refused(serve, monkeypatch):
    serve("identity")
    with pytest.raises(shmring.SidecarMismatch, match="with other code"):
        serve("double")
    monkeypatch.setattr("platform.python_version", lambda: "2.7.18")
    version = f"with Python {sys.version.split()[0]} instead of 2.7.18"
    with pytest.raises(shmring.SidecarMismatch, match=version):
        serve("identity")


def test_ring_with_waiting_clients_keeps_its_size(serve, client, name):
    first = serve("identity", slots=1024)
    client()
    first.stop()
    with shmring.open_or_create(request_ring_name(name), slots=1024) as ring, ring.producer():
        with pytest.raises(shmring.SidecarMismatch, match="there is already a request ring"):
            serve("identity", slots=2048)
        serve("identity")
        ring.keep()


def test_digest_is_of_the_workers_module_and_imports_nothing(tmp_path, monkeypatch):
    package = tmp_path / "shmring_never_imported"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "inner.py").write_text("inner")
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("shmring_in_archive.py", "zipped")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "job.zip")])
    assert source_of("shmring_never_imported.inner") == b"inner"
    assert source_of("shmring_in_archive") == b"zipped"
    assert source_of("shmring_nowhere.inner") == source_of("sys") == b""
    one = Identity.of("shmring_never_imported.inner:f", "{}")
    assert one == Identity.of("shmring_never_imported.inner:f", "{}")
    assert one.code != Identity.of("shmring_never_imported.inner:g", "{}").code
    assert len(f"supervisor 9999 {' '.join(one)}") <= 55  # bytes of a name that the ring keeps


# --- one after the other --------------------------------------------------------------------------


def test_replaced_sidecar_finishes_its_requests_and_ends(deploy, name, thread, marker, until):
    first = deploy("blue", 1)
    assert is_ready(first)
    with SidecarClient(name) as waiting, SidecarClient(name) as going:
        slow = thread(lambda: list(waiting.map([TWO])))
        until(Path(f"{marker}.begun").exists)
        second = deploy("green", 2, "--replace")
        assert is_ready(second)
        assert [answer["by"][0].as_py() for answer in going.map([ONE] * 10)] == [2] * 10
        assert first.poll() is None  # the first server is still handling a request
        marker.touch()
        (answer,) = slow.outcome()
        assert answer["by"].to_pylist() == [1, 1]
    _, errors = first.communicate()
    assert first.returncode == 0
    assert f"process {second.pid} serves from now on" in errors.decode()
    assert by(name) == 2
    stop(second)
    assert request_ring_name(name) not in shmring.rings()


def test_no_request_is_lost_or_fails_while_sidecars_replace_each_other(deploy, name, thread):
    running = deploy("folder0", 0)
    assert is_ready(running)
    stopping = False

    def ask():
        with SidecarClient(name) as client:
            number = 0
            while not stopping:
                batches = [pa.record_batch({"x": [0] * 3})] * 20
                number += len(list(client.map(batches)))
            return number

    asking = [thread(ask) for _ in range(2)]
    for number in range(1, 3):
        successor = deploy(f"folder{number}", number, "--replace")
        assert is_ready(successor)
        running.communicate()
        assert running.returncode == 0
        assert by(name) == number
        running = successor
    stopping = True
    for each in asking:
        assert each.outcome() > 0
    stop(running)


def test_successor_that_does_not_load_leaves_the_name_to_the_one_that_serves(serve, name):
    serve("identity")
    with pytest.raises(shmring.SidecarUnavailable):
        serve("missing", replace=True)
    with SidecarClient(name) as client:
        assert list(client.map([numbers(1)])) == [numbers(1)]


def test_sidecar_of_a_program_that_was_replaced_has_ended_and_may_start_again(serve, name, until):
    first = serve("identity")
    second = serve("double", replace=True)
    first.serve_forever()
    until(lambda: not first.pids)
    first.stop()
    with pytest.raises(shmring.SidecarMismatch):
        first.start()
    second.stop()
    first.start()
    assert len(serving(name)) == 1


def test_replacing_keeps_the_ring_and_so_its_size(serve):
    serve("identity", slots=1024)
    with pytest.raises(shmring.SidecarMismatch, match="a request ring keeps its size"):
        serve("double", slots=2048, replace=True)


def test_sidecar_whose_workers_fail_keeps_its_name_and_can_be_replaced(
    name, serve, monkeypatch, until
):
    monkeypatch.setattr("shmring.sidecars.server.LOOK_EVERY", 0.01)
    first = serve("Model")
    monkeypatch.setattr(first._supervisor, "target", "functions:missing")
    first._supervisor.signal(signal.SIGKILL)
    with shmring.attach(request_ring_name(name), read_only=True) as ring:
        until(lambda: any(each["name"].startswith("failing ") for each in ring.participants()))
    with pytest.raises(shmring.SidecarMismatch):
        serve("identity")
    serve("identity", replace=True)
    until(lambda: not first.pids)
    with SidecarClient(name) as client:
        assert list(client.map([numbers(1)])) == [numbers(1)]


def test_sidecar_that_does_not_react_is_named(serve, name, child, monkeypatch):
    code = """
    import sys
    from shmring.sidecars.supervisor import Supervisor
    supervisor = Supervisor("functions:identity", sys.argv[1], workers=1, slots=1024)
    supervisor.open()
    print("is open")
    sys.stdin.readline()
    supervisor.close()
    """
    silent = child(code, name)
    assert silent.line() == "is open"
    sidecar = Sidecar("functions:identity", name=name, replace=True)
    await_replaced = Sidecar._await_replaced
    # The worker has loaded by then, and has had all the time that it takes.
    monkeypatch.setattr(Sidecar, "_await_replaced", lambda it, deadline: await_replaced(it, 0.0))
    with pytest.raises(shmring.SidecarUnavailable, match=f"process {silent.process.pid}, which"):
        sidecar.start(timeout=600)
    silent.say()
    silent.end()
