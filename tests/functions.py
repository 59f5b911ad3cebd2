"""Functions that the tests let sidecars run, and what they run them with."""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import shmring
from shmring.sidecars import holds


def numbers(first: int, rows: int = 10) -> pa.RecordBatch:
    """Make a batch of consecutive numbers for the tests to send."""
    return pa.record_batch({"x": pa.array(np.arange(first, first + rows))})


def for_udfs(batch: pa.RecordBatch, calls: object, *kinds: pa.DataType) -> pa.RecordBatch:
    """The batch as a request for calls of these types; each argument is a name and a place."""
    answer = pa.schema([(f"_{i}", kind) for i, kind in enumerate(kinds)]).serialize().to_pybytes()
    metadata = {"shmring.calls": json.dumps(calls), "shmring.answer": base64.b64encode(answer)}
    return batch.replace_schema_metadata(metadata)


def group_of(*sides: pa.RecordBatch) -> pa.RecordBatch:
    """The request for a group, or for the two sides of a cogroup, as the jar makes it."""
    if len(sides) == 1:
        return _marked(sides[0], b"1")
    lists = [
        pa.ListArray.from_arrays(pa.array([0, side.num_rows], pa.int32()), side.to_struct_array())
        for side in sides
    ]
    return _marked(pa.record_batch(lists, names=["left", "right"]), b"2")


def _marked(batch: pa.RecordBatch, sides: bytes) -> pa.RecordBatch:
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), "shmring.group": sides})


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A new column, all others in reverse order, and one of them again."""
    columns = [batch.column(i) for i in reversed(range(batch.num_columns))]
    new = pa.array([7] * batch.num_rows, pa.int64())
    names = ["new", *reversed(batch.schema.names), "again"]
    return pa.RecordBatch.from_arrays([new, *columns, columns[0]], names=names)


def claims_unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """An answer that says of its columns what its first row says."""
    said = batch.column(0)[0].as_py()
    return batch.select([]).replace_schema_metadata({"shmring.unchanged": said})


def writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the names of the views of the first column that let a function write."""
    column = batch.column(0)
    views = {
        "array": np.asarray(column),
        "dlpack": np.from_dlpack(column),
        "buffer": np.frombuffer(column.buffers()[1], np.uint8),
        "series": column.to_pandas().to_numpy(),
        "frame": batch.to_pandas(split_blocks=True).iloc[:, 0].to_numpy(),
    }
    return pa.record_batch({"view": [name for name, it in views.items() if it.flags.writeable]})


def print_much(batch: pa.RecordBatch) -> pa.RecordBatch:
    print("x" * 100_000)
    return batch


def _times(column: pa.Array, factor: int) -> pa.Array:
    """The numbers times the factor. pyarrow.compute takes a fifth of a worker's start to import."""
    if column.null_count:
        import pyarrow.compute as pc

        return pc.multiply(column, factor)
    return pa.array(column.to_numpy() * np.int64(factor))


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"x": _times(batch.column(0), 2)})


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"x": batch.column(0).cast(pa.string())})


def swapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"b": batch.column(1), "a": batch.column(0)})


