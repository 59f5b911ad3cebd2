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

__all__ = ["Command", "Sides"]

PATIENCE = 60.0

Command = Callable[[str, bool], Sequence[str]]


class _Side:
    """A process that measures when it is told to."""

    def __init__(self, command: Sequence[str], core: int | None) -> None:
        def prepare() -> None:
            die_with_parent()
            if core is not None:
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
    """The processes of each peer: two, on a core each, and those of its crowd, wherever they are.

    They stay, so that later rounds find compiled code. Those of a crowd are others than the two,
    for they give a core away where those spin.

    Parameters
    ----------
    command : of a peer's process, by its name and whether the process yields
    warm_up : seconds of both cores that each measurement takes beforehand, the first time
    """

    def __init__(self, command: Command, *, warm_up: float = 0.0) -> None:
        self._command = command
        self._warm_up = warm_up
        self._sides: dict[tuple[str, str], list[_Side]] = {}
        self._warm: set[tuple[Any, ...]] = set()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """End them all afterwards."""
        try:
            yield
        finally:
            for kind in list(self._sides):
                self._end(kind)

    def _end(self, kind: tuple[str, str]) -> None:
        for side in self._sides.pop(kind, []):
            side.end()

    def _of(self, peer: str, kind: str, count: int, core: int | None) -> list[_Side]:
        """So many of a peer's processes of a kind, begun where they are missing."""
        sides = self._sides.setdefault((peer, kind), [])
        while len(sides) < count:
            sides.append(_Side(self._command(peer, kind.startswith("crowd")), core))
        return sides[:count]

    def _measure(
        self, peer: str, roles: Sequence[tuple[str, int | None, str]], seconds: float, **more: Any
    ) -> list[Any]:
        folder = Path("/dev/shm") / unique_name()
        rest = {**more, "folder": folder, "seconds": seconds}
        words = " ".join(f"{key}={value}" for key, value in rest.items())
        counts: dict[str, int] = {}
        sides: list[_Side] = []
        for kind, core, _ in roles:
            counts[kind] = counts.get(kind, 0) + 1
            sides.append(self._of(peer, kind, counts[kind], core)[-1])
        folder.mkdir()
        try:
            return _converse(sides, [f"{act} {words}" for _, _, act in roles])
        except BaseException:
            for kind in counts:
                self._end((peer, kind))
            raise
        finally:
            shutil.rmtree(folder)
            for left in folder.parent.glob(f"{folder.name}-*"):
                left.unlink(missing_ok=True)

    def measure(
        self, peer: str, roles: Sequence[tuple[str, int | None, str]], seconds: float, **more: Any
    ) -> list[Any]:
        """What each of the processes found; the first time it is done once before.

        Parameters
        ----------
        peer : by which the command is found
        roles : of the processes: a kind, of which there are as many as are needed, the core or
            None, and the act
        """
        what = (peer, *(act for _, _, act in roles), more["how"], more["bytes"])
        if self._warm_up and what not in self._warm:
            self._measure(peer, roles, self._warm_up * max(2, len(roles)) / 2, **more)
            self._warm.add(what)
        return self._measure(peer, roles, seconds, **more)

    def stream(self, peer: str, seconds: float, *, how: str, nbytes: int) -> float:
        """Messages one way; bytes a second.

        Parameters
        ----------
        how : "one", "offer" or "batch", which `nbytes` says the size of, or "block"
        """
        roles = [("first", 0, "send"), ("second", 1, "receive")]
        found = self.measure(peer, roles, seconds, how=how, bytes=nbytes)
        return _rate(peer, found, 1, divided=False)

    def crowd(
        self,
        peer: str,
        seconds: float,
        *,
        senders: int,
        readers: int,
        how: str = "one",
        divided: bool = False,
    ) -> float:
        """Messages of several, each from one process; bytes a second that were sent.

        Parameters
        ----------
        divided : the readers divide the messages; otherwise each reads all
        """
        roles: list[tuple[str, int | None, str]] = [
            *(("crowd of senders", None, f"send number={i}") for i in range(senders)),
            *(("crowd of readers", None, f"receive number={i}") for i in range(readers)),
        ]
        more = {"senders": senders, "readers": readers, "divided": int(divided)}
        found = self.measure(peer, roles, seconds, how=how, bytes=MESSAGE_BYTES, **more)
        return _rate(peer, found, senders, divided=divided)

    def trip(self, peer: str, seconds: float) -> dict[str, float]:
        """A message there and back, one under way; nanoseconds."""
        roles = [("first", 0, "ping"), ("second", 1, "pong")]
        figures: dict[str, float] = self.measure(
            peer, roles, seconds, how="trip", bytes=MESSAGE_BYTES
        )[0]
        return figures


def _total(found: Sequence[dict[str, int]]) -> tuple[int, int]:
    """Bytes, and the sum of their words as the processes have added them up."""
    return sum(side["bytes"] for side in found), sum(side["sum"] for side in found) % 2**64


def _rate(peer: str, found: Sequence[dict[str, int]], senders: int, *, divided: bool) -> float:
    """Bytes a second; all that was sent must have arrived where it should."""
    sent, received = found[:senders], found[senders:]
    total = _total(sent)
    arrived = {_total(received)} if divided else {_total([reader]) for reader in received}
    if arrived != {total}:
        raise RuntimeError(f"{peer} sent {sent}, and {received} arrived")
    took = max(reader["end"] for reader in received) - min(sender["start"] for sender in sent)
    return total[0] / took * 1e9
