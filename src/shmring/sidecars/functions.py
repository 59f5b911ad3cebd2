"""A sidecar's function: found by its name, and what it returns as record batches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import pyarrow as pa

from shmring.arrow.batches import batches_of

Function: TypeAlias = Callable[..., Any]


def find_function(target: str) -> Function | type:
    """What ``module:function`` names, a class as it is.

    Raises
    ------
    ValueError : there is no such name
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"a sidecar is named as module:function, not {target!r}")
    function: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise ValueError(f"module {module_name} has no {attribute}")
        function = getattr(function, part)
    return function


def instantiated(function: Any, target: str) -> Function:
    """The instance of a class (one a worker: the place to load a model), or the function.

    Raises
    ------
    ValueError : it cannot be called
    """
    if isinstance(function, type):
        function = cast("Any", function)()
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    return function


def batches_from(result: Any, target: str) -> Iterator[pa.RecordBatch]:
    """The batches of what the function returned, one after the other.

    Raises
    ------
    TypeError : some of it is no Arrow data
    """
    parts = cast("Iterator[Any]", result) if isinstance(result, Iterator) else iter((result,))
    for part in parts:
        yield from _batches_of(part, target)


def _batches_of(part: Any, target: str) -> Iterator[pa.RecordBatch]:
    if part is None:
        raise TypeError(
            f"{target} returned None, not Arrow data: return the batch, or to answer "
            f"with no rows an empty one (batch.slice(0, 0))"
        )
    try:
        _, batches = batches_of(part)
    except TypeError as error:
        raise TypeError(f"what {target} returned cannot be sent: {error}") from None
    return batches
