"""Each Java call that the documentation names is one of the public ones, with these arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pyspark
import pytest
from blocks import ROOT
from programs import ended

from shmring.spark.jvm import jar_path

pytestmark = pytest.mark.java

PAGES = [ROOT / "docs" / place / "java.md" for place in ("start", "guides", "reference")]
CALL = re.compile(r"(?:(\w+)\.|new )(\w+)\((.*)\)", re.DOTALL)


def public_calls() -> dict[tuple[str, str], list[list[str]]]:
    """The types of the arguments of every public method, by class and name."""
    sources = ROOT / "native/jvm/java"
    files = [*sources.glob("io/shmring/*.java"), *sources.glob("io/shmring/arrow/*.java")]
    classes = [".".join(file.relative_to(sources).with_suffix("").parts) for file in files]
    said = ended(
        *("javap", "-public", "-cp", f"{jar_path()}:{Path(pyspark.__path__[0])}/jars/*"),
        *(name for name in classes if not name.endswith("package-info")),
        check=True,
    ).stdout
    found: dict[tuple[str, str], list[list[str]]] = defaultdict(list)
    of = ""
    for line in said.splitlines():
        if begun := re.fullmatch(r"(public )?.*?(?:class|interface) ([\w.]+).*\{", line):
            of = begun[2].rpartition(".")[2] if begun[1] else ""
        elif method := re.search(r"(\w+)\(([^)]*)\)", line):
            types = [kind.rpartition(".")[2] for kind in method[2].split(", ") if kind]
            found[of, method[1]].append(types)
    return found


def test_java_calls_of_the_pages_are_public_with_these_arguments() -> None:
    public = public_calls()
    checked = 0
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`([^`]+)`", prose):
            if "(" not in code:
                continue
            call = CALL.fullmatch(code)
            assert call is not None, f"{page.name}: {code} has no class"
            method, given = call[2], [text for text in call[3].split(", ") if text]
            of = call[1] or method
            of = of[0].upper() + of[1:]
            fitting = [types for types in public[of, method] if len(types) == len(given)]
            assert fitting, f"{page.name}: there is no public {code}"
            if all(re.fullmatch(r"[\w\[\]]+ \w+", argument) for argument in given):
                types = [argument.split()[0] for argument in given]
                assert types in fitting, f"{page.name}: {code} takes {fitting}"
            checked += 1
    assert checked > 20
