#!/usr/bin/env python3
"""Check the models of the protocol exhaustively, and that each broken protocol is caught.

Every model is searched completely in the sizes below; then again with one
`BREAK_...` at a time, which must be found. Needs spin and gcc, nothing else.
A word on the command line checks only the models whose name has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MEMORY_MB = 3500


class Model(NamedTuple):
    name: str
    sizes: tuple[str, ...]  # each is searched completely
    broken: dict[str, str]  # size -> the BREAK_... that are to be found in it


MODELS = (
    Model(
        "claim",
        (
            "PRODUCERS=2 LAST=6 KILLS=1",
            "PRODUCERS=2 LAST=4 KILLS=2",
            "PRODUCERS=3 LAST=4 KILLS=3 ONE_CLAIM_EACH",
        ),
        {
            "PRODUCERS=2 LAST=4 KILLS=2": "INTENT_LATE CLEAR_EARLY NO_EVIDENCE "
            "IGNORE_THE_LIVING NO_SECOND_LOOK ROWS_ARE_EVIDENCE "
            "LOOK_AGAIN_WITHOUT_A_HOLE"
        },
    ),
    Model(
        "read",
        ("LAST=4 KILLS=2", "LAST=3 KILLS=1 FLOOR_BY_STEPS", "LAST=3 KILLS=1 NACKS=1"),
        {
            "LAST=3 KILLS=2": "KEEP_PENDING NO_CONFIRM STRIKE_FIRST ADOPT_UNANNOUNCED HOLD_LATE "
            "NO_ADOPTER",
            "LAST=3 KILLS=1 FLOOR_BY_STEPS": "NO_MOVES HOLDS_FIRST",
            "LAST=3 KILLS=1 NACKS=1": "NACK_UNANNOUNCED NACK_STRIKES_FIRST",
            "LAST=3 KILLS=1 NACKS=1 FLOOR_BY_STEPS": "NACK_NO_MOVES",
        },
    ),
    Model(
        "graph",
        ("PRODUCERS=1 LAST=4 VISITS=2", "PRODUCERS=2 LAST=3 VISITS=1"),
        {
            "PRODUCERS=1 LAST=4 VISITS=2": "LOOK_ONCE NEWCOMER_DOES_NOT_LOOK NO_HEAVY_FOR_OVERRUN "
            "NO_HEAVY_FOR_DROP DROP_AT_ONCE OVERRUN_LOOKS_FIRST NEWCOMER_UNCOUNTED COUNTED_EARLY "
            "CHANGES_LATE"
        },
    ),
    Model(
        "end",
        ("SLOTS=2", "SLOTS=2 JOINS", "SLOTS=3 JOINS"),
        {
            "SLOTS=2": "NO_LOOK COUNTED_BY_EACH NOT_COMPLETED COUNTED_LATE",
            "SLOTS=2 JOINS": "ABORTED_IS_AN_END",
        },
    ),
    Model(
        "wake",
        ("PRODUCERS=2 MESSAGES=2",),
        {
            "PRODUCERS=2 MESSAGES=2": "LOOK_FIRST LOOK_ONCE FUTEX_LATE NO_HEAVY NOT_PASSED_ON "
            "PASSES_ON_FIRST OTHERS_NOT_SHOWN NO_HEAVY_BEFORE_PASSING"
        },
    ),
    Model(
        "space",
        ("WITHOUT=1", "WITHOUT=2"),
        {"WITHOUT=1": "TAKEN_WHERE_HOLDS_GATE WISH_LATE WISH_FIRST NO_HEAVY"},
    ),
)


class Result(NamedTuple):
    states: int
    seconds: float
    error: str  # empty: everything was searched and nothing found


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def search(model: str, defines: list[str]) -> Result:
    """Search one size of one model."""
    flags = [f"-D{each}" for each in defines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = f"{model}.pml"
        shutil.copy(HERE / source, folder)
        start = time.monotonic()
        run(["spin", *flags, "-a", source], folder)
        options = ["-DSAFETY", "-DNOFAIR", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}"]
        run(["gcc", "-w", "-O2", *options, "-o", "pan", "pan.c"], folder)
        # -E: a process that has died or waits is no error; the watcher judges the end.
        output = run(["./pan", "-m1000000", "-E", "-n"], folder)
        seconds = time.monotonic() - start
    states = re.search(r"(\d+) states, stored", output)
    errors = re.search(r"errors: (\d+)", output)
    if states is None or errors is None:
        sys.exit(f"{model}: pan said\n{output}")
    found = re.search(r"pan:\d+: (.*)", output)
    error = found[1] if found and errors[1] != "0" else ""
    if not error and re.search("not completed|reached -DMEMLIM|max search depth", output):
        error = "not searched completely"
    return Result(int(states[1]), seconds, error)


def main() -> int:
    words = sys.argv[1:]
    models = [m for m in MODELS if not words or any(word in m.name for word in words)]
    states, wrong, caught, broken = 0, 0, 0, 0
    start = time.monotonic()
    for model in models:
        for size in model.sizes:
            print(f"{model.name:6} {size:42}", end=" ", flush=True)
            result = search(model.name, size.split())
            states += result.states
            wrong += bool(result.error)
            verdict = f"WRONG: {result.error}" if result.error else "holds"
            print(f"{result.states:>11,} states {result.seconds:6.1f} s  {verdict}")
        for size, names in model.broken.items():
            for name in names.split():
                print(
                    f"{model.name:6} broken: {name.replace('_', ' ').lower():34}",
                    end=" ",
                    flush=True,
                )
                result = search(model.name, [*size.split(), f"BREAK_{name}"])
                broken += 1
                caught += bool(result.error)
                verdict = "caught" if result.error else "NOT CAUGHT"
                print(f"{result.states:>11,} states {result.seconds:6.1f} s  {verdict}")
    print(
        f"{len(models)} models, {sum(len(m.sizes) for m in models)} sizes, {wrong} wrong, "
        f"{states:,} states searched, mutations caught {caught}/{broken}, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 0 if not wrong and caught == broken else 1


if __name__ == "__main__":
    sys.exit(main())
