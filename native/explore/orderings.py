"""Take away each memory ordering of the core, one at a time, and see which case notices.

An acquire or a release becomes relaxed, a fence or a barrier goes; the explorer does so while it
runs (`explore --weaken`), under C11's memory model. The script first walks at random through each
case that executes the ordering, then searches each one up to a number of states. The case that
noticed the last time comes first. The script writes the results into docs/orderings.md, which keeps
the reason of each ordering that no case notices.

Usage: PYTHONPATH=native python -m explore.orderings EXPLORER [--known] [FILE ...]
       PYTHONPATH=native python -m explore.orderings --page

--known runs only the cases that docs/orderings.md names, writes nothing, and fails if one of these
cases no longer notices.
--page runs nothing: it compares docs/orderings.md with the core's text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from explore.breaks import CORE

PAGE = Path(__file__).parents[2] / "docs" / "orderings.md"
TOLD = "<!-- what follows is written by `make orderings` -->"
WALKS, STATES = 3000, 50_000  # random walks, and most states searched, of each case
# Factor for the walks of the case that docs/orderings.md names for an ordering. After a change of
# the core, the case's random walks are others, and may find the violation later.
MORE_WALKS = 10
SECONDS = 120
NO_ORDERINGS = {"atomics.h", "atomics.c"}  # files that define the orderings
OPEN = "**open**"
HEADING = "| function | ordering | case that notices, or reason to keep it |"

# CHANGE: edit this for a new memory ordering
# Names in atomics.h that order accesses: all but those of relaxed accesses.
NAMES = set(
    re.findall(
        r"\b(\w+_(?:acquire|release|acq_rel|seq_cst|barrier))\(",
        (CORE / "src/atomics.h").read_text(),
    )
)
ACCESS = re.compile(rf"\b({'|'.join(sorted(NAMES))})\(")
FUNCTION = re.compile(r"^(?!#)\w[^;\n]*?\b(?!__attribute__)(\w+)\((?!\()", re.MULTILINE)


class Ordering(NamedTuple):
    """A call in the core that orders memory accesses: an acquire, release, fence or barrier."""

    file: str
    line: int
    function: str
    access: str
    operand: str
    turn: int  # number of the access among equal ones in the function, from 1

    @property
    def place(self) -> str:
        """Name of the ordering in the explorer's options and output, with the file's line."""
        return f"{self.file}:{self.line}:{self.access}:{self.operand}"

    @property
    def row(self) -> tuple[str, str, str]:
        """Name of the ordering in docs/orderings.md, without a line number: lines move."""
        operand = f"({self.operand})" if self.operand else ""
        turn = f", no. {self.turn}" if self.turn > 1 else ""
        return self.file, self.function, f"`{self.access}{operand}`{turn}"


def _operand(text: str, start: int) -> str:
    """Return the first argument of a call; `start` is the offset of the arguments."""
    depth, at = 0, start
    while depth or text[at] not in ",)":
        depth += (text[at] in "([") - (text[at] in ")]")
        at += 1
    return " ".join(text[start:at].split())


def orderings(file: Path) -> list[Ordering]:
    """Return the orderings of a file, in the order of its lines."""
    text = file.read_text()
    plain = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.DOTALL)
    functions = [(m.start(), m.group(1)) for m in FUNCTION.finditer(plain)]
    found: list[Ordering] = []
    for match in ACCESS.finditer(plain):
        access = match.group(1)
        if text[: match.start()].rpartition("\n")[2].startswith(("void ", "bool ", "#")):
            continue  # a declaration
        function = max((at, name) for at, name in functions if at < match.start())[1]
        ordered = "barrier" in access or "fence" in access
        operand = "" if ordered else _operand(plain, match.end())
        line = text.count("\n", 0, match.start()) + 1
        same = (function, access, operand)
        turn = sum((o.function, o.access, o.operand) == same for o in found) + 1
        found.append(Ordering(file.name, line, function, access, operand, turn))
    return found


def all_orderings() -> list[Ordering]:
    """Return the orderings of the whole core."""
    files = sorted(f for f in (CORE / "src").glob("*.[ch]") if f.name not in NO_ORDERINGS)
    return [ordering for file in files for ordering in orderings(file)]


# --- the page ----------------------------------------------------------------------------------


def read_page() -> dict[tuple[str, str, str], str]:
    """Return the verdict of docs/orderings.md on each ordering: a case, a reason, or OPEN."""
    rows: dict[tuple[str, str, str], str] = {}
    file = ""
    for line in PAGE.read_text().partition(TOLD)[2].splitlines():
        if line.startswith("## "):
            file = line[3:]
        elif line.startswith("| `"):
            function, access, verdict = line.strip("| ").split(" | ")
            rows[file, function.strip("`"), access] = verdict
    return rows


def noticing_case(verdict: str) -> str:
    """Return the case that a verdict names; empty if the verdict is a reason, or OPEN."""
    return verdict[1:-1] if verdict.startswith("“") else ""


def write_page(verdicts: dict[tuple[str, str, str], str]) -> None:
    """Write the verdicts and their totals into docs/orderings.md, below the text."""
    head = PAGE.read_text().partition(TOLD)[0]
    rows = [(ordering.row, verdicts.get(ordering.row, OPEN)) for ordering in all_orderings()]
    noticed = sum(bool(noticing_case(verdict)) for _, verdict in rows)
    lines = [
        TOLD,
        "",
        f"{len(rows)} orderings; {noticed} are noticed by a case when they are gone;",
    ]
    lines += [f"of the other {len(rows) - noticed} the table says why they stay.", ""]
    file = ""
    for (where, function, access), verdict in rows:
        if where != file:
            file = where
            lines += ["", f"## {file}", "", HEADING, "|---|---|---|"]
        lines.append(f"| `{function}` | {access} | {verdict} |")
    PAGE.write_text(head + re.sub("\n\n\n+", "\n\n", "\n".join(lines)) + "\n")


# --- the explorer ---------------------------------------------------------------------------------


class Explorer:
    """The explorer's program, its cases, and the orderings that each case executes."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.cases = self._lines("--list")
        self.executed: dict[tuple[str, bool], frozenset[str]] = {}  # orderings by (case, fences)

    def _lines(self, *arguments: str) -> list[str]:
        command = [self.program, *arguments]
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False
        ).stdout.splitlines()

    def learn(self, pool: ThreadPoolExecutor, fences: bool) -> None:
        """Run each case for a short while, and note the orderings that the case executes."""
        flags = ["--fences"] if fences else []
        flags += ["--accesses", "--walks", "1000", "--states", "2000"]
        said = pool.map(lambda case: self._lines("--weak", *flags, case), self.cases)
        for case, lines in zip(self.cases, said, strict=True):
            accesses = (line.partition("  executes ")[2] for line in lines)
            self.executed[case, fences] = frozenset(accesses)

    def notices(self, ordering: Ordering, case: str, walks: int, states: int) -> bool:
        """Return whether the case finds a violation if the ordering is gone."""
        flags = ["--fences"] if ordering.access == "light_barrier" else []
        command = [self.program, "--weak", *flags, "--weaken", ordering.place]
        command += ["--walks", str(walks), "--states", str(states), case]
        try:
            run = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return run.returncode == 1


