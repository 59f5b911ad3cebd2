"""Runs the code blocks of a page as a reader would: in order, in a folder of their own.

    python tests/blocks.py README.md docs/cli.md [--without HEADING]

- ``python`` blocks of a page run one after the other in one Python. An expression with a comment
  ``# -> value`` behind it must have this value. A block that begins with ``# name.py`` is a file,
  for blocks behind it to run or import.
- ``console`` blocks have commands behind ``$ `` and what each of them prints, all of it, unless
  nothing stands there. A command that ends in ``&`` runs beside the rest of the page, until SIGTERM
  ends it with the page.
- ``sh`` blocks are scripts.
- Of a page's C and Java there is only what it includes from ``examples``, which its blocks run.
- ``<!-- not run: why -->`` in the line before a block leaves it to the reader; why is not optional.
- ``--without Install`` leaves out what stands below the heading ``## Install``.

Rings and sidecars of pages and examples are called by a name in ``RINGS``; a run makes it its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from programs import ended

ROOT = Path(__file__).parent.parent
RINGS = ("orders", "scores", "scoring", "ticks", "jobs")
PROSE = ("", "text")
_PATIENCE = 600  # seconds for one command or block

# A page's Python: a block a line comes in, what went wrong goes out.
DRIVER = """
import ast, json, os, sys, traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
space = {"__name__": "__main__"}
for line in sys.stdin:
    page, first, source = json.loads(line)
    problem = ""
    try:
        for step in ast.parse(source, page).body:
            ast.increment_lineno(step, first)
            tail = source.splitlines()[step.end_lineno - first - 1][step.end_col_offset :]
            _, arrow, expected = tail.partition("# -> ")
            if isinstance(step, ast.Expr) and arrow:
                found = eval(compile(ast.Expression(step.value), page, "eval"), space)
                wanted = eval(expected, space)
                assert found == wanted, f"{found!r} is not {wanted!r}"
            else:
                exec(compile(ast.Module([step], []), page, "exec"), space)
    except BaseException:
        problem = traceback.format_exc()
    print(json.dumps(problem), file=answers, flush=True)
