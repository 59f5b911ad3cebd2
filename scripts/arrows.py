"""Arrows between the parts of the code: calls in C, imports in Java and Python.

`make arrows` prints it, `make lint` checks it (--check). Each part of the code (layers.toml
beside this file) is a list of layers, top first. A unit (a C file with its header, a Java
package) may use what lies on a lower layer; an arrow that runs up, or along a layer, is an
error unless `allow` names it, with the reason. So is a usual change of docs/changes.md that
no comment `CHANGE: ...` marks in the code. The layers of the Python package stand in
pyproject.toml, and import-linter checks them; they are only drawn here.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
Arrows = dict[str, set[str]]

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'")
_INCLUDE = re.compile(r'^\s*#\s*include "(\w+)\.h"', re.MULTILINE)
# A header's declaration of a function that is defined elsewhere.
_PROTOTYPE = re.compile(r"^(?!static)\w[\w\s*]*?\b\w+\([^;{}]*\);", re.MULTILINE)
# A definition that others can use: not static, or inline in a header.
_DEFINED = re.compile(
    r"^(?!static|typedef|struct \w+ \{)\w[\w\s*]*?\b(\w+)(?:\([^;{}]*\)\s*| = )\{", re.MULTILINE
)
# A call, or the function or the type itself as a value.
_USED = re.compile(r"\b(\w+)(?=\s*\()|(?<=[{,(&=])\s*(\w+)(?=[,)};])")
_INLINE = re.compile(r"^static inline [\w\s*]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)

# Layer and files of a table in the docs.


def c_arrows(folder: Path) -> Arrows:
    """Units of a folder, and those whose functions they use or whose headers they include."""
    text = {file: _COMMENT.sub(" ", file.read_text()) for file in sorted(folder.glob("*.[ch]"))}
    units = {file.stem for file in text}
    home: dict[str, str] = {}
    for file, code in text.items():
        pattern = _INLINE if file.suffix == ".h" else _DEFINED
        home |= dict.fromkeys(pattern.findall(code), file.stem)
    arrows: Arrows = {unit: set() for unit in sorted(units)}
    for file, code in text.items():
        names = _USED.findall(_PROTOTYPE.sub("", _STRING.sub('""', code)))
        used = {home[name] for pair in names for name in pair if name in home}
        used |= units.intersection(_INCLUDE.findall(code))
        arrows[file.stem] |= used - {file.stem}
    return arrows


def java_arrows(folder: Path) -> Arrows:
    """Packages, and those from which they import."""
    arrows: Arrows = {}
    for file in sorted(folder.rglob("*.java")):
        text = _COMMENT.sub(" ", file.read_text())
        package = str(file.parent.relative_to(folder)).replace("/", ".")
        used = re.findall(r"^import (?:static )?((?:[a-z]\w*\.)+)[A-Z]", text, re.MULTILINE)
        arrows.setdefault(package, set()).update(name[:-1] for name in used)
    return {name: used & arrows.keys() - {name} for name, used in arrows.items()}


def _imports(node: ast.AST) -> set[str]:
    """Names imported in a module and its functions, except for type checking."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return set()
    return set().union(*map(_imports, ast.iter_child_nodes(node)))


def python_arrows(folder: Path) -> Arrows:
    """Modules and packages right below a package, and those from which they import."""
    arrows: Arrows = {}
    for file in sorted(folder.rglob("*.py")):
        module = file.relative_to(folder).parts[0].removesuffix(".py")
        names = (name.split(".") for name in _imports(ast.parse(file.read_text())))
        used = {name[1] for name in names if name[0] == folder.name and len(name) > 1}
        arrows.setdefault(module, set()).update(used)
    del arrows["__init__"]
    return {module: used & arrows.keys() - {module} for module, used in arrows.items()}


READERS: dict[str, Callable[[Path], Arrows]] = {
    "c": c_arrows,
    "java": java_arrows,
    "python": python_arrows,
}


def layers_of(arrows: Arrows) -> list[list[str]]:
    """The layers that the arrows leave room for, top first; a circle lies on one of them."""
    left, layers = dict(arrows), list[list[str]]()
    while left:
        lowest = [unit for unit, used in left.items() if not used & left.keys()] or list(left)
        layers.insert(0, lowest)
        left = {unit: used for unit, used in left.items() if unit not in lowest}
    return layers