class Judge:
    """Finds a case that notices if an ordering is gone."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.lucky: list[str] = []  # cases that noticed an ordering, the latest first

    def case_for(self, ordering: Ordering, known: str) -> str:
        """Return a case that notices if the ordering is gone, `known` first; empty if none does."""
        explorer = self.explorer
        if known in explorer.cases and explorer.notices(
            ordering, known, MORE_WALKS * WALKS, STATES
        ):
            return known
        fences = ordering.access == "light_barrier"
        with_it = [c for c in explorer.cases if ordering.place in explorer.executed[c, fences]]
        with_it.sort(key=lambda c: self.lucky.index(c) if c in self.lucky else len(self.lucky))
        attempts = [(c, WALKS, 0) for c in with_it]
        attempts += [(c, 0, STATES) for c in with_it]
        for case, walks, states in attempts:
            if explorer.notices(ordering, case, walks, states):
                self.lucky = [case, *(c for c in self.lucky if c != case)]
                return case
        return ""


def check_page() -> int:
    """Print how the page and the core's text differ; return 0 if they agree."""
    rows, expected = read_page(), {ordering.row for ordering in all_orderings()}
    cases = "".join(file.read_text() for file in Path(__file__).parent.glob("*.c"))
    wrong = [f"{row}: not in the core any longer" for row in rows.keys() - expected]
    wrong += [f"{row}: not on the page" for row in expected - rows.keys()]
    wrong += [f"{row}: neither noticed nor explained" for row in rows if rows[row] == OPEN]
    wrong += [
        f"{row}: no case has this name: {case}"
        for row, verdict in rows.items()
        if (case := noticing_case(verdict)) and f'.name = "{case}"' not in cases
    ]
    print("\n".join(sorted(wrong)) or f"{len(rows)} orderings are as docs/orderings.md says")
    return bool(wrong)


def main() -> int:
    """Judge the orderings of the named files, or of all files.

    Return 0 if a case notices each ordering's removal, or docs/orderings.md says why it stays.
    """
    if sys.argv[1:] == ["--page"]:
        return check_page()
    program, *names = sys.argv[1:]
    only_known = "--known" in names
    names = [name for name in names if name != "--known"]
    judge = Judge(Explorer(program))
    verdicts = read_page()
    wanted = [o for o in all_orderings() if not names or o.file in names]
    known = {o: noticing_case(verdicts.get(o.row, "")) for o in wanted}
    if only_known:
        wanted = [o for o in wanted if known[o]]
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for fences in () if only_known else {o.access == "light_barrier" for o in wanted}:
            judge.explorer.learn(pool, fences)
        if only_known:
            seen = pool.map(
                lambda o: (
                    known[o] * judge.explorer.notices(o, known[o], MORE_WALKS * WALKS, STATES)
                ),
                wanted,
            )
        else:
            seen = pool.map(lambda o: judge.case_for(o, known[o]), wanted)
        for ordering, case in zip(wanted, seen, strict=True):
            told = verdicts.get(ordering.row, OPEN)
            if case:
                told = f"“{case}”"
            elif noticing_case(told):
                told = OPEN
            verdicts[ordering.row] = told
            missed += told == OPEN
            print(f"{ordering.place}: {told}", flush=True)
            if not only_known:
                write_page(verdicts)
    print(f"{len(wanted)} orderings taken away, {missed} of them neither noticed nor explained")
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
