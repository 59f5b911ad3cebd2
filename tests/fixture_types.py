"""The types of fixtures in conftest.py and children.py, which say what each one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import DataFrame

    from shmring.sidecars import Sidecar

Until = Callable[..., None]
RunThread = Callable[..., Any]
RunChild = Callable[..., Any]
RunCommand = Callable[..., "subprocess.Popen[Any]"]
Serve = Callable[..., "Sidecar"]
Load = Callable[..., "DataFrame"]
Read = Callable[..., "DataFrame"]
