"""Weaken each memory ordering of the core, one at a time, and see which case notices.

An acquire or a release becomes relaxed, a fence or a barrier goes. The cases are those that the
explorer searches under C11's memory model (`explore --weak`), each with its own share of processor
time. Hours for all of the core: name files to look at some.

Usage: PYTHONPATH=native python -m explore.orderings BUILD_DIRECTORY [FILE ...]
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from breaks import CORE, Harness, compile_core

HARNESS = Harness("explore", ("-DSHMRING_EXPLORE",), replaces=("locks.c",))
SECONDS = 20  # of processor time, for a case
NOT_EXPLORED = {
    "atomics.h",
    "locks.c",
    "table.c",
    "holder.c",
    "crc32c.c",
}  # nothing of it runs in the cases

WEAKER = (
    (re.compile(r"\bload_acquire\("), "load_relaxed("),
    (re.compile(r"\bstore_release\("), "store_relaxed("),
    (re.compile(r"\bcas(32)?_(acq_rel|seq_cst)\("), "cas_relaxed("),
    (re.compile(r"\bfetch_(or|and|add)_seq_cst\("), r"fetch_\1_relaxed("),
    (re.compile(r"\b(?:light|heavy)_barrier\([^;]*\);"), ";"),
    (re.compile(r"\bfence_(?:acquire|release|seq_cst)\(\);"), ";"),
)


class Ordering(NamedTuple):
    """One access of the core, and the file's text without its ordering."""

    file: str
    line: int
    what: str
    weakened: str


def orderings(file: Path) -> list[Ordering]:
    """All of a file's, in the order of its lines."""
    text = file.read_text()
    found: list[Ordering] = []
    for pattern, weaker in WEAKER:
        for match in pattern.finditer(text):
            start = text.rfind("\n", 0, match.start()) + 1
            if text[start : match.start()].lstrip().startswith(("*", "/*", "#")):
                continue
            weakened = text[: match.start()] + match.expand(weaker) + text[match.end() :]
            line = text.count("\n", 0, match.start()) + 1
            found.append(Ordering(file.name, line, match.group().rstrip("(;"), weakened))
    return sorted(found, key=lambda ordering: ordering.line)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def _notices(program: Path, case: str) -> bool:
    command = [program, "--weak", case]
    run = subprocess.run(command, capture_output=True, check=False, preexec_fn=_limit)
    return run.returncode == 1


def judge(ordering: Ordering, where: Path, cases: list[str]) -> str | None:
    """Return the first case that notices, if one does."""
    program = compile_core(HARNESS, where, ordering.file, ordering.weakened)
    return next((case for case in cases if _notices(program, case)), None)


def main() -> int:
    """Print a line for each ordering; 0 if all were noticed."""
    where, names = Path(sys.argv[1]), sys.argv[2:]
    plain = compile_core(HARNESS, where / "plain", "cells.h", (CORE / "src/cells.h").read_text())
    listing = subprocess.run(
        [plain, "--weak", "--list"], capture_output=True, text=True, check=True
    )
    cases = listing.stdout.splitlines()
    files = sorted(file for file in (CORE / "src").glob("*.[ch]") if file.name not in NOT_EXPLORED)
    wanted = [o for file in files if not names or file.name in names for o in orderings(file)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = pool.map(
            lambda n: judge(wanted[n], where / str(n % 64), cases), range(len(wanted))
        )
        noticed = 0
        for ordering, case in zip(wanted, verdicts, strict=True):
            noticed += case is not None
            print(
                f"{ordering.file}:{ordering.line} {ordering.what}: {case or 'not noticed'}",
                flush=True,
            )
    print(f"{len(wanted)} orderings weakened, {noticed} noticed, {len(wanted) - noticed} not")
    return noticed != len(wanted)


if __name__ == "__main__":
    sys.exit(main())
