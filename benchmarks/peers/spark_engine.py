"""One engine behind Spark's API, as a process of its own: Spark, or Sail.

Runs in an environment that need not have shmring. Each line of standard input is a JSON object, a
request; each is answered by a line. At the end of the input the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any


def identity(batch: Any) -> Any:
    """Does nothing: what is left is the way there and back."""
    return batch


def copying(batch: Any) -> Any:
    """Gives back what it got, in memory of its own: a sidecar cannot tell that it is the same."""
    import pyarrow as pa

    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def cheap(batch: Any) -> Any:
    """One sum a row, of two of ten numbers."""
    import pyarrow.compute as pc

    return batch.set_column(9, "n9", pc.add(batch["id"], batch["n9"]))


def heavy(batch: Any) -> Any:
    """Some 1,500 operations a row: a generator of random numbers goes on from each."""
    import numpy as np

    state = batch["id"].to_numpy().astype(np.uint64) + np.uint64(1)
    for _ in range(250):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
    return batch.set_column(9, "n9", (state >> np.uint64(32)).astype(np.int64))


FUNCTIONS = {function.__name__: function for function in (identity, copying, cheap, heavy)}


def _of_each(function: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def apply(batches: Iterator[Any]) -> Iterator[Any]:
        return map(function, batches)

    return apply


def _sail() -> tuple[Any, Any]:
    """A session, and its server, which ends when nobody keeps it; functions run in the server."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    return SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate(), server


def _spark(settings: dict[str, str]) -> tuple[Any, None]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session, None


class _Engine:
    def __init__(self, session: Any) -> None:
        self._session = session

    def ready(self) -> dict[str, Any]:
        """Answer once the session is there."""
        return {}

    def write(self, path: str, rows: int, parts: int, columns: list[str]) -> dict[str, Any]:
        """Write what SQL says, as parquet that is not compressed."""
        frame = self._session.range(0, rows, 1, parts).selectExpr(*columns)
        frame.write.option("compression", "uncompressed").parquet(path)
        return {}

    def query(
        self,
        path: str,
        function: str | None,
        sidecar: str | None,
        totals: list[str] | None,
        settings: dict[str, str],
    ) -> dict[str, Any]:
        """Read parquet: how long it takes, and what comes out.

        Parameters
        ----------
        function : of this module; None applies none
        sidecar : the name of one that serves the function
        totals : None drops the rows
        """
        for name, value in settings.items():
            self._session.conf.set(name, value)
        frame = self._session.read.parquet(path)
        if function is not None:
            frame = frame.mapInArrow(_mapping(function, sidecar), frame.schema)
        if totals is not None:
            frame = frame.selectExpr(*totals)
        begun = time.monotonic()
        if totals is None:
            frame.write.format("noop").mode("overwrite").save()
            return {"seconds": time.monotonic() - begun}
        found = frame.collect()[0]
        took = time.monotonic() - begun
        return {"seconds": took, "totals": list(found), "plan": _plan(frame)}


def _plan(frame: Any) -> str:
    """As it ran; empty where the engine has none of Spark's."""
    classic = getattr(frame, "_jdf", None)
    return str(classic.queryExecution().executedPlan()) if classic is not None else ""


def _mapping(function: str, sidecar: str | None) -> Callable[..., Any]:
    if sidecar is None:
        return _of_each(FUNCTIONS[function])
    import shmring.spark

    return shmring.spark.through(sidecar)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Java prints is no answer
    settings = json.loads(sys.argv[1])
    session, _server = _sail() if settings is None else _spark(settings)
    engine = _Engine(session)
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        try:
            answer = getattr(engine, verb)(**arguments)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    if settings is None:
        os._exit(0)  # for minutes, its client would ask the server that is gone to end the session


if __name__ == "__main__":
    main()
