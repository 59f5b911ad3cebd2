"""Commands that make, describe, sweep and remove rings."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.choices import CLOCKS
from shmring.cli.errors import complain
from shmring.cli.options import (
    Place,
    branch_names,
    creation_options,
    json_option,
    ring_argument,
    ring_names,
)
from shmring.cli.output import as_time, clean, emit, show_pairs, show_table, size, wants_json
from shmring.errors import Contended, RingExists, ShmringError
from shmring.extras import pyarrow
from shmring.names import SHM_FOLDER, locate, reap, sweep_folder
from shmring.ring import look_on

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["create", "drop_branch", "gc", "info", "ls", "recover", "unlink"]

_RECOVERY_TIMEOUT = 2.0  # seconds for a recovery that somebody else is at


def octal(value: str | int) -> int:
    """Permission bits as people write them."""
    if isinstance(value, int):
        return value
    try:
        return int(value, 8)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no octal mode such as 640") from None


@click.command()
@ring_argument
@creation_options
@click.option(
    "--participants",
    type=int,
    default=128,
    show_default=True,
    help="Producers, consumers and attached handles, up to 248.",
)
@click.option("--single-producer", is_flag=True, help="Refuse a second living producer.")
@click.option("--scattered", is_flag=True, help="Put neighbours far apart; one-slot messages only.")
@click.option("--checksum", is_flag=True, help="Keep and check a CRC32C of every message.")
@click.option(
    "--clock",
    type=click.Choice(list(CLOCKS)),
    default="coarse",
    show_default=True,
    help="Time of messages.",
)
@click.option(
    "--mode",
    type=octal,
    default=0o600,
    metavar="OCTAL",
    help="Permissions of the file.  [default: 600]",
)
@click.option("--schema-from", metavar="FILE", help="Keep this Parquet file's Arrow schema in it.")
@click.option("--prefault", is_flag=True, help="Touch every page now.")
@click.option("--lock-memory", is_flag=True, help="Lock it into memory while it is made.")
@click.option("--huge-pages", is_flag=True, help="Ask for transparent huge pages.")
@click.option("--first-sequence", type=int, default=0, help="Where message_ids begin.")
@click.option(
    "--branch",
    "branches",
    multiple=True,
    metavar="NAME",
    help="Make this branch too, so that it holds messages for who comes later. Repeatable.",
)
@click.option("--exist-ok", is_flag=True, help="Leave a ring that is there as it is.")
@json_option
def create(
    place: Place,
    slots: int | None,
    schema_from: str | None,
    branches: tuple[str, ...],
    exist_ok: bool,
    **options: Any,
) -> None:
    """Make a ring. It stays until it is unlinked.

    All of its memory is reserved now, and in containers charged to the one that this runs in.
    """
    if schema_from is not None:
        options["schema"] = pyarrow("parquet", "Parquet").read_schema(schema_from)
    if slots is not None:
        options["slots"] = slots
    try:
        made = shmring.create(place.name, path=place.path, **options)
    except RingExists:
        if not exist_ok:
            raise
        with place.attach() as ring:
            _say_what_is_there("found", place, ring)
        return
    with made as ring:
        try:
            for branch in branches:
                ring.subscribe(branch)
        except BaseException:
            ring.unlink()
            raise
        _say_what_is_there("created", place, ring)


def _say_what_is_there(what: str, place: Place, ring: shmring.Ring) -> None:
    if wants_json():
        emit(_info(ring))
    else:
        info = ring.info
        given = click.get_current_context().params["nbytes"]
        of = f" of {size(given)}" if given and what == "created" else ""
        print(
            f'{what} ring "{place.label}": {info.slots:,} slots, {size(info.file_bytes)}{of}, '
            f"{ring.path}"
        )


def _info(ring: shmring.Ring) -> dict[str, Any]:
    schema = ring.schema
    fields = schema and [{"name": n, "type": t, "nullable": null} for n, t, null in _fields(schema)]
    return {"name": ring.name, "path": ring.path, **ring.info._asdict(), "schema": fields}


def _fields(schema: pa.Schema) -> list[tuple[str, str, bool]]:
    fields: list[Any] = list(schema)
    return [(f.name, str(f.type), f.nullable) for f in fields]


@click.command()
@ring_argument
@json_option
def info(place: Place) -> None:
    """Show what a ring is: its header.

    What is no ring, or a damaged one, is said to be that, with status 1.
    """
    with place.look_on() as ring:
        if wants_json():
            emit(_info(ring))
            return
        facts = ring.info
        kinds = ("single_producer", "scattered", "checksum")
        pairs: list[tuple[str, object]] = [
            ("ring", place.label),
            ("path", ring.path),
            ("slots", f"{facts.slots:,} of {SLOT_BYTES} bytes"),
            ("size", f"{size(facts.file_bytes)} ({facts.file_bytes:,} bytes)"),
            ("participants", f"up to {facts.participants}"),
            ("layout", "{}.{}".format(*facts.layout)),
            ("options", ", ".join(k.replace("_", " ") for k in kinds if getattr(facts, k)) or "-"),
            ("clock", facts.clock),
            ("first sequence", f"{facts.first_sequence:,}"),
            ("created", as_time(facts.created_ns)),
            ("owner", f"uid {facts.owner_uid}, mode {facts.mode:o}"),
            ("uuid", facts.uuid),
        ]
        schema = ring.schema
        if schema is not None:
            pairs.append(("schema", "\n".join(f"{n}: {t}" for n, t, _ in _fields(schema))))
        show_pairs(pairs)


@click.command("ls")
@json_option
def ls() -> None:
    """List the rings of this host (those with a name)."""
    rows = [_listing(name) for name in shmring.rings()]
    if wants_json():
        emit(rows)
    elif rows:
        show_table(
            ["ring", "slots", "size", "used", "branches", "alive", "dead", ""],
            [
                (r["name"], "-", "-", "-", "-", "-", "-", r["error"])
                if "error" in r
                else (
                    r["name"],
                    r["slots"],
                    size(r["file_bytes"]),
                    r["used"],
                    r["branches"],
                    r["alive"],
                    r["dead"],
                    "abandoned: gc will sweep it" if r["abandoned"] else "",
                )
                for r in rows
            ],
        )


def _listing(name: str) -> dict[str, Any]:
    try:
        with look_on(name) as ring:
            stats = ring.stats()
            participants = [s for s in stats["participants"] if s["pid"]]  # or handed back
            alive = sum(s["alive"] for s in participants)
            return {
                "name": name,
                "path": ring.path,
                "slots": ring.slots,
                "file_bytes": ring.info.file_bytes,
                "used": stats["used"],
                "branches": len(stats["branches"]),
                "alive": alive,
                "dead": len(participants) - alive,
                "abandoned": bool(participants) and not alive and reap(ring.path, dry_run=True)[0],
            }
    except ShmringError as error:
        return {"name": name, "error": str(error)}


@click.command()
@click.argument("ring", required=False, shell_complete=ring_names)
@click.option("--path", metavar="FILE", help="Only the ring in this file.")
@click.option("--dry-run", is_flag=True, help="Only say what would go if it was done now.")
@json_option
def gc(ring: str | None, path: str | None, dry_run: bool) -> None:
    """Remove rings whose every participant has died.

    Without RING all rings of this host that have a name are looked at. A ring that was closed in
    order, or never used, stays. What cannot be looked at is named on stderr and left alone.
    """
    swept: list[str] = []
    files: list[str] = []  # what goes beside rings, or without any
    skipped: list[dict[str, str]] = []

    def look_at(name: str | None, at: str | None) -> tuple[str, str]:
        label, where = locate(name, at)
        gone, beside = reap(where, dry_run=dry_run)
        swept.extend([label] if gone else [])
        files.extend(beside)
        return os.path.split(where)

    if ring is not None or path is not None:
        if ring is not None and path is not None:
            raise click.UsageError("give one of RING and --path")
        if ring is not None and "/" in ring:
            ring, path = None, ring
        folder, file = look_at(ring, path)
    else:
        for name in shmring.rings():
            try:
                look_at(name, None)
            except ShmringError as error:
                skipped.append({"name": name, "reason": str(error)})
        folder, file = SHM_FOLDER, None
    files += sweep_folder(folder, file, dry_run=dry_run)
    if wants_json():
        would = {"would_sweep": swept, "would_remove": files}
        emit({"swept": [] if dry_run else swept, **would, "skipped": skipped})
        return
    for name in (*swept, *files) if dry_run else swept:
        print(clean(name))
    for skip in skipped:
        complain(f'"{skip["name"]}" is left alone: {skip["reason"]}')


@click.command()
@ring_argument
@json_option
def recover(place: Place) -> None:
    """Clear away participants of a ring that have died; waiting processes do it too."""
    deadline = time.monotonic() + _RECOVERY_TIMEOUT
    with place.attach() as ring:
        while True:
            try:
                cleared = ring.recover()
                break
            except Contended:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
    if wants_json():
        emit({"cleared": cleared})
    else:
        print(f"{cleared} dead participants cleared away")


@click.command("drop-branch")
@ring_argument
@click.argument("branch", shell_complete=branch_names)
@json_option
def drop_branch(place: Place, branch: str) -> None:
    """Drop a branch: it holds the producers no longer, its consumers are told."""
    with place.attach() as ring:
        ring.drop_branch(branch)
    if wants_json():
        emit({"dropped": branch})


@click.command()
@click.argument("rings", nargs=-1, metavar="[RING]...", shell_complete=ring_names)
@click.option("--path", "paths", multiple=True, metavar="FILE", help="The ring in this file.")
@json_option
def unlink(rings: tuple[str, ...], paths: tuple[str, ...]) -> None:
    """Remove rings. Who is attached goes on; nobody can attach any more."""
    if not rings and not paths:
        raise click.UsageError("say which ring: its name or its path")
    removed: list[str] = []
    failed = False
    for target in (*rings, *paths):
        at_path = "/" in target or target in paths
        try:
            if at_path:
                shmring.unlink(path=target)
            else:
                shmring.unlink(target)
            removed.append(target)
        except (ShmringError, ValueError, OSError) as error:
            failed = True
            complain(error)
    if wants_json():
        emit({"unlinked": removed})
    if failed:
        sys.exit(1)
