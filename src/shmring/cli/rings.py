"""Commands that make, describe, sweep and remove rings."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

import click

import shmring
from shmring.cli.options import (
    Address,
    address_of,
    branch_name,
    json_option,
    ring_argument,
    slots_option,
)
from shmring.cli.output import clean, complain, emit, say, show_table, size, wants_json
from shmring.common.words import counted
from shmring.errors import RingExists, ShmringError
from shmring.ring import look_on
from shmring.ring.names import reap, sweep
from shmring.ring.records import most_waiting


def octal(value: str | int) -> int:
    """Parse permission bits, written in octal."""
    if isinstance(value, int):
        return value
    if not re.fullmatch("(0o?)?[0-7]{1,3}", value) or not int(value, 8):
        raise click.BadParameter(f"{value!r} is no octal mode from 1 to 777, such as 640")
    return int(value, 8)


@click.command()
@ring_argument
@slots_option
@click.option(
    "--participants",
    type=int,
    default=128,
    show_default=True,
    help="Producers, consumers and attached handles, up to 248.",
)
# CHANGE: edit this for a new option of a ring
@click.option("--checksum", is_flag=True, help="Keep and check a CRC32C of every message.")
@click.option(
    "--mode",
    type=octal,
    default=0o600,
    metavar="OCTAL",
    help="Permissions of the file.  [default: 600]",
)
@click.option(
    "--branch",
    "branches",
    type=branch_name,
    multiple=True,
    metavar="NAME",
    help="Make this branch too, so that it holds messages for who comes later. Repeatable.",
)
@click.option("--exist-ok", is_flag=True, help="Leave a ring that is there as it is.")
@json_option
def create(
    address: Address,
    slots: int | None,
    branches: tuple[str, ...],
    exist_ok: bool,
    **options: Any,
) -> None:
    """Make a ring. It stays until it is unlinked.

    All of the ring's memory is reserved now. In a container, it counts as this container's memory.
    """
    if slots is not None:
        options["slots"] = slots
    try:
        made = shmring.create(address.name, path=address.path, **options)
    except RingExists:
        if not exist_ok:
            raise
        with address.attach() as ring:
            _say_what_is_there("found", address, ring)
        return
    with made as ring:
        try:
            for branch in branches:
                ring.subscribe(branch)
        except BaseException:
            ring.unlink()
            raise
        _say_what_is_there("created", address, ring)


def _say_what_is_there(what: str, address: Address, ring: shmring.Ring) -> None:
    info = ring.info
    nbytes = size(info.file_bytes)
    say(
        {"name": ring.name, "path": ring.path, **info._asdict()},
        f'{what} ring "{address.label}": {info.slots:,} slots, {nbytes}, {ring.path}',
    )


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
            # A seat without a process id only stands for messages that were handed back.
            participants = [s for s in stats["participants"] if s["pid"]]
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


def _waiting(name: str) -> int:
    with suppress(ShmringError), address_of(name).look_on() as ring:
        return most_waiting(ring.stats())
    return 0


@click.command()
@click.argument("ring", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would go if it was done now.")
@json_option
def gc(ring: str | None, dry_run: bool) -> None:
    """Remove rings whose every participant has died.

    Without RING, the command checks all named rings of this host. A ring that was closed in order,
    or never used, stays. A ring that cannot be examined is named on stderr and stays, too.
    """
    address = Address(None, None) if ring is None else address_of(ring)
    swept, files, skipped = sweep(address.name, address.path, dry_run=dry_run)
    if wants_json():
        would = {"would_sweep": swept, "would_remove": files}
        left = [{"name": name, "reason": reason} for name, reason in skipped]
        emit({"swept": [] if dry_run else swept, **would, "skipped": left})
        return
    for name in (*swept, *files) if dry_run else swept:
        print(clean(name))
    for name in swept if dry_run else ():
        if waiting := _waiting(name):
            complain(f'"{name}": {counted(waiting, "message")} waiting in it would go with it')
    for name, reason in skipped:
        complain(f'"{name}" is left alone: {reason}')


@click.command()
@ring_argument
@json_option
def recover(address: Address) -> None:
    """Clear away participants of a ring that have died; waiting processes do it too."""
    with address.attach() as ring:
        cleared = ring.recover()
    say({"cleared": cleared}, f"{counted(cleared, 'dead participant')} cleared away")


@click.command("drop-branch")
@ring_argument
@click.argument("branch")
@json_option
def drop_branch(address: Address, branch: str) -> None:
    """Drop a branch: it no longer holds the producers, and its consumers get an error."""
    with address.attach() as ring:
        ring.drop_branch(branch)
    if wants_json():
        emit({"dropped": branch})


@click.command()
@click.argument("rings", nargs=-1, required=True, metavar="RING...")
@json_option
def unlink(rings: tuple[str, ...]) -> None:
    """Remove rings. Attached processes go on; no other process can attach any more."""
    removed: list[str] = []
    failed = False
    for target in rings:
        address = address_of(target)
        try:
            shmring.unlink(address.name, path=address.path)
            removed.append(target)
        except (ShmringError, ValueError, OSError) as error:
            failed = True
            complain(error)
    if wants_json():
        emit({"unlinked": removed})
    if failed:
        sys.exit(1)