"""


class WrongBlock(Exception):
    """A block does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int  # line number of the block's fence
    language: str
    text: str
    reason: str  # why it is not run; empty: it is
    heading: str  # second-level heading above the block

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is, by its first line."""
        found = re.match(r"# ([\w./]+\.py)\n", self.text)
        return found.group(1) if found and self.language == "python" else None


def blocks_of(page: Path) -> list[Block]:
    """The code of a page; every block must be of a kind that is run, or say why it is not."""
    found: list[Block] = []
    text: list[str] = []
    before = fence = language = reason = heading = ""
    start = 0
    for number, line in enumerate(page.read_text().splitlines(keepends=True), 1):
        if fence:
            if line.rstrip() == fence:
                found.append(Block(page, start, language, "".join(text), reason, heading))
                fence = ""
            else:
                text.append(line)
        elif opened := re.match(r"(`{3,})(.*)", line):
            fence, language = opened.group(1), opened.group(2).strip()
            start, text = number, []
            said = re.match(r"<!-- not run: (.+) -->", before)
            reason = said.group(1) if said else ""
        elif line.startswith("## "):
            heading = line.removeprefix("## ").strip()
        before = line
    code = [b for b in found if b.language not in PROSE and not b.language.startswith("{")]
    for block in code:
        if block.language not in ("python", "console", "sh") and not block.reason:
            raise WrongBlock(f"{block}: nothing runs {block.language}; include a tested example")
    return [block for block in code if not block.reason]


class Page:
    """A run of a page's blocks, with rings of its own.

    Parameters
    ----------
    page : the file
    folder : where it runs
    prefix : of its rings' names
    without : headings whose blocks are not run
    """

    def __init__(
        self, page: Path, folder: Path, prefix: str, without: Collection[str] = ()
    ) -> None:
        self._page = page
        blocks = list(blocks_of(page))
        assert {*without} <= {block.heading for block in blocks}, without
        self._blocks = [b for b in blocks if b.heading not in without]
        self._folder = folder
        self._prefix = prefix
        self._beside: list[tuple[str, subprocess.Popen[str]]] = []
        self._python: subprocess.Popen[str] | None = None
        for example in (ROOT / "examples").rglob("*.*"):
            copy = folder / example.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self._own(example.read_text()))
        self._env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        self._env |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def _own(self, text: str) -> str:
        own = re.sub(rf"\b({'|'.join(RINGS)})\b", rf"{self._prefix}\1", text)
        return re.sub(r"/(?:var/lib|tmp)/", f"{self._folder}/", own)

    def run(self) -> int:
        """All of it; how many blocks. WrongBlock says which one is wrong."""
        with ExitStack() as ends:
            ends.callback(self._sweep)
            ends.callback(self._end_python)
            for block in self._blocks:
                if block.file:
                    (self._folder / self._own(block.file)).write_text(self._own(block.text))
                else:
                    getattr(self, f"_run_{block.language}")(block)
            self._end_beside()
        return len(self._blocks)

    # --- python ---------------------------------------------------------------------------------

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", DRIVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self._folder,
                env=self._env,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        print(
            json.dumps([str(self._page), block.line, self._own(block.text)]),
            file=self._python.stdin,
            flush=True,
        )
        if not select.select([self._python.stdout], [], [], _PATIENCE)[0]:
            raise WrongBlock(f"{block}: does not end")
        problem = json.loads(self._python.stdout.readline() or '"its Python has ended"')
        if problem:
            raise WrongBlock(f"{block}: {problem}")

    def _end_python(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=_PATIENCE)

    # --- commands -------------------------------------------------------------------------------

    def _run_sh(self, block: Block) -> None:
        self._call(f"set -eu\n{block.text}", block)

    def _run_console(self, block: Block) -> None:
        for line, expected in steps_of(block):
            if line.endswith(" &"):
                self._start(line.removesuffix(" &"))
                continue
            said = self._call(line, block)
            if expected and said != self._own(expected):
                raise WrongBlock(f"{block}: {line!r} prints\n{said}not\n{self._own(expected)}")

    def _call(self, script: str, block: Block) -> str:
        command = ["bash", "-o", "pipefail", "-c", self._own(script)]
        done = ended(*command, cwd=self._folder, env=self._env, timeout=_PATIENCE)
        talks = script.startswith(("python ", "set -eu"))  # programs may log, commands do not
        if done.returncode or (done.stderr and not talks):
            raise WrongBlock(
                f"{block}: {script!r} ends with {done.returncode} and says\n"
                f"{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _start(self, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self._own(command)}"],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._beside.append((command, process))

    def _end_beside(self) -> None:
        for command, process in self._beside:
            process.send_signal(signal.SIGTERM)
            status = process.wait(_PATIENCE)
            if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                raise WrongBlock(f"{self._page.name}: {command!r} ends with {status}")

    def _sweep(self) -> None:
        import shmring

        for _, process in self._beside:
            process.kill()
            process.wait()
        for ring in shmring.rings():
            if self._prefix in ring:
                with suppress(shmring.RingNotFound):
                    shmring.unlink(ring)


def steps_of(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, and what each of them prints."""
    text = block.text.replace("\\\n", "")
    if not text.startswith("$ "):
        raise WrongBlock(f"{block}: a console block begins with a command behind '$ '")
    yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the code blocks of pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--without", action="append", default=[], metavar="HEADING")
    given = parser.parse_args()
    for number, page in enumerate(given.pages):
        prefix = f"blocks-{os.getpid()}-{number}-"
        with tempfile.TemporaryDirectory() as folder:
            ran = Page(page, Path(folder), prefix, given.without).run()
        print(f"{page}: {ran} blocks do what stands there")


if __name__ == "__main__":
    main()
