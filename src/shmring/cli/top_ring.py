"""What ``shmring top`` shows of one ring, and what all of its views can."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from shmring.cli.look import (
    BRANCH_COLUMNS,
    PARTICIPANT_COLUMNS,
    branch_rows,
    participant_cells,
    summary,
)
from shmring.cli.options import Place
from shmring.cli.output import make_table, size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_PARTICIPANT_COLUMNS = (*PARTICIPANT_COLUMNS[:-1], "messages/s", "bytes/s")


class Rates:
    """What counters gain a second between two looks."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, int]] = {}

    def of(self, what: object, value: int) -> int:
        """0 for what is seen for the first time, or has begun anew."""
        now = time.monotonic()
        then, before = self._seen.get(what, (now, value))
        self._seen[what] = (now, value)
        return round((value - before) / (now - then)) if now > then and value > before else 0


class View(Protocol):
    """What can be shown."""

    def look(self) -> None:
        """Look again."""
        ...

    def document(self) -> object:
        """What was seen, for machines."""
        ...

    def draw(self) -> RenderableType:
        """What was seen, for people."""
        ...

    def press(self, key: str) -> View | None:
        """Obey a key; the view that it goes into, if it does."""
        ...

    def close(self) -> None: ...


class RingView:
    """A ring: its statistics, and what its counters gain a second."""

    def __init__(self, place: Place) -> None:
        self._place = place
        place.look_on().close()  # or there is nothing to see
        self._rates = Rates()
        self._stats: Any = None

    def close(self) -> None:
        """Nothing stays attached."""

    def look(self) -> None:
        with self._place.look_on() as ring:
            stats: Any = ring.stats()
        rates = self._rates
        stats["slots_per_s"] = rates.of("claimed", stats["claimed"])
        for branch in stats["branches"]:
            branch["slots_per_s"] = rates.of(("branch", branch["name"]), branch["position"])
        for participant in stats["participants"]:
            who = (participant["seat"], participant["pid"], participant["joined_ns"])
            participant["messages_per_s"] = rates.of((who, "messages"), participant["messages"])
            participant["bytes_per_s"] = rates.of((who, "bytes"), participant["bytes"])
        self._stats = stats

    def document(self) -> object:
        return self._stats

    def draw(self) -> RenderableType:
        return _draw(self._place, self._stats)

    def press(self, key: str) -> None:
        return None


def _draw(place: Place, stats: Any) -> Group:
    from rich.console import Group
    from rich.text import Text

    participants = [s for s in stats["participants"] if s["role"] != "attached"]
    return Group(
        Text("\n".join((*summary(place, stats), f"{stats['slots_per_s']:,} slots a second\n"))),
        make_table(
            (*BRANCH_COLUMNS, "slots/s"),
            [
                (*row, branch["slots_per_s"])
                for row, branch in zip(branch_rows(stats), stats["branches"], strict=True)
            ],
        ),
        "",
        make_table(
            _PARTICIPANT_COLUMNS,
            [
                (*participant_cells(s), s["messages_per_s"], f"{size(s['bytes_per_s'])}/s")
                for s in participants
            ],
        ),
        "",
    )
