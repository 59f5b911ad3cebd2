"""Commands that look on, without joining: stat and table."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from shmring.cli.options import Place, count, json_option, ring_argument
from shmring.cli.output import as_time, emit, message_fields, show_table, wants_json
from shmring.inspect import COUNTERS, Row, filled_rows
from shmring.inspect import table as arrow_table

__all__ = ["branch_rows", "seat_rows", "stat", "table"]

BRANCH_COLUMNS = (
    "branch",
    "position",
    "released",
    "lag",
    "members",
    "orphans",
    "kind",
    "after",
)
SEAT_COLUMNS = ("seat", "role", "name", "branch", "pid", "state", "claim", "hold", *COUNTERS)


@click.command()
@ring_argument
@json_option
def stat(place: Place) -> None:
    """Show positions, branches, participants and their counters, as they stand."""
    with place.attach(read_only=True) as ring:
        stats = ring.stats()
    if wants_json():
        emit(stats)
        return
    used, slots = stats["used"], stats["slots"]
    print(
        f"{place.label}: next sequence {stats['claimed']:,}, held since {stats['floor']:,}: "
        f"{used:,} of {slots:,} slots in use ({100 * used / slots:.1f} %)"
    )
    print()
    show_table(BRANCH_COLUMNS, branch_rows(stats["branches"]), title="branches")
    print()
    show_table(SEAT_COLUMNS, seat_rows(stats["participants"]), title="participants")


def branch_rows(branches: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Rows for BRANCH_COLUMNS."""
    return [
        (
            b["name"],
            b["position"],
            b["released"],
            b["lag"],
            b["members"],
            b["orphans"],
            " ".join(k for k in ("exclusive", "ephemeral", "lapse") if b[k]) or "reliable",
            " ".join(b["after"]) or "producers",
        )
        for b in branches
    ]


def seat_state(seat: dict[str, Any]) -> str:
    """What a participant is."""
    if seat["alive"]:
        return "alive"
    return "dead, awaits redelivery" if seat["orphaned"] else "dead"


def seat_rows(seats: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Rows for SEAT_COLUMNS."""
    return [
        (
            s["seat"],
            s["role"],
            s["name"],
            s["branch"] or "-",
            str(s["pid"]),
            seat_state(s),
            "-" if s["claim"] is None else f"{s['claim']:,}",
            "-" if s["hold"] is None else f"{s['hold']:,}",
            *(s[c] for c in COUNTERS),
        )
        for s in seats
    ]


@click.command()
@ring_argument
@click.option(
    "--limit",
    type=count,
    metavar="N",
    help="Only the newest N messages.  [default: 20 as text, else all]",
)
@click.option(
    "--capacity",
    type=click.IntRange(0),
    default=300,
    show_default=True,
    metavar="BYTES",
    help="How much of each message to show.",
)
@click.option("--hex", "as_hex", is_flag=True, help="Show messages in hexadecimal.")
@click.option("--csv", metavar="FILE", help="Write it as CSV; - is stdout.")
@click.option("--parquet", metavar="FILE", help="Write it as Parquet.")
@json_option
def table(
    place: Place,
    limit: int | None,
    capacity: int,
    as_hex: bool,
    csv: str | None,
    parquet: str | None,
) -> None:
    """Show the queue table: slot, message_id, time, message, reference_count.

    It works on a live, dead or damaged ring and disturbs nobody. The reference count is the number
    of branches that still have to release the message. With --json a line is a row.
    """
    if sum((csv is not None, parquet is not None, wants_json())) > 1:
        raise click.UsageError("give one of --csv, --parquet and --json")
    with place.attach(read_only=True) as ring:
        if parquet is not None:
            whole = arrow_table(ring, capacity=capacity)
            first = 0 if limit is None else max(0, whole.num_rows - limit)
            import_module("pyarrow.parquet").write_table(whole.slice(first), parquet)
            return
        for_people = csv is None and not wants_json()
        if for_people and limit is None:
            limit = 20
        found = _newest(filled_rows(ring, capacity), limit)
    if csv is not None:
        _write_csv(csv, found, as_hex)
    elif wants_json():
        for row in found:
            _emit_row(row, as_hex)
    else:
        show_table(
            ["slot", "message_id", "time", "message", "reference_count"],
            [
                (slot, number, as_time(when) if when else "-", _text(message, as_hex), references)
                for slot, number, when, _, references, _, message in found
            ],
        )


def _newest(rows: list[Row], limit: int | None) -> list[Row]:
    return rows if limit is None else rows[len(rows) - min(limit, len(rows)) :]


def _text(message: bytes, as_hex: bool) -> str:
    if as_hex:
        return message.hex()
    return message.decode(errors="backslashreplace")


def _emit_row(row: Row, as_hex: bool) -> None:
    slot, number, when, length, references, kind, message = row
    emit(
        {
            "slot": slot,
            "message_id": number,
            "time_ns": when or None,
            **({"message_hex": message.hex()} if as_hex else message_fields(message)),
            "reference_count": references,
            "length": length,
            "kind": kind,
        }
    )


def _write_csv(target: str, rows: list[Row], as_hex: bool) -> None:
    import csv
    from contextlib import nullcontext

    out = (
        nullcontext(sys.stdout)
        if target == "-"
        else open(target, "w", newline="", encoding="utf-8")  # noqa: SIM115
    )
    with out as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slot", "message_id", "time", "message", "reference_count"])
        for slot, number, when, _, references, _, message in rows:
            writer.writerow([slot, number, when or "", _text(message, as_hex), references])
