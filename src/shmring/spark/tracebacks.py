"""Hides the frames of shmring's functions, which replace Spark's, in users' errors and logs."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pyspark.logger.worker_io as worker_io
import pyspark.worker as worker

from shmring.spark.sparks_code import copied

_OURS = "shmring.spark"


def leave_out_of_errors(*functions: Any) -> None:
    """Let users' errors show no frames of the given functions and classes, which replace Spark's.

    Spark leaves out the frames of files in its own folder, so the given functions get the name of a
    file in that folder.
    """
    for each in functions:
        function = getattr(each, "__func__", each)  # unwrap a class method or static method
        if not str(getattr(function, "__module__", "")).startswith(_OURS):
            continue  # leave a function or class alone that is not shmring's, such as an import
        if isinstance(function, FunctionType):
            function.__code__ = _seeming_sparks(function.__code__)
        elif isinstance(function, type):
            for base in function.__mro__:
                leave_out_of_errors(*vars(base).values())


def _seeming_sparks(code: CodeType) -> CodeType:
    """Return a copy of the code, with the name of a file in Spark's folder as its file name.

    That file does not exist, but Python finds the source lines of a traceback by the module's name.
    """
    inner = (_seeming_sparks(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    name = Path(worker.__file__).parent / "shmring" / Path(code.co_filename).name
    return code.replace(co_filename=str(name), co_consts=tuple(inner))


# CHANGE: edit this for a new version of Spark
def leave_out_of_logs() -> None:
    """Let Spark's record of a user's output name the user's function, not a function of shmring.

    When a function prints or logs, Spark searches the stack for the outermost function that Spark's
    code called, and records its name (and its class, if the function is a method). This change
    makes the search pass over shmring's frames.
    """
    context = copied(worker_io.context_provider, {"inspect": _Stack})
    named: Any = worker
    named.capture_outputs = partial(worker_io.capture_outputs, context)


class _Stack:
    """Wraps a frame for Spark, so that f_back passes over the frames of shmring.spark."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @staticmethod
    def currentframe() -> _Stack | None:
        """Return the caller's frame; Spark calls this method instead of inspect.currentframe()."""
        return _Stack(inspect.currentframe()).f_back

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    @property
    def f_back(self) -> _Stack | None:
        """The nearest calling frame outside of shmring.spark; None if there is none."""
        frame = self._frame.f_back
        while frame is not None and str(frame.f_globals.get("__package__")).startswith(_OURS):
            frame = frame.f_back
        return frame and _Stack(frame)
