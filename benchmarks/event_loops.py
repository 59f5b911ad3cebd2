"""What does an event loop cost, beside calls that wait and beside ZeroMQ's in Python?"""

from __future__ import annotations

import importlib

from benchmarks import native
from benchmarks.harness import Question, Row, Sample, Settings, Target, Unavailable
from benchmarks.oneway import peer
from benchmarks.processes import Role, run_together

__all__ = ["question"]

RATE = "k echoes/s"
MEANS = {"shmring": "", "zeromq": "ZeroMQ ipc, ", "aiozmq": "ZeroMQ ipc by aiozmq, "}
LOOPS = {"": "calls that wait", "asyncio": "asyncio", "uvloop": "uvloop"}
WINDOWS = {1: "one under way", 64: "64 under way"}


class _Echo:
    """A message there and back; the figure is thousands a second."""

    def __init__(self, means: str, loop: str, under_way: int) -> None:
        self._what = (means, loop, under_way)

    def __call__(self, seconds: float) -> Sample:
        means, loop, _ = self._what
        if means != "shmring":
            peer("zeromq")
        echoes = peer("echoes")
        for package in {means, loop} & {"aiozmq", "uvloop"}:
            _need(package)
        pinned = means == "shmring"  # ZeroMQ has threads of its own
        with echoes.link(*self._what) as link:
            rate, _ = run_together(
                [
                    Role(echoes.drive, (link, seconds), 0 if pinned else None),
                    Role(echoes.echo, (link,), 1 if pinned else None),
                ]
            )
        return Sample(rate / 1e3, {"us an echo": 1e6 / rate})


def _need(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise Unavailable(f"not installed here: {error}") from None


def _name(means: str, loop: str, under_way: int) -> str:
    return f"{MEANS[means]}{LOOPS[loop]}, {WINDOWS[under_way]}"


def question(settings: Settings) -> Question:
    """Two processes and two rings, or two pairs of sockets; one message under way, and 64."""
    del settings
    rows: list[Row] = []
    for under_way in WINDOWS:
        for means in MEANS:
            for loop in LOOPS if means != "aiozmq" else ("asyncio", "uvloop"):
                row = Row(_name(means, loop, under_way), RATE, _Echo(means, loop, under_way))
                if means == "shmring" and loop:
                    row.targets = (Target(0.25, _name(means, "", under_way)),)
                    row.rivals = tuple(
                        _name(peer, loop, under_way) for peer in ("zeromq", "aiozmq")
                    )
                rows.append(row)
    title = "How fast is an echo over two rings in an event loop?"
    return Question("event-loop", title, rows, line=native.line)
