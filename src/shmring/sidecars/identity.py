"""Identity of a sidecar: supervisors share a name only if their identities are equal.

An identity says which code, Python version and options a supervisor's workers have. Each supervisor
has an entry in the request ring. The entry's name begins with a word that says whether clients
may expect workers; the supervisor's number and identity follow. Supervisors that join later have
larger numbers. A supervisor that replaces others adds a second entry, with the largest number
among the supervisors to replace.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import platform
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

import shmring
from shmring.errors import Contended, SidecarMismatch
from shmring.ring.names import REQUESTS, command_line
from shmring.sidecars.options import names_for_workers
from shmring.sidecars.rings import FAILING, REPLACES, SUPERVISOR, of_requests

_PATIENCE = 2.0  # seconds that a supervisor waits for another one, which is just joining
_PAUSE = 0.01
_DIGEST_BYTES = 8  # short enough for the entry's name, of which the ring keeps 55 bytes


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=_DIGEST_BYTES).hexdigest()


def source_of(module: str) -> bytes:
    """Return the bytes of a module's file as a worker would find it; empty if there is none.

    Neither the module nor its packages are imported.
    """
    importlib.invalidate_caches()  # Python may have listed the folder before the file was written
    path: list[str] | None = [os.getcwd(), *sys.path]
    name, spec = "", None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return b""
        path = spec.submodule_search_locations
    loader: Any = None if spec is None else spec.loader
    if spec is None or spec.origin is None or not hasattr(loader, "get_data"):
        return b""
    return bytes(loader.get_data(spec.origin))


class Identity(NamedTuple):
    """Describes what a sidecar serves. Workers with equal identities may share requests."""

    code: str  # digest of "module:function" and of the bytes of the module's file
    python: str  # version of Python
    options: str  # digest of the options that workers get

    @classmethod
    def of(cls, target: str, options: str) -> Self:
        """Describe a sidecar before its workers load the function."""
        source = b""
        with suppress(OSError, ImportError, ValueError):  # each worker will report this error
            source = source_of(target.partition(":")[0])
        code = _digest(target.encode(), source)
        return cls(code, platform.python_version(), _digest(options.encode())[:_DIGEST_BYTES])

    def differences(self, running: Identity) -> list[str]:
        """Return in words how a running sidecar differs from this one."""
        words: list[str] = []
        if running.code != self.code:
            words.append("other code")
        if running.python != self.python:
            words.append(f"Python {running.python} instead of {self.python}")
        if running.options != self.options:
            *names, last = names_for_workers()
            words.append(f"other values of {', '.join(names)} or {last}")
        return words


class _Supervisor(NamedTuple):
    """Describes a living supervisor: the contents of its entry in the request ring."""

    pid: int
    number: int
    identity: Identity


def _supervisors(ring: shmring.Ring) -> list[_Supervisor]:
    found: list[_Supervisor] = []
    for each in ring.participants():
        words = each["name"].split(" ")
        if each["alive"] and words[0] in (SUPERVISOR, FAILING) and len(words) == 5:
            found.append(_Supervisor(each["pid"], int(words[1]), Identity(*words[2:])))
    return found


class Entry:
    """The entry of one supervisor in the request ring.

    Raise SidecarMismatch if a running sidecar of this name has another identity, or if the ring's
    number of slots is not `slots` (None allows any number). Raise Contended if another supervisor
    does not finish joining, perhaps because it is stopped. With `replace`, join beside supervisors
    with another identity, and replace all supervisors there.
    """

    def __init__(
        self, ring: shmring.Ring, identity: Identity, slots: int | None, *, replace: bool
    ) -> None:
        self._ring = ring
        self._identity = identity
        self._kind = ""
        self._producer: shmring.Producer | None = None
        self._replaces: shmring.Producer | None = None
        with _alone(ring):
            others = _supervisors(ring)
            self._number = 1 + max((other.number for other in others), default=0)
            self._older = self._number - 1 if replace else 0
            if slots not in (None, ring.slots) or not replace:
                self._compare(others, slots)
            self.show(SUPERVISOR)

    def _compare(self, others: list[_Supervisor], slots: int | None) -> None:
        sidecar = str(self._ring.name).removeprefix(REQUESTS)
        size = f"a request ring of {self._ring.slots} slots instead of {slots}"
        differs = slots not in (None, self._ring.slots)
        for other in others:
            words = [] if self._older else self._identity.differences(other.identity)
            words += [size] if differs else []
            if words:
                raise SidecarMismatch(
                    f'sidecar "{sidecar}" is served by process {other.pid}{_folder(other.pid)}, '
                    f"with {', '.join(words)}; choose another name (--name, name=), or stop "
                    f"process {other.pid}{_way_out(differs)}"
                )
        if differs:
            raise SidecarMismatch(
                f'for sidecar "{sidecar}" there is already {size}: leave --slots (slots=) out, or, '
                f"if no client uses that ring, remove it (`{of_requests('unlink', sidecar)}`)"
            )

    def show(self, kind: str) -> None:
        """Show clients that workers will come (SUPERVISOR), or that none will (FAILING)."""
        if kind != self._kind:
            before = self._producer
            self._producer = self._ring.producer(
                f"{kind} {self._number} {' '.join(self._identity)}"
            )
            self._kind = kind
            if before is not None:
                before.close()

    def successor(self) -> int | None:
        """Return the process id of the supervisor that replaces this one; None if there is none."""
        for each in self._ring.participants():
            kind, _, number = each["name"].partition(" ")
            if each["alive"] and kind == REPLACES and int(number) >= self._number:
                return each["pid"]
        return None

    def replaced(self) -> int | None:
        """Replace older supervisors; return the pid of one that still takes requests, or None."""
        if self._older == 0:
            return None
        if self._replaces is None:
            self._replaces = self._ring.producer(f"{REPLACES} {self._older}")
        left = [each.pid for each in _supervisors(self._ring) if each.number <= self._older]
        if left:
            return left[0]
        self._older = 0
        self._replaces.close()
        return None

    def leave(self) -> None:
        """Close the entry, unless it is already closed."""
        for producer in (self._replaces, self._producer):
            if producer is not None:
                producer.close()


def _folder(pid: int) -> str:
    # Return no words about the folder if this process may not see the other process's folder, for
    # example because the two processes run in different containers.
    with suppress(OSError):
        return f", started in {os.readlink(f'/proc/{pid}/cwd')}"
    return ""


def _way_out(differs_in_slots: bool) -> str:
    if differs_in_slots:
        return ", or leave --slots (slots=) out: a request ring keeps its size"
    return ", or take its place with --replace (replace=True)"


@contextmanager
def _alone(ring: shmring.Ring) -> Generator[None]:
    """Keep other supervisors from joining at the same time."""
    try:
        fd = os.open(ring.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    # Go on without the lock if the ring was just removed: this supervisor then makes a new ring.
    except FileNotFoundError:
        yield
        return
    try:
        _lock(fd, ring)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, ring: shmring.Ring) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                look = command_line("stat", ring.name or ring.path)
                raise Contended(
                    f'ring "{ring.name}": another supervisor has been joining for {_PATIENCE:g} s; '
                    f"try again, or look for a stopped one with `{look}`"
                ) from None
        time.sleep(_PAUSE)
