"""What ``shmring top`` shows without a name: all of the host, and one sidecar."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shmring.cli.check import subject
from shmring.cli.options import Place
from shmring.cli.output import clean, duration, make_table, show_status, size
from shmring.cli.top_ring import Rates, RingView, View
from shmring.errors import ShmringError
from shmring.host import RingLook, Seen
from shmring.metrics import HostMetrics
from shmring.names import REQUESTS
from shmring.records import Finding

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOW = 30  # looks over which a sidecar's rates are taken
_ROOM = 14  # rows at a time: what is said below them has its place on 24 lines, too


@dataclass(frozen=True)
class _Row:
    ring: str
    sidecar: str | None
    status: int
    used: float  # share of the slots
    lag: int
    oldest_s: float
    alive: int
    slots_per_s: int


class HostView:
    """A row for each ring and sidecar: trouble first, then by rate."""

    def __init__(self, foreign: bool) -> None:
        self._metrics = HostMetrics(interval=None, foreign=foreign)
        self._rates = Rates()
        self._rows: list[_Row] = []
        self._chosen = ""
        self._summary = ""

    def close(self) -> None:
        self._metrics.close()

    def look(self) -> None:
        """Look at all of it."""
        look = self._metrics.look()
        rows = [self._row(ring, ring.seen) for ring in look.rings if not ring.is_reply]
        self._rows = sorted(rows, key=lambda row: (-row.status, -row.slots_per_s, row.ring))
        if self._chosen not in [row.ring for row in self._rows]:
            self._chosen = self._rows[0].ring if self._rows else ""
        self._summary = f"/dev/shm: {size(look.free)} of {size(look.memory)} free"

    def _row(self, ring: RingLook, seen: Seen | None) -> _Row:
        status = max((each.status for each in self._found(ring.name)), default=0)
        if seen is None:
            return _Row(ring.name, ring.sidecar, status, 0.0, 0, 0.0, 0, 0)
        stats = seen.stats
        return _Row(
            ring.name,
            ring.sidecar,
            status,
            stats["used"] / stats["slots"],
            max((branch["lag"] for branch in stats["branches"]), default=0),
            max(seen.ages.values(), default=0.0),
            sum(participant["alive"] for participant in stats["participants"]),
            self._rates.of(ring.name, stats["claimed"]),
        )

    def _found(self, ring: str) -> list[Finding]:
        """What is wrong with a ring, or with the sidecar whose requests it takes."""
        return [
            each
            for each in self._metrics.findings
            if ring in (each.ring, each.sidecar and f"{REQUESTS}{each.sidecar}")
        ]

    def _of_host(self) -> list[Finding]:
        return [each for each in self._metrics.findings if each.ring is each.sidecar is None]

    def document(self) -> object:
        """The rows, and what is wrong."""
        found = [each._asdict() for each in self._metrics.findings]
        return {"rows": [asdict(row) for row in self._rows], "findings": found}

    def draw(self) -> RenderableType:
        """The rows around the chosen one, and what is wrong with that."""
        from rich.console import Group
        from rich.text import Text

        at = next((i for i, row in enumerate(self._rows) if row.ring == self._chosen), 0)
        first = max(0, min(at - _ROOM // 2, len(self._rows) - _ROOM))
        table = make_table(
            ("", "", "name", "", "used", "lag", "oldest", "alive", "slots/s"),
            [
                (
                    ">" if row.ring == self._chosen else "",
                    show_status(row.status),
                    _short(row.sidecar or row.ring),
                    "sidecar" if row.sidecar else "ring",
                    f"{row.used:.0%}",
                    row.lag,
                    duration(row.oldest_s) if row.oldest_s else "-",
                    row.alive,
                    row.slots_per_s,
                )
                for row in self._rows[first : first + _ROOM]
            ],
        )
        said = [
            f"{subject(each)}{clean(each.words)}" + f"\n    {each.command}" * bool(each.command)
            for each in (*self._of_host(), *self._found(self._chosen))
        ]
        head = f"{len(self._rows)} rings and sidecars; {self._summary}; Enter goes in, q ends\n"
        return Group(Text(head), table, "", Text("\n".join(said)))

    def press(self, key: str) -> View | None:
        """Choose another one, or go into it."""
        names = [row.ring for row in self._rows]
        if not names:
            return None
        at = names.index(self._chosen)
        self._chosen = names[min(len(names) - 1, max(0, at + {"up": -1, "down": 1}.get(key, 0)))]
        if key != "enter":
            return None
        try:
            if (sidecar := self._rows[at].sidecar) is not None:
                return SidecarView(sidecar, self._metrics)
            return RingView(Place(self._chosen, None))
        except ShmringError:
            return None  # it has gone, or is what the finding says


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}~"


class SidecarView:
    """A sidecar: what waits, who works, and how fast."""

    def __init__(self, sidecar: str, metrics: HostMetrics) -> None:
        self._sidecar = sidecar
        self._metrics = metrics
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._shown: dict[str, float] = {}

    def close(self) -> None:
        """Nothing is its own."""

    def look(self) -> None:
        """Look at the host, of which it is a part."""
        self._metrics.look()
        samples, at = self._metrics.samples, (self._sidecar,)
        busy, requests = (
            samples[name].get(at, 0.0) for name in ("sidecar_busy_seconds", "sidecar_requests")
        )
        self._looks.append((time.monotonic(), busy, requests))
        passed, busy, requests = (
            b - a for a, b in zip(self._looks[0], self._looks[-1], strict=True)
        )
        shown = {
            name.removeprefix("sidecar_"): values[at]
            for name, values in samples.items()
            if name.startswith("sidecar_") and at in values
        }
        states = {
            state: count
            for (sidecar, state), count in samples["sidecar_workers"].items()
            if sidecar == self._sidecar
        }
        serving = states.get("busy", 0) + states.get("idle", 0)
        shown["busy_share"] = busy / passed / serving if passed and serving else 0.0
        shown["requests_per_s"] = requests / passed if passed else 0.0
        shown["seconds_a_request"] = busy / requests if requests else 0.0
        self._shown = shown | states

    def document(self) -> object:
        """The numbers."""
        return self._shown

    def draw(self) -> RenderableType:
        """The numbers, and what is wrong."""
        from rich.console import Group
        from rich.text import Text

        shown = self._shown.get
        workers = ", ".join(
            f"{shown(state, 0):.0f} {state}" for state in ("busy", "idle", "loading", "stopped")
        )
        table = make_table(
            ("", ""),
            [
                (
                    "queue",
                    f"{shown('queue_requests', 0):,.0f} requests, the oldest "
                    f"{duration(shown('queue_seconds', 0))}",
                ),
                ("workers", workers),
                ("busy share", f"{shown('busy_share', 0):.0%}"),
                ("requests a second", f"{shown('requests_per_s', 0):,.1f}"),
                ("time a request", duration(shown("seconds_a_request", 0))),
                (
                    "clients",
                    f"{shown('clients', 0):.0f}, {size(shown('reply_bytes', 0))} for answers",
                ),
                ("restarts", f"{shown('restarts', 0):.0f}"),
            ],
        )
        said = [clean(f.words) for f in self._metrics.findings if f.sidecar == self._sidecar]
        head = f'sidecar "{self._sidecar}"; Escape goes back, q ends\n'
        return Group(Text(head), table, "", Text("\n".join(said)))

    def press(self, key: str) -> None:
        """It has nothing to go into."""
