"""Tracebacks of users' errors, without the frames of functions that stand for Spark's own."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import pyspark.worker as worker


def leave_out_of_errors(*functions: Any) -> None:
    """Let users' errors show no frames of functions, and classes, that stand for Spark's own.

    Spark leaves out the frames of its own files.
    """
    for each in functions:
        function = getattr(each, "__func__", each)  # the function of a class or static method
        if not str(getattr(function, "__module__", "")).startswith("shmring.spark."):
            continue  # a name that the module imports from elsewhere
        if isinstance(function, FunctionType):
            function.__code__ = _seeming_sparks(function.__code__)
        elif isinstance(function, type):
            for base in function.__mro__:
                leave_out_of_errors(*vars(base).values())


def _seeming_sparks(code: CodeType) -> CodeType:
    inner = (_seeming_sparks(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=worker.__file__, co_consts=tuple(inner))