class Part(NamedTuple):
    """A folder of the code, as layers.toml has it."""

    folder: str
    language: str
    layers: list[list[str]]
    allow: dict[str, str]

    def wrong(self, arrows: Arrows) -> list[str]:
        """Arrows that contradict the layers, a line each."""
        number = {unit: n for n, layer in enumerate(self.layers) for unit in layer}
        drawn = {
            f"{unit} -> {target}": number[target] - number[unit]
            for unit, targets in arrows.items()
            for target in targets
            if unit in number and target in number
        }
        return [
            *(f"{unit} is on no layer" for unit in arrows if unit not in number),
            *(f"{unit} is on a layer, and not there" for unit in number if unit not in arrows),
            *(
                f"{arrow} runs {'up' if steps < 0 else 'along its layer'}"
                for arrow, steps in drawn.items()
                if steps <= 0 and arrow not in self.allow
            ),
            *(
                f"{arrow} is allowed, and need not be"
                for arrow in self.allow
                if drawn.get(arrow, 1) > 0
            ),
        ]

    def draw(self, arrows: Arrows) -> None:
        """Print the layers, top first, each unit with those that it uses."""
        print(self.folder)
        for height, layer in zip(range(len(self.layers), 0, -1), self.layers, strict=True):
            for unit in layer:
                print(f"  {height:2} {unit:<24} -> {', '.join(sorted(arrows.get(unit, ())))}")
        for arrow, reason in self.allow.items():
            print(f"     but {arrow}: {reason}")


def package() -> Part:
    """The Python package, whose layers are import-linter's."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    name, layers = settings["root_package"], settings["contracts"][0]
    return Part(
        f"src/{name}",
        "python",
        [layer.split(" | ") for layer in layers["layers"]],
        {
            arrow.replace(f"{name}.", ""): "an entry point, pyproject.toml"
            for arrow in layers["ignore_imports"]
            if not arrow.endswith(f"-> {name}")
        },
    )


def unmarked_changes() -> list[str]:
    """Sections of docs/changes.md without a mark in the code, and marks without a section."""
    page = (ROOT / "docs/changes.md").read_text()
    told = {f"a {change}" for change in re.findall(r"^## A (.+)$", page, re.M)}
    files = (path for top in ("native", "src") for path in (ROOT / top).rglob("*.*"))
    code = [path.read_text() for path in files if path.suffix in {".c", ".h", ".java", ".py"}]
    marked = {
        mark
        for text in code
        for mark in re.findall(r"CHANGE: edit this for (.+?)(?: \*/)?$", text, re.M)
    }
    return [
        f"nothing in the code is marked 'CHANGE: edit this for {change}'"
        for change in told - marked
    ] + [f"docs/changes.md has no section '{change}'" for change in marked - told]


def lost_files() -> list[str]:
    """File names in docs/changes.md that are not the end of exactly one path."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    paths = [f"/{path}" for path in listed.stdout.decode().splitlines()]
    page = (ROOT / "docs/changes.md").read_text()
    named = set(re.findall(r"`([\w./]+\.(?:c|h|java|json|md|pyi?|yaml))`", page))
    found = {name: sum(path.endswith(f"/{name}") for path in paths) for name in sorted(named)}
    return [
        f"docs/changes.md names {name}, and {count} files have this name"
        for name, count in found.items()
        if count != 1
    ]


def main() -> int:
    """Draw all parts, or with --check only say what is wrong."""
    failed = False
    for table in tomllib.loads((ROOT / "scripts/layers.toml").read_text())["part"]:
        arrows = READERS[table["language"]](ROOT / table["folder"])
        part = Part(**{"allow": {}, "layers": layers_of(arrows)} | table)
        if "--check" not in sys.argv[1:]:
            part.draw(arrows)
        for line in part.wrong(arrows):
            print(f"{part.folder}: {line}", file=sys.stderr)
            failed = True
    for line in (*unmarked_changes(), *lost_files()):
        print(line, file=sys.stderr)
        failed = True
    if "--check" not in sys.argv[1:]:
        part = package()
        part.draw(python_arrows(ROOT / part.folder))
    return failed


if __name__ == "__main__":
    sys.exit(main())
