"""Deliberate breaks of the core, which the explorer or the kill points must notice."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

NATIVE = Path(__file__).parents[1]
CORE = NATIVE / "core"


class Break(NamedTuple):
    """A change of the core that must not go unnoticed, and the case that shows it."""

    name: str
    file: str
    old: str
    new: str
    case: str
    weak: bool = False  # True if only C11's memory model shows the break
    arguments: tuple[str, ...] = ()  # further ones of the harness's program


# Breaks for which both harnesses have a case.
LEASE_STRUCK_FIRST = Break(
    "a lease is struck before an orphan records it",
    "nack.c",
    "\torphan_record(r, s,",
    "\t(void)ranges_remove(s, consumer->range, &consumer->ranges_used, lo, hi);\n"
    "\torphan_record(r, s,",
    "one hands back to the other, and may die",
)
RANGE_STRUCK_FIRST = Break(
    "the range of a dead consumer is struck before an orphan records it",
    "orphans.c",
    "\t\torphan_record(r, s,",
    "\t\tstore_relaxed(&s->range[k].lo, NONE);\n\t\torphan_record(r, s,",
    "two dead of one branch are recovered by one that may die",
)
END_COUNTED_LATE = Break(
    "an end is counted when the branch has passed it",
    "end.c",
    "\tif (!announce(consumer, seen, end)) {\n"
    "\t\tconsumer_raise_hold(consumer);\n\t\treturn false;\n\t}\n"
    "\tif (!consumer->takes_ends)\n\t\treturn consumer_pass_over(consumer, seen, end, true);",
    "\tif (!consumer->takes_ends)\n"
    "\t\treturn consumer_pass_over(consumer, seen, end, true) &&\n"
    "\t\t       (announce(consumer, end << 8 | consumer->seat_index, end), true);",
    "the end of a stream: two consumers",
)


class Harness(NamedTuple):
    """A folder below native/ whose program runs the core; it takes a case as argument."""

    name: str
    flags: tuple[str, ...]
    replaces: tuple[str, ...] = ()  # files of the core that the harness replaces


def changed(harness: Harness, broken: Break) -> str:
    """Return the text of the broken file."""
    text = (CORE / "src" / broken.file).read_text()
    if text.count(broken.old) != 1:
        sys.exit(f"{harness.name}: {broken.file} has no longer what '{broken.name}' changes")
    return text.replace(broken.old, broken.new)


def build(harness: Harness, where: Path, broken: Break) -> Path:
    """Compile the harness over a copy of the core with this one change."""
    source = where / "src"
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(CORE / "src", source)
    (source / broken.file).write_text(changed(harness, broken))
    program = where / harness.name
    folder = NATIVE / harness.name
    core = (path for path in source.glob("*.c") if path.name not in harness.replaces)
    files = [*folder.glob("*.c"), *core]
    command = ["cc", "-std=c11", "-O2", "-w", "-D_GNU_SOURCE", *harness.flags]
    command += [f"-I{d}" for d in (folder, source, CORE / "include", CORE / "tests")]
    command += [*map(str, files), "-o", str(program), "-lpthread"]
    status = subprocess.run(command).returncode
    if status:
        sys.exit(f"{harness.name}: cc {ending(status)} for '{broken.name}'")
    return program


def ending(status: int) -> str:
    """Say in words how a program ended."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with {status}"


def run_all(harness: Harness, breaks: list[Break], where: str = "") -> int:
    """Run every break; return 0 if all are noticed. Without a folder, only try each change."""
    missed = 0
    for broken in breaks:
        changed(harness, broken)  # check all breaks before building the first one
    for broken in breaks if where else ():
        program = build(harness, Path(where), broken)
        command = [program, *broken.arguments, *["--weak"] * broken.weak, broken.case]
        run = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        noticed = run.returncode == 1
        missed += not noticed
        first = run.stdout.partition("\n")[0].strip()
        said = first.removeprefix(f"{broken.case}: ") if noticed else "NOT NOTICED"
        print(f"{broken.name}: {said.replace(f'{NATIVE / harness.name}/', '')}", flush=True)
        if run.returncode not in (0, 1):
            print(f"{run.stdout}{run.stderr}{program} {ending(run.returncode)}", flush=True)
    if where:
        print(f"{harness.name}: {len(breaks)} deliberate breaks, {missed} not noticed")
    return missed != 0
