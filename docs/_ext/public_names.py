"""The build fails where a public name is on no page, or says nothing of itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

MODULES = (
    "shmring",
    "shmring.arrow",
    "shmring.durable",
    "shmring.table_ring",
    "shmring.errors",
    "shmring.inspect",
    "shmring.metrics",
    "shmring.sidecars",
    "shmring.spark",
)


def public_names() -> dict[str, Any]:
    """Exports of the package's modules, by the name that users know: the shortest one."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for module in MODULES:
        exports = import_module(module)
        for name in exports.__all__:
            value = getattr(exports, name)
            if getattr(value, "__origin__", None):
                continue  # a type's other name
            if id(value) not in seen:
                seen.add(id(value))
                found.setdefault(f"{module}.{name}", value)
    return found


def _members(name: str, value: Any) -> list[str]:
    if not isinstance(value, type) or issubclass(value, BaseException):
        return []
    return [f"{name}.{member}" for member in vars(value) if not member.startswith("_")]


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.domains["py"].data["objects"]  # type: ignore[attr-defined]
    public = public_names()
    wanted = [*public, *(member for item in public.items() for member in _members(*item))]
    missing = [name for name in wanted if name not in documented]
    if missing:
        raise ExtensionError(
            f"public names that are on no page, or have no docstring: {', '.join(missing)}"
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True}
