"""shmring: a shared-memory ring between processes on one host.

    import shmring

    ring = shmring.create("orders", slots=65_536)
    with ring.producer() as out:
        out.push(b"...")

    ring = shmring.attach("orders")  # in another process
    with ring.consumer("billing", start="earliest") as inp:
        data = inp.pop(timeout=1.0)

Start with :func:`create`, :func:`attach` and :class:`Ring`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from shmring import _shmring
except ImportError as error:
    if "subinterpreter" in str(error):
        raise ImportError(
            f"shmring works in the main interpreter of a process only ({error}): use it there, or "
            "in processes of their own"
        ) from error
    raise ImportError(
        f"the compiled part of shmring cannot be loaded from {__path__[0]} ({error}). Install "
        "shmring with pip, for this Python: a zip archive, or a source tree alone, is not enough"
    ) from error
from shmring import errors
from shmring._shmring import Batch, Claim, Consumer, Lease, Producer
from shmring.common.arguments import Clock, Start, Wait, WhenFull
from shmring.errors import *  # noqa: F403
from shmring.ring import Ring, attach, create, open_or_create
from shmring.ring.event_loop import equip as _equip
from shmring.ring.event_loop import wait
from shmring.ring.graph import CONTENDED, UNAVAILABLE, FanOut, Sequence
from shmring.ring.names import gc, rings, unlink
from shmring.ring.records import BranchRecord, HolderRecord, ParticipantRecord, RingStats

if TYPE_CHECKING:
    from shmring import arrow as arrow
    from shmring import durable as durable
    from shmring import gpu as gpu
    from shmring import inspect as inspect
    from shmring import metrics as metrics
    from shmring import sidecars as sidecars
    from shmring import spark as spark
    from shmring.sidecars import Sidecar, SidecarClient, sidecar

__all__ = [
    "CONTENDED",
    "UNAVAILABLE",
    "Batch",
    "BranchRecord",
    "Claim",
    "Clock",
    "Consumer",
    "FanOut",
    "HolderRecord",
    "Lease",
    "ParticipantRecord",
    "Producer",
    "Ring",
    "RingStats",
    "Sequence",
    "Sidecar",
    "SidecarClient",
    "Start",
    "Wait",
    "WhenFull",
    "attach",
    "create",
    "gc",
    "get_include",
    "get_library",
    "open_or_create",
    "rings",
    "sidecar",
    "unlink",
    "wait",
]
__all__ += errors.__all__

__version__ = _shmring.VERSION

_equip()
_LAZY_MODULES = ("arrow", "durable", "gpu", "inspect", "metrics", "sidecars", "spark")
_LAZY_NAMES = {"Sidecar": "sidecars", "SidecarClient": "sidecars", "sidecar": "sidecars"}


def __getattr__(name: str) -> Any:
    """Import slow modules when they are first used."""
    if name in _LAZY_MODULES:
        return import_module(f"shmring.{name}")
    if name in _LAZY_NAMES:
        return getattr(import_module(f"shmring.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module 'shmring' has no attribute {name!r}")


def get_include() -> str:
    """Return the folder of shmring.h, for C and C++ programs.

    Raises
    ------
    FileNotFoundError : this installation has no header
    """
    return _installed("include")


def get_library() -> str:
    """Return the path of libshmring.so, for C and C++ programs.

    Raises
    ------
    FileNotFoundError : this installation has no library
    """
    return _installed("lib/libshmring.so")


def _installed(what: str) -> str:
    path = Path(__file__).parent / what
    if not path.exists():
        raise FileNotFoundError(
            f"this installation of shmring has no {path}; install it with pip from the wheel or "
            "the source"
        )
    return str(path)
