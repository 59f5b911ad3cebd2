"""The Python worker's side of a sidecar: `mapInArrow` without the jar, and what the jar reads.

Spark ships only a name and a few numbers to the workers.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import asdict, astuple, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from shmring.arguments import seconds_of
from shmring.errors import ShmringError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Through:
    """The function that runs in the Python worker; made by :func:`through`."""

    name: str
    in_flight: int
    timeout: float
    connect_timeout: float
    reply_slots: int | None

    def __post_init__(self) -> None:
        seconds_of("timeout", self.timeout)
        seconds_of("connect_timeout", self.connect_timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return Through, astuple(self)

    @property
    def described(self) -> str:
        """The options as Call.java reads them."""
        return f"shmring.through{json.dumps(asdict(self))}"

    # Spark counts the parameters: with two it gives a group's key and rows, or both of a cogroup.
    def __call__(self, given: Any, *others: Any) -> Any:
        """Return the answers to the batches of mapInArrow, in order."""
        if others or not isinstance(given, Iterator):
            raise refused(self.name, given)
        return self._answers(cast("Iterator[Any]", given))

    def _answers(self, given: Iterator[Any]) -> Generator[pa.RecordBatch]:
        from shmring.sidecars import SidecarClient

        first = next(given, None)
        if first is None:  # an empty partition needs no sidecar
            return
        batches = map(self._batch, chain((first,), given))
        # A cancelled task closes this generator (or is killed: then the sidecar
        # sweeps the reply ring); either way nothing is left.
        with SidecarClient(**asdict(self)) as client:
            yield from client.map(batches)

    def _batch(self, given: Any) -> pa.RecordBatch:
        import pyarrow as pa

        if not isinstance(given, pa.RecordBatch):
            raise refused(self.name, given)
        return given


def refused(sidecar: str, given: object) -> ShmringError:
    """Return the error of a Python worker that was to send more than the batches of mapInArrow."""
    kind = type(given)
    return ShmringError(
        f'sidecar "{sidecar}": Spark\'s Python workers send it the batches of mapInArrow alone, '
        f"and this is {kind.__module__}.{kind.__name__}. For applyInArrow and arrow_udf start the "
        f"session with shmring.spark.configure(), and leave out resource profiles and "
        f"columns of types that the jar leaves to Spark. Instead of a method for pandas call the "
        f"one for Arrow: the sidecar's function may call to_pandas()"
    )


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

    With the jar ``applyInArrow`` takes it, too: it calls the sidecar's function with each group as
    one batch, or with each cogroup as two batches, one for each side. An error fails the task, and
    so the job; so does an answer with other columns or types than the schema that Spark's method
    was given. ``mapInArrow`` takes columns by position: other names are ignored, but with the jar a
    declared name at another place is refused. ``applyInArrow`` takes them by name. Methods for
    pandas do not take it: the sidecar's function may call ``to_pandas()``.

    Parameters
    ----------
    name : name of the sidecar; it must run on every host that has executors
    in_flight : number of requests sent ahead of the answers; each is a batch, or with the jar
        several small batches
    timeout : the task fails after so many seconds without any answer, also if the sidecar's workers
        are still loading, or if the sidecar has no room for another client
    connect_timeout : seconds to wait for a sidecar that does not run (yet, or any more), and for
        memory for its answers
    reply_slots : size of each task's reply ring, in slots of 300 bytes. None: 4,096, and with the
        jar up to 65,536 as the requests under way need them, and enough for any row; less if
        /dev/shm has little memory

    Raises
    ------
    SidecarUnavailable : no sidecar of this name answered in time
    SidecarError : the sidecar's function raised; the text has its traceback
    ShmringError : it was given to another method, or without the jar
    """
    run = Through(name, in_flight, timeout, connect_timeout, reply_slots)
    # Spark's JVM sees a function's name, which is the class's where an object has none. What wraps
    # the object, and does something else, does not take that over.
    kind = type(run.described, (Through,), {})
    return kind(*astuple(run))
