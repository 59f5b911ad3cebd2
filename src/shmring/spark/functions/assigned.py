"""How the columns of an answer are assigned to the declared columns.

This does what Spark's methods for Arrow do. Assigned.java does the same with the same error texts,
and also covers the methods for pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["BY_NAME", "BY_PLACE", "Assigned"]


@dataclass(frozen=True, slots=True)
class Assigned:
    """How columns find their places.

    Parameters
    ----------
    how : "both" is for a struct's fields: their names are compared, and none is moved
    """

    how: Literal["place", "name", "both"]

    def inside(self) -> Assigned:
        """The assignment for the fields of a struct."""
        return self if self.how == "place" else Assigned("both")

    def objection(self, got: Sequence[str], wanted: Sequence[str]) -> str | None:
        """Return why these columns cannot be assigned; None if they can."""
        if list(got) == list(wanted):
            return None
        if self.how == "place":
            return _misplaced(got, wanted)
        why = _unlike(got, wanted)
        return why or _misplaced(got, wanted) if self.how == "both" else why

    def places(self, got: Sequence[str], wanted: Sequence[str]) -> list[int]:
        """Return the place of each declared column in an answer without objection."""
        if self.how != "name" or list(got) == list(wanted):
            return list(range(len(wanted)))
        return [got.index(name) for name in wanted]


BY_PLACE = Assigned("place")
BY_NAME = Assigned("name")


def _unlike(got: Sequence[str], wanted: Sequence[str]) -> str | None:
    why = [f"{name} is missing" for name in wanted if name not in got]
    why += [f"{name} is not declared" for name in got if name not in wanted]
    why += [f"{name} comes twice" for i, name in enumerate(got) if name in got[:i]]
    return ", ".join(why) or None


def _misplaced(got: Sequence[str], wanted: Sequence[str]) -> str | None:
    for name in wanted:
        if name not in got and len(got) < len(wanted):
            return f"{name} is missing"
    if len(got) != len(wanted):
        return f"it has {len(got)} columns, not {len(wanted)}"
    for found, name in zip(got, wanted, strict=True):
        # Spark ignores another name, unless it is that of another column.
        if found != name and name in got:
            return f"{found} stands where {name} is expected"
    return None
