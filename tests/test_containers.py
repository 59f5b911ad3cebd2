"""Executor and sidecar in containers: mount and PID namespaces of their own, one tmpfs of 64 MB.

The arrangement of docs/guides/containers.md, made with unshare(1).
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from blocks import ROOT
from programs import ended

import shmring

pytestmark = pytest.mark.kill

HERE = str(Path(__file__).parent)
SOURCE = str(Path(shmring.__file__).parent.parent)
# The pod has a PID namespace too, so that no container outlives the test.
POD = [
    *("unshare", "-Urmpf", "--mount-proc", "--kill-child"),
    *("sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'),
]

PRELUDE = """
    import os, signal, subprocess, sys
    from pathlib import Path

    import shmring

    PIPE_HOLDS = 65536 // 257  # lines that may be from before
    CONTAINER = ["unshare", "-mpf", "--mount-proc", "--kill-child", sys.executable]
    EXECUTOR = '''
    import pyarrow as pa
    from shmring.sidecars import SidecarClient

    def batches():
        number = 0
        while True:
            yield pa.record_batch({"x": [number]})
            number += 1

    with SidecarClient("s", connect_timeout=300) as client:
        for number, answer in enumerate(client.map(batches())):
            assert answer["x"][0].as_py() == number
            print(f"{number:256}", flush=True)
    '''

    class Container:
        def __init__(self, *command):
            self.process = subprocess.Popen(
                [*CONTAINER, *command], stdout=subprocess.PIPE, text=True
            )

        def line(self):
            line = self.process.stdout.readline()
            assert line, "the container has ended"
            return line

        def goes_on(self):
            for _ in range(PIPE_HOLDS + 100):
                self.line()

        def kill(self):
            self.process.kill()
            self.process.communicate()

        def terminate(self):
            of = self.process.pid
            inside = Path(f"/proc/{of}/task/{of}/children").read_text().split()
            os.kill(int(inside[0]), signal.SIGTERM)
            self.process.communicate()
            return self.process.returncode

    def sidecar():
        container = Container("-m", "shmring", "sidecar", "functions:identity", "--name", "s",
                              "--workers", "2", "--json")
        assert '"ready"' in container.line()
        return container

    def executor():
        container = Container("-c", EXECUTOR)
        container.line()
        return container

    def replies():
        return [name for name in shmring.rings() if name.startswith("reply.")]
"""


@pytest.fixture
def pod():
    """Runs Python code in a pod: a /dev/shm of 64 MB, which its containers share."""
    probe = ended(*POD, "sh", "unshare", "-mpf", "--mount-proc", "true")
    if probe.returncode:
        pytest.skip(f"no namespaces of one's own: {probe.stderr.strip()}")

    def run(code):
        program = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((SOURCE, HERE)),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [*POD, "sh", sys.executable, "-c", program]
        return ended(*command, env=env, timeout=600, check=True).stdout

    return run


def test_executor_goes_on_when_the_sidecars_container_is_killed_and_restarted(pod):
    pod(
        """
        server, client = sidecar(), executor()
        for _ in range(2):
            server.kill()
            server = sidecar()
            client.goes_on()
        client.kill()
        server.terminate()
        """
    )


def test_rings_of_a_killed_executors_container_are_swept_while_the_next_one_works(pod):
    said = pod(
        """
        server, client = sidecar(), executor()
        first = replies()
        for _ in range(2):
            client.kill()
            client = executor()
        while set(first) & set(replies()):
            client.goes_on()
        while len(replies()) > 1:
            client.goes_on()
        print(len(replies()))
        client.kill()
        server.terminate()
        """
    )
    assert said == "1\n"


def test_both_containers_killed_at_once_start_again_beside_their_stale_rings(pod):
    said = pod(
        """
        server, client = sidecar(), executor()
        server.kill()
        client.kill()
        print(len(shmring.rings()))
        server, client = sidecar(), executor()
        client.goes_on()
        client.kill()
        print(server.terminate(), [name for name in shmring.rings() if "sidecar" in name])
        """
    )
    assert said == "2\n0 []\n"


def test_probes_of_the_pod_template_follow_the_model(pod):
    template = yaml.safe_load((ROOT / "deploy/kubernetes/executor-pod-template.yaml").read_text())
    (server,) = template["spec"]["initContainers"]
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    probes = {kind: server[kind]["exec"]["command"] for kind in kinds}
    said = pod(
        f"""
        import tempfile, threading

        probes = {probes!r}
        command = {server["command"]!r}
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        Path("server.py").write_text('''
        import os, time
        class Model:
            def __init__(self):
                if os.path.exists("broken"):
                    raise OSError("no model")
                while not os.path.exists("loaded"):
                    time.sleep(0.01)
            __call__ = lambda self, batch: batch
        ''')

        # What the container's kubelet runs, in the server's own namespaces.
        server = subprocess.Popen(["unshare", "-mpf", "--mount-proc", "--kill-child", *command],
                                  stderr=subprocess.DEVNULL)
        clock = threading.Event()

        def inside():
            of = server.pid
            children = Path(f"/proc/{{of}}/task/{{of}}/children").read_text().split()
            return children[0] if children else None

        def probe(kind):
            enter = ["nsenter", "-t", inside(), "-m", "-p", *probes[kind]]
            return subprocess.run(enter, stdout=subprocess.DEVNULL).returncode

        def until(kind, good):
            while (probe(kind) == 0) != good:
                clock.wait(0.05)

        def loads():
            command = ["shmring", "check", "scoring"]
            said = subprocess.run(command, capture_output=True, text=True)
            return said.stdout.count("has been loading") == 2

        while not inside() or not loads():
            clock.wait(0.05)
        print("loading", probe("startupProbe") == 0, probe("readinessProbe") == 0,
              probe("livenessProbe") == 0)
        Path("loaded").touch()
        until("startupProbe", True)
        print("loaded", probe("readinessProbe") == 0, probe("livenessProbe") == 0)
        Path("broken").touch()
        with shmring.attach("sidecar.scoring", read_only=True) as ring:
            dead = [p["pid"] for p in ring.participants() if p["role"] == "consumer"]
        for pid in dead:
            subprocess.run(["nsenter", "-t", inside(), "-p", "kill", "-9", str(pid)], check=True)
        until("readinessProbe", False)
        until("livenessProbe", False)
        print("died", probe("startupProbe") == 0)
        server.kill()
        server.wait()
        """
    )
    assert said.splitlines() == [
        "loading False False True",
        "loaded True True",
        "died False",
    ]
