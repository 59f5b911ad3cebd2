"""A standalone cluster on this host, started from the pip package.

The package has no start scripts in its sbin, so bin/spark-class starts the master and the workers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

HOST = "127.0.0.1"
_APART = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    *('mount -t tmpfs shm /dev/shm && exec "$@"', "sh"),
)


def spark_home() -> Path:
    """The folder of the installed pyspark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed: pip install 'shmring[spark]'")
    return Path(spec.origin).parent


class Cluster:
    """A master and workers; a context manager, which ends them with their executors.

    Spark runs no speculative attempt on the host of the first one; `hosts`, which the workers take
    turns at, may be 127.0.0.1, 127.0.0.2 and so on; with `apart` each but the first has a /dev/shm
    of its own, as other hosts have.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 2,
        hosts: Sequence[str] = (HOST,),
        apart: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shmring-cluster-")
        self._processes: list[subprocess.Popen[str]] = []
        try:
            sign = r"Starting Spark master at (\S+)"
            self.url = self._start("deploy.master.Master", sign, HOST)
            for i in range(workers):
                work = Path(self._folder.name) / f"worker-{i}"
                options = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(work))
                sign, host = "(Successfully registered)", hosts[i % len(hosts)]
                wrap = _APART if apart and host != hosts[0] else ()
                self._start("deploy.worker.Worker", sign, host, *options, self.url, wrap=wrap)
        except BaseException:
            self.stop()
            raise

    def _start(
        self, kind: str, sign: str, host: str, *arguments: str, wrap: Sequence[str] = ()
    ) -> str:
        """Start one of Spark's daemons; what it says of `sign`."""
        home = spark_home()
        process = subprocess.Popen(
            [
                *wrap,
                *(str(home / "bin" / "spark-class"), f"org.apache.spark.{kind}"),
                *("--host", host, "--port", "0", "--webui-port", "0", *arguments),
            ],
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # executors too: stop() ends the group
        )
        self._processes.append(process)
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(sign, line):
                threading.Thread(target=_read_on, args=(process.stderr,), daemon=True).start()
                return found[1]
        raise RuntimeError(f"{kind} did not start:\n{''.join(said)}")

    @property
    def daemons(self) -> list[int]:
        """Process ids of the master and the workers, in the order of their start."""
        return [process.pid for process in self._processes]

    @property
    def executors(self) -> list[int]:
        """Process ids of the executors that live."""
        daemons = {process.pid for process in self._processes}
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
            except OSError:
                continue
            if group in daemons and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(folder.name))
        return sorted(found)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _read_on(stream: IO[str]) -> None:
    """A daemon whose log nobody reads would stop when the pipe is full."""
    with stream:
        for _ in stream:
            pass


def main() -> None:
    """Run a cluster until Ctrl-C."""
    with Cluster() as cluster:
        print(f"{cluster.url} with two workers; Ctrl-C ends it", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
