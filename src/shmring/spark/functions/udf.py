"""UDFs that send their arguments through a sidecar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmring.spark.functions.bridge import Through, refused, through

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Makes Spark's UDF with these names of arguments.
Maker = Callable[[tuple[str, ...]], Any]


def arrow_udf(name: str, return_type: str | DataType, **options: Any) -> Any:
    """Return an ``arrow_udf`` of one or more columns, run by a sidecar, with the jar.

    >>> score = shmring.spark.arrow_udf("scorer", "double")  # doctest: +SKIP
    >>> df.select(score("price", "quantity"))  # doctest: +SKIP

    The sidecar gets batches with these columns. An argument that is not a column is named after its
    keyword, as in ``score("price", quantity=df.boxes * 12)``, or else after its place: ``_0``,
    ``_1``, ...; so are all arguments of a call in SQL, and a column whose name is another
    argument's. The sidecar answers with as many rows, in batches of one column. This result is cast
    to the return type unless values would be lost.

    Parameters
    ----------
    name : name of the sidecar
    return_type : as for ``pyspark.sql.functions.arrow_udf``
    options : those of :func:`through`
    """
    run = through(name, **options)
    spark: Any = import_module("pyspark.sql.functions")
    return _with_names(lambda names: spark.arrow_udf(_Function(run, names), return_type))


def _with_names(make: Maker) -> Any:
    """Return Spark's UDF, whose arguments get their names from each call."""
    plain = make(())

    @wraps(plain)
    def call(*columns: Any, **named: Any) -> Any:
        return make(_names(columns, tuple(named)))(*columns, *named.values())

    like_sparks: Any = call
    like_sparks.asNondeterministic = lambda: _with_names(
        lambda names: make(names).asNondeterministic()
    )
    return like_sparks


def _names(columns: tuple[Any, ...], keywords: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a call's arguments, no two the same; a keyword is as the user wrote it."""
    names: list[str] = []
    taken = set(keywords)
    for place, column in enumerate(map(_name, columns)):
        name = f"_{place}" if column is None or column in taken else column
        while name in taken:
            name = f"_{name}"
        taken.add(name)
        names.append(name)
    return (*names, *keywords)


def _name(column: Any) -> str | None:
    """The name of a column; None for an expression, or a part of a column."""
    if isinstance(column, str):
        return None if set(column) & set(".`*") else column
    found = re.fullmatch(r"Column<'([^\W\d]\w*)'>", str(column))
    return found and found[1]


class _Function:
    """What Spark pickles; only the jar can do its work."""

    def __init__(self, run: Through, names: tuple[str, ...]) -> None:
        self._run = run
        self._names = names
        self.__name__ = run.name  # the name of the result's column
        # The annotations tell Spark to pass an iterator; this one serves for several columns, too.
        import pyarrow as pa

        kind: Any = pa.Array
        self.__annotations__ = {"arguments": Iterator[kind], "return": Iterator[kind]}

    def __reduce__(self) -> tuple[Any, ...]:
        # UdfCall.java looks for this text in a pickle that begins with a name of this module.
        text = f"{self._run.described} {json.dumps(self._names)}"
        return _unpickled, (text, type(self), self._run, self._names)

    def __call__(self, arguments: Any) -> Any:
        raise refused(self._run.name, arguments)


def _unpickled(text: str, kind: type[_Function], *arguments: Any) -> _Function:
    return kind(*arguments)
