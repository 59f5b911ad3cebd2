"""``shmring check``: what is wrong on this host, and the command that mends it."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

import click

from shmring.cli.options import age_option, foreign_option, json_option
from shmring.cli.output import clean, emit, show_status, wants_json
from shmring.records import Finding

_MOMENT = 1.0  # seconds in which what does not hang goes on


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@age_option
@foreign_option
@json_option
def check(names: tuple[str, ...], age: float, foreign: bool) -> NoReturn:
    """Say what is wrong with the rings and sidecars of this host, and what mends it.

    NAME is a ring, by its name or path, or a sidecar; without any, all that belong to this user
    are looked at, and shared memory itself. None is joined. Status 0 means that all is well, 1 that
    there is a warning, 2 that something is stuck. For monitoring, and for probes.

    What may hang is looked at a second time, a second later.
    """
    from shmring.findings import MOVING, findings
    from shmring.host import Observer

    with Observer(names, foreign=foreign) as observer:
        look = observer.look()
        found = findings(look, age=age)
        if any(each.kind in MOVING for each in found):
            time.sleep(_MOMENT)
            before, look = look, observer.look()
            found = findings(look, before, age=age)
    status = max((each.status for each in found), default=0)
    rings = [ring.name for ring in look.rings if ring.sidecar is None]
    sidecars = [ring.sidecar for ring in look.rings if ring.sidecar is not None]
    if wants_json():
        listed = [each._asdict() for each in found]
        seen = {"rings": rings, "sidecars": sidecars, "foreign": look.foreign}
        emit({"status": status, **seen, "findings": listed})
    else:
        for each in found:
            print(f"{show_status(each.status)}: {subject(each)}{clean(each.words)}")
            if each.command:
                print(f"    {clean(each.command)}")
        if not found:
            print(f"all is well: {len(rings)} rings and {len(sidecars)} sidecars")
        if look.foreign:
            print(f"{look.foreign} rings of other users are left out: --foreign looks at them too")
    sys.stdout.flush()
    sys.exit(status)


def subject(finding: Finding) -> str:
    """What a finding is about; empty if it is the host."""
    if finding.sidecar is not None:
        return f'sidecar "{clean(finding.sidecar)}": '
    return f'ring "{clean(finding.ring)}": ' if finding.ring is not None else ""
