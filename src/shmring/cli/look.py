"""Commands that look on, without joining: stat and table."""

from __future__ import annotations

import click

from shmring.cli.options import Place, json_option, ring_argument
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
from shmring.records import ParticipantRecord, RingInfo, RingStats

_BRANCH_COLUMNS = ("", "branch", "lag", "consumers", "orphans", "kind", "after", "position")
_PARTICIPANT_COLUMNS = ("seat", "role", "name", "branch", "pid", "state", "holds from")
# CHANGE: a new counter of participants
_RARE = ("full_waits", "empty_waits", "contended", "recovered", "overrun", "dropped", "redelivered")


@click.command()
@ring_argument
@json_option
def stat(place: Place) -> None:
    """Show branches, participants and their counters, and who holds the producers, as it stands."""
    with place.look_on() as ring:
        stats, info = ring.stats(), ring.info
    if wants_json():
        emit({**stats, "info": info._asdict()})
        return
    print_lines("\n".join((*summary(place, stats), _header(info))))
    print()
    show_table(_BRANCH_COLUMNS, _branch_rows(stats), title="branches")
    print()
    participants = stats["participants"]
    show_table(_PARTICIPANT_COLUMNS, map(_participant_row, participants), title="participants")
    print()
    show_table(*_counters(participants), title="what they have done")


def summary(place: Place, stats: RingStats) -> list[str]:
    """How full the ring is, and who keeps it so, a line each."""
    used, slots, holder = stats["used"], stats["slots"], stats["holder"]
    lines = [
        f"{clean(place.label)}: {used:,} of {slots:,} slots in use ({100 * used / slots:.1f} %), "
        f"{stats['floor']:,} to {stats['claimed']:,}"
    ]
    if used and holder:
        lines.append(f"> {clean(holder['words'])}")
    return lines


def _header(info: RingInfo) -> str:
    # CHANGE: a new option of a ring
    kinds = ("single_producer", "checksum")
    return (
        f"{size(info.file_bytes)}, mode {info.mode:o} of user {info.owner_uid}, made "
        f"{as_time(info.created_ns)}, layout {info.layout[0]}.{info.layout[1]}"
        + "".join(f", {kind.replace('_', ' ')}" for kind in kinds if getattr(info, kind))
    )


def _branch_rows(stats: RingStats) -> list[tuple[object, ...]]:
    """Rows for _BRANCH_COLUMNS; > marks the branch that holds the producers."""
    holder = stats["holder"] if stats["used"] else None
    return [
        (
            ">" if holder and holder["branch"] == b["name"] else "",
            b["name"],
            b["lag"],
            b["consumers"],
            b["orphans"],
            " ".join(k for k in ("exclusive", "ephemeral", "drop_oldest") if b[k]) or "reliable",
            " ".join(b["after"]) or "producers",
            b["position"],
        )
        for b in stats["branches"]
    ]


def _state(participant: ParticipantRecord) -> str:
    if participant["alive"]:
        return "stopped" if participant["stopped"] else "alive"
    if not participant["orphaned"]:
        return "dead"
    return "dead, redelivery" if participant["pid"] else "handed back"


def _participant_row(participant: ParticipantRecord) -> tuple[object, ...]:
    held = [
        sequence for sequence in (participant["claim"], participant["hold"]) if sequence is not None
    ]
    return (
        participant["seat"],
        participant["role"],
        participant["name"],
        participant["branch"] or "-",
        str(participant["pid"]),
        _state(participant),
        f"{min(held):,}" if held else "-",
    )


def _counters(participants: list[ParticipantRecord]) -> tuple[list[str], list[tuple[object, ...]]]:
    """Columns and rows of the counters; those that are 0 everywhere are left out."""
    shown = [c for c in _RARE if any(participant[c] for participant in participants)]
    return (
        ["seat", "messages", "size", *(c.replace("_", " ") for c in shown)],
        [
            (
                participant["seat"],
                participant["messages"],
                size(participant["bytes"]),
                *(participant[c] for c in shown),
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
def table(place: Place, limit: int | None) -> None:
    """Show the queue table: slot, message_id, time, message, reference_count.

    It works on a live, dead or damaged ring and disturbs nobody. The reference count is the number
    of branches that still have to release the message. With --json a line is a row.
    """
    with place.attach(read_only=True) as ring:
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
