"""A private PostgreSQL server for tests and benchmarks.

initdb makes a cluster in a temporary directory, pg_ctl starts it on a Unix socket in that same
directory (mode 0700, no TCP port: nobody else can reach it, and two runs cannot collide), and
leaving the context stops it and deletes everything. PostgreSQL refuses to run as root, so when we
are root the server's commands run as ``postgres``, or as ``nobody`` where that user is missing.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import psycopg

# Small and quiet. Everything that decides durability (fsync, full_page_writes) keeps its default.
SETTINGS: dict[str, str] = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "256MB",
    # In the cluster's own directory, so that a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "4GB",
    "log_min_messages": "fatal",
    "log_checkpoints": "off",
}


class PostgresMissing(RuntimeError):
    """No PostgreSQL server programs on this machine."""


def find_bin() -> Path:
    """Return the directory that holds initdb and pg_ctl: from PATH, else the newest of Debian's."""
    for name in ("initdb", "pg_ctl"):
        found = shutil.which(name)
        if found and (Path(found).resolve().parent / "initdb").exists():
            return Path(found).resolve().parent
    installed = [Path(path).parent for path in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    if not installed:
        raise PostgresMissing(
            "no initdb in PATH or /usr/lib/postgresql/*/bin; install it with"
            " `apt-get install postgresql`"
        )
    return max(installed, key=lambda path: [int(n) for n in path.parent.name.split(".")])


@dataclass(frozen=True)
class Postgres:
    """A running server.

    Attributes
    ----------
    directory : holds the cluster, the socket and the log
    url : SQLAlchemy URL of its database "postgres"
    """

    directory: Path
    url: str
    _bin: Path
    _user: str | None
    _options: str

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        log = self.directory / "log"
        command = ("pg_ctl", "start", "-w", "-t", "600", "-D", str(self.directory / "data"))
        try:
            self._run(*command, "-l", str(log), "-o", self._options)
        except RuntimeError as error:
            text = log.read_text(errors="replace") if log.exists() else "(no log)"
            raise RuntimeError(f"{error}\nserver log:\n{text}") from None

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server; ``immediate`` leaves it to crash recovery at the next start."""
        data = str(self.directory / "data")
        self._run("pg_ctl", "stop", "-w", "-t", "600", "-m", mode, "-D", data)

    def kill(self) -> None:
        """End every server process with SIGKILL, as a power cut of the process would."""
        pid_file = self.directory / "data" / "postmaster.pid"
        postmaster = int(pid_file.read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in [postmaster, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A new postmaster refuses to start while an old backend still has the shared memory.
        for pid in [postmaster, *map(int, children)]:
            while _state(pid) != "Z":
                os.sched_yield()
        # Where init does not reap at once, the dead postmaster stays a zombie that looks alive.
        pid_file.unlink()
        for lock in self.directory.glob(".s.PGSQL.*"):
            lock.unlink()

    def running(self) -> bool:
        """Whether the server answers pg_ctl's question for it."""
        try:
            self._run("pg_ctl", "status", "-D", str(self.directory / "data"))
        except RuntimeError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        # extra_groups and group: the child must not keep root's groups along with its new user.
        account = pwd.getpwnam(self._user) if self._user else None
        # The answer goes to a file: the server inherits it, and would hold a pipe open for ever.
        with tempfile.TemporaryFile() as answer:
            result = subprocess.run(
                [str(self._bin / program), *arguments],
                cwd=self.directory,
                env={**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.STDOUT,
                timeout=660,
                check=False,
            )
            if result.returncode != 0:
                answer.seek(0)
                said = answer.read().decode(errors="replace").strip()
                raise RuntimeError(f"{program} {' '.join(arguments)} failed: {said}")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def _server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@contextlib.contextmanager
def _watched(directory: Path) -> Generator[None]:
    """End the server and remove its files also if this process is killed.

    A shell waits for the end of its input, which we have open as long as we live.
    """
    script = """
        cat > /dev/null
        if read -r pid 2> /dev/null < "$0/data/postmaster.pid"; then
            kill -QUIT "$pid" && while kill -0 "$pid"; do sleep 0.1; done
        fi 2> /dev/null
        rm -rf "$0"
    """
    command = ["sh", "-c", script, directory]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()


@contextlib.contextmanager
def postgres(settings: Mapping[str, str] | None = None) -> Generator[Postgres]:
    """Run a server of one's own for the length of a ``with`` block.

    Parameters
    ----------
    settings : server settings on top of the defaults above, such as ``{"fsync": "off"}``

    Raises
    ------
    PostgresMissing : the server programs are not installed
    """
    bin_directory = find_bin()
    user = _server_user()
    # A socket's path may have 107 bytes, so not below pytest's long tmp_path.
    directory = Path(tempfile.mkdtemp(prefix="shmring-pg-"))
    with _watched(directory):
        if user:
            account = pwd.getpwnam(user)
            os.chown(directory, account.pw_uid, account.pw_gid)
        options = " ".join(f"-c {k}='{v}'" for k, v in {**SETTINGS, **(settings or {})}.items())
        server = Postgres(
            directory=directory,
            url=f"postgresql+psycopg://postgres@/postgres?host={directory}",
            _bin=bin_directory,
            _user=user,
            _options=f"{options} -k {directory}",
        )
        initdb = ("-D", str(directory / "data"), "-U", "postgres", "-A", "trust")
        server._run("initdb", *initdb, "-E", "UTF8", "--no-sync")  # pyright: ignore[reportPrivateUsage]
        server.start()
        try:
            yield server
        finally:
            if server.running():
                server.stop("immediate")


@contextlib.contextmanager
def connect(server: Postgres, *, autocommit: bool = True) -> Generator[psycopg.Connection[Any]]:
    """A session of the server, each of whose statements is a transaction if `autocommit`."""
    import psycopg  # here: to start a server takes none

    address = server.url.replace("postgresql+psycopg://", "postgresql://")
    with contextlib.closing(psycopg.connect(address, autocommit=autocommit)) as connection:
        pid = connection.info.backend_pid
        yield connection
    if not autocommit:
        # The server undoes the transaction some time after the client has closed.
        with contextlib.closing(psycopg.connect(address, autocommit=True)) as other:
            wait = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid = %s"
            other.execute(wait, (pid,))
