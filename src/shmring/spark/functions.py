"""Sends Spark's batches through a sidecar.

:func:`through` makes a function for methods such as ``mapInArrow``, :func:`arrow_udf` makes a UDF.
The function and the UDF hold only the sidecar's name and a few numbers. The jar reads these values
from the query's plan, and then no Python worker is necessary. Without the jar, Python workers send
the batches of `mapInArrow`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, astuple, dataclass
from functools import wraps
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from shmring.common.arguments import MOST_IN_FLIGHT, integer, seconds_of, slots_of
from shmring.errors import ShmringError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

# Type of functions that take the names of a UDF's arguments and return the UDF as Spark makes it.
Maker = Callable[[tuple[str, ...]], Any]


# CHANGE: edit this for a new option of a client
@dataclass(frozen=True)
class Through:
    """The function that runs in the Python worker; made by :func:`through`."""

    name: str
    in_flight: int
    timeout: float
    connect_timeout: float
    reply_slots: int | None

    def __post_init__(self) -> None:
        from shmring.sidecars.wire import check_sidecar_name

        slots = self.reply_slots
        checked = {
            "name": check_sidecar_name(self.name),
            "in_flight": integer("in_flight", self.in_flight, 1, MOST_IN_FLIGHT),
            "timeout": float(seconds_of("timeout", self.timeout)),
            "connect_timeout": float(seconds_of("connect_timeout", self.connect_timeout)),
            "reply_slots": None if slots is None else slots_of("reply_slots", slots),
        }
        for option, value in checked.items():
            # Store Python's own numbers, because json refuses numpy's.
            object.__setattr__(self, option, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Through, astuple(self)

    @property
    def described(self) -> str:
        """The options as Call.java reads them."""
        return f"shmring.through{json.dumps(asdict(self))}"

    # Spark counts the parameters: a function with two of them gets a group's key and rows, or both
    # sides of a cogroup.
    def __call__(self, given: Any, *others: Any) -> Any:
        """Return the answers to the batches of mapInArrow, in order."""
        if others or not isinstance(given, Iterator):
            raise _refused(self.name, given)
        return self._answers(cast("Iterator[Any]", given))

    def _answers(self, given: Iterator[Any]) -> Generator[pa.RecordBatch]:
        from shmring.sidecars import SidecarClient

        first = next(given, None)
        if first is None:  # send nothing for a partition without batches
            return
        batches = map(self._batch, chain((first,), given))
        # A cancelled task closes this generator, and so the client. If the task is killed, the
        # sidecar removes the reply ring.
        with SidecarClient(**asdict(self)) as client:
            yield from client.map(batches)

    def _batch(self, given: Any) -> pa.RecordBatch:
        import pyarrow as pa

        if not isinstance(given, pa.RecordBatch):
            raise _refused(self.name, given)
        return given


def _refused(sidecar: str, given: object) -> ShmringError:
    """Return the error for a Python worker that is given anything but batches of mapInArrow."""
    kind = type(given)
    return ShmringError(
        f'sidecar "{sidecar}": Spark\'s Python workers send it the batches of mapInArrow alone, '
        f"and this is {kind.__module__}.{kind.__name__}. For applyInArrow and arrow_udf start the "
        f"session with shmring.spark.configure(), and leave out resource profiles and "
        f"columns of types that the jar leaves to Spark. Instead of a method for pandas call the "
        f"one for Arrow: the sidecar's function may call to_pandas()"
    )


# CHANGE: edit this for a new option of a client
def through(
    name: str,
    *,
    in_flight: int = 3,
    timeout: float = 300.0,
    connect_timeout: float = 10.0,
    reply_slots: int | None = None,
) -> Through:
    """Return a function for ``DataFrame.mapInArrow`` that sends batches through a sidecar.

    >>> df.mapInArrow(shmring.spark.through("scorer"), schema)  # doctest: +SKIP

    With the jar, ``applyInArrow`` takes the returned function, too: the sidecar's function is then
    called with each group as one batch, or with each cogroup as two batches, one for each side. An
    error fails the task, and so the job; so does an answer with other columns or types than the
    schema that Spark's method was given. ``mapInArrow`` takes an answer's columns by position and
    ignores their names; with the jar, it refuses an answer that has a declared name at another
    place. ``applyInArrow`` takes the columns by name. Methods for pandas do not take the returned
    function; instead, the sidecar's function may call ``to_pandas()``.

    Parameters
    ----------
    name : name of the sidecar; it must run on every host that has executors
    in_flight : number of requests sent ahead of the answers; each is a batch, or with the jar
        several small batches
    timeout : the task fails after so many seconds without any answer, also if the sidecar's workers
        are still loading, or if the sidecar has no room for another client
    connect_timeout : seconds to wait for a sidecar that does not run (yet, or any more), and for
        memory for its answers
    reply_slots : size of each task's reply ring, in slots of 300 bytes: a power of two, at least
        1,024. None: 4,096, or fewer if /dev/shm has little memory; with the jar, the ring grows to
        up to 65,536 slots if the requests under way need them, and further if a row does not fit

    Raises
    ------
    SidecarUnavailable : no sidecar of this name answered in time
    SidecarError : the sidecar's function raised; the text has its traceback
    ShmringError : the returned function was given to another method of Spark, or to
        ``applyInArrow`` without the jar
    """
    run = Through(name, in_flight, timeout, connect_timeout, reply_slots)
    # Spark's JVM sees a function's name, or the class name of an object without a name: the class
    # made here has the options as its name. A function that wraps the object does not take over
    # this name.
    kind = type(run.described, (Through,), {})
    return kind(*astuple(run))


# --- UDFs -----------------------------------------------------------------------------------------


def arrow_udf(name: str, return_type: str | DataType, **options: Any) -> Any:
    """Return an ``arrow_udf`` of one or more columns, run by a sidecar, with the jar.

    >>> score = shmring.spark.arrow_udf("scorer", "double")  # doctest: +SKIP
    >>> df.select(score("price", "quantity"))  # doctest: +SKIP

    The sidecar gets batches with these columns. An argument that is not a column is named after its
    keyword, as in ``score("price", quantity=df.boxes * 12)``, or else after its place: ``_0``,
    ``_1``, ... All arguments of a call in SQL are named after their places, and so is a column
    that has the name of another argument. The sidecar answers with as many rows as it got, in
    batches of one column. This column is cast to the return type; the task fails if values would
    be lost.

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
    """Return distinct names for a call's arguments; keyword arguments have their keywords."""
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
    """Return the name of a column; None for an expression, or for a part of a column."""
    if isinstance(column, str):
        return None if set(column) & set(".`*") else column
    found = re.fullmatch(r"Column<'([^\W\d]\w*)'>", str(column))
    return found and found[1]


class _Function:
    """The function that Spark pickles for a UDF; only the jar can execute it."""

    def __init__(self, run: Through, names: tuple[str, ...]) -> None:
        self._run = run
        self._names = names
        self.__name__ = run.name  # Spark names the column of results after the function
        import pyarrow as pa

        # From the annotations Spark learns that the function takes an iterator of Arrow arrays.
        # Spark accepts this annotation, of one column, for calls with several columns, too.
        kind: Any = pa.Array
        self.__annotations__ = {"arguments": Iterator[kind], "return": Iterator[kind]}

    def __reduce__(self) -> tuple[Any, ...]:
        # UdfCall.java reads this text from the pickle. It recognizes the pickle by the name of this
        # module, which has to stand within the first 64 bytes.
        text = f"{self._run.described} {json.dumps(self._names)}"
        return _unpickled, (text, type(self), self._run, self._names)

    def __call__(self, arguments: Any) -> Any:
        raise _refused(self._run.name, arguments)


def _unpickled(text: str, kind: type[_Function], *arguments: Any) -> _Function:
    return kind(*arguments)