def total(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The sum of all columns, row by row; nulls count as nothing."""
    import pyarrow.compute as pc

    sums = batch.column(0).fill_null(0)
    for column in batch.columns[1:]:
        sums = pc.add(sums, column.fill_null(0))
    return pa.record_batch([sums], names=["total"])


def with_pid(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("pid", pa.array([os.getpid()] * batch.num_rows, pa.int64()))


def with_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Beside each row how many rows the function was given."""
    return batch.append_column("rows", pa.array([batch.num_rows] * batch.num_rows, pa.int64()))


def sides(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """Return how many rows each side of a cogroup has, and the names of the columns."""
    names = " | ".join(" ".join(side.schema.names) for side in (left, right))
    counts = {"left": [left.num_rows], "right": [right.num_rows]}
    return pa.record_batch({**counts, "names": [names]})


def left_side(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    return left


def row_by_row(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for i in range(batch.num_rows):
        yield batch.slice(i, 1)


def types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """For each row the names and types of the columns, and what else the batch says of itself."""
    text = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
    if batch.schema.metadata:
        text += f" {batch.schema.metadata}"
    return pa.record_batch({"types": pa.array([text] * batch.num_rows, pa.string())})


def twice(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch


def as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch, batch])


def nothing(batch: pa.RecordBatch) -> None:
    return None


def nothing_at_last(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | None]:
    yield batch
    yield None


def no_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 0)


def one_or_several(batch: pa.RecordBatch) -> object:
    """A batch, a table or an iterator, by the first value."""
    first = batch.column(0)[0].as_py() % 3
    return [batch, pa.table(batch), row_by_row(batch)][first]


def no_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return iter(())


def no_maps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Lists without a map each; the inner array has no offsets, as Arrow Java 18 writes it.

    Whoever reads the first one reads what happens to lie there.
    """
    return _lists_of_no_maps(batch.num_rows, pa.py_buffer(b"\x7f" * 4).slice(0, 0))


def no_offsets(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same, row by row, where the inner array has not even a buffer for them."""
    for _ in range(batch.num_rows):
        yield _lists_of_no_maps(1, None)


def _lists_of_no_maps(rows: int, none: pa.Buffer | None) -> pa.RecordBatch:
    kind = pa.map_(pa.string(), pa.int32())
    entries = pa.array([], pa.struct([kind.key_field, kind.item_field]))
    maps = pa.Array.from_buffers(kind, 0, [None, none], children=[entries])
    offsets = pa.py_buffer(bytes(4 * (rows + 1)))
    lists = pa.Array.from_buffers(pa.list_(kind), rows, [None, offsets], children=[maps])
    return pa.record_batch([lists], ["maps"])


def many(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Each row as a batch of 100,000 bytes: far more than a small reply ring holds."""
    for value in batch.column(0).to_pylist():
        yield pa.record_batch({"x": pa.array([value] * 12_500, pa.int64())})


def say_a_file_name(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise OSError(os.fsdecode(b"\xff.txt"))


def a_megabyte(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows as they are, and behind them one that a small ring does not take."""
    texts = [str(x) for x in batch["x"].to_pylist()]
    yield pa.record_batch({"text": texts})
    yield pa.record_batch({"text": ["y" * 1_000_000]})


def as_small_decimals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a column of a type that neither Spark nor its Arrow knows; pyarrow 18 lacks it too."""
    return pa.record_batch({"x": pa.array([1] * batch.num_rows, pa.decimal32(9, 2))})


def no_arrow(batch: pa.RecordBatch) -> str:
    return "no Arrow data"


def fail_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column(0).to_pylist():
        raise ZeroDivisionError("seven is not allowed")
    return batch


def without_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array(batch.column(0).to_numpy() != 7))


def words_from_seven_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Answers of two schemas."""
    return as_text(batch) if batch.column(0)[0].as_py() >= 7 else batch


def one_more_from_seven_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    more = 1 if 7 in batch.column(0).to_pylist() else 0
    return pa.concat_batches([batch, numbers(0, more)])


def long_without_an_answer(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Longer than a client may be left without a sign of life."""
    time.sleep(0.15)
    return iter(())


def slow_rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Row by row, each later than a client may be left without a sign of life."""
    for row in row_by_row(batch):
        time.sleep(0.15)
        yield row


def slow_rows_of_few(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 2:
        raise ZeroDivisionError("too many rows")
    return slow_rows(batch)


def none_but_the_last(batch: pa.RecordBatch) -> pa.RecordBatch:
    """After the marker; each call takes longer than a client may be left without a sign of life."""
    wait_for_marker(batch)
    time.sleep(0.15)
    if batch.column(0)[0].as_py() == 0:
        raise ZeroDivisionError("not the last")
    return batch


def rows_around_marker(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The first row, then the others; says what it was given, and if nobody wants the others."""
    marker = Path(os.environ["SHMRING_TEST_MARKER"])
    with open(marker.with_suffix(".given"), "a") as given:
        given.write(f"{batch.column(0).to_pylist()}\n")
    rows = row_by_row(batch)
    yield next(rows)
    wait_for_marker(batch)
    try:
        yield from rows
    except GeneratorExit:
        marker.with_suffix(".unwanted").touch()


def few_rows_around_marker(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from rows_around_marker(batch)
    if batch.num_rows > 2:
        raise ZeroDivisionError("too many rows")


def fail_half_way(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    raise ZeroDivisionError("half way")


def fail_before_the_first(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises over the batch of 10 while another worker is at the first, which then goes on."""
    marker = Path(os.environ["SHMRING_TEST_MARKER"])
    first = batch.column("x")[0].as_py()
    if first == 10:
        raise ValueError("ten is not allowed")
    while first == 0 and not marker.exists():
        time.sleep(0.01)
    if first == 20:  # the worker has sent its error
        marker.touch()
    return batch


def leave(batch: pa.RecordBatch) -> None:
    sys.exit("the function leaves")


def _is_first() -> bool:
    """Whether this is the first call in any worker of the test."""
    try:
        os.close(os.open(os.environ["SHMRING_TEST_MARKER"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Killed in the middle of the first request that any worker gets."""
    if _is_first():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def die_once_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column(0).to_pylist() and _is_first():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def die_between_pieces_once(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    first = _is_first()
    yield batch
    yield batch
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    yield batch


def hold_the_first(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """At the first request that any worker gets until nobody wants its answer; then it says so."""
    if not _is_first():
        yield batch
        return
    try:
        while True:
            time.sleep(0.01)
            yield batch.slice(0, 0)
    except GeneratorExit:
        Path(os.environ["SHMRING_TEST_MARKER"]).with_suffix(".unwanted").touch()


def die_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column(0).to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.05)
    return batch


def wait_for_marker(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Says that it has begun, then waits until the test lets it go on."""
    marker = Path(os.environ["SHMRING_TEST_MARKER"])
    marker.with_suffix(".begun").touch()
    while not marker.exists():
        time.sleep(0.005)
    return batch


class LoadedWithMarker:
    """Takes as long to load as wait_for_marker() takes to answer."""

    def __init__(self) -> None:
        wait_for_marker(pa.record_batch({}))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@shmring.sidecar("joined-by-the-decorator", max_batch_rows=20, max_wait_ms=3_600_000)
def joining(batch: pa.RecordBatch) -> pa.RecordBatch:
    return with_rows(batch)


# A name of this process of the tests alone; a sidecar's workers inherit it.
MARKED = os.environ.setdefault("SHMRING_TEST_MARKED", f"marked-{os.getpid()}")


@shmring.sidecar(MARKED, workers=2)
def marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Model:
    """Costs something to load, then answers with what it has loaded."""

    def __init__(self) -> None:
        self.weight = 3

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": _times(batch.column(0), self.weight)})


class StartsAnother:
    """Writes the pid of a process that it has started, and does not end, into the marker."""

    def __init__(self) -> None:
        started = subprocess.Popen(["sleep", "1000"])
        Path(os.environ["SHMRING_TEST_MARKER"]).write_text(str(started.pid))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


class NeverLoads:
    def __init__(self) -> None:
        time.sleep(3600)


class FailsToLoad:
    def __init__(self) -> None:
        raise FileNotFoundError("the model is not where it was")


_ANSWERS: dict[str, dict[str, float]] = {
    "same": {"id": 2, "risk": 0.5, "score": -2.0},
    "swapped": {"id": 2, "score": -2.0, "risk": 0.5},
    "reordered": {"score": -2.0, "id": 2, "risk": 0.5},
    "renamed": {"id": 2, "score_v2": -2.0, "risk_v2": 0.5},
    "missing": {"id": 2, "risk": 0.5},
    "extra": {"id": 2, "risk": 0.5, "score": -2.0, "more": 1.0},
    "extra first": {"more": 1.0, "id": 2, "risk": 0.5, "score": -2.0},
    "other case": {"ID": 2, "Risk": 0.5, "Score": -2.0},
    "no rows": {"id": 2, "a": 0.5, "b": -2.0},
    "no rows, swapped": {"id": 2, "score": -2.0, "risk": 0.5},
    "nothing": {},
}
_TWICE = [("id", 2), ("risk", 0.5), ("risk", 0.5), ("score", -2.0)]
ANSWERS = (*_ANSWERS, "twice")


def answer_named(kind: str) -> pa.RecordBatch:
    """An answer where id long, risk double, score double may be declared."""
    pairs = _TWICE if kind == "twice" else list(_ANSWERS[kind].items())
    columns = [pa.array([value]) for _, value in pairs]
    batch = pa.RecordBatch.from_arrays(columns, names=[name for name, _ in pairs])
    return batch.slice(0, 0) if kind.startswith("no rows") else batch


def names(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The answer that its rows ask for."""
    return answer_named(batch["kind"][0].as_py())


def names_of_both(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    return names(left)


def two_orders(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for kind in ("same", "swapped", "reordered", "same"):
        yield answer_named(kind)


def nested(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"s": pa.array([{"risk_v2": 0.5, "score": -2.0}])})


def rows_without_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([])


def fail_with_a_cause(batch: pa.RecordBatch) -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("of a cause") from error


def fail_with_several(batch: pa.RecordBatch) -> None:
    errors: list[Exception] = []
    for text in ("the first", "the second"):
        try:
            raise ValueError(text)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("several", errors)


def fail_within_shmring(batch: pa.RecordBatch) -> None:
    shmring.attach("there-is-no-such-ring")


def fail_while_pyarrow_asks(batch: pa.RecordBatch) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch
        raise ValueError("asked by pyarrow")

    return pa.RecordBatchReader.from_batches(batch.schema, batches())


class RaisesEveryThird:
    """Leaves no garbage to a collector, which is off."""

    def __init__(self) -> None:
        gc.disable()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column(0)[0].as_py() % 3 == 0:
            raise ValueError("every third is not allowed")
        return batch


class Keeps:
    """Keeps its batches: by a cycle where they are even, else for good; the collector is off."""

    def __init__(self) -> None:
        gc.disable()
        self.kept: list[pa.RecordBatch] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        cycle: list[object] = [batch]
        cycle.append(cycle)
        if batch.column(0)[0].as_py() % 2:
            self.kept.append(batch)
        return pa.record_batch({"sum": [sum(kept.column(0).to_pylist()) for kept in self.kept]})


class SaysWhenReady:
    """Is ready while the marker is there."""

    def warm_up(self) -> None:
        self._marker = Path(os.environ["SHMRING_TEST_MARKER"])
        self._marker.with_suffix(".warm").touch()

    def ready(self) -> bool:
        return self._marker.exists()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def wait_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Waits for the marker over the batch that begins with 7; `.calls` counts these calls."""
    if batch.column(0)[0].as_py() == 7:
        with open(Path(os.environ["SHMRING_TEST_MARKER"]).with_suffix(".calls"), "a") as calls:
            calls.write("7")
        wait_for_marker(batch)
    return batch


class DiesWhileMoving:
    """Dies once, at the step of a move that the marker's `.step` names; then waits on seven."""

    def __init__(self) -> None:
        marker = Path(os.environ["SHMRING_TEST_MARKER"])
        step = marker.with_suffix(".step").read_text()
        before, _, method = step.partition(" ")
        owner, name = (holds, method) if method == "own" else (holds._Parked, method)
        usual = getattr(owner, name)

        def stepped(*arguments: object) -> object:
            died = marker.with_suffix(".died")
            if before == "before":
                _die_once(died)
            result = usual(*arguments)
            _die_once(died)
            return result

        setattr(owner, name, stepped)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return wait_on_seven(batch)


def _die_once(died: Path) -> None:
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def hold_the_gil_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Over the first batch of all: for ever. No other thread of the worker does anything."""
    if _is_first():
        ctypes.PyDLL(None).pause()
    return batch
