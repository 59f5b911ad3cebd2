"""Sidecars: processes that answer requests from other processes, batch by batch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmring.extras import need_pyarrow

if TYPE_CHECKING:
    from shmring.sidecars.client import Metrics, SidecarClient
    from shmring.sidecars.server import Sidecar, SidecarFunction, sidecar
    from shmring.sidecars.wire import Task

__all__ = ["Metrics", "Sidecar", "SidecarClient", "SidecarFunction", "Task", "sidecar"]

need_pyarrow("a sidecar, whose requests are Arrow batches,")

_MODULES = {"Metrics": "client", "SidecarClient": "client", "Task": "wire"}


def __getattr__(name: str) -> Any:
    """A process that only supervises workers does without pyarrow's 40 MB."""
    if name in __all__:
        module = import_module(f"shmring.sidecars.{_MODULES.get(name, 'server')}")
        return getattr(module, name)
    raise AttributeError(f"module 'shmring.sidecars' has no attribute {name!r}")
