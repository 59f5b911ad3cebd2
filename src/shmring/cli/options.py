"""Options shared by several commands: the ring, its size, how to wait."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

import shmring
from shmring._shmring import SLOT_BYTES
from shmring.cli.output import complain, set_json
from shmring.common.arguments import (
    MAX_BRANCH_BYTES,
    can_name_a_branch,
    number_of,
    slots_of,
)
from shmring.ring import look_on, open_or_make
from shmring.ring.names import command_line

if TYPE_CHECKING:
    from shmring.ring.records import CreateOptions

Command = TypeVar("Command", bound=Callable[..., Any])

DAY = 86_400  # seconds in a day


def binary_count(value: str | int) -> int:
    """Parse a number of bytes; 1k is 1024."""
    if isinstance(value, int):
        return value
    try:
        return number_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def slot_count(value: str | int) -> int:
    """Parse a number of slots that a ring can have; 1k is 1024."""
    try:
        return slots_of("slots", binary_count(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def branch_name(value: str) -> str:
    """Parse a new branch's name; refuse a name that the core would refuse after making the ring."""
    if not can_name_a_branch(value):
        raise click.BadParameter(f"a branch's name has 1 to {MAX_BRANCH_BYTES} bytes")
    return value


class Number(click.FloatRange):
    """A number within a range; unlike click's own type, this type refuses nan."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is no number", param, ctx)
        return number


@dataclass(frozen=True)
class Address:
    """The ring that a command is for, given by name or by the path of its file."""

    name: str | None
    path: str | None

    @property
    def label(self) -> str:
        """Text that names the ring in messages."""
        return self.name or self.path or ""

    def attach(self, *, read_only: bool = False) -> shmring.Ring:
        """Attach to the ring; `read_only` permits a ring of another user whose mode allows it."""
        return shmring.attach(
            self.name, path=self.path, read_only=read_only, foreign_owner=read_only
        )

    def look_on(self) -> shmring.Ring:
        """Attach to observe everything except payload."""
        return look_on(self.name, path=self.path)

    def open(self, *, slots: int | None, reports: bool = False) -> shmring.Ring:
        """Attach to the ring, or make it: the producer or the consumer of a pair may start first.

        With `reports`, stderr says if the ring is new: its name may be misspelled.
        """
        options: CreateOptions = {} if slots is None else {"slots": slots}
        ring, made = open_or_make(self.name, self.path, **options)
        if made and reports:
            complain(
                f'there was no ring "{self.label}": made one of {ring.slots:,} slots; '
                f"`{self.command('unlink')}` removes it"
            )
        return ring

    def command(self, verb: str, *arguments: str) -> str:
        """Return the command line of another command for this ring."""
        return command_line(verb, self.label, *arguments)


def address_of(ring: str) -> Address:
    """Return the address for a ring's name, or for the path of its file if there is a / in it."""
    return Address(None, ring) if "/" in ring else Address(ring, None)


def ring_argument(command: Command) -> Command:
    """Add the argument RING; the command gets it as `address`."""

    @click.argument("ring")
    @functools.wraps(command)
    def wrapped(*, ring: str, **options: Any) -> Any:
        return command(address=address_of(ring), **options)

    return wrapped  # type: ignore[return-value]


def json_option(command: Command) -> Command:
    def found(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            set_json(ctx)

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=found,
        help="Print data as JSON, for machines.",
    )(command)


age_option = click.option(
    "--age",
    type=Number(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a message may be held, or wait, before that is a finding.",
)


foreign_option = click.option(
    "--foreign", is_flag=True, help="Look at other users' rings too, without their being named."
)


slots_option = click.option(
    "--slots",
    type=slot_count,
    metavar="N",
    help=f"Number of {SLOT_BYTES}-byte slots, a power of two, at least 1024 (64k is 65536).",
)
