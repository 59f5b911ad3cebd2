"""The processes of one measurement: spawned, pinned, let go together, always ended."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

SPAWN = multiprocessing.get_context("spawn")

_PR_SET_PDEATHSIG = 1


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def pin(number: int) -> None:
    """Stay on the n-th of these cores."""
    allowed = cores()
    os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Gate:
    """Where a process waits until all the others are ready too, or done."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self) -> None:
        """Say that this process is ready; return when all are."""
        self._connection.send(("ready", None))
        self._connection.recv()


@dataclass(frozen=True)
class Role:
    """Work of one process: ``target(gate, *args)``; all pass as many gates.

    Parameters
    ----------
    core : number of the core to stay on; None leaves it to the scheduler
    """

    target: Callable[..., Any]
    args: tuple[Any, ...] = ()
    core: int | None = None


def _child(connection: Connection, role: Role) -> None:
    die_with_parent()
    if role.core is not None:
        pin(role.core)
    try:
        connection.send(("done", role.target(Gate(connection), *role.args)))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


class _Run:
    """The processes of one run_together(), and what they have said so far."""

    def __init__(self, context: BaseContext) -> None:
        self._context = context
        self.processes: list[Any] = []
        self.roles: dict[Connection, Role] = {}
        self.results: dict[Connection, Any] = {}
        self.at_gate: set[Connection] = set()

    def start(self, role: Role) -> None:
        ours, theirs = self._context.Pipe()
        self.roles[ours] = role
        process = self._context.Process(target=_child, args=(theirs, role), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)

    def busy(self) -> list[Connection]:
        """Processes that are neither at a gate nor done."""
        return [c for c in self.roles if c not in self.results and c not in self.at_gate]

    def hear(self, connection: Connection) -> None:
        role = self.roles[connection]
        try:
            kind, value = connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of {role.target.__qualname__} died") from None
        if kind == "failed":
            raise RuntimeError(f"{role.target.__module__}.{role.target.__qualname__}:\n{value}")
        if kind == "ready":
            self.at_gate.add(connection)
        else:
            self.results[connection] = value

    def open_gate(self) -> None:
        for connection in self.at_gate:
            connection.send("go")
        self.at_gate.clear()

    def end(self) -> None:
        for process in self.processes:
            if len(self.results) < len(self.roles):
                process.kill()
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for connection in self.roles:
            connection.close()


def run_together(
    roles: Sequence[Role], *, timeout: float = 60.0, preloaded: str | None = None
) -> list[Any]:
    """Run each role in a new process and return their results.

    Parameters
    ----------
    timeout : seconds for all of it
    preloaded : a module that takes long to import; the processes are forked from one that has it

    Raises
    ------
    RuntimeError : a process failed or died; the others have been ended
    TimeoutError : likewise, after `timeout`
    """
    deadline = time.monotonic() + timeout
    context: BaseContext = SPAWN
    if preloaded:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preloaded])
    run = _Run(context)
    try:
        for role in roles:
            run.start(role)
        while len(run.results) < len(roles):
            ready = wait(run.busy(), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                names = ", ".join(run.roles[c].target.__qualname__ for c in run.busy())
                raise TimeoutError(f"no answer from {names} within {timeout:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                run.hear(connection)
            if not run.busy():
                run.open_gate()
    finally:
        run.end()
    return [run.results[connection] for connection in run.roles]
