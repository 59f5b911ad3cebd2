"""A user's program under type checkers in their strict modes."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
from programs import ended

import shmring
from shmring.common.arguments import WAITS

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("typed_program.py")
CHECKERS = {
    "mypy": ["mypy", "--no-error-summary", "--cache-dir=/dev/null", "--config-file"],
    "pyright": ["pyright", "--pythonpath", sys.executable, "--project"],
}
# mypy's packages that are skipped: neither program has a type of these, and they take most time.
CONFIGURED = {
    "mypy": """
        [mypy]
        strict = True
        [mypy-pyspark.*,sqlalchemy.*,IPython.*,rich.*]
        follow_imports = skip
    """,
    "pyright": '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": true}',
}

MISTAKES = """\
import shmring

shmring.open_or_create("a", slot=1024)
shmring.open_or_create("a", slots="1024")
shmring.attach("a").arrow_reader("b", strat="latest")
shmring.attach("a").arrow_reader("b", wait="snooze")
shmring.attach("a").arrow_writer(compression="gzip")
shmring.attach("a").consumer("b", start="first")
print(shmring.attach("a").stats()["use"])
print(shmring.attach("a").participants()[0]["pid"] + "")
print(shmring.attach("a").branches()[0]["upstream"])
shmring.sidecar("s")(len)(3)
"""


@pytest.fixture(scope="module", params=CHECKERS)
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Check both programs in one run: a checker spends most of its time on their imports."""
    folder = tmp_path_factory.mktemp("types")
    config = folder / f"{request.param}.json"
    config.write_text(textwrap.dedent(CONFIGURED[request.param]))
    mistakes = folder / "mistakes.py"
    mistakes.write_text(MISTAKES)
    command = [sys.executable, "-m", *CHECKERS[request.param], config]
    said = ended(*command, PROGRAM, mistakes, cwd=folder)
    assert said.returncode == 1, said.stdout + said.stderr
    return [line for line in said.stdout.splitlines() if re.search(r"\.py:\d+:", line)]


def test_a_typed_program_has_no_error(findings: list[str]) -> None:
    assert [line for line in findings if "mistakes.py:" not in line] == []


def test_each_mistake_is_found(findings: list[str]) -> None:
    lines = {int(number) for number in re.findall(r"mistakes\.py:(\d+):", "\n".join(findings))}
    assert lines == set(range(3, MISTAKES.count("\n") + 1)), findings


def test_the_typed_program_runs() -> None:
    said = ended(sys.executable, PROGRAM)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == "3 rows, branch reader, 0 slots behind\n"


# --- names that are written once ----------------------------------------------------------------


def test_wait_strategies_are_named_once() -> None:
    names = get_args(shmring.Wait)
    assert set(names) == set(WAITS)
    package = Path(shmring.__file__).parent
    sources = [*package.rglob("*.py"), *package.rglob("*.pyi")]
    named = [file.name for file in sources if '"yield"' in file.read_text()]
    assert named == ["arguments.py"]
