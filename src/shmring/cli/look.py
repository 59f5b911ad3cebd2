"""Commands that observe a ring without joining it: stat, top and table."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import click

from shmring.cli.options import DAY, Address, Number, json_option, ring_argument
from shmring.cli.output import (
    as_time,
    clean,
    emit,
    message_fields,
    print_lines,
    show_table,
    size,
    wants_json,
)
from shmring.inspect import filled_rows
from shmring.ring.records import Counters, ParticipantRecord, RingInfo, RingStats

Columns = dict[str, Callable[[Any], object]]

_KINDS = ("exclusive", "ephemeral", "drop_oldest")
# Counters that are shown only if they count something.
_RARE: Columns = {
    name.replace("_", " "): itemgetter(name)
    for name in Counters.__annotations__
    if name not in ("messages", "bytes")
}


@click.command()
@ring_argument
@json_option
def stat(address: Address) -> None:
    """Show branches, participants, their counters, and which of them producers have to wait for."""
    with address.look_on() as ring:
        stats, info = ring.stats(), ring.info
    if wants_json():
        emit({**stats, "info": info._asdict()})
        return
    _show(stats, (*summary(address, stats), _header(info)))
    print()
    show_table(*_counters(stats["participants"]), title="what they have done")


@click.command()
@ring_argument
@click.option(
    "--interval",
    type=Number(0.05, DAY),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(1), metavar="N", help="Look N times, then end.")
@json_option
def top(address: Address, interval: float, times: int | None) -> None:
    """Watch a ring until Ctrl-C: the output of `shmring stat`, and the rates per second.

    With --json, each look is a line.
    """
    rates = _Rates()
    for number in itertools.count(1):
        with address.look_on() as ring:
            found: Any = ring.stats()
        rates.add_to(found)
        if wants_json():
            emit(found)
        else:
            click.clear()  # does nothing unless stdout is a terminal
            passes = f"{found['slots_per_s']:,} slots a second"
            _show(found, (*summary(address, found), passes))
            sys.stdout.flush()
        if number == times:
            return
        time.sleep(interval)


class _Rates:
    """Computes how much each counter grew per second between two readings of the counters."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, int]] = {}

    def _rate(self, what: object, value: int) -> int:
        """Return the growth per second; 0 for a counter that is new or was reset."""
        now = time.monotonic()
        then, before = self._seen.get(what, (now, value))
        self._seen[what] = (now, value)
        return round((value - before) / (now - then)) if now > then and value > before else 0

    def add_to(self, stats: Any) -> None:
        stats["slots_per_s"] = self._rate("claimed", stats["claimed"])
        for branch in stats["branches"]:
            branch["slots_per_s"] = self._rate(("branch", branch["name"]), branch["position"])
        for participant in stats["participants"]:
            who = (participant["seat"], participant["pid"], participant["joined_ns"])
            for counter in ("messages", "bytes"):
                rate = self._rate((who, counter), participant[counter])
                participant[f"{counter}_per_s"] = rate


def _show(stats: Any, lines: tuple[str, ...]) -> None:
    """Print the lines, the branches and the participants, and the rates if they are known."""
    print_lines("\n".join(lines))
    holder = stats["holder"] if stats["used"] else None
    branches: Columns = {
        # The mark ">" stands at the branch for which producers wait.
        "": lambda b: ">" if holder and holder["branch"] == b["name"] else "",
        "branch": itemgetter("name"),
        "lag": itemgetter("lag"),
        "consumers": itemgetter("consumers"),
        "orphans": itemgetter("orphans"),
        "kind": lambda b: " ".join(filter(b.get, _KINDS)) or "reliable",
        "after": lambda b: " ".join(b["after"]) or "producers",
        "position": itemgetter("position"),
    }
    participants: Columns = {
        "seat": itemgetter("seat"),
        "role": itemgetter("role"),
        "name": itemgetter("name"),
        "branch": lambda p: p["branch"] or "-",
        "pid": lambda p: str(p["pid"]),
        "state": _state,
        "holds from": _holds_from,
    }
    if "slots_per_s" in stats:
        branches["slots/s"] = itemgetter("slots_per_s")
        participants["messages/s"] = itemgetter("messages_per_s")
        participants["bytes/s"] = itemgetter("bytes_per_s")
    for title, columns in {"branches": branches, "participants": participants}.items():
        print()
        rows = [[get(record) for get in columns.values()] for record in stats[title]]
        show_table(list(columns), rows, title=title)


def summary(address: Address, stats: RingStats) -> list[str]:
    """Return lines of text: how full the ring is, and which participant or branch keeps it full."""
    used, slots, holder = stats["used"], stats["slots"], stats["holder"]
    lines = [
        f"{clean(address.label)}: {used:,} of {slots:,} slots in use ({100 * used / slots:.1f} %), "
        f"{stats['floor']:,} to {stats['claimed']:,}"
    ]
    if used and holder:
        lines.append(f"> {clean(holder['words'])}")
    return lines


def _header(info: RingInfo) -> str:
    # CHANGE: edit this for a new option of a ring
    kinds = [name for name, value in info._asdict().items() if value is True]
    return (
        f"{size(info.file_bytes)}, mode {info.mode:o} of user {info.owner_uid}, made "
        f"{as_time(info.created_ns)}, layout {info.layout[0]}.{info.layout[1]}"
        + "".join(f", {kind.replace('_', ' ')}" for kind in kinds)
    )


def _state(participant: ParticipantRecord) -> str:
    if participant["alive"]:
        return "stopped" if participant["stopped"] else "alive"
    if not participant["orphaned"]:
        return "dead"
    return "dead, redelivery" if participant["pid"] else "handed back"


def _holds_from(participant: ParticipantRecord) -> str:
    held = [at for at in (participant["claim"], participant["hold"]) if at is not None]
    return f"{min(held):,}" if held else "-"


def _counters(participants: list[ParticipantRecord]) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the columns and rows of the counters; leave out rare counters that are all zero."""
    shown = {name: count for name, count in _RARE.items() if any(map(count, participants))}
    return (
        ["seat", "messages", "size", *shown],
        [
            (
                participant["seat"],
                participant["messages"],
                size(participant["bytes"]),
                *(count(participant) for count in shown.values()),
            )
            for participant in participants
        ],
    )


@click.command()
@ring_argument
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only the newest N messages.  [default: 20 as text, else all]",
)
@json_option
def table(address: Address, limit: int | None) -> None:
    """Show the queue table: slot, message_id, time, message, reference_count.

    It works on a live, dead or damaged ring and disturbs nobody. The reference count is the number
    of branches that still have to release the message. With --json, each row is a line.
    """
    with address.attach(read_only=True) as ring:
        found = filled_rows(ring)
    if limit is None and not wants_json():
        limit = 20
    shown = found if limit is None else found[-limit:]
    if not wants_json():
        show_table(
            ["slot", "message_id", "time", "message", "reference_count"],
            [
                (
                    slot,
                    number,
                    as_time(when) if when else "-",
                    message.decode(errors="backslashreplace"),
                    references,
                )
                for slot, number, when, _, references, _, message in shown
            ],
        )
        return
    for slot, number, when, length, references, kind, message in shown:
        emit(
            {
                "slot": slot,
                "message_id": number,
                "time_ns": when or None,
                **message_fields(message),
                "reference_count": references,
                "length": length,
                "kind": kind,
            }
        )
