"""Functions of all sorts for mapInArrow, in a module that Python workers find."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc


def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = 0
    for batch in batches:
        total += batch.num_rows
        yield pa.record_batch({"n": [total]})
    yield pa.record_batch({"n": [-total]})


def keeps_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kept = list(batches)
    yield pa.record_batch({"n": [sum(batch.num_rows for batch in kept)]})
    for batch in kept:
        yield pa.record_batch({"n": batch.column("id")})


def looks_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    before = next(batches)
    for batch in batches:
        yield pa.record_batch({"n": before.column("id")})
        before = batch
    yield pa.record_batch({"n": before.column("id")})


def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"n": batch.column("id")})
        yield pa.record_batch({"n": pc.negate(batch.column("id"))})


def stops_early(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": next(batches).column("id")})


def takes_and_stops(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    next(batches)
    return
    yield


def gives_nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return
    yield


def ignores_input(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [1]})


def answers_before_it_reads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in range(40):
        yield pa.record_batch({"n": pa.array(range(5000), pa.int64())})
    for batch in batches:
        yield pa.record_batch({"n": batch.column("id")})


def gives_batches_without_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"n": batch.column("id")}).slice(0, 0)
        yield pa.record_batch({"n": batch.column("id").slice(3, 2)})


def filters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids = batch.column("id")
        yield pa.record_batch({"n": ids.filter(pc.equal(pc.bit_wise_and(ids, 63), 7))})


SHAPES: list[Callable[..., Any]] = [
    counts,
    keeps_all,
    looks_ahead,
    twice,
    stops_early,
    takes_and_stops,
    gives_nothing,
    ignores_input,
    gives_batches_without_rows,
    filters,
]


def raises(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if number == 2:
            raise ValueError("of the third batch")
        yield batch


def raises_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("at the end")


def ends_its_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        os._exit(3)
    yield


def is_killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        os.kill(os.getpid(), signal.SIGKILL)
    yield


ENDS: list[Callable[..., Any]] = [
    raises,
    raises_at_the_end,
    ends_its_process,
    is_killed,
]


def gives_fewer_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select(["id"]) for batch in batches)


def gives_more_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.append_column("more", batch.column(0)) for batch in batches)


def gives_other_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns(["a", "b", "c"]) for batch in batches)


def gives_other_types(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select(["text", "half", "id"]) for batch in batches)


WRONG: list[Callable[..., Any]] = [
    gives_fewer_columns,
    gives_more_columns,
    gives_other_names,
    gives_other_types,
]


def of_frames(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for mapInPandas."""

    def adapted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        batches = (pa.RecordBatch.from_pandas(frame, preserve_index=False) for frame in frames)
        for batch in function(batches):
            yield batch.to_pandas()

    return adapted


# --- UDFs of iterators: each takes arrays of numbers ---------------------------------------------


def adds(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    before = 0
    for batch in batches:
        yield pc.add(batch, before)
        before += len(batch)


def looks_one_ahead(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    before = next(batches, None)
    for batch in batches:
        yield before
        before = batch
    if before is not None:
        yield before


def gives_all_as_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield pa.concat_arrays([pa.array([], pa.int64()), *batches])


def gives_other_sizes(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    kept = pa.array([], pa.int64())
    for batch in batches:
        kept = pa.concat_arrays([kept, batch])
        yield kept.slice(0, 0)
        while len(kept) >= 333:
            yield kept.slice(0, 333)
            kept = kept.slice(333)
    yield kept


def needs_a_batch(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield next(batches)
    yield from batches


def gives_too_few(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield batch.slice(1)


def gives_too_many(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield batch
        yield batch


def leaves_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield next(batches)


def raises_at_third(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for number, batch in enumerate(batches):
        if number == 2:
            raise ValueError("of the third batch")
        yield batch


ITERATORS: list[Callable[..., Any]] = [
    adds,
    looks_one_ahead,
    gives_all_as_one,
    gives_other_sizes,
    needs_a_batch,
    gives_too_few,
    gives_too_many,
    leaves_batches,
    raises_at_third,
]


def of_series(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for pandas_udf."""

    def adapted(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in function(pa.Array.from_pandas(series) for series in batches):
            yield batch.to_pandas()

    return adapted


def sizes(table: pa.Table) -> str:
    """How many rows each batch of a group had."""
    return str([len(chunk) for chunk in table.column("id").chunks])
