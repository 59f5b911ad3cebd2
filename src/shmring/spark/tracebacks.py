"""Hides shmring's frames from users' errors and logs, if its functions replace those of Spark."""

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

    Spark leaves out the frames of its own files, so these functions get a file name in its folder.
    """
    for each in functions:
        function = getattr(each, "__func__", each)  # the function of a class or static method
        if not str(getattr(function, "__module__", "")).startswith(_OURS):
            continue  # a name that the module imports from elsewhere
        if isinstance(function, FunctionType):
            function.__code__ = _seeming_sparks(function.__code__)
        elif isinstance(function, type):
            for base in function.__mro__:
                leave_out_of_errors(*vars(base).values())


def _seeming_sparks(code: CodeType) -> CodeType:
    """Return a copy of code that seems to come from a file in Spark's folder.

    Python still finds the source lines for a traceback, by the module's name.
    """
    inner = (_seeming_sparks(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    name = Path(worker.__file__).parent / "shmring" / Path(code.co_filename).name
    return code.replace(co_filename=str(name), co_consts=tuple(inner))


# CHANGE: edit this for a new version of Spark
def leave_out_of_logs() -> None:
    """Let a record of a user's log name the user's function, or class, that has written it.

    Spark names the outermost function that was called from Spark's code. Without this change, that
    would be a function of shmring.
    """
    context = copied(worker_io.context_provider, {"inspect": _Stack})
    named: Any = worker
    named.capture_outputs = partial(worker_io.capture_outputs, context)


class _Stack:
    """The stack as Spark looks through it: a frame, and the frames that called this one."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @staticmethod
    def currentframe() -> _Stack | None:
        """Return the caller's frame; Spark calls this instead of inspect.currentframe()."""
        return _Stack(inspect.currentframe()).f_back

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    @property
    def f_back(self) -> _Stack | None:
        """The next frame that is not of this package."""
        frame = self._frame.f_back
        while frame is not None and str(frame.f_globals.get("__package__")).startswith(_OURS):
            frame = frame.f_back
        return frame and _Stack(frame)
