"""What the rows of the peers have in common: their names, their kinds, their rivals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import jvm, rust
from benchmarks.harness import Row, Sample, Unavailable
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.sides import Sides

__all__ = [
    "AERON",
    "ICEORYX",
    "OWN",
    "RATE",
    "SOME",
    "Programs",
    "Rows",
    "Run",
    "messages",
]

RATE = "M msg/s"
SECONDS = 0.3  # of a sample at most: there are many
WARM_UP = 1.0  # of a JVM, which compiles

# Messages in a batch of C, Rust and the JVM: 77 KB.
SOME = 256

AERON = "AeronPeer"
OWN = "ShmringPeer"
ICEORYX = "iceoryx"

Run = Callable[[float], Sample]


class Programs:
    """The peers' processes, by the peer's name."""

    def __init__(self) -> None:
        self.jvm = Sides(jvm.command, warm_up=WARM_UP)
        self.rust = Sides(rust.command)

    def of(self, peer: str) -> Sides:
        """Those of a peer."""
        return self.rust if peer == ICEORYX else self.jvm


def messages(bytes_a_second: float) -> Sample:
    """The sample of a rate."""
    return Sample(bytes_a_second / MESSAGE_BYTES / 1e6, {"GB/s": bytes_a_second / 1e9})


def _briefly(run: Run, seconds: float) -> Sample:
    return run(min(seconds, SECONDS))


class Rows:
    """The rows of one kind, ours and those of others."""

    def __init__(self, kind: str, unit: str, *, lower_is_better: bool = False) -> None:
        self._kind = kind
        self._unit = unit
        self._lower = lower_is_better
        self._ours: list[tuple[str, Run]] = []
        self._theirs: list[tuple[str, Run]] = []

    def ours(self, language: str, run: Run) -> None:
        """A row of shmring; all the others are its rivals."""
        self._ours.append((f"shmring, {language}", run))

    def theirs(self, name: str, run: Run) -> None:
        self._theirs.append((name, run))

    def cannot(self, name: str, reason: str) -> None:
        """A peer that has nothing of this kind."""

        def refuse(seconds: float) -> Sample:
            raise Unavailable(reason)

        self._theirs.append((name, refuse))

    def rows(self) -> list[Row]:
        """Ours first."""
        rivals = tuple(f"{self._kind}: {name}" for name, _ in self._theirs)
        return [self._row(name, run, rivals) for name, run in self._ours] + [
            self._row(name, run, ()) for name, run in self._theirs
        ]

    def _row(self, name: str, run: Run, rivals: tuple[str, ...]) -> Row:
        return Row(
            f"{self._kind}: {name}",
            self._unit,
            partial(_briefly, run),
            lower_is_better=self._lower,
            rivals=rivals,
        )
