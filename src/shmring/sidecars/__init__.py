"""Sidecars: processes that answer requests from other processes, batch by batch.

The names of this package are imported at their first use, so that a process which only watches a
sidecar, or only supervises its workers, does not load pyarrow, which takes 40 MB.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmring.common.extras import need_pyarrow

if TYPE_CHECKING:
    from shmring.sidecars.client import SidecarClient
    from shmring.sidecars.server import Sidecar, sidecar

__all__ = ["Sidecar", "SidecarClient", "sidecar"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_pyarrow("a sidecar, whose requests are Arrow batches,")
    module = "client" if name == "SidecarClient" else "server"
    return getattr(import_module(f"{__name__}.{module}"), name)
