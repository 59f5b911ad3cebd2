"""Imports of packages that not every program needs, at their first use."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from shmring.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa


def need(module: str, what: str, extra: str) -> None:
    """Raise MissingExtra unless a package is installed; say what needs it and how to install it."""
    if find_spec(module) is None:
        raise MissingExtra(
            f"{what} needs {module}, which is not installed here: pip install 'shmring[{extra}]'"
        )


def need_pyarrow(what: str) -> None:
    need("pyarrow", what, "arrow")


def read_schema(serialized: bytes) -> pa.Schema:
    need_pyarrow("an Arrow schema")
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(serialized))
