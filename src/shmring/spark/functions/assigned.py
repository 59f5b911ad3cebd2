"""Which of an answer's columns become which of the declared ones.

It is what Spark's method of that name does. Assigned.java says the same, in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["BY_PLACE", "Assigned"]


@dataclass(frozen=True, slots=True)
class Assigned:
    """How columns find their places.

    Parameters
    ----------
    how : "both" is of a struct's fields: names are looked at, and none is moved
    takes_more : whether columns behind the declared ones are left out
    takes_numbered : whether columns that are only numbered go by their places
    """

    how: Literal["place", "name", "both"]
    takes_more: bool = False
    takes_numbered: bool = False

    @classmethod
    def by(cls, method: str, *, groups_by_name: bool) -> Assigned:
        """What a method does.

        Parameters
        ----------
        method : of Spark's that the user called
        groups_by_name : whether columns of groups' answers go by their names
        """
        if method == "mapInPandas":
            return cls("name", takes_more=True, takes_numbered=True)
        if method == "mapInArrow" or not groups_by_name:
            return BY_PLACE
        return cls("name", takes_numbered=method == "applyInPandas")

    def inside(self) -> Assigned:
        """Of the fields of a struct."""
        return self if self.how == "place" else replace(BY_PLACE, how="both")

    def objection(self, got: Sequence[str], wanted: Sequence[str]) -> str | None:
        """Why these columns cannot be assigned; None: they can."""
        if list(got) == list(wanted):
            return None
        taken = got[: len(wanted)] if self.takes_more else got
        if self.how == "place" or self._are_numbered(got):
            return _misplaced(taken, wanted)
        why = _unlike(taken, wanted)
        return why or _misplaced(taken, wanted) if self.how == "both" else why

    def places(self, got: Sequence[str], wanted: Sequence[str]) -> list[int]:
        """Where each declared column stands in an answer to which there was no objection."""
        if self.how != "name" or list(got) == list(wanted) or self._are_numbered(got):
            return list(range(len(wanted)))
        return [got.index(name) for name in wanted]

    def _are_numbered(self, got: Sequence[str]) -> bool:
        """As pandas does with a frame's columns that have no names."""
        return self.takes_numbered and list(got) == [str(i) for i in range(len(got))]


BY_PLACE = Assigned("place")


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
        # Another name means nothing to Spark, as long as it is not that of another column.
        if found != name and name in got:
            return f"{found} stands where {name} is expected"
    return None
