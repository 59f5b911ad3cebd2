"""Peers that are programs: processes that stay, and measure together when they are told to."""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.payload import MESSAGE_BYTES, unique_name
from benchmarks.processes import die_with_parent, pin

PATIENCE = 60.0

Command = Callable[[str], Sequence[str]]


class _Side:
    """A process that measures when it is told to."""

    def __init__(self, command: Sequence[str], core: int) -> None:
        def prepare() -> None:
            die_with_parent()
            pin(core)

        self._name = Path(command[0]).name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # end() closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            preexec_fn=prepare,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def tell(self, line: str) -> None:
        self._input.write(f"{line}\n".encode())
        self._input.flush()

    def hear(self) -> str:
        """Its next answer; what libraries print is passed over."""
        while True:
            ready, _, _ = select.select([self._output], [], [], PATIENCE)
            if not ready:
                raise TimeoutError(f"no answer from {self._name} within {PATIENCE:g} s")
            line = self._output.readline().decode().strip()
            if not line or line.startswith("failed: "):
                self._errors.seek(0)
                raise RuntimeError(f"{line}\n{self._errors.read().decode()[-2000:]}")
            if line in ("ready", "closed") or line[0] in "{[":
                return line

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _converse(sides: Sequence[_Side], acts: Sequence[str]) -> list[Any]:
    """One measurement: all get ready, go at once, and close when all have answered."""
    for side, act in zip(sides, acts, strict=True):
        side.tell(act)
    while (heard := [side.hear() for side in sides])[0] == "ready":
        for side in sides:
            side.tell("go")
    for side in reversed(sides):  # the first has made what they share
        side.tell("close")
        side.hear()
    return [json.loads(answer) for answer in heard]


class Sides:
    """The two processes of each peer, on a core each.

    They stay, so that later rounds find compiled code.

    Parameters
    ----------
    command : of a peer's process, by its name
    warm_up : seconds that each measurement takes beforehand, the first time
    """

    def __init__(self, command: Command, *, warm_up: float = 0.0) -> None:
        self._command = command
        self._warm_up = warm_up
        self._sides: dict[str, list[_Side]] = {}
        self._warm: set[tuple[Any, ...]] = set()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """End them all afterwards."""
        try:
            yield
        finally:
            for peer in list(self._sides):
                self._end(peer)

    def _end(self, peer: str) -> None:
        for side in self._sides.pop(peer, []):
            side.end()

    def _measure(self, peer: str, acts: Sequence[str], seconds: float, **more: Any) -> list[Any]:
        sides = self._sides.setdefault(peer, [])
        while len(sides) < len(acts):
            sides.append(_Side(self._command(peer), len(sides)))
        folder = Path("/dev/shm") / unique_name()
        rest = {**more, "folder": folder, "seconds": seconds}
        words = " ".join(f"{key}={value}" for key, value in rest.items())
        folder.mkdir()
        try:
            return _converse(sides, [f"{act} {words}" for act in acts])
        except BaseException:
            self._end(peer)
            raise
        finally:
            shutil.rmtree(folder)
            for left in folder.parent.glob(f"{folder.name}-*"):
                left.unlink(missing_ok=True)

    def measure(self, peer: str, acts: Sequence[str], seconds: float, **more: Any) -> list[Any]:
        """Results of all processes; the first call runs once more before, to warm up."""
        what = (peer, *acts, more["how"], more["bytes"])
        if self._warm_up and what not in self._warm:
            self._measure(peer, acts, self._warm_up, **more)
            self._warm.add(what)
        return self._measure(peer, acts, seconds, **more)

    def stream(self, peer: str, seconds: float, *, how: str, nbytes: int) -> float:
        """Messages one way; bytes a second.

        Parameters
        ----------
        how : "one", "offer" or "batch", which `nbytes` says the size of, or "block"
        """
        found = self.measure(peer, ("send", "receive"), seconds, how=how, bytes=nbytes)
        return _rate(peer, *found)

    def trip(self, peer: str, seconds: float) -> dict[str, float]:
        """A message there and back, one under way; nanoseconds."""
        acts = "ping", "pong"
        figures: dict[str, float] = self.measure(
            peer, acts, seconds, how="trip", bytes=MESSAGE_BYTES
        )[0]
        return figures


def _rate(peer: str, sent: dict[str, int], received: dict[str, int]) -> float:
    """Bytes a second; all that was sent must have arrived."""
    if (sent["bytes"], sent["sum"]) != (received["bytes"], received["sum"]):
        raise RuntimeError(f"{peer} sent {sent}, and {received} arrived")
    return received["bytes"] / (received["end"] - sent["start"]) * 1e9
